//! The root file system of guests: packages of this machine's Debian release, unpacked but not installed. With the same
//! release, programs that are built here run in the guest.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::{Arch, Lacking, need, run};

/// The packages that the tests call.
const PACKAGES: [&str; 25] = [
    "base-files",
    "base-passwd",
    "dash",
    "bash",
    "coreutils",
    "grep",
    "sed",
    "mawk",
    "findutils",
    "tar",
    "procps",
    "util-linux",
    "mount",
    "kmod",
    "e2fsprogs",
    "xfsprogs",
    "attr",
    "libcap2-bin",
    "binutils",
    "gdb",
    "strace",
    "python3-minimal",
    "libstdc++6",
    "musl",
    "busybox-static",
];
/// The programs that `bench/kernel` measures, in the newest root.
const MEASURED: [&str; 6] =
    ["python3", "nodejs", "postgresql", "mariadb-server-core", "clang", "chromium-shell"];
/// The suite of the newest root, and the suite of its C library.
const NEWEST: [&str; 2] = ["sid", "experimental"];

/// The guests' root.
#[derive(Debug)]
pub(crate) struct Root {
    /// An ext4 file system. Guests change only a copy.
    pub(crate) image: PathBuf,
    /// A shell for the initial file system.
    pub(crate) busybox: PathBuf,
}

/// Returns the root of this machine's release, or the `newest` root.
pub(crate) fn image(cache: &Cache, arch: Arch, newest: bool) -> Result<Root> {
    let release = if newest { NEWEST[0].to_owned() } else { apt::release_here()? };
    let name = format!("root-{release}-{arch}");
    let busybox = cache.once(&format!("busybox-{release}-{arch}"), |new| {
        let work = new.with_extension("dir");
        let apt = Apt::open(cache, arch, &[&release])?;
        apt.unpack(&["busybox-static".to_owned()], &work)?;
        let found = ["bin/busybox", "usr/bin/busybox"].map(|place| work.join(place));
        let found = found.iter().find(|place| place.is_file()).context("no busybox in it")?;
        fs::copy(found, new)?;
        Ok(fs::remove_dir_all(work)?)
    })?;
    let image = cache.once(&format!("{name}.ext4"), |new| {
        let dir = new.with_extension("dir");
        let _from_before = fs::remove_dir_all(&dir);
        unpack(cache, arch, &release, if newest { &MEASURED } else { &[] }, &dir)?;
        if newest {
            Apt::open(cache, arch, &NEWEST[1..])?.unpack(&["libc6".to_owned()], &dir)?;
        }
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-E", "root_owner=0:0", "-d"]).args([&dir, new]).arg("8G");
        if !mkfs.status().context("mkfs.ext4 (apt-get install e2fsprogs)")?.success() {
            bail!("mkfs.ext4 -d {}", dir.display());
        }
        Ok(fs::remove_dir_all(dir)?)
    })?;
    Ok(Root { image, busybox })
}

/// Unpacks into `dir` only the packages that are needed to install packages and to show manuals.
pub(crate) fn clean(cache: &Cache, arch: Arch, dir: &Path) -> Result<()> {
    const PACKAGES: [&str; 11] = [
        "base-files",
        "base-passwd",
        "dash",
        "coreutils",
        "libc-bin",
        "diffutils",
        "sed",
        "tar",
        "mount",
        "dpkg",
        "man-db",
    ];
    make_merged(dir)?;
    Apt::open(cache, arch, &[&apt::release_here()?])?.unpack_with_dependencies(&PACKAGES, dir)?;
    for place in ["proc", "sys", "dev", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(dir.join(place))?;
    }
    Ok(fs::write(dir.join("var/lib/dpkg/status"), "")?)
}

/// The Ubuntu releases that can be a root.
const UBUNTU: [&str; 1] = ["noble"];

