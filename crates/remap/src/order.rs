//! The order for a launch.

use tiexec_sys::procfs::ProcDir;

use crate::credentials;
use crate::objects::Expected;
use crate::policy::Policy;

/// The order for a launch.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The program's directory under `/proc`.
    pub process: &'a ProcDir,
    /// True if the process executed other programs before this one. It may be another user's by now.
    pub chain: bool,
    /// The policy. A dry run ends the program with status 0 before it has run.
    pub policy: Policy,
    /// The program's shared objects whose text could be huge; `None` to find them once the program is known.
    pub objects: Option<Expected>,
    /// The status with which the program ends before it has run, if text would stay on base pages; `None` to let it
    /// run.
    pub refuse_with: Option<u8>,
    /// True if the full report is needed.
    pub wants_report: bool,
}

impl Order<'_> {
    /// Returns whether the program has other credentials than this process, and is therefore treated as hostile. An
    /// exec, and the running program itself, can change the answer.
    pub(crate) fn is_foreign(&self) -> bool {
        self.chain && !credentials::are_ours(self.process)
    }
}
