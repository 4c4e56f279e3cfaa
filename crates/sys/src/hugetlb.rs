//! What the kernel can do with pages of the hugetlb pool.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use tiexec_core::addr::PageSize;

use crate::error::SysError;
use crate::reserve::Reservation;

/// Tries whether the kernel moves mappings of the pool's pages of this size (`mremap`, since Linux 5.16).
/// One that does not has unmapped what was in the place by the time it says so. Takes no page.
///
/// # Errors
/// EINVAL if it does not, or has no such pages; ENOMEM without address space.
pub fn can_move(size: PageSize) -> Result<(), SysError> {
    let len = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    let to = Reservation::new(len, size)?;
    // The size's binary logarithm, at MAP_HUGE_SHIFT (mmap(2)).
    let size = MapFlags::from_bits_retain(size.bits() << 26);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::HUGETLB | size;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let from =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, flags) }
            .map_err(SysError::of("mmap(MAP_HUGETLB)"))?;
    let over = to.start().as_ptr().cast();
    // SAFETY: the mapping just made goes to the reservation made above; nobody else knows of either.
    let moved = unsafe { rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, over) };
    if let Err(errno) = moved {
        // SAFETY: the mapping just made, which is still where it was.
        let _ours = unsafe { rustix::mm::munmap(from, len) };
        // Part of it may be unmapped, and somebody else's by now.
        std::mem::forget(to);
        return Err(SysError::of("mremap(MREMAP_FIXED)")(errno));
    }
    Ok(())
}
