//! Finds the two gadgets in a program.
//!
//! On x86-64 the dynamic linker has both, glibc's and musl's alike. A static program has those of its C library, or
//! of its language, in its own text. The vDSO has no signal return on x86-64; on aarch64 only the vDSO has one.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::FailureKind;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::Memory;

use crate::Failure;
use crate::arch::{self, Gadgets};

/// How much is searched at a time, in bytes.
const CHUNK: u64 = 128 << 10;
/// An upper bound of a gadget's length. Chunks overlap by this many bytes.
const LONGEST: u64 = 16;

/// Searches the interpreter mapped at `interpreter` (`AT_BASE`, 0 for none), then the main
/// executable, whose bytes are read from `exe`.
///
/// # Errors
/// `no_gadget`: either is missing.
pub fn find(
    memory: &Memory,
    snapshot: &Snapshot,
    interpreter: RemoteAddr,
    exe: &File,
) -> Result<Gadgets, Failure> {
    let mut found = Found::in_vdso(memory, snapshot);
    let file_at =
        |addr| snapshot.vma_at(addr).filter(|vma| vma.is_file_backed()).map(|vma| vma.file);
    let linker = file_at(interpreter);
    let main = snapshot.main_file();
    let texts_of =
        |file| snapshot.vmas.iter().filter(move |vma| vma.is_text() && Some(vma.file) == file);

    for vma in texts_of(linker) {
        found.search_memory(vma, memory);
    }
    for vma in texts_of(main) {
        // Search the file, because reading the process would fault in its whole text.
        found.search(vma, |at, buffer| {
            let offset = at.get() - vma.range.start().get() + vma.file_offset;
            exe.read_exact_at(buffer, offset).is_ok()
        });
    }
    found.both()
}

/// As [`find`], in a running process. Its text may lie in our images, so its memory is read.
///
/// # Errors
/// As [`find`].
pub fn find_running(
    memory: &Memory,
    snapshot: &Snapshot,
    interpreter: RemoteAddr,
    entry: RemoteAddr,
) -> Result<Gadgets, Failure> {
    let mut found = Found::in_vdso(memory, snapshot);
    // The dynamic linker has both. A static program has both somewhere.
    for start in [interpreter, entry] {
        let first = snapshot.vmas.partition_point(|vma| vma.range.end() <= start);
        let file = snapshot.vma_at(start).map(|vma| vma.file);
        let mut joined = start;
        for vma in &snapshot.vmas[first..] {
            // Search the file's VMAs, and the VMAs that adjoin them.
            if vma.range.start() > joined && Some(vma.file) != file {
                break;
            }
            joined = vma.range.end();
            if vma.is_text() {
                found.search_memory(vma, memory);
            }
        }
    }
    found.both()
}

/// The gadgets that were found so far.
#[derive(Default)]
struct Found {
    call: Option<RemoteAddr>,
    sigreturn: Option<RemoteAddr>,
}

impl Found {
    /// Searches the mappings that the kernel adds to every program.
    fn in_vdso(memory: &Memory, snapshot: &Snapshot) -> Self {
        let mut found = Self::default();
        let serves = |vma: &&Vma| arch::VDSO_RETURNS_FROM_SIGNALS && vma.name == b"[vdso]";
        snapshot.vmas.iter().filter(serves).for_each(|vma| found.search_memory(vma, memory));
        found
    }

    fn search_memory(&mut self, vma: &Vma, memory: &Memory) {
        self.search(vma, |at, buffer| memory.read(at, buffer).is_ok());
    }

    fn search(&mut self, vma: &Vma, mut read: impl FnMut(RemoteAddr, &mut [u8]) -> bool) {
        if self.call.is_some() && self.sigreturn.is_some() {
            return;
        }
        let mut buffer = vec![0; CHUNK as usize];
        let mut at = vma.range.start();
        while at < vma.range.end() && (self.call.is_none() || self.sigreturn.is_none()) {
            let len = (vma.range.end().get() - at.get()).min(CHUNK);
            let bytes = &mut buffer[..len as usize];
            if !read(at, bytes) {
                return;
            }
            let found = |offset: usize| at.checked_add(offset as u64);
            self.call = self.call.or_else(|| arch::find_call(bytes).and_then(found));
            self.sigreturn = self.sigreturn.or_else(|| arch::find_sigreturn(bytes).and_then(found));
            if len < CHUNK {
                return;
            }
            let Some(next) = at.checked_add(CHUNK - LONGEST) else { return };
            at = next;
        }
    }

    fn both(self) -> Result<Gadgets, Failure> {
        let both = self.call.zip(self.sigreturn);
        let what = "the program has no `syscall; ret`, or no signal return, of its own; text that the page cache holds \
                    in huge folios may be huge without TiExec";
        both.map(|(call, sigreturn)| Gadgets { call, sigreturn })
            .ok_or_else(|| Failure::new(FailureKind::NoGadget, what))
    }
}
