//! The plain manifest of the agent, which helm generates from the chart.
//!
//! CI has no helm, because a build of helm takes two minutes and a newer Go than Debian's. The manifest therefore names
//! the digest of its chart, which the test always compares. If there is a helm, the test compares the whole text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build::helm;
use crate::repository;

/// The chart, below the repository.
pub(crate) const CHART: &str = "deploy/helm/tiexec";
/// The manifest.
pub(crate) const MANIFEST: &str = "deploy/kubernetes/tiexec.yaml";
/// The version of Kubernetes for which helm makes the manifest. The oldest version that the chart names would give the
/// same.
const KUBERNETES: &str = "1.34.0";

/// Regenerates the manifest.
pub(crate) fn write() -> Result<()> {
    let manifest = repository()?.join(MANIFEST);
    fs::write(&manifest, text(&helm()?)?)
        .with_context(|| format!("cannot write {}", manifest.display()))
}

/// Returns the manifest's first line.
fn head() -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for path in files(&repository()?.join(CHART))? {
        let name = path.strip_prefix(repository()?)?.to_string_lossy().into_owned();
        let content = fs::read(&path)?;
        hasher.update(format!("{name} {}\n", content.len()).as_bytes()).update(&content);
    }
    let digest = &hasher.finalize().to_hex()[..32];
    Ok(format!("# Made of {CHART} (digest {digest}) by `cargo xtask chart`. Do not edit.\n"))
}

/// Lists all files of a directory, in the order of their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        entries.push(entry?.path());
    }
    entries.sort();
    let mut all = Vec::new();
    for path in entries {
        if path.is_dir() { all.extend(files(&path)?) } else { all.push(path) }
    }
    Ok(all)
}

/// Returns the manifest, as helm makes it.
fn text(helm: &Path) -> Result<String> {
    let mut template = Command::new(helm);
    template.current_dir(repository()?).args(["template", "tiexec", CHART]);
    template.args(["--namespace", "tiexec", "--kube-version", KUBERNETES]);
    let output = template.output().context("helm")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = String::from_utf8(output.stdout)?;
    let made: String =
        made.split_inclusive('\n').filter(|line| !line.starts_with("# Source: ")).collect();
    let namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: tiexec\n  labels:\n    \
        # The agent needs what level baseline forbids: docs/KUBERNETES.md has a reason for each.\n    \
        pod-security.kubernetes.io/enforce: privileged\n";
    Ok(head()? + namespace + &made)
}

#[cfg(test)]
mod tests {
    use super::super::build::helm_that_is_there;
    use super::*;

    #[test]
    fn the_manifest_is_of_this_chart() {
        let manifest = fs::read_to_string(repository().unwrap().join(MANIFEST)).unwrap();
        let fix = "run `cargo xtask chart`";
        assert!(manifest.starts_with(&head().unwrap()), "{MANIFEST} is of another chart: {fix}");
        if let Some(helm) = helm_that_is_there() {
            assert_eq!(manifest, text(&helm).unwrap(), "{fix}");
        }
    }
}
