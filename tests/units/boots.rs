//! The systemd of these tests runs Debian's own units, `attach --unit` reaches their services, and the machine is not
//! changed.

use std::path::Path;

use support::require;
use support::systemd::{NEEDS, Systemd, can_boot, debians};

#[test]
fn debians_services_are_attached_to() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    for (unit, edges) in &debians() {
        systemd.start(unit);
        let main = systemd.property(unit, "MainPID");
        let done = systemd.ctl(["attach", "--backing=image", "--edges", edges, &main]);
        done.assert_code(0);
        assert!(systemd.huge(unit) > 0, "{unit}: {done}\n{}", systemd.log(unit));
        systemd.systemctl(["is-active", unit]).assert_code(0);
    }
}

#[test]
fn the_machine_keeps_nothing() {
    require!(can_boot(), "{NEEDS}");
    // Debian's systemd changes these settings when it boots a machine.
    let machine = || {
        let knobs = ["fs/protected_regular", "fs/file-max", "fs/nr_open", "kernel/core_pattern"];
        let nodes = ["log", "initctl", "mqueue", "hugepages"];
        let knobs = knobs.map(|file| std::fs::read_to_string(format!("/proc/sys/{file}")).ok());
        (knobs, nodes.map(|node| Path::new("/dev").join(node).symlink_metadata().is_ok()))
    };
    let before = machine();
    let systemd = Systemd::boot();
    assert_eq!(systemd.run(["cat", "/proc/1/comm"]).out(), "systemd\n");
    // Controllers would be the machine's own, with groups of this systemd.
    assert_eq!(systemd.run(["ls", "/sys/fs/cgroup"]).out(), "systemd\n");
    for path in ["/usr/tiexec-test", "/proc/sys/kernel/hostname", "/sys/kernel/mm/ksm/run"] {
        let done = systemd.run(["sh", "-c", &format!("echo 0 >{path}")]);
        assert!(!done.status.success() && done.err().contains("Read-only"), "{done}");
    }
    for path in ["/etc/tiexec-test", "/var/tiexec-test", "/dev/tiexec-test"] {
        systemd.run(["sh", "-c", &format!("echo 0 >{path}")]).assert_code(0);
        assert!(!Path::new(path).exists(), "{path}");
    }
    let process = systemd.path("");
    drop(systemd);
    assert!(!process.exists(), "{}", process.display());
    assert_eq!(before, machine());
}
