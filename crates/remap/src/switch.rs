//! Stage in the target, then switch: the only code that changes a target's mappings.
//!
//! For each staged part the target maps the memfd beside its text, populates that mapping, and moves
//! it over the text by one `mremap`. mremap unmaps its destination *before* it can fail, so
//! everything that could make it fail is settled first: the staged mapping is one VMA, of the length
//! and protection of the text, private, never writable (so never accounted), fully populated.

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::Session;

use crate::failure::Failure;
use crate::image::{Staged, memfd_name};

/// Has the target make an empty memfd for the backing; closed on its way home.
///
/// # Errors
/// `no_memfd`, `fd_limit`, `hugetlb_pool`; the target is unchanged.
pub(crate) fn make_memfd(
    session: &mut Session,
    backing: Backing,
    name: &str,
) -> Result<u64, Failure> {
    let mut bytes = memfd_name(name).into_bytes();
    bytes.push(0);
    let name = session.scratch(&bytes)?;
    let flags = c::MFD_CLOEXEC | c::MFD_ALLOW_SEALING;
    let flags = if backing == Backing::Hugetlb { flags | c::MFD_HUGETLB } else { flags };
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
            Errno::NOENT | Errno::NOSYS if backing == Backing::Hugetlb => SkipReason::HugetlbPool,
            _ => SkipReason::NoMemfd,
        };
        Failure::new(reason, SysError { call: "memfd_create", errno })
    })?;
    session.release_on_the_way_home(Call::new(c::SYS_close, [fd]));
    Ok(fd)
}

