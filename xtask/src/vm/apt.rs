//! A private apt, with its own lists and its own empty set of installed packages. It installs nothing, and does not
//! touch the system's apt.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::{Arch, Lacking};

/// The suites of Debian with old and new kernels.
pub(super) const SUITES: [&str; 5] =
    ["bullseye", "bookworm", "bookworm-backports", "trixie", "trixie-backports"];
/// The age from which lists are fetched again.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[derive(Debug)]
pub(crate) struct Apt {
    dir: PathBuf,
    arch: Arch,
}

impl Apt {
    /// Opens an apt for packages of `arch` from these suites of Debian.
    pub(crate) fn open(cache: &Cache, arch: Arch, suites: &[&str]) -> Result<Self> {
        let place = |suite: &str| mirror(suite.ends_with("-security"));
        Self::from(cache, arch, suites, Path::new(KEYRING), place)
    }

    /// Opens an apt for packages of `arch` from these suites of Ubuntu.
    pub(crate) fn of_ubuntu(cache: &Cache, arch: Arch, suites: &[&str]) -> Result<Self> {
        let (place, keyring) = archive_of_ubuntu(cache, arch)?;
        Self::from(cache, arch, suites, &keyring, |_| place.to_owned())
    }

    fn from(
        cache: &Cache,
        arch: Arch,
        suites: &[&str],
        keyring: &Path,
        place: impl Fn(&str) -> String,
    ) -> Result<Self> {
        if !keyring.exists() {
            let keyring = keyring.display();
            bail!(Lacking(format!("no {keyring} (apt-get install debian-archive-keyring)")));
        }
        let dir = cache.dir(&format!("apt/{}-{}", suites.join("-"), arch.debian()))?;
        for sub in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        fs::write(dir.join("status"), "")?;
        let source = |suite: &&str| {
            format!("deb [signed-by={}] {} {suite} main\n", keyring.display(), place(suite))
        };
        fs::write(dir.join("sources.list"), suites.iter().map(source).collect::<String>())?;
        let apt = Self { dir, arch };
        let stamp = apt.dir.join("updated");
        let fresh = fs::metadata(&stamp)
            .and_then(|file| file.modified())
            .is_ok_and(|when| when.elapsed().is_ok_and(|age| age < STALE));
        if !fresh {
            eprintln!("fetching lists of packages of {} for {arch}", suites.join(", "));
            let updated = apt.command("apt-get").args(["-q=2", "update"]).output();
            let updated = updated.context("apt-get")?;
            if !updated.status.success() {
                let said = String::from_utf8_lossy(&updated.stderr).trim().to_owned();
                bail!(Lacking(format!("no lists of packages: {said}")));
            }
            fs::write(stamp, "")?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut set = |option: &str| {
            command.arg("-o").arg(option);
        };
        let arch = self.arch.debian();
        set(&format!("APT::Architecture={arch}"));
        set("APT::Architectures=");
        set(&format!("APT::Architectures::={arch}"));
        let dir = self.dir.display();
        set(&format!("Dir::Etc::sourcelist={dir}/sources.list"));
        set("Dir::Etc::sourceparts=/dev/null");
        set(&format!("Dir::State::lists={dir}/lists"));
        set(&format!("Dir::State::status={dir}/status"));
        set(&format!("Dir::Cache={dir}"));
        set(&format!("Dir::Cache::archives={dir}/archives"));
        for option in [
            "Acquire::Languages=none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            "APT::Sandbox::User=root",
            "APT::Install-Recommends=false",
            "APT::Get::List-Cleanup=false",
            "Debug::NoLocking=true",
        ] {
            set(option);
        }
        command
    }

    /// Returns the names of packages with this prefix.
    pub(crate) fn names(&self, prefix: &str) -> Result<BTreeSet<String>> {
        let listed = self.command("apt-cache").args(["pkgnames", prefix]).output();
        let listed = listed.context("apt-cache pkgnames")?;
        Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
    }

    /// Returns a field of `apt-cache show` for the newest version of a package.
    pub(crate) fn field(&self, package: &str, field: &str) -> Result<String> {
        let shown = self.command("apt-cache").args(["show", package]).output()?;
        let text = String::from_utf8_lossy(&shown.stdout);
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        value.map(str::to_owned).with_context(|| format!("{package} has no {field}"))
    }

    /// Unpacks the packages themselves into `root`. Missing packages are skipped if at least one exists.
    pub(crate) fn unpack(&self, packages: &[String], root: &Path) -> Result<()> {
        let work = root.with_extension("debs");
        fs::create_dir_all(&work)?;
        let mut refused = String::new();
        for package in packages {
            let fetched = self
                .command("apt-get")
                .args(["-q=2", "download", package])
                .current_dir(&work)
                .output()?;
            if !fetched.status.success() {
                refused.push_str(&String::from_utf8_lossy(&fetched.stderr));
            }
        }
        let unpacked = unpack_all(&work, root)?;
        fs::remove_dir_all(&work)?;
        if unpacked == 0 {
            bail!(Lacking(format!("cannot fetch {}: {}", packages.join(", "), refused.trim())));
        }
        Ok(())
    }

    /// Unpacks the packages and all their dependencies into `root`.
    pub(crate) fn unpack_with_dependencies(&self, packages: &[&str], root: &Path) -> Result<()> {
        let mut fetch = self.command("apt-get");
        fetch.args(["-q=2", "-y", "--download-only", "install"]).args(packages);
        let fetched = fetch.output().context("apt-get install --download-only")?;
        if !fetched.status.success() {
            let said = String::from_utf8_lossy(&fetched.stderr).trim().to_owned();
            bail!(Lacking(format!("cannot fetch packages for a guest: {said}")));
        }
        unpack_all(&self.dir.join("archives"), root)?;
        Ok(())
    }
}

/// Unpacks every package in `dir`, and deletes them. Returns their number.
fn unpack_all(dir: &Path, root: &Path) -> Result<usize> {
    fs::create_dir_all(root)?;
    let mut count = 0;
    for entry in fs::read_dir(dir)? {
        let package = entry?.path();
        if package.extension().is_some_and(|suffix| suffix == "deb") {
            let status = Command::new("dpkg").arg("-x").args([&package, root]).status();
            if !status.context("dpkg -x")?.success() {
                bail!("dpkg -x {}", package.display());
            }
            fs::remove_file(package)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Returns Ubuntu's archive and its keyring, which Debian has.
pub(super) fn archive_of_ubuntu(cache: &Cache, arch: Arch) -> Result<(&'static str, PathBuf)> {
    let keyring = cache.once("ubuntu-keyring", |new| {
        let debian = Apt::open(cache, arch, &["trixie"])?;
        debian.unpack(&["ubuntu-keyring".to_owned()], new)
    })?;
    let place = match arch {
        Arch::X86 => "http://archive.ubuntu.com/ubuntu",
        Arch::Arm => "http://ports.ubuntu.com/ubuntu-ports",
    };
    Ok((place, keyring.join("usr/share/keyrings/ubuntu-archive-keyring.gpg")))
}

/// Returns the mirror that this machine uses, or Debian's own.
pub(crate) fn mirror(security: bool) -> String {
    let set = fs::read_to_string("/etc/apt/sources.list.d/debian.sources").unwrap_or_default();
    let mut uris =
        set.lines().filter_map(|line| line.strip_prefix("URIs:")?.split_whitespace().next());
    let found = uris.find(|uri| uri.contains("security") == security);
    let default = if security {
        "http://deb.debian.org/debian-security"
    } else {
        "http://deb.debian.org/debian"
    };
    found.unwrap_or(default).to_owned()
}

/// The name of the Debian release that this machine runs.
pub(crate) fn release_here() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let debian = text.lines().any(|line| line == "ID=debian");
    match name {
        Some(name) if debian => Ok(name.to_owned()),
        _ => bail!(Lacking("guests are made of Debian's packages, on Debian only".to_owned())),
    }
}
