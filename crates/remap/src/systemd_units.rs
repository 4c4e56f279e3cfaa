//! Tells the systemd units that a process belongs to.

use tiexec_core::proc::cgroup::{self, Units};
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

/// Returns the units of the process; `None` if it belongs to none of the manager that is PID 1 here.
pub fn of(process: &ProcDir) -> Option<Units> {
    let init = ProcDir::of(Pid::INIT).and_then(|init| init.read("cgroup")).unwrap_or_default();
    cgroup::units(&process.read("cgroup").ok()?, &init)
}

/// The same in words.
pub fn shown(process: &ProcDir) -> Option<String> {
    of(process).map(|units| units.to_string())
}
