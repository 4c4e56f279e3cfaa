//! The lists of the stable interfaces in `docs/interfaces`. They are made of the definitions in the code, and a test
//! compares them, so that no interface changes by accident.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, Command};
use serde::Deserialize;
use tiexec::exit;
use tiexec_agent::{metrics, rules};
use tiexec_core::setting::{SETTINGS, Setting, Takes};
use tiexec_core::skip::Reason;
use tiexec_engine::{settings, switched_off};

use crate::{FILES, commands, header, repository};

/// The head of each list, after its title.
const HEAD: &str = "\
#
# `cargo xtask interfaces` makes this file from the code. Do not edit it. docs/SUPPORT.md has the promise about it.
# A change of a line is a change for users, so the same commit also changes:
# - CHANGELOG.md: what changes, and what an operator must do (*Action*);
# - docs/SUPPORT.md, if the change breaks a promise or makes a new one. A line may go only in a new major version;
# - the manual page (docs/man).

";

/// Returns the lists: the name of each file, its title, and its lines.
fn lists() -> Result<[(&'static str, &'static str, Vec<String>); 7]> {
    Ok([
        ("options", "The commands and their options, without hidden ones", options()),
        ("exit-statuses", "The exit statuses", statuses()),
        ("reasons", "The reasons, and whether each is a failure or a normal case", reasons()),
        ("settings", "The keys of TIEXEC= and of the configuration file, and their places", keys()),
        ("rules", "The keys of a rule file, besides settings with the place Rule", rule_keys()),
        ("metrics", "The metrics of tiexecd: name, type and labels", figures()?),
        ("files", "The files that users name, and those of each package", files()?),
    ])
}

/// Returns each file of a list with its content.
fn made() -> Result<BTreeMap<PathBuf, String>> {
    let directory = repository()?.join("docs/interfaces");
    let text = |(name, title, mut lines): (&str, &str, Vec<String>)| {
        lines.sort();
        let path = directory.join(name).with_extension("txt");
        (path, format!("# {title}.\n{HEAD}{}\n", lines.join("\n")))
    };
    let mut made: BTreeMap<PathBuf, String> = lists()?.into_iter().map(text).collect();
    // The order of a structure's members is a part of the interface, so these lines are not sorted.
    let api = header::declarations()?;
    made.insert(directory.join("c-api.txt"), format!("# The C API of libtiexec.\n{HEAD}{api}\n"));
    Ok(made)
}

