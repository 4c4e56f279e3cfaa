//! The commands of `tiexecctl`.

mod advise;
mod alternate;
pub(crate) mod attach;
mod bench;
mod canary;
mod date;
mod doctor;
mod drain;
mod enable;
mod families;
mod input;
mod inspect;
mod install_to;
mod manifests;
mod permission;
mod progress;
mod quarantine;
mod report;
pub(crate) mod rules;
mod running_canary;
mod scan;
mod status;
mod store;
mod systemctl;
mod targets;
mod top;
mod warm;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;

use clap::Parser;
use rustix::io::Errno as RawErrno;
use tiexec_advise::origin::Origin;
use tiexec_core::addr::Pages;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_engine::locked_target::LOOKING;
use tiexec_engine::output::{Output, Refusal, write_styled_to_the_end};
use tiexec_remap::{Failure, policy, workers};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, process, procfs};
use tiexec_tracee::absence::Absence;
use tiexec_tracee::threads;

use self::permission::Rights;
use crate::exit;
use crate::fold::{folded, width};
use crate::options::{Ctl, CtlCommand};
use crate::stdio::{say_unwritten, wants_colours, warn, wipe_line};

/// Runs `tiexecctl`; returns its exit status.
pub fn run() -> u8 {
    crate::stdio::speak_as("tiexecctl");
    process::survive_file_size_limit();
    let mut ctl = match Ctl::try_parse() {
        Ok(ctl) => ctl,
        Err(error) => return crate::stdio::answer(error, exit::USAGE, exit::FAILED),
    };
    if let Some((targets, quiet)) = ctl.command.targets()
        && let Err(status) = targets::service::take(targets, quiet)
    {
        return status;
    }
    match ctl.command {
        CtlCommand::Inspect { targets, each, json } => inspect::run(&targets, each, json),
        CtlCommand::Doctor { targets, measure, json } => doctor::run(&targets, measure, json),
        CtlCommand::Status { json } => status::run(json),
        CtlCommand::Top(options) => top::run(&options),
        CtlCommand::Rules(command) => rules::run(&command),
        CtlCommand::Quarantine(options) => quarantine::run(&options),
        CtlCommand::Agent(command) => drain::run(&command),
        CtlCommand::InstallTo { directory } => install_to::run(&directory),
        CtlCommand::Store(command) => store::run(command),
        CtlCommand::Scan(options) => scan::run(options),
        CtlCommand::Advise(options) => advise::run(&options),
        CtlCommand::Bench(options) => bench::run(&options),
        CtlCommand::Canary(options) => canary::run(&options),
        CtlCommand::Report(options) => report::run(&options),
        CtlCommand::Attach(options) => attach::run(&options),
        CtlCommand::Revert(options) => attach::run_revert(&options),
        CtlCommand::Enable(options) => enable::run(&options),
        CtlCommand::Disable(options) => enable::run_disable(&options),
        CtlCommand::Warm(options) => warm::run(&options),
    }
}

/// Returns the processor and the kernel in words.
fn machine() -> String {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let system = rustix::system::uname();
    let model = tiexec_agent::verdicts::cpu_model();
    format!("{count} × {model}, Linux {}", system.release().to_string_lossy())
}

/// Returns the name of this host.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the origin of what this program measures now.
fn origin() -> Origin {
    Origin {
        host: Some(host()),
        machine: Some(machine()),
        date: Some(date::now()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
    }
}

/// Returns the words of a process's command line, or of its beginning. The process can block the reader.
fn command_line(process: &ProcDir) -> Result<Vec<String>, SysError> {
    let text = process.read_start("cmdline", 4096)?;
    let words = text.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// As [`command_line`]. If the process has other credentials, a child process reads within a time limit, and a failure
/// gives no words.
fn command_line_apart(process: &ProcDir) -> Result<Vec<String>, SysError> {
    if !workers::is_of_others(process) {
        return command_line(process);
    }
    let read = || command_line(process).unwrap_or_default();
    Ok(workers::apart(LOOKING, read).unwrap_or_default())
}

/// Reports that something could not be done to a process. Returns the exit status for it.
fn failed(doing: &str, pid: i32, error: SysError) -> u8 {
    failed_of(doing, pid, true, error)
}

/// As [`failed`]; `named` as in [`has_text_of`].
fn failed_of(doing: &str, pid: i32, named: bool, error: SysError) -> u8 {
    if matches!(error.errno, Errno::NOENT | Errno::SRCH)
        && let Err(status) = has_text_of(doing, pid, named)
    {
        return status;
    }
    let why = match (error.errno, error.call) {
        (Errno::SRCH, _) => "it executed another program meanwhile".to_owned(),
        (Errno::PERM | Errno::ACCES, "maps" | "smaps" | "readlink(/proc/PID/exe)") => {
            format!("{error}{}", Rights::to(pid).cause_and_fix())
        }
        (errno, _) => format!(
            "{error}{}",
            limit(errno).map(|fix| format!("; fix: {fix}")).unwrap_or_default()
        ),
    };
    let why = why.replace("/proc/PID", &format!("/proc/{pid}"));
    warn(format_args!("cannot {doing} process {pid}: {why}"));
    failed_status(error.errno)
}

/// Returns the fix if a call failed at a limit of this process.
fn limit(errno: Errno) -> Option<&'static str> {
    let kind = match errno {
        Errno::MFILE => FailureKind::FdLimit,
        Errno::AGAIN => FailureKind::ForkFailed,
        _ => return None,
    };
    Reason::from(kind).fix()
}

/// Checks that a process has text: the process has not ended and is not a kernel thread. Also checks that `/proc`
/// belongs to this PID namespace.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn has_text(doing: &str, pid: i32) -> Result<(), u8> {
    has_text_of(doing, pid, true)
}

