//! The maker of system calls: a stopped process ([`Session`]), or this very process ([`Local`]).
//!
//! The switch of text to other pages is written once, for both.

use tiexec_sys::{SysError, local};

use crate::error::TraceError;
use crate::remote::SystemCall;
use crate::session::Session;
use crate::syscall_manifest::{ManifestEntry, refused};

/// A process that makes system calls, and undo steps.
///
/// An undo step is a call that releases something, such as staged memory. It is registered before what it releases exists,
/// and taken back when that is in its final place. The executor makes what is still registered, the last first, when its
/// work ends: a [`Session`] also if the tracer dies, [`Local`] when it is dropped.
pub trait Executor {
    /// Makes a call, and returns what the kernel answered.
    ///
    /// # Errors
    /// The process is gone, or no longer does what it is told.
    fn call(&mut self, call: SystemCall) -> Result<Result<u64, SysError>, TraceError>;

    /// Returns whether an optional call may be made: no seccomp filter forbids it.
    fn may(&self, entry: &ManifestEntry) -> bool;

    /// Registers an undo step, to be made before those registered earlier.
    fn register(&mut self, undo: SystemCall);

    /// Takes an undo step back.
    fn withdraw(&mut self, undo: SystemCall);

    /// Returns how many more undo steps there is room for.
    fn room(&self) -> usize;

    /// Returns whether [`batch`](Self::batch) makes calls.
    fn has_batches(&self) -> bool;

    /// Makes calls one after the other; their effects alone tell how they went. Does nothing without batches.
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
    /// Never grows: the allocator may lie in the very text that is switched, and needs mappings of its own.
    undo: Vec<SystemCall>,
    /// The optional calls that a seccomp filter refuses.
    refused: Vec<ManifestEntry>,
}

/// The most undo steps of one switch: what is staged, two claims of gaps, and what was changed for the whole work.
const MOST_UNDO: usize = 8;

impl Local {
    /// Makes one that makes its calls through `calls`.
    pub fn new(calls: local::Calls) -> Self {
        Self { calls, undo: Vec::with_capacity(MOST_UNDO), refused: Vec::new() }
    }

    /// The same for a thread under seccomp filters: a child tries the calls in `lists` first.
    ///
    /// # Errors
    /// A filter kills the process for one of them, or it cannot be tried.
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
