//! Programs that move a part of their own text with mremap(MREMAP_DONTUNMAP), as V8 does with its builtins. The kernel
//! leaves zeros in the old place of memory that is of no file.

use support::attaching::{attach, json, ok, revert, small, switched};
use support::edges::ask;
use support::{Held, Kind, Run, tiexec};

fn held(run: Run) -> Held {
    run.plain().hold()
}

fn moves_and_is_right(held: &mut Held, place: &str, when: &str) {
    assert_eq!(ask(held, &format!("remap {place}")), "ok", "{when}");
    assert_eq!(ask(held, "check"), "ok", "{when}");
}

#[test]
fn of_text_that_a_launch_put_on_huge_pages() {
    for backing in ["pagecache", "image"] {
        let copy = small("remapped", Kind::DynamicPie);
        let options = [&format!("--backing={backing}"), "--", copy.path().to_str().expect("text")];
        let mut held = held(Run::new(tiexec(), options));
        moves_and_is_right(&mut held, "near", backing);
        held.write(b"end\n");
        held.finish().assert_code(7);
    }
}

#[test]
fn of_text_that_an_attach_copied() {
    for place in ["near", "far"] {
        let copy = small("remapped", Kind::DynamicPie);
        let mut held = held(Run::new(copy.path(), [""; 0]));
        let pid = held.pid();
        ok(&attach(pid));
        moves_and_is_right(&mut held, place, place);
        let done = revert(pid);
        assert_eq!(ask(&mut held, "check"), "ok", "{place}: {done}");
        assert_eq!(switched(pid), 0, "{place}: {done}");
        held.write(b"end\n");
        held.finish().assert_code(7);
    }
}

#[test]
fn before_an_attach() {
    let copy = small("remapped", Kind::DynamicPie);
    let mut held = held(Run::new(copy.path(), [""; 0]));
    let pid = held.pid();
    moves_and_is_right(&mut held, "near", "plain");
    let done = attach(pid);
    assert!(json(&done)["huge_bytes"].as_u64().is_some(), "{done}");
    assert_eq!(ask(&mut held, "check"), "ok", "{done}");
    revert(pid).assert_code(0);
    assert_eq!(ask(&mut held, "check"), "ok");
    assert_eq!(switched(pid), 0);
    held.write(b"end\n");
    held.finish().assert_code(7);
}
