//! Questions to the stopped thread about the process's text, by calls that change nothing. No file under `/proc` has
//! the answers but smaps, and the process would have to wait while smaps is read.

use tiexec_core::addr::{AddrRange, PageSize};
use tiexec_core::seccomp::Value;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::Session;
use tiexec_tracee::syscall_manifest::{ManifestEntry, constant};

use tiexec_tracee::Failure;

/// `msync(MS_INVALIDATE)` invalidates nothing on Linux: it answers EBUSY where memory is locked (`mm/msync.c`).
const IS_LOCKED: ManifestEntry = ManifestEntry::optional(
    "msync(MS_INVALIDATE)",
    c::SYS_msync,
    [Value::Any, Value::Any, constant(c::MS_INVALIDATE)],
);

/// The call that [`is_locked`] has the process make.
pub(super) const LOCK_CALLS: [ManifestEntry; 1] = [IS_LOCKED];

/// Returns whether some of `range`, which is mapped, is locked in memory. If the process has locked some memory and may
/// not be asked where, any range counts as locked.
pub(super) fn is_locked(session: &mut Session, range: AddrRange) -> Result<bool, TraceError> {
    if !session.may(&IS_LOCKED) {
        return Ok(true);
    }
    let flags = u64::from(c::MS_INVALIDATE.unsigned_abs());
    let call = Call::new(c::SYS_msync, [range.start().get(), range.len(), flags]);
    Ok(session.call(call)? == Err(Errno::BUSY))
}

/// Makes sure that the thread may read `text`, as it could a copy. The permissions of the mapping say that it may; a
/// protection key can forbid it (pkeys(7)), which the kernel checks before it touches a page for a thread
/// (`check_vma_flags` in `mm/gup.c`; from Linux 5.14 on). The rights of other threads are not known.
///
/// # Errors
/// `protection_key`; `read_failed` where the text cannot be touched at all.
pub(super) fn may_read(
    session: &mut Session,
    text: AddrRange,
    base: PageSize,
) -> Result<Result<(), Failure>, TraceError> {
    let advice = u64::from(c::MADV_POPULATE_READ.unsigned_abs());
    // It is foreseen: each part that is staged is touched so.
    let call = Call::new(c::SYS_madvise, [text.start().get(), base.bytes(), advice]);
    Ok(match session.call(call)? {
        Ok(_) => Ok(()),
        Err(Errno::INVAL) => {
            let what =
                format!("{text} may be executed, and not read by the thread that was stopped");
            Err(Failure::new(SkipReason::ProtectionKey, what))
        }
        Err(errno) => {
            let call = "madvise(MADV_POPULATE_READ)";
            Err(Failure::new(SkipReason::ReadFailed, SysError { call, errno }))
        }
    })
}
