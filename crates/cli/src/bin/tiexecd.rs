//! `tiexecd`: attaches to programs by rules.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tiexec::daemon::run())
}
