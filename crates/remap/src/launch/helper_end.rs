//! The end of a launch's helper, as the program sees it.

use std::io::Read;

use tiexec_core::proc::status::Status;
use tiexec_core::skip::FailureKind;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, c, process};
use tiexec_tracee::Failure;
use tiexec_tracee::remote::{self, SystemCall};
use tiexec_tracee::session::Refusal;

/// The last step of a program's way home: the program reaps this process.
pub(crate) fn reap() -> SystemCall {
    remote::wait4(helper_id())
}

/// Returns whether the program may take SIGCHLD on its way home.
///
/// The end of this process sends SIGCHLD to the program. If the program takes the signal, the kernel drops it at
/// once: right after exec the default action is in force, which is to ignore it.
///
/// If SIGCHLD is blocked and may come from a child of the program's own, that child's signal would be lost. The
/// signal then stays blocked, and one more may be pending than after a plain exec. One signal too many makes a wait
/// return without a child; one too few makes the program hang. A handler that an init function has installed must
/// be run by the program.
pub(crate) fn lets_child_in(process: &ProcDir, pid: Pid, status: &Status) -> bool {
    let has = |signals: u64| signals >> (c::SIGCHLD - 1) & 1 == 1;
    // The program may have children from before its exec. If the file cannot be read, assume that it has.
    let children = format!("task/{}/children", pid.as_raw_nonzero());
    let mut list = String::new();
    let read = process.open_file(&children, false).map(|mut file| file.read_to_string(&mut list));
    let only_the_helper = matches!(read, Ok(Ok(_)))
        && list.split_whitespace().all(|child| child.parse() == Ok(helper_id()));
    let awaited = !only_the_helper || has(status.pending);
    !(has(status.caught) || awaited && has(status.blocked))
}

/// Returns why no session could begin.
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

/// This process's ID, for which the program waits on its way home.
fn helper_id() -> u32 {
    process::this().as_raw_nonzero().get().unsigned_abs()
}
