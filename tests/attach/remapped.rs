//! Programs that move a part of their own text with mremap(MREMAP_DONTUNMAP), as V8 does with its builtins. The kernel
//! leaves zeros in the old place of memory that is of no file.

use support::attaching::{attach, joined, json, ok, revert, small, switched};
use support::edges::ask;
use support::smaps::mappings;
use support::{Fresh, Held, Kind, Run, tiexec};

fn held(run: Run) -> Held {
    run.plain().hold()
}

fn moves_and_is_right(held: &mut Held, place: &str, when: &str) {
    assert_eq!(ask(held, &format!("remap {place}")), "ok", "{when}");
    assert_eq!(ask(held, "check"), "ok", "{when}");
}

/// How many mappings of the program's own file are executable.
fn texts(pid: i32, copy: &Fresh) -> usize {
    let path = copy.path().to_string_lossy();
    mappings(pid).iter().filter(|vma| vma.path == path && vma.perms == "r-xp").count()
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
        // The next attach must not take the moved part for the rest of a dead one.
        let again = attach(pid);
        assert_eq!(ask(&mut held, "check"), "ok", "{place}: {again}");
        let copied = switched(pid);
        let done = revert(pid);
        assert_eq!(json(&done)["reverted_bytes"], copied, "{place}: {done}");
        assert_eq!(ask(&mut held, "check"), "ok", "{place}: {done}");
        assert_eq!(switched(pid), 0, "{place}: {done}");
        assert_eq!(texts(pid, &copy), 2, "{place}: {:#?}", joined(pid));
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
    assert!(switched(pid) > 0, "{done}");
    assert_eq!(ask(&mut held, "check"), "ok", "{done}");
    revert(pid).assert_code(0);
    assert_eq!(ask(&mut held, "check"), "ok");
    assert_eq!(switched(pid), 0);
    held.write(b"end\n");
    held.finish().assert_code(7);
}

#[test]
fn a_part_that_the_program_changed_stays() {
    for place in ["near", "far"] {
        let copy = small("remapped", Kind::DynamicPie);
        let mut held = held(Run::new(copy.path(), [""; 0]));
        let pid = held.pid();
        ok(&attach(pid));
        moves_and_is_right(&mut held, place, place);
        let copied = switched(pid);
        assert_eq!(ask(&mut held, "patch"), "ok");
        for _ in 0..2 {
            let done = revert(pid);
            assert!(
                done.err().contains("modified_text") || done.err().contains("file_gone"),
                "{done}"
            );
            assert_eq!(ask(&mut held, "check"), "ok", "{place}: {done}");
            assert!((1..copied).contains(&switched(pid)), "{place}: {done}");
        }
        attach(pid);
        assert_eq!(ask(&mut held, "check"), "ok", "{place}");
        held.write(b"end\n");
        held.finish().assert_code(7);
    }
}
