//! Makes the kernel free huge pages in fragmented memory.
//!
//! A read ahead takes a huge page for the page cache only where one is free: the kernel does not compact memory for it.
//! It does compact for a private mapping with MADV_HUGEPAGE. So such a mapping, made and given up at once, leaves a
//! free huge page on the list of this processor for the next allocation.

use rustix::mm::{MapFlags, ProtFlags};
use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::proc::buddyinfo;

use crate::error::SysError;
use crate::kernel_file;
use crate::procfs::read_to_end;
use crate::reservation::{MADV_COLLAPSE, Reservation};

/// Returns how many huge pages are free on the machine; `None` if the kernel does not say.
pub fn free_huge_pages(pages: Pages) -> Option<u64> {
    /// A line has fewer than 100 bytes, and a node has at most five.
    const LONGEST: u64 = 1 << 20;
    let file = std::fs::File::open("/proc/buddyinfo").ok()?;
    let text = read_to_end(file, LONGEST, "read(/proc/buddyinfo)").ok()?;
    Some(buddyinfo::free_blocks(&text, pages.pmd.bits() - pages.base.bits()))
}

/// Makes the kernel compact memory for one huge page, which is free afterwards. The cost is the clearing of a huge
/// page, and a compaction if none is free.
///
/// # Errors
/// ENOMEM, EAGAIN if the kernel did not get a huge page. EINVAL before Linux 6.1.
///
/// # Kernel
/// 6.1, for `MADV_COLLAPSE`, which compacts whatever `/sys/kernel/mm/transparent_hugepage/defrag` says.
pub fn free_one(pmd: PageSize) -> Result<(), SysError> {
    let len = usize::try_from(pmd.bytes()).unwrap_or(usize::MAX);
    let reserved = Reservation::new(len, pmd)?;
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    reserved.map("mmap", [0, len], writable, MapFlags::PRIVATE, None)?;
    reserved.advise("madvise(MADV_HUGEPAGE)", 0, len, libc::MADV_HUGEPAGE)?;
    // SAFETY: the first byte of the mapping just made, which is writable and belongs to this function alone.
    unsafe { reserved.start().as_ptr().write_volatile(0) };
    reserved.advise("madvise(MADV_COLLAPSE)", 0, len, MADV_COLLAPSE)
}

/// `/proc/sys/vm/compact_memory` — makes the kernel compact all memory of the machine. Takes seconds on a large
/// machine.
///
/// # Errors
/// EACCES for all but root; ENOENT without `CONFIG_COMPACTION`.
pub fn compact_all() -> std::io::Result<()> {
    kernel_file::write("/proc/sys/vm/compact_memory", "1")
}
