//! Counts the kernel's samples for each page, with the process and the file of the page.

use std::collections::{HashMap, HashSet};

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::perf::samples::What;
use tiexec_core::proc::maps::Vma;

/// Returns whether `others` have so many samples that a figure about the rest must say so: more than a twentieth of all.
pub fn are_many(others: u64, samples: u64) -> bool {
    others > samples.saturating_add(others) / 20
}

/// A program in an address space: a process from one exec to the next.
#[derive(Clone, Debug)]
pub struct Space {
    /// The process.
    pub pid: u32,
    /// The executable ranges of the process, the latest last, each with the index of its name.
    mappings: Vec<(AddrRange, usize)>,
    /// True if the process still runs this program.
    pub current: bool,
}

impl Space {
    /// Returns the executable ranges, each with its index into [`Tally::names`].
    pub fn mappings(&self) -> impl Iterator<Item = (AddrRange, usize)> + '_ {
        self.mappings.iter().copied()
    }

    fn name_at(&self, at: RemoteAddr) -> Option<usize> {
        let found = self.mappings.iter().rev().find(|(range, _)| range.contains(at));
        found.map(|&(_, name)| name)
    }
}

/// The samples of one base page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampledPage {
    /// Its address space: an index into [`Tally::spaces`].
    pub space: usize,
    /// Its address.
    pub at: RemoteAddr,
    /// Its file: an index into [`Tally::names`].
    pub name: usize,
    /// How many samples.
    pub samples: u64,
}

/// Counts samples by page.
#[derive(Clone, Debug)]
pub struct Tally {
    base: PageSize,
    names: Vec<Vec<u8>>,
    /// The index of each name.
    by_name: HashMap<Vec<u8>, usize>,
    spaces: Vec<Space>,
    current: HashMap<u32, usize>,
    counts: HashMap<(usize, RemoteAddr), (usize, u64)>,
    lost: u64,
}

impl Tally {
    /// The index of the name for code in no file, which a compiler made at run time.
    pub const ANONYMOUS: usize = 0;
    /// The most executable mappings of a process, and the most names of all, that are kept: a process may map files of
    /// new names without end. Code in further ones counts as code in no file. `vm.max_map_count` is 65,530 by default.
    const MOST: usize = 1 << 16;

    /// Makes an empty tally, by base pages of this size.
    pub fn new(base: PageSize) -> Self {
        let anonymous = b"(anonymous)".to_vec();
        Self {
            base,
            names: vec![anonymous.clone()],
            by_name: HashMap::from([(anonymous, Self::ANONYMOUS)]),
            spaces: Vec::new(),
            current: HashMap::new(),
            counts: HashMap::new(),
            lost: 0,
        }
    }

    /// Adds the existing mappings of a process. Samples that it has already count for them, too.
    pub fn add_process(&mut self, pid: u32, vmas: &[Vma]) {
        for vma in vmas.iter().filter(|vma| vma.perms.exec) {
            self.map(pid, vma.range, vma.path());
        }
        let space = self.space(pid);
        let of = &self.spaces[space];
        for (&(_, at), (name, _)) in self.counts.iter_mut().filter(|((of, _), _)| *of == space) {
            *name = of.name_at(at).unwrap_or(Self::ANONYMOUS);
        }
    }

    /// Returns the part that is about these processes.
    #[must_use]
    pub fn part(&self, pids: &HashSet<u32>) -> Self {
        let mut part = Self { spaces: Vec::new(), current: HashMap::new(), ..self.clone() };
        let mut kept = HashMap::new();
        for (index, space) in
            self.spaces.iter().enumerate().filter(|(_, of)| pids.contains(&of.pid))
        {
            kept.insert(index, part.spaces.len());
            if space.current {
                part.current.insert(space.pid, part.spaces.len());
            }
            part.spaces.push(space.clone());
        }
        let counts = part.counts.into_iter();
        let counts = counts.filter_map(|((of, at), count)| Some(((*kept.get(&of)?, at), count)));
        part.counts = counts.collect();
        part
    }

    /// Returns how many samples each process has.
    pub fn by_process(&self) -> HashMap<u32, u64> {
        let mut samples = HashMap::new();
        for page in self.pages() {
            *samples.entry(self.spaces[page.space].pid).or_default() += page.samples;
        }
        samples
    }

    /// Adds an event. The caller must add events in the order of time.
    pub fn add(&mut self, what: What) {
        match what {
            What::Sample { pid, at } => {
                let space = self.space(pid);
                let page = at.align_down(self.base);
                let spaces = &self.spaces;
                let name = || spaces[space].name_at(at).unwrap_or(Self::ANONYMOUS);
                self.counts.entry((space, page)).or_insert_with(|| (name(), 0)).1 += 1;
            }
            What::Mapped { pid, range, name } => self.map(pid, range, &name),
            What::Exec { pid } => {
                if let Some(old) = self.current.remove(&pid) {
                    self.spaces[old].current = false;
                }
            }
            What::Fork { pid, parent } => {
                let mappings =
                    self.current.get(&parent).map(|&of| self.spaces[of].mappings.clone());
                let child = self.space(pid);
                self.spaces[child].mappings = mappings.unwrap_or_default();
            }
            What::Lost(records) => self.lost += records,
        }
    }

