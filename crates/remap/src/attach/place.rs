//! In a running process: one staged part over its text, while other threads run.

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps;
use tiexec_core::seccomp::Value;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::{Foreseen, constant};
use tiexec_tracee::session::Session;

use crate::failure::Failure;
use crate::protection::{GUARDED, TEXT};
use crate::switch::mark_widened;

/// What is to be mapped where in a running process.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The descriptor, in the process.
    pub fd: u64,
    /// From which byte of it on.
    pub offset: u64,
    /// Over which text.
    pub to: AddrRange,
    /// Whether that text is locked in memory.
    pub locked: bool,
    /// With which protection it is mapped: that of text, or of read-only data.
    pub protection: i32,
    /// Addresses in `to` at which nothing is, and which must still be free.
    pub gaps: Vec<AddrRange>,
    /// What is mapped, if not the file itself in its own place.
    pub backing: Option<Backing>,
}

/// Most gaps of one place: each is a step on the way home.
const MAX_GAPS: usize = 2;

const ASIDE: i32 = c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE | c::MAP_NORESERVE;
const OVER: i32 = c::MREMAP_MAYMOVE | c::MREMAP_FIXED;

/// `munmap`, of what was mapped aside.
pub(super) const UNMAP: Foreseen =
    Foreseen::needed("munmap", c::SYS_munmap, [Value::Any, Value::Any]);
const LOCK: Foreseen = Foreseen::optional("mlock", c::SYS_mlock, [Value::Any, Value::Any]);

/// What [`switch`] has the process call.
pub(super) const CALLS: [Foreseen; 6] = [
    Foreseen::needed(
        "mmap(PROT_READ|PROT_EXEC)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(TEXT), constant(ASIDE), Value::Small, Value::Any],
    ),
    Foreseen::needed(
        "madvise(MADV_POPULATE_READ)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_POPULATE_READ)],
    ),
    Foreseen::needed(
        "mremap(MREMAP_FIXED)",
        c::SYS_mremap,
        [Value::Any, Value::Any, Value::Any, constant(OVER), Value::Any],
    ),
    Foreseen::optional(
        "mmap(MAP_FIXED)",
        c::SYS_mmap,
        [
            Value::Any,
            Value::Any,
            constant(TEXT),
            constant(c::MAP_PRIVATE | c::MAP_FIXED),
            Value::Small,
            Value::Any,
        ],
    ),
    UNMAP,
    LOCK,
];

/// What [`switch`] has it call besides for guarded text.
pub(super) const GUARDED_CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "mmap(PROT_READ|PROT_EXEC|PROT_BTI)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(GUARDED), constant(ASIDE), Value::Small, Value::Any],
    ),
    Foreseen::optional(
        "mmap(PROT_BTI, MAP_FIXED)",
        c::SYS_mmap,
        [
            Value::Any,
            Value::Any,
            constant(GUARDED),
            constant(c::MAP_PRIVATE | c::MAP_FIXED),
            Value::Small,
            Value::Any,
        ],
    ),
];

/// What [`switch`] has it call besides, where there are gaps, or huge pages of the page cache at an edge.
pub(super) const EDGE_CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "mmap(PROT_NONE)",
        c::SYS_mmap,
        [
            Value::Any,
            Value::Any,
            constant(c::PROT_NONE),
            constant(ASIDE | c::MAP_ANONYMOUS),
            Value::Is(u64::MAX),
            Value::Is(0),
        ],
    ),
    Foreseen::needed(
        "madvise(MADV_HUGEPAGE)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_HUGEPAGE)],
    ),
];

/// What [`switch`] has it call besides for read-only data.
pub(super) const DATA_CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "mmap(PROT_READ)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(c::PROT_READ), constant(ASIDE), Value::Small, Value::Any],
    ),
    Foreseen::optional(
        "mmap(PROT_READ, MAP_FIXED)",
        c::SYS_mmap,
        [
            Value::Any,
            Value::Any,
            constant(c::PROT_READ),
            constant(c::MAP_PRIVATE | c::MAP_FIXED),
            Value::Small,
            Value::Any,
        ],
    ),
];

const fn raw(value: i32) -> u64 {
    value.unsigned_abs() as u64
}

