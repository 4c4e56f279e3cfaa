//! This very process carries out the switch: its text moves, and its threads execute it all the time.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::{self, FileId, Vma};
use tiexec_core::skip::FailureKind;
use tiexec_core::snapshot::Snapshot;
use tiexec_remap::switch::{Company, OpenFile, Shared, Surroundings, Switch, switch_all};
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::local::Calls;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;
use tiexec_tracee::executor::Local;

const PAGE: usize = 4096;
const PAGES: usize = 512;
const LEN: usize = PAGES * PAGE;
const READ_AND_EXECUTE: i32 = 5;

/// Returns text with one function on each page, which returns the number of its page.
fn text() -> Vec<u8> {
    let mut text = vec![0; LEN];
    for (index, page) in text.chunks_exact_mut(PAGE).enumerate() {
        let number = u32::try_from(index).expect("a small number");
        let code = if cfg!(target_arch = "aarch64") {
            // mov w0, #number; ret
            [0x5280_0000 | number << 5, 0xd65f_03c0].map(u32::to_le_bytes).concat()
        } else {
            // mov eax, number; ret
            [&[0xb8][..], &number.to_le_bytes(), &[0xc3]].concat()
        };
        page[..code.len()].copy_from_slice(&code);
    }
    text
}

/// Text mapped from a file of its own, until this value is dropped.
struct Mapped {
    at: *mut std::ffi::c_void,
}

// SAFETY: the pointer is to text that is only read and executed.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &File) -> Self {
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe {
            mmap(std::ptr::null_mut(), LEN, protection, MapFlags::PRIVATE, file.as_fd(), 0)
        };
        Self { at: at.expect("mmap") }
    }

    fn range(&self) -> AddrRange {
        AddrRange::with_len(RemoteAddr::new(self.at as u64), LEN as u64).expect("a range")
    }

    /// Executes the function on each page.
    fn works(&self) -> bool {
        (0..PAGES).all(|page| {
            let code = self.at.wrapping_byte_add(page * PAGE);
            // SAFETY: each page begins with a function without arguments that returns a number.
            let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(code) };
            function() as usize == page
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and nobody executes it any more.
        let _unmapped = unsafe { munmap(self.at, LEN) };
    }
}

fn file_of_text(file: File) -> File {
    { &file }.write_all(&text()).expect("write");
    file
}

fn vmas(space: &AddressSpace) -> Vec<Vma> {
    maps::parse(&space.maps().expect("maps")).expect("lines of maps")
}

fn file_at(space: &AddressSpace, range: AddrRange) -> FileId {
    let all = vmas(space);
    let vma = all.iter().find(|vma| vma.range.covers(range)).expect("a mapping");
    vma.file
}

/// Switches the text to `copy`, if `unchanged` returns no error.
fn switch(
    space: &AddressSpace,
    mapped: &Mapped,
    copy: &File,
    unchanged: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let base = PageSize::new(PAGE as u64).expect("a page size");
    let pages = Pages { base, pmd: PageSize::new(2 << 20).expect("a page size") };
    let snapshot = Snapshot { pages, vmas: vmas(space), entry: RemoteAddr::new(0) };
    let fd = u64::try_from(copy.as_raw_fd()).expect("a descriptor");
    let source = OpenFile { fd, file: FileId::default() };
    let part = Switch {
        source,
        offset: 0,
        to: mapped.range(),
        populated: mapped.range(),
        locked: false,
        protection: READ_AND_EXECUTE,
        backing: Some(Backing::Image),
    };
    let company = Company::Shared(Shared { space, marks: None });
    let around = Surroundings { snapshot: &snapshot, company };
    // SAFETY: the copy has the text's own bytes.
    let mut local = Local::new(unsafe { Calls::new() });
    switch_all(&mut local, &around, &[part], &|_| unchanged(), |_, done| done)
}

#[test]
fn text_is_switched_while_other_threads_execute_it() {
    let space = AddressSpace::open(&ProcDir::this_process().expect("/proc")).expect("opened");
    let mapped = Mapped::new(&file_of_text(tempfile::tempfile().expect("a file")));
    let copy = memfd_create("copy", MemfdFlags::CLOEXEC).expect("memfd_create");
    let copy = file_of_text(File::from(copy));
    let before = file_at(&space, mapped.range());
    let (rounds, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let executing = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(mapped.works());
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut switched = 0;
        // On a busy machine the other thread may begin late.
        while switched < 100 || rounds.load(Ordering::Relaxed) == 0 && !executing.is_finished() {
            switch(&space, &mapped, &copy, &|| Ok(())).expect("switched");
            switched += 1;
        }
        ended.store(true, Ordering::Relaxed);
        executing.join().expect("it still runs");
        assert!(rounds.load(Ordering::Relaxed) > 0);
    });
    assert_ne!(file_at(&space, mapped.range()), before);
    assert!(mapped.works());
}

#[test]
fn a_switch_that_is_given_up_leaves_nothing() {
    let space = AddressSpace::open(&ProcDir::this_process().expect("/proc")).expect("opened");
    let mapped = Mapped::new(&file_of_text(tempfile::tempfile().expect("a file")));
    let copy = memfd_create("given_up", MemfdFlags::CLOEXEC).expect("memfd_create");
    let copy = file_of_text(File::from(copy));
    let before = file_at(&space, mapped.range());
    let staged = std::cell::Cell::new(false);
    let is_mapped = || vmas(&space).iter().any(|vma| vma.name.starts_with(b"/memfd:given_up"));
    let outcome = switch(&space, &mapped, &copy, &|| {
        staged.set(is_mapped());
        Err(Failure::new(FailureKind::Changed, "by a test"))
    });
    assert_eq!(outcome.expect_err("given up").reason, FailureKind::Changed);
    assert!(staged.get() && !is_mapped());
    assert_eq!(file_at(&space, mapped.range()), before);
    assert!(mapped.works());
}
