//! The program for tests of debuggers and profilers, launched by each backing. The functions that the tools examine lie
//! in huge text.

use super::child::Held;
use super::fresh::{Fresh, huge_folios};
use super::launch::Run;
use super::machine::Machine;
use super::programs::{Kind, program};
use super::smaps::{Vma, pmd_size, vmas};

/// The backing of huge text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The page cache, after a move.
    Rebase,
    /// The page cache, where it is.
    Pagecache,
    /// A copy in a memfd.
    Image,
    /// A copy in pages of the pool.
    Hugetlb,
}

/// Every way.
pub const ALL: [By; 4] = [By::Rebase, By::Pagecache, By::Image, By::Hugetlb];

/// A private copy of the program, and the way of its launch.
pub struct Traced {
    /// The way.
    pub by: By,
    /// The copy of the program.
    pub copy: Fresh,
    _pool: Option<Machine>,
}

impl By {
    /// Returns whether the text is still mapped from the file.
    pub fn is_the_file(self) -> bool {
        matches!(self, By::Rebase | By::Pagecache)
    }

    /// Makes the program for this way; none if the machine does not support it.
    pub fn traced(self) -> Option<Traced> {
        let (kind, pool) = match self {
            By::Rebase | By::Pagecache if !huge_folios() => return None,
            By::Rebase => (Kind::OneSegmentPie, None),
            By::Pagecache | By::Image => (Kind::OneSegmentNoPie, None),
            By::Hugetlb => {
                let mut machine = Machine::lock();
                if !machine.pool(8) {
                    return None;
                }
                (Kind::OneSegmentNoPie, Some(machine))
            }
        };
        Some(Traced { by: self, copy: Fresh::copy(&program("traced", kind)), _pool: pool })
    }
}

impl Traced {
    /// Its launch.
    pub fn run(&self) -> Run {
        let backing = match self.by {
            By::Rebase | By::Pagecache => "pagecache",
            By::Image => "image",
            By::Hugetlb => "hugetlb",
        };
        Run::new(self.copy.path(), [""; 0]).options([format!("--backing={backing}")])
    }

    /// Launches it until it waits.
    pub fn hold(&self) -> Held {
        let held = self.run().hold();
        self.assert_huge(held.pid(), &held);
        held
    }

    /// Asserts that the examined functions lie in huge text of this backing.
    pub fn assert_huge(&self, pid: i32, held: &Held) {
        let at = held.said("probed").and_then(|at| u64::from_str_radix(&at, 16).ok());
        let at = at.expect("where its function is");
        let all = vmas(pid);
        let vma = all.iter().find(|vma| vma.start <= at && at < vma.end).expect("its mapping");
        let pmd = pmd_size();
        let whole = at / pmd * pmd;
        assert!(vma.start <= whole && whole + pmd <= vma.end, "not in a whole huge page: {vma:?}");
        let inside = vma.end / pmd * pmd - vma.start.next_multiple_of(pmd);
        assert_eq!(huge_by(self.by, vma), inside, "{:?}: {vma:?}", self.by);
    }
}

fn huge_by(by: By, vma: &Vma) -> u64 {
    match by {
        By::Rebase | By::Pagecache => vma.counter("FilePmdMapped"),
        By::Image => vma.counter("ShmemPmdMapped"),
        By::Hugetlb => vma.counter("Private_Hugetlb") + vma.counter("Shared_Hugetlb"),
    }
}
