//! The switch: parts of a file replace text. No other code changes the mappings at the addresses of a program's
//! text.
//!
//! A process maps the part of the file beside its text, populates that mapping, and moves it over the text by one
//! mremap(2). mremap unmaps its destination *before* it can fail. TiExec therefore first settles everything that
//! could make it fail: what it moves is one mapping, of the length and protection of the text, private, never
//! writable (so never accounted), and fully populated.
//!
//! The process makes these calls through an [`Executor`]: a program at its exec stop, a stopped thread of a running
//! process, or this very process. [`Company`] says who else can change its mappings meanwhile.
//!
//! If this process dies in the middle, the process that is switched makes the undo steps on its way home: it unmaps
//! what was staged. In [shared](Company::Shared) company, the step must not unmap a mapping of another thread:
//!
//! - At a place [far](tiexec_core::marks::Place::far) from all other mappings, no other thread can have mapped
//!   anything. The step stands in the chain from before the `mmap` until after the `mremap`.
//! - At a nearer place, the step stands in the chain only while the mapping is known to be ours. If this process
//!   dies outside that time, the mapping stays, and the next attach or revert recognizes it by its
//!   [mark](tiexec_core::marks).

mod surroundings;

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::FileId;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::{Errno, c};
use tiexec_tracee::executor::Executor;
use tiexec_tracee::remote::{
    self, Advice, MLOCK, MREMAP, MUNMAP, Placing, SystemCall, madvise_entry, mmap_entry,
};
use tiexec_tracee::session::MAX_BATCH;
use tiexec_tracee::syscall_manifest::ManifestEntry;
use tiexec_tracee::{Failure, TraceError};

use self::surroundings::Room;
pub use self::surroundings::{Company, Shared, Surroundings};
use crate::protection::{GUARDED, TEXT};

/// A file that the process has open.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    /// Its descriptor, in the process.
    pub fd: u64,
    /// The file's identity in maps; not used in a process that is [alone](Company::Alone).
    pub file: FileId,
}

/// One switch: which part of a file takes the place of which text.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The file.
    pub source: OpenFile,
    /// The offset of the part's first byte in the file.
    pub offset: u64,
    /// The text that it covers, whole pages.
    pub to: AddrRange,
    /// The part of it that is populated before the switch: all of it, but for the file's own pages beside a copy that is
    /// reverted.
    pub populated: AddrRange,
    /// True if that text is locked in memory.
    pub locked: bool,
    /// The protection of the new mapping: that of text, or of read-only data.
    pub protection: i32,
    /// The backing of the new mapping; `None` if the file itself is mapped in its own place.
    pub backing: Option<Backing>,
}

/// The calls that the process makes in [`switch_all`].
pub const CALLS: [ManifestEntry; 6] = [
    mmap_entry(TEXT, Placing::Aside),
    madvise_entry(Advice::PopulateRead),
    MREMAP,
    mmap_entry(TEXT, Placing::Over).optional(),
    MUNMAP,
    MLOCK,
];

/// The further calls for guarded text.
pub const GUARDED_CALLS: [ManifestEntry; 2] =
    [mmap_entry(GUARDED, Placing::Aside), mmap_entry(GUARDED, Placing::Over).optional()];

/// The further call if there are huge pages of the page cache at an edge.
pub const WIDENED_CALLS: [ManifestEntry; 1] = [madvise_entry(Advice::HugePage)];

/// The further calls for read-only data.
pub const DATA_CALLS: [ManifestEntry; 2] =
    [mmap_entry(c::PROT_READ, Placing::Aside), mmap_entry(c::PROT_READ, Placing::Over).optional()];

/// The last check before a part is switched: whether its text is still the same.
pub type Unchanged<'a> = &'a dyn Fn(&Switch) -> Result<(), Failure>;

