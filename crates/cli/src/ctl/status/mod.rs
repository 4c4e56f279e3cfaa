//! `tiexecctl status`: the text of the whole machine, by unit and program, and the agent's outcomes.

pub(super) mod agent;
pub(super) mod processes;

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use tiexec_agent::off::{self, Off};
use tiexec_core::addr::mib;
use tiexec_core::escape;
use tiexec_core::proc::meminfo;
use tiexec_core::report::{SCHEMA, percent};
use tiexec_remap::store::directory::used_by_the_systems;
use tiexec_sys::thp;

use super::date::since;
use super::families::Copies;
use super::print;
use crate::exit;

use self::agent::Agent;
use self::processes::{All, Seen, TextSum};

/// The processes of one unit that run one program.
#[derive(Serialize, Default, Debug)]
struct Row {
    unit: Option<String>,
    exe: String,
    processes: usize,
    text_bytes: u64,
    huge_bytes: u64,
    /// The huge bytes by backing.
    backings: BTreeMap<String, u64>,
    /// How many copies these processes have together, and their memory. A copy that several of them share counts once.
    copies: usize,
    copies_bytes: u64,
    /// The agent's rule for these processes, and the last outcome; `None` if the agent did nothing.
    rule: Option<String>,
    result: Option<String>,
    /// The time of that outcome, in seconds since 1970.
    when: Option<u64>,
}

/// The figures of the whole machine, in bytes.
#[derive(Serialize, Debug)]
struct Machine {
    /// `FileHugePages`: huge pages of the page cache, mapped or not.
    file_huge_bytes: Option<u64>,
    /// `ShmemPmdMapped`: mapped huge pages of memfds and of the image store.
    shmem_pmd_mapped_bytes: Option<u64>,
    /// The memory of the system's image store.
    store_bytes: Option<u64>,
    /// How many copies all examined processes have together, and their memory. Each copy counts once.
    copies: usize,
    copies_bytes: u64,
}

impl Machine {
    fn look(seen: &[Seen]) -> Self {
        let mut copies = Copies::default();
        seen.iter().for_each(|one| copies.add(&one.text.copies));
        let text = std::fs::read("/proc/meminfo").unwrap_or_default();
        Self {
            file_huge_bytes: meminfo::field(&text, "FileHugePages"),
            shmem_pmd_mapped_bytes: meminfo::field(&text, "ShmemPmdMapped"),
            store_bytes: used_by_the_systems(),
            copies: copies.count(),
            copies_bytes: copies.bytes(),
        }
    }
}

/// Runs `status`; returns the exit status.
pub(super) fn run(json: bool) -> u8 {
    let all = All::look(|_| {});
    let agent = Agent::ask();
    let rows = rows(&all.seen, agent.as_ref().ok());
    let machine = Machine::look(&all.seen);
    if json {
        let status = serde_json::json!({
            "schema": SCHEMA,
            "kind": "status",
            "programs": rows,
            "not_permitted": all.denied,
            "silent": all.silent,
            "machine": machine,
            "agent": agent.as_ref().ok(),
            "no_agent": agent.as_ref().err(),
            "off": off::now().map(Off::as_str),
        });
        return print(&(escape::json(&status) + "\n"));
    }
    let least = thp::pages().map_or(0, |pages| pages.pmd.bytes());
    let mut text = table(&rows, least);
    text += &hidden_processes(all.denied, all.silent);
    text += &in_words(&machine, &agent);
    match print(&text) {
        exit::OK if all.denied > 0 && all.seen.is_empty() => exit::NOT_PERMITTED,
        status => status,
    }
}

/// Sums the processes of each unit and program. The row with the most text on base pages is the first.
fn rows(seen: &[Seen], agent: Option<&Agent>) -> Vec<Row> {
    let outcomes = agent.map(Agent::by_process).unwrap_or_default();
    let mut rows: BTreeMap<(Option<&str>, &str), (Row, TextSum)> = BTreeMap::new();
    for Seen { pid, exe, unit, text, .. } in seen {
        let (row, sums) = rows.entry((unit.as_deref(), exe)).or_default();
        (row.unit, row.exe) = (unit.clone(), exe.clone());
        row.processes += 1;
        sums.add(text);
        if let Some(outcome) = outcomes.get(pid)
            && row.when.is_none_or(|when| when <= outcome.when)
        {
            row.rule = Some(outcome.rule.clone());
            row.result = Some(outcome.result.clone());
            row.when = Some(outcome.when);
        }
    }
    let with_sums = |(row, sums): (Row, TextSum)| Row {
        text_bytes: sums.bytes,
        huge_bytes: sums.huge,
        backings: sums.backings,
        copies: sums.copies.count(),
        copies_bytes: sums.copies.bytes(),
        ..row
    };
    let mut rows: Vec<Row> = rows.into_values().map(with_sums).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.text_bytes - row.huge_bytes.min(row.text_bytes)));
    rows
}

