//! The Debian package: an upgrade and a downgrade keep the administrator's files and change no running program.
//! `remove` only stops the agent, and `purge` removes the rest. Enabled services start in all these states.

use support::require;
use support::systemd::{self, Systemd, can_boot};

use crate::admin::{self, DROP_IN, RULE, STATE, STORE};
use crate::{NEEDS, bring, dpkg, packages, read, write};

const AGENT: &str = "tiexecd.service";
const NGINX: &str = "nginx.service";
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
    let before = (admin::made(&systemd), systemd.property(NGINX, "MainPID"), systemd.huge(NGINX));
    let made = packages().expect("packages");
    for (deb, version) in [(&made.newer.deb, "0.0.2-1"), (&made.older.deb, "0.0.1-1")] {
        let agent = systemd.property(AGENT, "MainPID");
        dpkg(&systemd, "--install", &bring(&systemd, deb));
        let shown = systemd.run(["dpkg-query", "--show", "--showformat=${Version}", "tiexec"]);
        assert_eq!(shown.out(), version);
        // Only the agent was restarted.
        assert_eq!(systemd.property(AGENT, "ActiveState"), "active");
        assert_ne!(systemd.property(AGENT, "MainPID"), agent);
        let now = (admin::made(&systemd), systemd.property(NGINX, "MainPID"), systemd.huge(NGINX));
        assert_eq!(before, now);
        assert_eq!(read(&systemd, CONFFILE).as_deref(), Some(&*edited));
        assert_eq!(systemd.property(AGENT, "UnitFileState"), "enabled");
        assert!(systemd.ctl(["quarantine"]).assert_code(0).out().contains("/x"));
    }
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    assert!(systemd.huge(NGINX) > 0, "{}", systemd.notes());
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
    // The drop-in runs a command that does not exist any more.
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    // After a new installation everything is as before.
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    assert_eq!(systemd.property(AGENT, "UnitFileState"), "enabled");
    systemd.systemctl(["restart", NGINX]).assert_code(0);
    assert!(systemd.huge(NGINX) > 0, "{}", systemd.notes());
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
    // The test has a unit with a backslash in its name, a drop-in in a runtime directory, a drop-in that is edited now,
    // and one that is edited later.
    let odd = r"odd\x2dname.service";
    write(&systemd, &format!("/etc/systemd/system/{odd}"), "[Service]\nExecStart=/bin/sleep inf\n");
    systemd.systemctl(["daemon-reload"]).assert_code(0);
    systemd.ctl(["enable", odd, "redis-server"]).assert_code(0);
    systemd.ctl(["enable", "--runtime", "mariadb"]).assert_code(0);
    let edit = |unit: &str| {
        let path = format!("/etc/systemd/system/{unit}.d/50-tiexec.conf");
        let text = read(&systemd, &path).expect("a drop-in") + "# own\n";
        write(&systemd, &path, &text);
        path
    };
    let edited = edit("redis-server.service");
    let unit = systemd.ctl(["store", "setup", "--unit"]).out();
    write(&systemd, "/etc/systemd/system/run-tiexec-images.mount", &unit);
    systemd.systemctl(["enable", "run-tiexec-images.mount"]).assert_code(0);
    let main = systemd.property(NGINX, "MainPID");
    dpkg(&systemd, "--purge", "tiexec");
    assert_eq!(systemd.property(NGINX, "MainPID"), main);
    for gone in [
        DROP_IN,
        "/etc/systemd/system/nginx.service.d",
        &format!("/etc/systemd/system/{odd}.d"),
        "/run/systemd/system/mariadb.service.d",
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
    for kept in [RULE, &edited] {
        assert!(systemd.path(kept).exists(), "{kept}");
    }
    for unit in [NGINX, "redis-server.service"] {
        systemd.systemctl(["restart", unit]).assert_code(0);
    }
    assert!(!systemd.property(NGINX, "ExecStartPost").contains("tiexecctl"));
}

/// At a purge long after the removal, only the notes from the removal show which drop-ins are ours.
#[test]
fn purge_after_remove() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(true);
    systemd.ctl(["enable", "nginx", "redis-server"]).assert_code(0);
    dpkg(&systemd, "--remove", "tiexec");
    let redis = "/etc/systemd/system/redis-server.service.d/50-tiexec.conf";
    let text = read(&systemd, redis).expect("a drop-in") + "# own\n";
    write(&systemd, redis, &text);
    dpkg(&systemd, "--purge", "tiexec");
    assert!(!systemd.path(DROP_IN).exists());
    assert_eq!(read(&systemd, redis).as_deref(), Some(&*text));
    assert!(!systemd.path("/var/lib/tiexec").exists());
}

/// Somebody has put links and a forged list into the state of the agent. The hooks, which run as root, neither write through
/// the links nor remove what the list names elsewhere.
#[test]
fn state_that_leads_elsewhere() {
    require!(can(), "{NEEDS}; {}, nginx", systemd::NEEDS);
    let systemd = with_package(true);
    systemd.ctl(["enable", "nginx"]).assert_code(0);
    let (list, victim) = ("/var/lib/tiexec/drop-ins", "/etc/victim");
    write(&systemd, victim, "untouched\n");
    systemd.run(["mkdir", "-p", "/var/lib/tiexec"]).assert_code(0);
    systemd.run(["ln", "-sf", victim, list]).assert_code(0);
    dpkg(&systemd, "--remove", "tiexec");
    assert_eq!(read(&systemd, victim).as_deref(), Some("untouched\n"));
    let noted = read(&systemd, list).expect("a list");
    assert!(noted.contains(DROP_IN), "{noted}");

    let elsewhere = "/var/tmp/other.d/50-tiexec.conf";
    systemd.run(["mkdir", "/var/tmp/other.d"]).assert_code(0);
    write(&systemd, elsewhere, "untouched\n");
    let hash = systemd.run(["sha256sum", elsewhere]).out();
    let hash = hash.split(' ').next().expect("a hash");
    let forged =
        format!("{noted}{hash} /etc/systemd/system/../../..{elsewhere}\n{hash} {elsewhere}\n");
    write(&systemd, list, &forged);
    dpkg(&systemd, "--purge", "tiexec");
    assert_eq!(read(&systemd, elsewhere).as_deref(), Some("untouched\n"));
    assert!(!systemd.path(DROP_IN).exists() && !systemd.path("/var/lib/tiexec").exists());

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
