//! NUMA nodes, as the kernel shows them (numa(7)).
//!
//! # Safety
//!
//! move_pages(2) takes addresses of another process as pointers; without nodes it moves nothing.

use rustix::process::Pid;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::numa::parse_list;
use tiexec_core::proc::status;

use crate::error::{SysError, check};

/// The directory in which the kernel shows its nodes.
const NODES: &str = "/sys/devices/system/node";

/// Returns the nodes that have memory. Returns only the first node if the kernel has no nodes (`CONFIG_NUMA`), or `/sys`
/// is not mounted.
pub fn nodes_with_memory() -> Vec<u32> {
    let text = std::fs::read_to_string(format!("{NODES}/has_memory"));
    text.ok().and_then(|text| parse_list(&text)).unwrap_or_else(|| vec![0])
}

/// Returns the [nodes with memory](nodes_with_memory) that this process's cpuset allows.
pub fn usable_nodes() -> Vec<u32> {
    let nodes = nodes_with_memory();
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    // Without /proc, the kernel itself refuses a node that is not allowed.
    match status::allowed_nodes(&status) {
        Some(allowed) => nodes.into_iter().filter(|node| allowed.contains(node)).collect(),
        None => nodes,
    }
}

/// Returns the node that a processor belongs to; the first node if the kernel has no nodes.
pub fn node_of_processor(processor: u64) -> u32 {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let node = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    { names }.find_map(node).unwrap_or(0)
}

/// `move_pages` without nodes — returns the node of each of the pages; `None` for a page that is not in memory.
/// numa_maps would show it too, but for every page that the process has, and under its mmap lock. This call takes
/// the lock for sixteen pages at a time (`do_pages_stat` in `mm/migrate.c`).
///
/// # Errors
/// ENOSYS without `CONFIG_NUMA`; EPERM without the right to trace the process; ESRCH if it is gone.
pub fn nodes_of(process: Pid, pages: &[RemoteAddr]) -> Result<Vec<Option<u32>>, SysError> {
    let addresses: Vec<u64> = pages.iter().map(|page| page.get()).collect();
    let mut nodes: Vec<libc::c_int> = vec![-libc::ENOENT; pages.len()];
    // SAFETY: the kernel reads as many addresses as the count says and writes as many nodes; both outlive the call.
    // The addresses are of the other process, and this process does not follow them.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            process.as_raw_nonzero().get(),
            addresses.len(),
            addresses.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            nodes.as_mut_ptr(),
            0 as libc::c_int,
        )
    };
    check("move_pages", returned)?;
    Ok(nodes.into_iter().map(|node| u32::try_from(node).ok()).collect())
}
