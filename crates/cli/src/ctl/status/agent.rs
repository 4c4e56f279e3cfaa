//! The agent's state, read from its socket.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tiexec_agent::speak::SOCKET;
use tiexec_engine::locked_target::start_time;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::{counted, since};

/// The longest wait for the agent, which answers only between two programs that it works on.
pub(in crate::ctl) const PATIENCE: Duration = Duration::from_secs(5);
/// Most programs of the scan in words.
const SHOWN: usize = 3;
/// Most bytes of an answer.
pub(in crate::ctl) const LONGEST: u64 = 64 << 20;

fn silent(error: std::io::Error) -> String {
    format!("no answer: {error}; fix: systemctl status tiexecd")
}

/// The state of the agent.
#[derive(Deserialize, Serialize, Debug)]
pub(in crate::ctl) struct Agent {
    pub(super) version: String,
    pub(super) rules: u64,
    pub(super) rule_defects: Vec<String>,
    pub(super) rules_off: Vec<String>,
    pub(in crate::ctl) disabled: bool,
    /// `tiexecctl agent drain` is in effect.
    #[serde(default)]
    pub(in crate::ctl) drained: bool,
    pub(super) crash_guard: bool,
    /// The host of this machine splits huge pages, as far as the agent knows.
    #[serde(default)]
    pub(super) host_splits: bool,
    pub(super) observes_only: bool,
    pub(super) quarantine: Vec<Value>,
    /// The agent's last scan of the machine. An agent of an earlier version does not scan.
    #[serde(default)]
    pub(super) scan: Option<Scanned>,
    #[serde(skip_serializing)]
    processes: Vec<Process>,
}

/// The agent's last scan.
#[derive(Deserialize, Serialize, Debug)]
pub(super) struct Scanned {
    /// In seconds since 1970.
    when: u64,
    /// The output of `tiexecctl scan --json`.
    table: Value,
}

impl Scanned {
    /// Describes the programs that would gain, or may gain, with the next command.
    pub(super) fn in_words(&self) -> String {
        let programs = self.table["programs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = programs.iter().filter(|row| row["estimate"]["next"].is_string());
        let is_few = |row: &&Value| row["estimate"]["few_samples"] == true;
        let (few, gains): (Vec<&Value>, Vec<&Value>) = found.partition(is_few);
        let when = since(self.when);
        if gains.is_empty() {
            let few = counted(few.len(), "program", "programs");
            return match few.as_str() {
                "0 programs" if programs.iter().all(|row| row["estimate"].is_null()) => {
                    format!("{when}: no program was busy enough for an estimate")
                }
                "0 programs" => format!("{when}: no program would gain"),
                few => format!(
                    "{when}: {few} had too few samples to tell; next: tiexecctl scan --duration 60s"
                ),
            };
        }
        let is_sure = |row: &&Value| row["estimate"]["verdict"] == "worth_it";
        let splits = self.table["host_splits"] == true;
        let would = if !splits && gains.iter().all(is_sure) { "would" } else { "may" };
        let one = |row: &&Value| {
            // The name of a user's unit begins with the user's manager.
            let of_path = || row["exe"].as_str()?.rsplit('/').next();
            let name = row["unit"].as_str().or_else(of_path).unwrap_or_default();
            format!("{name} {:.1} %", row["saves"].as_f64().unwrap_or(0.0) * 100.0)
        };
        let first: Vec<String> = gains.iter().take(SHOWN).map(one).collect();
        let more = if gains.len() > SHOWN { ", ..." } else { "" };
        let programs = counted(gains.len(), "program", "programs");
        let first = first.join(", ");
        format!(
            "{when}: {programs} {would} save processor time: {first}{more}; next: tiexecctl scan"
        )
    }
}

/// The agent's last outcome for one process.
#[derive(Deserialize, Clone, Debug)]
pub(in crate::ctl) struct Process {
    pid: i32,
    /// When the process began, in clock ticks since boot. An agent of an earlier version does not tell.
    #[serde(default)]
    began: Option<u64>,
    pub(in crate::ctl) rule: String,
    pub(in crate::ctl) result: String,
    /// In seconds since 1970.
    pub(in crate::ctl) when: u64,
}

impl Agent {
    /// Returns whether an agent runs.
    pub(in crate::ctl) fn listens() -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let refused = UnixStream::connect(SOCKET).err();
        !refused.is_some_and(|error| matches!(error.kind(), ConnectionRefused | NotFound))
    }

    /// Asks the agent for its state.
    ///
    /// # Errors
    /// The reason why there is no answer, with the fix.
    pub(in crate::ctl) fn ask() -> Result<Self, String> {
        let socket = Self::asked()?;
        let mut answer = Vec::new();
        socket.take(LONGEST).read_to_end(&mut answer).map_err(silent)?;
        Self::parse(&answer)
    }

