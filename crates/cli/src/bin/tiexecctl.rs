//! `tiexecctl`: looks at processes and at the machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tiexec::ctl::run())
}
