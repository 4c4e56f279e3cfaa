//! `tiexecctl enable`, `tiexecctl disable`: units of TiExec's beside services, which put the text of a service onto huge
//! pages after each start. No file of the service itself is changed.

mod manager;
mod own_file;
mod own_units;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use manager::{Manager, Refusal};
use own_file::State;
use own_units::{Part, Service};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::SCHEMA;
use tiexec_engine::wait_exec;
use tiexec_remap::host_pages;
use tiexec_sys::thp;

use super::targets::select;
use super::{attach, print, told, warm};
use crate::exit;
use crate::options::{Ctl, CtlCommand, Disable, Enable, Revert, Targets};
use crate::stdio::{answer, warn};

const PARTS: [Part; 2] = [Part::Attach, Part::Warm];

/// Runs `enable`; returns the exit status.
pub(super) fn run(options: &Enable) -> u8 {
    let manager = Manager { user: options.user };
    if options.replace_drop_ins {
        return replace_drop_ins(manager);
    }
    // The options are checked now. Otherwise a malformed option would show only at the next start, in the journal.
    if let Err(error) = attach_command(manager, "x.service", &options.options, true) {
        return answer(error, exit::USAGE, exit::FAILED);
    }
    let setup = running(manager, ", or start the program by tiexec")
        .and_then(|()| Setup::find(manager, options.runtime));
    let setup = match setup {
        Ok(setup) => setup,
        Err(why) => return failed("enable", &options.units, &why),
    };
    let mut statuses = Vec::new();
    let mut enabled = Vec::new();
    for name in &options.units {
        let one = enable_one(name, options, &setup);
        statuses.push(one.as_ref().map_or_else(|status| *status, |enabled| enabled.status));
        enabled.extend(one);
    }
    if enabled.iter().any(|one| one.changed)
        && let Err(status) = manager.reload(&options.units)
    {
        return status;
    }
    for one in enabled.iter().filter(|_| options.now) {
        statuses.push(attach_now(manager, &one.unit, options));
    }
    exit::together(&statuses)
}

/// The places and the program for the units of one manager.
struct Setup {
    manager: Manager,
    /// The directory for the files of this call.
    directory: PathBuf,
    /// That directory and the other one: the files of both count.
    both: [PathBuf; 2],
    /// The path of `tiexecctl`, as a word for systemd.
    program: String,
    /// The text of the template, if no package has installed it.
    template: Option<String>,
}

impl Setup {
    /// Finds the template of a package. Without one, this program's own path is used.
    ///
    /// # Errors
    /// The message, without the units' names.
    fn find(manager: Manager, runtime: bool) -> Result<Self, String> {
        let both = [manager.directory(false)?, manager.directory(true)?];
        let directory = both[usize::from(runtime)].clone();
        let by_hand = both.clone().map(|units| units.join(own_units::NAME));
        let is_ours = by_hand.iter().any(|path| matches!(own_file::read(path), Ok(State::Ours(_))));
        let installed = manager.program(own_units::NAME).filter(|_| !is_ours);
        let program = match &installed {
            Some(path) => {
                let path = path.to_str().ok_or("the path of tiexecctl in its unit is not UTF-8")?;
                own_file::word(path)?
            }
            None => own_path(manager)?,
        };
        let template = installed.is_none();
        let template = template.then(|| own_units::template_by_hand(&program, manager.user));
        Ok(Self { manager, directory, both, program, template })
    }

    /// Writes the template, if it is needed. Returns whether it has changed.
    fn put_template(&self) -> Result<bool, u8> {
        let Some(text) = &self.template else { return Ok(false) };
        let path = self.directory.join(own_units::NAME);
        match own_file::read(&path).map_err(|error| not_written(&path, &error))? {
            State::Ours(found) if found == *text => Ok(false),
            // The administrator has masked it, or has written one that runs nothing.
            State::Edited => Err(kept("write", &path)),
            _ => own_file::write(&path, text)
                .map(|()| true)
                .map_err(|error| not_written(&path, &error)),
        }
    }

