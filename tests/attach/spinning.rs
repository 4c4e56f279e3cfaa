//! Threads run in the text that is switched, handle signals there, and count their work. They continue exactly through
//! many attaches.

use support::attaching::{ctl, cycle, descriptors, joined, ok, revert, switched};
use support::{Kind, Run, program, program_big, rounds};

/// Attaches to and reverts a program with four busy threads, `cycles` times.
fn goes_on(first_thread: &str, first_kind: &str, kind: Kind, cycles: usize) {
    let held = Run::new(program("spinner", kind), [first_thread, first_kind]).plain().hold();
    let pid = held.pid();
    let (maps, fds) = (joined(pid), descriptors(pid));
    cycle(pid, cycles);
    assert_eq!(joined(pid), maps);
    assert_eq!(descriptors(pid), fds);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn with_all_threads_busy() {
    goes_on("spin", "0", Kind::DynamicPie, rounds(5));
}

/// The first thread would notice a stop, so TiExec stops a busy thread.
#[test]
fn through_each_kind_of_thread() {
    for kind in ["0", "1", "2", "3"] {
        goes_on("wait", kind, Kind::DynamicPie, rounds(2));
    }
}

#[test]
fn in_a_static_program() {
    goes_on("wait", "2", Kind::StaticNoPie, rounds(2));
}

/// The program has much text. The page cache serves as a backing where it is huge.
#[test]
fn with_every_backing_and_more_text() {
    let held =
        Run::new(program_big("spinner", Kind::DynamicNoPie, 32), ["spin", "1"]).plain().hold();
    let pid = held.pid();
    for backing in ["auto", "image", "pagecache"] {
        let pid = pid.to_string();
        for _ in 0..rounds(2) {
            ok(&ctl(["attach", "--backing", backing, &pid]));
            ok(&revert(held.pid()));
        }
    }
    assert!(switched(pid) == 0);
    held.finish().assert_code(7).assert_silent();
}
