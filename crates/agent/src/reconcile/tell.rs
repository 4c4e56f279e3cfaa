//! The answers to clients that ask for the figures and the state.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tiexec_core::escape;
use tiexec_remap::store::directory;
use tiexec_sys::Pid;

use super::{Agent, Known, Last, Level};
use crate::metrics::Share;
use crate::off::Off;

/// How often the figures are published.
pub(super) const PUBLISH: Duration = Duration::from_secs(15);

impl Agent<'_> {
    /// Answers the clients that wait.
    pub(super) fn answer(&mut self) {
        let (mut server, mut metrics_server) = (self.server.take(), self.metrics_server.take());
        let metrics = || ("text/plain; version=0.0.4; charset=utf-8", self.figures());
        if let Some(server) = &mut server {
            server.serve(|path| match path {
                "/status" => Some(("application/json", escape::json(&self.status()) + "\n")),
                "/metrics" => Some(metrics()),
                _ => None,
            });
        }
        if let Some(server) = &mut metrics_server {
            // This socket does not know the user of a client, so it answers nothing about single processes.
            server.serve(|path| (path == "/metrics").then(metrics));
        }
        (self.server, self.metrics_server) = (server, metrics_server);
    }

    fn figures(&self) -> String {
        let shares: Vec<Share> = self.lasts().map(|(.., last)| last.share.clone()).collect();
        let store = directory::used_by_the_systems().unwrap_or(0);
        self.metrics.text(&shares, store, self.state.quarantine.len())
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
        let off = self.rules.rules.iter().filter(|rule| self.state.is_off(&rule.name));
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
            "processes": processes,
        })
    }
}
