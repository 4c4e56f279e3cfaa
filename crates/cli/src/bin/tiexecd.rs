//! `tiexecd`: attaches to programs by rules.

use std::process::ExitCode;

/// Runs before Rust's runtime, which opens `/dev/null` on a closed standard output.
#[allow(unsafe_code, reason = "only the C library calls anything before the runtime")]
#[used]
// SAFETY: the C library calls the functions in this section, whatever their parameters; it is set up by then.
#[unsafe(link_section = ".init_array")]
static BEFORE_RUST: extern "C" fn() = tiexec_sys::startup::note_closed_output;

fn main() -> ExitCode {
    ExitCode::from(tiexec::daemon::run())
}
