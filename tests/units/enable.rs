//! `tiexecctl enable` makes systemd attach to services at each start, and `disable` undoes it. Edited files are kept.

use support::child::eventually;
use support::systemd::{DEBIANS, NEEDS, Systemd, can_boot};
use support::{Kind, program_big, require};

/// The directory of a unit's drop-ins.
fn drop_ins(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.d")
}

fn drop_in(unit: &str) -> String {
    drop_ins(unit) + "/50-tiexec.conf"
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
    for (unit, edges) in DEBIANS.into_iter().filter(|(unit, _)| Systemd::has(unit)) {
        let (option, name) = (format!("--edges={edges}"), to_enable(unit));
        // The backing is an image, because a revert can remove an image.
        let enable = ["enable", &name, "--", "--backing=image", &option];
        systemd.ctl(enable).assert_code(0).assert_silent();
        systemd.start(unit);
        assert!(systemd.huge(unit) > 0, "{unit}: {}\n{}", systemd.notes(), systemd.log(unit));
        let main = systemd.property(unit, "MainPID");
        settled(&systemd, unit);
        systemd.ctl(["disable", "--now", &name]).assert_code(0).assert_silent();
        assert_eq!(systemd.property(unit, "MainPID"), main, "{unit} was restarted");
        assert_eq!(systemd.huge(unit), 0, "{unit}");
        assert!(!systemd.path(&drop_ins(&name)).exists(), "{name}");
        assert!(!systemd.property(unit, "ExecStartPost").contains("tiexecctl"));
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
    let path = "/run/systemd/system/mariadb.service.d/50-tiexec.conf";
    let text = std::fs::read_to_string(systemd.path(path)).expect("the drop-in");
    assert!(text.contains("warm --quiet --deps /usr/sbin/mariadbd\n"), "{text}");
    // The `warm` before the start does not make the start fail.
    systemd.systemctl(["restart", unit]).assert_code(0);
    assert!(systemd.huge(unit) > 0, "{}", systemd.log(unit));
    systemd.ctl(["disable", unit]).assert_code(0).assert_silent();
    assert!(!systemd.path(path).exists());
    assert!(systemd.huge(unit) > 0, "without --now the running service is left as it is");
}

#[test]
fn an_edited_file_is_kept() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    let path = systemd.path(&drop_in("nginx.service"));
    systemd.ctl(["enable", "nginx"]).assert_code(0);
    let first = std::fs::read_to_string(&path).expect("the drop-in");
    // An unedited drop-in can be rewritten with other options.
    systemd.ctl(["enable", "nginx", "--", "--edges=pad"]).assert_code(0).assert_silent();
    let text = std::fs::read_to_string(&path).expect("the drop-in");
    assert_eq!(
        text.lines().nth(2),
        first.lines().nth(2).map(|line| format!("{line} --edges=pad")).as_deref()
    );
    let edited = text.replace("--edges=pad", "--edges=aggressive");
    std::fs::write(&path, &edited).expect("the drop-in");
    for command in ["enable", "disable"] {
        let done = systemd.ctl([command, "nginx"]);
        done.assert_code(1);
        let why =
            "/etc/systemd/system/nginx.service.d/50-tiexec.conf: it was edited by hand; fix: ";
        assert!(done.err().contains(why), "{done}");
        assert_eq!(std::fs::read_to_string(&path).expect("the drop-in"), edited);
    }
    // The fix that the message names works.
    let refused = systemd.ctl(["enable", "nginx"]).err();
    let (_, remove) = refused.split_once("fix: remove it yourself: ").expect("the fix");
    systemd.run(["sh", "-c", remove.trim_end()]).assert_code(0);
    systemd.ctl(["enable", "nginx"]).assert_code(0);
    // Another file in the directory stays too.
    std::fs::write(&path, &text).expect("the drop-in");
    std::fs::write(path.with_file_name("own.conf"), "[Service]\n").expect("a drop-in");
    systemd.ctl(["disable", "nginx"]).assert_code(0);
    assert!(!path.exists() && path.with_file_name("own.conf").exists());
}

