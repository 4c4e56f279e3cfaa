//! A file's page cache: which parts it holds, and in folios of which size.
//!
//! Two kernel calls are strange here. `preadv2(RWF_NOWAIT)` does not only look: if a page is not
//! cached, the call begins to read it, as a small folio, which then prevents a huge one. So this
//! module asks mincore(2), which reads nothing. And cachestat(2) on overlayfs sees the overlay's own,
//! empty cache, where a mapping sees the cache of the file below.
//!
//! # Safety
//!
//! This file maps files into this process and calls madvise(2) and mincore(2) on those mappings; no
//! reference into them is ever made.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::mm::{MapFlags, ProtFlags};
use tiexec_core::addr::{PageSize, Pages, RemoteAddr};
use tiexec_core::smaps;

use crate::error::{Errno, SysError, check};
use crate::lease::{Against, Lease};
use crate::pagemap_scan;
use crate::procfs::ProcDir;
use crate::reservation::{MADV_COLLAPSE, Reservation};

/// This number is the same on all architectures that this project builds for.
const SYS_CACHESTAT: libc::c_long = 451;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// A private mapping of a part of a file, at an address congruent to its offset. Where the page cache
/// holds a huge folio, a touch maps it by one PMD entry. This mapping is never written to. Ranges are
/// bytes of the file. Unmapped when dropped.
#[derive(Debug)]
pub struct FileMapping {
    reserved: Reservation,
    file_range: Range<u64>,
}

