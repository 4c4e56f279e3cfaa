//! Asks the kernel about the process's text, by calls of the stopped thread that change nothing. No file under
//! `/proc` but smaps has these facts, and the process would have to wait while smaps is read.

use tiexec_core::addr::{AddrRange, PageSize};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::Errno;
use tiexec_tracee::TraceError;
use tiexec_tracee::executor::Executor;
use tiexec_tracee::remote::{self, Advice};
use tiexec_tracee::syscall_manifest::ManifestEntry;

use tiexec_tracee::Failure;

/// The call that [`is_locked`] has the process make.
pub(super) const LOCK_CALLS: [ManifestEntry; 1] = [remote::MSYNC];

/// Returns whether some of `range`, which is mapped, is locked in memory. If the thread may not make the call, any
/// range counts as locked: the caller knows that the process has locked some memory.
pub(super) fn is_locked(
    executor: &mut impl Executor,
    range: AddrRange,
) -> Result<bool, TraceError> {
    if !executor.may(&remote::MSYNC) {
        return Ok(true);
    }
    let answer = executor.call(remote::msync(range))?;
    Ok(answer.is_err_and(|error| error.errno == Errno::BUSY))
}

/// Makes sure that the thread may read `text`, as it could read a copy. The permissions of the mapping allow it,
/// but a protection key can forbid it (pkeys(7)). The kernel checks the key before it touches a page for a thread
/// (`check_vma_flags` in `mm/gup.c`; from Linux 5.14 on). The rights of other threads are not known.
///
/// # Errors
/// `protection_key`; `read_failed` where the text cannot be touched at all.
pub(super) fn may_read(
    executor: &mut impl Executor,
    text: AddrRange,
    base: PageSize,
) -> Result<Result<(), Failure>, TraceError> {
    let first = AddrRange::with_len(text.start(), base.bytes()).unwrap_or(text);
    // This call is in the manifest already, because it touches each staged part.
    Ok(match executor.call(remote::madvise(first, Advice::PopulateRead))? {
        Ok(_) => Ok(()),
        Err(error) if error.errno == Errno::INVAL => {
            let what =
                format!("{text} may be executed, and not read by the thread that was stopped");
            Err(Failure::new(SkipReason::ProtectionKey, what))
        }
        Err(error) => Err(Failure::of(FailureKind::ReadFailed)(error)),
    })
}
