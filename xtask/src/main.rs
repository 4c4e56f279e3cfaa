//! `cargo xtask COMMAND`: what is generated from the command-line definitions, so that it cannot drift
//! from them; the tests on other kernels; and the packages of a release.

mod dist;
#[cfg(test)]
mod security;
mod vm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use tiexec::options::{Ctl, Daemon, Launch};

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
    Dist(dist::Dist),
    /// Makes the tables of docs/KERNELS.md anew, of what vm-test --record has found
    Kernels,
}

fn main() -> Result<ExitCode> {
    match Chore::parse() {
        Chore::Man { out } => man(&made(&out)?)?,
        Chore::Completions { out } => completions(&made(&out)?)?,
        Chore::VmTest(test) => return test.run(),
        Chore::Dist(dist) => return dist.run(),
        Chore::Kernels => vm::write_tables()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory, made if need be.
fn made(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir.to_owned())
}

/// The commands and the sections of the manual they belong to.
fn commands() -> [(Command, &'static str); 3] {
    [(Launch::command(), "1"), (Ctl::command(), "8"), (Daemon::command(), "8")]
}

/// The manual pages of files, which no command defines.
const FILES: [&str; 1] = ["tiexec.conf.5"];

/// The place in the prose for the generated part.
const MARKER: &str = ".\\\" OPTIONS\n";

fn man(out: &Path) -> Result<()> {
    let prose = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
    for (command, section) in commands() {
        let name = format!("{}.{section}", command.get_name());
        let source = prose.join(format!("{name}.in"));
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        let Some((before, after)) = text.split_once(MARKER) else {
            bail!("{} does not say where the options go", source.display());
        };
        let man = Man::new(command.clone()).section(section);
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        page.extend(before.as_bytes());
        man.render_options_section(&mut page)?;
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            subcommand(&mut page, command.get_name(), sub)?;
        }
        page.extend(after.as_bytes());
        fs::write(out.join(name), page)?;
    }
    for page in FILES {
        let source = prose.join(format!("{page}.in"));
        fs::copy(&source, out.join(page))
            .with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

/// Writes a subcommand as a section of its own, with its options, and so each of its own subcommands.
fn subcommand(page: &mut Vec<u8>, parent: &str, sub: &Command) -> Result<()> {
    use std::io::Write;
    let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
    let name = format!("{parent} {}", sub.get_name());
    writeln!(page, ".SH {}", name.to_uppercase())?;
    writeln!(page, "{about}.")?;
    for argument in sub.get_arguments() {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        match (argument.get_long(), argument.get_value_names()) {
            (Some(long), _) => writeln!(page, ".TP\n\\fB\\-\\-{}\\fR", long.replace('-', "\\-"))?,
            (None, Some([value, ..])) => writeln!(page, ".TP\n\\fI{value}\\fR")?,
            _ => continue,
        }
        writeln!(page, "{help}")?;
    }
    for sub in sub.get_subcommands().filter(|sub| sub.get_name() != "help") {
        subcommand(page, &name, sub)?;
    }
    Ok(())
}

fn completions(out: &Path) -> Result<()> {
    for (mut command, _) in commands() {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, &name, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_prose_about_options_that_do_not_exist() {
        let mut known: BTreeSet<String> = BTreeSet::from(["help".into(), "version".into()]);
        fn gather(command: &Command, known: &mut BTreeSet<String>) {
            let long = command.get_arguments().filter_map(clap::Arg::get_long);
            known.extend(long.map(str::to_owned));
            command.get_subcommands().for_each(|sub| gather(sub, known));
        }
        commands().iter().for_each(|(command, _)| gather(command, &mut known));
        let prose = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
        for (command, section) in commands() {
            let text =
                fs::read_to_string(prose.join(format!("{}.{section}.in", command.get_name())))
                    .unwrap();
            let text = text.replace("\\-", "-");
            // Our own names only: examples show other programs' options as well.
            for line in text.lines().filter(|line| line.starts_with(".B --")) {
                let option = line.trim_start_matches(".B --");
                let end = option
                    .find(|letter: char| !letter.is_ascii_lowercase() && letter != '-')
                    .unwrap_or(option.len());
                assert!(known.contains(&option[..end]), "--{} in the manual", &option[..end]);
            }
        }
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
        assert!(page.contains(".SH TIEXECCTL STORE SETUP\n"), "commands of a command");
        assert!(page.contains("\\-\\-all\\-unused"));
        fs::remove_dir_all(out).unwrap();
    }
}
