//! The ends of the processes that the agent attached to, and the crashes among them.

use std::time::Instant;

use tiexec_engine::journal;

use super::{Agent, Level};
use crate::guard::{Crash, Watched, signal_name};
use crate::state::UNSEEN;

/// Returns the end of a process in words.
fn how(signal: i32) -> String {
    match signal {
        UNSEEN => "may have crashed (it ended with status 2, and records of faults are missing)"
            .to_owned(),
        signal => format!("crashed by {}", signal_name(signal)),
    }
}

impl Agent<'_> {
    /// Watches a process for crashes.
    pub(super) fn watch(&mut self, watched: Watched) {
        // The guard would take an unread record of the process's own exec for one after the attach.
        self.read_news(Instant::now());
        self.guard.add(watched);
    }

    /// Handles the crashes since the last call.
    pub(super) fn see_ends(&mut self) {
        let ends = self.guard.ends();
        if !ends.is_empty() {
            // The records of the execs before these ends are complete now.
            self.read_news(Instant::now());
        }
        for Crash { pid, entry, after, sender } in self.guard.crashes(ends) {
            let (number, exe) = (pid.as_raw_nonzero(), entry.exe.clone());
            if let Some(sender) = sender {
                let signal = signal_name(entry.signal);
                let text = format!(
                    "{exe} {number}: process {sender} sent the {signal} that ended it; no crash"
                );
                self.say(Level::Info, &text);
                continue;
            }
            let whose = entry.whose().map_or(String::new(), |whose| format!(" for {whose} alone"));
            let text = format!(
                "{exe} {number} (rule {}) {} {} s after its text was switched: build {} is in quarantine{whose}; \
                 fix: tiexecctl quarantine --release {}",
                entry.rule,
                how(entry.signal),
                after.as_secs(),
                entry.build,
                entry.build.text
            );
            journal::crash(&text, pid, &entry.build.build_id, &entry.rule);
            self.say(Level::Error, &text);
            self.end_canary_of(&entry, pid);
            self.state.add(entry.clone());
            if let Some(store) = &self.store {
                self.unwritten.push(entry);
                let all = &self.unwritten;
                let updated = store.update(|state| {
                    all.iter().for_each(|one| state.add(one.clone()));
                });
                let problem = match updated {
                    Ok((state, problem)) => {
                        self.state = state;
                        problem
                    }
                    Err(why) => Some(why),
                };
                // A crash that could not be written to the file counts until the agent ends, and is written with the next.
                let written = store.look().unwrap_or_default().quarantine;
                self.unwritten.retain(|one| {
                    !written
                        .iter()
                        .any(|kept| kept.build == one.build && kept.whose() == one.whose())
                });
                // Somebody may have changed the file since, so it is read again.
                self.stamp = None;
                self.say_once("state", Level::Warning, problem.unwrap_or_default());
            }
            self.say_trips();
        }
    }
}
