//! Reports of execs of all processes, from the kernel. They only make the agent examine a process sooner. If a record
//! is lost, the agent scans `/proc` once more, and misses no program.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use tiexec_core::perf::records::Record;
use tiexec_sys::Pid;
use tiexec_sys::perf_watch::Watch;

/// The source of events.
#[derive(Debug)]
pub(crate) enum Events {
    /// perf_event_open(2) reports execs.
    Told(Watch),
    /// There are no reports, so the agent polls `/proc`.
    Polled,
}

/// The events since the last read.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The processes that began another program.
    pub(crate) execs: HashSet<Pid>,
    /// True if something was not recorded.
    pub(crate) lost: bool,
}

impl Events {
    /// Opens the source. The second value says why there are no reports.
    pub(crate) fn open() -> (Self, Option<String>) {
        match Watch::open_everywhere() {
            Ok(watch) => (Self::Told(watch), None),
            Err(error) => (Self::Polled, Some(error.to_string())),
        }
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Told(watch) => watch.descriptors().collect(),
            Self::Polled => Vec::new(),
        }
    }

    pub(crate) fn read(&mut self) -> News {
        let mut news = News::default();
        if let Self::Told(watch) = self {
            watch.read(|record| match record {
                Record::Exec { pid } => {
                    news.execs.extend(i32::try_from(pid).ok().and_then(Pid::from_raw));
                }
                Record::Lost => news.lost = true,
                Record::Mapped { .. } => {}
            });
        }
        news
    }
}
