//! Tests the products as users would use them: installs them into a new root, on this machine or in a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Made;
use crate::vm::cache::Cache;
use crate::vm::{Arch, Lacking, VmTest, apt, build, need, root, run};

/// The shell script that installs the package, uses it and removes it.
const PACKAGE: &str = include_str!("../../guest/package.sh");
/// The kernel of a guest.
const KERNEL: &str = "6.12";

/// Checks all products for an architecture. Returns whether no check was skipped.
pub(super) fn check(arch: Arch, made: &Made) -> Result<bool> {
    let debian = if arch.is_here() { debian_here(&made.debian) } else { debian_there(arch, made) };
    let done = [
        lenient(&made.tarball, tarball(arch, &made.tarball))?,
        lenient(&made.debian, debian)?,
        lenient(&made.rpm, rpm(arch, &made.rpm))?,
    ];
    Ok(done.iter().all(|done| *done))
}

/// Reports a check that is skipped because something is missing.
fn lenient(what: &Path, checked: Result<()>) -> Result<bool> {
    let name = what.file_name().unwrap_or_default().to_string_lossy();
    match checked {
        Ok(()) => {
            println!("ok {name}");
            Ok(true)
        }
        Err(error) if error.is::<Lacking>() => {
            println!("SKIP check of {name}: {error:#}");
            Ok(false)
        }
        Err(error) => Err(error.context(format!("check of {name}"))),
    }
}

/// Unpacks the tarball, and runs its programs from there if they are for this machine.
fn tarball(arch: Arch, tarball: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    run(Command::new("tar").arg("-xzf").arg(tarball).arg("-C").arg(work.path()))?;
    let top = fs::read_dir(work.path())?.next().context("an empty tarball")??.path();
    let programs = super::PROGRAMS.map(|name| top.join("bin").join(name));
    is_whole(&top, &programs, arch)
}

/// Checks that the programs exist, and that they are static, because they run in an empty root.
fn is_whole(root: &Path, programs: &[PathBuf], arch: Arch) -> Result<()> {
    for program in programs {
        if !program.is_file() {
            bail!("no {}", program.display());
        }
        if arch.is_here() {
            let inside = Path::new("/").join(program.strip_prefix(root)?);
            run(Command::new("chroot").arg(root).arg(inside).arg("--version"))?;
        }
    }
    Ok(())
}

/// Installs the package into a fresh root from debootstrap.
fn debian_here(package: &Path) -> Result<()> {
    need("lintian", "lintian")?;
    // lintian takes some machine code for misspelt words. That of Debian 13 calls an exception alien whose tag only that of Debian 12 has.
    let suppressed = "--suppress-tags=spelling-error-in-binary,alien-tag";
    let all = ["--display-info", "--pedantic", suppressed];
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on=error,warning,info,pedantic"]).args(all);
    run(lintian.arg(package))?;
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    root::bootstrap(&Cache::open()?, &apt::release_here()?, "man-db", &root)?;
    fs::copy(package, root.join("tiexec.deb"))?;
    // The mounts end with the mount namespace.
    let mut script = Command::new("unshare");
    run(script.arg("--mount").arg("chroot").arg(&root).args(["sh", "-c", PACKAGE]))
}

/// Installs the package in a guest, into a fresh root of packages.
fn debian_there(arch: Arch, made: &Made) -> Result<()> {
    let cache = Cache::open()?;
    let place = build::target_directory()?.join(format!("dist-check/{arch}"));
    let _from_before = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    root::clean(&cache, arch, &place.join("root"))?;
    fs::copy(&made.debian, place.join("root/tiexec.deb"))?;
    fs::write(place.join("root/package.sh"), PACKAGE)?;
    // The guest can only read that directory, so the script mounts an overlay over it.
    let script = format!(
        "set -e\nmkdir -p \"$files\"/upper \"$files\"/work /new\n\
         mount -t overlay -o lowerdir={}/root,upperdir=\"$files\"/upper,workdir=\"$files\"/work overlay /new\n\
         chroot /new sh /package.sh\n",
        place.display()
    );
    let (runs, skipped) = VmTest::of_command(arch, KERNEL, script).runs()?;
    fs::remove_dir_all(place)?;
    match &runs[..] {
        _ if skipped => bail!(Lacking("no guest".to_owned())),
        [run] if run.is_good() => Ok(()),
        _ => bail!("in a guest with Linux {KERNEL}"),
    }
}

/// Checks the package's digests, and installs it into an empty directory.
fn rpm(arch: Arch, package: &Path) -> Result<()> {
    need("rpm", "rpm")?;
    run(Command::new("rpm").arg("-K").arg(package))?;
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    let mut install = Command::new("rpm");
    install.arg("--root").arg(&root).args(["--install", "--ignorearch", "--noscripts"]);
    run(install.arg(package))?;
    is_whole(&root, &super::PROGRAMS.map(|name| root.join("usr/bin").join(name)), arch)?;
    run(Command::new("rpm").arg("--root").arg(&root).args(["--verify", "tiexec"]))
}
