//! The watch of a program's start, and the line about text that is still on base pages after the start.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::termios::{LocalModes, tcgetattr};
use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::proc::stat;
use tiexec_core::report::Report;
use tiexec_core::skip::{Reason, SkipReason};
use tiexec_engine::follow::companion::{self, Begun, Companion, UnderSubreaper};
use tiexec_engine::follow::counted::{self, Counted};
use tiexec_engine::follow::hand_over;
use tiexec_engine::follow::start::{self, Left};
use tiexec_engine::journal;
use tiexec_remap::Failure;
use tiexec_remap::records::first_today;
use tiexec_remap::store::Store;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process, thp};

use super::Launcher;
use super::report_output::Sink;
use crate::stdio::{and_fix, warn};

/// Most files that the line names.
const MOST_FILES: usize = 3;

/// The watch of the program's start.
pub(super) enum Watch {
    /// A companion that is about to begin.
    Begun(Begun),
    /// No companion, because somebody would count it.
    Counted(Counted),
    /// No companion, if the agent takes the program. The agent has not been asked yet.
    Agent,
}

impl Launcher {
    /// Starts the watch of the program's start, unless the settings say otherwise. Where an agent runs, no companion begins
    /// yet.
    pub(super) fn begin_watch(&self) -> Option<Watch> {
        let settings = &self.settings;
        if !settings.watches_start() || !settings.select.text() || self.dry_run {
            return None;
        }
        // The agent writes no report of this launch.
        let has_report = matches!(self.sink, Some(Sink::File(..)));
        if hand_over::may_listen() && hand_over::suits(settings) && !has_report {
            return Some(Watch::Agent);
        }
        self.begin_own_watch()
    }

    /// Starts a watch by a process beside the program, unless somebody would count that process.
    fn begin_own_watch(&self) -> Option<Watch> {
        let settings = &self.settings;
        if let Some(counted) = counted::by_whom() {
            return Some(Watch::Counted(counted));
        }
        if !companion::would_be_reaped() {
            if settings.verbose && !settings.quiet {
                warn(format_args!(
                    "cannot watch the start of {}: process 1 may not reap its children; fix: run the container with an \
                     init (podman run --init), or with --settle=10s",
                    self.name().shown()
                ));
            }
            return None;
        }
        let stderr = std::io::stderr();
        let is_terminal = stderr.is_terminal();
        let mut keep = Vec::with_capacity(2);
        if let Some(Sink::File(file, _)) = &self.sink {
            keep.push(file.as_fd());
        }
        // A pipe must end when the program closes it, so the companion keeps standard error open only if it is a
        // terminal.
        if is_terminal {
            keep.push(stderr.as_fd());
        }
        let ends = UnderSubreaper::Ends;
        let begun = companion::begin(None, ends, &keep, |program, _no_watch| {
            let mut tell = |report: &Report| {
                if let Some(sink @ Sink::File(..)) = &self.sink {
                    sink.write(&self.render(report));
                }
            };
            let mut left = |left: &Left| {
                if !settings.quiet && first_today(&left.exe) {
                    let line = line_of(left);
                    journal::note("start", &line, program);
                    if is_terminal && may_write_over(program) {
                        warn(line);
                    }
                }
            };
            start::watch(settings, program, &mut tell, &mut left);
        });
        // If the companion cannot start, the program runs without the watch.
        begun.ok().map(Watch::Begun)
    }

    /// Keeps the watch, unless the reason means that the program must be left alone.
    pub(super) fn keep_watch(&self, watch: Watch, alone: Option<&Failure>) {
        let is_wanted = alone.is_none_or(|why| may_come_to_text(why.reason));
        let (companion, counted) = match watch {
            Watch::Begun(begun) => match begun.finish() {
                Ok(Companion { pid, subreaper, .. }) => (pid, subreaper.map(Counted::Subreaper)),
                Err(_) => return,
            },
            Watch::Counted(counted) => (None, Some(counted)),
            Watch::Agent => {
                if is_wanted
                    && !hand_over::is_taken()
                    && let Some(watch) = self.begin_own_watch()
                {
                    self.keep_watch(watch, alone);
                }
                return;
            }
        };
        match companion {
            Some(companion) if is_wanted => {
                let _once = self.companion.set(companion);
            }
            Some(companion) => {
                let _already_gone = process::kill(companion);
                // The companion is a child of this process only if this process adopts orphans.
                let _reaped = process::wait(companion);
            }
            None => {}
        }
        if let Some(counted) = counted.filter(|_| is_wanted && self.settings.verbose) {
            let (name, pid) = (self.name().shown(), process::this().as_raw_nonzero());
            let later = for_later_starts(&counted);
            self.unless_quiet(format_args!(
                "{name}: no process watches its start, because {counted}: programs and libraries that come later \
                 stay on base pages; fix: tiexecctl attach {pid}; for later starts: {later}"
            ));
        }
    }

