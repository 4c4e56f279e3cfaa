//! Checks of the pages that people read: their links have targets, and their commands exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

use crate::repository;

/// Returns the files of a kind below a directory of the repository, by their paths in the repository.
pub(crate) fn files(below: &Path, kind: &str) -> BTreeMap<PathBuf, String> {
    fn gather(root: &Path, at: &Path, kind: &str, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(root.join(at)).expect("a directory") {
            let entry = entry.expect("an entry");
            let path = at.join(entry.file_name());
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if hidden || path == Path::new("target") {
                continue;
            }
            if entry.file_type().expect("a type").is_dir() {
                gather(root, &path, kind, found);
            } else if path.extension().is_some_and(|end| end == kind) {
                let text = fs::read_to_string(root.join(&path)).expect("UTF-8");
                found.insert(path, text);
            }
        }
    }
    let mut found = BTreeMap::new();
    gather(&repository().expect("a repository"), below, kind, &mut found);
    found
}

/// Returns the Markdown files of the repository.
fn markdown() -> BTreeMap<PathBuf, String> {
    files(Path::new(""), "md")
}

/// Returns a page with its included pages.
fn expanded(pages: &BTreeMap<PathBuf, String>, path: &Path) -> String {
    let text = &pages[path];
    let Some(included) = text.strip_prefix("{{#include ") else { return text.clone() };
    let included = included.trim_end().strip_suffix("}}").expect("one include");
    pages[&normal(&path.with_file_name(included))].clone()
}

/// Returns the path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(normal.pop(), "{} leaves the tree", path.display()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the text outside of code.
fn prose(text: &str) -> String {
    let outside = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    outside.split('`').step_by(2).collect()
}

/// Returns the anchors of the headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    let headings = outside.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let name = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        name.chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns the targets of the links and pictures.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let root = repository().unwrap();
    let pages = markdown();
    for path in pages.keys() {
        let text = expanded(&pages, path);
        for link in links(&text) {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { normal(&path.with_file_name(file)) };
            let shown = format!("{}: {link}", path.display());
            assert!(root.join(&target).exists(), "{shown}");
            if path.starts_with("docs/guide") {
                assert!(target.starts_with("docs/guide/src"), "{shown}: not in the book");
            }
            if !anchor.is_empty() {
                let there = anchors(&expanded(&pages, &target));
                assert!(there.contains(anchor), "{shown}: {there:?}");
            }
        }
    }
}

#[test]
fn the_summary_lists_every_chapter() {
    let pages = markdown();
    let source = Path::new("docs/guide/src");
    let listed: Vec<PathBuf> =
        links(&pages[&source.join("SUMMARY.md")]).iter().map(|link| source.join(link)).collect();
    let unique: BTreeSet<&PathBuf> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a chapter stands there twice");
    let there =
        pages.keys().filter(|path| path.starts_with(source) && !path.ends_with("SUMMARY.md"));
    assert_eq!(unique, there.collect());
}

/// Returns the words of a shell's command, up to a pipe, a redirection, `&` or another end.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut depth) = (String::new(), None, 0_u32);
    let mut begun = false;
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(end)) if letter == end => quote = None,
            ('\'' | '"', None) => (quote, begun) = (Some(letter), true),
            ('(', _) => depth += 1,
            (')', _) if depth > 0 => depth -= 1,
            (' ', None) if depth == 0 => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            ('|' | '>' | '<' | '&' | ';' | '#', None) if depth == 0 && word.is_empty() => {
                return words;
            }
            (letter, _) => word.push(letter),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Returns the mistake in a line that runs one of our programs; `None` without a mistake or without such a program.
pub(crate) fn complaint(line: &str) -> Option<String> {
    complaints_of(line).map(|(_, complaint)| complaint)
}

/// Returns the mistake with its kind.
fn complaints_of(line: &str) -> Option<(ErrorKind, String)> {
    let words = words(line);
    let ours: Vec<Command> = crate::commands().map(|(command, _)| command).into();
    let named = |word: &String| {
        let name = Path::new(word).file_name()?.to_str()?;
        ours.iter().find(|command| command.get_name() == name)
    };
    let (at, command) = words.iter().enumerate().find_map(|(at, word)| Some((at, named(word)?)))?;
    // Before our program there may be assignments, or programs that run another one.
    let before = &words[..at];
    let runs = ["runuser", "sudo", "time", "nice", "env", "systemd-run", "ENTRYPOINT", "exec"];
    let is_run = before.iter().all(|word| word.contains('=')) || runs.contains(&before[0].as_str());
    if !is_run {
        return None;
    }
    let values = words[at..].iter().map(|word| match word.as_str() {
        "PID" | "NUM" | "N" | "PID..." => "1".to_owned(),
        "RATIO" => "1.01".to_owned(),
        "DURATION" => "1s".to_owned(),
        word if word.starts_with('$') => "1".to_owned(),
        word => word.replace("SIZE", "2M").replace("BYTES", "2M"),
    });
    let parsed = command.clone().try_get_matches_from(values);
    let error = parsed.err().filter(|error| error.use_stderr())?;
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    Some((error.kind(), format!("{line}: {first}")))
}

/// Returns the commands of a page, and whether each stands in a sentence: code in sentences; in a `console` block the
/// lines with a prompt; in another block the lines that begin with `tiexec`.
fn commands(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for (at, part) in text.split("\n```").enumerate() {
        if at % 2 == 0 {
            let inline = part.split('`').skip(1).step_by(2);
            found.extend(
                inline.filter(|code| code.contains(' ')).map(|code| (code.to_owned(), true)),
            );
            continue;
        }
        let lines = part.lines().skip(1);
        let prompt = |line: &str| {
            let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "))?;
            Some((command.to_owned(), false))
        };
        if part.starts_with("console") {
            found.extend(lines.filter_map(prompt));
        } else {
            let ours = lines.filter(|line| line.starts_with("tiexec"));
            found.extend(ours.map(|line| (line.to_owned(), false)));
        }
    }
    found
}

#[test]
fn every_command_of_ours_is_one() {
    let mut complaints = Vec::new();
    let mut count = 0;
    for (path, text) in markdown() {
        // These files describe the past.
        if path == Path::new("CHANGELOG.md") || path.starts_with("docs/design") {
            continue;
        }
        for (command, in_sentence) in commands(&text) {
            count += 1;
            if command.contains('…') || command.contains("...") && command.contains('[') {
                continue;
            }
            match complaints_of(&command) {
                // A sentence names a command without its arguments.
                Some((ErrorKind::MissingRequiredArgument | ErrorKind::InvalidValue, _))
                    if in_sentence => {}
                Some((_, complaint)) => complaints.push(format!("{}: {complaint}", path.display())),
                None => {}
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    assert!(complaint("tiexecctl revrt 1").is_some());
    assert!(complaint("TIEXEC=off tiexec --nonsense x").is_some());
    assert!(complaint("tiexec --follow --max-huge-pages auto make").is_some());
    assert!(complaint("tiexecctl inspect $(pidof node) | grep '7 files'").is_none());
    assert!(complaint("apt install tiexec").is_none());
}
