//! The processes of one service that run one program.

use std::collections::BTreeMap;

use serde::Serialize;
use tiexec_engine::identity::Identity;
use tiexec_remap::systemd_units;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::ctl::status::processes::Seen;
use crate::options::Targets;

/// The processes of one unit and one user that run one program. All names are escaped for display.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) unit: Option<String>,
    pub(super) exe: String,
    #[serde(skip)]
    pub(super) users: Vec<u32>,
    pub(super) pids: Vec<i32>,
    /// The programs at the time of the first look.
    #[serde(skip)]
    identities: Vec<Option<Identity>>,
    /// The sums over the processes.
    pub(super) text_bytes: u64,
    pub(super) huge_bytes: u64,
}

impl Group {
    /// Groups the processes that each have at least as many bytes of text.
    pub(super) fn all(seen: &[Seen], least: u64) -> Vec<Self> {
        let mut groups: BTreeMap<_, Self> = BTreeMap::new();
        for one in seen.iter().filter(|of| of.text.bytes >= least) {
            let Seen { pid, exe, unit, users, identity, text } = one;
            let group = groups.entry((unit, exe, users)).or_insert_with(|| Self {
                unit: unit.clone(),
                exe: exe.clone(),
                users: users.clone(),
                pids: Vec::new(),
                identities: Vec::new(),
                text_bytes: 0,
                huge_bytes: 0,
            });
            group.pids.push(*pid);
            group.identities.push(*identity);
            group.text_bytes += text.bytes;
            group.huge_bytes += text.huge.min(text.bytes);
        }
        groups.into_values().collect()
    }

    /// Returns a group of these processes, which have ended.
    #[cfg(test)]
    pub(super) fn planted(exe: &str, pids: &[i32]) -> Self {
        Self {
            unit: None,
            exe: exe.to_owned(),
            users: vec![0],
            pids: pids.to_vec(),
            identities: vec![None; pids.len()],
            text_bytes: 8 << 20,
            huge_bytes: 2 << 20,
        }
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.pids.iter().filter_map(|&pid| Pid::from_raw(pid))
    }

    /// Returns the processes that still run the same program.
    pub(super) fn living(&self) -> Vec<Pid> {
        let same = |(pid, known): (Pid, &Option<Identity>)| {
            let now = ProcDir::of(pid).ok().as_ref().and_then(Identity::of);
            (now.is_some() && now == *known).then_some(pid)
        };
        self.pids().zip(&self.identities).filter_map(same).collect()
    }

    /// Returns the name of the program's file.
    pub(super) fn name(&self) -> &str {
        let path = self.exe.strip_suffix(" (deleted)").unwrap_or(&self.exe);
        path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
    }

    /// Returns what selects these processes, and none of the other groups, for a command.
    pub(super) fn targets(&self, all: &[(u64, Self)]) -> Targets {
        let alone =
            |same: &dyn Fn(&Self) -> bool| all.iter().filter(|(_, other)| same(other)).count() == 1;
        let units = self.pids().next().and_then(|pid| systemd_units::of(&ProcDir::of(pid).ok()?));
        let units = units.filter(|units| Some(units.to_string()) == self.unit);
        if let Some(units) = units.filter(|_| alone(&|other| other.unit == self.unit)) {
            let own = rustix::process::geteuid();
            match units.service_for(own.as_raw()) {
                Some((name, false)) => {
                    return Targets { unit: Some(name.to_owned()), ..Targets::default() };
                }
                // To root, the name means the units of all users.
                Some((name, true)) if !own.is_root() => {
                    return Targets { user: Some(name.to_owned()), ..Targets::default() };
                }
                _ => {}
            }
        }
        // The path of the file may mean another file here: the processes may run in a container.
        let pids = self.living().into_iter().map(|pid| pid.as_raw_nonzero().to_string());
        Targets { pids: pids.collect(), ..Targets::default() }
    }
}
