//! A service whose own command is `tiexec PROGRAM`: systemd sees the processes that it sees without `tiexec`.

use super::enable::users_manager;
use support::child::eventually;
use support::require;
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Kind, install, program};

/// Without `PIDFile=`, systemd takes the lone process of the cgroup for the main one, and the kind of its end decides about a
/// restart. TIEXEC_TEST_ROUNDS=1000 is the long form.
#[test]
fn a_daemon_without_a_pid_file() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program("server", Kind::DynamicPie), &systemd.path("/opt/server"), 0o755);
    let unit = |way: &str| format!("forks-{way}.service");
    let ways = [("plain", ""), ("tiexec", "/usr/bin/tiexec -v --backing=image ")];
    for (way, front) in ways {
        systemd.write_unit(
            &format!("/etc/systemd/system/{}", unit(way)),
            &format!(
                "[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=forking\nExecStart={front}/opt/server daemon\n\
                 Restart=on-abnormal\nRestartSec=0\n"
            ),
        );
    }
    for round in 0..support::extent::rounds(3) {
        for (way, _) in ways {
            let unit = unit(way);
            systemd.start(&unit);
            let main = systemd.property(&unit, "MainPID");
            let log = systemd.log(&unit);
            assert_ne!(main, "0", "round {round}: {log}");
            assert_eq!(systemd.processes(&unit), ["/opt/server"], "round {round}: {log}");
            if way == "tiexec" {
                assert!(systemd.huge(&unit) > 0, "round {round}: {log}");
            }
            systemd.run(["kill", "-SEGV", &main]).assert_code(0);
            eventually("it is restarted", || {
                let now = systemd.property(&unit, "MainPID");
                now != main && now != "0" && systemd.property(&unit, "ActiveState") == "active"
            });
            systemd.systemctl(["stop", &unit]).assert_code(0);
        }
    }
    // The line names the command that makes later starts huge, and the command works.
    let unit = unit("tiexec");
    let log = systemd.log(&unit);
    let line = format!("because systemd counts the processes of {unit}: ");
    let line = log.lines().find(|one| one.contains(&line)).unwrap_or_else(|| panic!("{log}"));
    let (_, fix) = line.split_once("; for later starts: ").expect("a command");
    assert_eq!(fix, format!("tiexecctl enable {unit}"));
    systemd.run(["sh", "-c", fix]).assert_code(0);
}

/// A user's own systemd is a subreaper, but it reaps for a whole session, as process 1 does.
#[test]
fn in_a_session_of_a_users_manager() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    let front = users_manager(&systemd);
    install(&program("hold", Kind::DynamicPie), &systemd.path("/opt/hold"), 0o755);
    // The shell is a child of the manager's, and the program leaves the shell's service for a scope.
    let job = "systemd-run --user --scope --quiet /usr/bin/tiexec /opt/hold 7; exit $?";
    let words = ["systemd-run", "--user", "--pipe", "--wait", "--quiet", "sh", "-c", job];
    let mut held = systemd.command(front.iter().chain(&words)).hold();
    let reaper = systemd.run(["ps", "-C", "tiexec-follower", "-o", "ppid="]).out();
    let reaper = systemd.run(["ps", "-o", "args=", "-p", reaper.trim()]).out();
    assert_eq!(reaper, "/lib/systemd/systemd --user\n");
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

/// systemd-run(1) hands the command over to the manager. The line names the command that makes it huge.
#[test]
fn a_command_for_the_manager() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program("hold", Kind::DynamicPie), &systemd.path("/opt/hold"), 0o755);
    let words = ["/usr/bin/tiexec", "--backing=image", "systemd-run", "--wait", "-P", "/opt/hold"];
    let wrong = systemd.run(words);
    wrong.assert_code(0);
    assert!(wrong.out().contains("huge 0\n"), "{wrong}");
    let said = wrong.err();
    let line = said.lines().find(|line| line.starts_with("tiexec: systemd-run: "));
    let (_, fix) = line.and_then(|line| line.split_once("; fix: ")).expect("a fix");
    let right = systemd.run(["sh", "-c", fix]);
    right.assert_code(0);
    assert!(right.out().contains("\nhuge ") && !right.out().contains("huge 0\n"), "{fix}: {right}");
}