    /// Makes a service want TiExec's units. `options` and the file to warm are words for systemd.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already, and the files are as before.
    fn enable(&self, name: &str, options: &str, warmed: Option<&str>) -> Result<Done, u8> {
        let service = Service { name, user: self.manager.user };
        let fail = |why: String| {
            warn(format_args!("cannot enable {}: {why}", name.shown()));
            exit::FAILED
        };
        let units = self.directory.as_path();
        let texts = [
            service.attach_text(&self.program, options),
            warmed.map(|file| service.warm_text(&self.program, file)),
        ];
        let is_runtime = units == self.both[1];
        let replaced = self.replaced(service)?;
        // systemd prefers the files that stay at a boot, or reads both.
        let lasting = service.made(&self.both[0]);
        if let Some(first) = lasting.first().filter(|_| is_runtime) {
            if service.has(&self.both[0], &texts) {
                let (changed, status) = remove_all(&replaced);
                return Ok(Done {
                    changed,
                    link: service.link(Part::Attach, &self.both[0]),
                    status,
                });
            }
            return Err(fail(format!(
                "{} lasts beyond the next boot; fix: leave out --runtime, or first: tiexecctl disable {}{}",
                first.shown(),
                self.manager.scope(),
                name.shown()
            )));
        }
        let mut befores = Vec::new();
        for (part, text) in PARTS.into_iter().zip(texts) {
            let path = service.file(part, units);
            match own_file::read(&path).map_err(|error| not_written(&path, &error))? {
                State::Edited => return Err(kept("write", &path)),
                before => befores.push((path, before, text)),
            }
        }
        let is_new = self.put_template()?;
        let mut undo = Vec::new();
        let mut links = Vec::new();
        let mut done = || {
            for (path, before, text) in &befores {
                let after = text.clone().map_or(State::Missing, State::Ours);
                if *before != after {
                    put(path, &after).map_err(|error| format!("{}: {error}", path.shown()))?;
                    undo.push((path, before));
                }
            }
            let unit = service.unit(Part::Attach);
            for (path, _) in &undo {
                let complaints = self.manager.complaints(&unit, &path.to_string_lossy());
                if let Some(first) = complaints.first() {
                    return Err(format!("systemd-analyze verify: {}", first.shown()));
                }
            }
            for part in PARTS.into_iter().filter(|part| *part == Part::Attach || warmed.is_some()) {
                let path = service.link(part, units);
                if !is_link(&path) {
                    self.manager.enable(&service.unit(part), is_runtime)?;
                    links.push(path);
                }
            }
            Ok(())
        };
        if let Err(why) = done() {
            let undone = undo.iter().all(|(path, before)| put(path, before).is_ok())
                & links.iter().all(|path| own_file::remove(path).is_ok());
            remove_template(&self.both);
            let not = if undone { "" } else { " not" };
            return Err(fail(format!("{why}; what was written was{not} taken back")));
        }
        let mut removed = replaced;
        removed.extend(
            Some(service.link(Part::Warm, units)).filter(|path| warmed.is_none() && is_link(path)),
        );
        // From now on the units do what these files did. The units stay if a file cannot be removed.
        let (any, status) = remove_all(&removed);
        let changed = any || is_new || undo.len() + links.len() > 0;
        Ok(Done { changed, link: service.link(Part::Attach, units), status })
    }

    /// Returns the paths of what the files of this call replace: the drop-ins that an earlier version wrote for a service,
    /// and what holds until the next boot.
    ///
    /// # Errors
    /// The exit status: somebody has edited one. The message is on stderr already.
    fn replaced(&self, service: Service<'_>) -> Result<Vec<PathBuf>, u8> {
        let mut paths: Vec<_> =
            self.both.iter().map(|units| own_units::earlier_path(units, service.name)).collect();
        if self.directory == self.both[0] {
            paths.extend(service.made(&self.both[1]));
        }
        paths.sort_unstable();
        paths.dedup();
        let mut found = Vec::new();
        for path in paths {
            match state(&path) {
                Ok(State::Ours(_)) => found.push(path),
                Ok(State::Edited) => return Err(kept("replace", &path)),
                Ok(State::Missing) | Err(_) => {}
            }
        }
        Ok(found)
    }
}

/// What [`Setup::enable`] did.
struct Done {
    /// Whether anything has changed.
    changed: bool,
    /// The path of the link by which the service wants the attach.
    link: PathBuf,
    /// The exit status: a file that is replaced may have stayed. The message is on stderr already.
    status: u8,
}

