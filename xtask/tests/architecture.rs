//! The layers: which crate may use which, and where `unsafe` may stand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate, and those of ours that it may use.
const LAYERS: [(&str, &[&str]); 7] = [
    ("core", &[]),
    ("advise", &["core"]),
    ("sys", &["core"]),
    ("tracee", &["core", "sys"]),
    ("remap", &["core", "sys", "tracee"]),
    ("engine", &["advise", "core", "remap", "sys", "tracee"]),
    ("cli", &["advise", "core", "engine", "remap", "sys", "tracee"]),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// The crates of ours that a manifest names as dependencies.
fn used_by(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[").filter(|section| {
        section.starts_with("dependencies]") || section.ends_with(".dependencies]")
    });
    let mut used: Vec<String> = sections
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("tiexec-"))
        .map(|name| name.split(['.', ' ', '=']).next().unwrap_or_default().to_owned())
        .collect();
    used.sort();
    used
}

#[test]
fn each_crate_uses_the_layers_below_it_only() {
    let found: BTreeMap<String, Vec<String>> = fs::read_dir(crates())
        .expect("the crates")
        .map(|entry| {
            let entry = entry.expect("a crate");
            let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
            (entry.file_name().into_string().expect("UTF-8"), used_by(&manifest))
        })
        .collect();
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let allowed = LAYERS.iter().map(|(name, used)| ((*name).to_owned(), owned(used)));
    assert_eq!(found, allowed.collect());
}

#[test]
fn only_sys_has_unsafe_code() {
    for (name, _) in LAYERS {
        let root = fs::read_to_string(crates().join(name).join("src/lib.rs")).expect("lib.rs");
        let forbids = root.contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, name != "sys", "{name}");
    }
}
