//! In a running process: one staged part over its text, while other threads run.
//!
//! Should this process die in the middle, the stopped thread unmaps on its way home what was staged. The step that does so
//! stands in the chain from before the `mmap` until after the `mremap`, where no other thread can have mapped anything at
//! that place: at one that is [far](tiexec_core::marks::Place::far) from all other mappings. At a nearer one it stands there
//! only while it is known that the mapping is ours; a death in between leaves that, and the next attach or revert knows it
//! by its [mark](tiexec_core::marks).

use std::os::unix::fs::FileExt;

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::file_ranges::in_range;
use tiexec_core::marks::{Mapping, Marks, Place};
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::{self, FileId};
use tiexec_core::proc::pagemap;
use tiexec_core::seccomp::Value;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::{MAX_BATCH, Session};
use tiexec_tracee::syscall_manifest::{ManifestEntry, constant};

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

    /// Returns the place by which a part that is staged is known, with the mappings of `snapshot` around it.
    fn marked_place(&self, part: &Switch, snapshot: &Snapshot) -> Option<Place> {
        let marks = self.marks?;
        let mapping = Mapping { file: part.source.file, offset: part.offset, len: part.to.len() };
        let place = marks.place(&snapshot.vmas, mapping)?;
        Some(Place { far: place.far && self.is_still_far(place, marks), ..place })
    }

    /// Returns the place for a part, if it is far from all mappings.
    fn far_place(&self, part: &Switch) -> Option<Place> {
        self.marked_place(part, self.snapshot).filter(|place| place.far)
    }

    /// Whether each range is a private mapping of that file, from that offset on.
    fn are_mapped(&self, wanted: Vec<(AddrRange, FileId, u64)>) -> Vec<bool> {
        // Before Linux 6.11 all mappings are read to find some.
        let mut all = None;
        let mut at = |range: AddrRange| match self.space.mapping_at(range.start()) {
            Ok(mapping) => {
                mapping.map(|found| (found.range, found.perms, found.file, found.file_offset))
            }
            Err(_) => {
                let now: &Snapshot = all.get_or_insert_with(|| self.looked_at_again());
                let found = now.vma_at(range.start())?;
                Some((found.range, found.perms, found.file, found.file_offset))
            }
        };
        let mut is_mapped = |(range, file, offset): (AddrRange, FileId, u64)| {
            at(range).is_some_and(|(found, perms, its_file, its_offset)| {
                let into = range.start().get() - found.start().get();
                found.covers(range)
                    && its_file == file
                    && its_offset.checked_add(into) == Some(offset)
                    && !perms.shared
            })
        };
        wanted.into_iter().map(&mut is_mapped).collect()
    }

    /// Whether the last page of `range` is mapped.
    fn is_present(&self, range: AddrRange) -> bool {
        const WORD: u64 = 8;
        let page = self.snapshot.pages.base.bytes();
        let mut word = [0; WORD as usize];
        let at = (range.end().get() / page - 1) * WORD;
        let read = self.space.pagemap().read_exact_at(&mut word, at);
        read.is_ok() && pagemap::is_present(u64::from_ne_bytes(word))
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
pub(super) const UNMAP: ManifestEntry =
    ManifestEntry::needed("munmap", c::SYS_munmap, [Value::Any, Value::Any]);
const LOCK: ManifestEntry =
    ManifestEntry::optional("mlock", c::SYS_mlock, [Value::Any, Value::Any]);

/// The calls that [`switch`] has the process make.
pub(super) const CALLS: [ManifestEntry; 6] = [
    ManifestEntry::needed(
        "mmap(PROT_READ|PROT_EXEC)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(TEXT), constant(ASIDE), Value::Small, Value::Any],
    ),
    ManifestEntry::needed(
        "madvise(MADV_POPULATE_READ)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_POPULATE_READ)],
    ),
    ManifestEntry::needed(
        "mremap(MREMAP_FIXED)",
        c::SYS_mremap,
        [Value::Any, Value::Any, Value::Any, constant(OVER), Value::Any],
    ),
    ManifestEntry::optional(
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
pub(super) const GUARDED_CALLS: [ManifestEntry; 2] = [
    ManifestEntry::needed(
        "mmap(PROT_READ|PROT_EXEC|PROT_BTI)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(GUARDED), constant(ASIDE), Value::Small, Value::Any],
    ),
    ManifestEntry::optional(
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
pub(super) const EDGE_CALLS: [ManifestEntry; 2] = [
    ManifestEntry::needed(
        "mmap(PROT_NONE)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(c::PROT_NONE), constant(ASIDE), Value::Small, Value::Any],
    ),
    ManifestEntry::needed(
        "madvise(MADV_HUGEPAGE)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_HUGEPAGE)],
    ),
];

/// The further calls that [`switch`] has it make for read-only data.
pub(super) const DATA_CALLS: [ManifestEntry; 2] = [
    ManifestEntry::needed(
        "mmap(PROT_READ)",
        c::SYS_mmap,
        [Value::Any, Value::Any, constant(c::PROT_READ), constant(ASIDE), Value::Small, Value::Any],
    ),
    ManifestEntry::optional(
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

/// What is known of a part as late as can be: whether its text may still go.
pub(super) type Unchanged<'a> = &'a dyn Fn(&Switch) -> Result<(), Failure>;

/// Switches `parts` in a process whose other threads run, and tells `done` how each went; an error of `done` ends it. Unlike
/// [`switch`](crate::switch::switch), it cannot know that an address range is still free, so nothing is unmapped
/// that another thread could have mapped.
///
/// Where the session has [batches](Session::batch), several parts are staged by one and moved by another, as far as their
/// places are far.
///
/// # Errors
/// The first error of `done`; the text of that part is as it was, unless the failure says `mremap`.
pub(super) fn switch_all(
    session: &mut Session,
    around: &Surroundings<'_>,
    parts: &[Switch],
    unchanged: Unchanged<'_>,
    mut done: impl FnMut(&Switch, Result<(), Failure>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rest = parts;
    while !rest.is_empty() {
        let most = (MAX_BATCH / MOST_CALLS).min(session.free_releases());
        let (group, others) =
            rest.split_at(if session.has_batches() { most } else { 1 }.clamp(1, rest.len()));
        for (part, outcome) in group.iter().zip(together(session, around, group, unchanged)?) {
            let outcome = outcome.unwrap_or_else(|| switch(session, around, part, unchanged));
            done(part, outcome)?;
        }
        rest = others;
    }
    Ok(())
}

/// The most calls that staging one part takes.
const MOST_CALLS: usize = 3;

/// Switches those of a few parts that can be switched together; returns how it went, and nothing for the others.
fn together(
    session: &mut Session,
    around: &Surroundings<'_>,
    parts: &[Switch],
    unchanged: Unchanged<'_>,
) -> Result<Vec<Option<Result<(), Failure>>>, TraceError> {
    let mut outcomes: Vec<Option<Result<(), Failure>>> = vec![None; parts.len()];
    if !session.has_batches() {
        return Ok(outcomes);
    }
    let mut staged: Vec<(usize, Staged)> = Vec::new();
    let mut calls = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let taken =
            |range: AddrRange| staged.iter().any(|(_, other)| other.range().overlaps(range));
        let far =
            around.far_place(part).filter(|place| part.gaps.is_empty() && !taken(place.range));
        let Some(place) = far else { continue };
        let one = Staged::at(place);
        session.release_on_the_way_home(one.unmap());
        calls.extend(part.staging_calls(place.range));
        staged.push((index, one));
    }
    session.batch(&calls)?;
    let wanted = |(index, one): &(usize, Staged)| parts[*index].mapping(one.range());
    let mapped = around.are_mapped(staged.iter().map(wanted).collect());
    let mut calls = Vec::new();
    let mut moving = Vec::new();
    for ((index, one), is_mapped) in staged.into_iter().zip(mapped) {
        let part = &parts[index];
        if !is_mapped {
            // What is there, if anything, is not ours. Tried again by itself, the call tells why.
            session.withdraw(&one.unmap());
            continue;
        }
        // The kernel populates in ascending order.
        let populated =
            if around.is_present(one.range()) { Ok(()) } else { populate(session, one.range())? };
        if let Err(failure) = populated.and_then(|()| unchanged(part)) {
            one.take_away(session)?;
            outcomes[index] = Some(Err(failure));
            continue;
        }
        calls.push(part.move_call(one.range()));
        moving.push((index, one));
    }
    session.batch(&calls)?;
    let moved = moving.iter().map(|(index, _)| parts[*index].mapping(parts[*index].to)).collect();
    for ((index, one), is_moved) in moving.into_iter().zip(around.are_mapped(moved)) {
        let part = &parts[index];
        outcomes[index] = Some(if is_moved {
            session.withdraw(&one.unmap());
            lock(session, part)?;
            Ok(())
        } else {
            move_over(session, around, part, one)
        });
    }
    Ok(outcomes)
}

/// What is mapped aside for one part.
struct Staged {
    place: Place,
    /// The steps on the way home that unmap it, and what was claimed for it.
    releases: Vec<Call>,
}

impl Staged {
    fn at(place: Place) -> Self {
        let range = place.range;
        let unmap = Call::new(c::SYS_munmap, [range.start().get(), range.len()]);
        Self { place, releases: vec![unmap] }
    }

    const fn range(&self) -> AddrRange {
        self.place.range
    }

    /// The step that unmaps what is staged.
    fn unmap(&self) -> Call {
        self.releases[0]
    }

    /// Has the way home leave everything where it is.
    fn keep(&self, session: &mut Session) {
        for release in &self.releases {
            session.withdraw(release);
        }
    }

    /// Unmaps it all now.
    fn take_away(self, session: &mut Session) -> Result<(), TraceError> {
        self.keep(session);
        for release in self.releases.iter().rev() {
            let _it_stays = session.call(*release)?;
        }
        Ok(())
    }
}

impl Switch {
    /// The calls that map the part at `aside` and populate it.
    fn staging_calls(&self, aside: AddrRange) -> impl Iterator<Item = Call> + use<> {
        let widened = self.backing == Some(Backing::Pagecache);
        let advice = c::MADV_HUGEPAGE;
        let mark = widened
            .then(|| Call::new(c::SYS_madvise, [aside.start().get(), aside.len(), raw(advice)]));
        [self.map_call(aside)].into_iter().chain(mark).chain([populating(aside)])
    }

    fn map_call(&self, aside: AddrRange) -> Call {
        let Self { source, offset, protection, .. } = *self;
        let (start, len) = (aside.start().get(), aside.len());
        Call::new(c::SYS_mmap, [start, len, raw(protection), raw(ASIDE), source.fd, offset])
    }

    /// The call that moves what is staged over the text.
    fn move_call(&self, staged: AddrRange) -> Call {
        let (from, len, to) = (staged.start().get(), staged.len(), self.to.start().get());
        Call::new(c::SYS_mremap, [from, len, len, raw(OVER), to])
    }

    /// The part as it is mapped at `range`.
    const fn mapping(&self, range: AddrRange) -> (AddrRange, FileId, u64) {
        (range, self.source.file, self.offset)
    }
}

/// Switches one part by itself.
fn switch(
    session: &mut Session,
    around: &Surroundings<'_>,
    part: &Switch,
    unchanged: Unchanged<'_>,
) -> Result<(), Failure> {
    if part.gaps.len() > MAX_GAPS {
        return Err(Failure::new(SkipReason::EdgeInUse, "too many gaps in one huge page"));
    }
    // From here on the way home unmaps what is staged.
    let mut staged = Staged::at(map_aside(session, around, part)?);
    let mut ready = || {
        if part.backing == Some(Backing::Pagecache) {
            mark_widened(session, staged.range().start(), staged.range().len())?;
        }
        populate(session, staged.range())??;
        for gap in &part.gaps {
            staged.releases.push(claim(session, around, part, *gap)??);
        }
        unchanged(part)
    };
    if let Err(failure) = ready() {
        staged.take_away(session)?;
        return Err(failure);
    }
    move_over(session, around, part, staged)
}

fn populating(staged: AddrRange) -> Call {
    let advice = raw(c::MADV_POPULATE_READ);
    Call::new(c::SYS_madvise, [staged.start().get(), staged.len(), advice])
}

/// Has all of what is staged mapped.
fn populate(session: &mut Session, staged: AddrRange) -> Result<Result<(), Failure>, TraceError> {
    Ok(session.call(populating(staged))?.map(drop).map_err(|errno| {
        let call = "madvise(MADV_POPULATE_READ)";
        Failure::new(SkipReason::NoHugePage, SysError { call, errno })
    }))
}

/// Moves what is staged over the text.
fn move_over(
    session: &mut Session,
    around: &Surroundings<'_>,
    part: &Switch,
    staged: Staged,
) -> Result<(), Failure> {
    if !staged.place.far {
        // Once it is moved, its old place may be another thread's: the way home must not unmap it then,
        // rather leave it mapped should this process die right here. With it the claims are taken back.
        staged.keep(session);
    }
    // The way home may unmap the gaps also after the move: nothing of the program's was there, and no other thread
    // can map anything there before.
    let moved = session.call(part.move_call(staged.range()))?;
    if staged.place.far {
        staged.keep(session);
    }
    if let Err(errno) = moved {
        put_right(session, around.space, part, staged.range().start())?;
        // The kernel looks for seals before it unmaps anything (`can_modify_vma`, `mm/vma.c`).
        let reason = match errno {
            Errno::PERM => SkipReason::Sealed,
            // Another thread has unmapped what was staged, or another TiExec that took it for a dead one's.
            Errno::FAULT => SkipReason::Changed,
            _ => SkipReason::SwitchFailed,
        };
        return Err(Failure::new(reason, SysError { call: "mremap(MREMAP_FIXED)", errno }));
    }
    Ok(lock(session, part)?)
}

/// Locks the text in memory where it was locked before.
fn lock(session: &mut Session, part: &Switch) -> Result<(), TraceError> {
    if part.locked && session.may(&LOCK) {
        let range = [part.to.start().get(), part.to.len()];
        let _over_the_limit = session.call(Call::new(c::SYS_mlock, range))?;
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
) -> Result<Result<Call, Failure>, TraceError> {
    let (start, len) = (gap.start().get(), gap.len());
    let Handed { fd, file } = part.claim_by;
    // Without marks it lies at the beginning of the file, and stays if this process dies.
    let offset = around.marks.map_or(0, |marks| marks.claim_offset(file, gap));
    let arguments = [start, len, raw(c::PROT_NONE), raw(ASIDE), fd, offset];
    match session.call(Call::new(c::SYS_mmap, arguments))? {
        Ok(at) => {
            let unmap = Call::new(c::SYS_munmap, [at, len]);
            session.release_on_the_way_home(unmap);
            if at == start {
                return Ok(Ok(unmap));
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
    let mut now = None;
    for _ in 0..4 {
        let snapshot = now.as_ref().unwrap_or(around.snapshot);
        let marked = around.marked_place(part, snapshot);
        // Without marks it stays if this process dies at the wrong moment: a copy is known by its name, the file is not.
        let unmarked = || snapshot.free_area(len).map(|range| Place { range, far: false });
        let place = marked.or_else(unmarked).ok_or_else(no_room)?;
        let start = place.range.start().get();
        let unmap = Staged::at(place).unmap();
        if place.far {
            session.release_on_the_way_home(unmap);
        }
        match session.call(part.map_call(place.range))? {
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
