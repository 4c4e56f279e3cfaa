//! Prints the cost of the agent. The test asserts only that all programs become huge.

use std::time::{Duration, Instant};

use support::attaching::switched;
use support::child::eventually;
use support::{Held, Run, is_root, require};

use crate::{Files, has_guard, hold, stop};

/// User and system time of a process, in clock ticks.
pub(crate) fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // utime, stime, and the same of reaped children.
    [11, 12, 13, 14].iter().map(|&at: &usize| fields[at].parse::<u64>().expect("a number")).sum()
}

fn rss_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a live process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_hundred_servers_and_a_loop_of_forks() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let agent = files.agent();
    let forks = Run::new("sh", ["-c", "while :; do /bin/true; done"]).plain().start();
    let servers: Vec<Held> = (0..100).map(|_| hold(&copy)).collect();
    let begun = Instant::now();
    eventually("all are switched", || servers.iter().all(|held| switched(held.pid()) > 0));
    let (until_all, attaching) = (begun.elapsed(), ticks(agent.pid()));
    let time = Duration::from_secs(10);
    std::thread::sleep(time);
    let idle = ticks(agent.pid()) - attaching;
    println!(
        "100 servers switched {until_all:?} after the last began; {attaching} ticks until then, then {idle} in {time:?} \
         beside a loop of forks; VmHWM {} KiB",
        rss_kib(agent.pid())
    );
    forks.signal(libc::SIGKILL);
    stop(agent);
    for held in servers {
        held.finish().assert_code(7);
    }
}