// SAFETY: the mapping belongs to the process and to no thread of it. Nothing writes to it, no
// reference into it exists, and several threads may make the system calls on it at once.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `file_range`, readable and executable; only readable where the mount is noexec. Both ends
    /// must be multiples of `pmd`. The part past the end of the file cannot be touched.
    ///
    /// # Errors
    /// EINVAL for an odd range; ENOMEM at `RLIMIT_AS`; ENODEV for a file that cannot be mapped;
    /// EOPNOTSUPP on hugetlbfs, whose pages are not page cache in this sense.
    pub fn new(file: &File, file_range: Range<u64>, pmd: PageSize) -> Result<Self, SysError> {
        const CALL: &str = "mmap(MAP_PRIVATE)";
        let odd = SysError { call: CALL, errno: Errno::INVAL };
        let len = file_range.end.checked_sub(file_range.start).ok_or(odd)?;
        let aligned = |bytes: u64| bytes & (pmd.bytes() - 1) == 0;
        if len == 0 || !aligned(file_range.start) || !aligned(len) {
            return Err(odd);
        }
        let len = usize::try_from(len).ok().ok_or(odd)?;
        let kind = rustix::fs::fstatfs(file).map_err(SysError::of("fstatfs"))?.f_type;
        if kind as u64 == HUGETLBFS_MAGIC {
            return Err(SysError { call: CALL, errno: Errno::OPNOTSUPP });
        }
        let reserved = Reservation::new(len, pmd)?;
        let of_file = Some((file, file_range.start));
        let map = |protection| reserved.map(CALL, [0, len], protection, MapFlags::PRIVATE, of_file);
        map(ProtFlags::READ | ProtFlags::EXEC).or_else(|error| match error.errno {
            Errno::PERM | Errno::ACCES => map(ProtFlags::READ),
            _ => Err(error),
        })?;
        Ok(Self { reserved, file_range })
    }

    /// Returns the address of the mapping in this process.
    pub fn start(&self) -> RemoteAddr {
        RemoteAddr::new(self.reserved.start().as_ptr().addr() as u64)
    }

    fn advise(
        &self,
        call: &'static str,
        part: &Range<u64>,
        advice: libc::c_int,
    ) -> Result<(), SysError> {
        let (at, len) = self.within(call, part)?;
        self.reserved.advise(call, at, len, advice)
    }

    /// Returns the place of `part` of the file in the mapping: its start and its length, in bytes.
    fn within(&self, call: &'static str, part: &Range<u64>) -> Result<(usize, usize), SysError> {
        let at = part.start.checked_sub(self.file_range.start);
        let len = part.end.checked_sub(part.start);
        at.zip(len)
            .and_then(|(at, len)| Some((usize::try_from(at).ok()?, usize::try_from(len).ok()?)))
            .ok_or(SysError { call, errno: Errno::INVAL })
    }

    /// `madvise(MADV_HUGEPAGE)` — makes a touch of a page that is not cached read it in as a huge
    /// folio, where the file system has huge folios.
    ///
    /// # Errors
    /// EINVAL on a kernel without THP.
    pub fn advise_huge(&self) -> Result<(), SysError> {
        self.advise("madvise(MADV_HUGEPAGE)", &self.file_range, libc::MADV_HUGEPAGE)
    }

    /// `madvise(MADV_RANDOM)` — makes a touch read nothing ahead.
    ///
    /// # Errors
    /// ENOMEM if the VMA cannot be changed.
    pub fn advise_random(&self) -> Result<(), SysError> {
        self.advise("madvise(MADV_RANDOM)", &self.file_range, libc::MADV_RANDOM)
    }

    /// `madvise(MADV_NORMAL)` — makes a touch read ahead as usual again. Only in this mode does a
    /// touch protect what is mapped here from reclaim (`include/linux/mm_inline.h`,
    /// `vma_has_recency`).
    ///
    /// # Errors
    /// ENOMEM if the VMA cannot be changed.
    pub fn advise_normal(&self) -> Result<(), SysError> {
        self.advise("madvise(MADV_NORMAL)", &self.file_range, libc::MADV_NORMAL)
    }

    /// `madvise(MADV_POPULATE_READ)` — touches each page of `part`, and reads it in if it is not
    /// cached. Since Linux 5.14.
    ///
    /// # Errors
    /// EFAULT past the end of the file and for I/O errors, where a plain touch would die of SIGBUS.
    pub fn populate(&self, part: &Range<u64>) -> Result<(), SysError> {
        self.advise("madvise(MADV_POPULATE_READ)", part, libc::MADV_POPULATE_READ)
    }

    /// `madvise(MADV_COLLAPSE)` — makes the huge pages of `part` from the cached pages, without
    /// evicting them. Since Linux 6.1, for tmpfs and for other files where the kernel supports it.
    ///
    /// # Errors
    /// EINVAL if the kernel does not support it for this file; ENOMEM; EAGAIN for a passing obstacle.
    pub fn collapse(&self, part: &Range<u64>) -> Result<(), SysError> {
        self.advise("madvise(MADV_COLLAPSE)", part, MADV_COLLAPSE)
    }

    /// `mincore` — returns which parts of `part` the page cache holds, in whole pages of size `base`;
    /// ascending, adjoining parts merged. Reads nothing in. If [`may_look`] returns false, everything
    /// seems cached.
    ///
    /// # Errors
    /// EAGAIN if the kernel is out of memory.
    pub fn cached_parts(
        &self,
        part: &Range<u64>,
        base: PageSize,
    ) -> Result<Vec<Range<u64>>, SysError> {
        const CALL: &str = "mincore";
        let (at, len) = self.within(CALL, part)?;
        let page = usize::try_from(base.bytes()).unwrap_or(usize::MAX);
        let states = self.reserved.resident(at, len, page)?;
        let mut parts: Vec<Range<u64>> = Vec::new();
        let pages = (part.start..).step_by(page);
        for (at, _) in pages.zip(states).filter(|&(_, resident)| resident) {
            match parts.last_mut() {
                Some(last) if last.end == at => last.end += base.bytes(),
                _ => parts.push(at..at + base.bytes()),
            }
        }
        Ok(parts)
    }

    /// Returns whether any page of `part` that was touched through this mapping is also mapped
    /// elsewhere, by this process or another (`/proc/self/pagemap`, bit 56).
    ///
    /// # Errors
    /// `/proc/self` cannot be read.
    pub fn is_mapped_elsewhere(&self, part: &Range<u64>, base: PageSize) -> Result<bool, SysError> {
        const CALL: &str = "read(/proc/self/pagemap)";
        const PRESENT: u64 = 1 << 63;
        const EXCLUSIVE: u64 = 1 << 56;
        let (at, len) = self.within(CALL, part)?;
        let page = self.reserved.part(CALL, at, len)?.as_ptr().addr() as u64 / base.bytes();
        let pages = usize::try_from(len as u64 / base.bytes()).unwrap_or(0);
        let mut entries = vec![0u8; pages * size_of::<u64>()];
        let pagemap = ProcDir::this_process()?.open_file("pagemap", false)?;
        pagemap.read_exact_at(&mut entries, page * size_of::<u64>() as u64).map_err(|error| {
            SysError { call: CALL, errno: Errno(error.raw_os_error().unwrap_or(libc::EIO)) }
        })?;
        let (entries, _none) = entries.as_chunks::<{ size_of::<u64>() }>();
        Ok(entries.iter().any(|entry| {
            let entry = u64::from_ne_bytes(*entry);
            entry & PRESENT != 0 && entry & EXCLUSIVE == 0
        }))
    }

    /// Returns which parts of the file this mapping maps by PMD entries now: the touched parts that
    /// are huge folios. Ascending, adjoining parts merged.
    ///
    /// # Errors
    /// `/proc/self` cannot be read.
    ///
    /// # Kernel
    /// `ioctl(PAGEMAP_SCAN)` since Linux 6.7. Before 6.7, smaps says only whether all of the mapping
    /// is huge or nothing.
    pub fn huge_parts(&self) -> Result<Vec<Range<u64>>, SysError> {
        match self.huge_by_scan() {
            Err(error) if matches!(error.errno, Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
                self.huge_by_smaps()
            }
            parts => parts,
        }
    }

    fn huge_by_scan(&self) -> Result<Vec<Range<u64>>, SysError> {
        let pagemap = ProcDir::this_process()?.open_file("pagemap", false)?;
        let start = self.reserved.start().as_ptr().addr() as u64;
        let range = start..start + self.reserved.len() as u64;
        let wanted = pagemap_scan::PRESENT | pagemap_scan::HUGE | pagemap_scan::FILE;
        let parts = pagemap_scan::scan(&pagemap, range, wanted, wanted)?;
        let to_file = |addr: u64| addr.saturating_sub(start) + self.file_range.start;
        let in_file =
            |part: &pagemap_scan::Found| to_file(part.range.start)..to_file(part.range.end);
        Ok(parts.iter().map(in_file).collect())
    }

    fn huge_by_smaps(&self) -> Result<Vec<Range<u64>>, SysError> {
        let text = ProcDir::this_process()?.read("smaps")?;
        let entries = smaps::parse(&text)
            .map_err(|_unreadable| SysError { call: "smaps", errno: Errno::INVAL })?;
        let start = self.reserved.start().as_ptr().addr() as u64;
        let entry = entries.iter().find(|entry| entry.vma.range.start().get() == start);
        let huge = entry.map_or(0, |entry| entry.file_huge);
        let all = huge == self.reserved.len() as u64;
        Ok(if all { vec![self.file_range.clone()] } else { Vec::new() })
    }
}

