//! On which NUMA nodes copies are put, and text lies.

use tiexec_core::numa::{self, Numa};
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::proc::stat;
use tiexec_core::skip::SkipReason;
use tiexec_sys::numa::{node_of_processor, usable_nodes};
use tiexec_sys::procfs::ProcDir;

use crate::failure::Failure;

/// Returns the nodes that the huge pages of a copy for the process are put on by turns; none to leave that
/// to the kernel. `process` is the directory of the thread whose node is `local`.
///
/// # Errors
/// `numa`: there is no such node for this process.
pub(crate) fn turns(numa: Option<Numa>, process: &ProcDir) -> Result<Vec<u32>, Failure> {
    let Some(numa) = numa else { return Ok(Vec::new()) };
    let stat = process.read("stat").map_err(Failure::unreadable)?;
    let home = stat::processor(&stat).map_or(0, node_of_processor);
    numa.turns(&usable_nodes(), home).map_err(|error| Failure::new(SkipReason::Numa, error))
}

/// Tells each entry of a process's smaps on which nodes its pages lie, where the kernel says that.
pub fn tell(process: &ProcDir, entries: &mut [SmapsEntry]) {
    let Ok(text) = process.read("numa_maps") else { return };
    numa::tell(entries, &text);
}
