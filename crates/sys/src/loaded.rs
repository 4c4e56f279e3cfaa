//! The objects that the dynamic linker has loaded into this process, without a system call.
//!
//! # Safety
//!
//! This file calls dl_iterate_phdr(3), and reads the program headers that it passes.

use std::ffi::{c_int, c_void};

use tiexec_core::addr::{AddrRange, RemoteAddr};

use crate::thp::base_page;

/// An executable segment of a loaded object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadedText {
    /// Its addresses, in whole base pages.
    pub range: AddrRange,
    /// The address that the beginning of its file would have, if all of the file were mapped like this segment; wrapping.
    pub file_start: u64,
    /// True if it is a segment of the program itself.
    pub of_program: bool,
}

/// Returns the executable segments of the program and of its objects. A mapping that the dynamic linker did not make is
/// not among them.
pub fn texts() -> Vec<LoadedText> {
    let mut texts: Vec<LoadedText> = Vec::with_capacity(64);
    // SAFETY: `add` takes the vector as which its last argument is passed, which nobody else uses during the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut texts).cast()) };
    texts
}

fn headers(object: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if object.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the dynamic linker passes the headers of an object that it has loaded, and their number.
    unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) }
}

unsafe extern "C" fn add(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    texts: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a live structure.
    let object = unsafe { &*object };
    // SAFETY: `texts` passes its own vector.
    let texts = unsafe { &mut *texts.cast::<Vec<LoadedText>>() };
    // SAFETY: getauxval only reads the auxiliary vector of this process.
    let of_program = unsafe { libc::getauxval(libc::AT_PHDR) } == object.dlpi_phdr.addr() as u64;
    let texts_of = headers(object)
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
    for header in texts_of {
        let start = object.dlpi_addr.wrapping_add(header.p_vaddr);
        let range = AddrRange::with_len(RemoteAddr::new(start), header.p_memsz);
        let range = range.zip(base_page()).and_then(|(range, page)| range.align_outward(page));
        let file_start = start.wrapping_sub(header.p_offset);
        texts.extend(range.map(|range| LoadedText { range, file_start, of_program }));
    }
    0
}

/// Returns the sizes of the thread-local variables of the program and its objects together, in bytes.
pub fn thread_local_bytes() -> usize {
    unsafe extern "C" fn add(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        bytes: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller below passes its own number, which nobody else uses during the call.
        let bytes = unsafe { &mut *bytes.cast::<usize>() };
        // SAFETY: the dynamic linker passes a live structure.
        for header in headers(unsafe { &*object }) {
            if header.p_type == libc::PT_TLS {
                let size = header.p_memsz.saturating_add(header.p_align);
                *bytes = bytes.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
            }
        }
        0
    }
    let mut bytes = 0_usize;
    // SAFETY: `add` takes the number that is its last argument.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut bytes).cast()) };
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::areas;
    use crate::procfs::ProcDir;

    #[test]
    fn they_are_where_maps_shows_them() {
        let vmas = ProcDir::this_process().and_then(|this| areas::vmas(&this)).expect("/proc");
        let texts = texts();
        assert_eq!(texts.iter().filter(|text| text.of_program).count(), 1, "{texts:?}");
        let here = RemoteAddr::new(they_are_where_maps_shows_them as fn() as usize as u64);
        for text in texts.iter().filter(|text| !text.range.is_empty()) {
            let vma = vmas.iter().find(|vma| vma.range.contains(text.range.start()));
            let vma = vma.expect("it is mapped");
            assert!(vma.perms.exec);
            if vma.is_file_backed() {
                assert_eq!(vma.range.start().get().wrapping_sub(vma.file_offset), text.file_start);
            }
            assert_eq!(text.of_program, text.range.contains(here));
        }
    }
}
