//! The NUMA nodes on which TiExec puts copies, and those on which text lies.

use std::fs::File;
use std::sync::OnceLock;

use tiexec_core::addr::{Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::numa::{self, Numa, OnNode};
use tiexec_core::proc::stat;
use tiexec_core::skip::FailureKind;
use tiexec_sys::Pid;
use tiexec_sys::numa_nodes::{node_of_processor, nodes_of, nodes_with_memory, usable_nodes};
use tiexec_sys::pagemap_scan::present;
use tiexec_sys::procfs::ProcDir;

use tiexec_tracee::Failure;

/// Returns the nodes among which the huge pages of a copy for the process alternate; empty to leave the choice to
/// the kernel. `process` is the directory of the thread whose node is `local`.
///
/// # Errors
/// `numa`: the process may not use the chosen node.
pub(crate) fn turns(numa: Option<Numa>, process: &ProcDir) -> Result<Vec<u32>, Failure> {
    let Some(numa) = numa else { return Ok(Vec::new()) };
    let stat = process.read("stat").map_err(Failure::unreadable)?;
    let home = stat::processor(&stat).map_or(0, node_of_processor);
    numa.turns(&usable_nodes(), home).map_err(Failure::of(FailureKind::Numa))
}

/// Returns whether the machine had more than one node with memory at the first call.
pub(crate) fn has_several_nodes() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| nodes_with_memory().len() > 1)
}

/// The most bytes of text whose pages are looked up. No program has as much, but it may map a file that claims more
/// than it has.
const LONGEST: u64 = 4 << 30;

/// Records for each text of a process on which nodes its pages lie, as far as the kernel says. `process` is its
/// PID.
pub fn tell(process: Pid, areas: &mut [Area], pages: Pages) {
    let texts = areas.iter().filter(|area| area.vma.is_text());
    let bytes = texts.fold(0, |sum: u64, area| sum.saturating_add(area.vma.range.len()));
    if bytes > LONGEST {
        return;
    }
    let only = only_node(process);
    for area in areas.iter_mut().filter(|area| area.vma.is_text()) {
        let on_it = only.as_ref().and_then(|(node, pagemap)| {
            let bytes = present(pagemap, area.vma.range).ok()?;
            Some((bytes > 0).then_some(OnNode { node: *node, bytes }).into_iter().collect())
        });
        let Some(nodes) = on_it.or_else(|| nodes_of_text(process, area, pages)) else { return };
        area.nodes = nodes;
    }
}

/// Returns the machine's node, if it has one only, and the process's pagemap. The pagemap then tells all: how much of a text is
/// in memory. It tells that much faster than `move_pages`.
fn only_node(process: Pid) -> Option<(u32, File)> {
    let [node] = nodes_with_memory()[..] else { return None };
    let pagemap = ProcDir::of(process).and_then(|process| process.open_file("pagemap", false));
    Some((node, pagemap.ok()?))
}

/// Asks the kernel once for each huge page, and once for every other page. Returns `None` if the kernel does not
/// answer.
fn nodes_of_text(process: Pid, area: &Area, pages: Pages) -> Option<Vec<OnNode>> {
    /// The kernel takes the addresses of one call into its memory.
    const AT_ONCE: usize = 4096;
    let huge_page = if area.is_hugetlb(pages.base) { area.page_size } else { pages.pmd.bytes() };
    let huge = area.huge_parts(pages.pmd);
    let mut asked: Vec<(RemoteAddr, u64)> = Vec::new();
    let mut at = area.vma.range.start();
    while at < area.vma.range.end() {
        let is_huge = huge.iter().any(|part| part.contains(at));
        let len = if is_huge { huge_page } else { pages.base.bytes() };
        asked.push((at, len));
        at = at.checked_add(len)?;
    }
    let mut found = Vec::new();
    for some in asked.chunks(AT_ONCE) {
        let addresses: Vec<RemoteAddr> = some.iter().map(|&(at, _)| at).collect();
        let nodes = nodes_of(process, &addresses).ok()?;
        let lies = nodes.into_iter().zip(some);
        found.extend(lies.filter_map(|(node, &(_, bytes))| Some(OnNode { node: node?, bytes })));
    }
    Some(numa::sum(found))
}
