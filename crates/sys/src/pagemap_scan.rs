//! `ioctl(PAGEMAP_SCAN)`: which pages of an address range are huge (`Documentation/admin-guide/mm/pagemap.rst`).
//!
//! The kernel holds the address space's lock for reading while it walks one range. The more base pages the range has,
//! the longer the walk. So no call covers more than `PIECE`, and a thread that waits for the lock to map memory gets it
//! in between.
//!
//! # Safety
//!
//! This file passes the kernel the address of a buffer as a number, inside a structure.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use tiexec_core::addr::{AddrRange, RemoteAddr};

use crate::error::{SysError, check};

/// A page of a file: page cache, tmpfs, memfd, hugetlb pool; not a private copy made by a write.
pub(crate) const FILE: u64 = 1 << 2;
/// Swapped out.
const SWAPPED: u64 = 1 << 4;
/// In memory.
pub(crate) const PRESENT: u64 = 1 << 3;
/// Mapped by an entry above the page table's lowest level: a huge page, or a page of the hugetlb pool.
pub(crate) const HUGE: u64 = 1 << 6;

/// The name of the call in errors.
pub(crate) const CALL: &str = "ioctl(PAGEMAP_SCAN)";

/// How many bytes one call walks: 16384 base pages of 4 KiB take 0.2 ms.
const PIECE: u64 = 64 << 20;

/// Neighbouring pages of the same kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Their addresses.
    pub range: Range<u64>,
    /// The kinds of these pages, among the kinds that the caller wants to know.
    pub kinds: u64,
}

/// Returns the pages of `range` that are of all the kinds in `wanted`, each with its kinds among `told`. They come in
/// ascending order. `range` is in the process of this pagemap.
///
/// # Errors
/// ENOTTY before Linux 6.7; ESRCH when the process has ended.
pub(crate) fn scan(
    pagemap: &File,
    range: Range<u64>,
    wanted: u64,
    told: u64,
) -> Result<Vec<Found>, SysError> {
    scan_for(pagemap, range, Wanted { all: wanted, any: 0, not: 0 }, told)
}

/// Returns the pages of `range` that were written to: private copies that no longer match the file. `range` must hold
/// private mappings of files. The pages come in ascending order, neighbours together.
///
/// # Errors
/// ENOTTY before Linux 6.7; ESRCH when the process has ended.
pub fn written(pagemap: &File, range: AddrRange) -> Result<Vec<AddrRange>, SysError> {
    let wanted = Wanted { all: 0, any: PRESENT | SWAPPED, not: FILE };
    let found = scan_for(pagemap, range.start().get()..range.end().get(), wanted, 0)?;
    let range = |found: Found| {
        let [start, end] = [found.range.start, found.range.end].map(RemoteAddr::new);
        AddrRange::new(start, end)
    };
    Ok(found.into_iter().filter_map(range).collect())
}

/// Returns how many bytes of `range` are in memory, and mapped.
///
/// # Errors
/// ENOTTY before Linux 6.7; ESRCH when the process has ended.
pub fn present(pagemap: &File, range: AddrRange) -> Result<u64, SysError> {
    let found = scan(pagemap, range.start().get()..range.end().get(), PRESENT, 0)?;
    Ok(found.into_iter().map(|found| found.range.end - found.range.start).sum())
}

/// The kinds of pages that a scan returns.
#[derive(Clone, Copy)]
struct Wanted {
    /// Pages of all of these kinds.
    all: u64,
    /// And of at least one of these kinds, unless this is 0.
    any: u64,
    /// And of no kind of these.
    not: u64,
}

fn scan_for(
    pagemap: &File,
    range: Range<u64>,
    wanted: Wanted,
    told: u64,
) -> Result<Vec<Found>, SysError> {
    let mut found: Vec<Found> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at.saturating_add(PIECE));
        let (regions, walked) = scan_once(pagemap, at..end, wanted, told)?;
        for PageRegion { start, end, categories } in regions {
            match found.last_mut() {
                Some(last) if last.range.end == start && last.kinds == categories => {
                    last.range.end = end;
                }
                _ => found.push(Found { range: start..end, kinds: categories }),
            }
        }
        // If a walk stopped where it began, the loop would never end.
        at = if walked > at { walked } else { end };
    }
    Ok(found)
}

/// Makes one call. Also returns the address that the walk reached: the end, unless the buffer was too small.
fn scan_once(
    pagemap: &File,
    range: Range<u64>,
    wanted: Wanted,
    told: u64,
) -> Result<(Vec<PageRegion>, u64), SysError> {
    let mut regions = vec![PageRegion::default(); 512];
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().addr() as u64,
        vec_len: regions.len() as u64,
        // If a kind is inverted, the page must not be of that kind.
        category_inverted: wanted.not,
        category_mask: wanted.all | wanted.not,
        category_anyof_mask: wanted.any,
        return_mask: told,
        ..ScanArguments::default()
    };
    // The kernel takes the buffer's address as a number.
    let _exposed = regions.as_mut_ptr().expose_provenance();
    // SAFETY: the argument is the structure that this ioctl takes, of the size that it says. The kernel writes to it,
    // and at most `vec_len` regions to `vec`, which is that long and outlives the call. Without a PM_SCAN flag the call
    // changes nothing.
    let returned =
        unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arguments) };
    let count = check(CALL, returned.into())?;
    regions.truncate(usize::try_from(count).unwrap_or(0));
    Ok((regions, arguments.walk_end))
}

/// `_IOWR('f', 16, struct pm_scan_arg)` (linux/fs.h).
const PAGEMAP_SCAN: u32 =
    (3 << 30) | ((size_of::<ScanArguments>() as u32) << 16) | ((b'f' as u32) << 8) | 16;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;
    use crate::error::Errno;
    use crate::procfs::ProcDir;
    use crate::reservation::Reservation;

    #[test]
    fn more_than_one_buffer_and_more_than_one_piece_come_whole() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        let len = usize::try_from(2 * PIECE).expect("an address");
        let reserved = Reservation::new(len, pages.pmd).expect("address space");
        let at = reserved.start();
        let (both, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        reserved.map("mmap", [0, len], both, flags, None).expect("memory");
        reserved.advise("madvise", 0, len, libc::MADV_NOHUGEPAGE).expect("a kernel with THP");
        let base = usize::try_from(pages.base.bytes()).expect("a page fits");
        // Touch every other page, so that each is a region of its own.
        let touched: Vec<usize> = (0..len / base / 2).map(|page| 2 * page * base).collect();
        for &byte in &touched {
            // SAFETY: the byte lies in the mapping made above.
            let byte = unsafe { at.add(byte) };
            // SAFETY: that mapping is writable and belongs to this test alone.
            unsafe { byte.write_volatile(1) };
        }
        let start = at.as_ptr().addr() as u64;
        let pagemap = ProcDir::this_process().and_then(|of| of.open_file("pagemap", false));
        let pagemap = pagemap.expect("/proc");
        let found = match scan(&pagemap, start..start + len as u64, PRESENT, PRESENT | FILE | HUGE)
        {
            Err(error) if error.errno == Errno::NOTTY => return,
            found => found.expect("an own mapping"),
        };
        let expected = touched.iter().map(|&at| {
            let at = start + at as u64;
            Found { range: at..at + base as u64, kinds: PRESENT }
        });
        assert!(found.iter().cloned().eq(expected), "{} of {}", found.len(), touched.len());
    }
}
