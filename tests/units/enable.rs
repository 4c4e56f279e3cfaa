//! `tiexecctl enable` makes systemd attach to services after each start, by units of TiExec's beside them, and `disable` undoes
//! it. No file of a service is changed, and edited files are kept.

use support::attaching::json;
use support::child::eventually;
use support::systemd::{NEEDS, Systemd, can_boot, debians};
use support::{Kind, install, program_big, require};

const UNITS: &str = "/etc/systemd/system";

/// The unit of TiExec's beside a service.
fn beside(unit: &str) -> String {
    match unit.strip_suffix("@.service") {
        Some(template) => format!("tiexec-{template}@.service"),
        None => format!("tiexec@{unit}"),
    }
}

/// The link by which the service wants that unit.
fn link(unit: &str) -> String {
    format!("{UNITS}/{unit}.wants/{}", beside(unit))
}

/// The file with the options of a service that is no template.
fn options(unit: &str) -> String {
    format!("{UNITS}/{}.d/50-tiexec.conf", beside(unit))
}

fn is_there(systemd: &Systemd, path: &str) -> bool {
    systemd.path(path).symlink_metadata().is_ok()
}

/// Returns all files and directories of `enable`. At the boot there is none.
pub(crate) fn made(systemd: &Systemd) -> String {
    let script = "cd /etc/systemd/system && find . /run/systemd/system | grep -e tiexec -e service.wants | sort";
    systemd.run(["sh", "-c", script]).out()
}

/// Starts a service and waits for the unit beside it.
pub(crate) fn start(systemd: &Systemd, service: &str, ours: &str) {
    systemd.start(service);
    systemd.eventually_done(service, ours);
}

/// Returns the template of an instance, or else the unit.
fn to_enable(unit: &str) -> String {
    match unit.split_once('@') {
        Some((template, _)) => format!("{template}@.service"),
        None => unit.to_owned(),
    }
}

/// Waits until the helpers that a start leaves behind have ended, such as the table check of Debian's mariadb.
fn settled(systemd: &Systemd, unit: &str) {
    eventually("only the service's own program runs", || {
        let running = systemd.processes(unit);
        !running.is_empty() && running.iter().all(|exe| *exe == running[0])
    });
}

#[test]
fn debians_services_are_huge_after_a_restart() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    for (unit, edges) in &debians() {
        let (option, name) = (format!("--edges={edges}"), to_enable(unit));
        // The backing is an image, because a revert can remove an image.
        let enable = ["enable", &name, "--", "--backing=image", &option];
        systemd.ctl(enable).assert_code(0).assert_silent();
        let ours = match unit.split_once('@') {
            Some((template, instance)) => format!("tiexec-{template}@{instance}"),
            None => beside(unit),
        };
        start(&systemd, unit, &ours);
        assert!(systemd.huge(unit) > 0, "{unit}: {}\n{}", systemd.notes(), systemd.log(unit));
        let main_line = format!("process {} ", systemd.property(unit, "MainPID"));
        // The journal shows the result among the lines of the service, and of the unit beside it.
        assert!(systemd.log(unit).contains(&main_line), "{unit}: {}", systemd.log(unit));
        let main = systemd.property(unit, "MainPID");
        settled(&systemd, unit);
        systemd.ctl(["disable", "--now", &name]).assert_code(0).assert_silent();
        assert_eq!(systemd.property(unit, "MainPID"), main, "{unit} was restarted");
        assert_eq!(systemd.huge(unit), 0, "{unit}");
        assert_eq!(made(&systemd), "", "{name}");
        assert!(!systemd.property(unit, "Wants").contains("tiexec"));
    }
}

