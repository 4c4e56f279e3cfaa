//! Processes that were forked and have executed nothing since: daemons, and the workers of a server.
//!
//! A machine may fork thousands of processes a second. Nearly all of them end, or execute a program, before they are
//! `min-age` old, and the kernel reports that too. The agent looks at the others one by one, but
//!
//! - it remembers at most [`MOST`] of them;
//! - it looks at most at [`AT_ONCE`] of them each time;
//! - once it has looked at a process of a program, it leaves alone what that program forks afterwards. Such a child maps
//!   what its parent maps, copies too.
//!
//! The look at all processes finds whatever is left out here.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tiexec_sys::Pid;

use crate::young::Young;

/// Most processes, and most programs, that are remembered.
const MOST: usize = 4096;
/// Most processes that are returned at once.
const AT_ONCE: usize = 64;

/// The forked processes that have not run for long enough, and the programs that the agent has looked at.
#[derive(Debug, Default)]
pub(crate) struct Forked {
    young: Young,
    /// Programs ([`Identity::program`](tiexec_engine::identity::Identity::program)), and when the agent first looked at
    /// one of their processes.
    seen: HashMap<u64, Instant>,
}

impl Forked {
    /// Adds processes that were forked after `since`, as many as there is room for.
    pub(crate) fn add(&mut self, pids: impl IntoIterator<Item = Pid>, since: Instant) {
        let room = MOST.saturating_sub(self.young.len());
        self.young.add(pids.into_iter().take(room), since);
    }

    /// Forgets processes that have ended, or begun a program.
    pub(crate) fn forget<'a>(&mut self, pids: impl IntoIterator<Item = &'a Pid>) {
        self.young.forget(pids);
    }

    /// Removes and returns some processes that were added with a time at least `age` ago, with this time.
    pub(crate) fn take_older(&mut self, now: Instant, age: Duration) -> Vec<(Pid, Instant)> {
        self.young.take_older(now, age, AT_ONCE)
    }

    /// Notes that the agent has looked at a process of the program at `now`.
    pub(crate) fn note_look(&mut self, program: u64, now: Instant) {
        if self.seen.len() >= MOST {
            self.seen.clear();
        }
        self.seen.entry(program).or_insert(now);
    }

    /// Returns whether the agent had looked at a process of the program before another one was forked, which happened after
    /// `since`.
    pub(crate) fn was_seen(&self, program: u64, since: Instant) -> bool {
        self.seen.get(&program).is_some_and(|&seen| seen <= since)
    }

    /// Forgets which programs the agent has looked at, and all processes except these.
    pub(crate) fn begin_anew(&mut self, alive: &HashSet<Pid>) {
        self.young.retain(alive);
        self.seen.clear();
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(raw: i32) -> Pid {
        Pid::from_raw(raw).expect("a number")
    }

    #[test]
    fn a_storm_stays_small() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut forked = Forked::default();
        // All live on.
        forked.add((1..100_000).map(pid), start);
        let mut taken = 0;
        loop {
            let some = forked.take_older(start + second, second);
            assert!(some.len() <= AT_ONCE);
            taken += some.len();
            if some.is_empty() {
                break;
            }
        }
        assert_eq!(taken, MOST);
        // Each ends before it is old enough.
        for round in 0..1000 {
            let all: Vec<Pid> = (1..1000).map(pid).collect();
            forked.add(all.iter().copied(), start + second * round);
            forked.forget(&all);
        }
        assert_eq!(forked.take_older(start + 9999 * second, second), []);
        assert!(forked.young.entries() < 4096, "{}", forked.young.entries());
        for program in 0..100_000 {
            forked.note_look(program, start);
        }
        assert!(forked.seen.len() <= MOST);
    }

    #[test]
    fn a_program_is_looked_at_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut forked = Forked::default();
        forked.note_look(7, start + second);
        forked.note_look(7, start + 9 * second);
        assert!(!forked.was_seen(7, start), "it was forked before the look");
        assert!(forked.was_seen(7, start + second));
        assert!(!forked.was_seen(8, start + second));
        forked.begin_anew(&HashSet::new());
        assert!(!forked.was_seen(7, start + 2 * second));
    }
}