/// Removes files. Returns whether one was removed, and the exit status.
fn remove_all(paths: &[PathBuf]) -> (bool, u8) {
    let (mut any, mut status) = (false, exit::OK);
    for path in paths {
        match own_file::remove(path) {
            Ok(()) => any = true,
            Err(error) => status = not_removed(path, &error),
        }
    }
    (any, status)
}

/// Brings a file into a state.
fn put(path: &Path, state: &State) -> io::Result<()> {
    match state {
        State::Ours(text) => own_file::write(path, text),
        _ => own_file::remove(path),
    }
}

/// Returns the state of a file or a link of `enable`.
fn state(path: &Path) -> io::Result<State> {
    let is_wants = path.parent().is_some_and(|parent| parent.extension() == Some("wants".as_ref()));
    match is_wants {
        // Only TiExec makes a link of this name, and systemd ignores a file that is not a link.
        true if is_link(path) => Ok(State::Ours(String::new())),
        true => Ok(State::Edited),
        false => own_file::read(path),
    }
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

/// The outcome for one unit.
struct Enabled {
    /// The unit's own name.
    unit: String,
    /// Whether a file or a link changed.
    changed: bool,
    /// The exit status.
    status: u8,
}

/// Enables one unit.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn enable_one(name: &str, options: &Enable, setup: &Setup) -> Result<Enabled, u8> {
    let manager = setup.manager;
    let unit = found(manager, "enable", name)?;
    let name = unit.name.as_str();
    let fail = |why: String| {
        warn(format_args!("cannot enable {}: {why}", name.shown()));
        exit::FAILED
    };
    let warmed = match options.warm {
        true => {
            let program = program(manager, &unit).map_err(fail)?;
            Some(own_file::word(&program).map_err(fail)?)
        }
        false => None,
    };
    let words: Result<Vec<_>, _> =
        options.options.iter().map(|option| own_file::word(option)).collect();
    let words = words.map_err(fail)?.join(" ");
    let Done { changed, link, status } = setup.enable(name, &words, warmed.as_deref())?;
    // No process belongs to a template.
    let now = match (options.now || name.contains("@."), manager.user) {
        (true, _) => String::new(),
        (false, false) => format!("; now: tiexecctl attach --unit {}", name.shown()),
        (false, true) => format!("; now: tiexecctl attach --user {}", name.shown()),
    };
    let what = if changed { "wrote" } else { "is there already:" };
    let scope = manager.scope();
    let nothing = nothing_huge(manager, name, options);
    if let Some((why, fix)) = &nothing {
        warn(format_args!("none of the text of {} can be huge{why}; fix: {fix}", name.shown()));
    }
    let split = thp::pages().and_then(host_pages::are_split);
    if split == Some(true)
        && !name.contains("@.")
        && let Some(warning) = host_pages::warning_of_today(name.as_bytes())
    {
        let name = name.shown();
        let measure = host_pages::how_to_measure(&format!("{scope}{name}"));
        warn(format_args!("{name}: {warning}; {measure}"));
    }
    let printed = if options.json {
        let object = serde_json::json!({
            "schema": SCHEMA,
            "kind": "enable",
            "unit": name,
            "link": link.shown().to_string(),
            "changed": changed,
            "nothing_huge": nothing.is_some(),
            "host_splits": split,
            "fix": nothing.map(|(_, fix)| fix),
        });
        print(&(escape::json(&object) + "\n"))
    } else {
        print(&format!(
            "{}: {what} {}; undo: tiexecctl disable {scope}{}{now}\n",
            name.shown(),
            link.shown(),
            name.shown()
        ))
    };
    Ok(Enabled { unit: unit.name, changed, status: told(status, printed) })
}

/// Returns why none of the text of a running unit can be huge with these options of attach, and the fix; `None` if some
/// can, or if that is not known.
fn nothing_huge(manager: Manager, unit: &str, enable: &Enable) -> Option<(String, String)> {
    let active = manager.active(unit).ok()?;
    let plan = |options: &[String]| {
        let plans = active.iter().map(|unit| {
            let command = attach_command(manager, unit, options, false).ok()?;
            let CtlCommand::Attach(options) = command else { return None };
            attach::rehearse_selected(&options)
        });
        plans.collect::<Option<Vec<_>>>()?.into_iter().max_by_key(attach::Rehearsed::total)
    };
    let best = plan(&enable.options).filter(|best| best.total() == 0)?;
    let (scope, unit) = (manager.scope(), unit.shown());
    let with = |edges: &str| {
        let mut options = without_edges(&enable.options);
        options.push(format!("--edges={edges}"));
        options
    };
    let helps = |options: &Vec<String>| plan(options).is_some_and(|plan| plan.total() > 0);
    let fix = match ["aggressive", "pad"].map(with).into_iter().find(helps) {
        Some(options) => {
            // The next `enable` removes what it does not name.
            let warm = if enable.warm { "--warm " } else { "" };
            let runtime = if enable.runtime { "--runtime " } else { "" };
            let options = escape::in_shell(options);
            format!("tiexecctl enable {scope}{runtime}{warm}{unit} -- {options}")
        }
        None => format!("tiexecctl disable {scope}{unit}"),
    };
    Some((best.because(), fix))
}

