//! The sources of huge pages.

use tiexec_core::config::BackingChoice;
use tiexec_core::numa::Numa;
use tiexec_core::plan::Backing;

/// The sources from which a launch may make huge pages; the page cache first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sources {
    /// True if the file's own page cache may be used.
    pub pagecache: bool,
    /// True if copies may be in the image store, if there is one.
    pub store: bool,
    /// The kind of copy for what neither holds; `None` for none.
    pub copy: Option<Backing>,
}

impl Sources {
    /// Returns those that are asked for. Where it matters on which node they lie, what is shared with
    /// others is left out, unless nothing else may be used: it lies where it was first read or made.
    pub fn asked_for(choice: BackingChoice, numa: Option<Numa>) -> Self {
        let sources = Self::from(choice);
        match numa.and(sources.copy) {
            Some(_) => Self { pagecache: false, store: false, ..sources },
            None => sources,
        }
    }
}

impl From<BackingChoice> for Sources {
    /// `off` is for whoever asks first; here it is as `auto`.
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
