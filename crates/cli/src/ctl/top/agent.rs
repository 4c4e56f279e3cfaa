//! The agent's rules and outcomes, read from its socket without blocking.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::ctl::status::agent::{self, LONGEST, PATIENCE};

/// The pause between two questions to the agent, which answers only between two programs that it works on.
const PACE: Duration = Duration::from_secs(10);

/// The last known state of the agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    question: Option<(UnixStream, Vec<u8>, Instant)>,
    asked: Option<Instant>,
    /// The agent's state in words, or why there is no state.
    pub(super) words: String,
    /// The agent's last outcome for each process; `None` if the agent does not answer.
    pub(super) outcomes: Option<HashMap<i32, agent::Process>>,
}

impl Agent {
    /// Asks the agent, if the pause is over.
    pub(super) fn ask(&mut self) {
        if self.question.is_some() || self.asked.is_some_and(|asked| asked.elapsed() < PACE) {
            return;
        }
        let now = Instant::now();
        self.asked = Some(now);
        match agent::Agent::asked() {
            Ok(socket) if socket.set_nonblocking(true).is_ok() => {
                self.question = Some((socket, Vec::new(), now));
            }
            Ok(_) => {}
            Err(why) => self.end(Err(why)),
        }
    }

    /// Makes the next refresh ask the agent.
    pub(super) fn ask_soon(&mut self) {
        self.asked = None;
    }

    /// Returns the socket on which the answer comes.
    pub(super) fn answers(&self) -> Option<&UnixStream> {
        self.question.as_ref().map(|(socket, ..)| socket)
    }

    /// Reads the available part of the answer. Returns whether the answer is complete.
    pub(super) fn take(&mut self) -> bool {
        let Some((socket, answer, begun)) = &mut self.question else { return false };
        let late = begun.elapsed() > PATIENCE || answer.len() as u64 > LONGEST;
        let mut buffer = [0; 16 << 10];
        let parsed = loop {
            match socket.read(&mut buffer) {
                Ok(0) => break agent::Agent::parse(answer),
                Ok(count) => answer.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !late => return false,
                Err(_) => break Err("no answer; fix: systemctl status tiexecd".to_owned()),
            }
        };
        self.end(parsed);
        true
    }

    fn end(&mut self, answer: Result<agent::Agent, String>) {
        self.question = None;
        match answer {
            Ok(agent) => {
                self.words = agent.in_words();
                let outcomes = agent.by_process();
                let outcomes = outcomes.into_iter().map(|(pid, outcome)| (pid, outcome.clone()));
                self.outcomes = Some(outcomes.collect());
            }
            Err(why) => (self.words, self.outcomes) = (why, None),
        }
    }
}
