//! The Debian package: an upgrade and a downgrade keep the administrator's files and change no running program.
//! `remove` only stops the agent, and `purge` removes the rest. Enabled services start in all these states.

use std::collections::BTreeSet;

use support::attaching::verdict_export;
use support::child::eventually;
use support::require;
use support::systemd::{self, Systemd, can_boot};

use crate::admin::{self, LINK, OPTIONS, RULE, STATE, STORE};
use crate::{NEEDS, app, apt, bring, dpkg, packages, read, write};

const AGENT: &str = "tiexecd.service";
const NGINX: &str = "nginx.service";
const UNITS: &str = "/etc/systemd/system";
const CONFFILE: &str = "/etc/apt/apt.conf.d/80tiexec";

/// Boots a systemd with the older or the newer version of the package.
fn with_package(newer: bool) -> Systemd {
    let made = packages().expect("packages");
    let systemd = Systemd::boot_for_packages();
    let deb = if newer { &made.newer.deb } else { &made.older.deb };
    dpkg(&systemd, "--install", &bring(&systemd, deb));
    systemd
}

fn can() -> bool {
    packages().is_some() && can_boot() && Systemd::has(NGINX)
}

#[test]
fn an_upgrade_and_the_way_back() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(false);
    // The installation does not enable the agent.
    assert_eq!(systemd.property(AGENT, "UnitFileState"), "disabled");
    assert_eq!(systemd.property(AGENT, "ActiveState"), "inactive");
    admin::works(&systemd);
    let edited = read(&systemd, CONFFILE).expect("a configuration file") + "// own\n";
    write(&systemd, CONFFILE, &edited);
    // Without the workers, whose number is not known: some may still start.
    let state = || {
        let main = systemd.property(NGINX, "MainPID");
        let huge = systemd.huge_of(&[&main]);
        (admin::made(&systemd), main, huge)
    };
    eventually("the main process is huge", || state().2 > 0);
    let before = state();
    let made = packages().expect("packages");
    for (deb, version) in [(&made.newer.deb, "0.0.2~rc.1-1"), (&made.older.deb, "0.0.1-1")] {
        let agent = systemd.property(AGENT, "MainPID");
        dpkg(&systemd, "--install", &bring(&systemd, deb));
        let shown = systemd.run(["dpkg-query", "--show", "--showformat=${Version}", "tiexec"]);
        assert_eq!(shown.out(), version);
        // Only the agent was restarted.
        assert_eq!(systemd.property(AGENT, "ActiveState"), "active");
        assert_ne!(systemd.property(AGENT, "MainPID"), agent);
        assert_eq!(before, state());
        assert_eq!(read(&systemd, CONFFILE).as_deref(), Some(&*edited));
        assert_eq!(systemd.property(AGENT, "UnitFileState"), "enabled");
        assert!(systemd.ctl(["quarantine"]).assert_code(0).out().contains("/x"));
    }
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    admin::becomes_huge(&systemd);
}

const HELD: &str = "held.service";

/// Starts the program of a package in the image store, and returns its PID. A line in the FIFO makes it run all its text
/// again and end with status 42.
fn start_held(systemd: &Systemd) -> String {
    let program = systemd.path("/opt/app/hold");
    if !program.exists() {
        std::fs::create_dir_all(program.parent().expect("a file")).expect("a directory");
        support::install(&app(), &program, 0o755);
        systemd.run(["mkfifo", "/srv/line"]).assert_code(0);
        let start =
            "/bin/sh -c 'exec tiexec --deadline=2m --backing=image /opt/app/hold 42 <>/srv/line'";
        let unit = format!("[Service]\nExecStart={start}\nStandardOutput=file:/srv/said\n");
        write(systemd, &format!("{UNITS}/{HELD}"), &unit);
        systemd.systemctl(["daemon-reload"]).assert_code(0);
    }
    write(systemd, "/srv/said", "");
    systemd.start(HELD);
    let runs = || read(systemd, "/srv/said").is_some_and(|said| said.contains("huge "));
    eventually("it has run its text", runs);
    systemd.property(HELD, "MainPID")
}

