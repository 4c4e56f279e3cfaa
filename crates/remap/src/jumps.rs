//! The time of a jump to another page on this machine, remembered for a day.
//!
//! The measurement ([`jump_timing`]) uses 0.2 to 0.5 s of a processor. So its result is recorded as text in the runtime
//! directory of the user: a line for each measurement, with the times on base pages and on huge pages in nanoseconds.
//! Another user cannot write there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use tiexec_core::addr::Pages;
use tiexec_sys::SysError;
use tiexec_sys::jump_timing::{self, JumpTimes};

use crate::files::New;
use crate::host_pages;
use crate::records::{DAY, is_younger};

const RECORD: &str = "jump_times";
/// The greatest length of a record, in bytes.
const LONGEST: u64 = 1024;

/// Returns the times that were measured within a day. Measures and records them if there are none.
///
/// # Errors
/// Those of [`jump_timing::measure`]; ENOMEM if the machine or the cgroup has too little memory to spare.
pub fn times(pages: Pages) -> Result<Vec<JumpTimes>, SysError> {
    let directory = host_pages::directory();
    if let Some(times) = directory.as_ref().and_then(recorded) {
        return Ok(times);
    }
    host_pages::check_room(jump_timing::MEMORY)?;
    let times = jump_timing::measure(pages)?;
    if let Some(directory) = directory {
        let _measured_again_then = record(&directory, &times);
    }
    Ok(times)
}

fn record(directory: &OwnedFd, times: &[JumpTimes]) -> std::io::Result<()> {
    let mut new = New::beside(directory, RECORD, 0o600)?;
    for JumpTimes { base_ns, huge_ns } in times {
        writeln!(new.file(), "{base_ns} {huge_ns}")?;
    }
    Ok(new.put(RECORD)?)
}

fn recorded(directory: &OwnedFd) -> Option<Vec<JumpTimes>> {
    if !is_younger(directory, RECORD.as_ref(), DAY) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, RECORD, flags, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(file).take(LONGEST).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(text: &str) -> Option<Vec<JumpTimes>> {
    let time = |word: &str| word.parse().ok().filter(|time: &f64| time.is_finite() && *time > 0.0);
    let times: Option<Vec<_>> = text
        .lines()
        .map(|line| {
            let (base, huge) = line.split_once(' ')?;
            Some(JumpTimes { base_ns: time(base)?, huge_ns: time(huge)? })
        })
        .collect();
    times.filter(|times| !times.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_record_is_read_back_for_a_day() {
        let at = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(at.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert_eq!(recorded(&directory), None);
        let times = [(36.123_456_789, 30.5), (1e-3, 12.0)]
            .map(|(base_ns, huge_ns)| JumpTimes { base_ns, huge_ns });
        record(&directory, &times[..1]).unwrap();
        record(&directory, &times).unwrap();
        assert_eq!(recorded(&directory), Some(times.to_vec()));
        let file = File::open(at.path().join(RECORD)).unwrap();
        file.set_modified(SystemTime::now() - DAY).unwrap();
        assert_eq!(recorded(&directory), None);
        std::fs::rename(at.path().join(RECORD), at.path().join("other")).unwrap();
        symlink("other", at.path().join(RECORD)).unwrap();
        assert_eq!(recorded(&directory), None);
    }

    #[test]
    fn a_record_with_anything_but_times_is_none() {
        assert!(parse("36.1 30\n35 30.2\n").is_some());
        for text in
            ["", "36.1\n", "36.1 x\n", "36.1 0\n", "-1 2\n", "inf 2\n", "NaN 2\n", "1 2\n\n"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
