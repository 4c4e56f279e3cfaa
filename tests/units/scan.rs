//! `tiexecctl scan` names a service by its unit, in the table and in the command to run next.

use serde_json::Value;
use support::child::eventually;
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Kind, install, program_big, require};

#[test]
fn a_service_is_named_by_its_unit() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    install(&program_big("hotset", Kind::DynamicNoPie, 6), &systemd.path("/opt/hotset"), 0o755);
    let unit = "[Service]\nExecStart=/opt/hotset 1500 600\n";
    systemd.write_unit("/etc/systemd/system/hot@.service", unit);
    systemd.start("hot@a-b.service");
    eventually("it runs its program", || systemd.processes("hot@a-b.service") == ["/opt/hotset"]);
    let done = systemd.ctl(["scan", "--duration", "5s", "--json"]);
    done.assert_code(0).assert_silent();
    let scan: Value = serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{e}: {done}"));
    let rows = scan["programs"].as_array().expect("programs");
    let row = rows.iter().find(|row| row["exe"] == "/opt/hotset");
    let row = row.unwrap_or_else(|| panic!("{scan}"));
    assert_eq!(row["unit"], "hot@a-b.service", "{row}");
    // Whether it gains depends on the machine.
    if let Some(next) = row["estimate"]["next"].as_str() {
        assert!(next.starts_with("tiexecctl "), "{row}");
        assert!(next.ends_with(" --unit hot@a-b.service"), "{row}");
    }
}