#[test]
fn now_attaches_and_restarts_nothing() {
    require!(can_boot() && Systemd::has("mariadb.service"), "{NEEDS}, mariadb-server");
    let systemd = Systemd::boot();
    let unit = "mariadb.service";
    systemd.start(unit);
    settled(&systemd, unit);
    let main = systemd.property(unit, "MainPID");
    systemd.ctl(["enable", "--now", "--runtime", "--warm", "mariadb"]).assert_code(0);
    assert!(systemd.huge(unit) > 0);
    assert_eq!(systemd.property(unit, "MainPID"), main);
    let warm = "tiexec_warm@mariadb.service";
    let text = std::fs::read_to_string(systemd.path(&format!("/run/systemd/system/{warm}")));
    let text = text.expect("the unit that warms");
    assert!(text.contains("warm --quiet --deps /usr/sbin/mariadbd\n"), "{text}");
    // The service's own start waits for the warming, and for nothing else.
    systemd.systemctl(["restart", unit]).assert_code(0);
    let exited = systemd.property(warm, "ExecMainExitTimestampMonotonic");
    let began = systemd.property(unit, "ExecMainStartTimestampMonotonic");
    let micros = |text: &str| text.parse::<u64>().expect("microseconds");
    assert!(0 < micros(&exited) && micros(&exited) <= micros(&began), "{exited} {began}");
    systemd.eventually_done(unit, "tiexec@mariadb.service");
    assert!(systemd.huge(unit) > 0, "{}", systemd.log(unit));
    systemd.ctl(["disable", unit]).assert_code(0).assert_silent();
    assert_eq!(made(&systemd), "");
    assert!(systemd.huge(unit) > 0, "without --now the running service is left as it is");
}

/// TiExec's unit waits for the program that a script executes. Such a wait must not outlast a `disable --now`.
#[test]
fn nothing_is_attached_after_disable_now() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("hold", Kind::StaticNoPie, 6), &systemd.path("/opt/hold"), 0o755);
    systemd.run(["mkfifo", "/run/line"]).assert_code(0);
    // The script stays, so the wait lasts for a minute.
    let command = "/bin/sh -c '/opt/hold 7 0<>/run/line; exit 0'";
    let text = format!("[Service]\nExecStart={command}\n");
    for name in ["script", "script@"] {
        systemd.write_unit(&format!("{UNITS}/{name}.service"), &text);
    }
    for (unit, enabled, ours) in [
        ("script.service", "script.service", "tiexec@script.service"),
        ("script@a.service", "script@.service", "tiexec-script@a.service"),
    ] {
        systemd.ctl(["enable", enabled, "--", "--backing=image"]).assert_code(0);
        systemd.start(unit);
        let state = || systemd.property(ours, "ActiveState");
        eventually("the unit beside it waits", || state() == "active");
        systemd.ctl(["disable", "--now", enabled]).assert_code(0);
        assert_eq!(state(), "inactive", "{}", systemd.log(ours));
        assert_eq!(systemd.huge(unit), 0, "{unit}");
        assert_ne!(systemd.property(ours, "Result"), "timeout", "{}", systemd.log(ours));
    }
    systemd.assert_nothing_failed();
}

