//! Services under load, the agent by rules, and beside them everything that an operator and a machine do, at random: no byte is lost, no
//! service dies, and in the end nothing of TiExec's is left.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::Random;
use support::child::eventually;
use support::require;
use support::smaps::children;
use support::store::names;
use support::systemd::{NEEDS, can_boot};

use crate::acts::{Tally, outcome, pass};
use crate::clients::{Record, ask};
use crate::stage::{AGENT, Agent, BYTES, EXCHANGE, Stage};

/// `make soak`, of 300 rounds, does it for an hour.
const ROUND: Duration = Duration::from_secs(12);

/// Ends the clients, also if the test panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_byte_is_lost_and_nothing_is_left() {
    require!(can_boot(), "{NEEDS}");
    let stage = Stage::boot();
    let systemd = &stage.systemd;
    if !stage.has_memory_group() {
        support::skip_for_want_of_a_machine("no memory cgroup: no act is under its pressure");
    }
    systemd.ctl(["rules", "check"]).assert_code(0);
    // An agent that has nothing to do, and the memory of no service.
    systemd.start(AGENT);
    let jumps = systemd.path("/run/tiexec/machine/jumps");
    eventually("the agent has timed the jumps", || {
        jumps.exists() && children(stage.main(AGENT)).is_empty()
    });
    let first = stage.agent();
    systemd.systemctl(["stop", AGENT]).assert_code(0);
    let memory_files = stage.memory_files();
    stage.services.iter().for_each(|service| stage.start(service));
    stage.note_plain();
    systemd.ctl(["store", "setup", "--size=512M"]).assert_code(0);
    systemd.start(AGENT);

    let inside = stage.inside();
    let clients: Vec<_> = stage
        .services
        .iter()
        .filter_map(|service| Some((service.asks()?, &service.gate, Record::new())))
        .collect();
    clients.iter().for_each(|(kind, _, _)| kind.prepare(inside));
    let over = AtomicBool::new(false);
    let mut tally = Tally::default();
    let mut agents: Vec<Agent> = Vec::new();
    std::thread::scope(|scope| {
        let ends = Over(&over);
        for (kind, gate, record) in &clients {
            scope.spawn(|| ask(kind, inside, gate, record, &over));
        }
        let mut random = Random::new();
        let until = Instant::now() + ROUND * u32::try_from(support::rounds(0)).expect("few rounds");
        for number in 0.. {
            for act in pass(number, &mut random) {
                stage.act(act, &mut random, &mut tally);
                stage.assert_alive();
                for (_, _, record) in &clients {
                    let lost = record.lost.lock().expect("no client has panicked");
                    assert!(lost.is_empty(), "after {act:?}: {lost:?}");
                }
            }
            agents.push(stage.agent());
            assert_small(agents.last().expect("just pushed"), &first);
            if Instant::now() >= until {
                break;
            }
        }
        // What is started now is found by the agent, after all that.
        stage.start(stage.exchange());
        let main = stage.exchange().main().expect("just started");
        // Its text may be huge in the page cache already.
        let start = format!("exchange {main} (rule exchange): ");
        let tells = |line: &str| line.contains(&start) && line.contains(", huge ");
        eventually(&start, || systemd.log(AGENT).lines().any(tells));
        for (kind, _, record) in &clients {
            let before = record.answered.load(Ordering::Relaxed);
            eventually(&format!("{kind:?} still answers"), || {
                record.answered.load(Ordering::Relaxed) > before
            });
        }
        drop(ends);
    });
    for (kind, _, record) in &clients {
        let lost = record.lost.lock().expect("no client has panicked");
        assert!(lost.is_empty(), "{lost:?}");
        kind.count(inside, record.answered.load(Ordering::Relaxed));
    }

    systemd.ctl(["disable", "--all"]).assert_code(0);
    eventually("all is reverted", || outcome(&systemd.ctl(["revert", "--all"])) == "done");
    for service in &stage.services {
        stage.assert_reverted(service);
    }
    stage.assert_exchange_untouched();
    assert_no_record_of_the_dead(&stage);
    let bytes = systemd.run(["cat", BYTES]).out();
    stage.services.iter().for_each(|service| stage.stop(service));
    assert_no_crash(&stage);
    eventually("the agent has the descriptors of its start", || {
        stage.agent().descriptors == first.descriptors
    });
    let last = stage.agent();
    systemd.systemctl(["stop", AGENT]).assert_code(0);
    assert_eq!(systemd.property(AGENT, "Result"), "success");
    systemd.ctl(["store", "prune", "--all-unused"]).assert_code(0);
    assert_nothing_is_left(&stage);
    systemd.assert_nothing_failed();
    let left = stage.memory_files().zip(memory_files).map_or(0, |(now, then)| now - then);
    assert!(left < 1 << 20, "{left} bytes of memory files, of which a copy has 2 MiB, are left");

    for (act, outcomes) in &tally.0 {
        println!("{act:?}: {outcomes:?}");
    }
    for (kind, _, record) in &clients {
        println!("{kind:?}: {} requests", record.answered.load(Ordering::Relaxed));
    }
    let most = agents.iter().map(|agent| agent.anonymous_kib).max();
    println!("{} passes; agent: first {first:?}, last {last:?}, most {most:?} KiB", agents.len());
    println!("memory files: {left} bytes more; the last exchange: {} bytes", bytes.trim());
}

