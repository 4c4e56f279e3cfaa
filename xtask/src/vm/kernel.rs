//! An unpacked kernel of Debian or Ubuntu, and the initial file system that mounts its root.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cpio::newc;

use super::apt::{Apt, SUITES};
use super::cache::Cache;
use super::{Arch, Lacking, own};

/// The kernels of Ubuntu's LTS releases, and their suites.
const UBUNTU: [(&str, &str); 2] = [("5.15", "jammy-updates"), ("6.8", "noble-updates")];
/// The modules that a guest needs before it has a root, and the modules that tests need.
const MODULES: [&str; 7] =
    ["virtio_pci", "virtio_blk", "ext4", "xfs", "9p", "9pnet_virtio", "overlay"];

#[derive(Debug)]
pub(crate) struct Kernel {
    /// The release, as in `uname -r`.
    pub(crate) release: String,
    dir: PathBuf,
}

impl Kernel {
    /// Returns the newest kernel of a version (`6.12`, `6.12-16k`): the newest unpacked one, or else the newest of
    /// Debian or Ubuntu. Builds a kernel of our [own] kinds (`6.12-rothp`).
    pub(crate) fn fetch(cache: &Cache, arch: Arch, version: &str) -> Result<Self> {
        if let Some(kind) = own::kind(version) {
            let release = version.to_owned();
            let dir = cache.once(&format!("kernels/{arch}/{release}"), |new| {
                own::build(cache, arch, kind, &release, new)
            })?;
            return Ok(Self { release, dir });
        }
        let ubuntus = UBUNTU.iter().find(|(its, _)| *its == version);
        let packages = || match ubuntus {
            Some((_, suite)) => Apt::of_ubuntu(cache, arch, &[suite]),
            None => Apt::open(cache, arch, &SUITES),
        };
        let dir = cache.dir(&format!("kernels/{arch}"))?;
        let here: Vec<String> = fs::read_dir(&dir)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        let release = match newest(here.iter().map(String::as_str), arch, version) {
            Some(release) => release,
            None => {
                let names = packages()?.names("linux-image-")?;
                let names = names.iter().filter_map(|name| name.strip_prefix("linux-image-"));
                let found = newest(names, arch, version);
                found.ok_or_else(|| Lacking(format!("no package of Linux {version} for {arch}")))?
            }
        };
        let dir = cache.once(&format!("kernels/{arch}/{release}"), |new| {
            // From 7.x on a kernel comes in several packages.
            let parts = ["image", "base", "binary", "modules"];
            packages()?.unpack(&parts.map(|part| format!("linux-{part}-{release}")), new)?;
            if !new.join("lib").exists() {
                std::os::unix::fs::symlink("usr/lib", new.join("lib"))?;
            }
            let depmod = Command::new("depmod").arg("-b").args([new, Path::new(&release)]).status();
            if !depmod.context("depmod (apt-get install kmod)")?.success() {
                bail!("depmod -b {} {release}", new.display());
            }
            Ok(())
        })?;
        Ok(Self { release, dir })
    }

    /// Returns the image that QEMU boots.
    pub(crate) fn image(&self) -> Result<PathBuf> {
        let places = [
            format!("boot/vmlinuz-{}", self.release),
            format!("lib/modules/{}/vmlinuz", self.release),
        ];
        let found = places.iter().map(|place| self.dir.join(place)).find(|place| place.is_file());
        found.with_context(|| format!("no vmlinuz in {}", self.dir.display()))
    }

