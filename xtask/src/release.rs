//! `cargo xtask release --check`: checks that all parts of a release exist, and what shows each criterion of version 1.0.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::criteria::{self, Shown};
use crate::promises::read;
use crate::vm::{Arch, need};
use crate::{dist, guide, interfaces, licences, repository};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file of the checksums.
const SUMS: &str = "SHA256SUMS";
/// The keys that may sign a release, as ssh-keygen(1) reads them (ALLOWED SIGNERS).
const SIGNERS: &str = "packaging/release-signers";
/// The name and the namespace of a signature. The namespace keeps a signature of something else from passing for one.
const SIGNER: &str = "tiexec-release";

/// Checks what a release is made of, and changes nothing but the file of checksums and its signature.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// Check; a release is published by hand
    #[arg(long, required_unless_present = "notes")]
    check: bool,
    /// Print what only users can show, for the notes of the release
    #[arg(long, conflicts_with_all = ["check", "packages"])]
    notes: bool,
    /// The packages of `cargo xtask dist`: their names and versions are checked, and SHA256SUMS is written there
    #[arg(long)]
    packages: Option<PathBuf>,
    /// Sign SHA256SUMS with this SSH key, whose public half is in packaging/release-signers
    #[arg(long, value_name = "KEY", requires = "packages")]
    sign: Option<PathBuf>,
}