#[test]
fn all_are_disabled_but_the_edited() {
    let units = ["nginx.service", "redis-server.service", "mariadb.service"];
    require!(can_boot() && units.iter().all(|unit| Systemd::has(unit)), "{NEEDS}, {units:?}");
    let systemd = Systemd::boot();
    systemd.ctl(["enable", units[0], units[1]]).assert_code(0);
    systemd.ctl(["enable", "--runtime", units[2]]).assert_code(0);
    let edited = systemd.path(&drop_in(units[1]));
    let text = std::fs::read_to_string(&edited).expect("the drop-in") + "# own\n";
    std::fs::write(&edited, &text).expect("the drop-in");
    let runtime = "/run/systemd/system/mariadb.service.d/50-tiexec.conf";
    let done = systemd.ctl(["disable", "--all", "--dry-run"]);
    let wanted = [
        format!("{}: would remove {runtime}\n", units[2]),
        format!("{}: would remove {}\n", units[0], drop_in(units[0])),
    ];
    assert_eq!(done.out(), wanted.concat(), "{done}");
    done.assert_code(3);
    assert!(systemd.path(&drop_in(units[0])).exists() && systemd.path(runtime).exists());
    let done = systemd.ctl(["disable", "--all"]);
    done.assert_code(3);
    assert!(done.err().contains("it was edited by hand"), "{done}");
    assert!(!systemd.path(&drop_ins(units[0])).exists() && !systemd.path(runtime).exists());
    assert_eq!(std::fs::read_to_string(&edited).expect("the drop-in"), text);
    assert!(!systemd.property(units[0], "ExecStartPost").contains("tiexecctl"));
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
        ("dbus.socket", "dbus.socket: it is no service; fix: "),
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
    assert!(systemd.path(&drop_in("redis-server.service")).exists());
    systemd.ctl(["disable", "redis"]).assert_code(0).assert_silent();
    assert!(!systemd.path(&drop_ins("redis-server.service")).exists());
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
    assert!(!systemd.path(&drop_ins("nginx.service")).exists());
}

#[test]
fn a_unit_of_a_users_own_systemd() {
    require!(can_boot() && Systemd::has("nginx.service"), "{NEEDS}, nginx");
    let systemd = Systemd::boot();
    // This unit starts the user's manager without logind and PAM.
    systemd.write_unit(
        "/etc/systemd/system/user@0.service",
        "[Service]\nType=notify\nDelegate=yes\nRuntimeDirectory=user/0\nRuntimeDirectoryMode=700\n\
         Environment=XDG_RUNTIME_DIR=/run/user/0 HOME=/root\nExecStart=/lib/systemd/systemd --user\n",
    );
    systemd.start("user@0.service");
    let own = systemd.path("/root/.config/systemd/user");
    std::fs::create_dir_all(&own).expect("a directory inside");
    let web = "[Service]\nExecStart=/usr/sbin/nginx -g 'daemon off;'\n";
    std::fs::write(own.join("web.service"), web).expect("a unit inside");
    let as_user = |words: &[&str]| {
        let front = ["env", "XDG_RUNTIME_DIR=/run/user/0", "HOME=/root"];
        systemd.run(front.iter().chain(words))
    };
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
    assert!(systemd.notes().contains("--user web.service: process "), "{}", systemd.notes());
    let huge = || systemd.huge_of(["--user", "web"]);
    assert!(huge() > 0, "{}", systemd.notes());
    assert!(!systemd.notes().contains("tiexecctl build-id"), "{}", systemd.notes());
    as_user(&["tiexecctl", "disable", "--user", "--now", "web"]).assert_code(0);
    assert!(huge() == 0 && !own.join("web.service.d").exists());
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
        assert!(systemd.path(&drop_in(file)).exists(), "{file}");
        systemd.systemctl(["start", "--", unit]).assert_code(0);
        eventually("its text is huge", || systemd.huge(unit) > 0);
        systemd.ctl(["disable", "--now", file]).assert_code(0).assert_silent();
        assert_eq!(systemd.huge(unit), 0, "{unit}");
        assert!(!systemd.path(&drop_ins(file)).exists(), "{file}");
        systemd.systemctl(["stop", "--", unit]).assert_code(0);
    }
    let made = systemd.run(["find", "/", "-xdev", "-name", "made"]).out();
    assert_eq!(made, "");
}
