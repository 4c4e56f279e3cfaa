//! `cargo xtask dist`: what a release is made of. For each architecture a tarball and a Debian package, and
//! an RPM where `rpmbuild` is, each with the static programs, manual, completions and licence.

mod check;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::vm::build::{self, repository};
use crate::vm::cache::Cache;
use crate::vm::{Arch, Lacking, forbids_skips, run};

/// Makes tarballs and packages.
#[derive(Args, Debug)]
pub(crate) struct Dist {
    /// For this architecture only
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Use what was made: install the packages into new roots, the one for another machine in a guest, and
    /// launch programs there
    #[arg(long)]
    check: bool,
    /// Where to
    out: PathBuf,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The places of the files, below `/usr`.
const FILES: [&str; 19] = [
    "bin/tiexec",
    "bin/tiexecctl",
    "bin/tiexecd",
    "share/man/man1/tiexec.1",
    "share/man/man5/tiexec.conf.5",
    "share/man/man8/tiexecctl.8",
    "share/man/man8/tiexecd.8",
    "share/bash-completion/completions/tiexec",
    "share/bash-completion/completions/tiexecctl",
    "share/bash-completion/completions/tiexecd",
    "share/zsh/site-functions/_tiexec",
    "share/zsh/site-functions/_tiexecctl",
    "share/zsh/site-functions/_tiexecd",
    "share/fish/vendor_completions.d/tiexec.fish",
    "share/fish/vendor_completions.d/tiexecctl.fish",
    "share/fish/vendor_completions.d/tiexecd.fish",
    "lib/systemd/system/tiexecd.service",
    "lib/systemd/system-preset/80-tiexec.preset",
    "share/doc/tiexec/copyright",
];
const SUMMARY: &str = "Puts the executable text of Linux programs on huge pages";

/// The products for an architecture.
struct Made {
    tarball: PathBuf,
    debian: PathBuf,
    /// `None` where it could not be made here.
    rpm: Option<PathBuf>,
}

impl Dist {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        fs::create_dir_all(&self.out)?;
        let out = self.out.canonicalize()?;
        let arches = match &self.arch[..] {
            [] => vec![Arch::X86, Arch::Arm],
            some => some.to_vec(),
        };
        let mut whole = true;
        for arch in arches {
            let work = tempfile::tempdir()?;
            let stage = work.path().join("stage");
            match stage_all(arch, &stage) {
                Err(error) if error.is::<Lacking>() => {
                    println!("SKIP dist for {arch}: {error:#}");
                    whole = false;
                    continue;
                }
                other => other?,
            }
            let made = Made {
                tarball: tarball(arch, &stage, &out)?,
                debian: debian(arch, &stage, &out)?,
                rpm: rpm(arch, &stage, &out)?,
            };
            whole &= made.rpm.is_some() && (!self.check || check::check(arch, &made)?);
        }
        Ok(if whole || !forbids_skips() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Lays all files out below `stage`, as they lie below `/`.
fn stage_all(arch: Arch, stage: &Path) -> Result<()> {
    let (programs, made) = (programs(arch)?, tempfile::tempdir()?);
    crate::man(made.path())?;
    crate::completions(made.path())?;
    for file in FILES {
        let name = file.rsplit('/').next().unwrap_or_default();
        let (from, mode) = match file.split('/').collect::<Vec<_>>()[..] {
            ["bin", _] => (programs.join(name), 0o755),
            [.., "bash-completion", _, _] => (made.path().join(format!("{name}.bash")), 0o644),
            ["lib", "systemd", ..] => (repository()?.join("systemd").join(name), 0o644),
            [.., "copyright"] => (repository()?.join("LICENSE"), 0o644),
            _ => (made.path().join(name), 0o644),
        };
        install(&from, &stage.join("usr").join(file), mode)?;
    }
    Ok(())
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Builds the static programs, and returns where they lie.
fn programs(arch: Arch) -> Result<PathBuf> {
    let triple = format!("{arch}-unknown-linux-gnu");
    // As `make programs` does: a static PIE would relocate itself on each start.
    let flags = match arch {
        Arch::X86 => "-C target-feature=+crt-static -C relocation-model=static",
        Arch::Arm => "-C target-feature=+crt-static",
    };
    let mut cargo = build::cargo();
    cargo.current_dir(repository()?).env("RUSTFLAGS", flags);
    cargo.args(["build", "--release", "--locked", "--package", "tiexec"]);
    if arch.is_here() {
        cargo.args(["--target", &triple]);
    } else {
        build::cross(&Cache::open()?, arch, &mut cargo)?;
    }
    run(&mut cargo)?;
    Ok(build::target_directory()?.join(triple).join("release"))
}

/// `tiexec-VERSION-ARCH.tar.gz`, to be unpacked at `/`, or anywhere.
fn tarball(arch: Arch, stage: &Path, out: &Path) -> Result<PathBuf> {
    let name = format!("tiexec-{VERSION}-{arch}");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--transform=s,^usr,{name},"));
    let tarball = out.join(format!("{name}.tar.gz"));
    tar.arg("-czf").arg(&tarball).arg("-C").args([stage, Path::new("usr")]);
    run(&mut tar)?;
    Ok(tarball)
}

/// `tiexec_VERSION_ARCH.deb`. It depends on nothing.
fn debian(arch: Arch, stage: &Path, out: &Path) -> Result<PathBuf> {
    let root = stage.with_file_name("debian");
    run(Command::new("cp").arg("-a").args([stage, &root]))?;
    let control = format!(
        "Package: tiexec\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: The TiExec authors <tiexec@localhost>\n\
         Section: admin\nPriority: optional\nDescription: {SUMMARY}\n \
         At launch (tiexec PROGRAM), or in a running process (tiexec -p PID).\n",
        arch.debian()
    );
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::write(root.join("DEBIAN/control"), control)?;
    let package = out.join(format!("tiexec_{VERSION}_{}.deb", arch.debian()));
    run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).args([&root, &package]))?;
    Ok(package)
}

/// `tiexec-VERSION-1.ARCH.rpm`.
fn rpm(arch: Arch, stage: &Path, out: &Path) -> Result<Option<PathBuf>> {
    if Command::new("rpmbuild").arg("--version").output().is_err() {
        println!("SKIP rpm for {arch}: no rpmbuild (apt-get install rpm)");
        return Ok(None);
    }
    let work = stage.with_file_name("rpm");
    fs::create_dir_all(&work)?;
    let spec = work.join("tiexec.spec");
    let text = format!(
        "Name: tiexec\nVersion: {VERSION}\nRelease: 1\nSummary: {SUMMARY}\nLicense: Apache-2.0\nAutoReqProv: no\n\
         %description\nAt launch (tiexec PROGRAM), or in a running process (tiexec -p PID).\n\
         %install\ncp -a {}/. %{{buildroot}}\n\
         %files\n%defattr(-,root,root)\n/usr/bin/*\n/usr/share/man/*/*\n/usr/share/doc/tiexec\n\
         /usr/lib/systemd/*/*\n/usr/share/bash-completion/completions/*\n/usr/share/zsh/site-functions/*\n\
         /usr/share/fish/vendor_completions.d/*\n",
        stage.display()
    );
    fs::write(&spec, text)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", &arch.to_string()]);
    for (name, value) in [
        ("_topdir", work.as_path()),
        ("_rpmdir", out),
        ("_rpmfilename", Path::new("%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm")),
        // The programs of another architecture cannot be looked into here, and need not.
        ("__os_install_post", Path::new("%{nil}")),
        ("debug_package", Path::new("%{nil}")),
    ] {
        build.arg("--define").arg(format!("{name} {}", value.display()));
    }
    run(build.arg(spec))?;
    Ok(Some(out.join(format!("tiexec-{VERSION}-1.{arch}.rpm"))))
}
