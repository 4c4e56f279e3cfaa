//! `cargo xtask dist`: what a release is made of. For each architecture a tarball and a Debian package, and
//! an RPM where `rpmbuild` is, each with the static programs, manual, completions and licence.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::vm::Arch;
use crate::vm::build::{self, repository};
use crate::vm::cache::Cache;

/// Makes tarballs and packages.
#[derive(Args, Debug)]
pub(crate) struct Dist {
    /// For this architecture only
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Install the Debian package for this machine into a new root (debootstrap), and launch a program there
    #[arg(long)]
    check: bool,
    /// Where to
    out: PathBuf,
}

const PROGRAMS: [&str; 2] = ["tiexec", "tiexecctl"];
const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMMARY: &str = "Puts the executable text of Linux programs on huge pages";

impl Dist {
    pub(crate) fn run(&self) -> Result<()> {
        fs::create_dir_all(&self.out)?;
        let out = self.out.canonicalize()?;
        let arches = match &self.arch[..] {
            [] => vec![Arch::X86, Arch::Arm],
            some => some.to_vec(),
        };
        for arch in arches {
            let work = tempfile::tempdir()?;
            let stage = work.path().join("stage");
            self.stage(arch, &stage)?;
            tarball(arch, &stage, &out)?;
            let package = debian(arch, &stage, &out)?;
            rpm(arch, &stage, &out)?;
            if self.check && arch.is_here() {
                check(&package)?;
            }
        }
        Ok(())
    }

    /// Lays all files out below `stage`, as they lie below `/`.
    fn stage(&self, arch: Arch, stage: &Path) -> Result<()> {
        let programs = programs(arch)?;
        for program in PROGRAMS {
            install(&programs.join(program), &stage.join("usr/bin").join(program), 0o755)?;
        }
        let share = stage.join("usr/share");
        let made = tempfile::tempdir()?;
        crate::man(made.path())?;
        for page in ["tiexec.1", "tiexecctl.8"] {
            let section = page.rsplit('.').next().unwrap_or_default();
            let to = share.join(format!("man/man{section}")).join(page);
            install(&made.path().join(page), &to, 0o644)?;
        }
        crate::completions(made.path())?;
        for program in PROGRAMS {
            for (file, to) in [
                (format!("{program}.bash"), format!("bash-completion/completions/{program}")),
                (format!("_{program}"), format!("zsh/site-functions/_{program}")),
                (format!("{program}.fish"), format!("fish/vendor_completions.d/{program}.fish")),
            ] {
                install(&made.path().join(file), &share.join(to), 0o644)?;
            }
        }
        install(&repository()?.join("LICENSE"), &share.join("doc/tiexec/copyright"), 0o644)
    }
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| shown.clone())?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
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
fn tarball(arch: Arch, stage: &Path, out: &Path) -> Result<()> {
    let name = format!("tiexec-{VERSION}-{arch}");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--transform=s,^usr,{name},"));
    tar.arg("-czf")
        .arg(out.join(format!("{name}.tar.gz")))
        .arg("-C")
        .args([stage, Path::new("usr")]);
    run(&mut tar)
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
fn rpm(arch: Arch, stage: &Path, out: &Path) -> Result<()> {
    if Command::new("rpmbuild").arg("--version").output().is_err() {
        println!("SKIP rpm for {arch}: no rpmbuild (apt-get install rpm)");
        return Ok(());
    }
    let work = stage.with_file_name("rpm");
    fs::create_dir_all(&work)?;
    let spec = work.join("tiexec.spec");
    let text = format!(
        "Name: tiexec\nVersion: {VERSION}\nRelease: 1\nSummary: {SUMMARY}\nLicense: Apache-2.0\nAutoReqProv: no\n\
         %description\nAt launch (tiexec PROGRAM), or in a running process (tiexec -p PID).\n\
         %install\ncp -a {}/. %{{buildroot}}\n\
         %files\n%defattr(-,root,root)\n/usr/bin/*\n/usr/share/man/*/*\n/usr/share/doc/tiexec\n\
         /usr/share/bash-completion/completions/*\n/usr/share/zsh/site-functions/*\n\
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
    run(build.arg(spec))
}

/// Installs the package into a root in which nothing else has been done, and uses it there.
fn check(package: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let release = crate::vm::apt::release_here()?;
    let mirror = crate::vm::apt::mirror(false);
    let mut bootstrap = Command::new("debootstrap");
    run(bootstrap.args(["--variant=minbase", &release]).arg(&root).arg(mirror))?;
    fs::copy(package, root.join("tiexec.deb"))?;
    run(Command::new("chroot").arg(&root).args(["dpkg", "-i", "/tiexec.deb"]))?;
    // With /proc, which goes with the mount namespace.
    let script = "mount -t proc proc /proc && tiexec --version && tiexec --report sh -c 'exit 7'";
    let mut launch = Command::new("unshare");
    launch.arg("--mount").arg("chroot").arg(&root).args(["sh", "-c", script]);
    let status = launch.status().context("unshare --mount chroot")?;
    if status.code() != Some(7) {
        bail!("a program launched in a new root: {status}, not status 7");
    }
    run(Command::new("chroot").arg(&root).args(["dpkg", "--purge", "tiexec"]))?;
    println!("{} can be installed, used and removed", package.display());
    Ok(())
}