    /// Warns that somebody counts the companion, which the user has asked for.
    pub(super) fn say_counted(&self, counted: Option<&Counted>) {
        let Some(counted) = counted else { return };
        let (name, later) = (self.name().shown(), for_later_starts(counted));
        let option = if self.settings.follow { "--follow" } else { "--settle" };
        self.unless_quiet(format_args!(
            "{name}: {option} keeps one process more beside it, and {counted}; fix: leave out {option}; {later}"
        ));
    }

    /// Warns, unless the user wants no warnings.
    pub(super) fn unless_quiet(&self, message: impl std::fmt::Display) {
        if !self.settings.quiet {
            warn(message);
        }
    }
}

/// Returns what makes later starts huge without a process beside the program. The agent helps only where systemd runs, so not
/// in most containers.
fn for_later_starts(counted: &Counted) -> String {
    let is_service = matches!(counted, Counted::Service { .. });
    if is_service || Path::new("/run/systemd/system").is_dir() {
        return counted.for_later_starts();
    }
    "tiexec --until-exec=NAME, if it executes the program NAME".to_owned()
}

/// Returns whether a program may get other text later, if its own text is left alone for this reason.
fn may_come_to_text(reason: Reason) -> bool {
    let Reason::Skipped(why) = reason else { return false };
    // A tracer has no rights over the program of a privileged or unreadable image.
    !matches!(why, SkipReason::Disabled | SkipReason::PrivilegedImage | SkipReason::UnreadableImage)
}

/// Describes the text that is left on base pages, and the commands that help.
fn line_of(left: &Left) -> String {
    let name = left.exe.rsplit(|&byte| byte == b'/').next().unwrap_or_default().shown();
    let (rest, all) = (mib(left.bytes), mib(left.text_bytes));
    let pid = left.pid.as_raw_nonzero();
    let detail = left.detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
    let files =
        left.files.iter().take(MOST_FILES).map(String::as_str).collect::<Vec<_>>().join(" ");
    let later = match left.reason {
        Reason::Skipped(SkipReason::NotCongruent | SkipReason::NoStore) if !has_store() => {
            Some("tiexecctl store setup".to_owned())
        }
        Reason::Skipped(SkipReason::NotCongruent | SkipReason::NoStore) => {
            Some(format!("tiexecctl store add {files}"))
        }
        Reason::Skipped(SkipReason::NotShareable) => {
            Some(format!("tiexec --backing=image {name}, a copy at each start"))
        }
        Reason::Skipped(
            SkipReason::BasePages | SkipReason::NotCached | SkipReason::SmallFolios,
        ) => Some(format!("once it has ended, tiexecctl warm {files}")),
        _ => None,
    };
    let fix = match (later, left.reason.fix_for(Some(&files))) {
        (Some(later), _) => format!("; fix: tiexecctl attach {pid}; for later starts: {later}"),
        (None, fix) => and_fix(&detail, fix),
    };
    let reason = left.reason;
    format!(
        "{name} (pid {pid}): {rest} of {all} MiB text stay on base pages: {reason}{detail}{fix}"
    )
}

/// Returns whether this user has an image store.
fn has_store() -> bool {
    let store = thp::pages().map(Store::open_for_this_user);
    matches!(store, Some(Ok(Some(_))))
}

/// Returns whether standard error is a terminal with the program in the foreground, and the program does not draw on
/// it. A program that draws turns line editing off.
fn may_write_over(program: Pid) -> bool {
    let stderr = std::io::stderr();
    let Ok(device) = rustix::fs::fstat(&stderr).map(|stat| stat.st_rdev) else { return false };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // This is the encoding of `new_encode_dev` in `include/linux/kdev_t.h`.
    let device = u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12));
    let stat = ProcDir::of(program).and_then(|process| process.read("stat"));
    let is_in_front = stat.is_ok_and(|text| stat::in_foreground(&text, device).unwrap_or(false));
    let edits_lines = |modes: LocalModes| modes.contains(LocalModes::ICANON);
    is_in_front && tcgetattr(&stderr).is_ok_and(|terminal| edits_lines(terminal.local_modes))
}
