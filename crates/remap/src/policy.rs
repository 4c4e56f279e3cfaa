//! The user's policy for a program's text, for a launch or a running process.

use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::config::EdgePolicy;
use tiexec_core::numa::Numa;
use tiexec_core::select::Select;
use tiexec_core::skip::FailureKind;
use tiexec_sys::thp;
use tiexec_tracee::Failure;

use crate::sources::Sources;

/// The policy for one program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The page sizes.
    pub pages: Pages,
    /// The sources of huge pages.
    pub sources: Sources,
    /// The files whose text TiExec treats.
    pub select: Select,
    /// Whether the edges of text are taken.
    pub edges: EdgePolicy,
    /// The nodes on which copies lie; `None` to leave the choice to the kernel.
    pub numa: Option<Numa>,
    /// True if a launch may evict files that nobody uses, to read them back in huge folios.
    pub evict: bool,
    /// How long staging may take.
    pub deadline: Duration,
    /// Plan only.
    pub dry_run: bool,
}

/// Returns the machine's page sizes.
///
/// # Errors
/// `thp_unsupported`.
pub fn pages() -> Result<Pages, Failure> {
    thp::pages().ok_or_else(unsupported)
}

/// Says that no text can be huge here.
pub fn unsupported() -> Failure {
    Failure::new(FailureKind::ThpUnsupported, "the kernel has no transparent huge pages")
}
