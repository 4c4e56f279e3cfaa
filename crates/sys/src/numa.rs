//! NUMA nodes, as the kernel shows them (numa(7)).

use tiexec_core::numa::parse_list;
use tiexec_core::proc::status;

/// Where the kernel shows its nodes.
const NODES: &str = "/sys/devices/system/node";

/// Returns the nodes that have memory and that this process's cpuset lets it have memory of; the first
/// alone where the kernel knows no nodes (`CONFIG_NUMA`), or `/sys` is not mounted.
pub fn usable_nodes() -> Vec<u32> {
    let text = std::fs::read_to_string(format!("{NODES}/has_memory"));
    let nodes = text.ok().and_then(|text| parse_list(&text)).unwrap_or_else(|| vec![0]);
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    // Without /proc the kernel refuses what is not allowed.
    match status::allowed_nodes(&status) {
        Some(allowed) => nodes.into_iter().filter(|node| allowed.contains(node)).collect(),
        None => nodes,
    }
}

/// Returns the node that a processor belongs to; the first where the kernel knows no nodes.
pub fn node_of_processor(processor: u64) -> u32 {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let node = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    { names }.find_map(node).unwrap_or(0)
}
