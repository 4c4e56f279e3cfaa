//! Reports of execs and forks of all processes, from the kernel. They only make the agent examine a process sooner. If a record
//! is lost, the agent scans `/proc` once more, and misses no program.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use tiexec_core::perf::records::Record;
use tiexec_sys::Pid;
use tiexec_sys::perf_watch::Watch;

/// The source of events.
#[derive(Debug)]
pub(crate) enum Events {
    /// perf_event_open(2) reports execs, and forks in buffers of their own.
    Told { execs: Watch, forks: Option<Watch> },
    /// There are no reports, so the agent polls `/proc`.
    Polled,
}

/// The events since the last read.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The processes that began another program.
    pub(crate) execs: HashSet<Pid>,
    /// The processes that were forked, and have neither ended nor begun a program since.
    pub(crate) forks: HashSet<Pid>,
    /// The processes that have ended.
    pub(crate) ended: HashSet<Pid>,
    /// True if an exec was not recorded. A lost fork does not matter here, because forks come in storms: the next look at
    /// all processes finds the child.
    pub(crate) lost: bool,
}

impl Events {
    /// Opens the source. The second value says why there are no reports.
    pub(crate) fn open() -> (Self, Option<String>) {
        match Watch::open_everywhere() {
            // Whoever may watch execs may watch forks. Without memory for more buffers, execs are enough.
            Ok(execs) => (Self::Told { execs, forks: Watch::open_forks_everywhere().ok() }, None),
            Err(error) => (Self::Polled, Some(error.to_string())),
        }
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Told { execs, forks } => {
                execs.descriptors().chain(forks.iter().flat_map(Watch::descriptors)).collect()
            }
            Self::Polled => Vec::new(),
        }
    }

    pub(crate) fn read(&mut self) -> News {
        let mut news = News::default();
        let Self::Told { execs, forks } = self else { return news };
        let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
        // A process is forked before it executes and ends. Forks are read first, so that no end of a process is read
        // before its fork, unless the fork is recorded on another processor while this reads.
        if let Some(forks) = forks {
            forks.read(|record| match record {
                Record::Forked { pid: new } => news.forks.extend(pid(new)),
                Record::Ended { pid: old } => news.ended.extend(pid(old)),
                Record::Exec { .. } | Record::Mapped { .. } | Record::Lost => {}
            });
        }
        execs.read(|record| match record {
            Record::Exec { pid: new } => news.execs.extend(pid(new)),
            Record::Lost => news.lost = true,
            Record::Forked { .. } | Record::Ended { .. } | Record::Mapped { .. } => {}
        });
        news.forks.retain(|pid| !news.ended.contains(pid) && !news.execs.contains(pid));
        news
    }
}
