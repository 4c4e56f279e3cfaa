//! `attach --wait-exec` in a unit's `ExecStartPost=` makes Debian's own services huge, through shells and filters. It neither fails
//! a start nor delays it for long.

use support::child::{eventually, soon};
use support::require;
use support::systemd::{NEEDS, Systemd, can_boot, debians};
use support::{Kind, install, program, program_big};

/// The line of the manual and of the guide.
const ATTACH: &str = "ExecStartPost=-+/usr/bin/tiexecctl attach --unit %n --quiet --wait-exec";

/// Makes the unit run the command after its start.
fn attached_at_start(systemd: &Systemd, unit: &str, options: &str) {
    let path = format!("/etc/systemd/system/{unit}.d/tiexec.conf");
    systemd.write_unit(&path, &format!("[Service]\n{ATTACH} {options}\n"));
}

#[test]
fn debians_services() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    for (unit, edges) in &debians() {
        attached_at_start(&systemd, unit, &format!("--edges={edges}"));
        systemd.start(unit);
        let main = systemd.property(unit, "MainPID");
        let note = format!("attach --wait-exec --unit {unit}: process {main} ");
        let notes = systemd.notes();
        assert!(notes.lines().any(|line| line.starts_with(&note)), "{note}: {notes}");
        assert!(systemd.huge(unit) > 0, "{unit}: {notes}\n{}", systemd.log(unit));
        // The command must not attach to itself, although it is in the same cgroup.
        assert!(!notes.contains("tiexecctl build-id"), "{notes}");
        systemd.systemctl(["is-active", unit]).assert_code(0);
        let left = systemd.processes(unit);
        assert!(!left.iter().any(|exe| exe.ends_with("/tiexecctl")), "{unit}: {left:?}");
    }
}

#[test]
fn a_script_that_execs_late() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program("hold", Kind::DynamicPie), &systemd.path("/opt/hold"), 0o755);
    // The program reads until its standard input ends, so nothing closes this pipe.
    let script = "mkfifo /run/pipe; while ! test -e /run/go; do sleep 0.05; done; exec /opt/hold 7 0<>/run/pipe";
    let unit = "late.service";
    systemd.write_unit(
        &format!("/etc/systemd/system/{unit}"),
        &format!("[Service]\nExecStart=/bin/sh -c '{script}'\n{ATTACH} --backing=image\n"),
    );
    systemd.systemctl(["start", "--no-block", unit]).assert_code(0);
    eventually("the command runs", || systemd.property(unit, "ControlPID") != "0");
    assert_eq!(systemd.property(unit, "ActiveState"), "activating");
    std::fs::write(systemd.path("/run/go"), "").expect("a file inside");
    let is_up = soon(|| systemd.property(unit, "ActiveState") == "active");
    assert!(is_up, "{}", systemd.log(unit));
    assert!(systemd.huge(unit) > 0, "{}\n{}", systemd.notes(), systemd.log(unit));
}

#[test]
fn a_script_that_never_execs() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    let unit = "script.service";
    systemd.write_unit(
        &format!("/etc/systemd/system/{unit}"),
        &format!("[Service]\nTimeoutStartSec=15s\nExecStart=/bin/sh -c 'while sleep 1; do :; done'\n{ATTACH}\n"),
    );
    systemd.start(unit);
    let main = systemd.property(unit, "MainPID");
    systemd.systemctl(["is-active", unit]).assert_code(0);
    let notes = systemd.notes();
    let wanted = format!("{unit}: process {main} sh, which has executed no other program");
    assert!(notes.contains(&wanted), "{notes}");
    assert!(!systemd.processes(unit).iter().any(|exe| exe.ends_with("/tiexecctl")));
}

/// Without a process there is nothing to wait for.
#[test]
fn a_service_without_a_process() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    let unit = "done.service";
    systemd.write_unit(
        &format!("/etc/systemd/system/{unit}"),
        &format!("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n{ATTACH}\n"),
    );
    systemd.start(unit);
    assert!(systemd.notes().contains("the main process had ended"), "{}", systemd.notes());
    // A manual call behaves the same: the answer is in the journal, and the exit status is 0.
    systemd.ctl(["attach", "--wait-exec", "999999"]).assert_code(0).assert_silent();
    systemd.ctl(["attach", "--wait-exec", "nonsense"]).assert_code(2);
}

/// systemd may delay a timer by a minute, unless the timer says otherwise.
#[test]
fn a_revert_after_a_time_is_not_delayed() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("hold", Kind::StaticNoPie, 6), &systemd.path("/opt/hold"), 0o755);
    let unit = "[Service]\nExecStart=/bin/sh -c 'mkfifo /run/pipe; exec /opt/hold 0<>/run/pipe'\n";
    systemd.write_unit("/etc/systemd/system/held.service", unit);
    systemd.start("held.service");
    eventually("its program runs", || {
        systemd.processes("held.service").iter().any(|exe| exe == "/opt/hold")
    });
    let list = || {
        let list = ["list-units", "--type=timer", "--all", "--plain", "--no-legend", "run-*"];
        systemd.systemctl(list).out()
    };
    let attach = ["attach", "--backing=image", "--unit=held"];
    systemd.ctl(attach.iter().chain(&["--for=1h"])).assert_code(0);
    let timers = list();
    let timer = timers.split_whitespace().next().expect("a timer");
    assert_eq!(systemd.property(timer, "AccuracyUSec"), "100ms", "{timers}");
    assert!(systemd.huge("held.service") > 0);
    systemd.systemctl(["stop", timer]).assert_code(0);
    systemd.ctl(attach.iter().chain(&["--for=1s"])).assert_code(0);
    eventually("it is reverted", || systemd.huge("held.service") == 0);
}
