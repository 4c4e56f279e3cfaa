//! `cargo xtask dist`: makes the files of a release. For each architecture they are a Debian package, an RPM and a
//! tarball, each with the static programs, manual, completions and licence, and Debian's two packages of the library.
//!
//! `packaging/*.yaml` describe the packages, and nfpm makes them. This module lays out the built and generated files.

mod check;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::repository;
use crate::vm::build;
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
    /// Pack the programs in this directory, and the library in its directory lib if there is one, and build none
    #[arg(long)]
    programs: Option<PathBuf>,
    /// The packages' version, as Cargo writes it
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    version: String,
    /// Where to
    out: PathBuf,
}

/// The nfpm that `scripts/setup` installs, in the cache.
const NFPM: &str = "nfpm-2.35.3";
const PROGRAMS: [&str; 3] = ["tiexec", "tiexecctl", "tiexecd"];
/// The packages of the library. The first one has the shared object.
const LIBRARY: [&str; 2] = ["libtiexec1", "libtiexec-dev"];
/// The end of a tarball's name.
const TARRED: &str = ".tar.gz";

/// The products for an architecture.
struct Made {
    tarball: PathBuf,
    debian: PathBuf,
    rpm: PathBuf,
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
            let made = match self.make(arch, &out) {
                Err(error) if error.is::<Lacking>() => {
                    println!("SKIP dist for {arch}: {error:#}");
                    whole = false;
                    continue;
                }
                made => made?,
            };
            whole &= !self.check || check::check(arch, &made)?;
        }
        Ok(if whole || !forbids_skips() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn make(&self, arch: Arch, out: &Path) -> Result<Made> {
        let nfpm = Cache::open()?.dir(NFPM)?.join("nfpm");
        if !nfpm.is_file() {
            bail!(Lacking("no nfpm (scripts/setup test)".to_owned()));
        }
        let work = tempfile::tempdir()?;
        let stage = work.path().join("stage");
        let date = date()?;
        self.stage(arch, &date, &stage)?;
        let version = &self.version;
        let package = |description: &str, kind: &str, name: String| {
            let package = out.join(name);
            let mut nfpm = Command::new(&nfpm);
            nfpm.current_dir(repository()?).args(["package", "--config"]);
            nfpm.arg(Path::new("packaging").join(description));
            nfpm.args(["--packager", kind, "--target"]).arg(&package);
            nfpm.env("ARCH", arch.debian()).env("VERSION", packaged(version)).env("STAGE", &stage);
            nfpm.env("MULTIARCH", multiarch(arch));
            run(nfpm.env("SOURCE_DATE_EPOCH", &date))?;
            anyhow::Ok(package)
        };
        let main = "nfpm.yaml";
        let [debian, rpm, tarred] = files(version, arch);
        let (debian, rpm) = (package(main, "deb", debian)?, package(main, "rpm", rpm)?);
        if self.stage_library(arch, &stage)? {
            for (name, file) in LIBRARY.into_iter().zip(files_of_library(version, arch)) {
                let made = package(&format!("{name}.yaml"), "deb", file)?;
                if name == LIBRARY[0] {
                    add_shlibs(&made, version, &date, work.path())?;
                }
            }
        }
        // The tarball has the files of the Debian package, except those that are only for Debian.
        let unpacked = work.path().join("unpacked");
        run(Command::new("dpkg-deb").arg("-x").args([&debian, &unpacked]))?;
        fs::remove_dir_all(unpacked.join("usr/share/lintian"))?;
        let tarball = tarball(&tarred, &date, &unpacked, out)?;
        Ok(Made { tarball, debian, rpm })
    }

    /// Lays out the built and generated files.
    fn stage(&self, arch: Arch, date: &str, stage: &Path) -> Result<()> {
        let programs = self.programs.clone().map_or_else(|| programs(arch, ""), Ok)?;
        for name in PROGRAMS {
            install(&programs.join(name), &stage.join("bin").join(name), 0o755)?;
        }
        let made = tempfile::tempdir()?;
        crate::man(made.path())?;
        crate::completions(made.path())?;
        for entry in fs::read_dir(made.path())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match name.rsplit_once('.') {
                Some((program, "bash")) => {
                    install(&path, &stage.join("completions/bash").join(program), 0o644)?;
                }
                Some((_, "fish")) => {
                    install(&path, &stage.join("completions/fish").join(&name), 0o644)?;
                }
                Some((_, section)) => {
                    let page = stage.join(format!("man/man{section}")).join(&name);
                    install(&path, &page, 0o644)?;
                    run(Command::new("gzip").arg("-9n").arg(page))?;
                }
                None => install(&path, &stage.join("completions/zsh").join(&name), 0o644)?,
            }
        }
        let changelog = stage.join("changelog");
        install(&repository()?.join("CHANGELOG.md"), &changelog, 0o644)?;
        let debian = stage.join("changelog.Debian");
        fs::write(&debian, self.debian_changelog(date)?)?;
        let licences = stage.join("third-party");
        fs::write(&licences, crate::licences::texts()?)?;
        run(Command::new("gzip").arg("-9n").args([changelog, debian, licences]))
    }

    /// Lays the library out. Returns false if there is no library to pack.
    fn stage_library(&self, arch: Arch, stage: &Path) -> Result<bool> {
        let to = stage.join("lib");
        let Some(programs) = &self.programs else {
            library(arch, &to)?;
            return Ok(true);
        };
        let made = programs.join("lib");
        if !made.is_dir() {
            return Ok(false);
        }
        run(Command::new("cp").arg("-a").args([made, to]))?;
        Ok(true)
    }

    /// Returns Debian's changelog of the packaging, whose only entry refers to changelog.gz.
    fn debian_changelog(&self, date: &str) -> Result<String> {
        let description = fs::read_to_string(repository()?.join("packaging/nfpm.yaml"))?;
        let maintainer = description.lines().find_map(|line| line.strip_prefix("maintainer: "));
        let maintainer = maintainer.context("packaging/nfpm.yaml has no maintainer")?;
        let date =
            Command::new("date").args(["-u", "-R", "-d"]).arg(format!("@{date}")).output()?;
        Ok(format!(
            "tiexec ({}-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {maintainer}  {}",
            packaged(&self.version),
            String::from_utf8(date.stdout)?
        ))
    }
}

