//! Builds the test programs on this machine for a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::apt::{self, Apt};
use super::cache::Cache;
use super::{Arch, Lacking};
use crate::repository;

/// One file of tests: `tests/AREA/MODULE.rs`, which is a module of the test program AREA.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct File {
    area: String,
    module: String,
}

impl File {
    /// Returns the prefix of this file's tests in the program's output.
    pub(crate) fn prefix(&self) -> String {
        format!("{}::", self.module)
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.area, self.module)
    }
}

/// The selected tests of one file.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) file: File,
    pub(crate) program: PathBuf,
    pub(crate) chosen: Chosen,
}

/// How the tests of one file are selected.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    /// The filters by which the test program selects them.
    pub(crate) only: Vec<String>,
    /// The thing that the guest's doctor must find `ok`; empty if they run in each guest.
    pub(crate) needs: &'static str,
}

/// Tests to run: `area`, `area::module` or `area::module::part of a test's name`, and what they [need](Chosen::needs).
pub(crate) type Wanted<'a> = (&'a str, &'static str);

/// Returns how to select the tests, by file.
fn chosen(wanted: &[Wanted<'_>]) -> Result<BTreeMap<File, Chosen>> {
    let mut all: BTreeMap<File, Chosen> = BTreeMap::new();
    for &(test, needs) in wanted {
        let (area, rest) = test.split_once("::").unwrap_or((test, ""));
        let (module, part) = rest.split_once("::").unwrap_or((rest, ""));
        let files: Vec<File> = files()?
            .into_iter()
            .filter(|file| file.area == area && (module.is_empty() || file.module == module))
            .collect();
        if files.is_empty() {
            bail!("cannot choose {test}: no such file of tests in tests/; fix: AREA::MODULE::PART");
        }
        for file in files {
            let by = format!("{}{part}", file.prefix());
            let chosen = all.entry(file).or_default();
            chosen.only.push(by);
            chosen.needs = needs;
        }
    }
    Ok(all)
}

/// All files of tests.
fn files() -> Result<Vec<File>> {
    let mut files = Vec::new();
    for area in fs::read_dir(repository()?.join("tests"))? {
        let area = area?.path();
        if !area.join("main.rs").is_file() {
            continue;
        }
        for module in fs::read_dir(&area)? {
            let module = module?.path();
            let is_rust = module.extension().is_some_and(|extension| extension == "rs");
            let name = |path: &Path| {
                path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
            };
            if is_rust && name(&module) != "main" {
                files.push(File { area: name(&area), module: name(&module) });
            }
        }
    }
    Ok(files)
}

/// The products of the build.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Test>,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// The compilers for programs of tests: the names that tests use, and the real commands.
    pub(crate) compilers: Vec<(&'static str, String)>,
}

impl Built {
    /// The directory for files of tests (`CARGO_TARGET_TMPDIR`), beside the directory of the profile.
    pub(crate) fn files(&self) -> Result<PathBuf> {
        Ok(self.programs()?.with_file_name("tmp"))
    }

    /// The directory of the profile, with the programs. The tests lie in its `deps`.
    pub(crate) fn programs(&self) -> Result<PathBuf> {
        let program = &self.tests.first().context("there are no tests")?.program;
        let place = program.ancestors().nth(2).context("a test program lies in no directory")?;
        Ok(place.to_owned())
    }
}

/// The needed parts of cargo's messages.
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

/// Builds the named tests (see [`chosen`]).
pub(crate) fn tests(cache: &Cache, arch: Arch, wanted: &[Wanted<'_>]) -> Result<Built> {
    let repository = repository()?;
    let mut build = cargo();
    build.current_dir(&repository).stdout(Stdio::piped());
    build.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    // The whole workspace is built, as by `make test`, so that nothing is built twice.
    let packages = if arch.is_here() { "--workspace" } else { "--package=tiexec" };
    build.args([packages, "--features", "tiexec/fault-injection"]);
    let chosen = chosen(wanted)?;
    let areas: BTreeSet<&String> = chosen.keys().map(|file| &file.area).collect();
    for area in areas {
        build.args(["--test", area]);
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
        let ours = source == repository.join("tests").join(&target.name).join("main.rs");
        if message.reason == "compiler-artifact" && is_test && ours && target.kind == ["test"] {
            let of_it = chosen.iter().filter(|(file, _)| file.area == target.name);
            tests.extend(of_it.map(|(file, chosen)| Test {
                file: file.clone(),
                program: program.clone(),
                chosen: chosen.clone(),
            }));
        }
    }
    // `yama_forbids` changes a setting until the guest's end, so it runs last.
    tests.sort_by_key(|test| (test.file.module == "yama_forbids", test.file.clone()));
    let cross = |tool: &str| match arch.is_here() {
        true => tool.to_owned(),
        false => format!("{arch}-linux-gnu-{tool}"),
    };
    // Guests never call the linkers, but tests check that they exist.
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

/// Configures `build` for another architecture, with the standard library of rustup, or else with an unpacked
/// `rustc-web` of Debian.
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

/// Returns Debian's `rustc-web` for this machine, with the standard libraries of both architectures.
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
        // The script makes rustc find its libraries relative to its own path.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A test program matches a filter with any part of a name.
    #[test]
    fn no_module_is_chosen_with_another() {
        let files = files().unwrap();
        assert!(!files.is_empty());
        for file in &files {
            let others = files.iter().filter(|other| other.area == file.area && *other != file);
            for other in others {
                assert!(!other.prefix().ends_with(&file.prefix()), "{file} with {other}");
            }
        }
    }

    #[test]
    fn tests_are_chosen_by_area_by_file_and_by_name() {
        let of = |wanted: &str| -> Vec<(String, Vec<String>)> {
            let all = chosen(&[(wanted, "")]).unwrap();
            all.into_iter().map(|(file, chosen)| (file.to_string(), chosen.only)).collect()
        };
        assert_eq!(of("attach::odd"), [("attach::odd".to_owned(), vec!["odd::".to_owned()])]);
        let by_name = ("attach::odd".to_owned(), vec!["odd::in_order".to_owned()]);
        assert_eq!(of("attach::odd::in_order"), [by_name]);
        assert!(of("attach").len() > 10);
        assert!(chosen(&[("attach::nothing", "")]).is_err());
    }
}