/// Has the program run all its text once more.
fn end_held(systemd: &Systemd) {
    systemd.run(["sh", "-c", "echo >/srv/line"]).assert_code(0);
    eventually("it ends", || systemd.property(HELD, "MainPID") == "0");
    assert_eq!(systemd.property(HELD, "ExecMainStatus"), "42", "{}", systemd.log(HELD));
    systemd.systemctl(["stop", HELD]).assert_code(0);
    systemd.systemctl(["reset-failed", HELD]);
}

/// Keeps a verdict of as many hosts about a build as it takes.
fn keep_verdict(systemd: &Systemd, build: &str) {
    let files = ["k", "m", "n"].map(|machine| {
        let file = format!("/srv/verdict-{machine}.json");
        write(systemd, &file, &verdict_export(build, machine, 1.04).to_string());
        file
    });
    let words = ["canary", "merge", "--keep"].map(str::to_owned);
    systemd.ctl(words.iter().chain(&files)).assert_code(0);
}

/// One version goes on with what the other has made, in both directions: programs that run from an image of the store,
/// images, verdicts, rules and settings. `make upgrade-test` runs this test with the packages of an earlier commit.
#[test]
fn one_version_goes_on_with_what_the_other_has_made() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(false);
    admin::works(&systemd);
    let rule = "[[rule]]\nname = \"app\"\nunit = \"app.service\"\naction = \"attach\"\nbacking = \"image\"\n\
                edges = \"pad\"\ncanary = \"required\"\n";
    write(&systemd, "/etc/tiexec/conf.d/20-app.toml", rule);
    write(&systemd, "/etc/tiexec/config", "edges=pad\n");
    let made = packages().expect("packages");
    let mut builds = Vec::new();
    for (build, deb) in [("ab", &made.newer.deb), ("ef", &made.older.deb)] {
        let pid = start_held(&systemd);
        let huge = systemd.huge_of(&[&pid]);
        assert!(huge > 0, "{}", systemd.log(HELD));
        builds.push(build);
        keep_verdict(&systemd, build);
        dpkg(&systemd, "--install", &bring(&systemd, deb));

        // An unknown key would be no failure.
        let rules = systemd.ctl(["rules", "check"]);
        assert!(!rules.assert_code(0).err().contains(" key"), "{rules}");
        let verdicts = systemd.ctl(["canary", "export"]).assert_code(0).out();
        for build in &builds {
            assert!(verdicts.contains(&format!("\"{build}\"")), "{verdicts}");
        }
        let images = systemd.ctl(["store", "list"]).assert_code(0).out();
        assert!(images.contains("/opt/app/hold"), "{images}");
        systemd.ctl(["store", "verify"]).assert_code(0);
        systemd.ctl(["store", "prune"]).assert_code(0);
        assert_eq!(systemd.huge_of(&[&pid]), huge);
        systemd.ctl(["revert", &pid]).assert_code(0);
        assert_eq!(systemd.huge_of(&[&pid]), 0);
        systemd.ctl(["attach", "--backing=image", &pid]).assert_code(0);
        assert!(systemd.huge_of(&[&pid]) > 0);
        end_held(&systemd);
        // The newer version takes over what the older has enabled. The older may know another form, and need the command again.
        if *deb == made.older.deb {
            systemd.systemctl(["restart", NGINX]).assert_code(0);
            systemd.ctl(["enable", "nginx", "--", "--backing=image"]).assert_code(0);
        }
        systemd.systemctl(["restart", NGINX]).assert_code(0);
        admin::becomes_huge(&systemd);
        systemd.assert_nothing_failed();
    }
}

#[test]
fn remove_stops_the_agent_only() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(true);
    admin::works(&systemd);
    let before = (admin::made(&systemd), systemd.property(NGINX, "MainPID"));
    dpkg(&systemd, "--remove", "tiexec");
    assert_eq!(systemd.property(AGENT, "LoadState"), "not-found");
    assert!(!systemd.path("/usr/bin/tiexecctl").exists());
    assert_eq!(systemd.run(["sh", "-c", "pidof tiexecd"]).out(), "");
    assert_eq!(before, (admin::made(&systemd), systemd.property(NGINX, "MainPID")));
    // The service wants a unit that does not exist any more.
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    systemd.assert_nothing_failed();
    // After a new installation everything is as before.
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    assert_eq!(systemd.property(AGENT, "UnitFileState"), "enabled");
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    admin::becomes_huge(&systemd);
}