#[test]
fn a_service_of_which_nothing_can_be_huge_is_told() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    // The text of one is longer than a huge page. It begins behind the start of one, so it fills none.
    install(&program_big("hold", Kind::StaticNoPie, 2), &systemd.path("/opt/hold"), 0o755);
    systemd.run(["mkfifo", "/run/line"]).assert_code(0);
    let holds = "/bin/sh -c 'exec /opt/hold 7 0<>/run/line'";
    for (unit, command) in [("sleeps", "/bin/sleep inf"), ("holds", holds)] {
        let text = format!("[Service]\nExecStart={command}\n");
        systemd.write_unit(&format!("{UNITS}/{unit}.service"), &text);
        systemd.start(&format!("{unit}.service"));
        settled(&systemd, &format!("{unit}.service"));
    }
    let none = "none of the text of sleeps.service can be huge: ";
    let done = systemd.ctl(["enable", "sleeps"]);
    done.assert_code(0);
    assert!(done.err().contains(none), "{done}");
    assert!(done.err().contains("; fix: tiexecctl disable sleeps.service\n"), "{done}");
    // Other edges help the other one.
    let done = systemd.ctl(["enable", "--json", "holds"]);
    done.assert_code(0);
    let fix = "tiexecctl enable holds.service -- --edges=aggressive";
    assert!(done.err().contains(&format!("; fix: {fix}\n")), "{done}");
    let wanted = serde_json::json!({
        "schema": 2, "kind": "enable", "unit": "holds.service", "link": link("holds.service"),
        "changed": true, "nothing_huge": true, "fix": fix, "host_splits": false,
    });
    assert_eq!(json(&done), wanted, "{done}");
    systemd.run(["sh", "-c", fix]).assert_code(0).assert_silent();
    // The fix keeps what the command asked for.
    systemd.ctl(["disable", "holds"]).assert_code(0);
    let kept = ["enable", "--runtime", "--warm", "holds", "--", "--edges", "conservative"];
    let kept = systemd.ctl(kept).assert_code(0).err();
    let fix_of_all = "tiexecctl enable --runtime --warm holds.service -- --edges=aggressive";
    assert!(kept.contains(&format!("; fix: {fix_of_all}\n")), "{kept}");
    // Nobody knows the text of a service that does not run.
    systemd.systemctl(["stop", "sleeps"]).assert_code(0);
    systemd.ctl(["enable", "sleeps"]).assert_code(0).assert_silent();
}

/// A program that hangs in the unit that warms cannot keep the service from starting.
#[test]
fn a_warming_that_fails_or_hangs() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    systemd.ctl(["enable", "--warm", "nginx"]).assert_code(0);
    let warm = "tiexec_warm@nginx.service";
    let drop_in = format!("{UNITS}/{warm}.d/test.conf");
    for command in ["-/bin/false", "-/nonexistent", "-/bin/sh -c 'kill -9 $$$$'"] {
        systemd.write_unit(&drop_in, &format!("[Service]\nExecStart=\nExecStart={command}\n"));
        systemd.systemctl(["restart", "nginx"]).assert_code(0);
        systemd.assert_nothing_failed();
    }
    let hangs =
        "[Unit]\nJobRunningTimeoutSec=1s\n[Service]\nExecStart=\nExecStart=-/bin/sleep inf\n";
    systemd.write_unit(&drop_in, hangs);
    systemd.systemctl(["restart", "nginx"]).assert_code(0);
    assert_eq!(systemd.property("nginx", "ActiveState"), "active");
    systemd.systemctl(["stop", "nginx", warm]).assert_code(0);
    let text = systemd.path(&format!("{UNITS}/{warm}"));
    let text = std::fs::read_to_string(text).expect("the unit that warms");
    assert!(text.contains("\nJobRunningTimeoutSec=15s\n"), "{text}");
}

