//! A held launch: the caller becomes the program, and a helper works on it.
//!
//! ```text
//!   caller                                helper (its child, exit signal 0, own session)
//!   (under seccomp filters: a scout)
//!   fork ───────────────────────────────► closes what it inherited, blocks signals
//!   PR_SET_PTRACER(helper), "go" ───────► PTRACE_SEIZE(caller)
//!   waits, no longer than the deadline
//!   ◄─────────────────────────────── "ok" or a reason
//!   exec ──────── exec stop ────────────► works on the program
//!   reaps the helper (wait4 on its way home), runs its first instruction
//! ```
//!
//! The helper is the program's own child, not an orphan. A subreaper or PID 1 would inherit an orphan without
//! having asked for it. The helper's exit signal is 0: its end before the exec sends no signal, and the program's
//! own `wait` never sees it.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tiexec_core::addr::RemoteAddr;
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_sys::address_space::Memory;
use tiexec_sys::process::{self, Fork, Wait};
use tiexec_sys::process_name::Role;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::ptrace::{self, Options, Resume, SyscallStop};
use tiexec_sys::same_processor::Bound;
use tiexec_sys::{Errno, Pid, SysError, c, seccomp_trial};

use crate::arch::{self, Gadgets};
use crate::error::TraceError;
use crate::failure::Failure;
use crate::fault;
use crate::remote;
use crate::running;
use crate::session::resume_to_syscall;

/// The caller's end of a held launch. The caller is traced, and may exec now.
#[derive(Debug)]
#[must_use = "exec, or disarm"]
pub struct Armed {
    helper: Pid,
    ends_with_helper: bool,
    /// The exec closes it.
    _channel: UnixStream,
}

impl Armed {
    /// Ends the helper, for an exec that failed. The helper's death detaches it from this process, which runs and
    /// so is not affected. With [`Arming::ends_with_helper`], the helper is not ended, because it ends with this process.
    pub fn disarm(self) {
        if !self.ends_with_helper {
            end_helper(self.helper, None);
        }
    }
}

/// The longest wait for the end of a helper that has not answered.
const LONGEST_END: Duration = Duration::from_millis(50);

/// Kills the helper and waits for its end, at most as long as `patience` says. A helper that closes what it has inherited may wait
/// for a server that never answers (FUSE, NFS). Then it stays a child of the program, which no `wait` without `__WALL` sees, and
/// never returns to user mode.
fn end_helper(helper: Pid, patience: Option<Duration>) -> Option<Wait> {
    let _already_gone = process::kill(helper);
    match patience {
        None => process::wait(helper).ok(),
        Some(patience) => process::wait_until(helper, Instant::now() + patience).ok().flatten(),
    }
}

/// The parameters of [`arm`].
#[derive(Clone, Copy, Debug)]
pub struct Arming<'a> {
    /// How long the helper may take until it traces this process.
    pub deadline: Duration,
    /// True if seccomp filters are in force, so that the calls must be tried first.
    pub rehearse: bool,
    /// True if the kernel must kill this process, or the program, when the helper dies: the program must not run
    /// without it. This process may then only exec, or exit.
    pub ends_with_helper: bool,
    /// Descriptors that the helper must keep.
    pub keep: &'a [BorrowedFd<'a>],
}