/// Switches one part in a process whose other threads run. Unlike [`switch`](crate::switch::switch), it
/// cannot know that an address range is still free, so nothing is unmapped that has not been mapped by
/// us for certain. `unchanged` says, as late as can be, whether the text may still go.
///
/// # Errors
/// The target's text is as it was, unless the failure says `mremap`.
pub(super) fn switch(
    session: &mut Session,
    process: &ProcDir,
    snapshot: &Snapshot,
    place: &Place,
    unchanged: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed =
        |call: &'static str, reason| move |errno| Failure::new(reason, SysError { call, errno });
    let len = place.to.len();
    if place.gaps.len() > MAX_GAPS {
        return Err(Failure::new(SkipReason::EdgeInUse, "too many gaps in one huge page"));
    }
    let staged = map_aside(session, process, snapshot, place)?;
    let unmap = Call::new(c::SYS_munmap, [staged.get(), len]);
    session.release_on_the_way_home(unmap);
    let mut mapped = 1;
    let ready = || {
        if place.backing == Some(Backing::Pagecache) {
            mark_widened(session, staged, len)?;
        }
        session
            .call(Call::new(c::SYS_madvise, [staged.get(), len, raw(c::MADV_POPULATE_READ)]))?
            .map_err(failed("madvise(MADV_POPULATE_READ)", SkipReason::NoHugePage))?;
        for gap in &place.gaps {
            claim(session, place, *gap)??;
            mapped += 1;
        }
        unchanged()
    };
    if let Err(failure) = ready() {
        for _ in 0..mapped {
            session.release_now()?;
        }
        return Err(failure);
    }
    // Once it is moved, its old place may be another thread's: the way home must not unmap it then,
    // rather leave it mapped should this process die right here. The same goes for the gaps.
    for _ in 0..mapped {
        session.released();
    }
    let to = place.to.start().get();
    let moved = session.call(Call::new(c::SYS_mremap, [staged.get(), len, len, raw(OVER), to]))?;
    if let Err(errno) = moved {
        put_right(session, process, place, staged)?;
        return Err(failed("mremap(MREMAP_FIXED)", SkipReason::SwitchFailed)(errno));
    }
    if place.locked && session.may(&LOCK) {
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
    let (start, len) = (gap.start().get(), gap.len());
    let arguments = match place.backing {
        Some(Backing::Image | Backing::Store) => {
            let into = start - place.to.start().get();
            [start, len, raw(place.protection), raw(ASIDE), place.fd, place.offset + into]
        }
        // A base page of these cannot be mapped, or would be taken for the program's own.
        _ => [start, len, raw(c::PROT_NONE), raw(ASIDE | c::MAP_ANONYMOUS), u64::MAX, 0],
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

/// After an mremap that has failed although nothing was left that could make it fail: unmaps what was
/// staged. The kernel may have unmapped the text first: then the staged bytes are mapped there at once.
fn put_right(
    session: &mut Session,
    process: &ProcDir,
    place: &Place,
    staged: RemoteAddr,
) -> Result<(), TraceError> {
    let (to, len) = (place.to, place.to.len());
    let maps = process.read("maps").ok().and_then(|text| maps::parse(&text).ok());
    let text_is_there = maps.is_none_or(|vmas| {
        let of_it = vmas.iter().filter(|vma| vma.range.overlaps(to));
        let mapped = of_it.fold(0, |sum, vma| {
            let (from, until) = (vma.range.start().max(to.start()), vma.range.end().min(to.end()));
            sum + (until.get() - from.get())
        });
        mapped == len
    });
    if !text_is_there {
        let flags = raw(c::MAP_PRIVATE | c::MAP_FIXED);
        let arguments =
            [to.start().get(), len, raw(place.protection), flags, place.fd, place.offset];
        let _there_is_nothing_else = session.call(Call::new(c::SYS_mmap, arguments))?;
    }
    let gaps = place.gaps.iter().filter(|_| text_is_there);
    let gaps = gaps.map(|gap| (gap.start(), gap.len()));
    for (start, len) in gaps.chain([(staged, len)]) {
        let _it_stays = session.call(Call::new(c::SYS_munmap, [start.get(), len]))?;
    }
    Ok(())
}

/// Maps what is to be switched where nothing is; another thread may map something there first.
fn map_aside(
    session: &mut Session,
    process: &ProcDir,
    snapshot: &Snapshot,
    place: &Place,
) -> Result<RemoteAddr, Failure> {
    let no_room = || Failure::new(SkipReason::AddressSpace, "no free address range to stage in");
    let len = place.to.len();
    let mut area = snapshot.free_area(len).ok_or_else(no_room)?;
    for _ in 0..4 {
        let arguments =
            [area.start().get(), len, raw(place.protection), raw(ASIDE), place.fd, place.offset];
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
                let data = place.protection == c::PROT_READ;
                let call = if data { "mmap(PROT_READ)" } else { "mmap(PROT_READ|PROT_EXEC)" };
                return Err(Failure::new(SkipReason::AddressSpace, SysError { call, errno }));
            }
        }
    }
    Err(no_room())
}