#[test]
fn an_edited_file_is_kept() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    let path = systemd.path(&options("nginx.service"));
    // A template that the administrator has masked stays masked.
    let template = format!("{UNITS}/tiexec@.service");
    systemd.run(["ln", "-s", "/dev/null", &template]).assert_code(0);
    let refused = systemd.ctl(["enable", "nginx"]);
    refused.assert_code(1);
    assert!(refused.err().contains(&format!("cannot write {template}: ")), "{refused}");
    assert!(!is_there(&systemd, &link("nginx.service")) && is_there(&systemd, &template));
    systemd.run(["rm", &template]).assert_code(0);
    systemd.ctl(["enable", "nginx"]).assert_code(0);
    assert!(!path.exists(), "without options there is a link only");
    // An unedited file can be rewritten with other options.
    systemd.ctl(["enable", "nginx", "--", "--edges=aggressive"]).assert_code(0);
    systemd.ctl(["enable", "nginx", "--", "--edges=pad"]).assert_code(0).assert_silent();
    let text = std::fs::read_to_string(&path).expect("the options");
    assert!(text.ends_with("--wait-exec --edges=pad\n"), "{text}");
    let again = systemd.ctl(["enable", "nginx", "--", "--edges=pad"]);
    assert!(again.out().contains("nginx.service: is there already: "), "{again}");
    let edited = text.replace("--edges=pad", "--edges=aggressive");
    std::fs::write(&path, &edited).expect("the options");
    for command in ["enable", "disable"] {
        let done = systemd.ctl([command, "nginx"]);
        done.assert_code(1);
        let why = format!("{}: it was edited by hand; fix: ", options("nginx.service"));
        assert!(done.err().contains(&why), "{done}");
        assert_eq!(std::fs::read_to_string(&path).expect("the options"), edited);
        assert_eq!(is_there(&systemd, &link("nginx.service")), command == "enable");
    }
    // The fix that the message names works.
    let refused = systemd.ctl(["enable", "nginx"]).err();
    let (_, remove) = refused.split_once("fix: remove it yourself: ").expect("the fix");
    systemd.run(["sh", "-c", remove.trim_end()]).assert_code(0);
    systemd.ctl(["enable", "nginx", "--", "--edges=pad"]).assert_code(0);
    // Another file in the directory stays too.
    std::fs::write(path.with_file_name("own.conf"), "[Service]\n").expect("a drop-in");
    systemd.ctl(["disable", "nginx"]).assert_code(0);
    assert!(!path.exists() && path.with_file_name("own.conf").exists());
}

/// The drop-in that earlier versions wrote, whose first line has a hash of the rest.
const EARLIER: &str = "# Made by `tiexecctl enable`; an edited file is kept. Hash of the rest: 353c4edc67b66841ba7dae23bb225603
[Service]
ExecStartPre=-+/usr/bin/timeout 10 /usr/bin/tiexecctl warm --quiet --deps /usr/sbin/nginx
ExecStartPost=-+/usr/bin/tiexecctl attach --unit %n --quiet --wait-exec --edges=aggressive \"--only=a b\"
";

fn earlier(systemd: &Systemd, unit: &str) -> String {
    let path = format!("{UNITS}/{unit}.d/50-tiexec.conf");
    systemd.write_unit(&path, EARLIER);
    path
}

#[test]
fn drop_ins_of_earlier_versions_are_replaced() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    let (nginx, edited) = ("nginx.service", "edited.service");
    let templates = "tiexec-late@.service";
    let sleeps = "[Service]\nExecStart=/bin/sleep inf\n";
    systemd.write_unit(&format!("{UNITS}/{edited}"), sleeps);
    let path = earlier(&systemd, nginx);
    let of_template = earlier(&systemd, "late@.service");
    let kept = format!("{UNITS}/{edited}.d/50-tiexec.conf");
    systemd.write_unit(&kept, &(EARLIER.to_owned() + "# own\n"));
    let done = systemd.ctl(["enable", "--replace-drop-ins"]);
    done.assert_code(3);
    assert!(
        done.err().contains(&format!("cannot replace {kept}: it was edited by hand")),
        "{done}"
    );
    assert!(is_there(&systemd, &kept));
    for gone in [&path, &of_template] {
        assert!(!is_there(&systemd, gone), "{gone}");
    }
    for (file, words) in [
        (options(nginx), "--wait-exec --edges=aggressive \"--only=a b\"\n"),
        (format!("{UNITS}/{templates}"), "--wait-exec --edges=aggressive \"--only=a b\"\n"),
        (format!("{UNITS}/tiexec_warm@{nginx}"), "warm --quiet --deps /usr/sbin/nginx\n"),
    ] {
        let text = std::fs::read_to_string(systemd.path(&file)).expect("a file");
        assert!(text.contains(words), "{file}: {text}");
    }
    assert!(is_there(&systemd, &link(nginx)) && is_there(&systemd, &link("late@.service")));
    let verify = ["systemd-analyze", "verify", "--man=no"];
    for unit in ["tiexec@nginx.service", "tiexec_warm@nginx.service", "tiexec-late@x.service"] {
        let verified = systemd.run(verify.iter().chain(&[unit]));
        assert!(!verified.err().contains("tiexec"), "{verified}");
    }
    // A second time, only the edited one is named.
    let again = systemd.ctl(["enable", "--replace-drop-ins"]);
    assert_eq!(again.assert_code(1).out(), "");
    // `enable` takes over, too.
    let path = earlier(&systemd, nginx);
    systemd.ctl(["enable", "nginx"]).assert_code(0).assert_silent();
    assert!(!is_there(&systemd, &path) && !is_there(&systemd, &options(nginx)));
    let refused = systemd.ctl(["enable", edited]);
    assert!(refused.err().contains(&format!("{kept}: it was edited by hand")), "{refused}");
    assert!(is_there(&systemd, &kept) && !is_there(&systemd, &link(edited)));
}

