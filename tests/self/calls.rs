//! A program calls `tiexec_self` while it works. Afterwards its text is huge, seen from outside, and the program is
//! unharmed.

use support::attaching::{assert_switched, collapses, descriptors, revert, switched};
use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, huge_folios};
use support::{Done, Fresh, Held, Kind, Linked, coverage, program_with, require};

use super::library::{calls_itself, directory, situation};

const NO_COLLAPSE: &str = "the kernel has no MADV_COLLAPSE";
const IMAGE: &str = "backing=image";

fn shared() -> Fresh {
    calls_itself("libtiexec.so", Kind::DynamicPie)
}

/// The words of the program's lines with this prefix: the code, the bytes of huge text and of all text, the reason.
pub(crate) fn calls(text: &str, what: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    lines.map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// Asserts that the program's last call worked, and that all of its text is huge now.
fn assert_huge(held: &Held) {
    let calls = calls(&held.out_text(), "call");
    let last = calls.last().expect("a call");
    assert_eq!((&last[0][..], &last[3][..]), ("0", "-"), "{calls:?}");
    let coverage = coverage(held.pid());
    assert!(coverage.is_full(), "{coverage:?}: {calls:?}");
    let said: u64 = last[1].parse().expect("a number");
    assert!(said >= 4 << 20, "{said}: {coverage:?}");
}

fn ends_well(held: Held) -> Done {
    let done = held.finish();
    done.assert_code(7).assert_silent();
    done
}

#[test]
fn linked_only_it_does_nothing() {
    let copy = shared();
    for environment in [None, Some("backing=image"), Some("report")] {
        let run = situation(&copy, &["nothing"]);
        let run = environment.iter().fold(run, |run, value| run.env("TIEXEC", value));
        let held = run.hold();
        assert_eq!((switched(held.pid()), coverage(held.pid()).huge), (0, 0));
        ends_well(held);
    }
}

#[test]
fn text_becomes_huge_in_every_kind_of_program() {
    require!(collapses(), "{NO_COLLAPSE}");
    for (file, kind) in [
        ("libtiexec.so", Kind::DynamicPie),
        ("libtiexec.so", Kind::DynamicNoPie),
        ("libtiexec.a", Kind::StaticPie),
        ("libtiexec.a", Kind::StaticNoPie),
    ] {
        let copy = calls_itself(file, kind);
        let held = situation(&copy, &["call", IMAGE]).hold();
        assert_huge(&held);
        assert_switched(held.pid());
        ends_well(held);
    }
}

#[test]
fn the_code_that_switches_lies_in_the_text_that_is_switched() {
    require!(collapses(), "{NO_COLLAPSE}");
    // The edges are included, so that the static library is switched at any place in the text.
    for kind in [Kind::DynamicPie, Kind::OneSegmentPie, Kind::OneSegmentNoPie] {
        let copy = calls_itself("libtiexec.a", kind);
        let held = situation(&copy, &["threads", "backing=image,edges=aggressive"]).hold();
        assert_huge(&held);
        ends_well(held);
    }
}

/// The page cache has the text in huge folios, which the kernel maps by base pages. The call drops these page table
/// entries, also those of its own code, and lets the kernel map the text again.
#[test]
fn text_that_is_huge_in_the_page_cache_is_only_mapped_anew() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    for (file, kind) in [
        ("libtiexec.a", Kind::OneSegmentNoPie),
        ("libtiexec.a", Kind::StaticNoPie),
        ("libtiexec.so", Kind::DynamicNoPie),
    ] {
        let linked = Linked { directory: directory(), file };
        let copy = Fresh::copy(&program_with("calls_itself", kind, linked));
        let held = situation(&copy, &["refault", "backing=pagecache"]).hold();
        let small = calls(&held.out_text(), "small");
        require!(small[0][0] == "0", "this kernel maps huge pages also while THP are off");
        assert_huge(&held);
        assert_eq!(switched(held.pid()), 0, "no copy");
        assert_file_pmd_mapped(held.pid(), copy.path());
        ends_well(held);
    }
}

#[test]
fn while_threads_run_in_it() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["threads", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

#[test]
fn while_signals_arrive_all_the_time() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["signals", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

/// No child inherits a descriptor of the library, such as one that could write to its parent's memory.
#[test]
fn while_it_forks_all_the_time() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["forks", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

#[test]
fn in_a_child_and_before_a_child() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["child", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

/// pthread_cancel(3) ends a thread after the call. An unwinding through the library would end the process.
#[test]
fn in_a_thread_that_is_cancelled() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["cancelled", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

#[test]
fn in_two_threads_at_once() {
    require!(collapses(), "{NO_COLLAPSE}");
    let held = situation(&shared(), &["both", IMAGE]).hold();
    assert_huge(&held);
    ends_well(held);
}

#[test]
fn nothing_of_it_stays_after_its_revert() {
    require!(collapses(), "{NO_COLLAPSE}");
    let copy = shared();
    let plain = situation(&copy, &["nothing"]).hold();
    let (threads, before) = (threads(plain.pid()), descriptors(plain.pid()).len());
    ends_well(plain);
    let mut held = situation(&copy, &["revert", IMAGE]).hold();
    assert_huge(&held);
    assert_eq!(descriptors(held.pid()).len(), before);
    held.write(b"\n");
    held.wait_line("reverted");
    assert_eq!((switched(held.pid()), coverage(held.pid()).huge), (0, 0));
    assert_eq!(calls(&held.out_text(), "revert")[0][0], "0");
    assert_eq!(self::threads(held.pid()), threads);
    ends_well(held);
}

fn threads(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).expect("an own child").count()
}

/// `tiexecctl` reverts a call of the program itself.
#[test]
fn it_is_reverted_from_outside() {
    require!(support::is_root() && collapses(), "not root, or {NO_COLLAPSE}");
    let held = situation(&shared(), &["call", "backing=image,edges=aggressive"]).hold();
    assert_huge(&held);
    revert(held.pid()).assert_code(0).assert_silent();
    assert_eq!((switched(held.pid()), coverage(held.pid()).huge), (0, 0));
    ends_well(held);
}
