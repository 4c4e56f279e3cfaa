//! The right to make the calls of the switch in this very process, under the seccomp filters of the calling thread.
//!
//! # Safety
//! The right is granted here, once, for the switch: it leaves all text as it is, on other pages.

#![allow(unsafe_code, reason = "the right to make raw calls is granted by a promise about them")]

use tiexec_core::skip::FailureKind;
use tiexec_remap::Failure;
use tiexec_remap::attach::calls_here;
use tiexec_sys::local::Calls;
use tiexec_sys::seccomp_trial;
use tiexec_tracee::executor::Local;

/// Returns the maker of calls for the calling thread, and for threads that it starts.
///
/// # Errors
/// `seccomp`: a filter would end the process for one of the calls.
pub(crate) fn local() -> Result<Local, Failure> {
    // SAFETY: attach and revert map the text's own bytes aside and move them over it.
    let calls = unsafe { Calls::new() };
    if !seccomp_trial::is_filtered() {
        return Ok(Local::new(calls));
    }
    let refused = |why: String| Failure::new(FailureKind::Seccomp, why);
    Local::under_filters(calls, &calls_here()).map_err(refused)
}