/// Returns the options of attach without `--edges`, whose value may be a word of its own.
fn without_edges(options: &[String]) -> Vec<String> {
    let mut left = options.iter();
    let mut others = Vec::new();
    while let Some(option) = left.next() {
        if option == "--edges" {
            left.next();
        } else if !option.starts_with("--edges=") {
            others.push(option.clone());
        }
    }
    others
}

/// Enables the services that an earlier version enabled by drop-ins, with the same options, and removes the drop-ins.
/// Returns the exit status.
fn replace_drop_ins(manager: Manager) -> u8 {
    let all = || vec!["all services".to_owned()];
    let both = match running(manager, "")
        .and_then(|()| Ok([manager.directory(false)?, manager.directory(true)?]))
    {
        Ok(both) => both,
        Err(why) => return failed("replace the drop-ins of", &all(), &why),
    };
    let mut statuses = Vec::new();
    let mut changed = false;
    for (units, runtime) in both.iter().zip([false, true]) {
        // TiExec's own units have drop-ins of the same name.
        for name in having(std::slice::from_ref(units), &[".d"], |units, name| {
            !Service { name, user: manager.user }.is_ours()
                && own_units::earlier_path(units, name).symlink_metadata().is_ok()
        }) {
            let path = own_units::earlier_path(units, &name);
            let text = match own_file::read(&path) {
                Ok(State::Ours(text)) => text,
                Ok(_) => {
                    statuses.push(kept("replace", &path));
                    continue;
                }
                Err(error) => {
                    statuses.push(not_removed(&path, &error));
                    continue;
                }
            };
            let setup = match Setup::find(manager, runtime) {
                Ok(setup) => setup,
                Err(why) => {
                    statuses.push(failed("enable", &[name], &why));
                    continue;
                }
            };
            let had = own_units::earlier(&text);
            statuses.push(match setup.enable(&name, &had.options, had.warmed.as_deref()) {
                Ok(Done { link, status, .. }) => {
                    changed = true;
                    let (path, link) = (path.shown(), link.shown());
                    match status {
                        exit::OK => print(&format!("{}: {link} replaces {path}\n", name.shown())),
                        failed => failed,
                    }
                }
                Err(status) => status,
            });
        }
    }
    if changed && let Err(status) = manager.reload(&all()) {
        return status;
    }
    exit::together(&statuses)
}

/// Runs `disable`; returns the exit status.
pub(super) fn run_disable(options: &Disable) -> u8 {
    let manager = Manager { user: options.user };
    // Listing all units needs no systemd. The script of a package also does so in a new root.
    let needed = if options.all { Ok(()) } else { running(manager, "") };
    let directories =
        needed.and_then(|()| Ok([manager.directory(false)?, manager.directory(true)?]));
    let directories = match directories {
        Ok(directories) => directories,
        Err(why) if options.all => return failed("disable", &["all services".to_owned()], &why),
        Err(why) => return failed("disable", &options.units, &why),
    };
    let user = manager.user;
    let enabled = if options.all {
        let linked = having(&directories, &[".wants", ".d"], |units, name| {
            let service = Service { name, user };
            service.is_enabled(units)
        });
        // `systemctl disable` removes the links and leaves the files.
        let left = having(&directories, &[".d", ""], |units, name| {
            own_units::service_of(name)
                .is_some_and(|name| Service { name: &name, user }.has_file(units))
        });
        let left = left.iter().filter_map(|unit| own_units::service_of(unit));
        linked.into_iter().chain(left).collect::<BTreeSet<_>>().into_iter().collect()
    } else {
        options.units.clone()
    };
    let mut statuses = Vec::new();
    let mut removed = false;
    for name in &enabled {
        let (status, any) = disable_one(manager, name, &directories, options);
        statuses.push(status);
        removed |= any;
    }
    if !options.dry_run {
        removed |= remove_template(&directories);
    }
    if removed
        && running(manager, "").is_ok()
        && let Err(status) = manager.reload(&enabled)
    {
        return status;
    }
    exit::together(&statuses)
}