#[test]
fn purge_takes_away_what_is_ours() {
    require!(
        can() && Systemd::has("redis-server.service") && Systemd::has("mariadb.service"),
        "{NEEDS}; {}, nginx, redis-server, mariadb-server",
        systemd::NEEDS
    );
    let systemd = with_package(true);
    admin::works(&systemd);
    // The test has a unit with a backslash in its name, a link in a runtime directory, a template, a unit that warms, and
    // files of the administrator beside those of TiExec.
    let odd = r"odd\x2dname.service";
    for file in [odd, "late@.service"] {
        write(&systemd, &format!("{UNITS}/{file}"), "[Service]\nExecStart=/bin/sleep inf\n");
    }
    systemd.systemctl(["daemon-reload"]).assert_code(0);
    systemd.ctl(["enable", odd, "late@"]).assert_code(0);
    systemd.ctl(["enable", "--warm", "redis-server"]).assert_code(0);
    systemd.ctl(["enable", "--runtime", "mariadb"]).assert_code(0);
    let kept = [
        "tiexec@nginx.service.d/own.conf",
        "tiexec-own@.service",
        "nginx.service.wants/other.service",
        "nginx.service.d/50-tiexec.conf",
    ]
    .map(|name| format!("{UNITS}/{name}"));
    kept.iter().for_each(|path| write(&systemd, path, "[Service]\n"));
    let unit = systemd.ctl(["store", "setup", "--unit"]).out();
    write(&systemd, "/etc/systemd/system/run-tiexec-images.mount", &unit);
    systemd.systemctl(["enable", "run-tiexec-images.mount"]).assert_code(0);
    let main = systemd.property(NGINX, "MainPID");
    dpkg(&systemd, "--purge", "tiexec");
    assert_eq!(systemd.property(NGINX, "MainPID"), main);
    for gone in [
        LINK,
        OPTIONS,
        &format!("{UNITS}/{odd}.wants"),
        &format!("{UNITS}/late@.service.wants"),
        &format!("{UNITS}/tiexec-late@.service"),
        &format!("{UNITS}/redis-server.service.wants"),
        &format!("{UNITS}/tiexec_warm@redis-server.service"),
        "/run/systemd/system/mariadb.service.wants",
        "/etc/systemd/system/run-tiexec-images.mount",
        "/etc/systemd/system/local-fs.target.wants/run-tiexec-images.mount",
        "/etc/systemd/system/multi-user.target.wants/tiexecd.service",
        STATE,
        "/var/lib/tiexec",
        STORE,
        CONFFILE,
        "/etc/needrestart/conf.d/tiexec.conf",
        "/usr/share/tiexec",
        "/usr/share/doc/tiexec",
    ] {
        assert!(systemd.path(gone).symlink_metadata().is_err(), "{gone}");
    }
    let mounts = systemd.run(["cat", "/proc/1/mountinfo"]).out();
    assert!(!mounts.contains(STORE), "{mounts}");
    // The administrator has written or edited these.
    for kept in kept.iter().map(String::as_str).chain([RULE]) {
        assert!(systemd.path(kept).exists(), "{kept}");
    }
    for unit in [NGINX, "redis-server.service"] {
        systemd.systemctl(["restart", unit]).assert_code(0);
    }
    assert!(!systemd.property(NGINX, "Wants").contains("tiexec"));
}

/// The files that systemd and the hooks of other packages write when apt installs or removes any package.
const OTHERS: [&str; 5] = [
    "/run/systemd/units/",
    "/run/systemd/journal/",
    "/run/systemd/ask-password-block",
    "/run/needrestart",
    "/var/lib/PackageKit/",
];

/// Returns the names of the files in the system's directories, without [`OTHERS`].
fn files(systemd: &Systemd) -> BTreeSet<String> {
    let found = systemd.run(["find", "/etc", "/usr", "/var/lib", "/run"]).assert_code(0).out();
    let is_anothers = |path: &&str| OTHERS.iter().any(|other| path.starts_with(other));
    found.lines().filter(|path| !is_anothers(path)).map(str::to_owned).collect()
}

