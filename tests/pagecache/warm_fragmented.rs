//! `tiexecctl warm` makes text huge even if memory is fragmented.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use support::machine::{FELT, Machine, is_throwaway};
use support::warm::{directory, has_large_folios, huge, small, warm};
use support::{Kind, pmd_size, program_big, require, require_of_machine};

const PAGE: usize = 4096;
/// One page of this number stays allocated, so that no free block is this large.
const KEPT_OF: usize = 32;

/// Most of the machine's memory. It is allocated in base pages, and freed except for one page of each 32. Drop frees
/// the rest.
struct Fragments {
    at: *mut libc::c_void,
    len: usize,
}

impl Fragments {
    fn new() -> Fragments {
        /// The memory left for other programs.
        const LEFT: u64 = 192 << 20;
        let len = usize::try_from(available().saturating_sub(LEFT)).expect("it fits");
        let len = len / (KEPT_OF * PAGE) * (KEPT_OF * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        for page in (0..len).step_by(PAGE) {
            // SAFETY: a byte of the mapping just made.
            unsafe { at.cast::<u8>().wrapping_add(page).write_volatile(1) };
        }
        for group in (0..len).step_by(KEPT_OF * PAGE) {
            let rest = at.wrapping_byte_add(group + PAGE);
            // SAFETY: pages of the new mapping, which no code reads again.
            unsafe { libc::madvise(rest, (KEPT_OF - 1) * PAGE, libc::MADV_DONTNEED) };
        }
        Fragments { at, len }
    }
}

impl Drop for Fragments {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// The free blocks of at least a huge page, over all zones.
fn free_huge_blocks() -> u64 {
    let order = (pmd_size() / PAGE as u64).trailing_zeros() as usize;
    let text = std::fs::read_to_string("/proc/buddyinfo").expect("buddyinfo");
    let counts = text.lines().flat_map(|line| line.split_whitespace().skip(4 + order));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

/// Huge pages that are kept from other programs. Drop frees them.
#[derive(Default)]
struct Taken(Vec<*mut libc::c_void>);

impl Taken {
    /// Takes all but a few of the huge pages that are free without compaction.
    fn take(&mut self) {
        let len = usize::try_from(pmd_size()).expect("it fits");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // The kernel may compact meanwhile.
        while free_huge_blocks() > FEW / 2 && self.0.len() < MOST {
            // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * len, protection, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
            let start = at.wrapping_byte_add(at.align_offset(len));
            // SAFETY: the aligned part of the mapping just made.
            unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
            // SAFETY: its first byte.
            unsafe { start.cast::<u8>().write_volatile(1) };
            self.0.push(at);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for at in &self.0 {
            // SAFETY: mappings made by `take`.
            unsafe { libc::munmap(*at, 2 * usize::try_from(pmd_size()).expect("it fits")) };
        }
    }
}

/// Keeps the programs of this test in memory. Guests run them from a share (9p). A page of the share that was read
/// again while memory was fragmented sometimes contained zeros (Linux 6.12), and ld.so died by SIGSEGV.
fn keep_programs() {
    let file = std::fs::File::open(support::tiexecctl()).expect("the program under test");
    let len = usize::try_from(file.metadata().expect("its size").len()).expect("it fits");
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    // SAFETY: takes flags only.
    let locked = unsafe { libc::mlockall(libc::MCL_CURRENT) };
    assert_eq!(locked, 0, "mlockall: {}", std::io::Error::last_os_error());
}

/// The number of copies of a program that are warmed together.
const COPIES: u64 = 4;
/// A number of free huge pages that is too small to help.
const FEW: u64 = 16;
/// The most huge pages that are taken, so that enough memory is left for the program in small pages.
const MOST: usize = 1000;

#[test]
fn twenty_times_in_twenty() {
    require_of_machine!(is_throwaway(), FELT);
    let dir = directory();
    require!(has_large_folios(dir.path()), "no large folios on this file system");
    // The kernel must not compact memory before the test requests it.
    let mut machine = Machine::lock();
    machine.set("/sys/kernel/mm/transparent_hugepage/defrag", "never");
    machine.set("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
    machine.set("/proc/sys/vm/compaction_proactiveness", "0");
    let program = program_big("hold", Kind::StaticNoPie, 64);
    let dirs: Vec<_> = (0..COPIES).map(|_| directory()).collect();
    let copies: Vec<_> = dirs.iter().map(|dir| small(&program, dir.path())).collect();
    let files: Vec<&Path> = copies.iter().map(PathBuf::as_path).collect();
    keep_programs();
    let fragments = Fragments::new();
    let mut taken = Taken::default();
    let mut got = Vec::new();
    for _ in 0..20 {
        copies.iter().for_each(|copy| support::warm::evict(copy));
        taken.take();
        let free = free_huge_blocks();
        let began = std::time::Instant::now();
        let done = warm(&[], &files);
        let took = began.elapsed();
        let chunks: u64 = copies.iter().map(|copy| huge(copy) / pmd_size()).sum();
        let mib = available() >> 20;
        println!("{free} free huge pages, {mib} MiB; {chunks} chunks in {took:?}: {}", done.err);
        got.push((free, chunks));
    }
    drop((taken, fragments));
    // The 64 MiB of text begin and end within a huge page. Some huge pages are always free, because the kernel keeps a
    // reserve.
    let possible = COPIES * (64 / 2 - 1);
    assert!(got.iter().all(|(free, _)| *free < possible), "not fragmented: {got:?}");
    assert!(got.iter().all(|(_, chunks)| 100 * chunks >= 95 * possible), "{got:?}");
}
