//! The program that a process runs.

use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;

/// The program that a process runs. The process number and the start time identify the process. The address of the
/// stack, which the kernel chooses at each exec, identifies the program. No other process and no other program has the
/// same values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Identity {
    /// The start of the process, in clock ticks since boot.
    pub start_time: u64,
    /// The start of its stack; 0 for a reader that may not trace the process.
    start_stack: u64,
}

impl Identity {
    /// Reads the identity; `None` once the process is gone.
    pub fn of(process: &ProcDir) -> Option<Self> {
        let text = process.read("stat").ok()?;
        let start_stack = stat::layout(&text).map_or(0, |layout| layout.start_stack);
        Some(Self { start_time: stat::start_time(&text).ok()?, start_stack })
    }

    /// Returns a number that no other program in this process has; 0 for a reader that may not trace the process.
    pub const fn program(self) -> u64 {
        self.start_stack
    }
}