/// Removes the templates that `enable` has written, if no service wants an instance. Returns whether one was removed.
fn remove_template(directories: &[PathBuf]) -> bool {
    let in_use = |units: &Path, name: &str| {
        let service = Service { name, user: false };
        service.unit(Part::Attach).starts_with("tiexec@")
            && is_link(&service.link(Part::Attach, units))
    };
    if !having(directories, &[".wants"], in_use).is_empty() {
        return false;
    }
    let templates = directories.iter().map(|units| units.join(own_units::NAME));
    let ours = templates.filter(|path| matches!(own_file::read(path), Ok(State::Ours(_))));
    let removed: Vec<_> = ours.map(|path| own_file::remove(&path).is_ok()).collect();
    removed.contains(&true)
}

/// Lists the services whose directories with these endings `has` accepts.
fn having(
    directories: &[PathBuf],
    endings: &[&str],
    has: impl Fn(&Path, &str) -> bool,
) -> Vec<String> {
    let mut found = BTreeSet::new();
    for units in directories {
        for entry in fs::read_dir(units).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let service = endings.iter().find_map(|ending| name.strip_suffix(ending));
            found.extend(service.filter(|service| has(units, service)).map(str::to_owned));
        }
    }
    found.into_iter().collect()
}

impl Service<'_> {
    /// Lists the files and links of `enable` for the service below a directory that are there.
    fn made(self, units: &Path) -> Vec<PathBuf> {
        let parts = PARTS.into_iter();
        let parts = parts.flat_map(|part| [self.link(part, units), self.file(part, units)]);
        let all = parts.chain([own_units::earlier_path(units, self.name)]);
        all.filter(|path| path.symlink_metadata().is_ok()).collect()
    }

    /// Returns whether the directory has these texts for TiExec's units, and the links that they need.
    fn has(self, units: &Path, texts: &[Option<String>; 2]) -> bool {
        PARTS.into_iter().zip(texts).all(|(part, text)| {
            let wanted = text.clone().map_or(State::Missing, State::Ours);
            let needs_link = part == Part::Attach || text.is_some();
            own_file::read(&self.file(part, units)).is_ok_and(|found| found == wanted)
                && is_link(&self.link(part, units)) == needs_link
        })
    }

    /// Returns whether a file of `enable` is there. A whole unit may be the administrator's own.
    fn has_file(self, units: &Path) -> bool {
        PARTS.into_iter().any(|part| {
            let path = self.file(part, units);
            match own_file::read(&path) {
                Ok(State::Ours(_)) => true,
                Ok(State::Edited) => own_file::is_drop_in(&path),
                Ok(State::Missing) | Err(_) => false,
            }
        })
    }

    fn is_enabled(self, units: &Path) -> bool {
        self.name.ends_with(".service") && !self.is_ours() && !self.made(units).is_empty()
    }
}

/// Removes the files and links for one unit. Returns the exit status, and whether one was removed.
fn disable_one(
    manager: Manager,
    name: &str,
    directories: &[PathBuf],
    options: &Disable,
) -> (u8, bool) {
    let user = manager.user;
    let given = select::with_kind(name);
    // If the unit is masked or gone now, what belongs to it is still found under the unit's own name.
    let is_there = directories.iter().any(|units| Service { name: &given, user }.is_enabled(units));
    let unit = if is_there {
        given
    } else {
        match found(manager, "disable", name) {
            Ok(unit) => unit.name,
            Err(status) => return (status, false),
        }
    };
    let service = Service { name: &unit, user };
    let (mut status, mut printed) = (exit::OK, exit::OK);
    let (mut removed, mut would) = (false, false);
    for path in directories.iter().flat_map(|units| service.made(units)) {
        let done = match state(&path) {
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
            Ok(State::Ours(_)) => own_file::remove(&path),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                removed = true;
                let line = format!("{}: removed {}\n", unit.shown(), path.shown());
                printed = told(printed, print(&line));
            }
            Err(error) => status = not_removed(&path, &error),
        }
    }
    if !removed && !would && status == exit::OK {
        printed = print(&format!("{}: is not enabled\n", unit.shown()));
    }
    if options.now && status == exit::OK {
        // TiExec's unit may still wait for the program that the service executes.
        status = match manager.stop(&service.unit(Part::Attach)) {
            Ok(()) => revert_now(manager, &unit),
            Err(why) => failed("stop the attach to", std::slice::from_ref(&unit), &why),
        };
    }
    (told(status, printed), removed)
}

