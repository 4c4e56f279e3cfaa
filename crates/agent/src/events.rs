//! Execs, as the kernel tells them for all processes. They only make the next look come sooner: a record that is lost costs
//! a look through `/proc`, and no program.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use tiexec_core::perf::records::Record;
use tiexec_sys::Pid;
use tiexec_sys::perf_watch::Watch;

/// The source of events.
#[derive(Debug)]
pub(crate) enum Events {
    /// perf_event_open(2) tells of execs.
    Told(Watch),
    /// Nobody tells: the agent polls `/proc`.
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
    /// Opens the source; says why there is none.
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