/// Returns the name of a Debian package's file.
fn deb(package: &str, version: &str, arch: Arch) -> String {
    format!("{package}_{}-1_{}.deb", packaged(version), arch.debian())
}

/// Returns the names of a release's files for an architecture: the Debian package, the RPM and the tarball.
pub(crate) fn files(version: &str, arch: Arch) -> [String; 3] {
    let rpm = format!("tiexec-{}-1.{arch}.rpm", packaged(version));
    [deb("tiexec", version, arch), rpm, format!("tiexec-{version}-{arch}{TARRED}")]
}

/// Returns the names of the files of [`LIBRARY`].
pub(crate) fn files_of_library(version: &str, arch: Arch) -> [String; 2] {
    LIBRARY.map(|package| deb(package, version, arch))
}

/// Returns a version as Debian and RPM write it: 1.0.0-rc.1 is `1.0.0~rc.1`, which comes before 1.0.0 (deb-version(7), rpm-version(7)).
pub(crate) fn packaged(version: &str) -> String {
    version.replacen('-', "~", 1)
}

/// Returns the date of the newest commit, in seconds since 1970, so that two packages of one commit are equal.
fn date() -> Result<String> {
    let mut git = Command::new("git");
    let git = git.current_dir(repository()?).args(["log", "-1", "--format=%ct"]).output();
    let date = git.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let date = date.map(|date| date.trim().to_owned()).filter(|date| !date.is_empty());
    date.context("git cannot tell the date of the newest commit; fix: run it in a clone")
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Builds the static programs with these features. Returns their directory.
pub(crate) fn programs(arch: Arch, features: &str) -> Result<PathBuf> {
    let triple = format!("{arch}-unknown-linux-gnu");
    // These are the flags of `make programs`. A static PIE would relocate itself on each start.
    let flags = match arch {
        Arch::X86 => "-C target-feature=+crt-static -C relocation-model=static",
        Arch::Arm => "-C target-feature=+crt-static",
    };
    let mut cargo = build::cargo();
    cargo.current_dir(repository()?).env("RUSTFLAGS", flags);
    cargo.args(["build", "--release", "--locked", "--package", "tiexec", "--features", features]);
    if arch.is_here() {
        cargo.args(["--target", &triple]);
    } else {
        build::cross(&Cache::open()?, arch, &mut cargo)?;
    }
    run(&mut cargo)?;
    Ok(build::target_directory()?.join(triple).join("release"))
}

/// Returns Debian's name of the architecture in paths.
fn multiarch(arch: Arch) -> String {
    format!("{arch}-linux-gnu")
}

/// Builds the library, and lays it out as in Debian.
fn library(arch: Arch, to: &Path) -> Result<()> {
    let triple = format!("{arch}-unknown-linux-gnu");
    let mut cargo = build::cargo();
    cargo.current_dir(repository()?);
    // This is the command of `make lib`.
    cargo.args(["rustc", "--profile", "library", "--locked", "--package", "tiexec-self"]);
    cargo.args(["--crate-type", "cdylib,staticlib"]);
    let mut script = Command::new(repository()?.join("scripts/libtiexec"));
    if arch.is_here() {
        cargo.args(["--target", &triple]);
    } else {
        build::cross(&Cache::open()?, arch, &mut cargo)?;
        script.env("TOOLS", format!("{arch}-linux-gnu-"));
    }
    run(&mut cargo)?;
    let built = build::target_directory()?.join(triple).join("library");
    script.env("STRIP", "yes").env("LIBDIR", format!("${{prefix}}/lib/{}", multiarch(arch)));
    run(script.args([&built, to]).arg("/usr"))
}

/// Adds the `shlibs` file, from which dpkg-shlibdeps(1) gives packages of programs with the library their dependency.
/// nfpm does not support this file.
fn add_shlibs(package: &Path, version: &str, date: &str, work: &Path) -> Result<()> {
    let root = work.join("shlibs");
    run(Command::new("dpkg-deb").arg("-R").args([package, &root]))?;
    fs::write(
        root.join("DEBIAN/shlibs"),
        format!("libtiexec 1 libtiexec1 (>= {})\n", packaged(version)),
    )?;
    // nfpm's list of configuration files is an empty line here, which dpkg-deb(1) does not accept.
    let conffiles = root.join("DEBIAN/conffiles");
    if fs::read_to_string(&conffiles).is_ok_and(|text| text.trim().is_empty()) {
        fs::remove_file(conffiles)?;
    }
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "--build"]).args([&root, package]);
    run(pack.env("SOURCE_DATE_EPOCH", date).stdout(Stdio::null()))
}

