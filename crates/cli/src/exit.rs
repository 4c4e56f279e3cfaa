//! Exit statuses: a documented contract, in one place.

/// Makes the constants, and [`ALL`] of them.
macro_rules! statuses {
    ($($(#[doc = $meaning:literal])+ $name:ident = $status:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $name: u8 = $status;)+

        /// All statuses, each with its meaning.
        pub const ALL: &[(u8, &str)] = &[$(($status, concat!($($meaning),+))),+];
    };
}

statuses! {
    /// `tiexec`: any failure of tiexec itself, including usage. The program has not run.
    LAUNCH_FAILED = 125;
    /// `tiexec`: the program was found but cannot be executed.
    CANNOT_EXECUTE = 126;
    /// `tiexec`: the program was not found.
    NOT_FOUND = 127;
    /// `tiexecctl`: done, or already in place.
    OK = 0;
    /// `tiexecctl`: failed; the target is unchanged.
    FAILED = 1;
    /// `tiexecctl`: the command line is wrong.
    USAGE = 2;
    /// `tiexecctl`: done for some of the named objects, and not for the rest.
    PARTIAL = 3;
    /// `tiexecctl`: the process has ended, or never existed.
    GONE = 4;
    /// `tiexecctl`: not permitted.
    NOT_PERMITTED = 5;
    /// `tiexecctl canary`: the canary ran to its end without a proof that copies are better, and everything is reverted.
    NOT_BETTER = 6;
    /// `tiexecctl canary`: the guard ended the canary, and everything is reverted.
    GUARD = 7;
}

/// `tiexecctl`: a call on a file failed.
pub fn of_io(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => NOT_PERMITTED,
        _ => FAILED,
    }
}

/// Combines the statuses of several objects.
pub fn together(statuses: &[u8]) -> u8 {
    match statuses.first() {
        None => OK,
        Some(&first) if statuses.iter().all(|&status| status == first) => first,
        Some(_) => PARTIAL,
    }
}

/// `tiexecctl bench`, `tiexecctl canary`: this signal ended the command early. Returns the status that a shell would
/// report.
pub fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(FAILED)
}
