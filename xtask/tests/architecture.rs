//! The layers: the crates that each crate may use, and the places of `unsafe`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate, and the crates of this repository that it may use.
const LAYERS: [(&str, &[&str]); 9] = [
    ("core", &[]),
    ("advise", &["core"]),
    ("sys", &["core"]),
    ("tracee", &["core", "sys"]),
    ("remap", &["core", "sys", "tracee"]),
    ("engine", &["advise", "core", "remap", "sys", "tracee"]),
    ("agent", &["advise", "core", "engine", "remap", "sys"]),
    ("cli", &["advise", "agent", "core", "engine", "remap", "sys", "tracee"]),
    ("self", &["core", "engine", "remap", "sys", "tracee"]),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// Returns our crates among the dependencies of a manifest.
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
fn only_sys_and_the_c_api_have_unsafe_code() {
    for (name, _) in LAYERS {
        let root = fs::read_to_string(crates().join(name).join("src/lib.rs")).expect("lib.rs");
        let forbids = root.contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, name != "sys" && name != "self", "{name}");
        if name == "self" {
            assert!(root.contains("#![deny(unsafe_code)]"), "{name}");
            let source = crates().join(name).join("src");
            let mut files = BTreeMap::new();
            modules(&source, &source, &mut files);
            let allows = files.iter().filter(|(_, code)| code.contains("#![allow(unsafe_code"));
            let allows: Vec<String> = allows.map(|(module, _)| module.join("::")).collect();
            assert_eq!(allows, ["abi", "calls"]);
            assert!(files.values().all(|code| !code.contains("#[allow(unsafe_code")));
        }
    }
}

/// A file of a crate, by its module path.
type Module = Vec<String>;

/// Collects the files of a crate by their module paths. The path of `lib.rs` is empty.
fn modules(source: &Path, at: &Path, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(at).expect("a directory") {
        let path = entry.expect("an entry").path();
        let relative = path.strip_prefix(source).expect("below it").with_extension("");
        let mut module: Module =
            relative.iter().map(|name| name.to_str().expect("UTF-8").to_owned()).collect();
        if path.is_dir() {
            if relative != Path::new("bin") {
                modules(source, &path, found);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            if module.last().is_some_and(|name| name == "mod" || name == "lib") {
                module.pop();
            }
            let text = fs::read_to_string(&path).expect("a source file");
            let code: Vec<&str> = text
                .lines()
                .take_while(|line| *line != "#[cfg(test)]")
                .map(|line| line.split("//").next().unwrap_or_default())
                .collect();
            found.insert(module, code.join("\n"));
        }
    }
}

/// Expands the paths of a `use`: `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn flat(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let (mut depth, mut start) = (0, 0);
    let ends = tree.char_indices().chain([(tree.len(), ',')]);
    for (at, letter) in ends {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = tree[start..at].trim();
                start = at + 1;
                match part.split_once('{') {
                    Some((more, group)) => {
                        let group = group.strip_suffix('}').unwrap_or(group);
                        flat(&format!("{prefix}{more}"), group, paths);
                    }
                    None if !part.is_empty() => paths.push(format!("{prefix}{part}")),
                    None => {}
                }
            }
            _ => {}
        }
    }
}

/// Returns the paths in a file: the paths of `use`, and the paths that begin with `crate` or `super`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let uses = code.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
    for (tree, _) in uses.filter(|(tree, _)| !tree.contains(['(', '=', '"'])) {
        flat("", tree, &mut found);
    }
    let part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = code.split(|letter| !part(letter));
    let inline = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    found.extend(inline.map(str::to_owned));
    found
}

/// Returns the file of the crate to which a path in `from` refers.
fn target(files: &BTreeMap<Module, String>, from: &Module, path: &str) -> Option<Module> {
    let mut names: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut module = match names.first().copied()? {
        "crate" => Module::new(),
        "self" | "super" => from.clone(),
        child => {
            let below: Module = from.iter().cloned().chain([child.to_owned()]).collect();
            files.contains_key(&below).then(|| from.clone())?
        }
    };
    while names.first() == Some(&"super") {
        module.pop();
        names.remove(0);
    }
    names.retain(|&name| name != "crate" && name != "self");
    module.extend(names.into_iter().map(str::to_owned));
    while !files.contains_key(&module) {
        module.pop()?;
    }
    Some(module)
}

/// `clippy.toml` forbids the functions that make files. These words make files through functions that also open them.
const MAKERS: [&str; 4] = ["OFlags::CREATE", "OFlags::TMPFILE", "O_CREAT", "O_TMPFILE"];

#[test]
fn only_one_file_makes_files() {
    let mut makers = Vec::new();
    for (name, _) in LAYERS {
        let source = crates().join(name).join("src");
        let mut files = BTreeMap::new();
        modules(&source, &source, &mut files);
        let root = &files[&Module::new()];
        assert!(root.contains("deny(clippy::disallowed_methods"), "{name}: makes files anywhere");
        for (module, code) in &files {
            if MAKERS.iter().any(|word| code.contains(word)) {
                makers.push(format!("{name}::{}", module.join("::")));
            }
        }
    }
    assert_eq!(makers, ["remap::files"]);
}

/// `clippy.toml` forbids the function that begins a command. These words get around it. `sys::startup` executes the user's
/// program in the place of `tiexec`.
const STARTERS: [(&str, &[&str]); 4] = [
    ("Command::new", &["engine::programs"]),
    ("libc::exec", &["sys::startup"]),
    ("posix_spawn", &[]),
    ("libc::system", &[]),
];

#[test]
fn only_one_file_starts_programs() {
    for (word, expected) in STARTERS {
        let mut starters = Vec::new();
        for (name, _) in LAYERS {
            let source = crates().join(name).join("src");
            let mut files = BTreeMap::new();
            modules(&source, &source, &mut files);
            let starts = files.iter().filter(|(_, code)| code.contains(word));
            starters.extend(starts.map(|(module, _)| format!("{name}::{}", module.join("::"))));
        }
        assert_eq!(starters, expected, "{word}");
    }
}

/// A module and the files below it may use each other. No other files may form a cycle.
#[test]
fn no_files_go_in_a_circle() {
    for (name, _) in LAYERS {
        let source = crates().join(name).join("src");
        let mut files = BTreeMap::new();
        modules(&source, &source, &mut files);
        let arrows = |from: &Module, code: &String| -> Vec<Module> {
            let to = paths(code).into_iter().filter_map(|path| target(&files, from, &path));
            to.filter(|to| !to.starts_with(from) && !from.starts_with(to)).collect()
        };
        let mut left: BTreeMap<Module, Vec<Module>> =
            files.iter().map(|(from, code)| (from.clone(), arrows(from, code))).collect();
        // Files without references, or with references only to such files, are in no cycle.
        loop {
            let ends: Vec<Module> = left
                .iter()
                .filter(|(_, to)| !to.iter().any(|to| left.contains_key(to)))
                .map(|(from, _)| from.clone())
                .collect();
            if ends.is_empty() {
                break;
            }
            left.retain(|from, _| !ends.contains(from));
        }
        let circle: Vec<String> = left.keys().map(|module| module.join("::")).collect();
        assert!(circle.is_empty(), "{name}: these lead to each other: {circle:?}");
        assert!(files.len() > 5, "{name}: {} files", files.len());
    }
}
