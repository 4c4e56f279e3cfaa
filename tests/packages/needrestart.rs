//! By the package's configuration, needrestart does not mistake text in memory files or removed images for replaced
//! libraries.

use support::require;
use support::systemd::{self, Systemd, can_boot};

use crate::{NEEDS, app, bring, dpkg, packages, write};

/// A configuration without Debian's exceptions, so that only the exceptions of the packages count.
const BARE: &str = "foreach my $file (sort </etc/needrestart/conf.d/*.conf>) {\n    \
    eval do { local (@ARGV, $/) = $file; <> };\n    die $@ if $@;\n}\n";

#[test]
fn memory_files_and_removed_images() {
    require!(packages().is_some() && can_boot(), "{NEEDS}; {}", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    write(&systemd, "/srv/bare.conf", BARE);
    // In the second round the program uses an image of the store.
    for name in ["image", "store"] {
        let program = format!("/opt/{name}");
        support::install(&app(), &systemd.path(&program), 0o755);
        if name == "store" {
            systemd.ctl(["store", "setup"]).assert_code(0);
            systemd.ctl(["store", "add", &program]).assert_code(0);
        }
        // The program reads until its standard input ends, so nothing closes this pipe.
        let script = format!(
            "mkfifo /run/{name}; exec tiexec --strict --deadline=2m --backing=image {program} 7 0<>/run/{name}"
        );
        let unit = format!("/etc/systemd/system/{name}.service");
        let text = format!("[Service]\nExecStart=/bin/sh -c '{script}'\n");
        systemd.write_unit(&unit, &text);
        let unit = format!("{name}.service");
        systemd.start(&unit);
        support::child::eventually("the program runs", || systemd.log(&unit).contains("ready"));
    }
    let maps = |unit: &str| {
        let main = systemd.property(unit, "MainPID");
        systemd.run(["cat", &format!("/proc/{main}/maps")]).out()
    };
    systemd.ctl(["store", "remove", "/opt/store"]).assert_code(0);
    let gone = |maps: &str, name: &str| {
        maps.lines().any(|line| line.contains(name) && line.ends_with(" (deleted)"))
    };
    assert!(gone(&maps("store.service"), "/run/tiexec/images/"), "{}", maps("store.service"));
    assert!(gone(&maps("image.service"), "/memfd:tiexec:"), "{}", maps("image.service"));
    let flagged = |config: &str| {
        let done = systemd.run(["needrestart", "-b", "-l", "-r", "l", "-c", config]);
        let out = done.assert_code(0).out();
        let services = out.lines().filter_map(|line| line.strip_prefix("NEEDRESTART-SVC: "));
        let mut ours: Vec<String> = services
            .filter(|name| ["image.service", "store.service"].contains(name))
            .map(str::to_owned)
            .collect();
        ours.sort();
        ours
    };
    assert_eq!(flagged("/etc/needrestart/needrestart.conf"), [""; 0]);
    assert_eq!(flagged("/srv/bare.conf"), [""; 0]);
    // Without the package's configuration, needrestart reports the programs.
    std::fs::remove_file(systemd.path("/etc/needrestart/conf.d/tiexec.conf")).expect("the file");
    assert_eq!(flagged("/srv/bare.conf"), ["image.service", "store.service"]);
}
