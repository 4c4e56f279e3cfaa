//! Remembers which waits with a timeout TiExec has had made again.
//!
//! The timeout of such a wait begins again. A thread that is stopped often enough would never see it. So TiExec has a wait made
//! again only until it would have ended without TiExec. A later stop in the same wait ends it, as the timeout would have.
//! Where the end is not known, TiExec leaves the thread alone until it has returned from the wait. The record outlives this
//! TiExec: an attach and the revert after it are two processes. It is the notes of the
//! process's [record](crate::record).

use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::threads;

use crate::record::Record;

/// The most waits that are remembered of one process.
const MOST: usize = 64;
/// Bytes that a record can have.
const LONGEST: usize = MOST * 104;

/// A wait that was made again, and the thread that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    /// The thread's ID, which may be another thread's later.
    pub tid: Pid,
    /// When the thread [began](tiexec_tracee::threads::start_time).
    pub began: u64,
    /// The number of the system call.
    pub call: i64,
    /// How often the thread had [slept](tiexec_core::proc::status::Status::slept), this wait included.
    pub slept: u64,
}

impl Wait {
    /// Returns the thread's present wait, which is a call of this number; `None` once the thread has ended.
    pub(super) fn of(process: &ProcDir, tid: Pid, call: i64) -> Option<Self> {
        let slept = threads::alive(process, tid)?.slept;
        Self::with(process, tid, call, slept)
    }

    /// Returns the next wait of a thread that has just been let go and may be asleep already, or not yet; `None` once the thread
    /// has ended. The wait after it may be taken for it.
    pub(super) fn next_of(process: &ProcDir, tid: Pid, call: i64) -> Option<Self> {
        let slept = threads::alive(process, tid)?.slept;
        Self::with(process, tid, call, slept + 1)
    }

    /// Returns the thread's wait in which it had slept so often.
    pub(super) fn with(process: &ProcDir, tid: Pid, call: i64, slept: u64) -> Option<Self> {
        Some(Self { tid, began: threads::start_time(process, tid)?, call, slept })
    }
}

/// A wait, and when it would have ended without TiExec, in milliseconds of CLOCK_MONOTONIC. Zero if that is not known.
type Known = (Wait, u64);

/// The waits of one process that were made again.
#[derive(Debug)]
pub(super) struct Waits<'a> {
    record: Option<Record<'a>>,
    known: Vec<Known>,
}

impl<'a> Waits<'a> {
    /// Reads the record. Without a record, only this TiExec's own waits are known.
    pub(super) fn read(record: Option<Record<'a>>) -> Self {
        let text = record.map_or_else(Vec::new, |record| record.notes(LONGEST));
        Self { record, known: parse(&text) }
    }

    /// Returns whether a wait of the thread was made again.
    pub(super) fn has(&self, tid: Pid) -> bool {
        self.known.iter().any(|(known, _)| known.tid == tid)
    }

    /// If this is a wait that was made again, returns when it would have ended.
    pub(super) fn end_of(&self, wait: &Wait) -> Option<u64> {
        let same = |(known, _): &&Known| {
            (known.tid, known.began, known.call) == (wait.tid, wait.began, wait.call)
                && wait.slept <= known.slept
        };
        self.known.iter().find(same).map(|&(_, until)| until)
    }

    /// Notes that the wait, which would have ended at `until`, was made again.
    pub(super) fn note(&mut self, wait: Wait, until: u64) {
        self.known.retain(|(known, _)| known.tid != wait.tid);
        self.known.push((wait, until));
        let surplus = self.known.len().saturating_sub(MOST);
        self.known.drain(..surplus);
        let Some(record) = self.record else { return };
        let line = |&(Wait { tid, began, call, slept }, until): &Known| {
            format!("{} {began} {call} {slept} {until}\n", tid.as_raw_nonzero())
        };
        let text: String = self.known.iter().map(line).collect();
        // Without room for a record, only this TiExec knows.
        let _unrecorded = record.replace_notes(text.as_bytes());
    }
}

fn parse(text: &[u8]) -> Vec<Known> {
    let lines = std::str::from_utf8(text).unwrap_or_default().lines();
    let wait = |line: &str| {
        let mut words = line.split(' ');
        let wait = Wait {
            tid: Pid::from_raw(words.next()?.parse().ok()?)?,
            began: words.next()?.parse().ok()?,
            call: words.next()?.parse().ok()?,
            slept: words.next()?.parse().ok()?,
        };
        Some((wait, words.next()?.parse().ok()?))
    };
    lines.filter_map(wait).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(tid: i32, began: u64, call: i64, slept: u64) -> Wait {
        Wait { tid: Pid::from_raw(tid).expect("positive"), began, call, slept }
    }

    #[test]
    fn a_wait_is_over_once_the_thread_has_slept_again() {
        let file = tempfile::tempfile().expect("a file");
        let mut waits = Waits::read(Some(Record::in_file(&file)));
        assert_eq!(waits.end_of(&wait(7, 5, 232, 10)), None);
        waits.note(wait(7, 5, 232, 10), 99);
        let again = Waits::read(Some(Record::in_file(&file)));
        for waits in [&waits, &again] {
            assert_eq!(waits.end_of(&wait(7, 5, 232, 9)), Some(99));
            assert_eq!(waits.end_of(&wait(7, 5, 232, 10)), Some(99));
            // It slept again, is in another call, or is another thread, perhaps of the same ID.
            let others =
                [wait(7, 5, 232, 11), wait(7, 5, 281, 10), wait(8, 5, 232, 10), wait(7, 6, 232, 3)];
            for other in others {
                assert_eq!(waits.end_of(&other), None, "{other:?}");
            }
        }
    }

    #[test]
    fn a_record_stays_short_and_garbage_is_no_wait() {
        let file = tempfile::tempfile().expect("a file");
        let mut waits = Waits::read(Some(Record::in_file(&file)));
        for tid in 1..=i32::try_from(MOST).expect("a small number") + 9 {
            waits.note(wait(tid, u64::MAX, i64::MIN, u64::MAX - 1), u64::MAX);
        }
        assert!(Record::in_file(&file).notes(usize::MAX).len() <= LONGEST);
        assert_eq!(Waits::read(Some(Record::in_file(&file))).known, waits.known);
        assert_eq!(waits.known.len(), MOST);
        assert_eq!(parse(b"\xff\n1 2 3 4\nx 1 2 3 4\n1 2 -3 4\n0 1 2 3 4\n"), []);
    }
}
