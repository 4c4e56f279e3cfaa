//! Kernels of our own, for what no kernel of Debian's lacks or has: built once from Debian's source, small, with all that a
//! guest needs built in.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::Apt;
use super::cache::Cache;
use super::kernel::SUITES;
use super::{Arch, Lacking};

/// What every one of them has.
const COMMON: &str = include_str!("../../guest/kernel.config");

/// The kinds: what stands after the version, and what they have.
const KINDS: [(&str, &str); 2] = [
    (
        // Files' page cache collapses by MADV_COLLAPSE on any file system; gone from 7.2.
        "rothp",
        "CONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_TRANSPARENT_HUGEPAGE_MADVISE=y\n\
         CONFIG_READ_ONLY_THP_FOR_FS=y\nCONFIG_HUGETLBFS=y\n",
    ),
    ("nothp", "# CONFIG_TRANSPARENT_HUGEPAGE is not set\n# CONFIG_HUGETLBFS is not set\n"),
];

/// Splits `6.12-nothp` into the version and what makes it a kind of our own.
pub(super) fn kind(version: &str) -> Option<(&str, &'static str, &'static str)> {
    KINDS.iter().find_map(|(name, config)| {
        let version = version.strip_suffix(name)?.strip_suffix('-')?;
        Some((version, *name, *config))
    })
}

/// Builds one below `dir`, as Debian's packages would be unpacked there; takes ten minutes or more.
pub(super) fn build(
    cache: &Cache,
    arch: Arch,
    (version, name, config): (&str, &str, &str),
    release: &str,
    dir: &Path,
) -> Result<()> {
    for (tool, package) in [("flex", "flex"), ("bison", "bison"), ("bc", "bc")] {
        if Command::new(tool).arg("--version").output().is_err() {
            bail!(Lacking(format!("no {tool} to build a kernel (apt-get install {package})")));
        }
    }
    let place = dir.join("build");
    let unpacked = place.join("package");
    let package = format!("linux-source-{version}");
    Apt::open(cache, arch, &SUITES)?.unpack(std::slice::from_ref(&package), &unpacked)?;
    let tar = unpacked.join(format!("usr/src/{package}.tar.xz"));
    run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(&place))?;
    let source = place.join(&package);
    let fragment = place.join("fragment");
    fs::write(&fragment, format!("{COMMON}{config}CONFIG_LOCALVERSION=\"-{name}\"\n"))?;
    let out = place.join("out");
    fs::create_dir_all(&out)?;
    let (image, prefix) = match arch {
        Arch::X86 => ("arch/x86/boot/bzImage", ""),
        Arch::Arm => ("arch/arm64/boot/Image", "aarch64-linux-gnu-"),
    };
    let make = |targets: &[&str]| {
        let mut make = Command::new("nice");
        make.args(["make", "-s", "-C"]).arg(&source);
        make.arg(format!("O={}", out.display()));
        make.arg(match arch {
            Arch::X86 => "ARCH=x86_64",
            Arch::Arm => "ARCH=arm64",
        });
        if !arch.is_here() {
            make.arg(format!("CROSS_COMPILE={prefix}"));
        }
        run(make.args(targets))
    };
    make(&["tinyconfig"])?;
    let merge = source.join("scripts/kconfig/merge_config.sh");
    // It writes where it is called.
    let mut merge = Command::new(merge);
    run(merge.current_dir(&out).args(["-m", "-O"]).args([&out, &out.join(".config"), &fragment]))?;
    let target = Path::new(image).file_name().and_then(|name| name.to_str()).unwrap_or(image);
    make(&["olddefconfig"])?;
    make(&[&format!("-j{}", std::thread::available_parallelism()?), target])?;
    fs::create_dir_all(dir.join("boot"))?;
    fs::create_dir_all(dir.join("lib/modules").join(release))?;
    fs::copy(out.join(image), dir.join(format!("boot/vmlinuz-{release}")))?;
    fs::copy(out.join(".config"), dir.join(format!("boot/config-{release}")))?;
    Ok(fs::remove_dir_all(&place)?)
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let done = command.stdout(std::process::Stdio::null()).status();
    let done = done.with_context(|| program.display().to_string())?;
    if !done.success() {
        bail!("{command:?}: {done}");
    }
    Ok(())
}