/// Writes the lists.
pub(crate) fn write() -> Result<()> {
    for (path, text) in made()? {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Checks that the lists are those of the code.
///
/// # Errors
/// The lines that differ, each with its file.
pub(crate) fn check() -> Result<String> {
    let made = made()?;
    let mut changes = Vec::new();
    for (path, now) in &made {
        let recorded = fs::read_to_string(path).unwrap_or_default();
        if recorded == *now {
            continue;
        }
        changes.push(format!("{}, in this or another order:", path.display()));
        let without = |sign, these: &str, others: &str| -> Vec<String> {
            let gone = these.lines().filter(|line| others.lines().all(|other| other != *line));
            gone.map(|line| format!("{sign} {line}")).collect()
        };
        changes.extend(without('-', &recorded, now));
        changes.extend(without('+', now, &recorded));
    }
    if !changes.is_empty() {
        bail!(
            "a stable interface changed; fix: cargo xtask interfaces, and follow the head of the list\n{}",
            changes.join("\n")
        );
    }
    Ok(format!("{} lists", made.len()))
}

fn options() -> Vec<String> {
    fn add(lines: &mut Vec<String>, path: &str, command: &Command) {
        let path = [path, command.get_name()].join(" ").trim_start().to_owned();
        lines.push(path.clone());
        lines.extend(command.get_all_aliases().map(|alias| format!("{path}, also {alias}")));
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let shown = shown.filter(|argument| argument.get_id() != "help");
        lines.extend(shown.map(|argument| format!("{path} {}", line_of(argument))));
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        shown.filter(|sub| sub.get_name() != "help").for_each(|sub| add(lines, &path, sub));
    }
    let mut lines = Vec::new();
    for (mut command, _) in commands() {
        command.build();
        add(&mut lines, "", &command);
    }
    lines
}

/// Returns an option with its names, its value, its words, and whether it has a default: `-F --frequency HZ [default]`.
fn line_of(argument: &Arg) -> String {
    let mut words = Vec::new();
    let short = argument.get_short_and_visible_aliases().unwrap_or_default();
    words.extend(short.iter().map(|short| format!("-{short}")));
    let long =
        argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default());
    words.extend(long.map(|long| format!("--{long}")));
    if argument.get_action().takes_values() {
        let names = argument.get_value_names().unwrap_or_default();
        let mut value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
        let equals = argument.is_require_equals_set();
        if equals {
            value = format!("={value}");
        }
        let count = argument.get_num_args().unwrap_or_else(|| 1.into());
        if count.min_values() == 0 || argument.is_positional() && !argument.is_required_set() {
            value = format!("[{value}]");
        }
        if matches!(argument.get_action(), ArgAction::Append) || count.max_values() > 1 {
            value += "...";
        }
        match words.last_mut().filter(|_| equals) {
            Some(option) => *option += &value,
            None => words.push(value),
        }
        let possible = argument.get_possible_values();
        words.extend(possible.iter().map(|word| format!("{:?}", word.get_name())));
        words.extend(argument.get_default_values().first().map(|_usual| "[default]".to_owned()));
    }
    words.join(" ")
}

fn statuses() -> Vec<String> {
    exit::ALL.iter().map(|(status, meaning)| format!("{status:3}{meaning}")).collect()
}

fn reasons() -> Vec<String> {
    let line = |reason: Reason| {
        format!("{reason} {}", if reason.is_failure() { "failure" } else { "normal" })
    };
    Reason::all().map(line).collect()
}

fn keys() -> Vec<String> {
    let line = |Setting { key, takes, words, at, .. }: &Setting| {
        let value = match takes {
            Takes::Flag => String::new(),
            Takes::Value(name) | Takes::ValueAfterEquals(name) => format!("={name}"),
            Takes::MaybeValue(name) => format!("[={name}]"),
            Takes::List(name) => format!("={name}..."),
        };
        let words = if words.is_empty() { String::new() } else { format!(" {words:?}") };
        format!("{key}{value}{words} {at:?}")
    };
    SETTINGS.iter().map(line).collect()
}

fn rule_keys() -> Vec<String> {
    let rule = rules::KEYS.iter().map(|key| format!("[[rule]] {key}"));
    rule.chain(rules::agent_keys().map(|key| format!("[agent] {key}"))).collect()
}

/// Returns the metrics of an example of the agent's figures.
fn figures() -> Result<Vec<String>> {
    let example = metrics::example();
    let mut lines = example.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(family) = line.strip_prefix("# TYPE ") else { continue };
        let series = lines.clone().take_while(|line| !line.starts_with('#'));
        let labels = series.filter_map(|series| series.split_once('{')?.1.split_once('}'));
        let labels = labels.map(|(labels, _)| labels).next().unwrap_or_default();
        let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
        let names: Vec<&str> = names.collect();
        if lines.clone().next().is_none_or(|series| series.starts_with('#')) {
            bail!("{family} has no series in the example of crates/agent/src/metrics.rs");
        }
        found.push([family, &names.join(" ")].join(" ").trim_end().to_owned());
    }
    Ok(found)
}

/// The part of a package's description that this file needs.
#[derive(Deserialize)]
struct Package {
    name: String,
    contents: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    src: String,
    dst: String,
    packager: Option<String>,
}

fn files() -> Result<Vec<String>> {
    let mut lines = Vec::from(
        [settings::CONFIG_FILE, switched_off::FILE, rules::DIRECTORY]
            .map(|path| format!("administrator {path}")),
    );
    for description in ["nfpm", "libtiexec1", "libtiexec-dev"] {
        let path = repository()?.join("packaging").join(description).with_extension("yaml");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let package: Package = serde_saphyr::from_str(&text)
            .with_context(|| format!("cannot read {}", path.display()))?;
        // Nobody depends on the names of documents.
        let documents = ["/usr/share/doc/", "/usr/share/licenses/", "/usr/share/lintian/"];
        let mut contents = package.contents;
        contents.retain(|content| documents.iter().all(|place| !content.dst.starts_with(place)));
        for Content { src, dst, packager } in contents {
            let only = packager.map_or(String::new(), |kind| format!(" ({kind})"));
            let line = |file: String| format!("{}{only} {dst}{file}", package.name);
            lines.extend(generated(&src).into_iter().map(line));
        }
    }
    Ok(lines)
}

