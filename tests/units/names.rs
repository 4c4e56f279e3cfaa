//! A word in the place of a PID is the name of a service, and `report` takes units.

use serde_json::Value;
use support::child::eventually;
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Kind, install, program_big, require};

/// Returns the JSON of a page.
fn page(html: &str) -> Value {
    let (_, rest) = html.split_once("id=\"data\">").expect("the JSON");
    let (json, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(json).expect("JSON")
}

#[test]
fn a_word_is_the_name_of_a_service() {
    require!(can_boot(), "{NEEDS}");
    let systemd = Systemd::boot();
    for name in ["service", "hotset"] {
        let kind = if name == "hotset" { Kind::DynamicNoPie } else { Kind::StaticNoPie };
        install(&program_big(name, kind, 6), &systemd.path(&format!("/opt/{name}")), 0o755);
    }
    let steady = "[Service]\nExecStart=/opt/service run\n";
    systemd.write_unit("/etc/systemd/system/idle.service", steady);
    let alias = systemd.path("/etc/systemd/system/other-name.service");
    std::os::unix::fs::symlink("steady.service", alias).expect("an alias");
    systemd.write_unit("/etc/systemd/system/steady.service", steady);
    let hot = "[Service]\nExecStart=/opt/hotset 1500 600\n";
    systemd.write_unit("/etc/systemd/system/hot@.service", hot);
    for (unit, program) in [("steady.service", "/opt/service"), ("hot@a-b.service", "/opt/hotset")]
    {
        systemd.start(unit);
        eventually("it runs its program", || systemd.processes(unit) == [program]);
    }
    let says = "tiexecctl: steady: the unit steady.service\n";
    let pid = systemd.property("steady.service", "MainPID");
    for words in [
        &["inspect", "--json", "steady"][..],
        &["attach", "--json", "--backing=image", "steady"],
        &["doctor", "--json", "steady"],
        &["revert", "--json", "steady"],
    ] {
        let done = systemd.ctl(words);
        // The doctor may find something that keeps text from being huge, and exits with 1 then.
        assert!(words[0] == "doctor" || done.status.success(), "{done}");
        assert_eq!(done.err(), says, "{done}");
        let first = done.out().lines().next().expect("an object").to_owned();
        let object: Value = serde_json::from_str(&first).expect("JSON");
        assert_eq!(object["pid"].to_string(), pid, "{done}");
        let is_huge = systemd.huge("steady.service") > 0;
        assert_eq!(is_huge, ["attach", "doctor"].contains(&words[0]), "{words:?}: {done}");
    }
    // An alias is shown by the unit's own name. With `--quiet` there are only errors.
    let done = systemd.ctl(["inspect", "other-name"]);
    assert_eq!(done.assert_code(0).err(), "tiexecctl: other-name: the unit steady.service\n");
    systemd.ctl(["revert", "-q", "steady.service"]).assert_code(0).assert_silent();
    for selected in [&["hot@a-b"][..], &["--unit", "hot@a-b"]] {
        let done = systemd.ctl([&["advise", "--duration", "2s", "--json"], selected].concat());
        let advice: Value = serde_json::from_str(&done.assert_code(0).out()).expect("JSON");
        assert_eq!(advice["comm"], "hotset", "{done}");
        let done = systemd.ctl([&["report", "--duration", "2s"], selected].concat());
        let page = page(&done.assert_code(0).out());
        let main = systemd.property("hot@a-b.service", "MainPID");
        assert_eq!(page["process"]["coverage"]["pid"].to_string(), main, "{done}");
    }
    // A unit without a process exists, and a part of a name is no name.
    let done = systemd.ctl(["inspect", "idle"]);
    done.assert_code(4);
    assert!(done.err().contains("cannot find a process of unit idle.service: "), "{done}");
    for command in ["inspect", "doctor", "advise", "report", "attach", "revert"] {
        let done = systemd.ctl([command, "stead"]);
        done.assert_code(2);
        let says = "cannot find a process or a service stead: systemd has no unit stead.service; \
                    fix: use steady.service";
        assert!(done.err().contains(says) && done.out().is_empty(), "{command}: {done}");
    }
}