/// Forks the helper, which seizes this process and then runs `work`. Returns once this process is seized.
///
/// # Errors
/// The reason. No helper is left, and this process is not traced; but with [`Arming::ends_with_helper`], a late helper may
/// still trace it, and ends with it.
///
/// # Panics
/// Never in the caller. If `work` panics, the helper ends, and its tracee goes home.
pub fn arm(arming: Arming<'_>, work: impl FnOnce(Pid)) -> Result<Armed, Failure> {
    if !process::children_share_pid_namespace() {
        // The helper would be PID 1 of that namespace, and the namespace would end with it.
        let detail = "this process's children go to a new PID namespace (unshare --fork first)";
        return Err(Failure::new(FailureKind::ForkFailed, detail));
    }
    fault::before_arming();
    if arming.rehearse {
        rehearse(rehearse_launch)?;
    }
    let (mut ours, theirs) = UnixStream::pair().map_err(Failure::of(FailureKind::FdLimit))?;
    let target = process::this();
    // This process waits for the helper. A filter may kill for sched_setaffinity(2).
    let bound = if arming.rehearse { None } else { Bound::begin() };
    match process::fork_single_threaded(Role::Helper)
        .map_err(Failure::of(FailureKind::ForkFailed))?
    {
        Fork::Child => {
            drop(ours);
            let work = |target| {
                drop(bound);
                work(target);
            };
            let ended = catch_unwind(AssertUnwindSafe(|| helper(target, theirs, &arming, work)));
            process::exit_now(i32::from(ended.is_err()));
        }
        Fork::Parent(helper) => {
            drop(theirs);
            let answer = process::set_ptracer(Some(helper))
                .map_err(Failure::of(FailureKind::PtraceDenied))
                .and_then(|()| handshake(&mut ours, arming.deadline));
            drop(bound);
            // The permission was for this one time. The helper is the tracer by now, or never will be.
            let _no_yama = process::set_ptracer(None);
            match answer {
                Ok(()) => {
                    let ends_with_helper = arming.ends_with_helper;
                    Ok(Armed { helper, ends_with_helper, _channel: ours })
                }
                // A late helper may trace this process by now, and its end would end this process.
                Err(why) if arming.ends_with_helper && why.reason == FailureKind::Deadline => {
                    Err(why)
                }
                Err(mut why) => {
                    // A filter may kill for the pauses between two looks.
                    let end = end_helper(helper, (!arming.rehearse).then_some(LONGEST_END));
                    if why.reason == FailureKind::HelperDied && end == Some(Wait::Killed(c::SIGSYS))
                    {
                        why = Failure::new(FailureKind::Seccomp, FILTER_KILLS);
                    }
                    Err(why)
                }
            }
        }
    }
}

/// Forks a child, a scout, that makes the calls in `calls` under the seccomp filters in force. If a filter kills, it kills
/// only the child. Until the child has reported that it survived `wait4`, the caller makes no call but `pipe2`, `clone`
/// and `read`.
///
/// # Errors
/// A seccomp filter kills the scout for one of the calls, or refuses the call; or this process cannot make the scout.
/// This process is unchanged.
pub fn rehearse(calls: impl FnOnce() -> std::io::Result<()>) -> Result<(), Failure> {
    let refused = |what: &str| Err(Failure::new(FailureKind::Seccomp, what));
    let (mut from_child, mut to_caller) =
        std::io::pipe().map_err(Failure::of(FailureKind::FdLimit))?;
    let forked =
        process::fork_single_threaded(Role::Scout).map_err(Failure::of(FailureKind::ForkFailed))?;
    let Fork::Parent(child) = forked else {
        let _panicked = catch_unwind(AssertUnwindSafe(|| {
            process::block_signals();
            process::rehearse_wait();
            process::lift_file_size_limit();
            to_caller.write_all(&[SCOUT_WAITED])?;
            let answer = match calls() {
                Ok(()) => vec![SCOUT_DONE],
                Err(error) => error.to_string().into_bytes(),
            };
            to_caller.write_all(&answer)
        }));
        process::exit_now(0);
    };
    drop(to_caller);
    let mut said = Vec::new();
    let _what_came = from_child.read_to_end(&mut said);
    if said.first() == Some(&SCOUT_WAITED) {
        let _reaped = process::wait(child);
    }
    match &said[..] {
        [SCOUT_WAITED, SCOUT_DONE] => Ok(()),
        [SCOUT_WAITED, error @ ..] if !error.is_empty() => refused(&String::from_utf8_lossy(error)),
        _ => refused(FILTER_KILLS),
    }
}

const FILTER_KILLS: &str = "a filter kills on a call that is needed";

/// The scout's messages: `wait4` was allowed; all calls were allowed.
const SCOUT_WAITED: u8 = 1;
const SCOUT_DONE: u8 = 2;

/// Makes every call of a launch, the caller's own and the program's.
fn rehearse_launch() -> std::io::Result<()> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(Duration::from_secs(1)))?;
    theirs.write_all(b"s")?;
    ours.read_exact(&mut [0])?;
    let refused = |error: SysError| std::io::Error::other(error);
    process::set_ptracer(Some(process::this())).map_err(refused)?;
    process::set_ptracer(None).map_err(refused)?;
    seccomp_trial::remote_calls().map_err(refused)
}