#[test]
fn all_are_disabled_but_the_edited() {
    let units = ["nginx.service", "redis-server.service", "mariadb.service"];
    require!(can_boot() && units.iter().all(|unit| Systemd::has(unit)), "{NEEDS}, {units:?}");
    let systemd = Systemd::boot();
    systemd.ctl(["enable", units[0], units[1], "--", "--edges=pad"]).assert_code(0);
    systemd.ctl(["enable", "--runtime", units[2]]).assert_code(0);
    let edited = systemd.path(&options(units[1]));
    let text = std::fs::read_to_string(&edited).expect("the options") + "# own\n";
    std::fs::write(&edited, &text).expect("the options");
    let runtime = "/run/systemd/system/mariadb.service.wants/tiexec@mariadb.service";
    let done = systemd.ctl(["disable", "--all", "--dry-run"]);
    let wanted = [
        format!("{}: would remove {runtime}\n", units[2]),
        format!("{}: would remove {}\n", units[0], link(units[0])),
        format!("{}: would remove {}\n", units[0], options(units[0])),
        format!("{}: would remove {}\n", units[1], link(units[1])),
    ];
    assert_eq!(done.out(), wanted.concat(), "{done}");
    done.assert_code(3);
    assert!(is_there(&systemd, &link(units[0])) && is_there(&systemd, runtime));
    let done = systemd.ctl(["disable", "--all"]);
    done.assert_code(3);
    assert!(done.err().contains("it was edited by hand"), "{done}");
    let left = format!("./{0}.d\n./{0}.d/50-tiexec.conf\n", beside(units[1]));
    assert_eq!(made(&systemd), left);
    assert_eq!(std::fs::read_to_string(&edited).expect("the options"), text);
    assert!(!systemd.property(units[0], "Wants").contains("tiexec"));
}

/// Boots systemd with a service of the test's own.
fn with_sleeps() -> Systemd {
    let systemd = Systemd::boot();
    let text = "[Service]\nExecStart=/bin/sleep inf\n";
    systemd.write_unit(&format!("{UNITS}/sleeps.service"), text);
    systemd
}

#[test]
fn until_the_next_boot_and_for_good() {
    require!(can_boot(), "{NEEDS}");
    let systemd = with_sleeps();
    let ours = beside("sleeps.service");
    let has = |word: &str| systemd.property(&ours, "ExecStart").contains(word);
    let runtime = ["enable", "--runtime", "sleeps", "--", "--edges=pad"];
    systemd.ctl(runtime).assert_code(0).assert_silent();
    assert!(has("--edges=pad"));
    // A lasting enable replaces one until the next boot, also if it has no options.
    systemd.ctl(["enable", "sleeps"]).assert_code(0).assert_silent();
    assert!(!has("--edges"), "{}", made(&systemd));
    assert!(!made(&systemd).contains("/run/systemd/system/sleeps"), "{}", made(&systemd));
    let before = made(&systemd);
    let refused = systemd.ctl(runtime);
    refused.assert_code(1);
    assert!(refused.err().contains("; fix: leave out --runtime, or first: "), "{refused}");
    let there = systemd.ctl(["enable", "--runtime", "sleeps"]);
    there.assert_code(0).assert_silent();
    let line = format!("sleeps.service: is there already: {}", link("sleeps.service"));
    assert!(there.out().starts_with(&line), "{there}");
    assert_eq!(made(&systemd), before);
    systemd.ctl(["disable", "sleeps"]).assert_code(0).assert_silent();
    assert_eq!(made(&systemd), "");
}

