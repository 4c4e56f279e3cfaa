//! Services of every kind behave with TiExec's unit beside them as they do without it: how they start, what systemd knows of them, how
//! a crash ends them, and that they stop.

use std::collections::BTreeMap;
use std::time::Duration;

use support::child::eventually;
use support::machine::{Groups, freezer};
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Kind, install, program_big, require};

use crate::enable::{made, start};

/// A service of some kind.
struct Service {
    name: &'static str,
    /// The lines of `[Service]`.
    lines: &'static str,
    /// The unit that starts it, and its lines.
    by: Option<(&'static str, &'static str)>,
    /// Whether its text becomes huge, unless it runs no program of more text than a shell's.
    huge: bool,
}

const fn plain(name: &'static str, lines: &'static str) -> Service {
    Service { name, lines, by: None, huge: true }
}

const SERVICES: [Service; 20] = [
    plain("simple", "ExecStart=/opt/service run"),
    plain("exec", "Type=exec\nExecStart=/opt/service run\nRestart=on-failure\nRestartSec=100ms"),
    plain("late", "ExecStart=/bin/sh -c 'sleep 1; exec /opt/service run'"),
    plain("idle", "Type=idle\nExecStart=/opt/service run"),
    plain("notify", "Type=notify\nTimeoutStartSec=5s\nExecStart=/opt/service notify"),
    plain(
        "watchdog",
        "Type=notify\nTimeoutStartSec=5s\nWatchdogSec=20s\nRestart=on-failure\nRestartSec=100ms\nExecStart=/opt/service notify",
    ),
    plain("forking", "Type=forking\nTimeoutStartSec=4s\nExecStart=/opt/service forks"),
    plain(
        "forking_again",
        "Type=forking\nTimeoutStartSec=4s\nRestart=on-failure\nRestartSec=100ms\nExecStart=/opt/service forks",
    ),
    plain(
        "pid_file",
        "Type=forking\nTimeoutStartSec=4s\nPIDFile=/run/pid_file\nExecStart=/opt/service forks /run/pid_file",
    ),
    Service {
        name: "shell",
        lines: "TimeoutStartSec=1s\nExecStart=/bin/sh -c 'while :; do read line </run/never; done'",
        by: None,
        huge: false,
    },
    Service {
        name: "once",
        lines: "Type=oneshot\nTimeoutStartSec=5s\nRemainAfterExit=yes\nExecStart=/opt/service once",
        by: None,
        huge: false,
    },
    Service {
        name: "by_socket",
        lines: "ExecStart=/opt/service run",
        by: Some(("by_socket.socket", "[Socket]\nListenDatagram=/run/by_socket\n")),
        huge: true,
    },
    Service {
        name: "by_path",
        lines: "ExecStart=/opt/service run",
        by: Some(("by_path.path", "[Path]\nPathChanged=/run/by_path\n")),
        huge: true,
    },
    plain("dynamic_user", "DynamicUser=yes\nExecStart=/opt/service run"),
    plain("private_users", "PrivateUsers=yes\nExecStart=/opt/service run"),
    plain("protect_proc", "User=nobody\nProtectProc=invisible\nExecStart=/opt/service run"),
    plain("delegate", "Delegate=yes\nExecStart=/opt/service run"),
    plain("memory", "MemoryMax=16M\nExecStart=/opt/service run"),
    plain("tasks", "TasksMax=1\nExecStart=/opt/service run"),
    plain(
        "filtered",
        "User=nobody\nSystemCallFilter=@system-service\nSystemCallFilter=~@resources\nNoExecPaths=/\n\
         ExecPaths=/opt/service /usr/lib /lib64\nExecStart=/opt/service run",
    ),
];

/// The properties that an administrator sees and that do not depend on times, and the main process.
fn look(systemd: &Systemd, unit: &str) -> (Vec<String>, String) {
    let names = "ActiveState,SubState,Result,NRestarts,ExecMainCode,ExecMainStatus,MainPID";
    let shown = systemd.systemctl(["show", "--property", names, "--", unit]).assert_code(0).out();
    let (main, mut facts): (Vec<_>, Vec<_>) =
        shown.lines().map(str::to_owned).partition(|line| line.starts_with("MainPID="));
    let main = main[0].trim_start_matches("MainPID=").to_owned();
    let exe = std::fs::read_link(systemd.path(&format!("/proc/{main}/exe"))).ok();
    facts.push(format!("runs {exe:?}"));
    (facts, main)
}

fn facts(systemd: &Systemd, unit: &str) -> Vec<String> {
    look(systemd, unit).0
}

