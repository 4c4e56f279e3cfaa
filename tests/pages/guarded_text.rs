//! Text with protection against indirect branches (BTI) keeps the protection on huge pages and after a revert.
#![cfg(target_arch = "aarch64")]

use support::attaching::{Before, assert_switched, assert_untouched, attach, ok, revert, small};
use support::smaps::{Vma, vmas};
use support::{Kind, Run, pmd_size, require, require_of_machine};

/// The text of the program: its own mappings, and ours in their place.
fn text(pid: i32, program: &std::path::Path) -> Vec<Vma> {
    let name = program.to_string_lossy();
    let of_it = |vma: &Vma| vma.is_text() && (vma.path == name || vma.is_switched());
    vmas(pid).into_iter().filter(of_it).collect()
}

fn assert_guarded(pid: i32, program: &std::path::Path) {
    let text = text(pid, program);
    assert!(!text.is_empty());
    for vma in text {
        assert!(vma.flags.iter().any(|flag| flag == "bt"), "{vma:?}");
    }
}

/// Returns whether the processor and the kernel have BTI (`HWCAP2_BTI`).
fn has_bti() -> bool {
    // SAFETY: the call takes a number.
    unsafe { libc::getauxval(libc::AT_HWCAP2) >> 17 & 1 == 1 }
}

const KINDS: [Kind; 2] = [Kind::Guarded, Kind::GuardedPie];

#[test]
fn launched_by_a_copy() {
    require_of_machine!(has_bti(), "the processor has no BTI");
    require!(pmd_size() <= 2 << 20, "huge pages too large for the program");
    for kind in KINDS {
        let copy = small("guarded", kind);
        let plain = Run::new(copy.path(), [""; 0]).plain().hold();
        assert_guarded(plain.pid(), copy.path());
        plain.finish().assert_code(7);
        let held = Run::new(copy.path(), [""; 0]).options(["--backing=image"]).hold();
        assert!(held.coverage().is_full(), "{kind:?}: {:?}", held.coverage());
        assert_guarded(held.pid(), copy.path());
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn launched_on_the_page_cache() {
    require_of_machine!(has_bti(), "the processor has no BTI");
    require!(support::fresh::huge_folios(), "{}", support::fresh::NO_HUGE_FOLIOS);
    for kind in KINDS {
        let copy = support::Fresh::copy(&support::program("guarded", kind));
        let held = Run::new(copy.path(), [""; 0]).options(["--backing=pagecache"]).hold();
        assert!(held.coverage().is_full(), "{kind:?}: {:?}", held.coverage());
        assert_guarded(held.pid(), copy.path());
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn attached_to_and_reverted() {
    require_of_machine!(has_bti(), "the processor has no BTI");
    require!(pmd_size() <= 2 << 20, "huge pages too large for the program");
    for kind in KINDS {
        let copy = small("guarded", kind);
        let held = Run::new(copy.path(), [""; 0]).plain().hold();
        let pid = held.pid();
        let before = Before::of(pid);
        ok(&attach(pid));
        assert_switched(pid);
        assert_guarded(pid, copy.path());
        ok(&revert(pid));
        assert_untouched(pid, &before);
        assert_guarded(pid, copy.path());
        held.finish().assert_code(7).assert_silent();
    }
}
