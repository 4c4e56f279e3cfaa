//! `tiexecctl`: examines and changes processes, and examines the machine.

use std::process::ExitCode;

tiexec_sys::note_closed_output_before_main!();

fn main() -> ExitCode {
    ExitCode::from(tiexec::ctl::run())
}