/// Starts the service as its kind says, crashes it, and stops it. Returns what systemd shows at each step.
fn life(systemd: &Systemd, service: &Service, ours: Option<&str>) -> Vec<Vec<String>> {
    let unit = format!("{}.service", service.name);
    let unit = unit.as_str();
    let mut seen = Vec::new();
    let is_active = || systemd.property(unit, "ActiveState") == "active";
    match service.by {
        None => systemd.start(unit),
        Some((by, _)) => {
            systemd.start(by);
            let at = systemd.path(&format!("/run/{}", service.name));
            match by.ends_with(".socket") {
                true => {
                    let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
                    socket.send_to(b"x", at).expect("a datagram");
                }
                false => std::fs::write(at, "x").expect("a file"),
            }
            eventually(&format!("{unit} is started"), is_active);
        }
    }
    // A unit of Type=simple is active before systemd's child has exec'ed the program.
    eventually(&format!("{unit} runs its program"), || {
        facts(systemd, unit).last().is_some_and(|exe| match service.huge {
            true => exe.contains("/opt/service"),
            false => !exe.contains("/systemd/"),
        })
    });
    let attached = || {
        if let Some(ours) = ours.filter(|_| service.huge) {
            systemd.eventually_done(unit, ours);
            let seen = (systemd.huge(unit), systemd.property(ours, "Result"));
            assert!(seen.0 > 0 && seen.1 == "success", "{unit}: {seen:?} {}", systemd.notes());
        }
    };
    attached();
    seen.push(facts(systemd, unit));
    let (_, main) = look(systemd, unit);
    // What has not been taken from the socket starts the service again after a crash.
    if main != "0" && service.name != "by_socket" {
        systemd.run(["kill", "-SEGV", &main]).assert_code(0);
        let again = service.lines.contains("Restart=");
        eventually(&format!("{unit} is done with its crash"), || {
            let (facts, now) = look(systemd, unit);
            let ends = if again { &["active"][..] } else { &["failed", "inactive"] };
            let has_ended = ends.iter().any(|end| facts.contains(&format!("ActiveState={end}")));
            now != main && has_ended && (now != "0") == again
        });
        if again {
            attached();
        }
        seen.push(facts(systemd, unit));
    }
    let by = service.by.map(|(by, _)| by);
    systemd.systemctl(["stop"].into_iter().chain(by).chain([unit])).assert_code(0);
    seen.push(facts(systemd, unit));
    systemd.systemctl(["reset-failed", unit]);
    systemd.assert_nothing_failed();
    seen
}

#[test]
fn each_behaves_as_without_tiexec() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    let program = systemd.path("/opt/service");
    install(&program_big("service", Kind::StaticNoPie, 6), &program, 0o755);
    // Nobody writes into this FIFO, so a shell that reads from it waits without a child.
    systemd.run(["mkfifo", "/run/never"]).assert_code(0);
    // The systemd of these tests has no controllers of cgroups.
    support::skip_for_want_of_a_machine(
        "TasksMax= and MemoryMax= are set, but nothing enforces them here",
    );
    for service in &SERVICES {
        let unit = format!("[Service]\n{}\n", service.lines);
        let path = systemd.path(&format!("/etc/systemd/system/{}.service", service.name));
        std::fs::write(path, unit).expect("a unit");
        if let Some((by, lines)) = service.by {
            std::fs::write(systemd.path(&format!("/etc/systemd/system/{by}")), lines)
                .expect("a unit");
        }
    }
    // systemd may unload a unit that has stopped, and forgets its main process, unless another unit names it.
    let units = SERVICES.map(|service| format!("{}.service", service.name)).join(" ");
    let keep = systemd.path("/etc/systemd/system/keep.target");
    std::fs::write(keep, format!("[Unit]\nAfter={units}\n")).expect("a unit");
    systemd.systemctl(["daemon-reload"]).assert_code(0);
    systemd.start("keep.target");
    let plain: BTreeMap<_, _> =
        SERVICES.iter().map(|service| (service.name, life(&systemd, service, None))).collect();
    for service in &SERVICES {
        let ours = format!("tiexec@{}.service", service.name);
        // `tiexecctl enable` refuses a oneshot. systemd itself does not.
        let enabled = match service.name {
            "once" => systemd.systemctl(["enable", &ours]),
            name => systemd.ctl(["enable", name, "--", "--backing=image"]),
        };
        enabled.assert_code(0);
    }
    let mut differ = Vec::new();
    for service in &SERVICES {
        let ours = format!("tiexec@{}.service", service.name);
        let enabled = life(&systemd, service, Some(&ours));
        assert_eq!(systemd.property(&ours, "ActiveState"), "inactive", "{ours}");
        if enabled != plain[service.name] {
            differ.push(format!("{}\n {:?}\n {enabled:?}", service.name, plain[service.name]));
        }
    }
    assert!(differ.is_empty(), "plain and enabled differ: {}", differ.join("\n"));
    systemd.ctl(["disable", "--all"]).assert_code(0);
    assert_eq!(made(&systemd), "");
}

