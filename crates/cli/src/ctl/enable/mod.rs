//! `tiexecctl enable`, `tiexecctl disable`: drop-ins that put the text of a service onto huge pages at each start.

mod drop_in;
mod manager;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use drop_in::State;
use manager::{Manager, Refusal};
use tiexec_core::escape::AsShown;
use tiexec_engine::wait_exec;

use super::{attach, print, told};
use crate::exit;
use crate::options::{Ctl, CtlCommand, Disable, Enable, Revert, Targets};
use crate::stdio::{answer, warn};

/// The time limit of `warm` before a start, in seconds.
const WARM: &str = "10";

/// Runs `enable`; returns the exit status.
pub(super) fn run(options: &Enable) -> u8 {
    let manager = Manager { user: options.user };
    // The options are checked now. Otherwise a malformed option would show only at the next start, in the journal.
    if let Err(error) = attach_command(manager, "x.service", &options.options, true) {
        return answer(error, exit::USAGE, exit::FAILED);
    }
    let setup = running(manager, ", or start the program by tiexec")
        .and_then(|()| Ok((manager.directory(options.runtime)?, own_path(manager)?)));
    let (directory, own) = match setup {
        Ok(setup) => setup,
        Err(why) => return failed("enable", &options.units, &why),
    };
    let mut statuses = Vec::new();
    let mut enabled = Vec::new();
    for name in &options.units {
        let one = enable_one(manager, name, options, &directory, &own);
        statuses.push(one.as_ref().map_or_else(|status| *status, |enabled| enabled.printed));
        enabled.extend(one);
    }
    if enabled.iter().any(|one| one.changed)
        && let Err(why) = manager.systemctl(&["daemon-reload"])
    {
        return failed("reload the units of", &options.units, &why);
    }
    for one in enabled.iter().filter(|_| options.now) {
        statuses.push(attach_now(manager, &one.unit, &options.options));
    }
    together(&statuses)
}

/// The outcome for one unit.
struct Enabled {
    /// The unit's own name.
    unit: String,
    /// Whether the drop-in changed.
    changed: bool,
    /// The exit status of printing the line about the unit.
    printed: u8,
}

/// Writes the drop-in of one unit.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn enable_one(
    manager: Manager,
    name: &str,
    options: &Enable,
    directory: &Path,
    own: &str,
) -> Result<Enabled, u8> {
    let unit = found(manager, "enable", name)?;
    let name = unit.name.as_str();
    let fail = |why: String| {
        warn(format_args!("cannot enable {}: {why}", name.shown()));
        exit::FAILED
    };
    let mut commands = Vec::new();
    if options.warm {
        let program = program(manager, &unit).map_err(fail)?;
        let program = drop_in::word(&program).map_err(fail)?;
        commands.push(format!(
            "ExecStartPre=-+/usr/bin/timeout {WARM} {own} warm --quiet --deps {program}"
        ));
    }
    let selector = if manager.user { "--user" } else { "--unit" };
    let mut command = format!("ExecStartPost=-+{own} attach {selector} %n --quiet --wait-exec");
    for option in &options.options {
        command += " ";
        command += &drop_in::word(option).map_err(fail)?;
    }
    commands.push(command);
    let text = drop_in::text(&commands);
    let path = drop_in::path(directory, name);
    let before = drop_in::read(&path).map_err(|error| not_written(&path, &error))?;
    let changed = before != State::Ours(text.clone());
    if before == State::Edited {
        return Err(kept("write", &path));
    }
    if changed {
        drop_in::write(&path, &text).map_err(|error| not_written(&path, &error))?;
        let complaints = manager.complaints(name, &path.to_string_lossy());
        if let Some(first) = complaints.first() {
            let undone = match &before {
                State::Ours(text) => drop_in::write(&path, text),
                _ => drop_in::remove(&path),
            };
            let not = if undone.is_err() { " not" } else { "" };
            return Err(fail(format!(
                "systemd-analyze verify: {}; the file was{not} taken back",
                first.shown()
            )));
        }
    }
    // No process belongs to a template.
    let now = match (options.now || name.contains("@."), manager.user) {
        (true, _) => String::new(),
        (false, false) => format!("; now: tiexecctl attach --unit {}", name.shown()),
        (false, true) => format!("; now: tiexecctl attach --user {}", name.shown()),
    };
    let what = if changed { "wrote" } else { "is there already:" };
    let scope = if manager.user { "--user " } else { "" };
    let printed = print(&format!(
        "{}: {what} {}; undo: tiexecctl disable {scope}{}{now}\n",
        name.shown(),
        path.shown(),
        name.shown()
    ));
    Ok(Enabled { unit: unit.name, changed, printed })
}

