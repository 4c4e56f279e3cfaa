//! Shared objects of a running process are switched and reverted while eight threads run in them and check them.

use support::attaching::{ctl, json};
use support::objects::{Made, WithObject, object_coverage, own_text};
use support::{Held, require, rounds};

fn attach(pid: i32, more: &[&str]) -> support::Done {
    let pid = pid.to_string();
    ctl(["attach", "--backing=image", "--json", &pid].into_iter().chain(more.iter().copied()))
}

fn revert(pid: i32) -> support::Done {
    ctl(["revert", "--json", &pid.to_string()])
}

fn held(with: &WithObject, args: &[&str]) -> Held {
    with.run(args).plain().hold()
}

#[test]
fn back_and_forth_under_eight_threads() {
    for made in [Made::Gnu, Made::Lld, Made::Musl] {
        require!(made.can_build(), "no compiler or linker for {made:?}");
        let with = WithObject::new(made);
        let held = held(&with, &["7"]);
        for _ in 0..rounds(3) {
            attach(held.pid(), &[]).assert_code(0);
            let coverage = with.coverage(held.pid());
            assert!(coverage.is_full(), "{made:?}: {coverage:?}");
            revert(held.pid()).assert_code(0);
            assert_eq!(with.coverage(held.pid()).huge, 0, "{made:?}");
        }
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn selected_or_not() {
    let with = WithObject::sized(Made::Gnu, 6, 6);
    let held = held(&with, &["7"]);
    attach(held.pid(), &["--select", "main"]).assert_code(0);
    assert!(held.coverage().is_full());
    assert_eq!(with.coverage(held.pid()).huge, 0);
    attach(held.pid(), &["--select=dso"]).assert_code(0);
    assert!(with.coverage(held.pid()).is_full() && held.coverage().is_full());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn mapped_twice() {
    let with = WithObject::new(Made::Gnu);
    let held = held(&with, &["7", "dlmopen"]);
    assert_eq!(own_text(held.pid(), &with.object).len(), 2, "two of it");
    attach(held.pid(), &[]).assert_code(0);
    let coverage = with.coverage(held.pid());
    assert!(coverage.is_full() && coverage.text > 12 << 20, "{coverage:?}");
    revert(held.pid()).assert_code(0);
    assert_eq!(
        own_text(held.pid(), &with.object).iter().map(|vma| vma.end - vma.start).sum::<u64>(),
        coverage.text
    );
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn one_without_a_name() {
    let with = WithObject::new(Made::Gnu);
    let held = held(&with, &["7", "memfd"]);
    attach(held.pid(), &[]).assert_code(0);
    assert!(with.coverage(held.pid()).is_full());
    let unnamed = object_coverage(held.pid(), "/memfd:object (deleted)".as_ref());
    assert!(unnamed.text > 6 << 20, "{unnamed:?}: it is left alone");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn replaced_and_removed() {
    let with = WithObject::new(Made::Gnu);
    let held = held(&with, &["7"]);
    std::fs::remove_file(&with.object).expect("an own file");
    std::fs::copy(&with.program, &with.object).expect("another in its place");
    let done = attach(held.pid(), &[]);
    let deleted = format!("{} (deleted)", with.object.display());
    if done.end().0 == Some(0) {
        let coverage = object_coverage(held.pid(), deleted.as_ref());
        assert!(coverage.is_full(), "{coverage:?}");
    }
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn what_is_sealed_or_execute_only_is_left_alone() {
    for (what, reason) in [("sealed", "sealed"), ("execute-only", "protection_key")] {
        let with = WithObject::new(Made::Gnu);
        let held = held(&with, &["7", what]);
        require!(
            what != "sealed" || held.out_text().contains("sealed\n"),
            "the kernel has no mseal(2)"
        );
        let before = own_text(held.pid(), &with.object);
        let done = attach(held.pid(), &[]);
        done.assert_code(0);
        let said = json(&done).to_string();
        assert!(said.contains(reason), "{what}: {said}");
        let after = own_text(held.pid(), &with.object);
        let lines = |all: &[support::smaps::Vma]| -> Vec<String> {
            all.iter().map(|vma| format!("{:x}-{:x} {}", vma.start, vma.end, vma.perms)).collect()
        };
        assert_eq!(lines(&after), lines(&before), "{what}");
        held.finish().assert_code(7).assert_silent();
    }
}
