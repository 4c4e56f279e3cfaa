//! The places where parts can be mapped before they are moved over the text, and the mappings around them.

use std::os::unix::fs::FileExt;

use tiexec_core::addr::AddrRange;
use tiexec_core::file_ranges::in_range;
use tiexec_core::marks::{Mapping, Marks, Place};
use tiexec_core::proc::maps::{self, FileId};
use tiexec_core::proc::pagemap;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::AddressSpace;

use super::Switch;

/// The others that can map and unmap memory while text is switched. The switches of a launch and of an attach
/// differ only in this.
#[derive(Clone, Copy, Debug)]
pub enum Company<'a> {
    /// Nobody: the program has one thread, which has not run yet. A range that was free is still free. Its undo
    /// step is therefore registered before anything is mapped there, and an edge may cover a gap.
    Alone,
    /// Other threads, at any moment. A free range is certain to stay free only if it is [far](Place::far) from all
    /// mappings. A nearer range is ours only once the kernel has mapped it there, so its undo step is registered
    /// after that.
    Shared(Shared<'a>),
}

/// An address space in which other threads run.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// The address space, for reading its mappings again.
    pub space: &'a AddressSpace,
    /// The marks by which a later TiExec recognizes what a dead one left; `None` if the process has none.
    pub marks: Option<Marks>,
}

/// The address space in which parts are switched.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Its mappings, as last read.
    pub snapshot: &'a Snapshot,
    /// The other threads that run in the process.
    pub company: Company<'a>,
}

/// A range where a part can be mapped aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// The range.
    pub range: AddrRange,
    /// True if no other thread can have mapped anything there.
    pub exclusive: bool,
}

impl Surroundings<'_> {
    /// Returns room for a part. `now` is a later snapshot, if there is one.
    pub(super) fn room_for(&self, part: &Switch, now: Option<&Snapshot>) -> Option<Room> {
        let snapshot = now.unwrap_or(self.snapshot);
        let free =
            |exclusive| snapshot.free_area(part.to.len()).map(|range| Room { range, exclusive });
        match self.company {
            Company::Alone => free(true),
            // Without marks the mapping stays if this process dies at the wrong moment: a copy can be recognized by
            // its name, the file's own mapping cannot.
            Company::Shared(shared) => shared.marked_room(part, snapshot).or_else(|| free(false)),
        }
    }
}

impl Shared<'_> {
    /// Returns the present mappings; none if they cannot be read.
    pub(super) fn looked_at_again(&self, before: &Snapshot) -> Snapshot {
        let vmas = self.space.maps().ok().and_then(|text| maps::parse(&text).ok());
        let Snapshot { pages, entry, .. } = *before;
        Snapshot { pages, vmas: vmas.unwrap_or_default(), entry }
    }

    /// Returns whether nothing has been mapped near a place since it was found far from all mappings. Staging may
    /// have taken long since then.
    fn is_still_far(&self, place: Place, marks: Marks, snapshot: &Snapshot) -> bool {
        let Some(apart) = marks.reach(place.range) else { return false };
        match self.space.next_mapping(apart.start()) {
            Ok(next) => next.is_some_and(|next| apart.end() <= next.range.start()),
            // Before Linux 6.11, read all mappings to find one.
            Err(_) => {
                let now = self.looked_at_again(snapshot);
                !now.vmas.is_empty() && in_range(&now.vmas, apart).next().is_none()
            }
        }
    }

    /// Returns the room whose address marks a staged part, given the mappings of `snapshot`.
    pub(super) fn marked_room(&self, part: &Switch, snapshot: &Snapshot) -> Option<Room> {
        let marks = self.marks?;
        let mapping = Mapping { file: part.source.file, offset: part.offset, len: part.to.len() };
        let place = marks.place(&snapshot.vmas, mapping)?;
        let exclusive = place.far && self.is_still_far(place, marks, snapshot);
        Some(Room { range: place.range, exclusive })
    }

    /// Returns for each range whether it is a private mapping of that file, from that offset on.
    pub(super) fn are_mapped(
        &self,
        snapshot: &Snapshot,
        wanted: Vec<(AddrRange, FileId, u64)>,
    ) -> Vec<bool> {
        // Before Linux 6.11, read all mappings to find some.
        let mut all = None;
        let mut at = |range: AddrRange| match self.space.mapping_at(range.start()) {
            Ok(mapping) => {
                mapping.map(|found| (found.range, found.perms, found.file, found.file_offset))
            }
            Err(_) => {
                let now: &Snapshot = all.get_or_insert_with(|| self.looked_at_again(snapshot));
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

    /// Returns whether the last page of `range` is present.
    pub(super) fn is_present(&self, snapshot: &Snapshot, range: AddrRange) -> bool {
        const WORD: u64 = 8;
        let page = snapshot.pages.base.bytes();
        let mut word = [0; WORD as usize];
        let at = (range.end().get() / page - 1) * WORD;
        let read = self.space.pagemap().read_exact_at(&mut word, at);
        read.is_ok() && pagemap::is_present(u64::from_ne_bytes(word))
    }

    /// Returns whether the whole of `range` is mapped; true if that cannot be read. Other threads that map memory can tear the text
    /// of maps, so it is read several times.
    pub(super) fn is_mapped_whole(&self, range: AddrRange) -> bool {
        const TRIES: usize = 8;
        let read = |_| self.space.maps().ok().and_then(|text| maps::parse(&text).ok());
        let vmas = (0..TRIES).find_map(read);
        vmas.is_none_or(|vmas| {
            let parts = vmas.iter().filter_map(|vma| vma.range.intersection(range));
            parts.map(|part| part.len()).sum::<u64>() == range.len()
        })
    }
}