/// Switches `parts`, and passes the result of each to `done`. An error of `done` ends the work.
///
/// If the executor has [batches](Executor::batch), one batch stages several parts and another moves them, provided
/// that no other thread can map anything at their places.
///
/// # Errors
/// The first error of `done`. The text of a part that failed is unchanged, except if the failure says `mremap`. The
/// kernel may have unmapped the text then, and the staged mapping, which has the same bytes, is mapped in its
/// place.
pub fn switch_all<E: Executor>(
    executor: &mut E,
    around: &Surroundings<'_>,
    parts: &[Switch],
    unchanged: Unchanged<'_>,
    mut done: impl FnMut(&Switch, Result<(), Failure>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rest = parts;
    while !rest.is_empty() {
        let most = (MAX_BATCH / MOST_CALLS).min(executor.room());
        let (group, others) =
            rest.split_at(if executor.has_batches() { most } else { 1 }.clamp(1, rest.len()));
        for (part, outcome) in group.iter().zip(together(executor, around, group, unchanged)?) {
            let outcome = outcome.unwrap_or_else(|| switch(executor, around, part, unchanged));
            done(part, outcome)?;
        }
        rest = others;
    }
    Ok(())
}

/// The most calls for staging one part.
const MOST_CALLS: usize = 3;

/// Switches those of a few parts that can be switched together. Returns their results, and `None` for the others.
fn together<E: Executor>(
    executor: &mut E,
    around: &Surroundings<'_>,
    parts: &[Switch],
    unchanged: Unchanged<'_>,
) -> Result<Vec<Option<Result<(), Failure>>>, TraceError> {
    let mut outcomes: Vec<Option<Result<(), Failure>>> = vec![None; parts.len()];
    let Company::Shared(shared) = around.company else { return Ok(outcomes) };
    if !executor.has_batches() {
        return Ok(outcomes);
    }
    let snapshot = around.snapshot;
    let mut staged: Vec<(usize, Room)> = Vec::new();
    let mut calls = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let taken = |range: AddrRange| staged.iter().any(|(_, other)| other.range.overlaps(range));
        let room = shared.marked_room(part, snapshot);
        let far = room.filter(|room| room.exclusive && !taken(room.range));
        let Some(room) = far else { continue };
        executor.register(room.unmap());
        calls.extend(part.staging_calls(room.range));
        staged.push((index, room));
    }
    executor.batch(&calls)?;
    let wanted = |(index, one): &(usize, Room)| parts[*index].mapping(one.range);
    let mapped = shared.are_mapped(snapshot, staged.iter().map(wanted).collect());
    let mut calls = Vec::new();
    let mut moving = Vec::new();
    for ((index, one), is_mapped) in staged.into_iter().zip(mapped) {
        let part = &parts[index];
        if !is_mapped {
            // The place has a mapping that is not ours. A later call for this part alone reports the reason.
            executor.withdraw(one.unmap());
            continue;
        }
        // The kernel populates in ascending order, so the last page shows that all are present.
        let within = part.populated_at(one.range);
        let populated =
            if shared.is_present(snapshot, within) { Ok(()) } else { populate(executor, within)? };
        if let Err(failure) = populated.and_then(|()| unchanged(part)) {
            one.take_away(executor)?;
            outcomes[index] = Some(Err(failure));
            continue;
        }
        calls.push(remote::mremap(one.range, part.to.start()));
        moving.push((index, one));
    }
    executor.batch(&calls)?;
    let moved = moving.iter().map(|(index, _)| parts[*index].mapping(parts[*index].to)).collect();
    for ((index, one), is_moved) in moving.into_iter().zip(shared.are_mapped(snapshot, moved)) {
        let part = &parts[index];
        outcomes[index] = Some(if is_moved {
            executor.withdraw(one.unmap());
            lock(executor, part)?;
            Ok(())
        } else {
            move_over(executor, around, part, one)
        });
    }
    Ok(outcomes)
}

impl Room {
    /// Returns the step that unmaps what is staged there.
    fn unmap(&self) -> SystemCall {
        remote::munmap(self.range)
    }

    /// Unmaps what is staged there now.
    fn take_away(self, executor: &mut impl Executor) -> Result<(), TraceError> {
        executor.withdraw(self.unmap());
        let _it_stays = executor.call(self.unmap())?;
        Ok(())
    }
}

impl Switch {
    /// Returns the calls that map the part at `aside` and populate it.
    fn staging_calls(&self, aside: AddrRange) -> impl Iterator<Item = SystemCall> + use<> {
        let mark = self.is_widened().then(|| remote::madvise(aside, Advice::HugePage));
        let populate = remote::madvise(self.populated_at(aside), Advice::PopulateRead);
        [self.map_call(aside)].into_iter().chain(mark).chain([populate])
    }

    /// Returns what is populated of the mapping at `aside`.
    fn populated_at(&self, aside: AddrRange) -> AddrRange {
        let start = aside.start().get() + (self.populated.start().get() - self.to.start().get());
        AddrRange::with_len(RemoteAddr::new(start), self.populated.len()).unwrap_or(aside)
    }

    fn map_call(&self, aside: AddrRange) -> SystemCall {
        remote::mmap(aside, self.protection, Placing::Aside, self.source.fd, self.offset)
    }

    /// Returns whether the file's own pages are mapped beyond their previous range. smaps shows the advice for such
    /// a mapping as `hg`, by which a revert recognizes it.
    fn is_widened(&self) -> bool {
        self.backing == Some(Backing::Pagecache)
    }

    /// Returns the part as a mapping at `range`.
    const fn mapping(&self, range: AddrRange) -> (AddrRange, FileId, u64) {
        (range, self.source.file, self.offset)
    }
}

