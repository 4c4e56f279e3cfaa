//! The RPM: an upgrade and a downgrade keep everything and restart the agent with the new version. The removal only
//! stops the agent.

use support::child::tool;
use support::require;
use support::systemd::{self, Systemd, can_boot};

use crate::{NEEDS, admin, bring, packages};

#[test]
fn from_the_installation_to_the_removal() {
    let nginx = "nginx.service";
    let can = packages().is_some() && can_boot() && Systemd::has(nginx);
    require!(can, "{NEEDS}; {}, nginx", systemd::NEEDS);
    let made = packages().expect("packages");
    let systemd = Systemd::boot_for_packages();
    // The rpm of Debian 12 refuses to install without this option. That of Debian 13 does not know it.
    let option = ["--force-debian"];
    let known = tool(&["rpm", option[0], "--version"]).status.success();
    let debian = if known { &option[..] } else { &[] };
    let rpm = |args: &[&str]| {
        systemd.run(["rpm", "--nodeps"].iter().chain(debian).chain(args)).assert_code(0);
    };
    rpm(&["--install", &bring(&systemd, &made.older.rpm)]);
    let agent = "tiexecd.service";
    assert_eq!(systemd.property(agent, "UnitFileState"), "disabled");
    admin::works(&systemd);
    let before = (admin::made(&systemd), systemd.property(nginx, "MainPID"));
    for args in [&["--upgrade"][..], &["--upgrade", "--oldpackage"]] {
        let version = if args.len() == 1 { &made.newer } else { &made.older };
        let pid = systemd.property(agent, "MainPID");
        rpm(&[args, &[bring(&systemd, &version.rpm).as_str()]].concat());
        assert_eq!(systemd.property(agent, "ActiveState"), "active");
        assert_ne!(systemd.property(agent, "MainPID"), pid);
        assert_eq!(before, (admin::made(&systemd), systemd.property(nginx, "MainPID")));
    }
    rpm(&["--erase", "tiexec"]);
    assert_eq!(systemd.property(agent, "LoadState"), "not-found");
    assert!(!systemd.path("/usr/bin/tiexecctl").exists());
    // An RPM has no purge, so the removal also disables services. It keeps the rest.
    let mut kept = before;
    let [_, _, options, _, link] = &mut kept.0;
    (*options, *link) = (None, None);
    assert_eq!(kept, (admin::made(&systemd), systemd.property(nginx, "MainPID")));
    systemd.systemctl(["restart", nginx]).assert_code(0);
}