/// An agent that leaks would need more from act to act. It knows few processes here.
fn assert_small(agent: &Agent, first: &Agent) {
    assert!(agent.anonymous_kib < first.anonymous_kib + 2048, "{agent:?}, at first {first:?}");
}

/// No log says that a process of a service, or of TiExec, has crashed.
fn assert_no_crash(stage: &Stage) {
    let words = "got signal|by signal|on signal|PANIC|panicked|dumped core";
    let script = "journalctl --no-pager --output=cat | grep -E \"$0\"; grep -rE \"$0\" /var/log";
    let said = stage.systemd.run(["sh", "-c", script, words]).out();
    assert_eq!(said, "");
}

/// Files of `/run/tiexec/lock` are those of processes that live, once they are swept.
fn assert_no_record_of_the_dead(stage: &Stage) {
    let systemd = &stage.systemd;
    let lock = systemd.path("/run/tiexec/lock");
    // TiExec sweeps at most every ten minutes.
    systemd.run(["touch", "--date=1 hour ago", "/run/tiexec/lock/.swept"]).assert_code(0);
    systemd.ctl(["attach", "--unit", EXCHANGE]).assert_code(0);
    systemd.ctl(["revert", "--unit", EXCHANGE]).assert_code(0);
    let alive: BTreeSet<String> = names(systemd.path("/proc")).into_iter().collect();
    let left = names(lock).into_iter().filter(|name| name != ".swept");
    let dead: Vec<String> =
        left.filter(|name| name.split('-').nth(1).is_none_or(|pid| !alive.contains(pid))).collect();
    assert!(dead.is_empty(), "{dead:?}");
}

/// No process, no file and no image of TiExec's.
fn assert_nothing_is_left(stage: &Stage) {
    let systemd = &stage.systemd;
    let script = "for exe in /proc/[0-9]*/exe; do readlink $exe; done | grep -F /usr/bin/tiexec";
    eventually("no process of TiExec's is left", || {
        systemd.run(["sh", "-c", script]).out().is_empty()
    });
    assert_eq!(names(systemd.path("/run/tiexec/images")), [""; 0]);
    // The sockets stay for the next agent, and the records for the next sweep.
    let known = ["agent.sock", "images", "launch.sock", "lock", "machine"];
    let left = names(systemd.path("/run/tiexec"));
    assert!(left.iter().all(|name| known.contains(&name.as_str())), "{left:?}");
    let known = [".agent", ".canary.lock", "scan.json", "state.json", "verdicts.json"];
    let left = names(systemd.path("/var/lib/tiexec"));
    assert!(left.iter().all(|name| known.contains(&name.as_str())), "{left:?}");
}