/// Makes the table of the rows whose processes each have at least a huge page of text.
fn table(rows: &[Row], least: u64) -> String {
    let (shown, small): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.text_bytes >= least * row.processes as u64);
    let unit = |row: &Row| row.unit.clone().unwrap_or_else(|| "-".to_owned());
    let width = |of: &dyn Fn(&Row) -> usize, title: &str| {
        shown.iter().map(|row| of(row)).max().unwrap_or(0).max(title.len())
    };
    let units = width(&|row| unit(row).chars().count(), "UNIT");
    let programs = width(&|row| row.exe.chars().count(), "PROGRAM");
    let mut text = format!(
        "{:<units$}  {:<programs$}  {:>5}  {:>8}  {:>8}  {:>3}  {:>8}  {:<9}  AGENT\n",
        "UNIT", "PROGRAM", "PROCS", "TEXT MiB", "HUGE MiB", "%", "COPY MiB", "BACKING"
    );
    for row in shown {
        let backing = match row.backings.len() {
            0 => "-".to_owned(),
            _ => row.backings.keys().cloned().collect::<Vec<_>>().join(","),
        };
        let agent = match (&row.rule, &row.result, row.when) {
            (Some(rule), Some(result), Some(when)) => format!("{rule}: {result}, {}", since(when)),
            _ => "-".to_owned(),
        };
        let _infallible = writeln!(
            text,
            "{:<units$}  {:<programs$}  {:>5}  {:>8}  {:>8}  {:>3}  {:>8}  {backing:<9}  {agent}",
            unit(row),
            row.exe,
            row.processes,
            mib(row.text_bytes),
            mib(row.huge_bytes),
            percent(row.huge_bytes, row.text_bytes),
            mib(row.copies_bytes)
        );
    }
    text += "by text on base pages, the most first\n";
    if !small.is_empty() {
        let processes: usize = small.iter().map(|row| row.processes).sum();
        let _infallible = writeln!(
            text,
            "and {} ({}) with text below a huge page",
            counted(small.len(), "program", "programs"),
            counted(processes, "process", "processes")
        );
    }
    text
}

/// Returns a line about processes that the table does not show; nothing without any.
pub(super) fn hidden(count: usize, why: &str) -> String {
    match count {
        0 => String::new(),
        count => format!("{} {why}\n", counted(count, "process", "processes")),
    }
}

/// Returns lines about the processes that could not be examined.
pub(super) fn hidden_processes(denied: usize, silent: usize) -> String {
    let why = match rustix::process::geteuid().is_root() {
        true => "may not even be looked at by root; fix: run it outside the container",
        false => "of others may not be looked at; fix: run it as root",
    };
    hidden(denied, why)
        + &hidden(silent, "of users one of whose processes could not be looked at in 2 s")
}

pub(super) fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

fn in_words(machine: &Machine, agent: &Result<Agent, String>) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), mib);
    let mut text = format!(
        "machine  copies {} MiB   image store {} MiB   FileHugePages {} MiB   ShmemPmdMapped {} MiB\n",
        mib(machine.copies_bytes),
        bytes(machine.store_bytes),
        bytes(machine.file_huge_bytes),
        bytes(machine.shmem_pmd_mapped_bytes)
    );
    let agent = match agent {
        Ok(agent) => agent,
        // An agent that is started now would begin nothing.
        Err(why) => {
            let off = match off::now() {
                Some(Off::Drained) => "drained; fix: tiexecctl agent resume",
                Some(Off::Disabled) => "switched off; fix: rm /etc/tiexec/disabled",
                None => return text + &format!("agent    {why}\n"),
            };
            return text + &format!("agent    {why}\nagent    {off}\n");
        }
    };
    let _infallible = writeln!(text, "agent    {}", agent.in_words());
    if let Some(scan) = &agent.scan {
        let _infallible = writeln!(text, "scan     {}", scan.in_words());
    }
    for rule in &agent.rules_off {
        let _infallible = writeln!(
            text,
            "rule     {rule} is off: two builds have crashed; fix: tiexecctl quarantine --release ID"
        );
    }
    for defect in &agent.rule_defects {
        let _infallible = writeln!(text, "rules    {defect}; fix: tiexecctl rules check");
    }
    text
}

#[cfg(test)]
mod tests {
    use tiexec_core::proc::maps::FileId;

    use super::processes::Text;
    use super::*;

    /// The length of the path stands for the inode of the program's copy.
    fn seen(pid: i32, exe: &str, unit: Option<&str>, mib: u64, huge: u64) -> Seen {
        let has = huge > 0;
        let backings = [("image".to_owned(), huge << 20)].into_iter().filter(|_| has).collect();
        let copy = FileId { major: 0, minor: 1, inode: exe.len() as u64 };
        let copies = [(copy, huge << 20)].into_iter().filter(|_| has).collect();
        let text = Text { bytes: mib << 20, huge: huge << 20, backings, copies };
        Seen {
            pid,
            exe: exe.to_owned(),
            unit: unit.map(str::to_owned),
            users: Vec::new(),
            identity: None,
            text,
        }
    }

    #[test]
    fn processes_are_added_up_by_unit_and_program() {
        let all = [
            seen(1, "/usr/bin/init", None, 1, 0),
            seen(7, "/usr/sbin/mariadbd", Some("mariadb.service"), 18, 12),
            seen(8, "/usr/lib/postgres", Some("postgresql@15-main.service"), 12, 4),
            seen(9, "/usr/lib/postgres", Some("postgresql@15-main.service"), 12, 2),
        ];
        let machine = Machine::look(&all);
        assert_eq!((machine.copies, machine.copies_bytes), (2, 16 << 20));
        let rows = rows(&all, None);
        assert_eq!((rows[0].copies, rows[0].copies_bytes), (1, 4 << 20));
        assert_eq!(
            table(&rows, 2 << 20),
            "UNIT                        PROGRAM             PROCS  TEXT MiB  HUGE MiB    %  COPY MiB  BACKING    AGENT\n\
             postgresql@15-main.service  /usr/lib/postgres       2      24.0       6.0   25       4.0  image      -\n\
             mariadb.service             /usr/sbin/mariadbd      1      18.0      12.0   66      12.0  image      -\n\
             by text on base pages, the most first\n\
             and 1 program (1 process) with text below a huge page\n"
        );
    }
}
