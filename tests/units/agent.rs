//! `tiexecd` under its own unit: its effect on services, and the effect of stopping and draining it.

use support::child::eventually;
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Held, require};

const REDIS: &str = "redis-server.service";
const UNIT: &str = include_str!("../../systemd/tiexecd.service");

/// Boots a systemd with the agent's unit, and rules for these services.
fn boot(services: &[&str]) -> Systemd {
    let systemd = Systemd::boot();
    let rules: String = services
        .iter()
        .map(|unit| {
            format!(
                "[[rule]]\nname = \"{unit}\"\nunit = \"{unit}\"\naction = \"attach\"\ncanary = \"off\"\nbacking = \"image\"\n\
                 edges = \"aggressive\"\nmin-text = \"1MiB\"\nmin-age = \"1s\"\n"
            )
        })
        .collect();
    let conf = systemd.path("/etc/tiexec/conf.d");
    std::fs::create_dir_all(&conf).expect("a directory inside");
    std::fs::write(conf.join("services.toml"), rules).expect("a file inside");
    systemd.write_unit("/etc/systemd/system/tiexecd.service", UNIT);
    systemd
}

/// Returns the main process of a service.
fn main_pid(systemd: &Systemd, unit: &str) -> String {
    let pid = systemd.property(unit, "MainPID");
    assert_ne!(pid, "0", "{unit}: {}", systemd.log(unit));
    pid
}

fn eventually_huge(systemd: &Systemd, unit: &str) {
    eventually(&format!("{unit} is huge: {}", systemd.log("tiexecd")), || systemd.huge(unit) > 0);
}

fn loop_of_forks(systemd: &Systemd) -> Held {
    systemd.command(["sh", "-c", "while :; do /bin/true; done"]).start()
}

#[test]
fn an_upgrade_under_load_changes_no_service() {
    require!(
        can_boot() && Systemd::has(REDIS) && Systemd::has("mariadb.service"),
        "{NEEDS}, redis"
    );
    let systemd = boot(&[REDIS, "mariadb.service"]);
    let verified = systemd.run(["systemd-analyze", "verify", "--man=no", "tiexecd.service"]);
    assert!(!verified.err().contains("tiexecd.service:"), "{verified}");
    systemd.start(REDIS);
    systemd.start("tiexecd");
    systemd.start("mariadb.service");
    for unit in [REDIS, "mariadb.service"] {
        eventually_huge(&systemd, unit);
    }
    let forks = loop_of_forks(&systemd);
    let mains: Vec<String> =
        [REDIS, "mariadb.service"].iter().map(|unit| main_pid(&systemd, unit)).collect();
    let huge: Vec<u64> = [REDIS, "mariadb.service"].map(|unit| systemd.huge(unit)).into();
    for _ in 0..3 {
        let old = main_pid(&systemd, "tiexecd");
        systemd.systemctl(["restart", "tiexecd"]).assert_code(0);
        assert_ne!(main_pid(&systemd, "tiexecd"), old);
    }
    systemd.systemctl(["stop", "tiexecd"]).assert_code(0);
    assert_eq!(systemd.property("tiexecd", "Result"), "success");
    for (at, unit) in [REDIS, "mariadb.service"].into_iter().enumerate() {
        assert_eq!(main_pid(&systemd, unit), mains[at], "{unit} was restarted");
        assert_eq!(systemd.huge(unit), huge[at], "{unit}");
    }
    forks.signal(libc::SIGKILL);
}

#[test]
fn drain_gives_all_back_until_resume() {
    require!(can_boot() && Systemd::has(REDIS), "{NEEDS}, redis-server");
    let systemd = boot(&[REDIS]);
    systemd.start(REDIS);
    systemd.start("tiexecd");
    eventually_huge(&systemd, REDIS);
    let main = main_pid(&systemd, REDIS);
    let drained = systemd.ctl(["agent", "drain"]);
    drained.assert_code(0);
    assert!(drained.err().contains("until `tiexecctl agent resume`"), "{drained}");
    assert_eq!((systemd.huge(REDIS), main_pid(&systemd, REDIS)), (0, main));
    let status = systemd.ctl(["status"]);
    assert!(
        status.out().contains("drained: it begins nothing; fix: tiexecctl agent resume"),
        "{status}"
    );
    // Neither a new process nor a new agent changes that.
    systemd.systemctl(["restart", REDIS, "tiexecd"]).assert_code(0);
    let checked = systemd.ctl(["rules", "check", &main_pid(&systemd, REDIS)]);
    assert!(checked.out().contains("observe instead of attach: drained"), "{checked}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(systemd.huge(REDIS), 0, "{}", systemd.log("tiexecd"));
    systemd.ctl(["agent", "resume"]).assert_code(0).assert_silent();
    eventually_huge(&systemd, REDIS);
    // The command works twice, and without an agent.
    systemd.systemctl(["stop", "tiexecd"]).assert_code(0);
    for _ in 0..2 {
        systemd.ctl(["agent", "drain"]).assert_code(0);
        assert_eq!(systemd.huge(REDIS), 0);
    }
    let status = systemd.ctl(["status"]).out();
    assert!(status.contains("\nagent    drained; fix: tiexecctl agent resume\n"), "{status}");
    systemd.ctl(["agent", "resume"]).assert_code(0);
    let again = systemd.ctl(["agent", "resume"]);
    again.assert_code(0);
    assert!(again.err().contains("the agent is not drained"), "{again}");
}

#[test]
fn an_agent_that_hangs_is_started_anew() {
    require!(can_boot() && Systemd::has(REDIS), "{NEEDS}, redis-server");
    let systemd = boot(&[REDIS]);
    let soon = "[Service]\nWatchdogSec=5s\n";
    systemd.write_unit("/etc/systemd/system/tiexecd.service.d/soon.conf", soon);
    systemd.start(REDIS);
    systemd.start("tiexecd");
    eventually_huge(&systemd, REDIS);
    let (redis, agent) = (main_pid(&systemd, REDIS), main_pid(&systemd, "tiexecd"));
    systemd.run(["kill", "-STOP", &agent]).assert_code(0);
    eventually("systemd starts it anew", || {
        let now = systemd.property("tiexecd", "MainPID");
        now != "0" && now != agent && systemd.property("tiexecd", "ActiveState") == "active"
    });
    assert_eq!(main_pid(&systemd, REDIS), redis, "{}", systemd.log(REDIS));
    assert!(systemd.huge(REDIS) > 0);
}
