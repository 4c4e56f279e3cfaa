//! `tiexecctl canary --unit` measures one of Debian's services by the service's own counter, and leaves the service as
//! it was. What is better, it proposes to enable.

use support::attaching::json;
use support::child::eventually;
use support::fresh::{keep_small, uncache};
use support::systemd::{NEEDS, Systemd, can_boot};
use support::{Kind, install, require};

const UNIT: &str = "mariadb.service";
/// The counter command of the guide.
const QUESTIONS: &str = "mariadb -BNe 'show global status' | grep -w Questions";

#[test]
fn of_a_database_under_load() {
    require!(can_boot() && Systemd::has(UNIT), "{NEEDS}, mariadb-server");
    let systemd = Systemd::boot();
    systemd.start(UNIT);
    let main = systemd.property(UNIT, "MainPID");
    // If root runs the canary, the counter runs as nobody.
    let user = "create user nobody@localhost identified via unix_socket";
    systemd.run(["mariadb", "--execute", user]).assert_code(0);
    let ask = "while :; do mariadb --execute 'select benchmark(20000, md5(1))'; done >/run/answers";
    let load = systemd.command(["sh", "-c", ask]).start();
    let args = ["canary", "--json", "--slice=1s", "--max=16s", "--keep-above=2"];
    let done = systemd.ctl([&args[..], &["--counter", QUESTIONS, "--unit", UNIT]].concat());
    done.assert_code(6);
    let found = json(&done);
    assert!(found["pairs"].as_u64().is_some_and(|pairs| pairs >= 1), "{done}");
    assert!(found["switches"].as_u64().is_some_and(|switches| switches >= 2), "{done}");
    assert_eq!(found["kept"], false, "{done}");
    assert_eq!(systemd.huge(UNIT), 0, "{done}");
    assert_eq!(systemd.property(UNIT, "MainPID"), main, "{}", systemd.log(UNIT));
    systemd.systemctl(["is-active", UNIT]).assert_code(0);
    let more = ["--max=1h", "--counter", QUESTIONS, "--unit", UNIT];
    let words = ["canary", "--slice=1s", "--keep-above=2"].into_iter().chain(more);
    let mut canary =
        systemd.command(std::iter::once("/usr/bin/tiexecctl").chain(words.clone())).start();
    eventually("it is on copies", || {
        assert!(!canary.has_ended(), "{}", canary.err_text());
        systemd.huge(UNIT) > 0
    });
    // A second one is told of the first.
    let second = systemd.ctl(words);
    second.assert_code(1);
    let says = format!(" alternates process {main} (/usr/sbin/mariadbd, unit {UNIT}) since ");
    assert!(second.err().contains(&says), "{second}");
    assert!(second.err().contains("; fix: wait for its end, at about "), "{second}");
    // A canary does not go on with another process of the service.
    systemd.systemctl(["restart", UNIT]).assert_code(0);
    let done = canary.finish();
    done.assert_code(4);
    assert!(done.out().contains("(the service has ended, or was restarted)"), "{done}");
    assert_eq!(systemd.huge(UNIT), 0, "{done}");
    let verdicts = systemd.ctl(["canary", "export"]);
    assert_eq!(json(&verdicts)["verdicts"], serde_json::json!([]), "{verdicts}");
    drop(load);
}

/// Starts a service, `counts.service`. A microsecond of it counts 100, and `worth` on huge pages.
fn counting(worth: u32) -> Systemd {
    let systemd = Systemd::boot();
    let program = systemd.path("/opt/counts");
    install(&support::program("counts", Kind::DynamicNoPie), &program, 0o755);
    // Writing the file may have left it in huge folios.
    uncache(&program);
    keep_small(&program);
    // The program ends at the end of its input.
    let unit = format!(
        "[Service]\nExecStartPre=mkfifo /run/input\n\
         ExecStart=sh -c 'exec /opt/counts /run/count {worth} <>/run/input'\n"
    );
    systemd.write_unit("/etc/systemd/system/counts.service", &unit);
    systemd.start("counts.service");
    eventually("it runs its program", || systemd.processes("counts.service") == ["/opt/counts"]);
    systemd
}

const CANARY: [&str; 6] =
    ["canary", "--json", "--slice=400ms", "--edges=pad", "--counter", "cat /run/count"];

/// The next step is about the whole service, with the options that were measured.
#[test]
fn what_is_better_is_to_be_enabled_with_the_same_options() {
    require!(can_boot(), "{NEEDS}");
    let systemd = counting(300);
    let done = systemd.ctl([&CANARY[..], &["counts"]].concat());
    let found = json(done.assert_code(0));
    assert_eq!((&found["verdict"], &found["kept"]), (&"better".into(), &true.into()), "{done}");
    let enable = "tiexecctl enable counts.service -- --edges=pad";
    assert_eq!(found["next"]["command"], enable, "{done}");
    systemd.ctl(enable.split(' ').skip(1)).assert_code(0);
}

#[test]
fn what_is_worse_is_to_be_enabled_no_more() {
    require!(can_boot(), "{NEEDS}");
    let systemd = counting(30);
    // It looks at the running process, and leaves it as it is.
    systemd.ctl(["enable", "counts"]).assert_code(0);
    assert_eq!(systemd.huge("counts.service"), 0);
    let done = systemd.ctl([&CANARY[..], &["counts"]].concat());
    let found = json(done.assert_code(6));
    assert_eq!((&found["verdict"], &found["kept"]), (&"worse".into(), &false.into()), "{done}");
    let disable = "tiexecctl disable counts.service";
    assert_eq!(found["next"]["command"], disable, "{done}");
    let done = systemd.ctl(disable.split(' ').skip(1));
    assert!(done.assert_code(0).out().contains("counts.service: removed "), "{done}");
}
