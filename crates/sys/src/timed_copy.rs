//! Bytes in memory on base pages, or on huge pages, to measure the time of their use.

use std::fs::File;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tiexec_core::addr::Pages;

use crate::error::{Errno, SysError};
use crate::memory::FillMapping;
use crate::reservation::Reservation;

/// The name of the memory. It must not be that of an image: `revert --all` would take the measurement for a program in copies.
const NAME: &str = "tiexec-measure";

/// The memory of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Base pages.
    Base,
    /// Base pages whose neighbours are not neighbours in physical memory: a processor may join neighbours into one entry of
    /// its TLB.
    Scattered,
    /// Huge pages.
    Huge,
}

/// A copy of some bytes, mapped without write permission. It begins on a multiple of the huge page.
pub(crate) struct TimedCopy(Reservation);

impl TimedCopy {
    /// Makes a copy of `bytes`, whose length is a multiple of the huge page.
    ///
    /// # Errors
    /// ENOMEM and the like, without memory or huge pages.
    pub(crate) fn of(
        bytes: &[u8],
        pages: Pages,
        kind: Kind,
        protection: ProtFlags,
    ) -> Result<Self, SysError> {
        Self::filled([bytes.len(), 1], pages, kind, protection, |fill| fill.write(0, bytes))
    }

    /// Makes `len` bytes, a multiple of the huge page, of which `fill` fills a part. They are mapped `times` times, one copy behind
    /// the other.
    ///
    /// # Errors
    /// As [`of`](Self::of); ENOMEM at `RLIMIT_AS` and at `vm.max_map_count`.
    pub(crate) fn filled(
        [len, times]: [usize; 2],
        pages: Pages,
        kind: Kind,
        protection: ProtFlags,
        fill: impl FnOnce(&mut FillMapping) -> Result<(), SysError>,
    ) -> Result<Self, SysError> {
        Self::map(&filled(len, pages, kind, fill)?, [len, times], pages, protection)
    }

    fn map(
        file: &File,
        [len, times]: [usize; 2],
        pages: Pages,
        protection: ProtFlags,
    ) -> Result<Self, SysError> {
        let all = len.checked_mul(times).ok_or(OVERFLOW)?;
        let reserved = Reservation::new(all, pages.pmd)?;
        for at in (0..all).step_by(len) {
            let (flags, of_file) = (MapFlags::PRIVATE, Some((file, 0)));
            reserved.map("mmap(MAP_PRIVATE)", [at, len], protection, flags, of_file)?;
        }
        let start = reserved.start().as_ptr();
        // SAFETY: populating our own fresh mapping changes nothing that a reference could see.
        unsafe { rustix::mm::madvise(start.cast(), all, Advice::LinuxPopulateRead) }
            .map_err(SysError::of("madvise(MADV_POPULATE_READ)"))?;
        Ok(Self(reserved))
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}

const OVERFLOW: SysError = SysError { call: "measure", errno: Errno::INVAL };

/// Makes a memfd of `len` bytes of this kind of memory, which `fill` fills.
fn filled(
    len: usize,
    pages: Pages,
    kind: Kind,
    fill: impl FnOnce(&mut FillMapping) -> Result<(), SysError>,
) -> Result<File, SysError> {
    let fd = memfd_create(NAME, MemfdFlags::CLOEXEC).map_err(SysError::of("memfd_create"))?;
    let file = File::from(fd);
    rustix::fs::ftruncate(&file, len as u64).map_err(SysError::of("ftruncate"))?;
    let mut mapping = FillMapping::new(&file, len, pages.pmd)?;
    let base = usize::try_from(pages.base.bytes()).map_err(|_overflow| OVERFLOW)?;
    let pmd = usize::try_from(pages.pmd.bytes()).map_err(|_overflow| OVERFLOW)?;
    match kind {
        Kind::Base => mapping.populate(0, len)?,
        Kind::Scattered => {
            // Pages that are populated one after the other are neighbours in physical memory. The pages stay close together, as those of a
            // file are: the walks of a program's text find most of the page tables in the caches.
            for index in 0..len / base {
                let page = index / WINDOW * WINDOW + index * STRIDE % WINDOW;
                mapping.populate(page * base, base)?;
            }
        }
        Kind::Huge => mapping.make_huge(0, len, pmd, base)?,
    }
    fill(&mut mapping)?;
    Ok(file)
}

/// The pages of [`Kind::Scattered`] change places within this number of them, a power of two.
const WINDOW: usize = 64;
/// The distance of pages that are neighbours in physical memory; odd, and far from the numbers that a processor may join.
const STRIDE: usize = 29;

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
// The compiler would make a copy for each number of places.
#[inline(never)]
pub(crate) fn without_pattern(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = SEED;
    for index in (2..count).rev() {
        order.swap(index, 1 + next(&mut state) % index);
    }
    order
}

/// Returns numbers without order, the same every time.
pub(crate) fn without_order() -> impl Iterator<Item = usize> {
    let mut state = SEED;
    std::iter::repeat_with(move || next(&mut state))
}

const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// Returns the next number of a fixed linear congruential sequence.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_not_taken_for_an_image() {
        let shown = format!("/memfd:{NAME} (deleted)");
        assert!(!shown.as_bytes().starts_with(tiexec_core::coverage::IMAGE_NAME_PREFIX));
    }
}
