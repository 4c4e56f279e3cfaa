//! `cargo xtask COMMAND`: generates documents from the command-line definitions, so that they cannot differ, runs the
//! tests on other kernels and in a cluster, and makes the packages of a release.

mod context;
mod covered;
mod criteria;
mod dist;
#[cfg(test)]
mod docs;
mod docs_test;
mod guide;
mod header;
mod interfaces;
mod k8s;
mod licences;
#[cfg(test)]
mod messages;
mod promises;
mod release;
mod roots_test;
mod sbom;
mod tools;
mod vm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use tiexec::options::{Ctl, Daemon, Launch};
use tiexec_core::setting::{At, Setting};

#[derive(Parser, Debug)]
#[command(name = "cargo xtask", about = "Chores of the project")]
enum Chore {
    /// Writes the man pages
    Man {
        /// Where to
        out: PathBuf,
    },
    /// Writes the shells' completions
    Completions {
        /// Where to
        out: PathBuf,
    },
    VmTest(vm::VmTest),
    K8sTest(k8s::K8sTest),
    ToolsTest(tools::ToolsTest),
    DocsTest(docs_test::DocsTest),
    RootsTest(roots_test::RootsTest),
    Dist(dist::Dist),
    /// Makes the guide's page of reasons anew, from the list in the code
    Guide,
    /// Makes deploy/kubernetes/tiexec.yaml anew, from the chart
    Chart,
    /// Makes include/tiexec.h anew, from the C API of libtiexec
    Header,
    /// Makes the lists of docs/interfaces anew, from the definitions of options, keys, metrics and the other interfaces
    Interfaces,
    /// Makes THIRD-PARTY.md anew, from the crates that are linked
    Licences,
    Context(context::Context),
    Release(release::Release),
    /// Makes the tables of docs/KERNELS.md anew, of what vm-test --record has found
    Kernels,
}

/// Returns the directory of the repository.
///
/// # Errors
/// The directory is gone.
fn repository() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?)
}

