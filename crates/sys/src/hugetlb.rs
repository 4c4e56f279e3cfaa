//! The kernel's abilities with pages of the hugetlb pool.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use tiexec_core::addr::PageSize;

use crate::error::SysError;
use crate::reservation::Reservation;

/// The flags of mmap(2) for anonymous pages of the pool of that size: `MAP_HUGE_SHIFT` holds the binary logarithm
/// of the size.
fn of_pool(size: PageSize) -> MapFlags {
    MapFlags::HUGETLB | MapFlags::from_bits_retain(size.bits() << libc::MAP_HUGE_SHIFT)
}

/// `memfd_create(MFD_HUGETLB)` — makes a file of pages of the pool of that size; takes no page yet.
///
/// # Errors
/// ENODEV, EINVAL without such pages.
pub(crate) fn file(size: PageSize) -> Result<File, SysError> {
    let of_pool =
        MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size.bits() << crate::c::MFD_HUGE_SHIFT);
    memfd_create("tiexec:pages", MemfdFlags::CLOEXEC | of_pool)
        .map(File::from)
        .map_err(SysError::of("memfd_create(MFD_HUGETLB)"))
}

/// Returns the devices of the kernel's own file systems whose pages come from the pool, each with its page size.
/// maps shows such a device for a mapping of a memfd, or an anonymous one, in such pages.
pub(crate) fn devices() -> Vec<(u64, PageSize)> {
    let sizes = crate::thp::pool_sizes();
    let device = |size| fstat(file(size).ok()?).ok().map(|file| (file.st_dev, size));
    sizes.into_iter().filter_map(device).collect()
}

/// Tests whether the kernel moves mappings of the pool's pages of this size (`mremap`, since Linux 5.16). A
/// kernel that does not has already unmapped the destination when it returns the error. Takes no page.
///
/// # Errors
/// EINVAL if the kernel does not move them, or has no such pages; ENOMEM without address space.
pub fn can_move(size: PageSize) -> Result<(), SysError> {
    let len = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    let to = Reservation::new(len, size)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | of_pool(size);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let from =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, flags) }
            .map_err(SysError::of("mmap(MAP_HUGETLB)"))?;
    let over = to.start().as_ptr().cast();
    // SAFETY: the mapping just made goes to the reservation made above; no other code knows of either.
    let moved = unsafe { rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, over) };
    if let Err(errno) = moved {
        // SAFETY: the mapping just made, which is still at its old address.
        let _ours = unsafe { rustix::mm::munmap(from, len) };
        // Part of the reservation may be unmapped, and may belong to another mapping by now.
        std::mem::forget(to);
        return Err(SysError::of("mremap(MREMAP_FIXED)")(errno));
    }
    Ok(())
}

/// Returns whether a debugger may write to private text in hugetlb pages of this `size`, as it does to set a
/// breakpoint. Kernels from 6.1.2 to 6.13 refuse it (`FOLL_FORCE` in `check_vma_flags`, `mm/gup.c`). Takes a page
/// of the pool for a moment.
///
/// # Errors
/// ENOMEM without a free page; ENOENT without `/proc`; EIO where a process may not write to any of its own text
/// by `/proc` (`CONFIG_PROC_MEM_FORCE_PTRACE`), which says nothing about a debugger.
pub fn takes_breakpoints(size: PageSize) -> Result<bool, SysError> {
    let memory = File::options().write(true).open("/proc/self/mem");
    let memory = memory.map_err(|_same| SysError::last("open(/proc/self/mem)"))?;
    let takes = |size: PageSize, flags: MapFlags| -> Result<bool, SysError> {
        let len = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
        let reserved = Reservation::new(len, size)?;
        let text = ProtFlags::READ | ProtFlags::EXEC;
        reserved.map("mmap(PROT_EXEC)", [0, len], text, MapFlags::PRIVATE | flags, None)?;
        Ok(memory.write_at(&[0], reserved.start().as_ptr().addr() as u64).is_ok())
    };
    let base = crate::thp::base_page().unwrap_or(size);
    if !takes(base, MapFlags::empty())? {
        return Err(SysError {
            call: "write(/proc/self/mem)",
            errno: rustix::io::Errno::IO.into(),
        });
    }
    takes(size, of_pool(size))
}
