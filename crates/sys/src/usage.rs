//! The resources that a child has used when it has ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Pid;

use crate::error::{Errno, SysError, check};

/// The resources that a process and the children that it waited for have used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
}

/// `wait4(pid, &status, 0, &rusage)` — waits for the end of a child, and retries after
/// interruptions.
///
/// # Errors
/// ECHILD if `pid` is not a child of this process.
pub fn wait(pid: Pid) -> Result<(ExitStatus, Usage), SysError> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid object for wait4 to overwrite.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let raw = pid.as_raw_nonzero().get();
    loop {
        // SAFETY: status and usage are live for the call.
        let returned = unsafe { libc::wait4(raw, &raw mut status, 0, &raw mut usage) };
        match check("wait4", returned.into()) {
            Err(error) if error.errno == Errno::INTR => {}
            waited => {
                waited?;
                break;
            }
        }
    }
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    let count = |count: libc::c_long| u64::try_from(count).unwrap_or(0);
    let used = Usage {
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
    };
    Ok((ExitStatus::from_raw(status), used))
}