/// Runs `disable`; returns the exit status.
pub(super) fn run_disable(options: &Disable) -> u8 {
    let manager = Manager { user: options.user };
    // Listing all drop-ins needs no systemd. The script of a package also does so in a new root.
    let needed = if options.all && options.dry_run { Ok(()) } else { running(manager, "") };
    let directories =
        needed.and_then(|()| Ok([manager.directory(false)?, manager.directory(true)?]));
    let directories = match directories {
        Ok(directories) => directories,
        Err(why) if options.all => return failed("disable", &["all services".to_owned()], &why),
        Err(why) => return failed("disable", &options.units, &why),
    };
    let enabled = if options.all { enabled(&directories) } else { options.units.clone() };
    let mut statuses = Vec::new();
    let mut removed = false;
    for name in &enabled {
        let (status, any) = disable_one(manager, name, &directories, options);
        statuses.push(status);
        removed |= any;
    }
    if removed && let Err(why) = manager.systemctl(&["daemon-reload"]) {
        return failed("reload the units of", &enabled, &why);
    }
    together(&statuses)
}

/// Lists the units that have a drop-in, edited or not.
fn enabled(directories: &[PathBuf]) -> Vec<String> {
    let all = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let units = all.flatten().filter_map(|entry| {
        let unit = entry.file_name().to_str()?.strip_suffix(".d")?.to_owned();
        let path = drop_in::path(entry.path().parent()?, &unit);
        path.symlink_metadata().is_ok().then_some(unit)
    });
    units.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Removes the drop-ins of one unit. Returns the exit status, and whether a drop-in was removed.
fn disable_one(
    manager: Manager,
    name: &str,
    directories: &[PathBuf],
    options: &Disable,
) -> (u8, bool) {
    let given = attach::with_kind(name);
    let path_of = |unit: &str, directory: &Path| drop_in::path(directory, unit);
    // If the unit is masked or gone now, its drop-in is still found under the unit's own name.
    let is_there = |unit: &str| {
        directories.iter().any(|directory| path_of(unit, directory).symlink_metadata().is_ok())
    };
    let unit = if is_there(&given) {
        given
    } else {
        match found(manager, "disable", name) {
            Ok(unit) => unit.name,
            Err(status) => return (status, false),
        }
    };
    let (mut status, mut printed) = (exit::OK, exit::OK);
    let (mut removed, mut would) = (false, false);
    for directory in directories {
        let path = path_of(&unit, directory);
        let done = match drop_in::read(&path) {
            Ok(State::Missing) => continue,
            Ok(State::Edited) => {
                status = kept("remove", &path);
                continue;
            }
            Ok(State::Ours(_)) if options.dry_run => {
                would = true;
                let line = format!("{}: would remove {}\n", unit.shown(), path.shown());
                printed = told(printed, print(&line));
                continue;
            }
            Ok(State::Ours(_)) => drop_in::remove(&path),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                removed = true;
                let line = format!("{}: removed {}\n", unit.shown(), path.shown());
                printed = told(printed, print(&line));
            }
            Err(error) => {
                warn(format_args!("cannot remove {}: {}", path.shown(), cause(&error)));
                status = exit::FAILED;
            }
        }
    }
    if !removed && !would && status == exit::OK {
        printed = print(&format!("{}: is not enabled\n", unit.shown()));
    }
    if options.now && status == exit::OK {
        status = revert_now(manager, &unit);
    }
    (told(status, printed), removed)
}

/// Finds a unit.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn found(manager: Manager, doing: &str, name: &str) -> Result<manager::Unit, u8> {
    manager.find(&attach::with_kind(name)).map_err(|refusal| match refusal {
        Refusal::Unit(why) => {
            warn(format_args!("cannot {doing} {why}"));
            exit::USAGE
        }
        Refusal::NoAnswer(why) => {
            warn(format_args!("cannot {doing} {}: {why}", name.shown()));
            exit::FAILED
        }
    })
}

/// Attaches to the running processes of the unit. For a template, attaches to those of all instances.
fn attach_now(manager: Manager, unit: &str, options: &[String]) -> u8 {
    each_active(manager, unit, |unit| match attach_command(manager, unit, options, false) {
        Ok(CtlCommand::Attach(options)) => attach::run(&options),
        Ok(_) => exit::USAGE,
        Err(error) => answer(error, exit::USAGE, exit::FAILED),
    })
}

fn revert_now(manager: Manager, unit: &str) -> u8 {
    each_active(manager, unit, |unit| {
        let name = Some(unit.to_owned());
        let (unit, user) = if manager.user { (None, name) } else { (name, None) };
        attach::run_revert(&Revert {
            targets: Targets { unit, user, ..Default::default() },
            all: false,
            dry_run: false,
            json: false,
            quiet: false,
            started_at: None,
            after: None,
        })
    })
}