/// Finds a unit.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn found(manager: Manager, doing: &str, name: &str) -> Result<manager::Unit, u8> {
    let full = select::with_kind(name);
    if (Service { name: &full, user: manager.user }).is_ours() {
        warn(format_args!(
            "cannot {doing} {}: it is a unit of TiExec's; fix: name the service beside which it runs",
            full.shown()
        ));
        return Err(exit::USAGE);
    }
    manager.find(&full).map_err(|refusal| match refusal {
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
fn attach_now(manager: Manager, unit: &str, enable: &Enable) -> u8 {
    let json = enable.json;
    each_active(manager, unit, json, |unit| {
        match attach_command(manager, unit, &enable.options, false) {
            Ok(CtlCommand::Attach(mut options)) => {
                options.common.json = json;
                attach::run(&options)
            }
            Ok(_) => exit::USAGE,
            Err(error) => answer(error, exit::USAGE, exit::FAILED),
        }
    })
}

fn revert_now(manager: Manager, unit: &str) -> u8 {
    each_active(manager, unit, false, |unit| {
        let name = Some(unit.to_owned());
        let (unit, user) = if manager.user { (None, name) } else { (name, None) };
        attach::run_revert(&Revert {
            targets: Targets { unit, user, ..Default::default() },
            ..Revert::default()
        })
    })
}

fn each_active(manager: Manager, unit: &str, quiet: bool, one: impl Fn(&str) -> u8) -> u8 {
    let active = match manager.active(unit) {
        Ok(active) => active,
        Err(why) => return failed("ask systemd about", &[unit.to_owned()], &why),
    };
    if active.is_empty() && !quiet {
        return print(&format!("{}: does not run\n", unit.shown()));
    }
    exit::together(&active.iter().map(|unit| one(unit)).collect::<Vec<u8>>())
}

/// Parses the attach command that the options make. With `at_start`, makes the command of TiExec's unit.
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

/// Programs that execute another one, and stay in no process.
const WRAPPERS: [&str; 10] = [
    "tiexec", "env", "numactl", "taskset", "chrt", "nice", "ionice", "setpriv", "stdbuf", "setarch",
];

/// Returns the program to warm: the program of the running service, or else of `ExecStart=`.
///
/// # Errors
/// Both are scripts, or programs that execute another one.
fn program(manager: Manager, unit: &manager::Unit) -> Result<String, String> {
    let is_wrapper = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        WRAPPERS.iter().any(|wrapper| name == *wrapper)
    };
    // Root's units open the file at each start, so no other user may choose it.
    let stays = |path: &PathBuf| {
        let executes_another = wait_exec::executes_another(path.as_os_str().as_encoded_bytes());
        !executes_another && !is_wrapper(path) && warm::is_trusted_elf(path)
    };
    let running = manager.running_program(&unit.name);
    let runs = running.is_some();
    let program = running.filter(stays).or_else(|| unit.program.clone().filter(stays));
    let program = program.and_then(|path| path.into_os_string().into_string().ok());
    program.ok_or_else(|| {
        // The program of a service that runs is known.
        let fix = match runs {
            true => "leave out --warm".to_owned(),
            false => {
                let scope = manager.scope();
                format!("systemctl {scope}start {}, then enable it again", unit.name.shown())
            }
        };
        format!(
            "cannot tell which program it runs: ExecStart= names a script, a program that executes another one, or a file that \
             another user could replace; fix: {fix}"
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
    let path = own.to_str().filter(|path| own_file::word(path).as_deref() == Ok(*path));
    path.map(str::to_owned).ok_or_else(|| {
        format!("{} is not a path for a unit; fix: install it below /usr", own.shown())
    })
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

fn not_removed(path: &Path, error: &io::Error) -> u8 {
    warn(format_args!("cannot remove {}: {}", path.shown(), cause(error)));
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
