//! The state of the screen: the rows and their order, the selected row, and the present meaning of the keys.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::agent::Agent;
use super::processes::{Identity, Looked, Process, Processes};

/// The column by which the rows are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Text,
    Huge,
    Cpu,
    Pid,
    Name,
}

/// A change of a process that the user can request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Attach,
    Revert,
}

impl Act {
    /// Returns the command of `tiexecctl` that does it.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Revert => "revert",
        }
    }

    /// Returns the verb with the word that precedes a process.
    pub(super) const fn doing(self) -> &'static str {
        match self {
            Self::Attach => "attach to",
            Self::Revert => "revert",
        }
    }
}

/// The process that the user chose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chosen {
    pub(super) pid: i32,
    pub(super) identity: Identity,
    pub(super) name: String,
}

/// The part of the screen that the keys go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Table,
    /// The filter is being typed.
    Filter,
    /// The screen waits for a confirmation.
    Confirm(Act, Chosen),
    Detail(Detail),
    Help,
}

/// The view of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Detail {
    pub(super) chosen: Chosen,
    /// The report of its files.
    pub(super) files: Option<String>,
    pub(super) itlb: Itlb,
    /// The first line that is shown.
    pub(super) scroll: u16,
}

/// The model of the instruction TLB, which needs samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Itlb {
    NotAsked,
    Sampling,
    Told(String),
}

/// The program's path, the unit and the users, which all processes of a family share.
type Kind = (String, String, Vec<u32>);

/// Several processes of one program.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) pids: Vec<i32>,
    /// The sums over the processes. The name has the number of processes.
    pub(super) sums: Process,
}

