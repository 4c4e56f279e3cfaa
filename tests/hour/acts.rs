//! The acts on the services and on TiExec, in any order.

use std::collections::BTreeMap;

use support::child::eventually;
use support::fresh::evict_unmapped;
use support::{Done, Random};

use crate::stage::{AGENT, BYTES, EXCHANGE, Service, Stage};

/// A kind of act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Stop,
    Restart,
    Attach,
    AttachToAll,
    Revert,
    Enable,
    Disable,
    Upgrade,
    UpgradeAndRestart,
    Warm,
    Evict,
    Pressure,
    Launch,
    Look,
    KilledAttach,
    KilledRevert,
    KilledCanary,
    SecondAgent,
    Drain,
    ReloadAgent,
    RestartAgent,
    AgentAway,
    KillAgent,
    /// The last of a pass: starts all that is stopped.
    StartAll,
}

/// All but the last.
const ANY_ORDER: [Act; 23] = [
    Act::Stop,
    Act::Restart,
    Act::Attach,
    Act::AttachToAll,
    Act::Revert,
    Act::Enable,
    Act::Disable,
    Act::Upgrade,
    Act::UpgradeAndRestart,
    Act::Warm,
    Act::Evict,
    Act::Pressure,
    Act::Launch,
    Act::Look,
    Act::KilledAttach,
    Act::KilledRevert,
    Act::KilledCanary,
    Act::SecondAgent,
    Act::Drain,
    Act::ReloadAgent,
    Act::RestartAgent,
    Act::AgentAway,
    Act::KillAgent,
];

/// The agent lives for this number of passes, so that a leak would add up.
const LIFE_OF_AN_AGENT: u64 = 8;

/// The acts of one pass, in a random order.
pub(crate) fn pass(number: u64, random: &mut Random) -> Vec<Act> {
    let ends_agents = [Act::RestartAgent, Act::AgentAway, Act::KillAgent];
    let mut acts = ANY_ORDER.to_vec();
    acts.retain(|act| number.is_multiple_of(LIFE_OF_AN_AGENT) || !ends_agents.contains(act));
    for at in (1..acts.len()).rev() {
        acts.swap(at, random.below(at as u64 + 1) as usize);
    }
    acts.push(Act::StartAll);
    acts
}

/// The acts so far, and what came of them.
#[derive(Default)]
pub(crate) struct Tally(pub(crate) BTreeMap<Act, BTreeMap<String, u64>>);

impl Tally {
    fn add(&mut self, act: Act, outcome: &str) {
        *self.0.entry(act).or_default().entry(outcome.to_owned()).or_default() += 1;
    }
}

/// Returns the outcome of an attach or a revert: done, or why the command has changed nothing, such as a process that cannot be
/// stopped now, or too little memory. Panics if the command fails in another way.
pub(crate) fn outcome(done: &Done) -> String {
    let code = done.status.code();
    if code == Some(0) {
        return "done".into();
    }
    let said = done.err();
    let known = [
        "busy",
        "no_thread",
        "target_gone",
        "changed",
        "already_traced",
        "deadline",
        "memcg_headroom",
        "memory_headroom",
        "no process",
    ];
    let why = known.into_iter().find(|reason| said.contains(&format!("{reason}: ")));
    let why = why.unwrap_or_else(|| panic!("{done}"));
    assert!([Some(1), Some(3), Some(4)].contains(&code), "{done}");
    format!("{why} ({})", code.unwrap_or_default())
}

impl Stage {
    /// Does one act with a random service.
    pub(crate) fn act(&self, act: Act, random: &mut Random, tally: &mut Tally) {
        let up: Vec<&Service> = self.services.iter().filter(|service| service.is_up()).collect();
        let service = up[random.below(up.len() as u64) as usize];
        println!("{act:?} {}", service.unit());
        let said = self.do_one(act, service, random);
        tally.add(act, &said);
    }