#[test]
fn apt_leaves_no_file_behind() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    systemd.start(NGINX);
    let before = files(&systemd);
    let deb = bring(&systemd, &packages().expect("packages").newer.deb);
    apt(&systemd, &["install", &deb]);
    systemd.ctl(["enable", "nginx", "--", "--edges=aggressive"]).assert_code(0);
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    admin::becomes_huge(&systemd);
    apt(&systemd, &["purge", "tiexec"]);
    let left: Vec<_> = files(&systemd).difference(&before).cloned().collect();
    assert_eq!(left, [""; 0]);
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    systemd.assert_nothing_failed();
}

/// `tiexecctl` is gone at a purge long after the removal.
#[test]
fn purge_after_remove() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(true);
    systemd.ctl(["enable", "nginx", "--", "--edges=pad"]).assert_code(0);
    dpkg(&systemd, "--remove", "tiexec");
    assert!(systemd.path(LINK).symlink_metadata().is_ok());
    dpkg(&systemd, "--purge", "tiexec");
    for gone in [LINK, OPTIONS, "/var/lib/tiexec"] {
        assert!(systemd.path(gone).symlink_metadata().is_err(), "{gone}");
    }
}

/// The installation takes over what an earlier version has enabled by a drop-in, unless somebody has edited it.
#[test]
fn drop_ins_of_an_earlier_version() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    let drop_in = format!("{UNITS}/nginx.service.d/50-tiexec.conf");
    let edited = format!("{UNITS}/cron.service.d/50-tiexec.conf");
    write(&systemd, &drop_in, EARLIER);
    write(&systemd, &edited, &(EARLIER.to_owned() + "# own\n"));
    let deb = &packages().expect("packages").newer.deb;
    let done = dpkg(&systemd, "--install", &bring(&systemd, deb));
    assert!(
        done.err().contains(&format!("cannot replace {edited}: it was edited by hand")),
        "{done}"
    );
    assert!(!systemd.path(&drop_in).exists() && systemd.path(&edited).exists());
    // `/lib` is a link to `/usr/lib`.
    let link = std::fs::read_link(systemd.path(LINK)).expect("a link");
    assert!(link.ends_with("lib/systemd/system/tiexec@.service"), "{link:?}");
    let options = read(&systemd, OPTIONS).expect("the options");
    assert!(options.ends_with("--wait-exec --edges=aggressive\n"), "{options}");
    systemd.start(NGINX);
    admin::becomes_huge(&systemd);
    // The template of the package stays the only one.
    assert!(!systemd.path(&format!("{UNITS}/tiexec@.service")).exists());
}

/// A drop-in that an earlier version wrote. The first line has a hash of the rest.
const EARLIER: &str = "# Made by `tiexecctl enable`; an edited file is kept. Hash of the rest: 6970c68131955844606a0a85b622931d
[Service]
ExecStartPost=-+/usr/bin/tiexecctl attach --unit %n --quiet --wait-exec --edges=aggressive
";

/// Somebody has put links where TiExec keeps files. The hooks, which run as root, do not write or remove through them.
#[test]
fn state_that_leads_elsewhere() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(true);
    systemd.ctl(["enable", "nginx", "--", "--edges=pad"]).assert_code(0);
    let text = read(&systemd, OPTIONS).expect("the options");
    let elsewhere = "/var/tmp/50-tiexec.conf";
    write(&systemd, elsewhere, &text);
    systemd.run(["ln", "-sf", elsewhere, OPTIONS]).assert_code(0);
    dpkg(&systemd, "--purge", "tiexec");
    assert_eq!(read(&systemd, elsewhere), Some(text));
    assert!(systemd.path(LINK).symlink_metadata().is_err());

    // The directory itself is a link.
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    systemd.run(["mkdir", "/var/tmp/held"]).assert_code(0);
    systemd.run(["rm", "-rf", "/var/lib/tiexec"]).assert_code(0);
    systemd.run(["ln", "-s", "/var/tmp/held", "/var/lib/tiexec"]).assert_code(0);
    write(&systemd, "/var/tmp/held/kept", "untouched\n");
    dpkg(&systemd, "--purge", "tiexec");
    assert_eq!(systemd.run(["ls", "/var/tmp/held"]).out(), "kept\n");
    assert!(systemd.path("/var/lib/tiexec").symlink_metadata().is_err());
}