/// As [`has_text`], but silent about an ended process that the user has not `named`, because a unit may have short-lived
/// helpers.
fn has_text_of(doing: &str, pid: i32, named: bool) -> Result<(), u8> {
    numbers_agree(doing, format_args!("process {pid}"))?;
    let absence = Pid::from_raw(pid).map_or(Some(Absence::NoProcess), Absence::of);
    let Some(absence) = absence else { return Ok(()) };
    let has_ended = !matches!(absence, Absence::KernelThread);
    if named || !has_ended {
        warn(format_args!("cannot {doing} process {pid}: {absence}"));
    }
    Err(if has_ended { exit::GONE } else { exit::FAILED })
}

/// Checks that a PID of `/proc` names the same process in a system call.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn numbers_agree(doing: &str, what: impl Display) -> Result<(), u8> {
    if !procfs::is_of_another_namespace() {
        return Ok(());
    }
    let (reason, why) = (FailureKind::ProcUnavailable.as_str(), procfs::OF_ANOTHER_NAMESPACE);
    warn(format_args!("cannot {doing} {what}: {reason}: {why}"));
    Err(exit::FAILED)
}

/// Opens the `/proc` directory of a process's first live thread.
fn thread_with_text(pid: Pid) -> Result<ProcDir, SysError> {
    let process = ProcDir::of(pid)?;
    match threads::first_alive(&process, pid) {
        Some(tid) if tid != pid => ProcDir::of(tid),
        _ => Ok(process),
    }
}

/// Returns the exit status for an error of the kernel.
fn failed_status(errno: Errno) -> u8 {
    match errno {
        Errno::NOENT | Errno::SRCH => exit::GONE,
        Errno::PERM | Errno::ACCES => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    }
}

/// Reports the failure with its fix. Returns the exit status for it.
fn cannot(doing: &str, failure: &Failure) -> u8 {
    let fix = failure.reason.fix().map_or(String::new(), |fix| format!("; fix: {fix}"));
    warn(format_args!("cannot {doing}: {failure}{fix}"));
    exit::FAILED
}

/// Returns the machine's page sizes.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn pages(doing: &str) -> Result<Pages, u8> {
    policy::pages().map_err(|failure| cannot(doing, &failure))
}

/// Checks that the output can be written, before work that may take a while. The file is not changed.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn can_write(output: Option<&Path>) -> Result<(), u8> {
    let Some(path) = output else { return Ok(()) };
    Output::at(path).map(drop).map_err(|why| not_written(path, &why))
}

/// Writes the product to a file, or to stdout.
fn write(text: &str, output: Option<&Path>) -> u8 {
    let Some(path) = output else { return print(text) };
    let text = escape::lines(text);
    match Output::at(path).and_then(|output| output.write(text.as_bytes())) {
        Ok(()) => exit::OK,
        Err(why) => not_written(path, &why),
    }
}

fn not_written(path: &Path, why: &Refusal) -> u8 {
    warn(format_args!("cannot write {}: {why}", path.shown()));
    exit::FAILED
}

/// Writes the product to stdout. A reader that has gone away is success.
#[must_use = "the product may be lost"]
fn print(text: &str) -> u8 {
    print_styled(text, |line| line.into())
}

/// As [`print()`]. On a terminal with colours, `style` changes each line.
fn print_styled(text: &str, style: impl Fn(&str) -> Cow<'_, str>) -> u8 {
    let stdout = std::io::stdout();
    let text = folded(text, width(&stdout));
    let is_styled = stdout.is_terminal() && wants_colours();
    wipe_line(&stdout);
    let written =
        write_styled_to_the_end(&text, |line| if is_styled { style(line) } else { line.into() });
    match written {
        Ok(()) | Err(RawErrno::PIPE) => exit::OK,
        Err(errno) => {
            say_unwritten(errno);
            exit::FAILED
        }
    }
}

/// Combines the exit status of an action with that of printing its line. A failure of the action comes first.
fn told(status: u8, printed: u8) -> u8 {
    if status == exit::OK { printed } else { status }
}
