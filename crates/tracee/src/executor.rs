//! Makes system calls in a process: a stopped one ([`Session`]), or this very process ([`Local`]).
//!
//! The switch of text to other pages is written once, for both.

use tiexec_sys::{SysError, local};

use crate::error::TraceError;
use crate::remote::SystemCall;
use crate::session::Session;
use crate::syscall_manifest::{ManifestEntry, refused};

/// A process that makes system calls, and undo steps.
///
/// An undo step is a call that releases something, such as staged memory. It is registered before the thing exists,
/// and withdrawn once the thing is in its final place. When the executor's work ends, it makes the steps that are
/// still registered, the last first: a [`Session`] even if the tracer dies, [`Local`] when it is dropped.
pub trait Executor {
    /// Makes a call, and returns the kernel's answer.
    ///
    /// # Errors
    /// The process is gone, or can no longer be controlled.
    fn call(&mut self, call: SystemCall) -> Result<Result<u64, SysError>, TraceError>;

    /// Returns whether an optional call may be made, because no seccomp filter forbids it.
    fn may(&self, entry: &ManifestEntry) -> bool;

    /// Registers an undo step, to be made before those registered earlier.
    fn register(&mut self, undo: SystemCall);

    /// Removes an undo step, which is not made then.
    fn withdraw(&mut self, undo: SystemCall);

    /// Returns the number of undo steps that can still be registered.
    fn room(&self) -> usize;

    /// Returns whether [`batch`](Self::batch) makes calls.
    fn has_batches(&self) -> bool;

    /// Makes calls one after the other, without returning their results; only their effects show these. Does
    /// nothing without batches.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    fn batch(&mut self, calls: &[SystemCall]) -> Result<(), TraceError>;
}

impl Executor for Session {
    fn call(&mut self, call: SystemCall) -> Result<Result<u64, SysError>, TraceError> {
        Self::call(self, call)
    }

    fn may(&self, entry: &ManifestEntry) -> bool {
        Self::may(self, entry)
    }

    fn register(&mut self, undo: SystemCall) {
        self.release_on_the_way_home(undo);
    }

    fn withdraw(&mut self, undo: SystemCall) {
        Self::withdraw(self, undo);
    }

    fn room(&self) -> usize {
        self.free_releases()
    }

    fn has_batches(&self) -> bool {
        Self::has_batches(self)
    }

    fn batch(&mut self, calls: &[SystemCall]) -> Result<(), TraceError> {
        Self::batch(self, calls)
    }
}

/// This very process: calls are made at once, by the calling thread.
#[derive(Debug)]
pub struct Local {
    calls: local::Calls,
    /// Never grows: the allocator may lie in the very text that is switched, and may need new mappings.
    undo: Vec<SystemCall>,
    /// The optional calls that a seccomp filter refuses.
    refused: Vec<ManifestEntry>,
}

/// The most undo steps of one switch: for the staged mapping, for two claims of gaps, and for changes that last for
/// the whole work.
const MOST_UNDO: usize = 8;

impl Local {
    /// Creates an executor that makes its calls through `calls`.
    pub fn new(calls: local::Calls) -> Self {
        Self { calls, undo: Vec::with_capacity(MOST_UNDO), refused: Vec::new() }
    }

    /// As [`new`](Self::new), for a thread under seccomp filters. A child tries the calls in `lists` first.
    ///
    /// # Errors
    /// A filter kills the process for one of the calls, or they cannot be tried.
    pub fn under_filters(calls: local::Calls, lists: &[&[ManifestEntry]]) -> Result<Self, String> {
        let mut local = Self::new(calls);
        local.refused = refused(lists)?;
        Ok(local)
    }

    fn make(&self, call: SystemCall) -> Result<u64, SysError> {
        self.calls.make(call.name, call.number(), call.args())
    }
}

impl Executor for Local {
    fn call(&mut self, call: SystemCall) -> Result<Result<u64, SysError>, TraceError> {
        Ok(self.make(call))
    }

    fn may(&self, entry: &ManifestEntry) -> bool {
        !self.refused.contains(entry)
    }

    fn register(&mut self, undo: SystemCall) {
        debug_assert!(self.undo.len() < MOST_UNDO, "{undo:?} would have to be allocated");
        self.undo.push(undo);
    }

    fn withdraw(&mut self, undo: SystemCall) {
        self.undo.retain(|known| *known != undo);
    }

    fn room(&self) -> usize {
        MOST_UNDO - self.undo.len()
    }

    fn has_batches(&self) -> bool {
        false
    }

    fn batch(&mut self, _calls: &[SystemCall]) -> Result<(), TraceError> {
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        while let Some(undo) = self.undo.pop() {
            let _nothing_more_can_be_done = self.make(undo);
        }
    }
}