/// Returns the files that a pattern of `cargo xtask dist` stands for. Another source has one file, which its entry names.
fn generated(src: &str) -> Vec<String> {
    let names = || commands().map(|(command, section)| (command.get_name().to_owned(), section));
    let Some(pattern) = src.strip_prefix("${STAGE}/").and_then(|src| src.strip_suffix("/*")) else {
        return vec![String::new()];
    };
    match pattern {
        "completions/fish" => names().map(|(name, _)| format!("{name}.fish")).into(),
        "completions/zsh" => names().map(|(name, _)| format!("_{name}")).into(),
        _ => match pattern.strip_prefix("man/man") {
            Some(section) => {
                let pages = names().map(|(name, section)| format!("{name}.{section}"));
                let pages = pages.into_iter().chain(FILES.map(str::to_owned));
                let here = pages.filter(|page| page.ends_with(&format!(".{section}")));
                here.map(|page| format!("{page}.gz")).collect()
            }
            None => names().map(|(name, _)| name).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    #[test]
    fn no_interface_changed() {
        if let Err(changed) = check() {
            panic!("{changed:#}");
        }
    }

    #[test]
    fn every_list_is_of_an_interface() {
        let made = made().unwrap();
        let there = fs::read_dir(repository().unwrap().join("docs/interfaces")).unwrap();
        let there = there.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        assert_eq!(there.collect::<BTreeSet<_>>(), made.keys().cloned().collect());
        for (path, text) in made {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            assert!(lines.count() > 5, "{}: {text}", path.display());
        }
    }

    /// Returns the JSON Schemas by their kinds.
    fn schemas() -> BTreeMap<String, Value> {
        let files = crate::docs::files(Path::new("docs/interfaces/json"), "json");
        let kind = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        files.iter().map(|(path, text)| (kind(path), serde_json::from_str(text).unwrap())).collect()
    }

    /// Returns the kinds of objects that the code of our crates names as literals.
    fn kinds_in_code() -> BTreeSet<String> {
        let sources = crate::docs::files(Path::new("crates"), "rs");
        let literals = sources.values().flat_map(|text| {
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = code.replace("&'static str", "&str");
            let starts = ["\"kind\": \"", " kind: \"", "KIND: &str = \"", "as_json(\""];
            let after = starts.map(|start| {
                let rest = code.split(start).skip(1).filter_map(|rest| rest.split_once('"'));
                rest.map(|(kind, _)| kind.to_owned()).collect::<Vec<_>>()
            });
            after.into_iter().flatten().collect::<Vec<_>>()
        });
        literals.collect()
    }

    #[test]
    fn every_kind_of_json_has_a_schema() {
        let mut kinds = kinds_in_code();
        // The data of an HTML page are for the page's own script.
        assert!(kinds.remove("page") && kinds.len() > 15, "{kinds:?}");
        let reports = ["launch", "attach", "inspect", "inspect_sum", "attach_sum", "revert_sum"];
        kinds.extend(reports.map(str::to_owned));
        assert_eq!(kinds, schemas().into_keys().collect());
    }

    #[test]
    fn every_schema_is_compared_with_output() {
        let list = repository().unwrap().join("tests/support/src/schema.rs");
        let list = fs::read_to_string(list).unwrap();
        for (kind, schema) in schemas() {
            assert!(list.contains(&format!("        \"{kind}\",\n")), "{kind}");
            let fields = &schema["properties"];
            assert_eq!(fields["kind"]["const"], kind);
            assert!(fields["schema"]["const"].is_u64(), "{kind}");
            for field in ["schema", "kind"] {
                assert!(schema["required"].as_array().unwrap().contains(&field.into()), "{kind}");
            }
        }
    }

    /// Adds the names of all fields in a schema.
    fn add_fields(schema: &Value, fields: &mut BTreeSet<String>) {
        if let Value::Object(properties) = &schema["properties"] {
            fields.extend(properties.keys().cloned());
        }
        match schema {
            Value::Object(members) => members.values().for_each(|part| add_fields(part, fields)),
            Value::Array(parts) => parts.iter().for_each(|part| add_fields(part, fields)),
            _ => {}
        }
    }

    #[test]
    fn every_field_of_json_is_in_the_manual() {
        let manual: String =
            crate::docs::files(Path::new("docs/man"), "in").into_values().collect();
        let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words: BTreeSet<&str> = manual.split(|letter| !is_of_word(letter)).collect();
        for (kind, schema) in schemas() {
            let mut fields = BTreeSet::new();
            add_fields(&schema, &mut fields);
            fields.retain(|field| !words.contains(field.as_str()));
            assert!(
                fields.is_empty(),
                "no manual page explains these fields of {kind}: {fields:?}"
            );
        }
    }
}
