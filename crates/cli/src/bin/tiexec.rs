//! `tiexec`: becomes a program, with its text on huge pages.
//!
//! It has a C `main`, not Rust's, because Rust's runtime would ignore SIGPIPE and open closed standard descriptors, and
//! the program would inherit both. See [`tiexec_sys::startup`].

#![no_main]

use std::ffi::{c_char, c_int};

use tiexec_sys::startup::Argv;

/// The C entry point.
#[allow(unsafe_code, reason = "the C runtime calls the function of this name, with its arguments")]
// SAFETY: no other symbol of this name exists in the program.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: these are the arguments of main.
    let argv = unsafe { Argv::from_main(argc, argv) };
    let status = std::panic::catch_unwind(|| tiexec::command_line::run(argv));
    c_int::from(status.unwrap_or(tiexec::exit::LAUNCH_FAILED))
}
