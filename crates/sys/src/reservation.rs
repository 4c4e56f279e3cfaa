//! Address space of this process, reserved without memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use tiexec_core::addr::PageSize;

use crate::error::{Errno, SysError, check};

/// `MADV_COLLAPSE` (madvise(2)), since Linux 6.1.
pub(crate) const MADV_COLLAPSE: libc::c_int = 25;

/// Inaccessible address space that begins on a multiple of a page size, for mappings to be placed over it.
/// Dropping it unmaps all of it, with those mappings.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// The reserved range: `len` bytes and the slack that the alignment needs.
    all: NonNull<u8>,
    all_len: usize,
    start: NonNull<u8>,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes on a multiple of `align`.
    ///
    /// # Errors
    /// ENOMEM at `RLIMIT_AS` or `vm.max_map_count`.
    pub(crate) fn new(len: usize, align: PageSize) -> Result<Self, SysError> {
        let align = usize::try_from(align.bytes()).unwrap_or(usize::MAX);
        let overflow = SysError { call: "mmap", errno: Errno::NOMEM };
        let all_len = len.checked_add(align).ok_or(overflow)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let all = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                all_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(SysError::of("mmap(PROT_NONE)"))?;
        let all = NonNull::new(all.cast::<u8>()).ok_or(overflow)?;
        let slack = all.as_ptr().align_offset(align);
        // SAFETY: `slack` is below `align`, and `len + align` bytes were reserved.
        let start = unsafe { all.add(slack) };
        Ok(Self { all, all_len, start, len })
    }

    /// Returns the first address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes, without the slack.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of byte `at` if `len` bytes from there lie in the reservation.
    ///
    /// # Errors
    /// EINVAL, in the name of `call`, if they do not lie in it.
    pub(crate) fn part(
        &self,
        call: &'static str,
        at: usize,
        len: usize,
    ) -> Result<NonNull<u8>, SysError> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(SysError { call, errno: Errno::INVAL });
        }
        // SAFETY: `at` is inside the reservation, as just checked.
        Ok(unsafe { self.start.add(at) })
    }

    /// `mmap(MAP_FIXED)` — maps `len` bytes from byte `at` on: those of a file from an offset on, or anonymous memory.
    ///
    /// # Errors
    /// As mmap(2), and as [`part`](Self::part).
    pub(crate) fn map(
        &self,
        call: &'static str,
        [at, len]: [usize; 2],
        protection: ProtFlags,
        flags: MapFlags,
        file: Option<(&File, u64)>,
    ) -> Result<(), SysError> {
        let start = self.part(call, at, len)?.as_ptr().cast();
        let flags = flags | MapFlags::FIXED;
        let mapped = match file {
            // SAFETY: the range lies in our own reservation, of which no reference is alive.
            Some((file, offset)) => unsafe {
                rustix::mm::mmap(start, len, protection, flags, file.as_fd(), offset)
            },
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(start, len, protection, flags) },
        };
        mapped.map(drop).map_err(SysError::of(call))
    }

    /// `mincore` — returns, for each page of `len` bytes from byte `at`, whether it is in memory.
    ///
    /// # Errors
    /// EAGAIN if the kernel is out of memory; EINVAL if the bytes are not part of the reservation.
    pub(crate) fn resident(
        &self,
        at: usize,
        len: usize,
        page: usize,
    ) -> Result<impl Iterator<Item = bool> + use<>, SysError> {
        const CALL: &str = "mincore";
        let start = self.part(CALL, at, len)?;
        let mut states = vec![0_u8; len.div_ceil(page)];
        // SAFETY: the kernel reads no memory of this process. It writes one byte for each page, and `states` has
        // that many bytes.
        let returned =
            unsafe { libc::mincore(start.as_ptr().cast(), len, states.as_mut_ptr().cast()) };
        check(CALL, returned.into())?;
        Ok(states.into_iter().map(|state| state & 1 == 1))
    }

    /// `madvise` on `len` bytes from byte `at`, with an advice that changes how memory is backed but not its
    /// content.
    ///
    /// # Errors
    /// As madvise(2), and as [`part`](Self::part).
    pub(crate) fn advise(
        &self,
        call: &'static str,
        at: usize,
        len: usize,
        advice: libc::c_int,
    ) -> Result<(), SysError> {
        let part = self.part(call, at, len)?;
        // SAFETY: the range lies in our own reservation, of which no reference is alive.
        let returned = unsafe { libc::madvise(part.as_ptr().cast(), len, advice) };
        check(call, returned.into())?;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the whole reservation is ours, and no reference into it outlives its owner.
        let _best_effort = unsafe { rustix::mm::munmap(self.all.as_ptr().cast(), self.all_len) };
    }
}