#[test]
fn all_are_disabled_after_systemctl_has_removed_the_links() {
    require!(can_boot(), "{NEEDS}");
    let systemd = with_sleeps();
    let text = "[Service]\nExecStart=/bin/sleep inf\n";
    systemd.write_unit(&format!("{UNITS}/late@.service"), text);
    systemd.write_unit(&format!("{UNITS}/other.service"), text);
    let enable = ["enable", "--warm", "sleeps", "late@", "--", "--edges=pad"];
    systemd.ctl(enable).assert_code(0).assert_silent();
    systemd.ctl(["enable", "other", "--", "--edges=pad"]).assert_code(0).assert_silent();
    let units = [
        "tiexec@sleeps",
        "tiexec_warm@sleeps",
        "tiexec-late@",
        "tiexec_warm-late@",
        "tiexec@other",
    ];
    let units = units.map(|unit| format!("{unit}.service"));
    systemd.systemctl(["disable".to_owned()].iter().chain(&units)).assert_code(0);
    assert!(!is_there(&systemd, &link("sleeps.service")));
    assert!(is_there(&systemd, &options("sleeps.service")));
    // An administrator's own unit may have such a name.
    systemd.write_unit(&format!("{UNITS}/tiexec-own@.service"), text);
    systemd.ctl(["disable", "--all"]).assert_code(0).assert_silent();
    assert_eq!(made(&systemd), "./tiexec-own@.service\n");
}

#[test]
fn an_enable_that_fails_half_way_says_what_holds() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = with_sleeps();
    // The drop-in of an earlier version cannot be removed. The new units hold, and systemd knows them.
    let path = earlier(&systemd, "nginx.service");
    let bind = format!(
        "cd {UNITS} && mount --bind nginx.service.d nginx.service.d && mount -o remount,ro,bind nginx.service.d"
    );
    systemd.run(["sh", "-c", &bind]).assert_code(0);
    let done = systemd.ctl(["enable", "nginx"]);
    done.assert_code(1);
    assert!(done.err().contains(&format!("cannot remove {path}: ")), "{done}");
    assert!(systemd.property("nginx", "Wants").contains("tiexec@nginx.service"), "{done}");
    // systemd refuses to reload while /run is full (verify_run_space).
    let fill = "mount -o remount,size=$(($(df --output=used -k /run | tail -1) + 4096))k /run";
    systemd.run(["sh", "-c", fill]).assert_code(0);
    let done = systemd.ctl(["enable", "sleeps"]);
    done.assert_code(1);
    assert!(done.err().contains("cannot reload the units of sleeps: "), "{done}");
    assert!(
        done.err().contains("the files are changed, and systemd reads them at its next reload")
    );
    assert!(is_there(&systemd, &link("sleeps.service")));
    systemd.run(["mount", "-o", "remount,size=64m", "/run"]).assert_code(0);
    let fix = done.err().split_once("fix: ").expect("a fix").1.trim().to_owned();
    systemd.run(["sh", "-c", &fix]).assert_code(0);
    assert!(systemd.property("sleeps", "Wants").contains("tiexec@sleeps.service"));
}

