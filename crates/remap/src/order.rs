//! The wish of a launch.

use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::config::EdgePolicy;
use tiexec_core::numa::Numa;
use tiexec_core::select::Select;
use tiexec_sys::procfs::ProcDir;

use crate::credentials;
use crate::objects::Expected;
use crate::sources::Sources;

/// The order for a launch.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The program's directory under `/proc`.
    pub process: &'a ProcDir,
    /// Whether the process was other programs before this one: it may be another user's by now.
    pub chain: bool,
    /// The page sizes.
    pub pages: Pages,
    /// The sources of huge pages.
    pub sources: Sources,
    /// The files whose text is looked after.
    pub select: Select,
    /// The program's shared objects that have something to gain; `None` to find out when it is known
    /// which program it is.
    pub objects: Option<Expected>,
    /// Which ragged edges are taken.
    pub edges: EdgePolicy,
    /// On which nodes copies lie; `None` to leave that to the kernel.
    pub numa: Option<Numa>,
    /// How long staging may take.
    pub deadline: Duration,
    /// End the program with this status, before it has run, rather than leave text on base pages.
    pub refuse_with: Option<u8>,
    /// Whether anybody will read the report in full.
    pub wants_report: bool,
    /// Plan only, then end the program with status 0 before it has run.
    pub dry_run: bool,
}

impl Order<'_> {
    /// Asks whether the program has other credentials than this process, and is believed to be hostile. An exec, and the
    /// running program itself, can change the answer.
    pub(crate) fn is_foreign(&self) -> bool {
        self.chain && !credentials::are_ours(self.process)
    }
}
