//! `tiexecd`: attaches to programs by rules.

use std::process::ExitCode;

tiexec_sys::note_closed_output_before_main!();

fn main() -> ExitCode {
    ExitCode::from(tiexec::daemon::run())
}