/// The state.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) processes: Processes,
    pub(super) agent: Agent,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// The mode below a confirmation.
    pub(super) below: Option<Detail>,
    /// The last line of the last command, or another message.
    pub(super) message: String,
    /// True if some processes have not been read since the start.
    pub(super) filling: bool,
    /// The processes shown, in order. A process with a family stands for all of it.
    pub(super) rows: Vec<i32>,
    /// The families that are shown as one row, by the process that stands for each.
    pub(super) families: HashMap<i32, Family>,
    /// True if processes of one program are shown as one row.
    pub(super) folds: bool,
    /// The families whose processes are shown nevertheless.
    unfolded: HashSet<Kind>,
    pub(super) selected: Option<i32>,
    /// The index of the selected row, for the case that its process ends.
    place: usize,
    /// The first row on the screen, and how many there is room for.
    pub(super) first: usize,
    pub(super) room: usize,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            processes: Processes::default(),
            agent: Agent::default(),
            sort: Sort::Text,
            reversed: false,
            filter: String::new(),
            mode: Mode::Table,
            below: None,
            message: String::new(),
            filling: true,
            rows: Vec::new(),
            families: HashMap::new(),
            folds: true,
            unfolded: HashSet::new(),
            selected: None,
            place: 0,
            first: 0,
            room: 0,
        }
    }

    /// Sorts and filters the rows again.
    pub(super) fn arrange(&mut self) {
        let all = &self.processes.all;
        let matching = all.iter().filter(|&(&pid, process)| self.matches(pid, process));
        let mut rows: Vec<(i32, &Process)> =
            matching.map(|(&pid, process)| (pid, process)).collect();
        self.families = self.fold(&rows);
        let members: HashSet<i32> = self.families.values().flat_map(|of| of.pids.clone()).collect();
        rows.retain(|(pid, _)| !members.contains(pid));
        rows.extend(self.families.iter().map(|(&pid, family)| (pid, &family.sums)));
        rows.sort_by(|&one, &other| {
            let order = order(self.sort, one, other);
            if self.reversed { order.reverse() } else { order }
        });
        self.rows = rows.into_iter().map(|(pid, _)| pid).collect();
        if let Some(pid) = self.selected {
            match self.rows.iter().position(|&row| row == pid) {
                Some(place) => self.place = place,
                // If the selection moved to another process, the keys would act on a process that the user did not
                // choose.
                None => self.selected = None,
            }
        }
        self.scroll();
    }

    /// Finds the families among the rows, by their first processes.
    fn fold(&self, rows: &[(i32, &Process)]) -> HashMap<i32, Family> {
        let mut kinds: BTreeMap<Kind, Vec<(i32, &Process)>> = BTreeMap::new();
        for &(pid, process) in rows.iter().filter(|(_, it)| self.folds && !it.exe.is_empty()) {
            kinds.entry(kind(process)).or_default().push((pid, process));
        }
        kinds.retain(|kind, all| all.len() > 1 && !self.unfolded.contains(kind));
        let families = kinds.into_values().filter_map(|all| {
            let (pids, members): (Vec<i32>, Vec<&Process>) = all.into_iter().unzip();
            Some((*pids.first()?, Family { sums: Process::sum(&members)?, pids }))
        });
        families.collect()
    }

    /// Shows the processes of the selected family as rows. Returns false if no family is selected.
    pub(super) fn unfold(&mut self) -> bool {
        let family = self.selected.and_then(|pid| self.families.get(&pid));
        let Some(kind) = family.map(|family| kind(&family.sums)) else { return false };
        self.unfolded.insert(kind);
        self.arrange();
        true
    }

    /// Shows each family as one row, or if that is so, each process.
    pub(super) fn fold_or_unfold(&mut self) {
        let living: HashSet<Kind> = self.processes.all.values().map(kind).collect();
        self.unfolded.retain(|kind| living.contains(kind));
        self.folds = !self.folds || !self.unfolded.is_empty();
        self.unfolded.clear();
        self.arrange();
    }

    /// Returns the facts that the row of this process shows: its own, or the sums of its family.
    pub(super) fn row(&self, pid: i32) -> Option<&Process> {
        let family = self.families.get(&pid).map(|family| &family.sums);
        family.or_else(|| self.processes.all.get(&pid))
    }

    fn matches(&self, pid: i32, process: &Process) -> bool {
        let wanted = self.filter.to_lowercase();
        let rule = self.rule(pid).unwrap_or_default();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        wanted.is_empty()
            || [&process.name, &process.exe, &process.unit].into_iter().any(|text| has(text))
            || has(rule)
            || pid.to_string() == wanted
    }

    /// Returns the agent's rule for a process.
    pub(super) fn rule(&self, pid: i32) -> Option<&str> {
        Some(self.agent.outcomes.as_ref()?.get(&pid)?.rule.as_str())
    }

    /// Sorts by a column. If the rows are sorted by that column already, reverses the order.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.reversed = self.sort == sort && !self.reversed;
        self.sort = sort;
        self.first = 0;
        self.arrange();
    }

    /// Moves the selection by a number of rows. The first move selects the first row on the screen.
    pub(super) fn go(&mut self, by: isize) {
        let place = match self.selected {
            None if self.place >= self.first && self.place < self.first + self.room => self.place,
            None => self.first,
            Some(_) => self.place.saturating_add_signed(by),
        };
        self.place = place.min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(self.place).copied();
        self.scroll();
    }

    /// Sets how many rows there is room for.
    pub(super) fn make_room(&mut self, room: usize) {
        self.room = room;
        self.scroll();
    }

    /// Keeps the selected row on the screen.
    fn scroll(&mut self) {
        self.first = self.first.min(self.rows.len().saturating_sub(self.room));
        if self.selected.is_some() {
            let room = self.room.max(1);
            self.first = self.first.clamp((self.place + 1).saturating_sub(room), self.place);
        }
    }

    /// Returns the rows on the screen.
    pub(super) fn on_screen(&self) -> &[i32] {
        let end = (self.first + self.room).min(self.rows.len());
        self.rows.get(self.first..end).unwrap_or_default()
    }

    /// Returns the process of the detail view, or else the selected process.
    pub(super) fn chosen(&self) -> Option<Chosen> {
        if let Mode::Detail(detail) = &self.mode {
            return Some(detail.chosen.clone());
        }
        let pid = self.selected?;
        let process = self.processes.all.get(&pid)?;
        Some(Chosen { pid, identity: process.identity, name: process.name.clone() })
    }

    /// Returns the process if it still runs the program that the user chose.
    pub(super) fn still(&self, chosen: &Chosen) -> Option<&Process> {
        self.processes.all.get(&chosen.pid).filter(|process| process.identity == chosen.identity)
    }

    /// Makes the next look read this process's text.
    pub(super) fn look_again(&mut self, pid: i32) {
        if let Some(process) = self.processes.all.get_mut(&pid) {
            process.when = None;
        }
    }

    /// Returns the number of processes that this user may not examine.
    pub(super) fn denied(&self) -> usize {
        self.processes.all.values().filter(|process| process.looked == Looked::Denied).count()
    }
}

fn kind(process: &Process) -> Kind {
    (process.exe.clone(), process.unit.clone(), process.uids.clone())
}

/// Orders numbers with the largest first, and names and IDs in ascending order.
fn order(sort: Sort, one: (i32, &Process), other: (i32, &Process)) -> Ordering {
    let share = |process: &Process| match process.bytes() {
        (0, _) => -1.0,
        (text, huge) => huge as f64 / text as f64,
    };
    let by = match sort {
        Sort::Text => Ordering::Equal,
        Sort::Huge => share(other.1).total_cmp(&share(one.1)),
        Sort::Cpu => other.1.cpu.unwrap_or(0.0).total_cmp(&one.1.cpu.unwrap_or(0.0)),
        Sort::Pid => one.0.cmp(&other.0),
        Sort::Name => one.1.name.cmp(&other.1.name),
    };
    by.then_with(|| other.1.bytes().0.cmp(&one.1.bytes().0)).then_with(|| one.0.cmp(&other.0))
}