impl Release {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let criteria = read(criteria::PAGE)?;
        if self.notes {
            println!("{}", criteria::of_users(&criteria)?);
            return Ok(ExitCode::SUCCESS);
        }
        let mut whole = true;
        let mut report = |thing: &str, found: Result<String>| match found {
            Ok(found) => println!("ok    {thing:<12}{found}"),
            Err(error) => {
                whole = false;
                println!("FAIL  {thing:<12}{error:#}");
            }
        };
        report("version", version());
        report("tree", tree());
        report("changelog", changelog(&read("CHANGELOG.md")?));
        report("guide", current(&guide::page()?, &guide::text(), "cargo xtask guide"));
        report("licences", current(&licences::file()?, &licences::list()?, "cargo xtask licences"));
        report("interfaces", interfaces::check());
        report("manual", manual());
        report("completions", completions());
        report("container", container(&read("deploy/container/Containerfile")?));
        match &self.packages {
            Some(packages) => report("packages", checksums(packages)),
            None => println!(
                "–     packages    not looked at; fix: --packages DIR of cargo xtask dist --check DIR"
            ),
        }
        if let (Some(packages), Some(key)) = (&self.packages, &self.sign) {
            let signers = repository()?.join(SIGNERS);
            report("signature", sign(packages, key).and_then(|()| signed(packages, &signers)));
        }
        println!("\nBefore 1.0 ({}); make test runs the tests:", criteria::PAGE);
        for criterion in criteria::ours(&criteria)? {
            let name = criterion.name.trim_end_matches('.');
            match criterion.check() {
                Ok(Shown::Ready(found)) => println!("ok    {name}: {found}"),
                Ok(Shown::ByHand(commands)) => {
                    println!("–     {name}: not recorded; run by hand: {commands}")
                }
                Err(error) => {
                    whole = false;
                    println!("FAIL  {name}: {error:#}");
                }
            }
        }
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Checks that the version is the same in all crates, the lock file, Fedora's source package, the chart and the documentation.
fn version() -> Result<String> {
    let lock = read("Cargo.lock")?;
    for name in ["tiexec", "tiexec-core", "xtask"] {
        if !lock.contains(&format!("name = \"{name}\"\nversion = \"{VERSION}\"\n")) {
            bail!("Cargo.lock has another version of {name}; fix: cargo build");
        }
    }
    let of_packages = dist::packaged(VERSION);
    let named = [
        ("packaging/rpm/tiexec.spec", format!("\nVersion:        {of_packages}\n")),
        ("packaging/rpm/tiexec.spec", format!(" - {of_packages}-1\n")),
        ("deploy/helm/tiexec/Chart.yaml", format!("\nversion: {VERSION}\n")),
        ("deploy/helm/tiexec/Chart.yaml", format!("\nappVersion: \"{VERSION}\"\n")),
        ("docs/KUBERNETES.md", format!(" REGISTRY/tiexec:{VERSION}\n")),
    ];
    for (file, line) in named {
        if !read(file)?.contains(&line) {
            bail!("{file} has another version; fix: edit its `{}`", line.trim());
        }
    }
    Ok(VERSION.to_owned())
}

/// Checks that there are no uncommitted changes.
fn tree() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(repository()?).args(args).output()?;
        if !output.status.success() {
            bail!("git: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    let changed = git(&["status", "--porcelain"])?;
    match changed.lines().next() {
        Some(first) => bail!("{first}: not committed; fix: git commit"),
        None => Ok(git(&["rev-parse", "--short", "HEAD"])?.trim().to_owned()),
    }
}

/// Checks that the changelog has a dated section of this version, with no entries above it.
fn changelog(text: &str) -> Result<String> {
    let heading = format!("## [{VERSION}] - ");
    let Some((before, after)) = text.split_once(&heading) else {
        bail!(
            "CHANGELOG.md has no section of {VERSION}; fix: rename [Unreleased] to `{heading}DATE`"
        );
    };
    if before.lines().any(|line| line.starts_with("- ")) {
        bail!("CHANGELOG.md has entries above {VERSION}; fix: move them into its section");
    }
    let date: String = after.chars().take_while(|&letter| letter != '\n').collect();
    let is_date = date.len() == 10
        && date.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !is_date {
        bail!("CHANGELOG.md: {date:?} is no date; fix: write it as 2026-01-31");
    }
    Ok(format!("{VERSION} of {date}"))
}

/// Checks that a generated file is up to date.
fn current(file: &Path, now: &str, fix: &str) -> Result<String> {
    let name = file.strip_prefix(repository()?).unwrap_or(file).display().to_string();
    match fs::read_to_string(file) {
        Ok(there) if there == now => Ok(name),
        _ => bail!("{name} is not up to date; fix: {fix}"),
    }
}

/// Makes each page, and checks that groff does not complain.
fn manual() -> Result<String> {
    let made = tempfile::tempdir()?;
    crate::man(made.path())?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(made.path())? {
        let page = entry?.path();
        if let Some(complaint) = complaint(&page)? {
            bail!("{}: {complaint}", page.display());
        }
        pages.push(page.file_name().unwrap_or_default().to_string_lossy().into_owned());
    }
    pages.sort();
    Ok(pages.join(" "))
}

/// Returns groff's complaints, or a line that is too long for a terminal; nothing without groff.
pub(crate) fn complaint(page: &Path) -> Result<Option<String>> {
    let mut groff = Command::new("groff");
    let Ok(output) = groff.args(["-man", "-Tutf8", "-ww", "-rLL=80n", "-P-c"]).arg(page).output()
    else {
        return Ok(None);
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    if let Some(first) = complaints.lines().next() {
        return Ok(Some(first.to_owned()));
    }
    // An overstrike of a terminal is a letter, a backspace, and the letter again.
    let long = |line: &&str| {
        let backs = line.matches('\u{8}').count();
        line.chars().count() - 2 * backs > 80
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().find(long).map(str::to_owned))
}

fn completions() -> Result<String> {
    let made = tempfile::tempdir()?;
    crate::completions(made.path())?;
    Ok(format!("{} files", fs::read_dir(made.path())?.count()))
}

/// Checks that the image contains each program.
fn container(file: &str) -> Result<String> {
    let copied =
        file.lines().find(|line| line.starts_with("COPY ")).context("nothing is copied")?;
    for program in ["tiexec", "tiexecctl", "tiexecd"] {
        if !copied.split(' ').any(|word| word == program) {
            bail!("the Containerfile does not copy {program}");
        }
    }
    Ok("make image".to_owned())
}

/// Checks that every package of this version exists, and writes the checksums.
fn checksums(packages: &Path) -> Result<String> {
    let arches = [Arch::X86, Arch::Arm];
    let names: Vec<String> =
        arches.into_iter().flat_map(|arch| dist::files(VERSION, arch)).collect();
    if let Some(missing) = names.iter().find(|name| !packages.join(name).is_file()) {
        bail!("no {missing}; fix: cargo xtask dist --check {}", packages.display());
    }
    // A package of the library exists only for architectures on which the library was built.
    let library = arches.into_iter().flat_map(|arch| dist::files_of_library(VERSION, arch));
    let library = library.filter(|name| packages.join(name).is_file());
    let names: Vec<String> = names.into_iter().chain(library).collect();
    let sums = Command::new("sha256sum").current_dir(packages).args(&names).output()?;
    if !sums.status.success() {
        bail!("sha256sum: {}", String::from_utf8_lossy(&sums.stderr).trim_end());
    }
    fs::write(packages.join(SUMS), sums.stdout)?;
    Ok(format!("{} files; {SUMS} is written", names.len()))
}

/// Signs the checksums. The signature is in SHA256SUMS.sig.
fn sign(packages: &Path, key: &Path) -> Result<()> {
    need("ssh-keygen", "openssh-client")?;
    // ssh-keygen(1) asks before it replaces a signature.
    let _of_before = fs::remove_file(packages.join(format!("{SUMS}.sig")));
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-q", "-Y", "sign", "-n", SIGNER, "-f"]).arg(key);
    let done = sign.arg(packages.join(SUMS)).output()?;
    if !done.status.success() {
        bail!("cannot sign {SUMS}: {}", String::from_utf8_lossy(&done.stderr).trim_end());
    }
    Ok(())
}

/// Checks that one of these keys has signed the checksums.
fn signed(packages: &Path, signers: &Path) -> Result<String> {
    let mut verify = Command::new("ssh-keygen");
    verify.args(["-Y", "verify", "-I", SIGNER, "-n", SIGNER, "-f"]).arg(signers);
    verify.arg("-s").arg(packages.join(format!("{SUMS}.sig")));
    verify.stdin(Stdio::from(fs::File::open(packages.join(SUMS))?));
    let done = verify.output()?;
    if !done.status.success() {
        bail!(
            "no key in {SIGNERS} has made {SUMS}.sig; fix: add `{SIGNER} namespaces=\"{SIGNER}\" PUBLIC-KEY` to it"
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changelog_without_this_version_is_refused() {
        assert!(changelog("# Changelog\n## [Unreleased]\n- x\n").is_err());
        assert!(
            changelog(&format!("## [Unreleased]\n\n## [{VERSION}] - 2026-01-31\n- x\n")).is_ok()
        );
        assert!(
            changelog(&format!("## [Unreleased]\n- y\n## [{VERSION}] - 2026-01-31\n- x\n"))
                .is_err()
        );
        assert!(changelog(&format!("## [{VERSION}] - soon\n- x\n")).is_err());
    }

    #[test]
    fn a_directory_without_packages_is_refused() {
        let error = checksums(tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
        assert!(error.contains(".deb; fix: cargo xtask dist --check"), "{error}");
    }

    #[test]
    fn every_package_has_a_checksum() {
        let packages = tempfile::tempdir().unwrap();
        let mut names = Vec::new();
        for arch in [Arch::X86, Arch::Arm] {
            names.extend(dist::files(VERSION, arch));
            names.extend(dist::files_of_library(VERSION, arch));
        }
        for name in &names {
            fs::write(packages.path().join(name), name).unwrap();
        }
        checksums(packages.path()).unwrap();
        let sums = fs::read_to_string(packages.path().join("SHA256SUMS")).unwrap();
        for name in names {
            assert!(sums.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name}");
        }
    }

    /// Makes an SSH key without a passphrase, and the file of signers that has it.
    fn key(place: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = place.join(name);
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&key);
        assert!(make.status().unwrap().success());
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let signers = place.join(format!("{name}.signers"));
        fs::write(&signers, format!("{SIGNER} namespaces=\"{SIGNER}\" {public}")).unwrap();
        (key, signers)
    }

    /// Runs the commands with which the guide has users verify a release.
    fn verify(packages: &Path, signers: &Path) -> bool {
        let page = read("docs/guide/src/getting-started.md").unwrap();
        let block = page.split("```").find(|block| block.contains("ssh-keygen -Y verify"));
        fs::copy(signers, packages.join("release-signers")).unwrap();
        let mut sh = Command::new("sh");
        sh.args(["-ec", block.expect("the page has the commands")]).current_dir(packages);
        sh.output().unwrap().status.success()
    }

    #[test]
    fn a_signature_refuses_a_changed_file_and_another_key() {
        if let Err(lacking) = need("ssh-keygen", "openssh-client") {
            assert!(!crate::vm::forbids_skips(), "{lacking}");
            println!("SKIP {lacking}");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let packages = place.path().join("packages");
        fs::create_dir(&packages).unwrap();
        let names = [Arch::X86, Arch::Arm].map(|arch| dist::files(VERSION, arch));
        for name in names.as_flattened() {
            fs::write(packages.join(name), name).unwrap();
        }
        checksums(&packages).unwrap();
        let (key_of_release, signers) = key(place.path(), "release");
        let (another, others) = key(place.path(), "another");
        sign(&packages, &key_of_release).unwrap();
        signed(&packages, &signers).unwrap();
        assert!(verify(&packages, &signers));
        // A user has one of the files, and not the others.
        for name in &names.as_flattened()[1..] {
            fs::remove_file(packages.join(name)).unwrap();
        }
        assert!(verify(&packages, &signers));

        assert!(!verify(&packages, &others), "another key verifies");
        let first = packages.join(&names[0][0]);
        fs::write(&first, "changed").unwrap();
        assert!(!verify(&packages, &signers), "a changed package verifies");
        fs::write(&first, &names[0][0]).unwrap();
        assert!(verify(&packages, &signers));
        let sums = fs::read_to_string(packages.join(SUMS)).unwrap();
        fs::write(packages.join(SUMS), sums.replacen(&sums[..8], "00000000", 1)).unwrap();
        assert!(!verify(&packages, &signers), "changed checksums verify");
        fs::write(packages.join(SUMS), &sums).unwrap();
        // A second signature replaces the first one.
        sign(&packages, &another).unwrap();
        assert!(!verify(&packages, &signers), "a signature by another key verifies");
        let error = signed(&packages, &signers).unwrap_err().to_string();
        assert!(error.contains("; fix: add `tiexec-release"), "{error}");
        // The same key, for another purpose.
        fs::remove_file(packages.join(format!("{SUMS}.sig"))).unwrap();
        let mut other = Command::new("ssh-keygen");
        other
            .args(["-q", "-Y", "sign", "-n", "file", "-f"])
            .args([key_of_release, packages.join(SUMS)]);
        assert!(other.status().unwrap().success());
        assert!(!verify(&packages, &signers), "a signature for another purpose verifies");
    }

    #[test]
    fn the_rest_is_ready() {
        version().unwrap();
        manual().unwrap();
        completions().unwrap();
        container(&read("deploy/container/Containerfile").unwrap()).unwrap();
    }

    #[test]
    fn a_page_with_a_long_line_is_refused() {
        let page = tempfile::NamedTempFile::new().unwrap();
        let long = "x".repeat(100);
        fs::write(page.path(), format!(".TH x 1\n.SH NAME\nx \\- y\n.PP\n.EX\n{long}\n.EE\n"))
            .unwrap();
        if Command::new("groff").arg("--version").output().is_ok() {
            assert!(complaint(page.path()).unwrap().is_some());
        }
    }
}
