//! The times of jumps on this machine, remembered for a boot.
//!
//! The measurement ([`jump_timing`]) uses about a second of a processor. So its result is recorded as text in the runtime
//! directory of the user. Another user cannot write there. A record whose levels are unclear counts for a day: the machine may be quieter
//! then.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use tiexec_core::addr::Pages;
use tiexec_core::tlb_sweep::{Measured, Sweeps};
use tiexec_sys::SysError;
use tiexec_sys::jump_timing;

use crate::files::New;
use crate::host_pages;
use crate::records::{DAY, is_younger};

const RECORD: &str = "jumps";
/// The greatest length of a record, in bytes.
const LONGEST: u64 = 16 << 10;

/// The times of jumps, and the levels of the instruction TLB that they show.
#[derive(Clone, PartialEq, Debug)]
pub struct Jumps {
    /// The times.
    pub times: Sweeps,
    /// The levels.
    pub levels: Measured,
}

impl Jumps {
    fn new(times: Sweeps, pages: Pages) -> Self {
        Self { levels: times.levels(pages.base), times }
    }
}

/// Returns the recorded jumps. Measures and records them if there are none.
///
/// # Errors
/// As [`measured`].
pub fn of_machine(pages: Pages) -> Result<Jumps, SysError> {
    known(pages).map_or_else(|| measured(pages), Ok)
}

/// Returns the recorded jumps. Measures nothing.
pub fn known(pages: Pages) -> Option<Jumps> {
    recorded(&host_pages::directory()?, pages)
}

/// Measures, and records nothing.
///
/// # Errors
/// Those of [`jump_timing::measure`]; ENOMEM if the machine or the cgroup has too little memory to spare.
pub fn measure(pages: Pages) -> Result<Jumps, SysError> {
    host_pages::check_room(jump_timing::memory(pages))?;
    Ok(Jumps::new(jump_timing::measure(pages)?, pages))
}

/// As [`measure`], and records what it measured.
///
/// # Errors
/// As [`measure`].
pub fn measured(pages: Pages) -> Result<Jumps, SysError> {
    let jumps = measure(pages)?;
    if let Some(directory) = host_pages::directory() {
        let _measured_again_then = record(&directory, &jumps.times);
    }
    Ok(jumps)
}

fn record(directory: &OwnedFd, times: &Sweeps) -> std::io::Result<()> {
    let mut new = New::beside(directory, RECORD, 0o600)?;
    write!(new.file(), "{times}")?;
    Ok(new.put(RECORD)?)
}

fn recorded(directory: &OwnedFd, pages: Pages) -> Option<Jumps> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, RECORD, flags, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(file).take(LONGEST).read_to_string(&mut text).ok()?;
    let jumps = Jumps::new(text.parse().ok()?, pages);
    let counts = jumps.levels.is_clear() || is_younger(directory, RECORD.as_ref(), DAY);
    counts.then_some(jumps)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use tiexec_core::addr::PageSize;

    use super::*;

    const PAGES: Pages =
        Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };

    /// Returns jumps on a TLB of 100 and 1000 entries; on one of 100 and 4000 in the second copy if they are unclear.
    fn times(is_clear: bool) -> Sweeps {
        let missed = |places: f64, entries: f64| (1.0 - entries / places).max(0.0);
        let copy = |second: f64| -> String {
            let point = |places: f64| {
                let base = 4.0 + 5.0 * missed(places, 100.0) + 60.0 * missed(places, second);
                format!("{places} 4.00 {base:.2} 4.00 -\n")
            };
            (3..14).map(|power| point(2_f64.powi(power))).collect()
        };
        let other = if is_clear { 1000.0 } else { 4000.0 };
        format!("{}\n{}", copy(1000.0), copy(other)).parse().unwrap()
    }

    #[test]
    fn a_clear_record_counts_until_the_next_boot() {
        let at = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(at.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let recorded = || recorded(&directory, PAGES);
        assert_eq!(recorded(), None);
        for is_clear in [false, true] {
            let jumps = Jumps::new(times(is_clear), PAGES);
            assert_eq!(jumps.levels.is_clear(), is_clear);
            record(&directory, &jumps.times).unwrap();
            assert_eq!(recorded(), Some(jumps.clone()));
            let file = File::open(at.path().join(RECORD)).unwrap();
            file.set_modified(SystemTime::now() - DAY).unwrap();
            assert_eq!(recorded(), is_clear.then_some(jumps));
        }
        std::fs::rename(at.path().join(RECORD), at.path().join("other")).unwrap();
        symlink("other", at.path().join(RECORD)).unwrap();
        assert_eq!(recorded(), None);
    }
}