/// Returns whether the kernel shows this process what is cached of the file. It shows that to the
/// file's owner, to processes that may write to it, and to CAP_FOWNER (`mm/mincore.c`,
/// `can_do_mincore`).
///
/// # Errors
/// The file cannot be mapped.
pub fn may_look(file: &File, pages: Pages) -> Result<bool, SysError> {
    // A page past the end of the file is never cached. To a process without the right, the kernel
    // shows all pages as cached.
    let size = rustix::fs::fstat(file).map_err(SysError::of("fstat"))?.st_size;
    let past = u64::try_from(size)
        .ok()
        .and_then(|size| size.checked_next_multiple_of(pages.pmd.bytes()))
        .ok_or(SysError { call: "fstat", errno: Errno::INVAL })?;
    let mapping = FileMapping::new(file, past..past + pages.pmd.bytes(), pages.pmd)?;
    Ok(mapping.cached_parts(&(past..past + pages.base.bytes()), pages.base)?.is_empty())
}

/// `posix_fadvise(POSIX_FADV_DONTNEED)` — drops the cached pages of `part` that are clean and that no
/// process maps. [`FileMapping::cached_parts`] returns what remains.
///
/// # Errors
/// EINVAL, ESPIPE if `file` is not a file.
pub fn evict(file: &File, part: &Range<u64>) -> Result<(), SysError> {
    const CALL: &str = "posix_fadvise(POSIX_FADV_DONTNEED)";
    let len = part.end.checked_sub(part.start).and_then(std::num::NonZeroU64::new);
    let len = len.ok_or(SysError { call: CALL, errno: Errno::INVAL })?;
    rustix::fs::fadvise(file, part.start, Some(len), rustix::fs::Advice::DontNeed)
        .map_err(SysError::of(CALL))
}

/// The counters of cachestat(2), in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CacheState {
    /// Pages in the page cache.
    pub cached: u64,
    /// The cached pages that must be written back.
    pub dirty: u64,
    /// The cached pages that are being written back now.
    pub writeback: u64,
    /// Pages that were cached before.
    pub evicted: u64,
    /// The evicted pages that were evicted under pressure a short time ago.
    pub recently_evicted: u64,
}