/// Makes a root of a release of Debian or Ubuntu with debootstrap.
pub(crate) fn bootstrap(cache: &Cache, release: &str, include: &str, dir: &Path) -> Result<()> {
    need("debootstrap", "debootstrap")?;
    let (mirror, keyring, script) = if UBUNTU.contains(&release) {
        let (place, keyring) = apt::archive_of_ubuntu(cache, Arch::of_this_machine())?;
        // Debian's debootstrap has this script for all releases of Ubuntu, and no link to it for each.
        (place.to_owned(), keyring, Some("gutsy"))
    } else {
        (apt::mirror(false), apt::KEYRING.into(), None)
    };
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", "--components=main,universe", "--force-check-gpg"]);
    command.arg(format!("--keyring={}", keyring.display())).arg(format!("--include={include}"));
    let made = command.arg(release).arg(dir).arg(&mirror).args(script).output();
    let made = made.context("debootstrap")?;
    let said = String::from_utf8_lossy(&made.stdout);
    if said.contains("Failed getting release file") {
        bail!(Lacking(format!("cannot reach {mirror}")));
    }
    if !made.status.success() {
        bail!("debootstrap {release}: {said}{}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// Returns a root of a release of Debian or Ubuntu in which its apt has installed systemd and the services of the tests of packages.
pub(crate) fn installed(cache: &Cache, release: &str) -> Result<PathBuf> {
    cache.once(&format!("installed-{release}-{}", Arch::of_this_machine()), |new| {
        bootstrap(cache, release, "systemd,dbus,procps", new)?;
        // No service may start: this is not a machine that runs.
        let policy = new.join("usr/sbin/policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
        let script = "mount -t proc proc /proc && apt-get -q=2 update && \
            DEBIAN_FRONTEND=noninteractive apt-get -q=2 -y -o Dpkg::Use-Pty=0 --no-install-recommends install \
            nginx redis-server mariadb-server >/dev/null && apt-get clean";
        let mut install = Command::new("unshare");
        // The mounts and the processes end with the namespaces.
        install.args(["--mount", "--pid", "--fork", "--kill-child", "chroot"]);
        run(install.arg(new).args(["sh", "-ec", script]))
    })
}

/// Makes the directories below `/usr`, and the links to them.
fn make_merged(dir: &Path) -> Result<()> {
    for merged in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(dir.join("usr").join(merged))?;
        symlink(format!("usr/{merged}"), dir.join(merged))?;
    }
    Ok(())
}

/// Unpacks [`PACKAGES`] and `more` of a release.
fn unpack(cache: &Cache, arch: Arch, release: &str, more: &[&str], dir: &Path) -> Result<()> {
    make_merged(dir)?;
    let packages = [&PACKAGES, more].concat();
    Apt::open(cache, arch, &[release])?.unpack_with_dependencies(&packages, dir)?;
    // Normally the packages' scripts make these files.
    for file in ["passwd", "group"] {
        let master = dir.join(format!("usr/share/base-passwd/{file}.master"));
        fs::copy(master, dir.join("etc").join(file))?;
    }
    fs::write(dir.join("etc/hostname"), "guest\n")?;
    fs::create_dir_all(dir.join("etc/tiexec"))?;
    // Emulation is slow, so the default deadline is long. Tests of the deadline set their own.
    fs::write(dir.join("etc/tiexec/config"), "deadline=60s\n")?;
    if !dir.join("usr/bin/awk").exists() {
        symlink("mawk", dir.join("usr/bin/awk"))?;
    }
    let python = fs::read_dir(dir.join("usr/bin"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with("python3."));
    if let Some(python) = python
        && !dir.join("usr/bin/python3").exists()
    {
        symlink(python, dir.join("usr/bin/python3"))?;
    }
    for place in ["proc", "sys", "dev", "run", "tmp", "root", "vm", "usr/lib/modules"] {
        fs::create_dir_all(dir.join(place))?;
    }
    Ok(())
}