    fn do_one(&self, act: Act, service: &Service, random: &mut Random) -> String {
        let (systemd, unit) = (&self.systemd, service.unit());
        match act {
            Act::Stop if self.services.iter().filter(|it| it.is_up()).count() == 1 => {
                return "not the last one".into();
            }
            Act::Stop => self.stop(service),
            Act::Restart => self.start(service),
            Act::StartAll => {
                self.services.iter().filter(|it| !it.is_up()).for_each(|it| self.start(it));
            }
            Act::Attach => return outcome(&systemd.ctl(["attach", "--unit", unit])),
            Act::AttachToAll => {
                let pids = self.services.iter().filter_map(Service::main);
                let words = ["attach", "--edges=pad"].map(str::to_owned).into_iter();
                return outcome(&systemd.ctl(words.chain(pids)));
            }
            Act::Revert => {
                let said = outcome(&systemd.ctl(["revert", "--unit", unit]));
                if said == "done" && unit == EXCHANGE {
                    self.assert_exchange_untouched();
                }
                return said;
            }
            Act::Enable => {
                let (name, _) = service.to_enable();
                systemd.ctl(["enable", &name, "--", "--backing=image"]).assert_code(0);
                service.enabled.set(true);
                self.start(service);
            }
            Act::Disable => {
                systemd.ctl(["disable", &service.to_enable().0]).assert_code(0);
                service.enabled.set(false);
            }
            Act::Upgrade => service.upgrade(),
            Act::UpgradeAndRestart => {
                service.upgrade();
                self.start(service);
            }
            Act::Warm => {
                // 1 and 3: programs that run keep some or all files in use.
                let done = systemd.ctl(["rules", "warm"]);
                let may_be = [Some(0), Some(1), Some(3)];
                assert!(may_be.contains(&done.status.code()) && done.stderr.is_empty(), "{done}");
            }
            Act::Evict => self.services.iter().for_each(|it| evict_unmapped(&it.copy)),
            Act::Pressure => {
                let mut said = String::new();
                self.under_pressure(|| {
                    said = outcome(&systemd.ctl(["attach", "--unit", unit]));
                    self.launch();
                });
                return said;
            }
            Act::Launch => self.launch(),
            Act::Look => {
                systemd.ctl(["status"]).assert_code(0);
                systemd.ctl(["inspect", "--unit", unit]).assert_code(0);
            }
            Act::KilledAttach => return self.killed(["attach", "revert"], unit, random),
            Act::KilledRevert => {
                outcome(&systemd.ctl(["attach", "--unit", unit]));
                return self.killed(["revert", "attach"], unit, random);
            }
            Act::KilledCanary => return self.killed_canary(random),
            Act::SecondAgent => {
                let second = systemd.run(["/usr/bin/tiexecd"]);
                second.assert_code(1);
                assert!(second.err().contains("another tiexecd"), "{second}");
            }
            Act::Drain => {
                systemd.ctl(["agent", "drain"]).assert_code(0);
                for service in &self.services {
                    assert!(!self.has_copies(service), "{} after a drain", service.unit());
                }
                systemd.ctl(["agent", "resume"]).assert_code(0);
            }
            Act::ReloadAgent => _ = systemd.systemctl(["reload", AGENT]).assert_code(0),
            Act::RestartAgent => {
                systemd.systemctl(["restart", AGENT]).assert_code(0);
            }
            Act::AgentAway => {
                systemd.systemctl(["stop", AGENT]).assert_code(0);
                assert_eq!(systemd.property(AGENT, "Result"), "success");
                let said = outcome(&systemd.ctl(["revert", "--unit", unit]));
                self.launch();
                systemd.start(AGENT);
                return said;
            }
            Act::KillAgent => {
                let restarts = || systemd.property(AGENT, "NRestarts");
                let before = restarts();
                systemd
                    .systemctl(["kill", "--signal=KILL", "--kill-who=main", AGENT])
                    .assert_code(0);
                eventually("systemd starts the agent anew", || {
                    restarts() != before && systemd.property(AGENT, "ActiveState") == "active"
                });
            }
        }
        "done".into()
    }

    /// A program started by `tiexec`, of which all bytes arrive.
    fn launch(&self) {
        let words =
            ["/usr/bin/tiexec", "-q", "--backing=image", "/opt/exchange", "/run/launched", "50"];
        self.systemd.run(words).assert_code(0);
    }

    /// Kills the first command at a random moment. The second one does its work afterwards.
    fn killed(&self, [first, second]: [&str; 2], unit: &str, random: &mut Random) -> String {
        let words = ["/usr/bin/tiexecctl", first, "--unit", unit];
        let mut held = self.systemd.command(words).start();
        random.spin(150_000);
        let met = !held.has_ended();
        // This kills the process group, so the command itself, too.
        drop(held);
        let after = outcome(&self.systemd.ctl([second, "--unit", unit]));
        if second == "revert" && after == "done" && unit == EXCHANGE {
            self.assert_exchange_untouched();
        }
        if met { "killed".into() } else { "it had ended".into() }
    }

    /// A canary that is killed: the agent reverts what the canary has left.
    fn killed_canary(&self, random: &mut Random) -> String {
        let exchange = self.exchange();
        // A canary refuses text that is huge in the page cache, and a process with copies. The agent leaves a process alone that was
        // reverted.
        exchange.upgrade();
        self.start(exchange);
        eventually("it is reverted", || {
            outcome(&self.systemd.ctl(["revert", "--unit", EXCHANGE])) == "done"
        });
        let counter = format!("cat {BYTES}");
        let words = [
            "/usr/bin/tiexecctl",
            "canary",
            "--slice=1s",
            "--max=1h",
            "--counter",
            &counter,
            "--unit",
            EXCHANGE,
        ];
        let mut canary = self.systemd.command(words).start();
        let record = self.systemd.path("/var/lib/tiexec/canary.json");
        eventually("the canary has begun", || record.exists() || canary.has_ended());
        if canary.has_ended() {
            // The agent, or the unit beside the service, attached after the revert.
            assert!(canary.err_text().contains("by tiexec already"), "{}", canary.err_text());
            return "refused".into();
        }
        if random.below(2) == 0 {
            eventually("it is on copies", || self.has_copies(exchange));
        }
        random.spin(200_000);
        drop(canary);
        eventually("the agent has reverted what the canary left", || !record.exists());
        "killed".into()
    }
}
