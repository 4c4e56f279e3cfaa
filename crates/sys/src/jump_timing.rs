//! The gain of huge text on this very machine: jumps through generated code on base pages, and on
//! huge pages.
//!
//! A host can map a guest's huge pages by small ones. Then the TLB gains nothing, and no setting inside
//! the guest tells; only a measurement does.

use std::fs::File;
use std::ptr::NonNull;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::AsFd;
use tiexec_core::addr::Pages;

use crate::arch;
use crate::error::{Errno, SysError};
use crate::memory::FillMapping;

/// Nanoseconds for a jump to another page, the best of several rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct JumpTimes {
    /// In text on base pages.
    pub base_ns: f64,
    /// In text on huge pages.
    pub huge_ns: f64,
}

/// How often it is measured, each time in other memory.
pub const COPIES: usize = 5;
/// The memory that [`measure`] takes for its time, in bytes.
pub const MEMORY: u64 = 5 * LEN as u64;

/// How much text the jumps go through: far beyond any instruction TLB on base pages, well within
/// the second level on huge ones.
const LEN: usize = 32 << 20;
/// Both ways by turns: what shares the core and slows down must not be one of the two alone.
const ROUNDS: usize = 6;
/// Runs in a round.
const RUNS: usize = 4;

/// Measures both, several times: the memory may lie on huge pages of the host's or not, and what shares the
/// core may go on for longer than one measurement takes. Takes about 0.5 s, and 160 MiB for that time.
///
/// # Errors
/// ENOSYS where one huge page is more than all that is jumped through; ENOMEM and the like.
pub fn measure(pages: Pages) -> Result<[JumpTimes; COPIES], SysError> {
    if pages.pmd.bytes() > LEN as u64 {
        return Err(SysError { call: "measure", errno: Errno::NOSYS });
    }
    let base = usize::try_from(pages.base.bytes())
        .map_err(|_overflow| SysError { call: "measure", errno: Errno::INVAL })?;
    let (code, count) = chain(base);
    // The other's code has been through the caches: a first run does not count.
    let time = |text: &Text| {
        text.run();
        let times = (0..RUNS).map(|_| {
            let start = Instant::now();
            text.run();
            start.elapsed().as_secs_f64() * 1e9 / count as f64
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let mut all = [JumpTimes { base_ns: f64::INFINITY, huge_ns: f64::INFINITY }; COPIES];
    // Kept until the next ones are there, which would be given the same memory again.
    let mut before = None;
    for best in &mut all {
        let both = (Text::of(&code, pages, false)?, Text::of(&code, pages, true)?);
        for _ in 0..ROUNDS {
            best.base_ns = best.base_ns.min(time(&both.0));
            best.huge_ns = best.huge_ns.min(time(&both.1));
        }
        before = Some(both);
    }
    drop(before);
    Ok(all)
}

/// Generates one jump on every page, each to another page in an order without pattern; the last one
/// returns. The first is at byte 0.
fn chain(page: usize) -> (Vec<u8>, usize) {
    let count = LEN / page;
    let mut order: Vec<usize> = (0..count).collect();
    // A fixed linear congruential sequence: every run jumps the same way.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for index in (2..count).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Page 0 stays first.
        let other = 1 + (state >> 33) as usize % index;
        order.swap(index, other);
    }
    // Another cache line on each page, or all would fall into one set.
    let place = |page_index: usize| {
        page_index * page + if page_index == 0 { 0 } else { page_index % 61 * 64 }
    };
    let mut code = arch::FILLER.repeat(LEN / arch::FILLER.len());
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    for pair in order.windows(2) {
        let (from, to) = (place(pair[0]), place(pair[1]));
        put(from, &arch::jump((to as i64 - from as i64) as i32));
    }
    if let Some(&last) = order.last() {
        put(place(last), arch::RETURN);
    }
    (code, count)
}

/// Generated code, mapped read and execute.
struct Text {
    reserved: NonNull<u8>,
    reserved_len: usize,
    start: NonNull<u8>,
}

impl Text {
    /// Makes a copy of the code, on base pages or on huge pages.
    fn of(code: &[u8], pages: Pages, huge: bool) -> Result<Self, SysError> {
        let fd = memfd_create("tiexec:measure", MemfdFlags::CLOEXEC)
            .map_err(SysError::of("memfd_create"))?;
        let file = File::from(fd);
        rustix::fs::ftruncate(&file, LEN as u64).map_err(SysError::of("ftruncate"))?;
        let mut fill = FillMapping::new(&file, LEN, pages.pmd)?;
        let overflow = |_| SysError { call: "measure", errno: Errno::INVAL };
        let base = usize::try_from(pages.base.bytes()).map_err(overflow)?;
        let pmd = usize::try_from(pages.pmd.bytes()).map_err(overflow)?;
        if huge {
            for at in (0..LEN).step_by(pmd) {
                fill.make_huge(at, pmd, base)?;
            }
        } else {
            fill.populate(0, LEN)?;
        }
        fill.write(0, code)?;
        drop(fill);
        Self::map(&file, pmd)
    }

    fn map(file: &File, align: usize) -> Result<Self, SysError> {
        let nowhere = SysError { call: "mmap", errno: Errno::NOMEM };
        let reserved_len = LEN + align;
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let reserved =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved_len, none, flags) }
                .map_err(SysError::of("mmap(PROT_NONE)"))?;
        let reserved = NonNull::new(reserved.cast::<u8>()).ok_or(nowhere)?;
        let slack = reserved.as_ptr().align_offset(align);
        // SAFETY: `slack` is below `align`, and `LEN + align` bytes were reserved.
        let start = unsafe { reserved.add(slack) };
        let text = Self { reserved, reserved_len, start };
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the `LEN` bytes at `start` lie in the reservation just made.
        unsafe { rustix::mm::mmap(start.as_ptr().cast(), LEN, protection, flags, file.as_fd(), 0) }
            .map_err(SysError::of("mmap(PROT_EXEC)"))?;
        // SAFETY: populating our own fresh mapping changes nothing that anybody refers to.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), LEN, Advice::LinuxPopulateRead) }
            .map_err(SysError::of("madvise(MADV_POPULATE_READ)"))?;
        Ok(text)
    }

    fn run(&self) {
        // SAFETY: `start` points at the chain: jumps that stay inside the mapping and end in a
        // return. It touches no register, no stack and no memory.
        let code: extern "C" fn() = unsafe { std::mem::transmute(self.start) };
        code();
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the whole reservation is ours, and no code of it runs any more.
        let _best_effort =
            unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_page_once_and_returns() {
        let page = 4096;
        let (code, count) = chain(page);
        let (mut at, mut visited) = (0usize, std::collections::HashSet::new());
        loop {
            assert!(visited.insert(at / page), "page {} twice", at / page);
            if code[at..].starts_with(arch::RETURN) {
                break;
            }
            let distance = arch::jump_distance(&code[at..]).expect("a jump");
            at = (at as i64 + i64::from(distance)) as usize;
        }
        assert_eq!(visited.len(), count);
    }
}
