//! The answers to clients that ask for the figures and the state.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use tiexec_core::escape;
use tiexec_engine::follow::hand_over::{self, REQUEST, TAKEN};
use tiexec_engine::identity::Identity;
use tiexec_remap::store::directory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, peer, pidfd};

use super::{Agent, Known, Last, Level};
use crate::decide::held_back;
use crate::metrics::Figures;
use crate::off::Off;
use crate::speak::{NoSocket, SOCKET, Server, listen, listen_at, listen_for_launches};

/// How often the figures are published.
pub(super) const PUBLISH: Duration = Duration::from_secs(15);

/// The sockets at which clients ask.
#[derive(Default)]
pub(super) struct Sockets {
    /// [`SOCKET`], for root and a group.
    agent: Option<Server<UnixListener>>,
    /// [`hand_over::SOCKET`], at which launches hand over their programs.
    launches: Option<Server<UnixListener>>,
    /// The address at which everybody may ask for the figures.
    metrics: Option<Server<TcpListener>>,
}

impl Sockets {
    /// Returns after what time a client has to be served or dropped; `None` without clients.
    pub(super) fn patience(&self) -> Option<Duration> {
        let of_unix =
            [&self.agent, &self.launches].into_iter().flatten().filter_map(Server::patience);
        of_unix.chain(self.metrics.as_ref().and_then(Server::patience)).min()
    }

    /// Returns the descriptors of the sockets and of their clients.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let of_unix =
            [&self.agent, &self.launches].into_iter().flatten().flat_map(Server::descriptors);
        of_unix.chain(self.metrics.iter().flat_map(Server::descriptors))
    }
}

