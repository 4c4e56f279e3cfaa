//! Exit statuses: a documented contract, in one place.

/// Launch: any failure of tiexec itself, including usage. The program has not run.
pub const LAUNCH_FAILED: u8 = 125;
/// Launch: the program was found but cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// Launch: the program was not found.
pub const NOT_FOUND: u8 = 127;

/// `tiexecctl`: done, or already in place.
pub const OK: u8 = 0;
/// `tiexecctl`: failed; the target is unchanged.
pub const FAILED: u8 = 1;
/// `tiexecctl`: the command line is wrong.
pub const USAGE: u8 = 2;
/// `tiexecctl`: done for some of the named objects, and not for the rest.
pub const PARTIAL: u8 = 3;
/// `tiexecctl`: there is no such process (any more).
pub const GONE: u8 = 4;
/// `tiexecctl`: not permitted.
pub const NOT_PERMITTED: u8 = 5;

/// `tiexecctl canary`: the canary ran to its end without a proof that copies are better, and everything is reverted.
pub const NOT_BETTER: u8 = 6;
/// `tiexecctl canary`: the guard ended the canary, and everything is reverted.
pub const GUARD: u8 = 7;

/// `tiexecctl bench`, `tiexecctl canary`: this signal ended the command early. Returns the status that a shell would
/// report.
pub fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(FAILED)
}
