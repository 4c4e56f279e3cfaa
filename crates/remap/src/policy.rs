//! The user's wishes for a program's text, be it launched or running already.

use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::config::EdgePolicy;
use tiexec_core::numa::Numa;
use tiexec_core::select::Select;

use crate::sources::Sources;

/// The wishes for one program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The page sizes.
    pub pages: Pages,
    /// The sources of huge pages.
    pub sources: Sources,
    /// The files whose text is looked after.
    pub select: Select,
    /// The choice of ragged edges.
    pub edges: EdgePolicy,
    /// On which nodes copies lie; `None` to leave that to the kernel.
    pub numa: Option<Numa>,
    /// How long staging may take.
    pub deadline: Duration,
    /// Plan only.
    pub dry_run: bool,
}