#[test]
fn units_that_cannot_be_enabled() {
    require!(can_boot() && Systemd::has("redis-server.service"), "{NEEDS}, redis-server");
    let systemd = Systemd::boot();
    systemd.systemctl(["mask", "cron.service"]).assert_code(0);
    let once = "[Service]\nType=oneshot\nExecStart=/bin/true\n";
    systemd.write_unit("/etc/systemd/system/once.service", once);
    for (name, wanted) in [
        ("redis", "redis.service: systemd has no unit of this name; fix: use redis-server.service"),
        ("tiexec-none", "tiexec-none.service: systemd has no unit of this name; fix: use a name"),
        ("cron", "cron.service: it is masked; fix: systemctl unmask cron.service"),
        ("once", "once.service: its commands end before it is up (Type=oneshot); fix: "),
        ("dbus.socket", "dbus.socket: it is not a service; fix: "),
        ("tiexec@cron", "tiexec@cron.service: it is a unit of TiExec's; fix: "),
    ] {
        let done = systemd.ctl(["enable", name]);
        done.assert_code(2);
        assert!(done.err().contains(&format!("cannot enable {wanted}")), "{done}");
    }
    // The fix that the message names works.
    let masked = systemd.ctl(["enable", "cron"]).err();
    let (_, unmask) = masked.split_once("fix: ").expect("the fix");
    systemd.run(["sh", "-c", unmask.trim_end()]).assert_code(0);
    let unmasked = systemd.ctl(["enable", "cron"]);
    assert!(!unmasked.err().contains("masked"), "{unmasked}");
    systemd.ctl(["disable", "cron"]);
    // `enable` reports an option that attach does not accept now, not at the next start.
    for option in ["--edges=wrong", "--settle=1s", "--json"] {
        systemd.ctl(["enable", "redis-server", "--", option]).assert_code(2);
    }
    // One of the two names works, and the alias stands for the unit.
    systemd
        .write_unit("/etc/systemd/system/twice.service", "[Service]\nExecStart=/bin/sleep inf\n");
    systemd.systemctl(["link", "/usr/lib/systemd/system/redis-server.service"]);
    let alias = systemd.path("/etc/systemd/system/redis.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/redis-server.service", alias)
        .expect("a link");
    systemd.systemctl(["daemon-reload"]).assert_code(0);
    systemd.ctl(["enable", "tiexec-none", "redis"]).assert_code(3);
    assert!(is_there(&systemd, &link("redis-server.service")));
    systemd.ctl(["disable", "redis"]).assert_code(0).assert_silent();
    assert_eq!(made(&systemd), "");
}

/// systemd would run this program as root.
#[test]
fn a_tiexecctl_that_others_can_exchange() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    let script = "mkdir -p /srv/bin && cp /usr/bin/tiexecctl /srv/bin && chmod 777 /srv/bin && /srv/bin/tiexecctl enable nginx";
    let done = systemd.run(["sh", "-c", script]);
    done.assert_code(1);
    assert!(done.err().contains("others than root may write to /srv/bin"), "{done}");
    assert_eq!(made(&systemd), "");
}

/// Starts root's own manager, without logind and PAM. Returns the words before a command for it.
pub(super) fn users_manager(systemd: &Systemd) -> [&'static str; 3] {
    systemd.write_unit(
        "/etc/systemd/system/user@0.service",
        "[Service]\nType=notify\nDelegate=yes\nRuntimeDirectory=user/0\nRuntimeDirectoryMode=700\n\
         Environment=XDG_RUNTIME_DIR=/run/user/0 HOME=/root\nExecStart=/lib/systemd/systemd --user\n",
    );
    systemd.start("user@0.service");
    ["env", "XDG_RUNTIME_DIR=/run/user/0", "HOME=/root"]
}

