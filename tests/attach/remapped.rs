//! Programs that move a part of their own text with mremap(MREMAP_DONTUNMAP), as V8 does with its builtins. The kernel
//! leaves zeros in the old place of memory that is of no file.

use support::attaching::{attach, joined, json, ok, revert, small, switched};
use support::edges::{ask, finish};
use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, huge_folios};
use support::smaps::mappings;
use support::{Fresh, Held, Kind, Run, program, require, tiexec};

/// Starts the program without TiExec.
fn plain() -> (Fresh, Held) {
    let copy = small("remapped", Kind::DynamicPie);
    let held = Run::new(copy.path(), [""; 0]).plain().hold();
    (copy, held)
}

/// The same with copied text, a part of which the program has moved then.
fn moved(place: &str) -> (Fresh, Held) {
    let (copy, mut held) = plain();
    ok(&attach(held.pid()));
    moves_and_is_right(&mut held, place, place);
    (copy, held)
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

fn launched(copy: &Fresh, backing: &str) -> Held {
    let options = [&format!("--backing={backing}"), "--", copy.path().to_str().expect("text")];
    Run::new(tiexec(), options).plain().hold()
}

#[test]
fn of_text_that_a_launch_copied() {
    let copy = small("remapped", Kind::DynamicPie);
    let mut held = launched(&copy, "image");
    assert!(switched(held.pid()) > 0);
    moves_and_is_right(&mut held, "near", "copied");
    finish(held);
}

#[test]
fn of_text_in_the_page_cache() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // A program that is not position-independent is congruent at its own address.
    let copy = Fresh::copy(&program("remapped", Kind::StaticNoPie));
    let mut held = launched(&copy, "pagecache");
    assert_file_pmd_mapped(held.pid(), copy.path());
    moves_and_is_right(&mut held, "near", "in the page cache");
    finish(held);
}

#[test]
fn of_text_that_an_attach_copied() {
    for place in ["near", "far"] {
        let (copy, mut held) = moved(place);
        let pid = held.pid();
        // The next attach must not take the moved part for the rest of a dead one.
        let again = attach(pid);
        assert_eq!(ask(&mut held, "check"), "ok", "{place}: {again}");
        let copied = switched(pid);
        let done = revert(pid);
        assert_eq!(json(&done)["reverted_bytes"], copied, "{place}: {done}");
        assert_eq!(ask(&mut held, "check"), "ok", "{place}: {done}");
        assert_eq!(switched(pid), 0, "{place}: {done}");
        assert_eq!(texts(pid, &copy), 2, "{place}: {:#?}", joined(pid));
        finish(held);
    }
}

#[test]
fn before_an_attach() {
    let (_copy, mut held) = plain();
    let pid = held.pid();
    moves_and_is_right(&mut held, "near", "plain");
    let done = attach(pid);
    assert!(switched(pid) > 0, "{done}");
    assert_eq!(ask(&mut held, "check"), "ok", "{done}");
    revert(pid).assert_code(0);
    assert_eq!(ask(&mut held, "check"), "ok");
    assert_eq!(switched(pid), 0);
    finish(held);
}

#[test]
fn a_part_that_the_program_changed_stays() {
    for place in ["near", "far"] {
        let (_copy, mut held) = moved(place);
        let pid = held.pid();
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
        finish(held);
    }
}
