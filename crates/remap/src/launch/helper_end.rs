//! The end of a launch's helper, as the program sees it.

use std::io::Read;

use tiexec_core::proc::status::Status;
use tiexec_core::skip::FailureKind;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, c, process};
use tiexec_tracee::Failure;
use tiexec_tracee::remote::{self, SystemCall};
use tiexec_tracee::session::Refusal;

/// The last step of a program's way home: it reaps this process.
pub(crate) fn reap() -> SystemCall {
    remote::wait4(helper_id())
}

/// Says whether SIGCHLD may come to a program on its way home.
///
/// This process's end is reported to the program by SIGCHLD. Let in, it is dropped at once: right after
/// exec its action is the default, to ignore it. But where SIGCHLD is blocked and may come from a child of
/// the program's own, letting it in would lose that one: then one SIGCHLD more may be pending than after a
/// plain exec. A signal too many is a wait in vain, one too few a hang. And a handler that an init function
/// has installed is for the program to run.
pub(crate) fn lets_child_in(process: &ProcDir, pid: Pid, status: &Status) -> bool {
    let has = |signals: u64| signals >> (c::SIGCHLD - 1) & 1 == 1;
    // It may have children from before its exec. Where that cannot be read it is taken to be so.
    let children = format!("task/{}/children", pid.as_raw_nonzero());
    let mut list = String::new();
    let read = process.open_file(&children, false).map(|mut file| file.read_to_string(&mut list));
    let only_the_helper = matches!(read, Ok(Ok(_)))
        && list.split_whitespace().all(|child| child.parse() == Ok(helper_id()));
    let awaited = !only_the_helper || has(status.pending);
    !(has(status.caught) || awaited && has(status.blocked))
}

/// Puts into words why no session could begin.
pub(crate) fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::StackRoom => Failure::new(
            FailureKind::StackRoom,
            "too little of the stack is mapped below the arguments (RLIMIT_STACK, or very many arguments)",
        ),
        Refusal::ShadowStack => {
            Failure::new(FailureKind::RegisterState, "it has a shadow stack (CET, GCS)")
        }
        Refusal::RegisterState | Refusal::InACall => {
            Failure::new(FailureKind::RegisterState, "extended registers the frame cannot carry")
        }
    }
}

/// This process's id: what the program waits for on its way home.
fn helper_id() -> u32 {
    process::this().as_raw_nonzero().get().unsigned_abs()
}
