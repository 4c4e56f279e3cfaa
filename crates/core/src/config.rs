//! The values of the user's settings.

use std::time::Duration;

use serde::Serialize;

use crate::addr::PageSize;
use crate::budget::Budget;
use crate::numa::Numa;
use crate::select::Select;
use crate::skip::Reason;
use crate::value::words;

/// The user's choice of the place for huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackingChoice {
    /// The best backing for which the administrator need not reserve anything.
    #[default]
    Auto,
    /// The file's own page cache, in PMD-sized folios; nothing is copied.
    Pagecache,
    /// An image of the text in THP: in the image store if there is one, else in a memfd.
    Image,
    /// An image in pages of the hugetlb pool. Only the user can choose it, by name: a database may count on those
    /// pages.
    Hugetlb,
    /// No backing: a plain exec.
    Off,
}

words! { BackingChoice, "auto, pagecache, image, hugetlb or off":
Auto = "auto", Pagecache = "pagecache", Image = "image", Hugetlb = "hugetlb", Off = "off" }

/// The huge pages at a text's ragged head and tail that are taken: the text shares them with other memory, or does not
/// fill them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edges {
    /// No edges: only huge pages that hold nothing but text.
    #[default]
    Conservative,
    /// Edges with enough text in them, of files that have at least a huge page of text.
    Pad,
    /// All edges, of files that have at least half a huge page of text.
    Aggressive,
}

words! { Edges, "conservative, pad or aggressive":
Conservative = "conservative", Pad = "pad", Aggressive = "aggressive" }

/// The files that a launch may evict from the page cache, to read them back in huge folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Evict {
    /// Files that no process uses.
    #[default]
    Unused,
    /// No file.
    Never,
}

words! { Evict, "unused or never": Unused = "unused", Never = "never" }

/// The choice of ragged edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdgePolicy {
    /// See [`Edges`].
    pub edges: Edges,
    /// With [`Edges::Pad`], how many bytes of text a huge page must hold.
    pub pad_threshold: u64,
}

impl EdgePolicy {
    /// The value that hugetext's documentation recommends for `hugetext_pad_threshold`: every edge is
    /// taken, if base pages have 4 KiB. Memory is cheaper than a missing iTLB entry; a user who thinks
    /// otherwise sets a larger value.
    pub const DEFAULT_PAD_THRESHOLD: u64 = 4096;

    /// Returns the least text, in bytes, that a file must have for its edges to be taken; `None` if no edges are taken.
    fn least_text(self, huge: PageSize) -> Option<u64> {
        match self.edges {
            Edges::Conservative => None,
            Edges::Pad => Some(huge.bytes()),
            Edges::Aggressive => Some(huge.bytes() / 2),
        }
    }

    /// Returns whether the edges of a file with `text` bytes of text are to be taken.
    pub fn is_for(self, text: u64, huge: PageSize) -> bool {
        self.least_text(huge).is_some_and(|least| text >= least)
    }

    /// Returns the least text, in bytes, that a huge page at an edge must hold.
    pub fn least_in_page(self) -> u64 {
        match self.edges {
            Edges::Pad => self.pad_threshold.max(1),
            Edges::Conservative | Edges::Aggressive => 1,
        }
    }

    /// Returns the options of a command that name this choice, each behind a blank; nothing for the default.
    pub fn options(self) -> String {
        let Self { edges, pad_threshold } = self;
        match edges {
            Edges::Conservative => String::new(),
            Edges::Pad if pad_threshold != Self::DEFAULT_PAD_THRESHOLD => {
                format!(" --edges={edges} --pad-threshold={pad_threshold}")
            }
            Edges::Pad | Edges::Aggressive => format!(" --edges={edges}"),
        }
    }
}

impl Default for EdgePolicy {
    fn default() -> Self {
        Self { edges: Edges::default(), pad_threshold: Self::DEFAULT_PAD_THRESHOLD }
    }
}

/// The values of all settings. [`setting`](crate::setting) has the table of what may be said, and where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Switched off: a plain exec. See [`is_off`](Self::is_off).
    pub off: bool,
    /// See [`BackingChoice`].
    pub backing: BackingChoice,
    /// See [`Evict`].
    pub evict: Evict,
    /// The choice of ragged edges.
    pub edges: EdgePolicy,
    /// The size of the hugetlb pool's pages; by default that of a huge page.
    pub page_size: Option<PageSize>,
    /// The nodes for copies; by default the kernel decides.
    pub numa: Option<Numa>,
    /// Refuse (exit 125) rather than run on base pages.
    pub strict: bool,
    /// How long staging may take, if a source says so; see [`deadline`](Self::deadline). Text that is not staged by then
    /// stays on base pages.
    pub deadline: Option<Duration>,
    /// The file that the report goes to: `Some("")` is stderr.
    pub report: Option<String>,
    /// Reports and plans as JSON.
    pub json: bool,
    /// No warnings.
    pub quiet: bool,
    /// Say why text was left alone even if that is normal.
    pub verbose: bool,
    /// Treat only the program of this name, after any number of execs.
    pub until_exec: Option<String>,
    /// See [`Select`].
    pub select: Select,
    /// Treat the programs that the program starts, too.
    pub follow: bool,
    /// For how long to watch what a program maps later, if a source says so; zero for not at all.
    pub settle: Option<Duration>,
    /// How many huge pages to take, the hottest first; by default all.
    pub max_huge_pages: Option<Budget>,
    /// Selects only programs whose path matches one of these patterns; all programs if there are no patterns.
    pub only: Vec<String>,
    /// Leaves out the programs whose path matches one of these patterns.
    pub except: Vec<String>,
}

impl Settings {
    /// The time that staging gets at launch unless the user says otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

    /// Returns how long staging may take.
    pub fn deadline(&self) -> Duration {
        self.deadline.unwrap_or(Self::DEFAULT_DEADLINE)
    }

    /// Returns for how long to watch what a program maps later; zero for not at all.
    pub fn settle(&self) -> Duration {
        self.settle.unwrap_or_default()
    }

    /// Returns whether to watch the start of the program. It is watched if no source says what to watch after the
    /// start.
    pub fn watches_start(&self) -> bool {
        self.settle.is_none() && !self.follow
    }

    /// Returns these settings, with no more edges and no more huge pages than `wanted` has.
    #[must_use]
    pub fn narrowed_by(&self, wanted: &Self) -> Self {
        let edges = self.edges.edges.min(wanted.edges.edges);
        let budgets = self.max_huge_pages.into_iter().chain(wanted.max_huge_pages);
        Self {
            edges: EdgePolicy { edges, ..self.edges },
            max_huge_pages: budgets.reduce(Budget::and),
            ..self.clone()
        }
    }

    /// Returns whether text stays on base pages, because of the kill switch or because no backing is wanted.
    pub fn is_off(&self) -> bool {
        self.off || self.backing == BackingChoice::Off
    }

    /// Returns whether `--strict` refuses a program for this reason, rather than let it run on base pages.
    pub fn refuses(&self, reason: Reason) -> bool {
        self.strict && reason.is_failure()
    }

    /// Returns the size of the pool's pages, if huge pages come from the pool and a setting names a size.
    pub fn pool_page(&self) -> Option<PageSize> {
        self.page_size.filter(|_| self.backing == BackingChoice::Hugetlb)
    }
}
