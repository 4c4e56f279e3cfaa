//! A memfd, or a file of a tmpfs, mapped here to be filled, aligned to huge pages.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use tiexec_core::addr::PageSize;

use crate::error::{Errno, SysError, check};
use crate::reservation::{MADV_COLLAPSE, Reservation};

/// A shared, writable mapping of a memfd in this process, beginning on a multiple of the huge page.
/// Unmapped when dropped.
#[derive(Debug)]
pub struct FillMapping(Reservation);

impl FillMapping {
    /// Maps the first `len` bytes of `memfd`, read and write, shared. `len` must be a multiple of
    /// `align`, and the file that long.
    ///
    /// # Errors
    /// ENOMEM at `RLIMIT_AS`, or for hugetlb where the pool or the cgroup has too few pages.
    pub fn new(memfd: &File, len: usize, align: PageSize) -> Result<Self, SysError> {
        Self::at(memfd, 0, len, align)
    }

    /// As [`new`](Self::new), from byte `file_offset` of the file, a multiple of `align`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(
        file: &File,
        file_offset: u64,
        len: usize,
        align: PageSize,
    ) -> Result<Self, SysError> {
        let reserved = Reservation::new(len, align)?;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let of_file = Some((file, file_offset));
        reserved.map("mmap(MAP_SHARED)", [0, len], writable, MapFlags::SHARED, of_file)?;
        Ok(Self(reserved))
    }

    /// Returns the address of byte `at` if `len` bytes from there lie in the mapping.
    fn part(&self, at: usize, len: usize) -> Result<NonNull<u8>, SysError> {
        self.0.part("fill", at, len)
    }

    /// `madvise(MADV_HUGEPAGE)` — lets faults in the whole mapping take huge pages where the shmem policy is
    /// `advise`. A kernel without THP returns EINVAL, which does no harm here.
    pub fn advise_huge(&self) {
        let _unsupported =
            self.0.advise("madvise(MADV_HUGEPAGE)", 0, self.0.len(), libc::MADV_HUGEPAGE);
    }

    /// `mbind(MPOL_PREFERRED)` — makes the kernel take pages of the range that do not exist yet from `node`,
    /// or from another node if that one has no room. `at` is a multiple of the page. The policy of a memfd in
    /// base pages or THP stays with the file; the policy of a memfd in hugetlb pages stays with this mapping.
    ///
    /// # Errors
    /// EINVAL for a node without memory, or one that the cpuset forbids; ENOSYS without `CONFIG_NUMA`; EPERM
    /// under a seccomp filter such as Docker's.
    pub fn prefer_node(&self, at: usize, len: usize, node: u32) -> Result<(), SysError> {
        const CALL: &str = "mbind(MPOL_PREFERRED)";
        const BITS: usize = libc::c_ulong::BITS as usize;
        let part = self.0.part(CALL, at, len)?;
        let node = usize::try_from(node).unwrap_or(usize::MAX);
        let mut mask = [0 as libc::c_ulong; 16];
        let word = mask.get_mut(node / BITS).ok_or(SysError { call: CALL, errno: Errno::INVAL })?;
        *word |= 1 << (node % BITS);
        // The kernel takes one bit less than the number says.
        let bits = mask.len() * BITS + 1;
        let mode = libc::MPOL_PREFERRED;
        // SAFETY: the range lies in our own mapping. A policy only changes where new pages come from, and
        // nothing that a reference could see. `mask` has `bits - 1` bits and outlives the call.
        let returned = unsafe {
            libc::syscall(libc::SYS_mbind, part.as_ptr(), len, mode, mask.as_ptr(), bits, 0)
        };
        check(CALL, returned)?;
        Ok(())
    }

    /// `madvise(MADV_POPULATE_WRITE)` — allocates the pages of the range, zero-filled, and returns an error if
    /// it cannot, where a touch would die of SIGBUS. Since Linux 5.14.
    ///
    /// # Errors
    /// ENOMEM or EFAULT without memory, pool page or cgroup room.
    pub fn populate(&self, at: usize, len: usize) -> Result<(), SysError> {
        self.0.advise("madvise(MADV_POPULATE_WRITE)", at, len, libc::MADV_POPULATE_WRITE)
    }

    /// `mincore` — returns whether all of the range is in memory. If at most one base page of each huge page
    /// has been populated and all is in memory, the kernel has made huge pages by itself: because of the shmem
    /// policy, or of the mount's.
    pub fn is_resident(&self, at: usize, len: usize) -> bool {
        let pages = self.0.resident(at, len, rustix::param::page_size());
        pages.is_ok_and(|mut pages| pages.all(|resident| resident))
    }

    /// Makes huge pages, not written to yet, of the `len` bytes at `at`; `huge` and `base` are the sizes of a huge page and of
    /// a base page, in bytes. The shmem policy or the mount's `huge=` makes it, which needs Linux 5.14; otherwise
    /// [`collapse`](Self::collapse).
    ///
    /// # Errors
    /// As [`populate`](Self::populate) and [`collapse`](Self::collapse); a base page of each exists then.
    pub fn make_huge(
        &self,
        at: usize,
        len: usize,
        huge: usize,
        base: usize,
    ) -> Result<(), SysError> {
        // Populate one base page first: the kernel collapses no range that is one hole. Where the policy is
        // `advise`, this fault already brings the huge page.
        for page in (at..at + len).step_by(huge) {
            self.populate(page, base)?;
        }
        if self.is_resident(at, len) {
            return Ok(());
        }
        self.collapse(at, len).or_else(|error| {
            // The obstacle passes: another process was just using a page.
            if error.errno == Errno::AGAIN { self.collapse(at, len) } else { Err(error) }
        })
    }

    /// `madvise(MADV_COLLAPSE)` — makes the range huge pages now, whatever THP's settings are. Since Linux
    /// 6.1.
    ///
    /// # Errors
    /// ENOMEM without a free huge page; EAGAIN for a passing obstacle; EINVAL if the range cannot be huge.
    pub fn collapse(&self, at: usize, len: usize) -> Result<(), SysError> {
        self.0.advise("madvise(MADV_COLLAPSE)", at, len, MADV_COLLAPSE)
    }

    /// Copies `bytes` to byte `at` of the mapping. The pages there must have been populated, or must be
    /// certain to be available: a touch that finds no memory dies of SIGBUS.
    ///
    /// # Errors
    /// EINVAL if they do not fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), SysError> {
        let part = self.part(at, bytes.len())?;
        // SAFETY: the destination is `bytes.len()` bytes of this mapping, as `part` checked. This mapping does
        // not overlap the caller's slice.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// `pread(file, …, file_offset)` — copies `len` bytes of the file to byte `at` of the mapping. Returns the
    /// number of bytes copied, which is less than `len` only at the end of the file.
    ///
    /// # Errors
    /// EIO and the like; EFAULT if the mapping has no page there and cannot get one.
    pub fn read_from(
        &mut self,
        file: &File,
        file_offset: u64,
        at: usize,
        len: usize,
    ) -> Result<usize, SysError> {
        let part = self.part(at, len)?;
        // SAFETY: the bytes lie in our own mapping of a memfd that only this process writes to, no
        // other reference to them is alive, and any byte is a valid u8.
        let buffer = unsafe { std::slice::from_raw_parts_mut(part.as_ptr(), len) };
        let mut done = 0;
        while done < len {
            let offset = file_offset + done as u64;
            match rustix::io::pread(file, &mut buffer[done..], offset) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(SysError { call: "pread", errno: errno.into() }),
            }
        }
        Ok(done)
    }
}
