//! A process and its descendants, by `/proc`.

use std::collections::{HashMap, HashSet};

use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

use crate::locked_target::start_time;

/// Processes known to belong to a tree. A process whose parent has ended still belongs to the tree
/// if it was seen before.
#[derive(Debug, Default)]
pub struct Tree {
    /// When each process began, in clock ticks since boot. The id and this time identify a process
    /// for ever.
    members: HashMap<Pid, u64>,
}

impl Tree {
    /// Makes a tree of those of these processes that still live.
    pub fn of(pids: &[Pid]) -> Self {
        let begun =
            pids.iter().filter_map(|&pid| Some((pid, start_time(&ProcDir::of(pid).ok()?)?)));
        Self { members: begun.collect() }
    }

    /// Adds processes that are known to belong to the tree.
    pub fn take_in(&mut self, pids: impl Iterator<Item = Pid>) {
        let known = Self::of(&pids.collect::<Vec<_>>());
        self.members.extend(known.members);
    }

    /// Walks through `/proc` for the processes that belong to the tree now, with or without
    /// descendants not known yet; returns them, in the order of their ids.
    pub fn walk(&mut self, descendants: bool) -> Vec<Pid> {
        if !descendants {
            let lives = |pid| ProcDir::of(pid).ok().and_then(|process| start_time(&process));
            self.members.retain(|&pid, begun| lives(pid) == Some(*begun));
            return self.members.keys().copied().collect();
        }
        let mut processes: HashMap<Pid, (Option<Pid>, u64)> = HashMap::new();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // A companion that has just started may look like a descendant.
        let this = process::this();
        for pid in pids.filter_map(Pid::from_raw).filter(|&pid| pid != this) {
            let Ok(text) = ProcDir::of(pid).and_then(|process| process.read("stat")) else {
                continue;
            };
            let (Ok(parent), Ok(begun)) = (stat::parent(&text), stat::start_time(&text)) else {
                continue;
            };
            processes.insert(pid, (i32::try_from(parent).ok().and_then(Pid::from_raw), begun));
        }
        self.members.retain(|pid, begun| processes.get(pid).is_some_and(|(_, now)| now == begun));
        let mut outside: HashSet<Pid> = HashSet::new();
        for &pid in processes.keys() {
            let mut line = Vec::new();
            let mut at = Some(pid);
            let belongs = loop {
                match at {
                    Some(pid) if self.members.contains_key(&pid) => break true,
                    // Parents form no circle, but the kernel may reuse an id during this walk.
                    Some(pid) if !outside.contains(&pid) && !line.contains(&pid) => {
                        line.push(pid);
                        at = processes.get(&pid).and_then(|(parent, _)| *parent);
                    }
                    _ => break false,
                }
            };
            if belongs {
                let of_line = line.iter().filter_map(|pid| Some((*pid, processes.get(pid)?.1)));
                self.members.extend(of_line);
            } else {
                outside.extend(line);
            }
        }
        let mut pids: Vec<Pid> = self.members.keys().copied().collect();
        pids.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
        pids
    }
}