fn main() -> Result<ExitCode> {
    match Chore::parse() {
        Chore::Man { out } => man(&made(&out)?)?,
        Chore::Completions { out } => completions(&made(&out)?)?,
        Chore::VmTest(test) => return test.run(),
        Chore::K8sTest(test) => return test.run(),
        Chore::ToolsTest(test) => return test.run(),
        Chore::DocsTest(test) => return test.run(),
        Chore::RootsTest(test) => return test.run(),
        Chore::Dist(dist) => return dist.run(),
        Chore::Guide => guide::write()?,
        Chore::Chart => k8s::chart::write()?,
        Chore::Header => header::write()?,
        Chore::Interfaces => interfaces::write()?,
        Chore::Licences => licences::write()?,
        Chore::Context(context) => context.write()?,
        Chore::Release(release) => return release.run(),
        Chore::Kernels => vm::write_tables()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory, and makes it if it is missing.
fn made(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir.to_owned())
}

/// The commands and the sections of the manual they belong to.
fn commands() -> [(Command, &'static str); 3] {
    [(Launch::command(), "1"), (Ctl::command(), "8"), (Daemon::command(), "8")]
}

/// The manual pages of files and of the library, which no command defines.
const FILES: [&str; 2] = ["tiexec.conf.5", "tiexec_self.3"];

/// The mark in the prose for the options. For a subcommand, its name follows the mark.
const MARKER: &str = ".\\\" OPTIONS";
/// The marks for the reasons that are failures, and for the others.
const FAILURES: &str = ".\\\" FAILURES\n";
const NORMAL: &str = ".\\\" NORMAL\n";

fn man(out: &Path) -> Result<()> {
    let prose = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
    for (command, section) in commands() {
        let name = format!("{}.{section}", command.get_name());
        let source = prose.join(format!("{name}.in"));
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        let text = text.replace(FAILURES, &guide::manual(true));
        let text = text.replace(NORMAL, &guide::manual(false));
        let Some((before, after)) = text.split_once(&format!("{MARKER}\n")) else {
            bail!("{} does not say where the options go", source.display());
        };
        let man = Man::new(command.clone()).section(section);
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        page.extend(before.as_bytes());
        let mut options = Vec::new();
        man.render_options_section(&mut options)?;
        page.extend(below_options(&String::from_utf8(options)?).as_bytes());
        page.extend(with_options(after, &command)?.as_bytes());
        fs::write(out.join(name), page)?;
    }
    for page in FILES {
        let source = prose.join(format!("{page}.in"));
        fs::copy(&source, out.join(page))
            .with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

/// Makes the groups of options subsections of OPTIONS.
fn below_options(section: &str) -> String {
    let line = |line: &str| match line.strip_prefix(".SH ").filter(|name| *name != "OPTIONS") {
        Some(name) => {
            let name = name.trim_matches('"').to_lowercase();
            let (first, rest) = name.split_at(1);
            format!(".SS {}{rest}\n", first.to_uppercase())
        }
        None => format!("{line}\n"),
    };
    section.lines().map(line).collect()
}

/// Inserts each command's options at the mark in the prose.
fn with_options(prose: &str, command: &Command) -> Result<String> {
    let mut page = String::new();
    for line in prose.lines() {
        let Some(names) = line.strip_prefix(MARKER) else {
            page.push_str(line);
            page.push('\n');
            continue;
        };
        let mut sub = command;
        for name in names.split_whitespace() {
            let found = sub.find_subcommand(name);
            sub = found.with_context(|| format!("no command {names} for the manual"))?;
        }
        options(&mut page, sub)?;
    }
    Ok(page)
}

/// Writes the options of a subcommand.
fn options(page: &mut String, sub: &Command) -> Result<()> {
    use std::fmt::Write;
    let is_of_processes = |argument: &clap::Arg| {
        ["pids", "exe", "unit", "user"].contains(&argument.get_id().as_str())
    };
    let selects = sub.get_arguments().any(|argument| argument.get_id() == "exe");
    if selects {
        writeln!(
            page,
            ".TP\n\\fIPID\\fR..., \\fISERVICE\\fR, \\fB\\-\\-exe\\fR, \\fB\\-\\-unit\\fR, \\fB\\-\\-user\\fR"
        )?;
        writeln!(page, "The processes; see \\fBSelecting processes\\fR")?;
    }
    for argument in sub.get_arguments() {
        if argument.is_hide_set() || selects && is_of_processes(argument) {
            continue;
        }
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let value = argument.get_value_names().unwrap_or_default().first();
        let value = value.filter(|_| argument.get_action().takes_values());
        let value = value.map_or(String::new(), |value| format!("\\fI{value}\\fR"));
        match (argument.get_short(), argument.get_long()) {
            (short, Some(long)) => {
                let short = short.map_or(String::new(), |short| format!("\\fB\\-{short}\\fR, "));
                let between = if value.is_empty() { "" } else { " " };
                let long = long.replace('-', "\\-");
                writeln!(page, ".TP\n{short}\\fB\\-\\-{long}\\fR{between}{value}")?;
            }
            (_, None) if !value.is_empty() => writeln!(page, ".TP\n{value}")?,
            _ => continue,
        }
        let usual = argument.get_default_values().first();
        let usual = usual.filter(|_| argument.get_action().takes_values());
        let usual =
            usual.map_or(String::new(), |usual| format!(" [default: {}]", usual.to_string_lossy()));
        writeln!(page, "{}", format!("{help}{usual}").replace('-', "\\-"))?;
    }
    Ok(())
}

/// The words that an option of a command takes. clap does not know them, because the option's own parser checks them.
fn words(command: &str, option: &str) -> Vec<&'static str> {
    let setting = Setting::of(option).map_or(&[][..], |setting| setting.words);
    let fits = |word: &&str| match (command, option) {
        ("tiexec" | "attach" | "canary", "edges") | ("tiexec", _) => true,
        ("attach", _) => *word != "off" && Setting::is_at(At::Attach, option),
        ("canary", "backing") => ["image", "hugetlb"].contains(word),
        _ => false,
    };
    setting.iter().copied().filter(fits).collect()
}

/// Returns the command as a shell completes it: without the hidden options, which `clap_complete` would offer, and
/// with the words that an option takes, for which it would offer files.
fn completed(command: &'static Command) -> Command {
    let name = command.get_name();
    let with_words = |argument: &Arg| match words(name, argument.get_id().as_str()) {
        none if none.is_empty() => argument.clone(),
        words => argument.clone().value_parser(PossibleValuesParser::new(words)),
    };
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut offered = Command::new(name)
        .args(shown.map(with_words))
        .subcommands(command.get_subcommands().map(completed));
    if let Some(about) = command.get_about() {
        offered = offered.about(about.clone());
    }
    match command.get_version() {
        Some(version) => offered.version(version),
        None => offered,
    }
}

fn completions(out: &Path) -> Result<()> {
    for (command, _) in commands() {
        // A new command borrows its names for ever. This program ends soon, so it may leak them.
        let command: &'static Command = Box::leak(Box::new(command));
        let name = command.get_name();
        let mut command = completed(command);
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, name, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tiexec_core::setting::SETTINGS;

    use super::*;

    #[test]
    fn no_prose_about_options_that_do_not_exist() {
        let mut known: BTreeSet<String> = BTreeSet::from(["help".into(), "version".into()]);
        for (command, _) in commands() {
            each(&command, "", &mut |_, command| {
                let long = command.get_arguments().filter_map(clap::Arg::get_long);
                known.extend(long.map(str::to_owned));
            });
        }
        let prose = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
        for (command, section) in commands() {
            let text =
                fs::read_to_string(prose.join(format!("{}.{section}.in", command.get_name())))
                    .unwrap();
            let text = text.replace("\\-", "-");
            // Only our own option names are checked, because examples also show options of other programs.
            for line in text.lines().filter(|line| line.starts_with(".B --")) {
                let option = line.trim_start_matches(".B --");
                let end = option
                    .find(|letter: char| !letter.is_ascii_lowercase() && letter != '-')
                    .unwrap_or(option.len());
                assert!(known.contains(&option[..end]), "--{} in the manual", &option[..end]);
            }
        }
    }

    /// Calls `seen` with each command and its subcommands.
    fn each(command: &Command, path: &str, seen: &mut impl FnMut(&str, Command)) {
        let name = format!("{path} {}", command.get_name());
        seen(&name, command.clone());
        let subs = command.get_subcommands().filter(|sub| sub.get_name() != "help");
        subs.for_each(|sub| each(sub, &name, seen));
    }

    #[test]
    fn help_fits_a_terminal() {
        for (mut command, _) in commands() {
            command.build();
            each(&command, "", &mut |name, command| {
                let help = command.term_width(80).render_long_help().to_string();
                let usage = help.lines().position(|line| line.starts_with("Usage: "));
                let after = help.lines().skip(usage.unwrap_or_default());
                let after = after.skip_while(|line| !line.is_empty());
                for line in help.lines().take(usage.unwrap_or_default()).chain(after) {
                    assert!(line.chars().count() <= 80, "{name}: {line}");
                }
            });
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let prose = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man/tiexecctl.8.in");
        let page = fs::read_to_string(prose).unwrap().replace("\\-", "-");
        for sub in Ctl::command().get_subcommands() {
            let wanted = format!("\n.EX\ntiexecctl {}", sub.get_name());
            assert!(page.contains(&wanted), "{} has no example", sub.get_name());
        }
    }

    #[test]
    fn every_word_of_an_option_is_accepted() {
        let all = ["tiexec", "attach", "canary"].into_iter().flat_map(|of| {
            SETTINGS.iter().map(move |setting| (of, setting.key, words(of, setting.key)))
        });
        for (of, option, words) in all {
            for word in words {
                let option = format!("--{option}={word}");
                let line = match of {
                    "tiexec" => vec!["tiexec", &option, "true"],
                    "canary" => vec!["tiexecctl", of, &option, "--counter=true", "1"],
                    _ => vec!["tiexecctl", of, &option, "1"],
                };
                let command = match of {
                    "tiexec" => Launch::command(),
                    _ => Ctl::command(),
                };
                assert!(command.try_get_matches_from(&line).is_ok(), "{line:?}");
            }
        }
    }

    #[test]
    fn shells_offer_words_and_no_hidden_option() {
        let out = tempfile::tempdir().unwrap();
        completions(out.path()).unwrap();
        for file in ["tiexecctl.bash", "tiexecctl.fish", "_tiexecctl"] {
            let text = fs::read_to_string(out.path().join(file)).unwrap();
            each(&Ctl::command(), "", &mut |name, command| {
                let own = command.get_arguments().filter(|argument| argument.is_hide_set());
                for option in own.filter_map(clap::Arg::get_long) {
                    let offered =
                        [format!("--{option} "), format!("--{option}="), format!("-l {option} ")];
                    assert!(
                        !offered.iter().any(|words| text.contains(words)),
                        "{file}:{name} --{option}"
                    );
                }
            });
            assert!(text.contains("conservative"), "{file}");
        }
        // As bash asks, in a directory whose files it would offer.
        let asked = "cd /; . \"$0\"; COMP_WORDS=(tiexecctl attach --edges ''); COMP_CWORD=3; \
            _tiexecctl tiexecctl '' --edges; echo \"${COMPREPLY[@]}\"";
        let asked = std::process::Command::new("bash")
            .args(["-c", asked])
            .arg(out.path().join("tiexecctl.bash"))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&asked.stdout), "conservative pad aggressive\n");
    }

    #[test]
    fn every_page_is_rendered() {
        let out = std::env::temp_dir().join(format!("tiexec-man-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        man(&out).unwrap();
        let page = fs::read_to_string(out.join("tiexec.1")).unwrap();
        for option in Launch::command().get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&option.replace('-', "\\-")), "--{option}");
        }
        let page = fs::read_to_string(out.join("tiexecctl.8")).unwrap();
        each(&Ctl::command(), "", &mut |_, command| {
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in shown.filter_map(clap::Arg::get_long) {
                assert!(page.contains(&option.replace('-', "\\-")), "--{option}");
            }
        });
        fs::remove_dir_all(out).unwrap();
    }
}