    /// Sends the question. Returns the socket, from which the caller reads the answer up to its end.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(in crate::ctl) fn asked() -> Result<UnixStream, String> {
        let mut socket = UnixStream::connect(SOCKET).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "this user may not ask it; fix: run it as root, or join the group tiexec".to_owned()
            }
            _ => "not running; fix: systemctl enable --now tiexecd".to_owned(),
        })?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
        socket.write_all(b"GET /status HTTP/1.0\r\n\r\n").map_err(silent)?;
        Ok(socket)
    }

    /// Parses the agent's answer.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(in crate::ctl) fn parse(answer: &[u8]) -> Result<Self, String> {
        let odd = || "an answer of another version; fix: systemctl restart tiexecd".to_owned();
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").ok_or_else(odd)?;
        serde_json::from_slice(&answer[head + 4..]).map_err(|_odd| odd())
    }

    /// Describes the agent's state in words, with the fix.
    pub(in crate::ctl) fn in_words(&self) -> String {
        let state = if self.disabled {
            "switched off; fix: rm /etc/tiexec/disabled"
        } else if self.drained {
            "drained: it begins nothing; fix: tiexecctl agent resume"
        } else if self.observes_only {
            "only observes, since three builds have crashed; fix: tiexecctl quarantine --release ID"
        } else if !self.crash_guard {
            "attaches to nothing: this kernel does not tell how a program ends; fix: boot Linux 6.15 or later"
        } else {
            "at work"
        };
        // This part comes last, because it applies only to rules without the key; the state before it applies to the
        // others.
        let host = match self.host_splits {
            true => "; the host splits huge pages: rules without a key canary attach to nothing",
            false => "",
        };
        format!(
            "{state}; {}, {} in quarantine{host}",
            counted(usize::try_from(self.rules).unwrap_or(usize::MAX), "rule", "rules"),
            counted(self.quarantine.len(), "build", "builds")
        )
    }

    /// Returns the agent's last outcome for each process that is still the same.
    pub(in crate::ctl) fn by_process(&self) -> HashMap<i32, &Process> {
        let same = self.processes.iter().filter(|process| process.is_the_same());
        same.map(|process| (process.pid, process)).collect()
    }
}

impl Process {
    /// Returns whether the process lives. Another process may have its ID by now.
    fn is_the_same(&self) -> bool {
        let process = Pid::from_raw(self.pid).and_then(|pid| ProcDir::of(pid).ok());
        let begun = process.and_then(|process| start_time(&process));
        begun.is_some() && self.began.is_none_or(|began| begun == Some(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_in_words() {
        let row = |unit: Option<&str>, saves: f64, next: Option<&str>| {
            serde_json::json!({
                "unit": unit, "exe": "/usr/bin/node", "saves": saves,
                "estimate": { "verdict": "worth_it", "few_samples": false, "next": next },
            })
        };
        let on = |programs: Vec<Value>, host_splits: bool| {
            let table = serde_json::json!({ "programs": programs, "host_splits": host_splits });
            Scanned { when: crate::ctl::date::seconds(), table }.in_words()
        };
        let said = |programs: Vec<Value>| on(programs, false);
        let idle =
            serde_json::json!({ "unit": null, "exe": "/bin/x", "saves": null, "estimate": null });
        let nothing = said(vec![row(None, 0.5, None), idle.clone()]);
        assert!(nothing.ends_with(" ago: no program would gain"), "{nothing}");
        assert!(said(vec![idle]).ends_with(" ago: no program was busy enough for an estimate"));
        let mut few = row(None, 0.1, Some("tiexecctl advise --duration 60s 7"));
        few["estimate"]["few_samples"] = true.into();
        let text = said(vec![few.clone()]);
        assert!(text.contains(" ago: 1 program had too few samples to tell; next: "), "{text}");
        let mut maybe = row(None, 0.02, Some("tiexecctl canary 7"));
        let splits = on(vec![maybe.clone(), few], true);
        assert!(splits.contains(": 1 program may save processor time: node 2.0 %;"), "{splits}");
        maybe["estimate"]["verdict"] = "maybe".into();
        let text = said(vec![maybe, row(None, 0.03, Some("x"))]);
        assert!(text.contains(": 2 programs may save processor time: "), "{text}");
        let gains = |count: usize| vec![row(None, 0.018, Some("tiexecctl attach 7")); count];
        let text = said(gains(1));
        assert!(
            text.ends_with(
                " ago: 1 program would save processor time: node 1.8 %; next: tiexecctl scan"
            ),
            "{text}"
        );
        let of_a_user = row(Some("user@7.service/mariadb.service"), 0.1, Some("x"));
        let text = said([gains(3), vec![of_a_user.clone()]].concat());
        assert!(
            text.contains(
                "4 programs would save processor time: node 1.8 %, node 1.8 %, node 1.8 %, ...;"
            ),
            "{text}"
        );
        let text = said(vec![of_a_user]);
        assert!(text.contains(": user@7.service/mariadb.service 10.0 %;"), "{text}");
    }
}
