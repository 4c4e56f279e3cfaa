//! Stage in the target, then switch: the only code that changes a target's mappings.
//!
//! For each staged part the target maps the memfd beside its text, populates that mapping, and moves
//! it over the text by one `mremap`. mremap unmaps its destination *before* it can fail, so
//! everything that could make it fail is settled first: the staged mapping is one VMA, of the length
//! and protection of the text, private, never writable (so never accounted), fully populated.

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::plan::Backing;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::Session;

use crate::image::{Staged, memfd_name};

/// Returns the flags of a memfd in pages of the hugetlb pool of this size; the pool's usual size may be
/// another than the PMD's (`default_hugepagesz`).
pub(crate) const fn hugetlb_flags(size: PageSize) -> u32 {
    c::MFD_HUGETLB | size.bits() << c::MFD_HUGE_SHIFT
}

/// Has the target make an empty memfd for the backing, of pages of that size; closed on its way home.
///
/// # Errors
/// `no_memfd`, `fd_limit`, `hugetlb_pool`; the target is unchanged.
pub(crate) fn make_memfd(
    session: &mut Session,
    backing: Backing,
    huge: PageSize,
    name: &str,
) -> Result<u64, Failure> {
    let mut bytes = memfd_name(name).into_bytes();
    bytes.push(0);
    let name = session.scratch(&bytes)?;
    let flags = c::MFD_CLOEXEC | c::MFD_ALLOW_SEALING;
    let flags = if backing == Backing::Hugetlb { flags | hugetlb_flags(huge) } else { flags };
    let mut create =
        |flags: u32| session.call(Call::new(c::SYS_memfd_create, [name.get(), flags.into()]));
    let mut answer = create(flags | c::MFD_NOEXEC_SEAL)?;
    if answer == Err(Errno::INVAL) {
        // Before Linux 6.3 there is no such flag.
        answer = create(flags)?;
    }
    let fd = answer.map_err(|errno| {
        let reason = match errno {
            Errno::MFILE => SkipReason::FdLimit,
            Errno::NOENT | Errno::NOSYS | Errno::NODEV if backing == Backing::Hugetlb => {
                SkipReason::HugetlbPool
            }
            _ => SkipReason::NoMemfd,
        };
        Failure::new(reason, SysError { call: "memfd_create", errno })
    })?;
    session.release_on_the_way_home(Call::new(c::SYS_close, [fd]));
    Ok(fd)
}

/// Switches one staged part, to be mapped with `protection`. `area` is a free, aligned range of the same
/// length in the target.
///
/// # Errors
/// The target's text is as it was; where the failure says `mremap`, what is staged is mapped over it.
pub(crate) fn switch(
    session: &mut Session,
    fd: u64,
    backing: Backing,
    part: &Staged,
    area: AddrRange,
    protection: i32,
) -> Result<(), Failure> {
    let raw = |value: i32| u64::from(value.unsigned_abs());
    let failed =
        |call: &'static str, reason| move |errno| Failure::new(reason, SysError { call, errno });
    let len = part.span.range.len();
    let staged: RemoteAddr = area.start();
    let flags = raw(c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE) | flags_of_pool(backing);
    // Until the switch, the way home unmaps the area: from before it is mapped, for this is a
    // launch, with one thread, and the snapshot says that nothing else is there.
    session.release_on_the_way_home(Call::new(c::SYS_munmap, [staged.get(), len]));
    let answer = session
        .call(Call::new(
            c::SYS_mmap,
            [staged.get(), len, raw(protection), flags, fd, part.image_offset],
        ))?
        .map_err(failed("mmap(PROT_READ|PROT_EXEC)", SkipReason::AddressSpace))?;
    if answer != staged.get() {
        // A kernel before 4.17 takes MAP_FIXED_NOREPLACE for a hint.
        session.release_on_the_way_home(Call::new(c::SYS_munmap, [answer, len]));
        return Err(Failure::new(SkipReason::SwitchFailed, "the kernel staged elsewhere"));
    }
    if backing == Backing::Pagecache {
        mark_widened(session, staged, len)?;
    }
    session
        .call(Call::new(c::SYS_madvise, [staged.get(), len, raw(c::MADV_POPULATE_READ)]))?
        .map_err(failed("madvise(MADV_POPULATE_READ)", SkipReason::NoHugePage))?;
    let text = part.span.range.start().get();
    let over = raw(c::MREMAP_MAYMOVE | c::MREMAP_FIXED);
    let moved = session.call(Call::new(c::SYS_mremap, [staged.get(), len, len, over, text]))?;
    if let Err(refused) = moved {
        // The kernel may have unmapped the text before it refused. The staged mapping has the text's
        // content.
        let flags = raw(c::MAP_PRIVATE | c::MAP_FIXED) | flags_of_pool(backing);
        let arguments = [text, len, raw(protection), flags, fd, part.image_offset];
        let _nothing_else_is_left = session.call(Call::new(c::SYS_mmap, arguments))?;
        return Err(failed("mremap(MREMAP_FIXED)", SkipReason::SwitchFailed)(refused));
    }
    session.released();
    Ok(())
}

/// A private mapping of the pool's pages would reserve a second set of them, for writes that never come.
fn flags_of_pool(backing: Backing) -> u64 {
    let flags = if backing == Backing::Hugetlb { c::MAP_NORESERVE } else { 0 };
    u64::from(flags.unsigned_abs())
}

/// Has the target map the huge pages that its text lies on already: one fault for all.
///
/// # Errors
/// The target is gone. It is no error if the kernel has no such call (before Linux 5.14) or refuses it:
/// the pages will be mapped when they are first used.
pub(crate) fn touch(session: &mut Session, range: AddrRange) -> Result<(), Failure> {
    let advice = u64::from(c::MADV_POPULATE_READ.unsigned_abs());
    let _refused =
        session.call(Call::new(c::SYS_madvise, [range.start().get(), range.len(), advice]))?;
    Ok(())
}

/// Marks a mapping of the file's own pages as one that was widened, for a revert to know it by: smaps
/// shows the advice as `hg`.
pub(crate) fn mark_widened(
    session: &mut Session,
    at: RemoteAddr,
    len: u64,
) -> Result<(), TraceError> {
    let advice = u64::from(c::MADV_HUGEPAGE.unsigned_abs());
    let _no_thp = session.call(Call::new(c::SYS_madvise, [at.get(), len, advice]))?;
    Ok(())
}
