//! The wish of a launch.

use tiexec_sys::procfs::ProcDir;

use crate::credentials;
use crate::objects::Expected;
use crate::policy::Policy;

/// The order for a launch.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The program's directory under `/proc`.
    pub process: &'a ProcDir,
    /// True if the process was other programs before this one: it may be another user's by now.
    pub chain: bool,
    /// The wishes. A dry run ends the program with status 0 before it has run.
    pub policy: Policy,
    /// The program's shared objects that have something to gain; `None` to find out when it is known
    /// which program it is.
    pub objects: Option<Expected>,
    /// End the program with this status, before it has run, rather than leave text on base pages.
    pub refuse_with: Option<u8>,
    /// True if anybody will read the report in full.
    pub wants_report: bool,
}

impl Order<'_> {
    /// Asks whether the program has other credentials than this process, and is believed to be hostile. An exec, and the
    /// running program itself, can change the answer.
    pub(crate) fn is_foreign(&self) -> bool {
        self.chain && !credentials::are_ours(self.process)
    }
}