/// Tells the helper to begin, and waits for its answer.
fn handshake(channel: &mut UnixStream, deadline: Duration) -> Result<(), Failure> {
    channel
        .write_all(b"g")
        .map_err(|error| Failure::of(FailureKind::HelperDied)(error).about("before it began"))?;
    let end = Instant::now() + deadline;
    let mut answer = [0; 512];
    let len = loop {
        // A timeout of zero would wait for ever.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let read = channel.set_read_timeout(Some(left)).and_then(|()| channel.read(&mut answer));
        match read {
            Ok(0) => {
                let what = "before it traced the program";
                return Err(Failure::new(FailureKind::HelperDied, what));
            }
            Ok(len) => break len,
            // The process was stopped and continued, or the helper, which traces it by now, saw a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let late = "the helper did not start in time";
                return Err(Failure::new(FailureKind::Deadline, late));
            }
            // The helper died before it read the message.
            Err(error) => return Err(Failure::of(FailureKind::HelperDied)(error)),
        }
    };
    let text = String::from_utf8_lossy(&answer[..len]);
    if text == "ok" {
        return Ok(());
    }
    let (name, detail) = text.split_once('\n').unwrap_or((&text, ""));
    let reason = Reason::all().find(|reason| reason.as_str() == name);
    Err(Failure::new(reason.unwrap_or(FailureKind::HelperDied.into()), detail))
}

/// The helper's code up to `work`.
fn helper(target: Pid, mut channel: UnixStream, arming: &Arming<'_>, work: impl FnOnce(Pid)) {
    process::block_signals();
    // The process that gives a late helper up leaves it alone. A filter may kill for prctl(2).
    let ends_with_it = arming.ends_with_helper && !arming.rehearse;
    if ends_with_it {
        let _unchanged = process::end_with_parent(Some(process::Signal::KILL));
    }
    process::own_session();
    let mut keep = arming.keep.to_vec();
    let stderr = std::io::stderr();
    keep.extend([stderr.as_fd(), channel.as_fd()]);
    process::close_all_except(&keep);
    process::occupy_standard_descriptors();

    let mut go = [0];
    if channel.read_exact(&mut go).is_err() {
        return;
    }
    let options = Options { exit_kill: arming.ends_with_helper };
    let ready = ptrace::seize(target, options).map_err(Failure::denied);
    let answer = match &ready {
        Ok(()) => "ok".to_owned(),
        Err(why) => format!("{}\n{}", why.reason, why.detail),
    };
    if channel.write_all(answer.as_bytes()).is_err() {
        // The process has given up, and its ID may be another's by now, which must not end with this process.
        if arming.ends_with_helper && ready.is_ok() {
            detach(target);
        }
        return;
    }
    if ready.is_err() {
        return;
    }
    if ends_with_it {
        // The helper reports the end of the program.
        let _unchanged = process::end_with_parent(None);
    }
    drop(channel);
    process::be_expendable();
    work(target);
}

/// Detaches from a seized process that runs.
fn detach(pid: Pid) {
    if ptrace::interrupt(pid).is_err() {
        return;
    }
    if let Ok(stop) = process::wait_attentively(pid, None) {
        let signal = if let Some(Wait::Signal(signal)) = stop { signal } else { 0 };
        let _gone = ptrace::resume(pid, Resume::Detach, signal);
    }
}

/// A program stopped right after its exec, before its first instruction, in syscall-exit-stop.
#[derive(Clone, Copy, Debug)]
pub struct ExecStop {
    /// The program.
    pub pid: Pid,
    /// When it stopped.
    pub since: Instant,
}

/// Returns whether an exec of the image at this path may be traced.
pub type MayTrace<'a> = &'a dyn Fn(&Path) -> bool;

/// Follows the seized process until it has exec'ed a program that `is_the_one` accepts, for at most `longest`
/// (`None`: for ever). Meanwhile passes on all signals and stops.
///
/// An unprivileged tracer needs `may_trace`, because under such a tracer the kernel ignores the setuid bit of an
/// image. It is called for the image of each exec, before the exec happens.
///
/// # Errors
/// [`TraceError::Gone`] if the process ends first, [`TraceError::LetGo`] if `may_trace` returns false,
/// [`TraceError::StartOver`].
pub fn wait_for_exec(
    pid: Pid,
    longest: Option<Duration>,
    may_trace: Option<MayTrace<'_>>,
    mut is_the_one: impl FnMut() -> bool,
) -> Result<ExecStop, TraceError> {
    let run = if may_trace.is_some() { Resume::ToSyscall } else { Resume::Run };
    let begun = Instant::now();
    loop {
        let left = longest.map(|longest| longest.saturating_sub(begun.elapsed()));
        let stop = process::wait_attentively(pid, left).map_err(|error| match error.errno {
            Errno::CHILD => TraceError::LostSight,
            _ => error.into(),
        })?;
        let Some(stop) = stop else {
            return Err(TraceError::StartOver(longest.unwrap_or_default()));
        };
        fault::at(fault::Point::Stop);
        let (how, signal) = match stop {
            Wait::ExecEvent => {
                if is_the_one() {
                    let since = Instant::now();
                    // Work begins at the syscall-exit-stop of execve: on some kernels the first
                    // resumption from the event stop traps before anything else can be run.
                    return match resume_to_syscall(pid, false, None)? {
                        SyscallStop::Exit(_) => Ok(ExecStop { pid, since }),
                        _ => Err(TraceError::Unexpected(Wait::SyscallStop)),
                    };
                }
                (run, 0)
            }
            Wait::SyscallStop => {
                let image = exec_image(pid, ptrace::syscall_stop(pid)?);
                if let (Some(image), Some(may_trace)) = (image, may_trace)
                    && !may_trace(&image)
                {
                    ptrace::resume(pid, Resume::Detach, 0)?;
                    return Err(TraceError::LetGo);
                }
                (run, 0)
            }
            Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
            Wait::Signal(signal) => (run, signal),
            Wait::GroupStop(_) => (Resume::Listen, 0),
            Wait::Interrupted | Wait::Event(_) => (run, 0),
        };
        ptrace::resume(pid, how, signal)?;
    }
}