impl Agent<'_> {
    /// Opens the sockets for root and for launches.
    ///
    /// # Errors
    /// Another agent listens. The text is one line.
    pub(super) fn listen(&mut self) -> Result<(), String> {
        match listen() {
            Ok(listener) => self.sockets.agent = Some(Server::new(listener)),
            Err(NoSocket::Another) => {
                return Err(format!(
                    "cannot start: another tiexecd listens at {SOCKET}; fix: systemctl stop tiexecd, or end it"
                ));
            }
            Err(NoSocket::Other(why)) => {
                self.say(Level::Warning, &format!("cannot listen at {SOCKET}: {why}"));
            }
        }
        match listen_for_launches() {
            Ok(listener) => self.sockets.launches = Some(Server::new(listener)),
            Err(why) => {
                let socket = hand_over::SOCKET;
                let text =
                    format!("cannot listen at {socket}: {why}; launches keep a companion instead");
                self.say(Level::Warning, &text);
            }
        }
        Ok(())
    }

    /// Answers `/metrics` at this address also.
    #[must_use]
    pub fn answering_at(mut self, address: SocketAddr) -> Self {
        match listen_at(address) {
            Ok((listener, address)) => {
                self.sockets.metrics = Some(Server::new(listener));
                self.say(Level::Info, &format!("answers /metrics at {address}"));
            }
            Err(why) => {
                let text = format!("cannot listen at {address}: {why}; fix: --metrics-address");
                self.say(Level::Warning, &text);
            }
        }
        self
    }

    /// Answers the clients that wait.
    pub(super) fn answer(&mut self) {
        let mut sockets = std::mem::take(&mut self.sockets);
        let metrics = || ("text/plain; version=0.0.4; charset=utf-8", self.figures());
        if let Some(server) = &mut sockets.agent {
            server.serve(|path, _| match path {
                "/status" => Some(("application/json", escape::json(&self.status()) + "\n")),
                "/metrics" => Some(metrics()),
                _ => None,
            });
        }
        if let Some(server) = &mut sockets.metrics {
            // This socket does not know the user of a client, so it answers nothing about single processes.
            server.serve(|path, _| (path == "/metrics").then(metrics));
        }
        if let Some(server) = &mut sockets.launches {
            server.serve(|path, client| {
                (path == REQUEST).then(|| ("text/plain", self.take_over(client)))
            });
        }
        self.sockets = sockets;
    }

    /// Takes the process that has connected, which is about to execute a program. Returns [`TAKEN`], or why not.
    fn take_over(&mut self, client: BorrowedFd<'_>) -> String {
        if let Some(why) = held_back(&self.launches.rule, &self.state, self.machine) {
            return format!("{}\n", why.as_str());
        }
        // As long as the pidfd's process lives, its ID is not reused. A launch that has given up waiting keeps a companion.
        let asking = || {
            let (pidfd, (pid, user)) = (peer::pidfd(client).ok()?, peer::credentials(client).ok()?);
            let identity = Identity::of(&ProcDir::of(pid?).ok()?)?;
            let ready = pidfd::wait_for_any(&[pidfd.as_fd()], &[client], Duration::ZERO).ok()?;
            let is_waiting = ready.iter().all(|one| !one.input && !one.hangup);
            is_waiting.then_some((pid?, user, identity))
        };
        let Some((pid, user, launcher)) = asking() else {
            return "cannot see the process\n".to_owned();
        };
        if self.agenda.refused.keys().any(|whose| whose.uid == user) || self.pressure().is_some() {
            return "works for this user on nothing at the moment\n".to_owned();
        }
        let is_taken = self.launches.add(pid, launcher, user, Instant::now());
        if is_taken { TAKEN.to_owned() } else { "too many\n".to_owned() }
    }

    fn figures(&self) -> String {
        self.metrics.text(&Figures {
            shares: self.lasts().map(|(.., last)| last.share.clone()).collect(),
            copies_bytes: self.copies_of(|_| true),
            store_bytes: directory::used_by_the_systems().unwrap_or(0),
            quarantined: self.state.quarantine.len(),
            drained: self.off == Some(Off::Drained),
            host_splits: self.machine.splits,
        })
    }

    /// Publishes the figures, if a callback is set and the last call is at least [`PUBLISH`] ago.
    pub(super) fn publish(&mut self) {
        if self.published.is_some_and(|last| last.elapsed() < PUBLISH) {
            return;
        }
        let Some(mut publish) = self.publish.take() else { return };
        self.published = Some(Instant::now());
        let problem = publish(Some(&self.figures())).err();
        self.publish = Some(publish);
        self.say_once("figures", Level::Warning, problem.unwrap_or_default());
    }

    /// Takes the published figures away, so that nobody takes them for the present ones.
    pub(super) fn withdraw(&mut self) {
        if let (Some(publish), Some(_)) = (&mut self.publish, self.published)
            && let Err(problem) = publish(None)
        {
            self.say(Level::Warning, &problem);
        }
    }

    fn lasts(&self) -> impl Iterator<Item = (Pid, u64, &Last)> {
        let last = |(&pid, known)| {
            let known: &Known = known;
            Some((pid, known.identity.start_time, known.last.as_ref()?))
        };
        self.known.iter().filter_map(last)
    }

    fn status(&self) -> serde_json::Value {
        let off = self.acting().filter(|rule| self.state.is_off(&rule.name));
        let processes: Vec<_> = self
            .lasts()
            .map(|(pid, began, last)| {
                serde_json::json!({
                    "pid": pid.as_raw_nonzero().get(),
                    "began": began,
                    "comm": last.comm,
                    "exe": last.exe,
                    "unit": last.share.unit,
                    "rule": last.share.rule,
                    "result": last.result,
                    "text_bytes": last.share.text_bytes,
                    "huge": last.share.huge.iter().cloned().collect::<HashMap<_, _>>(),
                    "when": last.when,
                })
            })
            .collect();
        serde_json::json!({
            "schema": 1,
            "kind": "agent",
            "version": env!("CARGO_PKG_VERSION"),
            "rules": self.rules.rules.len(),
            "rule_defects": self.rules.defects.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "rules_off": off.map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
            "disabled": self.off == Some(Off::Disabled),
            "drained": self.off == Some(Off::Drained),
            "crash_guard": self.machine.has_guard,
            "host_splits": self.machine.splits,
            "observes_only": self.state.only_observes(),
            "quarantine": self.state.quarantine,
            "scan": self.daily.last(),
            "processes": processes,
        })
    }
}