    /// The directory that is /lib/modules in a guest.
    pub(crate) fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules")
    }

    /// Writes the initial file system: a shell, the modules, and `init`.
    pub(crate) fn write_initial(&self, busybox: &Path, init: &str, to: &Path) -> Result<()> {
        let mut out = BufWriter::new(File::create(to)?);
        let mut number = 0;
        let mut add = |out: &mut BufWriter<File>, name: &str, mode: u32, bytes: &[u8]| {
            number += 1;
            let entry = newc::Builder::new(name).ino(number).nlink(1).mode(mode);
            let mut writer = entry.write(out, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            writer.write_all(bytes)?;
            writer.finish().map(|_| ())
        };
        for dir in ["bin", "dev", "proc", "sys", "tmp", "root", "modules"] {
            add(&mut out, dir, 0o40755, b"")?;
        }
        let console = newc::Builder::new("dev/console").nlink(1).mode(0o20_600);
        console.rdev_major(5).rdev_minor(1).write(&mut out, 0).finish()?;
        add(&mut out, "bin/busybox", 0o100_755, &fs::read(busybox)?)?;
        for (index, module) in self.modules_in_order()?.iter().enumerate() {
            let name = format!("modules/{index:02}.ko");
            add(&mut out, &name, 0o100_644, &unpacked(module)?)?;
        }
        add(&mut out, "init", 0o100_755, init.as_bytes())?;
        newc::trailer(out)?.flush()?;
        Ok(())
    }

    /// The files of [`MODULES`] and of their dependencies, in the order of loading.
    fn modules_in_order(&self) -> Result<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = Vec::new();
        for module in MODULES {
            let mut modprobe = Command::new("modprobe");
            modprobe.arg("-d").arg(&self.dir).args(["-S", &self.release, "--show-depends", module]);
            let said = modprobe.output().context("modprobe (apt-get install kmod)")?;
            // Some modules are built in. modprobe reports that, or does not know them.
            for line in String::from_utf8_lossy(&said.stdout).lines() {
                let file = line.strip_prefix("insmod ").map(|file| PathBuf::from(file.trim()));
                if let Some(file) = file
                    && !files.contains(&file)
                {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

fn unpacked(module: &Path) -> Result<Vec<u8>> {
    let tool = match module.extension().and_then(|suffix| suffix.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(fs::read(module)?),
    };
    let output = Command::new(tool).arg("-dc").arg(module).output();
    let output = output.with_context(|| format!("{tool} -dc {}", module.display()))?;
    Ok(output.stdout)
}

/// Returns the newest release of `version` that is neither a cloud kernel nor a real-time kernel.
fn newest<'a>(
    releases: impl Iterator<Item = &'a str>,
    arch: Arch,
    version: &str,
) -> Option<String> {
    let (version, flavour) = match version.strip_suffix("-16k") {
        Some(version) => (version, format!("-{}-16k", arch.debian())),
        None if UBUNTU.iter().any(|(its, _)| *its == version) => (version, "-generic".to_owned()),
        None => (version, format!("-{}", arch.debian())),
    };
    let numbers = |release: &str| -> Vec<u64> {
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    let fits = |release: &&str| {
        let Some(middle) = release.strip_suffix(&flavour) else { return false };
        let Some(rest) = middle.strip_prefix(version) else { return false };
        let plain = rest.replace("deb", "");
        plain.starts_with('.') && plain.chars().all(|c| c.is_ascii_digit() || ".-+".contains(c))
    };
    releases.filter(fits).max_by_key(|release| numbers(release)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_of_a_version_is_taken() {
        let all = [
            "6.1.0-47-amd64",
            "6.1.0-9-amd64",
            "6.1.0-50-cloud-amd64",
            "6.12.43+deb12-amd64",
            "6.12.107+deb13-amd64",
            "6.12.95+deb12-rt-amd64",
            "6.12.107+deb13-arm64-16k",
            "6.12.107+deb13-arm64",
            "5.15.0-97-generic",
            "5.15.0-160-generic",
            "5.15.0-160-lowlatency",
        ];
        let pick = |arch, version| newest(all.iter().copied(), arch, version);
        assert_eq!(pick(Arch::X86, "6.1").as_deref(), Some("6.1.0-47-amd64"));
        assert_eq!(pick(Arch::X86, "6.12").as_deref(), Some("6.12.107+deb13-amd64"));
        assert_eq!(pick(Arch::Arm, "6.12").as_deref(), Some("6.12.107+deb13-arm64"));
        assert_eq!(pick(Arch::Arm, "6.12-16k").as_deref(), Some("6.12.107+deb13-arm64-16k"));
        assert_eq!(pick(Arch::Arm, "6.1"), None);
        assert_eq!(pick(Arch::X86, "5.15").as_deref(), Some("5.15.0-160-generic"));
    }
}