/// Returns the path of the image that the tracee is about to exec, as seen from this process.
fn exec_image(pid: Pid, stop: SyscallStop) -> Option<PathBuf> {
    let SyscallStop::Entry { number, args, .. } = stop else { return None };
    let (directory, path) = match i64::try_from(number).ok()? {
        c::SYS_execve => ("cwd".to_owned(), args[0]),
        // The directory descriptor is an int, so ignore the upper half of the register.
        c::SYS_execveat if args[0] as i32 == c::AT_FDCWD => ("cwd".to_owned(), args[1]),
        c::SYS_execveat => (format!("fd/{}", args[0] as i32), args[1]),
        _ => return None,
    };
    let memory = Memory::open(&ProcDir::of(pid).ok()?).ok()?;
    let path = memory.read_string(RemoteAddr::new(path)).ok()?;
    let path = Path::new(OsStr::from_bytes(&path));
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    Some(match path.strip_prefix("/") {
        Ok(from_root) => process.join("root").join(from_root),
        Err(_) if path.as_os_str().is_empty() => process.join(directory),
        Err(_) => process.join(directory).join(path),
    })
}

/// Lets a program go that has not been changed.
pub fn let_go(stop: ExecStop) {
    let _gone = ptrace::resume(stop.pid, Resume::Detach, 0);
}

/// Makes a stopped program exit with `status` before it executes anything more. It needs no gadget and no stack: the
/// instruction for the call is written over the program's own copy of its next instructions. A program that does not
/// exit so is killed, and so is one with several threads, because others could execute that instruction.
pub fn exit_instead(pid: Pid, status: u8) {
    let status_of = |process: ProcDir| process.status();
    let is_alone = ProcDir::of(pid).and_then(status_of).is_ok_and(|now| now.threads == 1);
    if !is_alone || !matches!(exits(pid, status), Ok(()) | Err(TraceError::Gone)) {
        let _gone = process::kill(pid);
    }
}

fn exits(pid: Pid, status: u8) -> Result<(), TraceError> {
    let registers = running::registers(pid)?;
    // An aligned word lies in one page, which the program is about to execute.
    let at = RemoteAddr::new(arch::program_counter(&registers).get() & !7);
    let mut code = [0; 8];
    code[..arch::CALL_INSTRUCTION.len()].copy_from_slice(arch::CALL_INSTRUCTION);
    ptrace::set_signal_mask(pid, !0)?;
    ptrace::poke(pid, at, u64::from_ne_bytes(code))?;
    let (gadgets, call) = (Gadgets { call: at, sigreturn: at }, remote::exit_group(status).call);
    let stack = arch::stack_pointer(&registers);
    ptrace::set_registers(pid, &arch::aim_at_call(&registers, gadgets, &call, stack))?;
    resume_to_syscall(pid, true, None)?;
    // A seccomp filter may refuse the call. The program must not execute what lies behind it then.
    match resume_to_syscall(pid, true, None) {
        Err(TraceError::Gone) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(TraceError::Unexpected(Wait::SyscallStop)),
    }
}

/// Seizes a waiting child and ends it, to find out whether this process could trace a launch.
///
/// # Errors
/// The call that failed.
pub fn try_seize() -> Result<(), SysError> {
    match process::fork_single_threaded(Role::Probe)? {
        Fork::Child => loop {
            std::thread::park();
        },
        Fork::Parent(child) => {
            let done = ptrace::seize(child, Options::default());
            end_helper(child, None);
            done
        }
    }
}
