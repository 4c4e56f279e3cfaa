//! The list of the components of the image's programs, in the format of CycloneDX 1.5.
//!
//! The same sources and the same compiler give the same bytes: there is no date and no random number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::licences::{Package, WITH_PODS, linked_on};
use crate::repository;
use crate::vm::Arch;

/// Returns the list.
pub(crate) fn text(arch: Arch) -> Result<String> {
    let packages = of_programs(linked_on(&format!("{arch}-unknown-linux-gnu"), WITH_PODS)?)?;
    let checksums = checksums()?;
    let by_id: BTreeMap<&str, String> =
        packages.iter().map(|package| (package.id.as_str(), name_of(package))).collect();
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|package| package.name != "tiexec")
        .map(|package| component(package, &checksums))
        .collect();
    let (rust, libc) =
        (version("rustc", &["--version"])?, version("getconf", &["GNU_LIBC_VERSION"])?);
    let linked = [
        ("rust-std", rust, "MIT OR Apache-2.0", "https://github.com/rust-lang/rust"),
        ("glibc", libc, "LGPL-2.1-or-later", "https://sourceware.org/git/glibc.git"),
    ];
    for (name, version, licence, source) in linked {
        components.push(json!({
            "type": "library", "bom-ref": format!("{name}@{version}"), "name": name, "version": version,
            "licenses": [{"expression": licence}], "externalReferences": [{"type": "vcs", "url": source}],
        }));
    }
    components.sort_by_key(|component| component["bom-ref"].as_str().map(str::to_owned));
    let mut dependencies: Vec<Value> = packages
        .iter()
        .map(|package| {
            let needs = package.needs.iter().filter_map(|id| by_id.get(id.as_str()));
            let mut needs: Vec<&String> = needs.collect();
            needs.sort();
            needs.dedup();
            json!({"ref": name_of(package), "dependsOn": needs})
        })
        .collect();
    dependencies.sort_by_key(|one| one["ref"].as_str().map(str::to_owned));
    let own = packages.iter().find(|package| package.name == "tiexec").context("no tiexec")?;
    let mut itself = component(own, &checksums);
    itself["type"] = json!("application");
    let all = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": itself},
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{all:#}\n"))
}

/// Keeps the crates that are linked into the programs, because the library is not in the image.
fn of_programs(all: Vec<Package>) -> Result<Vec<Package>> {
    let by_id: BTreeMap<&str, &Package> =
        all.iter().map(|package| (package.id.as_str(), package)).collect();
    let own = all.iter().find(|package| package.name == "tiexec").context("no tiexec")?;
    let (mut seen, mut ahead) = (BTreeSet::new(), vec![own.id.as_str()]);
    while let Some(id) = ahead.pop() {
        if seen.insert(id.to_owned()) {
            let package = by_id.get(id).context("a crate that is not linked")?;
            ahead.extend(package.needs.iter().map(String::as_str));
        }
    }
    Ok(all.into_iter().filter(|package| seen.contains(&package.id)).collect())
}

/// Returns the crate's name in the list. Our own crates are in no registry.
fn name_of(package: &Package) -> String {
    let name = format!("{}@{}", package.name, package.version);
    if package.source.is_some() { format!("pkg:cargo/{name}") } else { name }
}

fn component(package: &Package, checksums: &BTreeMap<(String, String), String>) -> Value {
    let name = name_of(package);
    let mut value = json!({
        "type": "library", "bom-ref": name, "name": package.name, "version": package.version,
    });
    if package.source.is_some() {
        value["purl"] = json!(name);
    }
    if let Some(licence) = &package.license {
        value["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(source) = &package.repository {
        value["externalReferences"] = json!([{"type": "vcs", "url": source}]);
    }
    if let Some(digest) = checksums.get(&(package.name.clone(), package.version.clone())) {
        value["hashes"] = json!([{"alg": "SHA-256", "content": digest}]);
    }
    value
}

/// Returns the digests of the crates, from `Cargo.lock`.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let text = fs::read_to_string(repository()?.join("Cargo.lock")).context("Cargo.lock")?;
    let entries = text.split("[[package]]").filter_map(|entry| {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let value = entry.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'));
            value.map(str::to_owned)
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    Ok(entries.collect())
}

/// Returns the second word of the program's output.
fn version(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    let text = String::from_utf8(output.stdout)?;
    let version = text.split_whitespace().nth(1);
    version.map(str::to_owned).with_context(|| format!("{program} tells no version: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_whole() {
        let list: Value = serde_json::from_str(&text(Arch::X86).unwrap()).unwrap();
        let components = list["components"].as_array().unwrap();
        let of = |name: &str| components.iter().find(|one| one["name"] == name);
        for name in ["kube", "tokio", "rustls", "tiexec-agent", "glibc", "rust-std"] {
            assert!(of(name).is_some_and(|one| one["licenses"].is_array()), "{name}");
        }
        for name in ["clap_derive", "tiexec-self", "xtask"] {
            assert!(of(name).is_none(), "{name} is in no program");
        }
        for one in components.iter().filter(|one| one["purl"].is_string()) {
            assert_eq!(one["hashes"][0]["content"].as_str().unwrap().len(), 64, "{one}");
        }
        let refs = components.iter().chain([&list["metadata"]["component"]]);
        let refs: BTreeSet<&str> = refs.map(|one| one["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), components.len() + 1, "each has a name of its own");
        for one in list["dependencies"].as_array().unwrap() {
            let needs = one["dependsOn"].as_array().unwrap().iter().chain([&one["ref"]]);
            needs.for_each(|name| assert!(refs.contains(name.as_str().unwrap()), "{name}"));
        }
    }
}
