//! The levels of a processor's instruction TLB.

use serde::Serialize;
use tiexec_core::tlb_sweep::{Levels, Measured};

/// The entries of one level. Their organisation in sets is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Each page size has entries of its own.
    Split {
        /// For base pages.
        base: u32,
        /// For huge pages.
        huge: u32,
    },
    /// Pages of both sizes compete for the same entries.
    Shared(u32),
}

impl Level {
    /// Returns the entries that base and huge pages may use.
    pub const fn entries(self) -> (u32, u32) {
        match self {
            Self::Split { base, huge } => (base, huge),
            Self::Shared(entries) => (entries, entries),
        }
    }
}

/// The source of the figures that were not measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The processor reports the figures.
    Cpuid,
    /// The processor reports its model, and a table has the figures.
    Table,
    /// Usual figures, because neither source has any.
    Assumed,
}

/// The TLB levels that an instruction fetch goes through.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Itlb {
    /// The name of the design, where it is known.
    pub name: Option<&'static str>,
    /// The source of the figures that were not measured.
    pub source: Source,
    /// The figures that were measured on this machine. They take the place of the others.
    pub measured: Measured,
    /// The facts that the processor hides, and why.
    pub hidden: Option<&'static str>,
    /// The second level as the table of known processors has it, if the processor reports less than half or more than twice
    /// as many entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Level>,
    /// The first level.
    pub first: Level,
    /// The second level.
    pub second: Option<Level>,
    /// True if translations of data compete for the second level.
    pub second_holds_data: bool,
}

impl Itlb {
    /// The smallest TLB that most processors of the last ten years have. It is used for an unknown processor.
    pub const USUAL: Self = Self {
        name: None,
        source: Source::Assumed,
        measured: Measured::UNCLEAR,
        hidden: None,
        otherwise: None,
        first: Level::Split { base: 64, huge: 8 },
        second: Some(Level::Shared(1024)),
        second_holds_data: true,
    };

    /// Returns the description with the measured figures in the place of the others. Where the host splits huge pages, those about huge
    /// pages are about the base pages in them, and do not count.
    #[must_use]
    pub fn measured(self, measured: Measured, split: bool) -> Self {
        let Measured { base, huge } = measured;
        let huge = if split { Levels::UNCLEAR } else { huge };
        let level = |level: Level, of_base: Option<u32>, of_huge: Option<u32>| match level {
            Level::Shared(entries) => Level::Shared(of_base.unwrap_or(entries)),
            Level::Split { base, huge } => {
                Level::Split { base: of_base.unwrap_or(base), huge: of_huge.unwrap_or(huge) }
            }
        };
        let second = self.second.or(base.second.map(Level::Shared));
        Self {
            measured: Measured { base, huge },
            otherwise: self.otherwise.filter(|_| base.second.is_none()),
            first: level(self.first, base.first, huge.first),
            second: second.map(|second| level(second, base.second, huge.second)),
            ..self
        }
    }

    /// Returns the part of the second level that instructions can use: half of a level that also holds data.
    pub fn second_for_text(&self) -> Option<Level> {
        let part = |entries: u32| if self.second_holds_data { entries / 2 } else { entries };
        self.second.map(|level| match level {
            Level::Split { base, huge } => Level::Split { base: part(base), huge: part(huge) },
            Level::Shared(entries) => Level::Shared(part(entries)),
        })
    }
}
