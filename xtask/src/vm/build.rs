//! The test programs, built here for a guest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::apt::{self, Apt};
use super::cache::Cache;
use super::{Arch, Lacking};

/// One test program.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// The name of its file in `tests/`.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// Parts of the names of tests; all if there is none.
    pub(crate) only: Vec<String>,
}

/// All that was built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Test>,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// The compilers that programs of tests may be built with: as tests call them, and what they are.
    pub(crate) compilers: Vec<(&'static str, String)>,
}

impl Built {
    /// The directory that tests have for their files (`CARGO_TARGET_TMPDIR`): beside that of the profile.
    pub(crate) fn files(&self) -> Result<PathBuf> {
        Ok(self.programs()?.with_file_name("tmp"))
    }

    /// The directory of the profile, with the programs themselves; the tests lie in its `deps`.
    pub(crate) fn programs(&self) -> Result<PathBuf> {
        let program = &self.tests.first().context("there are no tests")?.program;
        let place = program.ancestors().nth(2).context("a test program lies in no directory")?;
        Ok(place.to_owned())
    }
}

/// The parts of cargo's messages that are needed.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

/// The repository.
pub(crate) fn repository() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?)
}

/// Cargo's target directory.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .current_dir(repository()?)
        .output()
        .context("cargo metadata")?;
    let metadata: Metadata = serde_json::from_slice(&metadata.stdout)?;
    Ok(metadata.target_directory)
}

pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the tests named (`file`, or `file::part of a test's name`).
pub(crate) fn tests(cache: &Cache, arch: Arch, wanted: &[String]) -> Result<Built> {
    let repository = repository()?;
    let mut build = cargo();
    build.current_dir(&repository).stdout(Stdio::piped());
    build.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    // The whole workspace, as `make test` builds it: so nothing is built twice.
    let packages = if arch.is_here() { "--workspace" } else { "--package=tiexec" };
    build.args([packages, "--features", "tiexec/fault-injection"]);
    let wanted: Vec<(&str, &str)> =
        wanted.iter().map(|test| test.split_once("::").unwrap_or((test, ""))).collect();
    for (name, _) in &wanted {
        build.args(["--test", name]);
    }
    if !arch.is_here() {
        cross(cache, arch, &mut build)?;
    }
    let output = build.output().context("cargo test --no-run")?;
    if !output.status.success() {
        bail!("cargo test --no-run for {arch}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut tests = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message = serde_json::from_slice(line)?;
        let (Some(program), Some(target)) = (message.executable, message.target) else { continue };
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let source = target.src_path.canonicalize()?;
        let ours = source.parent() == Some(&repository.join("tests"));
        if message.reason == "compiler-artifact" && is_test && ours && target.kind == ["test"] {
            let of_it =
                wanted.iter().filter(|(name, part)| *name == target.name && !part.is_empty());
            let only = of_it.map(|(_, part)| (*part).to_owned()).collect();
            tests.push(Test { name: target.name, program, only });
        }
    }
    // What it sets holds until the guest's end.
    tests.sort_by_key(|test| (test.name == "yama_forbids", test.name.clone()));
    let cross = |tool: &str| match arch.is_here() {
        true => tool.to_owned(),
        false => format!("{arch}-linux-gnu-{tool}"),
    };
    // The linkers are never called there, only looked for.
    let tools = [
        ("cc", cross("gcc")),
        ("c++", cross("g++")),
        ("musl-gcc", "musl-gcc".to_owned()),
        ("ld.lld", "ld.lld".to_owned()),
        ("mold", "mold".to_owned()),
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let can = |name: &str, tool: &str| here(tool) && (arch.is_here() || name != "musl-gcc");
    let compilers = tools.into_iter().filter(|(name, tool)| can(name, tool)).collect();
    Ok(Built { tests, target: target_directory()?, compilers })
}

/// Has `build` be one for another architecture: with the standard library that rustup has, else with
/// Debian's `rustc-web`, unpacked.
pub(crate) fn cross(cache: &Cache, arch: Arch, build: &mut Command) -> Result<()> {
    let triple = format!("{arch}-unknown-linux-gnu");
    let linker = format!("{arch}-linux-gnu-gcc");
    if Command::new(&linker).arg("--version").output().is_err() {
        let package = format!("gcc-{}-linux-gnu", arch.name().replace('_', "-"));
        bail!(Lacking(format!("no {linker} (apt-get install {package})")));
    }
    let variable = triple.replace('-', "_");
    build.args(["--target", &triple]);
    build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), &linker);
    build.env(format!("CC_{variable}"), &linker);
    let library =
        Command::new("rustc").args(["--print", "target-libdir", "--target", &triple]).output();
    let library = library.context("rustc")?;
    let library = PathBuf::from(String::from_utf8_lossy(&library.stdout).trim());
    if !library.is_dir() {
        build.env("RUSTC", unpacked_rust(cache, arch)?.join("rustc"));
    }
    Ok(())
}

/// Debian's `rustc-web` for this machine, with the standard libraries of both.
fn unpacked_rust(cache: &Cache, arch: Arch) -> Result<PathBuf> {
    cache.once(&format!("rust-{arch}"), |new| {
        let release = apt::release_here()?;
        let suites = [release.clone(), format!("{release}-security")];
        let suites: Vec<&str> = suites.iter().map(String::as_str).collect();
        let here = match Arch::X86.is_here() {
            true => Arch::X86,
            false => Arch::Arm,
        };
        let ours = Apt::open(cache, here, &suites)?;
        let depends = ours.field("libstd-rust-web-dev", "Depends")?;
        let word = |text: &str, prefix: &str| {
            let found = text.split([' ', ',']).find(|word| word.starts_with(prefix));
            found.map(str::to_owned).with_context(|| format!("nothing depends on {prefix}"))
        };
        let library = word(&depends, "libstd-rust-web-1")?;
        let llvm = word(&ours.field(&library, "Depends")?, "libllvm")?;
        let packages = ["rustc-web", "libstd-rust-web-dev"].map(str::to_owned);
        ours.unpack(&[&packages[..], &[library, llvm.clone()]].concat(), new)?;
        Apt::open(cache, arch, &suites)?.unpack(&packages[1..], new)?;
        let version = llvm.trim_start_matches("libllvm");
        // It finds its libraries beside itself, wherever it lies.
        let script = format!(
            "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
             export LD_LIBRARY_PATH=$here/usr/lib/{name}-linux-gnu:$here/usr/lib/llvm-{version}/lib\n\
             exec \"$here/usr/bin/rustc\" --sysroot \"$here/usr\" \"$@\"\n",
            name = here.name(),
        );
        let wrapper = new.join("rustc");
        std::fs::write(&wrapper, script)?;
        use std::os::unix::fs::PermissionsExt;
        Ok(std::fs::set_permissions(wrapper, std::fs::Permissions::from_mode(0o755))?)
    })
}
