//! In a running process: one staged part over its text, while other threads run.
//!
//! Should this process die in the middle, the stopped thread unmaps on its way home what was staged. The step that does so
//! stands in the chain from before the `mmap` until after the `mremap`, where no other thread can have mapped anything at
//! that place: at one that is [far](tiexec_core::marks::Place::far) from all other mappings. At a nearer one it stands there
//! only while it is known that the mapping is ours; a death in between leaves that, and the next attach or revert knows it
//! by its [mark](tiexec_core::marks).

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::marks::{Mapping, Marks, Place};
use tiexec_core::parts::in_range;
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::{self, FileId};
use tiexec_core::seccomp::Value;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::{Foreseen, constant};
use tiexec_tracee::session::Session;

use crate::failure::Failure;
use crate::protection::{GUARDED, TEXT};
use crate::switch::mark_widened;

/// The address space in which parts are switched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    /// It.
    pub space: &'a AddressSpace,
    /// Its mappings, as they were looked at.
    pub snapshot: &'a Snapshot,
    /// The marks of its address space; `None` where it has none.
    pub marks: Option<Marks>,
}

impl Surroundings<'_> {
    /// Returns the mappings as they are now.
    fn looked_at_again(&self) -> Snapshot {
        let vmas = self.space.maps().ok().and_then(|text| maps::parse(&text).ok());
        let Snapshot { pages, entry, .. } = *self.snapshot;
        Snapshot { pages, vmas: vmas.unwrap_or_default(), entry }
    }

    /// Returns whether nothing was mapped near a place that was far from all mappings when these were looked at: staging
    /// may have taken long since.
    fn is_still_far(&self, place: Place, marks: Marks) -> bool {
        let Some(apart) = marks.reach(place.range) else { return false };
        match self.space.next_mapping(apart.start()) {
            Ok(next) => next.is_some_and(|next| apart.end() <= next.range.start()),
            // Before Linux 6.11 all mappings are read to find one.
            Err(_) => {
                let now = self.looked_at_again();
                !now.vmas.is_empty() && in_range(&now.vmas, apart).next().is_none()
            }
        }
    }
}

/// A file that was handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handed {
    /// Its descriptor, in the process.
    pub fd: u64,
    /// The file, as maps will name it.
    pub file: FileId,
}

/// A switch: which part of a file is mapped where in a running process.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    /// The file.
    pub source: Handed,
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// The text that it covers.
    pub to: AddrRange,
    /// Whether that text is locked in memory.
    pub locked: bool,
    /// The protection with which it is mapped: that of text, or of read-only data.
    pub protection: i32,
    /// Addresses in `to` at which nothing is, and which must still be free.
    pub gaps: Vec<AddrRange>,
    /// The file by which the gaps are claimed: base pages of it can be mapped.
    pub claim_by: Handed,
    /// The backing of the new mapping; `None` if the file itself is mapped in its own place.
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

/// The calls that [`switch`] has the process make.
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

/// The further calls that [`switch`] has it make for guarded text.
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

/// The further calls that [`switch`] has it make where there are gaps, or huge pages of the page cache at an edge.
pub(super) const EDGE_CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "mmap(PROT_NONE)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(c::PROT_NONE), constant(ASIDE), Value::Small, Value::Any],
    ),
    Foreseen::needed(
        "madvise(MADV_HUGEPAGE)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_HUGEPAGE)],
    ),
];

