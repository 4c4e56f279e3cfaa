//! What a recorded run of tests has tested: the contents of directories, as git names them. A release needs runs that
//! tested its own contents.
//!
//! An object's ID stays the same when commits are rebased or merged, which the ID of a commit does not.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repository;

/// What the kernel matrix (`make vm-test`) covers: all that talks to the kernel about another process.
pub(crate) const BY_KERNELS: [&str; 5] = [
    "crates/core/src",
    "crates/sys/src",
    "crates/tracee/src",
    "crates/remap/src",
    "crates/engine/src",
];

/// What `make k8s-test` covers.
pub(crate) const BY_K8S: [&str; 3] = ["crates/agent/src", "deploy/container", "deploy/helm"];

/// What `make tools-test` covers: all that decides what a process has in its maps, and the cases themselves.
pub(crate) const BY_TOOLS: [&str; 3] = ["crates/remap/src", "xtask/src/tools", "xtask/tools"];

/// The IDs of directories' contents.
pub(crate) type Covered = BTreeMap<String, String>;

fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(repository()?).args(args).output()?;
    if !output.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// Returns the IDs of what is committed.
pub(crate) fn committed(paths: &[&str]) -> Result<Covered> {
    let id = |path: &&str| Ok(((*path).to_owned(), git(&["rev-parse", &format!("HEAD:{path}")])?));
    paths.iter().map(id).collect()
}

/// Returns the IDs for the record of a run. Fails if a run would test something else than what is committed.
pub(crate) fn to_record(paths: &[&str]) -> Result<Covered> {
    let status = git(&[&["status", "--porcelain", "--"], paths].concat())?;
    match status.lines().next() {
        Some(first) => bail!("cannot record a run: {first}: not committed; fix: git commit"),
        None => committed(paths),
    }
}

/// Fails with the directories that `now` has with other contents than a run `before`.
pub(crate) fn check(before: &Covered, now: &Covered, fix: &str) -> Result<()> {
    if before.is_empty() {
        bail!("no record of the tested sources; fix: {fix}");
    }
    let changed = now.iter().filter(|(path, id)| before.get(*path) != Some(id));
    let changed: Vec<&str> = changed.map(|(path, _)| path.as_str()).collect();
    if !changed.is_empty() {
        bail!("changed since: {}; fix: {fix}", changed.join(", "));
    }
    Ok(())
}

/// Writes the record of a run into a file of the repository.
pub(crate) fn record(file: &str, covered: &Covered) -> Result<()> {
    fs::write(repository()?.join(file), serde_json::to_string_pretty(covered)? + "\n")
        .with_context(|| format!("cannot write {file}"))
}

/// Checks that the run that a file of the repository records tested what is committed. Returns the file's name.
pub(crate) fn check_record(file: &str, paths: &[&str], fix: &str) -> Result<String> {
    let before: Covered = match fs::read(repository()?.join(file)) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| file.to_owned())?,
        Err(_no_run) => Covered::new(),
    };
    check(&before, &committed(paths)?, fix)?;
    Ok(file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_until_what_it_covers_changes() {
        let now = committed(&BY_KERNELS).unwrap();
        assert_eq!(now.len(), BY_KERNELS.len());
        check(&now, &now, "x").unwrap();
        let mut before = now.clone();
        before.insert("crates/sys/src".to_owned(), "another".to_owned());
        let error = check(&before, &now, "make vm-test").unwrap_err().to_string();
        assert_eq!(error, "changed since: crates/sys/src; fix: make vm-test");
        before.remove("crates/core/src");
        assert!(check(&before, &now, "x").unwrap_err().to_string().contains("crates/core/src, "));
        assert!(check(&Covered::new(), &now, "x").is_err());
    }

    #[test]
    fn everything_covered_exists() {
        committed(&BY_K8S).unwrap();
        committed(&BY_TOOLS).unwrap();
    }

    #[test]
    fn a_run_without_a_record_does_not_count() {
        let error = check_record("docs/no-such-test.json", &BY_TOOLS, "make it").unwrap_err();
        assert_eq!(error.to_string(), "no record of the tested sources; fix: make it");
    }
}
