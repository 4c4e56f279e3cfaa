//! The sources of huge pages.

use tiexec_core::config::BackingChoice;
use tiexec_core::numa::Numa;
use tiexec_core::plan::Backing;

/// The sources from which a launch may make huge pages, in order of preference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sources {
    /// True if the file's own page cache may be used.
    pub pagecache: bool,
    /// True if copies may be in the image store, provided that there is one.
    pub store: bool,
    /// The kind of copy for text that neither holds; `None` for no copy.
    pub copy: Option<Backing>,
}

impl Sources {
    /// Returns the sources that the settings request. With a NUMA policy, sources that processes share are left
    /// out, unless no copy is allowed: shared pages lie on the node where they were first read or made.
    pub fn asked_for(choice: BackingChoice, numa: Option<Numa>) -> Self {
        let sources = Self::from(choice);
        match numa.and(sources.copy) {
            Some(_) => Self { pagecache: false, store: false, ..sources },
            None => sources,
        }
    }
}

impl From<BackingChoice> for Sources {
    /// The caller must check for `off` first; here it equals `auto`.
    fn from(choice: BackingChoice) -> Self {
        match choice {
            BackingChoice::Hugetlb => {
                Self { pagecache: false, store: false, copy: Some(Backing::Hugetlb) }
            }
            BackingChoice::Image => {
                Self { pagecache: false, store: true, copy: Some(Backing::Image) }
            }
            BackingChoice::Pagecache => Self { pagecache: true, store: false, copy: None },
            BackingChoice::Auto | BackingChoice::Off => {
                Self { pagecache: true, store: true, copy: Some(Backing::Image) }
            }
        }
    }
}