/// Switches one part by itself.
fn switch<E: Executor>(
    executor: &mut E,
    around: &Surroundings<'_>,
    part: &Switch,
    unchanged: Unchanged<'_>,
) -> Result<(), Failure> {
    // From here on an undo step unmaps what is staged.
    let staged = map_aside(executor, around, part)?;
    let mut ready = || {
        if part.is_widened() {
            let _no_thp = executor.call(remote::madvise(staged.range, Advice::HugePage))?;
        }
        populate(executor, part.populated_at(staged.range))??;
        unchanged(part)
    };
    if let Err(failure) = ready() {
        staged.take_away(executor)?;
        return Err(failure);
    }
    move_over(executor, around, part, staged)
}

/// Populates a range of the staged mapping.
fn populate(
    executor: &mut impl Executor,
    staged: AddrRange,
) -> Result<Result<(), Failure>, TraceError> {
    let answer = executor.call(remote::madvise(staged, Advice::PopulateRead))?;
    Ok(answer.map(drop).map_err(Failure::of(FailureKind::NoHugePage)))
}

/// Moves the staged mapping over the text.
fn move_over<E: Executor>(
    executor: &mut E,
    around: &Surroundings<'_>,
    part: &Switch,
    staged: Room,
) -> Result<(), Failure> {
    if !staged.exclusive {
        // After the move, another thread may use the old place, and the way home must not unmap it. Withdraw the
        // step. If this process dies right here, the staged mapping stays.
        executor.withdraw(staged.unmap());
    }
    let moved = executor.call(remote::mremap(staged.range, part.to.start()))?;
    if staged.exclusive {
        executor.withdraw(staged.unmap());
    }
    if let Err(error) = moved {
        put_right(executor, around, part, staged.range)?;
        let reason = match (error.errno, around.company) {
            // The kernel checks for seals before it unmaps anything (`vms_gather_munmap_vmas`, `mm/vma.c`, from 6.12;
            // `can_modify_mm`, `mm/mseal.c`, before).
            (Errno::PERM, Company::Shared(_)) => Reason::from(SkipReason::Sealed),
            // Another thread has unmapped the staged mapping, or another TiExec has, which mistook it for a dead
            // one's.
            (Errno::FAULT, Company::Shared(_)) => FailureKind::Changed.into(),
            _ => FailureKind::SwitchFailed.into(),
        };
        return Err(Failure::of(reason)(error));
    }
    Ok(lock(executor, part)?)
}

/// Locks the text in memory if it was locked before.
fn lock(executor: &mut impl Executor, part: &Switch) -> Result<(), TraceError> {
    if part.locked && executor.may(&MLOCK) {
        let _over_the_limit = executor.call(remote::mlock(part.to))?;
    }
    Ok(())
}

/// Repairs after an mremap that failed although nothing was left that could make it fail. Unmaps the staged
/// mapping. If the kernel has unmapped the text, first maps the staged bytes there at once, unless a filter forbids it.
fn put_right(
    executor: &mut impl Executor,
    around: &Surroundings<'_>,
    part: &Switch,
    staged: AddrRange,
) -> Result<(), TraceError> {
    let text_is_there = match around.company {
        // The staged bytes are those of the text, so mapping them over it does no harm.
        Company::Alone => false,
        Company::Shared(shared) => shared.is_mapped_whole(part.to),
    };
    if !text_is_there && executor.may(&mmap_entry(part.protection, Placing::Over).optional()) {
        let OpenFile { fd, .. } = part.source;
        let over = remote::mmap(part.to, part.protection, Placing::Over, fd, part.offset);
        let _there_is_nothing_else = executor.call(over)?;
    }
    let _it_stays = executor.call(remote::munmap(staged))?;
    Ok(())
}

/// Maps the part at a free place, and registers the undo step that unmaps it.
fn map_aside(
    executor: &mut impl Executor,
    around: &Surroundings<'_>,
    part: &Switch,
) -> Result<Room, Failure> {
    let no_room = || Failure::new(FailureKind::AddressSpace, "no free address range to stage in");
    let mut now = None;
    for _ in 0..4 {
        let room = around.room_for(part, now.as_ref()).ok_or_else(no_room)?;
        let unmap = room.unmap();
        if room.exclusive {
            executor.register(unmap);
        }
        match (executor.call(part.map_call(room.range))?, around.company) {
            (Ok(_), _) => {
                if !room.exclusive {
                    executor.register(unmap);
                }
                return Ok(room);
            }
            (Err(error), company) => {
                if room.exclusive {
                    executor.withdraw(unmap);
                }
                match company {
                    // Another thread has mapped something there since the snapshot.
                    Company::Shared(shared) if error.errno == Errno::EXIST => {
                        now = Some(shared.looked_at_again(around.snapshot));
                    }
                    // mmap(2) and mremap(2): the limit on locked memory.
                    _ if error.errno == Errno::AGAIN => {
                        return Err(Failure::of(FailureKind::LockedMemory)(error));
                    }
                    _ => return Err(Failure::of(FailureKind::AddressSpace)(error)),
                }
            }
        }
    }
    Err(no_room())
}
