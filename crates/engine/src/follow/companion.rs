//! The process that lives beside a launched program for `--follow` and `--settle`.
//!
//! It is an orphan, in a session of its own: no `wait` of the program's sees it, and its end tells the
//! program nothing. (The helper of the start is a child, and reaped by the program on its way home; but
//! after the start there is no way home any more that the program would not notice.) If orphans would
//! be reparented to the program, because it is PID 1 or a subreaper, then the companion is the
//! program's child with exit signal 0, and ends after it.
//!
//! It holds no descriptor, directory or terminal of the program's, and ends with the processes that it
//! follows.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tiexec_sys::perf_watch::{Heirs, Watch, wait_for_end};
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Pid, SysError};

/// How long it may take to begin: perf_event_open(2) waits for an RCU grace period, which takes some
/// milliseconds where processors are to be had, and seconds in a guest that does not get any.
const PATIENCE: Duration = Duration::from_secs(5);

/// A companion that is at work.
#[derive(Debug)]
pub struct Companion {
    /// Its id; `None` if it could not say.
    pub pid: Option<Pid>,
    /// Why the kernel gives no records, if so.
    pub no_watch: Option<String>,
}

/// Has `work` done beside this process and what it execs, with a watch on it if there can be one. Only
/// the descriptors in `keep` stay open there.
///
/// # Errors
/// Why there is no companion; this process is as it was.
pub fn start(
    heirs: Heirs,
    keep: &[BorrowedFd<'_>],
    work: impl FnOnce(Pid, Option<Watch>),
) -> Result<Companion, String> {
    if !process::children_share_pid_namespace() {
        return Err("children of this process go to a new PID namespace".to_owned());
    }
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let this = process::this();
    let as_child = process::takes_in_orphans();
    let failed = |error: SysError| error.to_string();
    match process::fork_single_threaded(Role::Follower).map_err(failed)? {
        Fork::Child => {
            drop(ours);
            let life = || {
                if !as_child
                    && !matches!(process::fork_single_threaded(Role::Follower), Ok(Fork::Child))
                {
                    return;
                }
                live(this, theirs, heirs, keep, as_child, work);
            };
            let ended = catch_unwind(AssertUnwindSafe(life));
            process::exit_now(i32::from(ended.is_err()));
        }
        Fork::Parent(child) => {
            drop(theirs);
            let said = listen(&mut ours);
            if !as_child || said.is_err() {
                // Between this process and an orphan stood one that has ended; of a child that says
                // nothing there is no use.
                if as_child {
                    let _already_gone = process::kill(child);
                }
                let _reaped = process::wait(child);
            }
            said
        }
    }
}

/// Hears what the companion says of itself: its id, and why it has no watch.
fn listen(channel: &mut UnixStream) -> Result<Companion, String> {
    let mut said = Vec::new();
    channel.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    channel.read_to_end(&mut said).map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&said);
    let (pid, why) = said.split_once('\n').ok_or("it ended before it began")?;
    let no_watch = (!why.is_empty()).then(|| why.to_owned());
    Ok(Companion { pid: pid.parse().ok().and_then(Pid::from_raw), no_watch })
}

fn live(
    program: Pid,
    mut channel: UnixStream,
    heirs: Heirs,
    keep: &[BorrowedFd<'_>],
    as_child: bool,
    work: impl FnOnce(Pid, Option<Watch>),
) {
    process::block_signals();
    process::own_session();
    let mut kept = keep.to_vec();
    kept.push(channel.as_fd());
    process::close_all_except(&kept);
    process::occupy_standard_descriptors();
    process::be_expendable();
    // Each image that is kept is one.
    process::lift_descriptor_limit();
    let pidfd = as_child.then(|| process::open_pidfd(program));
    let (watch, why) = match Watch::open(&[program], heirs) {
        Ok(watch) => (Some(watch), String::new()),
        Err(error) => (None, error.to_string()),
    };
    let own = process::this().as_raw_nonzero();
    if channel.write_all(format!("{own}\n{why}").as_bytes()).is_err() {
        return;
    }
    drop(channel);
    work(program, watch);
    if let Some(Ok(pidfd)) = pidfd {
        // Its end would be reported to the program, which knows of no such child.
        while let Err(_interrupted) = wait_for_end(Some(pidfd.as_fd()), None) {}
    }
}
