//! If TiExec dies at any instant while it takes or reverts the edges of a text, the program continues, and a later
//! attempt works.

use support::attaching::{descriptors, joined, revert_run, small};
use support::edges::{ask, assert_unharmed, finish, hold, huge_ranges};
use support::extent::{ALL, shared};
use support::smaps::{status_field, vmas};
use support::{Fresh, Kind, Report, Run, program, require};

use super::edges_attach::shape;

const NONE: [&str; 0] = [];
const POINTS: [&str; 3] = ["die-after-setregs", "die-after-stop", "die-after-write"];

fn attach(pid: i32) -> Run {
    let args = ["attach", "--backing=image", "--edges=aggressive", &pid.to_string()];
    Run::new(support::tiexecctl(), args).plain()
}

fn revert(pid: i32) -> Run {
    revert_run(pid)
}

/// Kills TiExec at each place of an attach, and of a revert.
fn at_each_place(copy: &Fresh, point: &str) {
    let mut held = hold(&Run::new(copy.path(), NONE).plain());
    let pid = held.pid();
    assert_eq!(ask(&mut held, "protect"), "ok");
    let image = ask(&mut held, "check");
    let (before, fds) = (joined(pid), descriptors(pid));
    for (name, run) in [("attach", attach as fn(i32) -> Run), ("revert", revert)] {
        ALL.sweep(4, &format!("{name}, {point}"), |n| {
            if name == "revert" {
                attach(pid).output().assert_code(0);
            }
            let done = run(pid).env("TIEXEC_FAULT", format!("{point}:{n}")).output();
            let when = format!("{name}, {point}:{n}");
            assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"), "{when}");
            assert_eq!(ask(&mut held, "check"), image, "{when}");
            let struck = done.end().1 == Some(libc::SIGKILL);
            revert(pid).output().assert_code(0);
            assert_eq!(joined(pid), before, "{when}");
            assert_eq!(descriptors(pid), fds, "{when}");
            struck
        });
    }
    attach(pid).output().assert_code(0);
    assert_unharmed(&mut held);
    finish(held);
}

#[test]
fn after_each_register_write_of_an_attach() {
    at_each_place(&small("own_image", Kind::DynamicNoPie), POINTS[0]);
}

#[test]
fn after_each_stop_of_an_attach() {
    at_each_place(&small("own_image", Kind::DynamicNoPie), POINTS[1]);
}

#[test]
fn after_each_write_of_an_attach() {
    at_each_place(&small("own_image", Kind::DynamicNoPie), POINTS[2]);
}

/// The helper dies at each place of a launch.
#[test]
fn at_each_place_of_a_launch() {
    for (share, (kind, backing)) in shared([
        (Kind::SeedNoPie, "--backing=image"),
        (Kind::SpreadPie, "--backing=image"),
        (Kind::StaticNoPie, "--backing=pagecache"),
    ]) {
        let copy = Fresh::copy(&program("own_image", kind));
        for point in &POINTS[..2] {
            share.sweep(4, &format!("{kind:?}: {point}"), |n| {
                // Without --settle=0 the companion may trace the program by then.
                let report = Report::new();
                let run = Run::new(copy.path(), NONE)
                    .options([backing, "--edges=pad", "--deadline=2m", "--settle=0"])
                    .env("TIEXEC_FAULT", format!("{point}:{n}"));
                let mut held = hold(&report.of(&run));
                let pid = held.pid();
                assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
                let writable = |perms: &str| perms.contains('w') && perms.contains('x');
                assert!(!vmas(pid).iter().any(|vma| writable(&vma.perms)));
                let complete = report.complete();
                assert!(!complete || !huge_ranges(pid).is_empty(), "{kind:?} {point}:{n}");
                assert_unharmed(&mut held);
                held.write(b"end\n");
                held.finish().assert_code(7);
                !complete
            });
        }
    }
}

/// TiExec dies at each place of a revert of edges that a launch has taken: their gaps hold filler.
fn at_each_place_of_a_revert(kind: Kind, backing: &str) {
    let copy = small("own_image", kind);
    let run = Run::new(copy.path(), NONE);
    let mut plain = hold(&run.clone().plain());
    assert_eq!(ask(&mut plain, "protect"), "ok");
    let (image, usual) = (ask(&mut plain, "check"), shape(plain.pid()));
    for point in &POINTS[..2] {
        ALL.sweep(4, &format!("{kind:?}, {backing}: {point}"), |n| {
            let mut held =
                hold(&run.clone().options([backing, "--edges=aggressive", "--deadline=2m"]));
            let pid = held.pid();
            assert_eq!(ask(&mut held, "protect"), "ok");
            assert!(!huge_ranges(pid).is_empty());
            let done = revert(pid).env("TIEXEC_FAULT", format!("{point}:{n}")).output();
            let when = format!("{kind:?}, {backing}: {point}:{n}");
            assert_eq!(ask(&mut held, "check"), image, "{when}");
            revert(pid).output().assert_code(0);
            assert_eq!(shape(pid), usual, "{when}: {done}");
            assert_unharmed(&mut held);
            finish(held);
            done.end().1 == Some(libc::SIGKILL)
        });
    }
    finish(plain);
}

#[test]
fn at_each_place_of_a_revert_of_a_launch() {
    at_each_place_of_a_revert(Kind::SeedNoPie, "--backing=image");
}

/// The kernel takes back no part of a page of the pool, so the revert first puts base pages in its place.
#[test]
fn at_each_place_of_a_revert_of_pages_of_the_pool() {
    let mut machine = support::machine::Machine::lock();
    require!(machine.pool(16), "16 huge pages cannot be reserved");
    for kind in [Kind::SeedNoPie, Kind::DynamicPie] {
        at_each_place_of_a_revert(kind, "--backing=hugetlb");
    }
}
