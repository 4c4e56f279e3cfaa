//! What a machine does while a child does not end in time: for the messages of tests that fail rarely.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Most threads that are shown of each kind.
const MOST: usize = 12;

/// One thread, as `/proc/PID/task/TID/stat` shows it.
struct Thread {
    pid: i32,
    parent: i32,
    name: String,
    /// Its state, processor, policy and real-time priority.
    scheduling: String,
    /// Processor time, in clock ticks.
    time: u64,
}

/// Describes the machine during one second: its load, who uses the processors, and where the threads of the child and of its
/// descendants wait.
pub(crate) fn describe(child: i32) -> String {
    let (busy_before, before) = (ticks(), threads());
    std::thread::sleep(Duration::from_secs(1));
    let (busy, now) = (ticks(), threads());
    let mut text = String::new();
    for file in ["loadavg", "pressure/cpu", "pressure/io", "pressure/memory"] {
        let line = read(&format!("/proc/{file}")).lines().next().unwrap_or_default().to_owned();
        let _ = writeln!(text, "{file}: {line}");
    }
    let names = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    let of_each = names.iter().zip(busy.iter().zip(&busy_before));
    let _ = write!(text, "clock ticks in one second:");
    for (name, (now, before)) in of_each {
        let _ = write!(text, " {name} {}", now.saturating_sub(*before));
    }
    let used = |tid: i32, thread: &Thread| {
        thread.time.saturating_sub(before.get(&tid).map_or(0, |before| before.time))
    };
    let mut most: Vec<_> =
        now.iter().map(|(&tid, thread)| (used(tid, thread), tid, thread)).collect();
    most.sort_by_key(|&(used, ..)| std::cmp::Reverse(used));
    let _ = write!(text, "\nthe threads that used most of it:");
    for (used, tid, thread) in most.into_iter().take(MOST) {
        let _ = write!(text, "\n  {used} {} {tid} {}", thread.name, thread.scheduling);
    }
    let _ = write!(text, "\nthe threads of the child:");
    let is_of_it = |thread: &Thread| {
        let parent = |pid: i32| now.get(&pid).map(|thread| thread.parent);
        std::iter::successors(Some(thread.pid), |&pid| parent(pid)).take(20).any(|pid| pid == child)
    };
    let of_it = now.iter().filter(|(_, thread)| is_of_it(thread));
    for (tid, thread) in of_it.take(MOST) {
        let dir = format!("/proc/{}/task/{tid}", thread.pid);
        let [wait, call, stack] =
            ["wchan", "syscall", "stack"].map(|name| read(&format!("{dir}/{name}")));
        let stack: Vec<&str> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let _ = write!(
            text,
            "\n  {} {tid} {} wchan {wait} syscall {} stack {}",
            thread.name,
            thread.scheduling,
            call.trim(),
            stack.join(" ")
        );
    }
    text
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The first line of `/proc/stat`.
fn ticks() -> Vec<u64> {
    let text = read("/proc/stat");
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// All threads of the machine by ID.
fn threads() -> BTreeMap<i32, Thread> {
    let inside = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let processes = inside("/proc".into()).filter(|entry| number(&entry.path()).is_some());
    let tasks = processes.flat_map(|process| inside(process.path().join("task")));
    tasks.filter_map(|task| Some((number(&task.path())?, thread(&task.path())?))).collect()
}

fn number(path: &std::path::Path) -> Option<i32> {
    path.file_name()?.to_str()?.parse().ok()
}

fn thread(task: &std::path::Path) -> Option<Thread> {
    let text = std::fs::read_to_string(task.join("stat")).ok()?;
    let (before, after) = text.rsplit_once(") ")?;
    let name = before.split_once('(')?.1.to_owned();
    let words: Vec<&str> = after.split(' ').collect();
    // Field 3 of proc_pid_stat(5) is the first word.
    let field = |number: usize| words.get(number - 3).copied().unwrap_or_default();
    let time = |number| field(number).parse().unwrap_or(0_u64);
    Some(Thread {
        pid: number(task.parent()?.parent()?)?,
        parent: field(4).parse().ok()?,
        name,
        scheduling: format!("{} on {} policy {}/{}", field(3), field(39), field(41), field(40)),
        time: time(14) + time(15),
    })
}