/// The further calls that [`switch`] has it make for read-only data.
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
/// cannot know that an address range is still free, so nothing is unmapped that another thread could have mapped.
/// `unchanged` says, as late as can be, whether the text may still go.
///
/// # Errors
/// The target's text is as it was, unless the failure says `mremap`.
pub(super) fn switch(
    session: &mut Session,
    around: &Surroundings<'_>,
    part: &Switch,
    unchanged: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed =
        |call: &'static str, reason| move |errno| Failure::new(reason, SysError { call, errno });
    let len = part.to.len();
    if part.gaps.len() > MAX_GAPS {
        return Err(Failure::new(SkipReason::EdgeInUse, "too many gaps in one huge page"));
    }
    // From here on the way home unmaps what is staged.
    let Place { range, far } = map_aside(session, around, part)?;
    let staged = range.start();
    let mut mapped = 1;
    let ready = || {
        if part.backing == Some(Backing::Pagecache) {
            mark_widened(session, staged, len)?;
        }
        session
            .call(Call::new(c::SYS_madvise, [staged.get(), len, raw(c::MADV_POPULATE_READ)]))?
            .map_err(failed("madvise(MADV_POPULATE_READ)", SkipReason::NoHugePage))?;
        for gap in &part.gaps {
            claim(session, around, part, *gap)??;
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
    if !far {
        // Once it is moved, its old place may be another thread's: the way home must not unmap it then,
        // rather leave it mapped should this process die right here. With it the claims are taken back.
        for _ in 0..mapped {
            session.released();
        }
    }
    // The way home may unmap the gaps also after the move: nothing of the program's was there, and no other thread
    // can map anything there before.
    let to = part.to.start().get();
    let moved = session.call(Call::new(c::SYS_mremap, [staged.get(), len, len, raw(OVER), to]))?;
    if far {
        for _ in 0..mapped {
            session.released();
        }
    }
    if let Err(errno) = moved {
        put_right(session, around.space, part, staged)?;
        // The kernel looks for seals before it unmaps anything (`can_modify_vma`, `mm/vma.c`).
        let sealed = errno == Errno::PERM;
        let reason = if sealed { SkipReason::Sealed } else { SkipReason::SwitchFailed };
        return Err(failed("mremap(MREMAP_FIXED)", reason)(errno));
    }
    if part.locked && session.may(&LOCK) {
        let _over_the_limit = session.call(Call::new(c::SYS_mlock, [to, len]))?;
    }
    Ok(())
}

/// Has a gap taken before it is covered, unless another thread has mapped something there by now. Should this process die
/// before the way home knows of it, the next TiExec knows it by its offset.
fn claim(
    session: &mut Session,
    around: &Surroundings<'_>,
    part: &Switch,
    gap: AddrRange,
) -> Result<Result<(), Failure>, TraceError> {
    let (start, len) = (gap.start().get(), gap.len());
    let Handed { fd, file } = part.claim_by;
    // Without marks it lies at the beginning of the file, and stays if this process dies.
    let offset = around.marks.map_or(0, |marks| marks.claim_offset(file, gap));
    let arguments = [start, len, raw(c::PROT_NONE), raw(ASIDE), fd, offset];
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
    space: &AddressSpace,
    part: &Switch,
    staged: RemoteAddr,
) -> Result<(), TraceError> {
    let (to, len) = (part.to, part.to.len());
    let maps = space.maps().ok().and_then(|text| maps::parse(&text).ok());
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
            [to.start().get(), len, raw(part.protection), flags, part.source.fd, part.offset];
        let _there_is_nothing_else = session.call(Call::new(c::SYS_mmap, arguments))?;
    }
    let gaps = part.gaps.iter().filter(|_| text_is_there);
    let gaps = gaps.map(|gap| (gap.start(), gap.len()));
    for (start, len) in gaps.chain([(staged, len)]) {
        let _it_stays = session.call(Call::new(c::SYS_munmap, [start.get(), len]))?;
    }
    Ok(())
}

/// Maps what is to be switched where nothing is, and registers that the way home unmaps it.
fn map_aside(
    session: &mut Session,
    around: &Surroundings<'_>,
    part: &Switch,
) -> Result<Place, Failure> {
    let no_room = || Failure::new(SkipReason::AddressSpace, "no free address range to stage in");
    let len = part.to.len();
    let mapping = Mapping { file: part.source.file, offset: part.offset, len };
    let mut now = None;
    for _ in 0..4 {
        let snapshot = now.as_ref().unwrap_or(around.snapshot);
        let marked = around.marks.and_then(|marks| {
            let place = marks.place(&snapshot.vmas, mapping)?;
            Some(Place { far: place.far && around.is_still_far(place, marks), ..place })
        });
        // Without marks it stays if this process dies at the wrong moment: a copy is known by its name, the file is not.
        let unmarked = || snapshot.free_area(len).map(|range| Place { range, far: false });
        let place = marked.or_else(unmarked).ok_or_else(no_room)?;
        let start = place.range.start().get();
        let unmap = Call::new(c::SYS_munmap, [start, len]);
        if place.far {
            session.release_on_the_way_home(unmap);
        }
        let arguments = [start, len, raw(part.protection), raw(ASIDE), part.source.fd, part.offset];
        match session.call(Call::new(c::SYS_mmap, arguments))? {
            Ok(at) if at == start => {
                if !place.far {
                    session.release_on_the_way_home(unmap);
                }
                return Ok(place);
            }
            refused => {
                if place.far {
                    session.released();
                }
                match refused {
                    Ok(at) => {
                        let _ours = session.call(Call::new(c::SYS_munmap, [at, len]))?;
                        let elsewhere = "the kernel staged elsewhere";
                        return Err(Failure::new(SkipReason::SwitchFailed, elsewhere));
                    }
                    // Another thread has mapped something there since it was looked.
                    Err(Errno::EXIST) => {
                        now = Some(around.looked_at_again());
                    }
                    Err(errno) => {
                        let data = part.protection == c::PROT_READ;
                        let call =
                            if data { "mmap(PROT_READ)" } else { "mmap(PROT_READ|PROT_EXEC)" };
                        return Err(Failure::new(
                            SkipReason::AddressSpace,
                            SysError { call, errno },
                        ));
                    }
                }
            }
        }
    }
    Err(no_room())
}
