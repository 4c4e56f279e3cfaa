//! Bytes in memory on base pages, or on huge pages, to measure the time of their use.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tiexec_core::addr::Pages;

use crate::error::{Errno, SysError};
use crate::memory::FillMapping;
use crate::reservation::Reservation;

/// A copy of some bytes, mapped without write permission. It begins on a multiple of the huge page.
pub(crate) struct TimedCopy(Reservation);

impl TimedCopy {
    /// Makes a copy of `bytes`, whose length is a multiple of the huge page, on base pages or on huge pages.
    ///
    /// # Errors
    /// ENOMEM and the like, without memory or huge pages.
    pub(crate) fn of(
        bytes: &[u8],
        pages: Pages,
        huge: bool,
        protection: ProtFlags,
    ) -> Result<Self, SysError> {
        let fd = memfd_create("tiexec:measure", MemfdFlags::CLOEXEC)
            .map_err(SysError::of("memfd_create"))?;
        let file = File::from(fd);
        rustix::fs::ftruncate(&file, bytes.len() as u64).map_err(SysError::of("ftruncate"))?;
        let mut fill = FillMapping::new(&file, bytes.len(), pages.pmd)?;
        let overflow = |_| SysError { call: "measure", errno: Errno::INVAL };
        let base = usize::try_from(pages.base.bytes()).map_err(overflow)?;
        let pmd = usize::try_from(pages.pmd.bytes()).map_err(overflow)?;
        if huge {
            fill.make_huge(0, bytes.len(), pmd, base)?;
        } else {
            fill.populate(0, bytes.len())?;
        }
        fill.write(0, bytes)?;
        drop(fill);
        Self::map(&file, bytes.len(), pages, protection)
    }

    fn map(file: &File, len: usize, pages: Pages, protection: ProtFlags) -> Result<Self, SysError> {
        let reserved = Reservation::new(len, pages.pmd)?;
        let start = reserved.start().as_ptr();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the `len` bytes at `start` lie in the reservation just made, which no other code knows of.
        unsafe { rustix::mm::mmap(start.cast(), len, protection, flags, file.as_fd(), 0) }
            .map_err(SysError::of("mmap(MAP_PRIVATE)"))?;
        // SAFETY: populating our own fresh mapping changes nothing that a reference could see.
        unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxPopulateRead) }
            .map_err(SysError::of("madvise(MADV_POPULATE_READ)"))?;
        Ok(Self(reserved))
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}

/// Returns `len` bytes of zero.
///
/// # Errors
/// ENOMEM under a limit on address space.
pub(crate) fn zeroes(len: usize) -> Result<Vec<u8>, SysError> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(len);
    reserved.map_err(|_none| SysError { call: "malloc", errno: Errno::NOMEM })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Returns the numbers below `count` in an order without pattern, the same every time. The first is 0.
pub(crate) fn without_pattern(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = SEED;
    for index in (2..count).rev() {
        order.swap(index, 1 + next(&mut state) % index);
    }
    order
}

/// Returns `count` numbers below `limit` without order, the same every time. Numbers repeat.
pub(crate) fn without_order(count: usize, limit: usize) -> impl Iterator<Item = usize> {
    let mut state = SEED;
    (0..count).map(move |_| next(&mut state) % limit)
}

const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// Returns the next number of a fixed linear congruential sequence.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}