fn each_active(manager: Manager, unit: &str, one: impl Fn(&str) -> u8) -> u8 {
    let active = match manager.active(unit) {
        Ok(active) => active,
        Err(why) => return failed("ask systemd about", &[unit.to_owned()], &why),
    };
    if active.is_empty() {
        return print(&format!("{}: does not run\n", unit.shown()));
    }
    together(&active.iter().map(|unit| one(unit)).collect::<Vec<u8>>())
}

/// Parses the attach command that the options make. With `at_start`, makes the command for the drop-in.
fn attach_command(
    manager: Manager,
    unit: &str,
    options: &[String],
    at_start: bool,
) -> Result<CtlCommand, clap::Error> {
    let selector = if manager.user { "--user" } else { "--unit" };
    let words = ["tiexecctl", "attach", selector, unit].into_iter();
    let words =
        words.chain(if at_start { &["--quiet", "--wait-exec"][..] } else { &[] }.iter().copied());
    let words = words.chain(options.iter().map(String::as_str));
    Ctl::try_parse_from(words).map(|ctl| ctl.command)
}

/// Returns the program to warm: the program of the running service, or else of `ExecStart=`.
///
/// # Errors
/// Both are scripts, or programs that execute another one.
fn program(manager: Manager, unit: &manager::Unit) -> Result<String, String> {
    let stays = |path: &PathBuf| {
        !wait_exec::executes_another(path.as_os_str().as_encoded_bytes())
            && fs::File::open(path).is_ok_and(|mut file| {
                let mut magic = [0; 4];
                io::Read::read_exact(&mut file, &mut magic).is_ok() && &magic == b"\x7fELF"
            })
    };
    let running = manager.running_program(&unit.name).filter(stays);
    let program = running.or_else(|| unit.program.clone().filter(stays));
    let program = program.and_then(|path| path.into_os_string().into_string().ok());
    program.ok_or_else(|| {
        let fix = format!("systemctl start {}, then enable it again", unit.name.shown());
        format!(
            "cannot tell which program it runs: ExecStart= names a script or a shell; fix: {fix}"
        )
    })
}

/// Checks that systemd can be reached. `otherwise` follows the fix of the message.
fn running(manager: Manager, otherwise: &str) -> Result<(), String> {
    // The check of sd_booted(3).
    if manager.user || Path::new("/run/systemd/system").is_dir() {
        return manager.can_be_found();
    }
    Err(format!(
        "systemd does not run here (there is no /run/systemd/system); \
         fix: run it where systemd is PID 1{otherwise}"
    ))
}

/// Returns the path of this program. systemd will run it with root's rights, so no other user may be able to replace
/// it.
///
/// # Errors
/// Another user could replace the program, or systemd cannot parse the path.
fn own_path(manager: Manager) -> Result<String, String> {
    let own = std::env::current_exe()
        .and_then(|own| own.with_file_name("tiexecctl").canonicalize())
        .map_err(|error| format!("cannot find tiexecctl's own file: {error}; fix: install it"))?;
    let user = rustix::process::geteuid().as_raw();
    for part in own.ancestors() {
        let metadata = part.metadata().map_err(|error| format!("{}: {error}", part.shown()))?;
        let owner = metadata.uid();
        let is_owned = owner == 0 || manager.user && owner == user;
        let by_others =
            metadata.mode() & 0o022 != 0 && !(manager.user && metadata.mode() & 0o1000 != 0);
        if !is_owned || by_others {
            return Err(format!(
                "others than root may write to {}, and systemd would run {} as root; \
                 fix: install it, such as by `make install`",
                part.shown(),
                own.shown()
            ));
        }
    }
    let path = own.to_str().filter(|path| drop_in::word(path).as_deref() == Ok(*path));
    path.map(str::to_owned)
        .ok_or_else(|| format!("{} is no path for a unit; fix: install it below /usr", own.shown()))
}

/// Reports that an edited file is kept. Returns the exit status.
fn kept(doing: &str, path: &Path) -> u8 {
    warn(format_args!(
        "cannot {doing} {}: it was edited by hand; fix: remove it yourself: rm {}",
        path.shown(),
        path.word()
    ));
    exit::FAILED
}

fn not_written(path: &Path, error: &io::Error) -> u8 {
    warn(format_args!("cannot write {}: {}", path.shown(), cause(error)));
    exit::FAILED
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{error}; fix: run it as root"),
        _ => error.to_string(),
    }
}

fn failed(doing: &str, units: &[String], why: &str) -> u8 {
    let units: Vec<String> = units.iter().map(|unit| unit.shown().to_string()).collect();
    warn(format_args!("cannot {doing} {}: {why}", units.join(", ")));
    exit::FAILED
}

/// Combines the exit statuses.
fn together(statuses: &[u8]) -> u8 {
    match statuses.first() {
        None => exit::OK,
        Some(&first) if statuses.iter().all(|&status| status == first) => first,
        Some(_) => exit::PARTIAL,
    }
}
