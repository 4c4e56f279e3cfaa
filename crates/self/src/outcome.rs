//! How a call went, as C sees it.

use std::ffi::{c_char, c_int};

use rustix::io::Errno;
use tiexec_core::escape::AsShown;
use tiexec_core::report::Report;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_remap::Failure;
use tiexec_remap::attach::Reverted;

/// The figures of a call, and why text that was to become huge did not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes of text, of all files.
    pub text_bytes: u64,
    /// Bytes of it on huge pages.
    pub huge_bytes: u64,
    /// Bytes of it in copies.
    pub copied_bytes: u64,
    /// The failure, and its detail.
    pub why: Option<(Option<Reason>, String)>,
    /// 0, or a negative error number.
    pub code: c_int,
}

impl Outcome {
    /// Makes the outcome of invalid settings, or of another mistake of the caller.
    pub(crate) fn invalid(detail: String) -> Self {
        let code = negative(Errno::INVAL);
        Self { why: Some((None, detail)), code, ..Self::default() }
    }

    /// Makes the outcome of a call that a bug of this library ended.
    pub(crate) fn of_a_bug() -> Self {
        let why = Some((None, "a bug of libtiexec; please report it".to_owned()));
        Self { why, code: negative(Errno::NOTRECOVERABLE), ..Self::default() }
    }

    fn failed(reason: Reason, detail: String) -> Self {
        Self { why: Some((Some(reason), detail)), code: negative(errno(reason)), ..Self::default() }
    }
}

impl From<Report> for Outcome {
    fn from(report: Report) -> Self {
        let Report { text_bytes, huge_bytes, .. } = report;
        let copied_bytes = report.files.iter().map(|file| file.copied_bytes).sum();
        // A skip reason is not a failure: it describes the text, and the report has it file by file.
        let failed = report.reason.filter(|reason| matches!(reason, Reason::Failed(_)));
        let why = failed.map(|reason| Self::failed(reason, report.detail.unwrap_or_default()));
        Self { text_bytes, huge_bytes, copied_bytes, ..why.unwrap_or_default() }
    }
}

impl From<Reverted> for Outcome {
    fn from(reverted: Reverted) -> Self {
        let Reverted { found_text, reverted_text, .. } = reverted;
        let why = reverted.failure.map(Self::from).unwrap_or_default();
        // The copies that were not reverted are still huge.
        let left = found_text.saturating_sub(reverted_text);
        Self { text_bytes: found_text, huge_bytes: left, copied_bytes: left, ..why }
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::failed(failure.reason, failure.detail)
    }
}

const fn negative(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

/// The error number nearest to a reason.
fn errno(reason: Reason) -> Errno {
    match reason {
        Reason::Skipped(SkipReason::Disabled) => Errno::CANCELED,
        Reason::Skipped(_) => Errno::OPNOTSUPP,
        Reason::Failed(kind) => match kind {
            FailureKind::Busy => Errno::BUSY,
            FailureKind::Seccomp | FailureKind::ThpDisabled | FailureKind::NoMemfd => Errno::PERM,
            FailureKind::ThpUnsupported => Errno::NOSYS,
            FailureKind::PtraceDenied => Errno::ACCESS,
            FailureKind::NoHugePage
            | FailureKind::MemcgHeadroom
            | FailureKind::MemoryHeadroom
            | FailureKind::HugetlbPool
            | FailureKind::AddressSpace
            | FailureKind::LockedMemory
            | FailureKind::MapCount => Errno::NOMEM,
            FailureKind::Deadline => Errno::TIMEDOUT,
            FailureKind::FdLimit => Errno::MFILE,
            FailureKind::ForkFailed | FailureKind::Changed | FailureKind::EdgeInUse => Errno::AGAIN,
            FailureKind::ProcUnavailable | FailureKind::FileGone => Errno::NOENT,
            _ => Errno::IO,
        },
    }
}

/// Puts a text, escaped and cut to what fits, and a zero byte into a field of a C structure.
pub(crate) fn put<const N: usize>(field: &mut [c_char; N], text: &str) {
    let text = text.shown().to_string();
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    *field = [0; N];
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = c_char::from_ne_bytes([*from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_letters() {
        let mut field = [1; 6];
        put(&mut field, "a\u{e9}é");
        assert_eq!(field.last(), Some(&0));
        put(&mut field, "aaaaé");
        assert_eq!(field.map(|letter| letter as u8), *b"aaaa\0\0");
        put(&mut field, "");
        assert_eq!(field, [0; 6]);
    }

    #[test]
    fn every_reason_has_an_error_number() {
        for reason in Reason::all() {
            assert!(Outcome::failed(reason, String::new()).code < 0, "{reason}");
        }
    }

    #[test]
    fn the_reasons_fit_their_field() {
        assert!(Reason::all().all(|reason| reason.as_str().len() < 32));
    }
}
