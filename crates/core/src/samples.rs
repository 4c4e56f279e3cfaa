//! From perf records to how often each page was executed: whose, and of which file.
//!
//! Records with `sample_id_all` and the sample type `IP | TID | TIME` are understood (perf_event_open(2),
//! "Layout of MAP_SHARED"): so each ends in the ids of its thread and its time, by which the records of
//! several processors are put in order.

use std::collections::HashMap;

use crate::addr::{AddrRange, PageSize, RemoteAddr};
use crate::proc::maps::Vma;

/// `PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME`: what `sample_type` must be.
pub const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2;

const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;
const COMM_EXEC: u16 = 1 << 13;
/// Bytes of ids and time at the end of each record that is no sample.
const TRAILER: usize = 16;

/// Something that happened, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Nanoseconds of perf's clock.
    pub time: u64,
    /// What.
    pub what: What,
}

/// What happened. Process ids are as the opener's PID namespace counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A process was executing here.
    Sample {
        /// The process.
        pid: u32,
        /// Where.
        at: RemoteAddr,
    },
    /// A process mapped something executable.
    Mapped {
        /// The process.
        pid: u32,
        /// Where.
        range: AddrRange,
        /// The name of what is mapped, as maps shows it.
        name: Vec<u8>,
    },
    /// A process began another program: nothing of before is mapped any more.
    Exec {
        /// The process.
        pid: u32,
    },
    /// A process was forked off: it has what its parent has mapped.
    Fork {
        /// The process.
        pid: u32,
        /// Its parent.
        parent: u32,
    },
    /// So many records did not fit into a buffer.
    Lost(u64),
}

/// Parses one whole record; `None` for a kind that tells nothing here.
pub fn parse(record: &[u8]) -> Option<Event> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let misc = u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?);
    let kind = u32_at(0)?;
    if kind == SAMPLE {
        let what = What::Sample { at: RemoteAddr::new(u64_at(8)?), pid: u32_at(16)? };
        return Some(Event { time: u64_at(24)?, what });
    }
    let body = record.len().checked_sub(TRAILER)?;
    let what = match kind {
        LOST => What::Lost(u64_at(16)?),
        LOST_SAMPLES => What::Lost(u64_at(8)?),
        COMM if misc & COMM_EXEC != 0 => What::Exec { pid: u32_at(8)? },
        FORK if u32_at(8)? != u32_at(12)? => What::Fork { pid: u32_at(8)?, parent: u32_at(12)? },
        MMAP2 => {
            let range = AddrRange::with_len(RemoteAddr::new(u64_at(16)?), u64_at(24)?)?;
            let name = record.get(72..body)?;
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            What::Mapped { pid: u32_at(8)?, range, name: name[..end].to_vec() }
        }
        _ => return None,
    };
    Some(Event { time: u64_at(body + 8)?, what })
}

/// A program in an address space: a process from one exec to the next.
#[derive(Clone, Debug)]
pub struct Space {
    /// The process.
    pub pid: u32,
    /// What it has mapped executable, the latest last.
    mappings: Vec<(AddrRange, usize)>,
    /// Whether the process is still at it.
    pub current: bool,
}

impl Space {
    /// Returns the ranges that are mapped executable, and which of [`Tally::names`] they are of.
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
    /// Which of [`Tally::spaces`] it lies in.
    pub space: usize,
    /// Its address.
    pub at: RemoteAddr,
    /// Which of [`Tally::names`] it is of.
    pub name: usize,
    /// How many samples.
    pub samples: u64,
}

/// Counts samples by page.
#[derive(Clone, Debug)]
pub struct Tally {
    base: PageSize,
    names: Vec<Vec<u8>>,
    spaces: Vec<Space>,
    current: HashMap<u32, usize>,
    counts: HashMap<(usize, RemoteAddr), (usize, u64)>,
    lost: u64,
}

impl Tally {
    /// Which of the names is of code in no file: what a compiler made as the program ran.
    pub const ANONYMOUS: usize = 0;

    /// Begins to count, by base pages of this size.
    pub fn new(base: PageSize) -> Self {
        Self {
            base,
            names: vec![b"(anonymous)".to_vec()],
            spaces: Vec::new(),
            current: HashMap::new(),
            counts: HashMap::new(),
            lost: 0,
        }
    }

    /// Takes note of what a process has mapped already.
    pub fn add_process(&mut self, pid: u32, vmas: &[Vma]) {
        for vma in vmas.iter().filter(|vma| vma.perms.exec) {
            self.map(pid, vma.range, vma.path());
        }
    }

    /// Takes note of what happened. Events must come in the order of time.
    pub fn add(&mut self, what: What) {
        match what {
            What::Sample { pid, at } => {
                let space = self.space(pid);
                let name = self.spaces[space].name_at(at).unwrap_or(Self::ANONYMOUS);
                let page = at.align_down(self.base);
                self.counts.entry((space, page)).or_insert((name, 0)).1 += 1;
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

    /// Returns the pages with samples, in no order.
    pub fn pages(&self) -> impl Iterator<Item = SampledPage> + '_ {
        self.counts.iter().map(|(&(space, at), &(name, samples))| SampledPage {
            space,
            at,
            name,
            samples,
        })
    }

    /// Returns the names of what was executed; their positions are in the pages.
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
        let name = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_vec());
            self.names.len() - 1
        });
        let space = self.space(pid);
        self.spaces[space].mappings.push((range, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: PageSize = PageSize::new(4096).unwrap();

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let trailer = if kind == SAMPLE {
            Vec::new()
        } else {
            [&[7u32, 7].map(u32::to_ne_bytes).concat()[..], &time.to_ne_bytes()].concat()
        };
        let len = u16::try_from(8 + body.len() + trailer.len()).unwrap();
        let header = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &len.to_ne_bytes()].concat();
        [header, body.to_vec(), trailer].concat()
    }

    fn u64s(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    fn u32s(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn what_the_kernel_writes() {
        let sample =
            record(SAMPLE, 2, &[u64s(&[0x40_1234]), u32s(&[7, 8]), u64s(&[99])].concat(), 0);
        let what = What::Sample { pid: 7, at: RemoteAddr::new(0x40_1234) };
        assert_eq!(parse(&sample), Some(Event { time: 99, what }));
        let mapped = [
            u32s(&[7, 8]),
            u64s(&[0x40_0000, 0x2000, 0x1000]),
            u32s(&[253, 1]),
            u64s(&[42, 0]),
            u32s(&[5, 2]),
            b"/usr/bin/x\0\0\0\0\0\0".to_vec(),
        ];
        let mapped = record(MMAP2, 2, &mapped.concat(), 100);
        let Some(Event { time: 100, what: What::Mapped { pid: 7, range, name } }) = parse(&mapped)
        else {
            panic!("{:?}", parse(&mapped));
        };
        assert_eq!(
            (range.to_string().as_str(), &name[..]),
            ("00400000-00402000", &b"/usr/bin/x"[..])
        );
        let thread = record(FORK, 0, &[u32s(&[7, 7, 9, 7]), u64s(&[1])].concat(), 1);
        assert_eq!(parse(&thread), None);
        let lost = record(LOST, 0, &u64s(&[1, 12]), 3);
        assert_eq!(parse(&lost), Some(Event { time: 3, what: What::Lost(12) }));
        for whole in [sample, mapped, lost] {
            for len in 0..whole.len() {
                let _cut_short = parse(&whole[..len]);
            }
        }
    }

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
}
