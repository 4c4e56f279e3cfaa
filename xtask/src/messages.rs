//! Checks of the messages with a fix: each fix begins with a verb or a command, and its commands exist.

use std::path::Path;

use crate::docs::{complaint, files};

/// Returns the fixes in a file's string literals that contain `; fix: ` or begin with `fix: `, without its tests. A
/// literal over several lines counts as one line.
fn fixes(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let code = code.replace("\\\"", "'");
    let mut joined = String::new();
    for line in code.lines() {
        let line = line.trim_start();
        if line.starts_with("//") {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(begun) => joined.push_str(begun),
            None => {
                joined.push_str(line);
                joined.push('\n');
            }
        }
    }
    let literals = joined.lines().flat_map(|line| line.split('"').skip(1).step_by(2));
    let after = literals.filter_map(|text| {
        text.split_once("; fix: ").map(|(_, fix)| fix).or_else(|| text.strip_prefix("fix: "))
    });
    after.filter(|fix| !fix.is_empty()).map(str::to_owned).collect()
}

/// Returns every fix that the code of our crates can print, with its file.
fn all() -> Vec<(String, String)> {
    let sources = files(Path::new("crates"), "rs").into_iter();
    let sources = sources.filter(|(path, _)| path.iter().nth(2).is_some_and(|part| part == "src"));
    let fixes = sources.flat_map(|(path, source)| {
        let file = path.to_string_lossy().into_owned();
        fixes(&source).into_iter().map(move |fix| (file.clone(), fix))
    });
    fixes.collect()
}

/// A fix begins with one of these.
const VERBS: [&str; 32] = [
    "add",
    "advise",
    "allow",
    "attach",
    "boot",
    "chmod",
    "chown",
    "edit",
    "export",
    "give",
    "install",
    "join",
    "leave",
    "link",
    "loginctl",
    "mount",
    "move",
    "man",
    "mkdir",
    "name",
    "put",
    "raise",
    "remove",
    "rm",
    "run",
    "set",
    "stop",
    "systemctl",
    "unset",
    "use",
    "wait",
    "write",
];

#[test]
fn every_fix_begins_with_what_to_do() {
    let fixes = all();
    assert!(fixes.len() > 40, "{fixes:?}");
    for (file, fix) in fixes {
        let first = fix.trim_start_matches('`').split([' ', ',']).next().unwrap_or_default();
        // The fix begins with a value of the message.
        if first.starts_with('{') || ["tiexecctl", "tiexec", "sysctl", "do"].contains(&first) {
            continue;
        }
        let option = first.starts_with("--");
        assert!(option || VERBS.contains(&first), "{file}: fix: {fix}");
    }
}

#[test]
fn every_command_in_a_fix_is_one() {
    for (file, fix) in all() {
        if !fix.starts_with("tiexec") {
            continue;
        }
        // The sentence may continue after the command.
        let command = fix.split([',', ';', '\n']).next().unwrap_or_default();
        let command = command.split(" (").next().unwrap_or_default();
        let command = command.split(" says ").next().unwrap_or_default();
        let mut command = command.to_owned();
        // The placeholders stand for processes and files.
        while let Some((before, rest)) = command.split_once('{') {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            command = format!("{before}1{after}");
        }
        assert_eq!(complaint(&command), None, "{file}");
    }
}