/// polkit is Debian's service of `Type=dbus`.
#[test]
fn one_that_takes_a_name_of_dbus() {
    require!(can_boot() && Systemd::has("polkit.service"), "{NEEDS}, polkit");
    let systemd = Systemd::boot();
    let unit = "polkit.service";
    let seen = |ours: Option<&str>| {
        systemd.start(unit);
        if let Some(ours) = ours {
            systemd.eventually_done(unit, ours);
            assert_eq!(systemd.property(ours, "Result"), "success");
        }
        let started = facts(&systemd, unit);
        systemd.systemctl(["stop", unit]).assert_code(0);
        (started, facts(&systemd, unit))
    };
    let plain = seen(None);
    systemd.ctl(["enable", "polkit"]).assert_code(0);
    assert_eq!(seen(Some("tiexec@polkit.service")), plain);
}

/// Each service of the storm reaches its own limit of starts, and no unit of TiExec's fails.
#[test]
fn storms_of_restarts() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("service", Kind::StaticNoPie, 6), &systemd.path("/opt/service"), 0o755);
    let always = "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=20\n[Service]\nRestart=always\nRestartSec=10ms\n";
    for (name, command) in [
        ("false", "/bin/false"),
        ("killed", "/bin/sh -c 'kill -9 $$$$'"),
        ("ended", "/opt/service once"),
    ] {
        let path = format!("/etc/systemd/system/{name}.service");
        systemd.write_unit(&path, &format!("{always}ExecStart={command}\n"));
        let storm = || {
            systemd.systemctl(["start", name]).assert_code(0);
            eventually("the storm is over", || systemd.property(name, "ActiveState") == "failed");
            facts(&systemd, name)
        };
        let plain = storm();
        systemd.systemctl(["reset-failed", name]).assert_code(0);
        systemd.ctl(["enable", name]).assert_code(0);
        assert_eq!(storm(), plain);
        eventually("the unit beside it is done", || {
            systemd.property(&format!("tiexec@{name}.service"), "ActiveState") == "inactive"
        });
        let failed = systemd.systemctl(["list-units", "--failed", "--plain", "--no-legend"]).out();
        assert!(failed.starts_with(name) && failed.lines().count() == 1, "{failed}");
        systemd.systemctl(["reset-failed", name]).assert_code(0);
    }
    // Restarts by hand, the last of which counts.
    systemd.write_unit(
        "/etc/systemd/system/steady.service",
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/opt/service run\n",
    );
    systemd.ctl(["enable", "steady", "--", "--backing=image"]).assert_code(0);
    for _ in 0..20 {
        systemd.systemctl(["restart", "steady"]).assert_code(0);
    }
    eventually("the last start is huge", || systemd.huge("steady") > 0);
    systemd.assert_nothing_failed();
}

