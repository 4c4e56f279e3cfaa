//! Whether a process still is what it was when it was looked at: it may exec at any time until one of
//! its threads is stopped, and all addresses would be another program's.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_sys::procfs::ProcDir;

use crate::failure::Failure;

/// The address space that a process had when this was opened.
#[derive(Debug)]
pub(crate) struct RunningImage(File);

impl RunningImage {
    /// Takes hold of it, before anything else is read of the process.
    ///
    /// # Errors
    /// `target_gone`; `ptrace_denied`, where it cannot be traced either.
    pub(crate) fn open(process: &ProcDir) -> Result<Self, Failure> {
        process.open_file("mem", false).map(Self).map_err(Failure::unreadable)
    }

    /// Whether a process still uses it. `/proc/PID/mem` stays that of the address space it was opened
    /// on; of one that nobody uses any more, nothing is read (`mem_rw` in `fs/proc/base.c`). At address
    /// 0 nothing is mapped: of one in use, reading fails.
    pub(crate) fn still_runs(&self) -> bool {
        !matches!(self.0.read_at(&mut [0], 0), Ok(0))
    }
}
