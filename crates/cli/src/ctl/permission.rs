//! The cause and the fix if the kernel forbids this process to examine or trace another one.

use tiexec_core::proc::status::CAP_SYS_PTRACE;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

/// The inode number of the initial user namespace (`PROC_USER_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The rights of this process that decide which processes it may examine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rights {
    root: bool,
    /// It has `CAP_SYS_PTRACE`.
    capable: bool,
    /// It is in another user namespace than the initial one, where its capabilities do not apply to processes outside.
    enclosed: bool,
    /// All user IDs of the process to be examined are those of this process.
    same_user: bool,
}

impl Rights {
    /// Returns the rights of this process to examine the process `pid`.
    pub(super) fn to(pid: i32) -> Self {
        Self { same_user: is_own(pid), ..Self::own() }
    }

    pub(super) fn own() -> Self {
        let this = ProcDir::this_process();
        let status = this.clone().and_then(|this| this.status()).unwrap_or_default();
        let namespace = this.and_then(|this| this.namespace("ns/user"));
        Self {
            root: rustix::process::geteuid().is_root(),
            capable: status.credentials.effective() & CAP_SYS_PTRACE != 0,
            enclosed: namespace.is_ok_and(|inode| inode != FIRST_USER_NAMESPACE && inode != 0),
            same_user: false,
        }
    }

    /// Returns whether this process is root without `CAP_SYS_PTRACE`.
    pub(super) const fn lacks_capability(self) -> bool {
        self.root && !self.capable
    }

    /// Returns whether the capabilities of this process do not apply to all processes of the machine.
    pub(super) const fn is_enclosed(self) -> bool {
        self.enclosed
    }

    /// Returns the cause, unless the error already names it, and the fix.
    pub(super) const fn cause_and_fix(self) -> &'static str {
        match self {
            Self { root: false, same_user: false, .. } => {
                "; fix: run it as root, or as the process's user"
            }
            Self { root: false, .. } => {
                "; the process is this user's, but guarded (such as by PR_SET_DUMPABLE, another group, or privileges); \
                 fix: run it as root"
            }
            Self { capable: false, .. } => {
                "; not even root may, because CAP_SYS_PTRACE is missing in this process; \
                 fix: run it with CAP_SYS_PTRACE, or outside of the container"
            }
            Self { enclosed: true, .. } => {
                "; not even root may, because the user namespace of this process or a security module forbids it; \
                 fix: run it outside of the container"
            }
            _ => {
                "; not even root may, because a security module forbids it (such as AppArmor, SELinux or Landlock); \
                 fix: run it outside of the container or sandbox"
            }
        }
    }
}

/// Returns whether all user IDs of the process are this process's own.
fn is_own(pid: i32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let status = Pid::from_raw(pid).and_then(|pid| ProcDir::of(pid).ok()?.status().ok());
    let uids = status.map(|status| status.credentials.uids).unwrap_or_default();
    !uids.is_empty() && uids.iter().all(|&uid| uid == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_become_root() {
        for (capable, enclosed) in [(false, false), (false, true), (true, false), (true, true)] {
            let same_user = true;
            let told = Rights { root: true, capable, enclosed, same_user }.cause_and_fix();
            assert!(told.contains("not even root may") && !told.contains("run it as root"));
            assert_eq!(told.contains("CAP_SYS_PTRACE"), !capable, "{told}");
        }
        let user = Rights { root: false, capable: false, enclosed: false, same_user: false };
        assert!(user.cause_and_fix().contains("; fix: run it as root, or as the process's user"));
        let same = Rights { same_user: true, ..user };
        assert!(same.cause_and_fix().ends_with("; fix: run it as root"));
    }
}