#[test]
fn a_unit_of_a_users_own_systemd() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    let front = users_manager(&systemd);
    let own = systemd.path("/root/.config/systemd/user");
    std::fs::create_dir_all(&own).expect("a directory inside");
    let web = "[Service]\nExecStart=/usr/sbin/nginx -g 'daemon off;'\n";
    std::fs::write(own.join("web.service"), web).expect("a unit inside");
    let as_user = |words: &[&str]| systemd.run(front.iter().chain(words));
    as_user(&["systemctl", "--user", "daemon-reload"]).assert_code(0);
    as_user(&[
        "tiexecctl",
        "enable",
        "--user",
        "web",
        "--",
        "--edges=aggressive",
        "--backing=image",
    ])
    .assert_code(0);
    as_user(&["systemctl", "--user", "start", "web"]).assert_code(0);
    eventually("the unit beside it has run", || {
        systemd.notes().contains("--user web.service: process ")
    });
    let huge = || systemd.huge_of(&["--user", "web"]);
    assert!(huge() > 0, "{}", systemd.notes());
    assert!(!systemd.notes().contains("tiexecctl build-id"), "{}", systemd.notes());
    as_user(&["tiexecctl", "disable", "--user", "--now", "web"]).assert_code(0);
    let left = || std::fs::read_dir(&own).expect("a directory").count();
    assert!(huge() == 0 && left() == 1, "{:?}", std::fs::read_dir(&own));
}

#[test]
fn without_systemd() {
    // `/run` is the test's own, and empty.
    let done = support::attaching::ctl(["enable", "nginx"]);
    require!(!std::path::Path::new("/run/systemd/system").exists(), "systemd runs here");
    done.assert_code(1);
    let wanted =
        "cannot enable nginx: systemd does not run here (there is no /run/systemd/system); fix: ";
    assert!(done.err().contains(wanted), "{done}");
}

#[test]
fn a_disable_without_systemd_names_no_fix_of_enable() {
    let done = support::attaching::ctl(["disable", "nginx"]);
    require!(!std::path::Path::new("/run/systemd/system").exists(), "systemd runs here");
    done.assert_code(1);
    assert!(done.err().ends_with("; fix: run it where systemd is PID 1\n"), "{done}");
}

/// Names that a shell, an option parser, a path or systemd's specifiers could take for something else. The program's path is
/// such a name, too.
#[test]
fn names_that_mean_something_elsewhere() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    let big = program_big("hold", Kind::StaticNoPie, 6);
    let odd = "/srv/$(touch made) %n;x";
    std::fs::copy(big, systemd.path(odd)).expect("a copy");
    let units = [
        (r"a\x20b\x24\x28touch\x20made\x29.service", r"a\x20b\x24\x28touch\x20made\x29.service"),
        (r"dots@..\x2f..\x2fetc.service", "dots@.service"),
        (r"a\x20b-c@x.service", r"a\x20b-c@.service"),
        ("all@--all.service", "all@.service"),
    ];
    // `hold` waits for its standard input to end. systemd's own quoting, with its specifiers doubled.
    let path = odd.replace('%', "%%");
    let text = format!("[Service]\nExecStart=\"{path}\" 0\nStandardInput=file:/srv/waits\n");
    // Somebody keeps the other end open.
    let fifo = "mkfifo /srv/waits; setsid sleep 3600 <>/srv/waits >/dev/null 2>&1 &";
    systemd.run(["sh", "-c", fifo]).assert_code(0);
    for (unit, file) in units {
        std::fs::write(systemd.path(&format!("/etc/systemd/system/{file}")), &text)
            .expect("a unit");
        systemd.systemctl(["daemon-reload"]).assert_code(0);
        systemd.ctl(["enable", file, "--", "--backing=image"]).assert_code(0).assert_silent();
        assert!(is_there(&systemd, &link(file)), "{file}");
        systemd.systemctl(["start", "--", unit]).assert_code(0);
        eventually("its text is huge", || systemd.huge(unit) > 0);
        systemd.ctl(["disable", "--now", file]).assert_code(0).assert_silent();
        assert_eq!(systemd.huge(unit), 0, "{unit}");
        assert_eq!(made(&systemd), "", "{file}");
        systemd.systemctl(["stop", "--", unit]).assert_code(0);
    }
    let made = systemd.run(["find", "/", "-xdev", "-name", "made"]).out();
    assert_eq!(made, "");
}