/// Switches one staged part. `area` is a free, aligned range of the same length in the target.
///
/// # Errors
/// The target's text is as it was, unless the failure says `mremap`.
pub(crate) fn switch(
    session: &mut Session,
    fd: u64,
    backing: Backing,
    part: &Staged,
    area: AddrRange,
) -> Result<(), Failure> {
    let raw = |value: i32| u64::from(value.unsigned_abs());
    let failed =
        |call: &'static str, reason| move |errno| Failure::new(reason, SysError { call, errno });
    let len = part.span.range.len();
    let staged: RemoteAddr = area.start();
    let mut flags = c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE;
    if backing == Backing::Hugetlb {
        // A private mapping would reserve a second set of pages, for writes that never come.
        flags |= c::MAP_NORESERVE;
    }
    let protection = c::PROT_READ | c::PROT_EXEC;
    // Until the switch, the way home unmaps the area: from before it is mapped, for this is a
    // launch, with one thread, and the snapshot says that nothing else is there.
    session.release_on_the_way_home(Call::new(c::SYS_munmap, [staged.get(), len]));
    let answer = session
        .call(Call::new(
            c::SYS_mmap,
            [staged.get(), len, raw(protection), raw(flags), fd, part.image_offset],
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
    session
        .call(Call::new(
            c::SYS_mremap,
            [
                staged.get(),
                len,
                len,
                raw(c::MREMAP_MAYMOVE | c::MREMAP_FIXED),
                part.span.range.start().get(),
            ],
        ))?
        .map_err(failed("mremap(MREMAP_FIXED)", SkipReason::SwitchFailed))?;
    session.released();
    Ok(())
}

/// Has the target map the huge pages that its text lies on already: one fault for all.
///
/// # Errors
/// The target is gone. That the kernel has no such call (before Linux 5.14) or will not is no error:
/// they will be mapped when they are first used.
pub(crate) fn touch(session: &mut Session, range: AddrRange) -> Result<(), Failure> {
    let advice = u64::from(c::MADV_POPULATE_READ.unsigned_abs());
    let _refused =
        session.call(Call::new(c::SYS_madvise, [range.start().get(), range.len(), advice]))?;
    Ok(())
}

/// Marks a mapping of the file's own pages as one that was widened, for a revert to know it by: smaps
/// shows the advice as `hg`.
fn mark_widened(session: &mut Session, at: RemoteAddr, len: u64) -> Result<(), TraceError> {
    let advice = u64::from(c::MADV_HUGEPAGE.unsigned_abs());
    let _no_thp = session.call(Call::new(c::SYS_madvise, [at.get(), len, advice]))?;
    Ok(())
}

/// What is to be mapped where in a running process.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The descriptor, in the process.
    pub fd: u64,
    /// From which byte of it on.
    pub offset: u64,
    /// Over which text.
    pub to: AddrRange,
    /// Whether that text is locked in memory.
    pub locked: bool,
    /// Whether it is executable; else it is read-only data.
    pub exec: bool,
    /// Addresses in `to` at which nothing is, and which must still be free.
    pub gaps: Vec<AddrRange>,
    /// What is mapped, if not the file itself in its own place.
    pub backing: Option<Backing>,
}

impl Place {
    fn protection(&self) -> i32 {
        if self.exec { c::PROT_READ | c::PROT_EXEC } else { c::PROT_READ }
    }
}

/// Most gaps of one place: each is a step on the way home.
const MAX_GAPS: usize = 2;

/// Switches one part in a process whose other threads run. Unlike [`switch`], it cannot know that an
/// address range is still free, so nothing is unmapped that has not been mapped by us for certain.
///
/// # Errors
/// The target's text is as it was, unless the failure says `mremap`.
pub(crate) fn switch_running(
    session: &mut Session,
    process: &ProcDir,
    snapshot: &Snapshot,
    place: Place,
) -> Result<(), Failure> {
    let raw = |value: i32| u64::from(value.unsigned_abs());
    let failed =
        |call: &'static str, reason| move |errno| Failure::new(reason, SysError { call, errno });
    let len = place.to.len();
    if place.gaps.len() > MAX_GAPS {
        return Err(Failure::new(SkipReason::EdgeInUse, "too many gaps in one huge page"));
    }
    let staged = map_aside(session, process, snapshot, &place)?;
    let unmap = Call::new(c::SYS_munmap, [staged.get(), len]);
    session.release_on_the_way_home(unmap);
    if place.backing == Some(Backing::Pagecache) {
        mark_widened(session, staged, len)?;
    }
    let populated = session
        .call(Call::new(c::SYS_madvise, [staged.get(), len, raw(c::MADV_POPULATE_READ)]))?
        .map_err(failed("madvise(MADV_POPULATE_READ)", SkipReason::NoHugePage));
    if let Err(failure) = populated {
        session.release_now()?;
        return Err(failure);
    }
    for (claimed, gap) in place.gaps.iter().enumerate() {
        if let Err(failure) = claim(session, &place, *gap)? {
            for _ in 0..=claimed {
                session.release_now()?;
            }
            return Err(failure);
        }
    }
    // Once it is moved, its old place may be another thread's: the way home must not unmap it then,
    // rather leave it mapped should this process die right here. The same goes for the gaps.
    for _ in 0..=place.gaps.len() {
        session.released();
    }
    let flags = raw(c::MREMAP_MAYMOVE | c::MREMAP_FIXED);
    let to = place.to.start().get();
    session
        .call(Call::new(c::SYS_mremap, [staged.get(), len, len, flags, to]))?
        .map_err(failed("mremap(MREMAP_FIXED)", SkipReason::SwitchFailed))?;
    if place.locked {
        let _over_the_limit = session.call(Call::new(c::SYS_mlock, [to, len]))?;
    }
    Ok(())
}

/// Has a gap taken before it is covered, unless another thread has mapped something there by now. What
/// is mapped there is what will be: should this process die, a revert finds it.
fn claim(
    session: &mut Session,
    place: &Place,
    gap: AddrRange,
) -> Result<Result<(), Failure>, TraceError> {
    let raw = |value: i32| u64::from(value.unsigned_abs());
    let fixed = c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE | c::MAP_NORESERVE;
    let (start, len) = (gap.start().get(), gap.len());
    let arguments = match place.backing {
        Some(Backing::Image | Backing::Store) => {
            let into = start - place.to.start().get();
            [start, len, raw(place.protection()), raw(fixed), place.fd, place.offset + into]
        }
        // A base page of these cannot be mapped, or would be taken for the program's own.
        _ => [start, len, raw(c::PROT_NONE), raw(fixed | c::MAP_ANONYMOUS), u64::MAX, 0],
    };
    match session.call(Call::new(c::SYS_mmap, arguments))? {
        Ok(at) => {
            session.release_on_the_way_home(Call::new(c::SYS_munmap, [at, len]));
            if at == start {
                return Ok(Ok(()));
            }
            // A kernel before 4.17 takes MAP_FIXED_NOREPLACE for a hint.
            session.release_now()?;
            Ok(Err(Failure::new(SkipReason::EdgeInUse, format!("{gap} is not free"))))
        }
        Err(errno) => {
            let error = SysError { call: "mmap(MAP_FIXED_NOREPLACE)", errno };
            Ok(Err(Failure::new(SkipReason::EdgeInUse, format!("{gap}: {error}"))))
        }
    }
}

/// Maps what is to be switched where nothing is; another thread may map something there first.
fn map_aside(
    session: &mut Session,
    process: &ProcDir,
    snapshot: &Snapshot,
    place: &Place,
) -> Result<RemoteAddr, Failure> {
    let raw = |value: i32| u64::from(value.unsigned_abs());
    let no_room = || Failure::new(SkipReason::AddressSpace, "no free address range to stage in");
    let len = place.to.len();
    let mut area = snapshot.free_area(len).ok_or_else(no_room)?;
    for _ in 0..4 {
        let arguments = [
            area.start().get(),
            len,
            raw(place.protection()),
            raw(c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE | c::MAP_NORESERVE),
            place.fd,
            place.offset,
        ];
        match session.call(Call::new(c::SYS_mmap, arguments))? {
            Ok(at) if at == area.start().get() => return Ok(area.start()),
            Ok(at) => {
                let _ours = session.call(Call::new(c::SYS_munmap, [at, len]))?;
                return Err(Failure::new(SkipReason::SwitchFailed, "the kernel staged elsewhere"));
            }
            Err(Errno::EXIST) => {
                let maps = process.read("maps").ok().and_then(|text| maps::parse(&text).ok());
                let vmas = maps.unwrap_or_default();
                let now = Snapshot { pages: snapshot.pages, vmas, entry: snapshot.entry };
                area = now.free_area(len).ok_or_else(no_room)?;
            }
            Err(errno) => {
                let call = if place.exec { "mmap(PROT_READ|PROT_EXEC)" } else { "mmap(PROT_READ)" };
                return Err(Failure::new(SkipReason::AddressSpace, SysError { call, errno }));
            }
        }
    }
    Err(no_room())
}
