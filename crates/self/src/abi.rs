//! The C API, and the constructor of a preloaded library.
//!
//! # Safety
//! In this library, pointers come from C only here. Each function says what must hold of its pointers, as the manual
//! page does. No panic crosses into C, and no cancellation of a thread comes from there.

#![allow(unsafe_code, reason = "C has pointers, and calls functions by their names")]
#![allow(non_camel_case_types, reason = "these are the names that C programs use")]

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use tiexec_core::config::Settings;
use tiexec_engine::output::write_briefly;
use tiexec_sys::local::Unseen;

use crate::outcome::{Outcome, put};
use crate::{preload, treat};

/// The options of a call. All zero means the defaults.
#[derive(Debug)]
#[repr(C)]
pub struct tiexec_options {
    /// `sizeof(struct tiexec_options)`, or 0 for the defaults.
    pub size: usize,
    /// Settings as in TIEXEC of tiexec(1), such as `"edges=pad,deadline=1s"`, or NULL.
    pub settings: *const c_char,
}

/// How a call went.
#[derive(Debug)]
#[repr(C)]
pub struct tiexec_result {
    /// Set by the caller: `sizeof(struct tiexec_result)`.
    pub size: usize,
    /// Bytes of executable text that files of this process have. After a revert: bytes of it that were in copies.
    pub text_bytes: u64,
    /// Bytes of that text which the kernel maps by huge pages now.
    pub huge_bytes: u64,
    /// Bytes of that text which are in copies of this process alone.
    pub copied_bytes: u64,
    /// Why text that was to become huge did not, as reports name it, such as `"no_huge_page"`; else empty.
    pub reason: [c_char; 32],
    /// The same in words.
    pub detail: [c_char; 472],
}

/// Puts the text of the calling process, that of its program and of its shared objects, onto huge pages. Other threads go on,
/// also in that text. `options` and `result` may be NULL.
///
/// Returns 0 if all of the text that can become huge is; else a negative error number, and `result` says why. The text
/// that did not become huge is as it was.
///
/// # Safety
/// `options` and `result` are NULL or lead to structures of the sizes that they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tiexec_self(
    options: *const tiexec_options,
    result: *mut tiexec_result,
) -> c_int {
    // SAFETY: the pointer is NULL, or valid by the caller's promise.
    let settings = unsafe { settings(options) };
    let attach = || match settings {
        Ok(settings) => treat::attach(&settings).map_or_else(Outcome::from, Outcome::from),
        Err(invalid) => Outcome::invalid(invalid),
    };
    // SAFETY: the pointer is NULL, or valid by the caller's promise.
    unsafe { told(result, attach) }
}

/// Puts the files' own text back. `result` may be NULL.
///
/// Returns 0 if nothing is left in copies, or on page cache that was mapped more widely; else a negative error number.
///
/// # Safety
/// `result` is NULL or leads to a structure of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tiexec_self_revert(result: *mut tiexec_result) -> c_int {
    // SAFETY: the pointer is NULL, or valid by the caller's promise.
    unsafe { told(result, || treat::revert().map_or_else(Outcome::from, Outcome::from)) }
}

/// Writes to `fd` how much of the text is huge, file by file: a table, or one line of JSON if `json` is not 0.
///
/// Returns 0 or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn tiexec_self_report(fd: c_int, json: c_int) -> c_int {
    let _unseen = Unseen::begin();
    let write = || {
        if fd < 0 {
            return -Errno::BADF.raw_os_error();
        }
        let text = match treat::report() {
            Ok(report) if json == 0 => report.to_string(),
            Ok(report) => report.to_json() + "\n",
            Err(failure) => return Outcome::from(failure).code,
        };
        // SAFETY: the caller's descriptor, which it keeps open for this call; if not, the kernel says EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        write_briefly(fd, &text).map_or_else(|errno| -errno.raw_os_error(), |()| 0)
    };
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_panic| Outcome::of_a_bug().code)
}

/// Reads the options.
///
/// # Safety
/// As [`tiexec_self`].
unsafe fn settings(options: *const tiexec_options) -> Result<Settings, String> {
    let mut settings = Settings::default();
    // SAFETY: the pointer is NULL, or valid by the caller's promise; the first member of the structure is its size.
    let Some(size) = (unsafe { options.cast::<usize>().as_ref() }) else { return Ok(settings) };
    if *size == 0 {
        return Ok(settings);
    }
    if *size != size_of::<tiexec_options>() {
        return Err(format!("struct tiexec_options of {size} bytes is of another version"));
    }
    // SAFETY: the check above shows that the structure has this version's size.
    let text = unsafe { (*options).settings };
    if !text.is_null() {
        // SAFETY: the caller promises that this is a string.
        let text = unsafe { CStr::from_ptr(text) };
        let malformed = settings.take_environment(&text.to_string_lossy());
        if !malformed.is_empty() {
            let list: Vec<String> = malformed.iter().map(ToString::to_string).collect();
            return Err(list.join("; "));
        }
    }
    Ok(settings)
}

/// Does `work`, writes its outcome to `result`, and returns its code.
///
/// # Safety
/// As [`tiexec_self`].
unsafe fn told(result: *mut tiexec_result, work: impl FnOnce() -> Outcome) -> c_int {
    // SAFETY: the pointer is NULL, or valid by the caller's promise; the first member of the structure is its size.
    let size = unsafe { result.cast::<usize>().as_ref() };
    if size.is_some_and(|size| *size < size_of::<tiexec_result>()) {
        return -Errno::INVAL.raw_os_error();
    }
    let _unseen = Unseen::begin();
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_panic| Outcome::of_a_bug());
    // SAFETY: the pointer is NULL, or the structure is at least as large as this version's, as just checked; no other
    // reference to it exists meanwhile.
    if let Some(result) = unsafe { result.as_mut() } {
        let (reason, detail) = outcome.why.unwrap_or_default();
        result.text_bytes = outcome.text_bytes;
        result.huge_bytes = outcome.huge_bytes;
        result.copied_bytes = outcome.copied_bytes;
        put(&mut result.reason, reason.map_or("", |reason| reason.as_str()));
        put(&mut result.detail, &detail);
    }
    outcome.code
}

/// Runs when the dynamic linker has mapped and relocated all objects, both in a program that preloads this library and
/// in one that is linked with it.
extern "C" fn begin() {
    let _unseen = Unseen::begin();
    let _a_bug_leaves_the_program_as_it_is = catch_unwind(preload::begin);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
