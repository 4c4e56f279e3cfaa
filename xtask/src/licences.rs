//! The licences of all crates that are linked into the programs. THIRD-PARTY.md lists the crates, and the packages
//! contain the texts of the licences.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::repository;
use crate::vm::build;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// A crate.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) repository: Option<String>,
    manifest_path: PathBuf,
    /// `None` for a crate of this repository.
    pub(crate) source: Option<String>,
    targets: Vec<Target>,
    /// The IDs of the crates that it links.
    #[serde(skip)]
    pub(crate) needs: Vec<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// The file of the list.
pub(crate) fn file() -> Result<PathBuf> {
    Ok(repository()?.join("THIRD-PARTY.md"))
}

/// Writes the list.
pub(crate) fn write() -> Result<()> {
    let file = file()?;
    fs::write(&file, list()?).with_context(|| format!("cannot write {}", file.display()))
}

/// The feature that the image has, beside those of the packages.
pub(crate) const WITH_PODS: &str = "tiexec/kubernetes";

/// Returns the crates that are linked on Linux on at least one processor, in the order of their names.
fn linked() -> Result<Vec<Package>> {
    let mut linked = BTreeMap::new();
    for triple in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let theirs =
            linked_on(triple, WITH_PODS)?.into_iter().filter(|package| package.source.is_some());
        linked.extend(
            theirs.map(|package| ((package.name.clone(), package.version.clone()), package)),
        );
    }
    Ok(linked.into_values().collect())
}

/// Returns the crates that are linked on this platform with these features, including our own. A proc-macro runs in the compiler and is not
/// linked.
pub(crate) fn linked_on(triple: &str, features: &str) -> Result<Vec<Package>> {
    let mut cargo = build::cargo();
    cargo.current_dir(repository()?).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--features",
        features,
    ]);
    let output = cargo.args(["--filter-platform", triple]).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let crates = repository()?.join("crates");
    let is_macro = |id: &str| {
        let package = metadata.packages.iter().find(|package| package.id == id);
        package.is_some_and(|package| {
            let mut kinds = package.targets.iter().flat_map(|target| &target.kind);
            kinds.any(|kind| kind == "proc-macro")
        })
    };
    let ours =
        metadata.packages.iter().filter(|package| package.manifest_path.starts_with(&crates));
    let mut ahead: Vec<&str> = ours.map(|package| package.id.as_str()).collect();
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(id) = ahead.pop() {
        if is_macro(id) || seen.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).context("a crate without a node")?;
        let normal =
            |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        let needs = node.deps.iter().filter(normal).map(|dependency| dependency.pkg.as_str());
        let needs: Vec<&str> = needs.filter(|id| !is_macro(id)).collect();
        seen.insert(id.to_owned(), needs.iter().map(|&id| id.to_owned()).collect());
        ahead.extend(needs);
    }
    let all = metadata.packages.into_iter().filter_map(|package| {
        let needs = seen.remove(&package.id)?;
        Some(Package { needs, ..package })
    });
    Ok(all.collect())
}

/// Returns the list as a page.
pub(crate) fn list() -> Result<String> {
    let mut text = String::from(
        "# Software of others in TiExec\n\n\
         <!-- Made by `cargo xtask licences`. Do not edit. -->\n\n\
         The programs are static: these crates are part of them. The packages have the full texts of the licences in\n\
         `/usr/share/doc/tiexec/third-party.gz`. The C library, glibc (LGPL-2.1-or-later), is linked statically too; its source is that of\n\
         the distribution that the programs were built on.\n\n\
         | crate | version | licence | source |\n|---|---|---|---|\n",
    );
    for package in linked()? {
        let licence =
            package.license.with_context(|| format!("{} has no licence", package.name))?;
        let source = package.repository.unwrap_or_default();
        let _infallible =
            writeln!(text, "| {} | {} | {licence} | {source} |", package.name, package.version);
    }
    Ok(text)
}

/// Returns the texts of the licences, from the crates.
pub(crate) fn texts() -> Result<String> {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for package in linked()? {
        let directory = package.manifest_path.parent().context("a manifest lies in a directory")?;
        let found = texts_in(directory)?;
        let name = format!("{} {}", package.name, package.version);
        if found.is_empty() {
            without.push(format!("{name}: {}", package.license.unwrap_or_default()));
        }
        for text in found {
            by_text.entry(text).or_default().push(name.clone());
        }
    }
    let mut all = list()?;
    for (text, names) in by_text {
        let _infallible =
            write!(all, "\n{}\n{}\n\n{}\n", "=".repeat(78), names.join(", "), text.trim());
    }
    if !without.is_empty() {
        let _infallible = write!(
            all,
            "\n{}\nWithout a text of their own:\n{}\n",
            "=".repeat(78),
            without.join("\n")
        );
    }
    Ok(all)
}

fn texts_in(directory: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_one = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        if path.is_file() && is_one.iter().any(|start| name.starts_with(start)) {
            texts.push(
                fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?,
            );
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_list_is_what_is_linked() {
        let there = fs::read_to_string(file().unwrap()).unwrap();
        assert!(there == list().unwrap(), "fix: cargo xtask licences");
    }

    #[test]
    fn each_licence_is_allowed() {
        let deny = fs::read_to_string(repository().unwrap().join("deny.toml")).unwrap();
        let allowed = deny.lines().find_map(|line| line.strip_prefix("allow = ")).unwrap();
        let allowed: Vec<&str> = allowed.split('"').skip(1).step_by(2).collect();
        for package in linked().unwrap() {
            let licence = package.license.unwrap().replace('/', " OR ");
            // One alternative suffices, but every part joined by AND must be allowed.
            let is_allowed = |one: &str| {
                let one = one.trim_matches(['(', ')', ' ']);
                one.split(" AND ").all(|part| allowed.contains(&part.trim_matches(['(', ')', ' '])))
            };
            assert!(licence.split(" OR ").any(is_allowed), "{}: {licence}", package.name);
        }
    }

    /// Splits an expression into the parts that all apply, each with its alternatives.
    fn parts(expression: &str) -> BTreeSet<BTreeSet<String>> {
        let parts = expression.split(" AND ").map(|part| part.trim_matches(['(', ')', ' ']));
        parts
            .map(|part| part.replace('/', " OR ").split(" OR ").map(str::to_owned).collect())
            .collect()
    }

    #[test]
    fn fedoras_package_names_each_licence() {
        let spec = repository().unwrap().join("packaging/rpm/tiexec.spec");
        let spec = fs::read_to_string(spec).unwrap();
        let (_, tag) = spec.split_once("%{shrink:").unwrap();
        let tag = tag.split_once('}').unwrap().0.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut linked = BTreeSet::new();
        for triple in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
            for package in linked_on(triple, "").unwrap() {
                linked.extend(parts(&package.license.unwrap()));
            }
        }
        // The C library.
        linked.extend(parts("LGPL-2.1-or-later"));
        assert_eq!(parts(&tag), linked);
    }
}