/// Packs `usr` into the file `file`, below a directory of that name, so that users can unpack the tarball anywhere.
fn tarball(file: &str, date: &str, root: &Path, out: &Path) -> Result<PathBuf> {
    let name = file.trim_end_matches(TARRED);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{date}")).arg(format!("--transform=s,^usr,{name},"));
    let tarball = out.join(file);
    tar.arg("-czf").arg(&tarball).arg("-C").args([root, Path::new("usr")]);
    run(&mut tar)?;
    Ok(tarball)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_sorts_before_its_version() {
        let debian_rpm_tarball = [
            "tiexec_1.0.0~rc.1-1_amd64.deb",
            "tiexec-1.0.0~rc.1-1.x86_64.rpm",
            "tiexec-1.0.0-rc.1-x86_64.tar.gz",
        ];
        assert_eq!(files("1.0.0-rc.1", Arch::X86), debian_rpm_tarball);
        let library = ["libtiexec1_1.0.0-1_arm64.deb", "libtiexec-dev_1.0.0-1_arm64.deb"];
        assert_eq!(files_of_library("1.0.0", Arch::Arm), library);
    }

    #[test]
    fn setup_installs_this_nfpm() {
        let setup = fs::read_to_string(repository().unwrap().join("scripts/setup")).unwrap();
        let version = NFPM.trim_start_matches("nfpm-");
        assert!(setup.contains(&format!("\nnfpm_version={version}\n")), "{version}");
    }
}
