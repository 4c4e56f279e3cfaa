//! Processes that began a program and have not run it for long enough. Most of them end before that.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tiexec_sys::Pid;

/// The processes, those that began first at the front.
#[derive(Debug, Default)]
pub(crate) struct Young {
    began: HashMap<Pid, Instant>,
    /// The same processes in the order of time. An entry is stale if the process has begun another program since.
    order: VecDeque<(Pid, Instant)>,
}

impl Young {
    /// Adds processes that began a program at `now`.
    pub(crate) fn add(&mut self, pids: impl IntoIterator<Item = Pid>, now: Instant) {
        for pid in pids {
            if self.began.insert(pid, now) != Some(now) {
                self.order.push_back((pid, now));
            }
        }
    }

    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.began.contains_key(&pid)
    }

    pub(crate) fn len(&self) -> usize {
        self.began.len()
    }

    /// Forgets processes that have ended.
    pub(crate) fn forget<'a>(&mut self, pids: impl IntoIterator<Item = &'a Pid>) {
        for pid in pids {
            self.began.remove(pid);
        }
        if self.order.len() > 2 * self.began.len() + 1024 {
            self.order.retain(|(pid, began)| self.began.get(pid) == Some(began));
        }
    }

    /// Removes and returns at most `most` processes that began at least `age` ago, with the time of each.
    pub(crate) fn take_older(
        &mut self,
        now: Instant,
        age: Duration,
        most: usize,
    ) -> Vec<(Pid, Instant)> {
        let mut old = Vec::new();
        while let Some(&(pid, began)) = self.order.front() {
            if old.len() >= most || now.duration_since(began) < age {
                break;
            }
            self.order.pop_front();
            if self.began.get(&pid) == Some(&began) {
                self.began.remove(&pid);
                old.push((pid, began));
            }
        }
        old
    }

    /// Returns the time of the oldest entry.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.order.front().map(|&(_, began)| began)
    }

    /// Forgets all processes except these.
    pub(crate) fn retain(&mut self, alive: &HashSet<Pid>) {
        self.began.retain(|pid, _| alive.contains(pid));
        self.order.retain(|(pid, began)| self.began.get(pid) == Some(began));
    }

    /// Returns how much is remembered.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.order.len()
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.began.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_exec_counts() {
        let pid = |raw| Pid::from_raw(raw).expect("a number");
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut young = Young::default();
        young.add([pid(1), pid(2)], start);
        young.add([pid(1)], start + second);
        young.add([pid(1)], start + second);
        assert_eq!(young.first(), Some(start));
        assert_eq!(young.take_older(start + second / 2, second, 9), []);
        assert_eq!(young.take_older(start + second, second, 9), [(pid(2), start)]);
        assert!(young.contains(pid(1)) && !young.contains(pid(2)));
        young.add([pid(3)], start + 2 * second);
        young.retain(&HashSet::from([pid(1)]));
        assert_eq!(young.take_older(start + 9 * second, second, 9), [(pid(1), start + second)]);
        assert_eq!(young.first(), None);
    }
}