/// The processes of TiExec's unit need a while to end, as on a busy machine.
#[test]
fn a_slow_stop() {
    require!(can_boot(), "{NEEDS}");
    let mut cgroups = Groups::new();
    // A frozen process of cgroup v1 ends when it is thawed, also after SIGKILL.
    let found = freezer(&mut cgroups, false);
    require!(found.is_some(), "no freezer of cgroup v1");
    let (group, [switch, shown], [freeze, thaw, frozen]) = found.expect("just looked");
    let systemd = Systemd::boot();
    systemd.run(["mkfifo", "/run/never"]).assert_code(0);
    let (unit, ours) = ("shell.service", "tiexec@shell.service");
    let lines = "[Service]\nExecStart=/bin/sh -c 'while :; do read line </run/never; done'\n";
    systemd.write_unit("/etc/systemd/system/shell.service", lines);
    systemd.ctl(["enable", unit]).assert_code(0);
    // TiExec waits for another program than the shell.
    systemd.start(unit);
    eventually("it waits", || systemd.property(ours, "MainPID") != "0");
    let name = systemd.property(ours, "ControlGroup");
    let list = systemd.path(&format!("/sys/fs/cgroup/systemd{name}/cgroup.procs"));
    let processes = || std::fs::read_to_string(&list).unwrap_or_default();
    for pid in processes().lines() {
        let moved = std::fs::write(group.join("cgroup.procs"), pid);
        // A process that TiExec has started for a moment may have ended since.
        let has_ended = |error: &std::io::Error| error.raw_os_error() == Some(libc::ESRCH);
        assert!(moved.as_ref().err().is_none_or(has_ended), "{moved:?}");
    }
    std::fs::write(&switch, freeze).expect("it freezes");
    eventually("it is frozen", || {
        std::fs::read_to_string(&shown).is_ok_and(|now| now.contains(frozen))
    });
    systemd.systemctl(["stop", "--no-block", unit]).assert_code(0);
    eventually("it is to stop", || systemd.property(ours, "ActiveState") == "deactivating");
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&switch, thaw).expect("it thaws");
    eventually("the service has stopped", || systemd.property(unit, "ActiveState") == "inactive");
    assert_eq!(systemd.property(ours, "Result"), "success");
    eventually("no process is left", || processes().is_empty());
    systemd.assert_nothing_failed();
}

/// A service that somebody has reverted stays reverted until its next start, although other units want it.
#[test]
fn one_attach_for_each_start() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("service", Kind::StaticNoPie, 6), &systemd.path("/opt/service"), 0o755);
    let (unit, ours) = ("steady.service", "tiexec@steady.service");
    systemd.write_unit(
        "/etc/systemd/system/steady.service",
        "[Service]\nExecStart=/opt/service run\n",
    );
    let wants = "[Unit]\nWants=steady.service\n[Service]\nType=oneshot\nExecStart=/bin/true\n";
    systemd.write_unit("/etc/systemd/system/wants.service", wants);
    systemd.ctl(["enable", unit, "--", "--backing=image"]).assert_code(0);
    start(&systemd, unit, ours);
    assert!(systemd.huge(unit) > 0, "{}", systemd.notes());
    systemd.ctl(["revert", "--unit", unit]).assert_code(0);
    let runs = || systemd.property(ours, "ExecMainStartTimestampMonotonic");
    let first = runs();
    systemd.systemctl(["start", unit, "wants.service"]).assert_code(0);
    eventually("systemd has started the unit again", || {
        runs() != first && systemd.property(ours, "ActiveState") == "inactive"
    });
    assert_eq!(systemd.huge(unit), 0, "{}", systemd.notes());
    // A new manager knows the times, too.
    systemd.systemctl(["daemon-reexec"]).assert_code(0);
    systemd.systemctl(["start", ours]).assert_code(0);
    eventually("it has ended", || systemd.property(ours, "ActiveState") == "inactive");
    assert_eq!(systemd.huge(unit), 0, "{}", systemd.notes());
    systemd.systemctl(["restart", unit]).assert_code(0);
    eventually("the next start is huge", || systemd.huge(unit) > 0);
}

#[test]
fn masks_and_presets() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("service", Kind::StaticNoPie, 6), &systemd.path("/opt/service"), 0o755);
    let (unit, ours) = ("steady.service", "tiexec@steady.service");
    let text = "[Service]\nExecStart=/opt/service run\n[Install]\nWantedBy=multi-user.target\n";
    systemd.write_unit("/etc/systemd/system/steady.service", text);
    systemd.ctl(["enable", unit, "--", "--backing=image"]).assert_code(0);
    systemd.systemctl(["mask", ours]).assert_code(0);
    systemd.start(unit);
    systemd.systemctl(["unmask", ours]).assert_code(0);
    for command in ["disable", "preset", "reenable"] {
        systemd.systemctl([command, unit]).assert_code(0);
        assert!(systemd.property(unit, "Wants").contains(ours), "{command}");
    }
    systemd.systemctl(["stop", unit]).assert_code(0);
    start(&systemd, unit, ours);
    assert!(systemd.huge(unit) > 0, "{}", systemd.notes());
    // The template works with systemctl alone.
    systemd.systemctl(["disable", ours]).assert_code(0);
    assert!(!systemd.property(unit, "Wants").contains(ours));
    systemd.ctl(["revert", "--unit", unit]).assert_code(0);
    systemd.systemctl(["restart", unit]).assert_code(0);
    assert_eq!(systemd.huge(unit), 0);
    systemd.systemctl(["enable", "--now", ours]).assert_code(0);
    eventually("the running service is huge", || systemd.huge(unit) > 0);
}