/// `cachestat` — counts the pages of `part` of the file, or of all of it if `part` is empty.
///
/// # Errors
/// ENOSYS before Linux 6.5; EPERM if this process neither owns the file nor may write to it (6.14);
/// EOPNOTSUPP on hugetlbfs.
pub fn cache_state(file: &File, part: &Range<u64>) -> Result<CacheState, SysError> {
    let range = if part.is_empty() { [0, 0] } else { [part.start, part.end - part.start] };
    let mut state = CacheState::default();
    // SAFETY: `range` is the two u64 of a struct cachestat_range, `state` the five of a struct
    // cachestat. Both live through the call, which writes only to `state`.
    let returned = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            &raw mut state,
            0 as libc::c_uint,
        )
    };
    check("cachestat", returned)?;
    Ok(state)
}

/// `fcntl(F_SETLEASE, F_RDLCK)` — returns whether a process has the file open for writing. Gives the
/// lease back at once. `file` must be open for reading only.
///
/// # Errors
/// EACCES if this process neither owns the file nor has CAP_LEASE; EINVAL if the file system has no
/// leases.
pub fn is_open_for_writing(file: &File) -> Result<bool, SysError> {
    Ok(Lease::try_take(file, Against::Writers)?.is_none())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file of three huge pages, cached in folios of any size.
    fn file(pages: Pages) -> File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        let block = vec![1; usize::try_from(pages.pmd.bytes()).expect("a huge page fits")];
        (0..3).for_each(|_| file.write_all(&block).expect("room on the disk"));
        file.sync_all().expect("fsync");
        file
    }

    #[test]
    fn both_ways_to_see_huge_pages_agree() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        let file = file(pages);
        let pmd = pages.pmd.bytes();
        evict(&file, &(0..3 * pmd)).expect("an own file");
        let mapping = FileMapping::new(&file, 0..2 * pmd, pages.pmd).expect("an own file");
        assert_eq!(mapping.huge_parts(), Ok(vec![]));
        assert_eq!(mapping.huge_by_smaps(), Ok(vec![]));
        mapping.advise_huge().expect("a kernel with THP");
        mapping.populate(&(0..2 * pmd)).expect("an own file");
        let seen = mapping.huge_parts().expect("/proc");
        if seen == vec![0..2 * pmd; 1] {
            assert_eq!(mapping.huge_by_smaps(), Ok(seen));
        } else {
            assert_eq!(mapping.huge_by_smaps(), Ok(vec![]), "all or nothing");
        }
    }

    #[test]
    fn a_second_mapping_is_seen_where_it_was_touched() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        let file = file(pages);
        let pmd = pages.pmd.bytes();
        let (first, second) = (0..pmd, pmd..2 * pmd);
        let one = FileMapping::new(&file, 0..2 * pmd, pages.pmd).expect("an own file");
        one.populate(&(0..2 * pmd)).expect("an own file");
        assert_eq!(one.is_mapped_elsewhere(&first, pages.base), Ok(false));
        let two = FileMapping::new(&file, first.clone(), pages.pmd).expect("an own file");
        two.populate(&first).expect("an own file");
        assert_eq!(one.is_mapped_elsewhere(&first, pages.base), Ok(true));
        assert_eq!(one.is_mapped_elsewhere(&second, pages.base), Ok(false));
        // The kernel does not evict what is mapped elsewhere.
        drop(one);
        evict(&file, &(0..2 * pmd)).expect("an own file");
        assert_eq!(two.cached_parts(&first, pages.base), Ok(vec![first.clone()]));
    }

    #[test]
    fn odd_ranges_are_refused() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        let file = file(pages);
        let (base, pmd) = (pages.base.bytes(), pages.pmd.bytes());
        for range in [0..0, 0..base, base..base + pmd, 2 * pmd..pmd, 0..u64::MAX] {
            assert!(FileMapping::new(&file, range.clone(), pages.pmd).is_err(), "{range:?}");
        }
        let mapping = FileMapping::new(&file, pmd..2 * pmd, pages.pmd).expect("an own file");
        for part in [0..base, pmd..3 * pmd, u64::MAX - base..u64::MAX] {
            assert!(mapping.populate(&part).is_err(), "{part:?}");
        }
    }
}
