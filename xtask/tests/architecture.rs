//! The layers: the crates that each crate may use, and the places of `unsafe`.

use std::collections::{BTreeMap, BTreeSet};
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

/// Returns the lines of a file without comments and without its tests.
fn code_of(text: &str) -> String {
    let (before, after) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
    let after = after.split_once("\n}\n").map_or("", |(_, after)| after);
    let lines = before.lines().chain(after.lines());
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Collects the files of a crate by their module paths. The path of `lib.rs` and of `main.rs` is empty.
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
            if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
                module.pop();
            }
            let text = fs::read_to_string(&path).expect("a source file");
            found.insert(module, code_of(&text));
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

/// Returns the arrows between the modules of each directory: a module's files, those below it included, count as one.
/// A module and the files below it may use each other.
fn arrows(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (from, code) in files {
        for to in paths(code).into_iter().filter_map(|path| target(files, from, &path)) {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if shared < from.len().min(to.len()) {
                arrows.entry(from[..=shared].to_vec()).or_default().insert(to[..=shared].to_vec());
            }
        }
    }
    arrows
}

/// Returns the modules that lead to themselves by way of other modules.
fn in_circles(files: &BTreeMap<Module, String>) -> Vec<String> {
    let arrows = arrows(files);
    let mut circles = Vec::new();
    for start in arrows.keys() {
        let (mut reached, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(from) = left.pop() {
            let to = arrows.get(from).into_iter().flatten();
            left.extend(to.filter(|&to| reached.insert(to)));
        }
        if reached.contains(start) {
            circles.push(start.join("::"));
        }
    }
    circles
}

#[test]
fn no_files_go_in_a_circle() {
    let crates = LAYERS.map(|(name, _)| crates().join(name)).into_iter();
    for crate_of in crates.chain([PathBuf::from(env!("CARGO_MANIFEST_DIR"))]) {
        let source = crate_of.join("src");
        let mut files = BTreeMap::new();
        modules(&source, &source, &mut files);
        let circles = in_circles(&files);
        assert!(circles.is_empty(), "{source:?}: these lead to each other: {circles:?}");
        assert!(files.len() > 5, "{source:?}: {} files", files.len());
    }
}

/// Returns the circles in a tree of files, each a path and its lines.
fn circles_of(tree: &[(&str, &str)]) -> Vec<String> {
    let place = tempfile::tempdir().expect("a directory");
    for (path, code) in tree {
        let path = place.path().join(path);
        fs::create_dir_all(path.parent().expect("one")).expect("a directory");
        fs::write(path, code).expect("a file");
    }
    let mut files = BTreeMap::new();
    modules(place.path(), place.path(), &mut files);
    assert_eq!(files.len(), tree.len());
    in_circles(&files)
}

#[test]
fn a_planted_circle_is_found() {
    let tree = [
        ("main.rs", "use crate::a::run;\n"),
        ("a/mod.rs", "mod b;\npub fn run() { b::run(); }\n"),
        ("a/b.rs", "use super::Pid;\nuse crate::c;\n"),
        ("c.rs", "//! Not in [`crate::a`].\nuse crate::d::{e::f, g};\n"),
        ("d/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
    ];
    // A module and the files below it may use each other; comments and tests do not count.
    assert_eq!(circles_of(&tree), Vec::<String>::new());
    let with = |planted: &[(&'static str, &'static str)]| {
        let others = tree.iter().filter(|(path, _)| planted.iter().all(|(its, _)| its != path));
        circles_of(&[&others.copied().collect::<Vec<_>>()[..], planted].concat())
    };
    // From one file to the other and back.
    assert_eq!(with(&[("d/mod.rs", "use crate::c::run;\n")]), ["c", "d"]);
    // By way of a file below a module, to the module itself.
    assert_eq!(with(&[("d/mod.rs", "use crate::a::run;\n")]), ["a", "c", "d"]);
    // By way of another file below the module than the one that leads away.
    assert_eq!(
        with(&[("a/h.rs", "pub fn h() {}\n"), ("d/e.rs", "use crate::a::h;\n")]),
        ["a", "c", "d"]
    );
    // Between two files below a module.
    assert_eq!(
        with(&[("d/e.rs", "use super::g;\n"), ("d/g.rs", "use super::e::f;\n")]),
        ["d::e", "d::g"]
    );
    // A path without `use`, after the tests.
    let hidden = "#[cfg(test)]\nmod tests {\n}\n\nfn i() { crate::c::run(); }\n";
    assert_eq!(with(&[("d/mod.rs", hidden)]), ["c", "d"]);
}
