//! All processes that this user may examine: the amount of text of each, and how much of it is huge.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tiexec_core::coverage::{coverage, huge_by_backing};
use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::FileId;
use tiexec_engine::identity::Identity;
use tiexec_remap::mapped::originals;
use tiexec_remap::store::memory;
use tiexec_remap::workers::Workers;
use tiexec_remap::{systemd_units, workers};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, areas, process, thp};

use crate::ctl::families::Copies;
use crate::ctl::thread_with_text;

/// The time limit to examine one process with other credentials.
pub(in crate::ctl) const PATIENCE: Duration = Duration::from_secs(2);

/// A process.
#[derive(Debug)]
pub(in crate::ctl) struct Seen {
    pub(in crate::ctl) pid: i32,
    /// The path of its program, as it is shown.
    pub(in crate::ctl) exe: String,
    pub(in crate::ctl) unit: Option<String>,
    /// Its user IDs.
    pub(in crate::ctl) users: Vec<u32>,
    /// Which program it is; `None` if it has ended since.
    pub(in crate::ctl) identity: Option<Identity>,
    pub(in crate::ctl) text: Text,
}

/// The text of a process, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(in crate::ctl) struct Text {
    pub(in crate::ctl) bytes: u64,
    pub(in crate::ctl) huge: u64,
    /// The huge bytes by backing. A file with several backings counts under its first.
    pub(in crate::ctl) backings: BTreeMap<String, u64>,
    /// The copies, and the memory of each. Several processes may have the same copy.
    pub(in crate::ctl) copies: Vec<(FileId, u64)>,
}

/// The sums over the text of several processes, in bytes.
#[derive(Debug, Default)]
pub(in crate::ctl) struct TextSum {
    pub(in crate::ctl) bytes: u64,
    pub(in crate::ctl) huge: u64,
    pub(in crate::ctl) backings: BTreeMap<String, u64>,
    pub(in crate::ctl) copies: Copies,
}

impl TextSum {
    /// Adds the text of a process.
    pub(in crate::ctl) fn add(&mut self, text: &Text) {
        let Text { bytes, huge, backings, copies } = text;
        self.bytes += bytes;
        self.huge += huge;
        for (backing, bytes) in backings {
            *self.backings.entry(backing.clone()).or_default() += bytes;
        }
        self.copies.add(copies);
    }
}

impl From<TextSum> for Text {
    fn from(TextSum { bytes, huge, backings, copies }: TextSum) -> Self {
        Self { bytes, huge, backings, copies: copies.into_all() }
    }
}

/// The processes, and the number of those that could not be examined.
#[derive(Debug, Default)]
pub(in crate::ctl) struct All {
    pub(in crate::ctl) seen: Vec<Seen>,
    /// The number of processes that this user may not examine.
    pub(in crate::ctl) denied: usize,
    /// The number of processes that blocked the reader for too long, together with other processes of their users.
    pub(in crate::ctl) silent: usize,
}

impl All {
    /// Examines all processes. Calls `progress` with the number of those that were examined.
    pub(in crate::ctl) fn look(mut progress: impl FnMut(usize)) -> Self {
        let mut all = Self::default();
        // After one process has blocked the reader, the other processes of its user are skipped, so that a user can
        // cause only one such delay.
        let mut silent: HashSet<Vec<u32>> = HashSet::new();
        for (pid, process) in ProcDir::every() {
            let Ok(mut status) = process.status() else { continue };
            if pid == process::this() {
                continue;
            }
            let identity = Identity::of(&process);
            let mut process = process;
            if !status.has_mm && status.threads > 1 {
                // Its first thread has ended, and the others go on.
                let other = thread_with_text(pid).and_then(|it| Ok((it.status()?, it)));
                let Ok(other) = other else { continue };
                (status, process) = other;
            }
            if !status.has_mm {
                continue;
            }
            progress(all.seen.len());
            let users = status.credentials.uids.clone();
            if silent.contains(&users) {
                all.silent += 1;
                continue;
            }
            let told = match workers::is_of_others(&process) {
                false => look_at(&process),
                true => match workers::apart(PATIENCE, || look_at(&process)) {
                    Ok(told) => told,
                    Err(_late) => {
                        silent.insert(users);
                        all.silent += 1;
                        continue;
                    }
                },
            };
            match told {
                Told::Seen(text) => all.seen.push(Seen {
                    pid: pid.as_raw_nonzero().get(),
                    exe: process.exe_path().unwrap_or_default().shown().to_string(),
                    unit: systemd_units::shown(&process).map(|unit| unit.shown().to_string()),
                    users,
                    identity,
                    text,
                }),
                Told::Denied => all.denied += 1,
                Told::Gone => {}
            }
        }
        all
    }
}

/// The answer about one process.
#[derive(Serialize, Deserialize, Debug)]
pub(in crate::ctl) enum Told {
    Seen(Text),
    Denied,
    Gone,
}

/// Examines the text of a process, which can block the caller.
pub(in crate::ctl) fn look_at(process: &ProcDir) -> Told {
    let Some(pages) = thp::pages() else { return Told::Gone };
    let mut entries = match areas::look(process, pages) {
        Ok(seen) => seen.areas,
        Err(error) if matches!(error.errno, Errno::ACCES | Errno::PERM) => return Told::Denied,
        Err(_ended) => return Told::Gone,
    };
    memory::tell(&mut entries);
    let files =
        coverage(&entries, pages, &[], &originals(process, &Workers::none(), &entries, pages));
    Told::Seen(Text {
        bytes: files.iter().map(|file| file.text_bytes).sum(),
        huge: files.iter().map(|file| file.huge_bytes).sum(),
        backings: huge_by_backing(&files),
        copies: files.iter().flat_map(|file| file.copies.clone()).collect(),
    })
}
