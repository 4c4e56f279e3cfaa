//! Whether the host of this machine splits huge pages, remembered for a day.
//!
//! The answer is a timing of some milliseconds ([`tiexec_sys::split_pages`]). The programs that measure it record it in the
//! runtime directory of their user, so that a launch knows it without a measurement. Another user cannot write there. The
//! answer changes nothing but messages.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use tiexec_core::addr::Pages;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::split_pages::{self, Timings};
use tiexec_sys::{Errno, SysError};
use tiexec_tracee::clock;

use crate::records::{DAY, first_today, is_younger};
use crate::{files, headroom, runtime_directory};

/// The record is an empty file of one of these names.
const ANSWERS: [(&str, bool); 2] = [("huge_pages_split", true), ("huge_pages_whole", false)];

/// Returns whether the host splits huge pages, as measured within a day; `None` if that is not known. Measures nothing.
pub fn known() -> Option<bool> {
    clock::planted_host().or_else(|| recorded(&directory()?))
}

/// Returns whether the host splits huge pages, and measures it if needed. `None`: the measurement was unclear, or
/// the machine or the cgroup has too little memory for it.
pub fn are_split(pages: Pages) -> Option<bool> {
    static ANSWER: OnceLock<Option<bool>> = OnceLock::new();
    *ANSWER.get_or_init(|| known().or_else(|| measured(pages)))
}

/// As [`measure`], and records what it measured.
pub fn measured(pages: Pages) -> Option<bool> {
    let split = measure(pages)?;
    if clock::planted_host().is_none() {
        record(split);
    }
    Some(split)
}

/// Measures whether the host splits huge pages, and records nothing; `None` if that cannot be decided.
pub fn measure(pages: Pages) -> Option<bool> {
    clock::planted_host().or_else(|| timings(pages).ok()?.verdict().are_split())
}

/// Measures how the host maps huge pages, and records nothing.
///
/// # Errors
/// Those of [`split_pages::measure`]; ENOMEM if the machine or the cgroup has too little memory to spare.
pub fn timings(pages: Pages) -> Result<Timings, SysError> {
    check_room(split_pages::memory(pages))?;
    split_pages::measure(pages)
}

/// Records the answer of a measurement.
fn record(split: bool) {
    let Some(directory) = directory() else { return };
    for (name, answer) in ANSWERS {
        let _it_may_not_exist = files::remove(&directory, name);
        if answer == split {
            let _there_is_no_record_then = files::create(&directory, name, 0o600);
        }
    }
}

/// Returns the warning that huge text gains little on a host that splits huge pages; `None` if the warning about this
/// program has appeared within a day.
pub fn warning_of_today(program: &[u8]) -> Option<&'static str> {
    first_today(&[b"host_splits\0", program].concat()).then_some(
        "the host of this machine splits huge pages: huge text gains little here, and can lose",
    )
}

/// Returns how to measure the gain of running processes, which these words select for a command.
pub fn how_to_measure(selected: &str) -> String {
    format!(
        "to measure it: tiexecctl revert {selected}, then tiexecctl canary --counter CMD {selected}"
    )
}

/// Opens the directory of what this user knows about the machine.
pub(crate) fn directory() -> Option<OwnedFd> {
    runtime_directory::open("machine").ok()
}

/// Checks whether the machine and the cgroup have this much memory to spare for a measurement, in bytes.
///
/// # Errors
/// ENOMEM if they do not.
pub(crate) fn check_room(bytes: u64) -> Result<(), SysError> {
    let too_little = |_| SysError { call: "measure", errno: Errno::NOMEM };
    headroom::check(&ProcDir::this_process()?, bytes).map_err(too_little)
}

fn recorded(directory: &OwnedFd) -> Option<bool> {
    let is_known = |name: &str| is_younger(directory, name.as_ref(), DAY);
    ANSWERS.into_iter().find_map(|(name, answer)| is_known(name).then_some(answer))
}