    /// Sets the file of the text in a range, because the mapping that replaces the text has another name in maps.
    pub fn attribute(&mut self, space: usize, range: AddrRange, name: &[u8]) {
        let name = self.name(name);
        for (&(of, at), (known, _)) in &mut self.counts {
            if of == space && range.contains(at) {
                *known = name;
            }
        }
    }

    /// Returns the pages with samples, in no particular order.
    pub fn pages(&self) -> impl Iterator<Item = SampledPage> + '_ {
        self.counts.iter().map(|(&(space, at), &(name, samples))| SampledPage {
            space,
            at,
            name,
            samples,
        })
    }

    /// Returns the names of the executed files. [`SampledPage::name`] is an index into this list.
    pub fn names(&self) -> &[Vec<u8>] {
        &self.names
    }

    /// Returns the address spaces.
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// Returns how many records were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn space(&mut self, pid: u32) -> usize {
        *self.current.entry(pid).or_insert_with(|| {
            self.spaces.push(Space { pid, mappings: Vec::new(), current: true });
            self.spaces.len() - 1
        })
    }

    fn map(&mut self, pid: u32, range: AddrRange, name: &[u8]) {
        let is_file = name.starts_with(b"/") && !name.starts_with(b"//anon");
        let name = match name {
            b"[vdso]" | b"[vsyscall]" => name,
            name if is_file => name,
            _ => &self.names[Self::ANONYMOUS].clone(),
        };
        let name = self.name(name);
        let space = self.space(pid);
        let mappings = &mut self.spaces[space].mappings;
        if mappings.len() < Self::MOST {
            mappings.push((range, name));
        }
    }

    fn name(&mut self, name: &[u8]) -> usize {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        if self.names.len() >= Self::MOST {
            return Self::ANONYMOUS;
        }
        self.names.push(name.to_vec());
        self.by_name.insert(name.to_vec(), self.names.len() - 1);
        self.names.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: PageSize = PageSize::new(4096).unwrap();

    #[test]
    fn an_exec_begins_anew_and_a_fork_inherits() {
        let at = RemoteAddr::new(0x1008);
        let range = AddrRange::with_len(RemoteAddr::new(0x1000), 0x1000).unwrap();
        let mut tally = Tally::new(BASE);
        tally.add(What::Mapped { pid: 1, range, name: b"/a".to_vec() });
        tally.add(What::Sample { pid: 1, at });
        tally.add(What::Fork { pid: 2, parent: 1 });
        tally.add(What::Sample { pid: 2, at });
        tally.add(What::Exec { pid: 1 });
        tally.add(What::Sample { pid: 1, at });
        let mut of: Vec<(u32, &[u8], u64)> = tally
            .pages()
            .map(|page| {
                let name = &tally.names()[page.name][..];
                (tally.spaces()[page.space].pid, name, page.samples)
            })
            .collect();
        of.sort_unstable();
        assert_eq!(of, [(1, &b"(anonymous)"[..], 1), (1, &b"/a"[..], 1), (2, &b"/a"[..], 1)]);
    }

    #[test]
    fn mappings_may_come_after_the_samples_and_a_part_has_its_own_processes() {
        let range = AddrRange::with_len(RemoteAddr::new(0x1000), 0x1000).unwrap();
        let mut tally = Tally::new(BASE);
        for pid in [1, 2, 2] {
            tally.add(What::Sample { pid, at: RemoteAddr::new(0x1008) });
        }
        let mut part = tally.part(&HashSet::from([2]));
        assert_eq!(part.by_process(), HashMap::from([(2, 2)]));
        let vma = tiexec_core::proc::maps::parse(b"1000-2000 r-xp 0 08:01 7 /b\n").unwrap();
        part.add_process(2, &vma);
        let page = part.pages().next().expect("a page");
        assert_eq!((&part.names()[page.name][..], page.samples), (&b"/b"[..], 2));
        assert_eq!(part.spaces()[page.space].mappings().next().map(|(of, _)| of), Some(range));
    }

    #[test]
    fn a_process_that_maps_without_end_is_bounded() {
        let mut tally = Tally::new(BASE);
        for number in 0..Tally::MOST as u64 + 9 {
            let range = AddrRange::with_len(RemoteAddr::new(number << 12), 0x1000).unwrap();
            tally.add(What::Mapped { pid: 1, range, name: format!("/{number}").into_bytes() });
        }
        assert_eq!(tally.spaces()[0].mappings().count(), Tally::MOST);
        assert_eq!(tally.names().len(), Tally::MOST);
    }
}
