//! If the helper dies at any step of a move, the program runs undamaged at the old place or the new one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use support::extent::{Share, is_whole, shared};
use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, huge_folios};
use support::smaps::{status_field, vmas};
use support::{Fresh, Kind, Run, program, require};

/// Launches with a fault. Returns true if the fault occurred. `places` collects whether the program ended at a
/// congruent place.
fn struck(copy: &Fresh, fault: &str, pieces: usize, places: &mut BTreeSet<bool>) -> bool {
    let report = copy.dir().join("report");
    let mut complete = launched(copy, fault, pieces, places, &report);
    // One program in 512 lies at a congruent place by chance. Then nothing is moved, and no step can fail.
    let moved = || std::fs::read_to_string(&report).is_ok_and(|r| r.contains("\"rebased\":true"));
    if complete && !moved() {
        complete = launched(copy, fault, pieces, places, &report);
    }
    !complete
}

/// Launches with a fault. Returns true if the launch was complete all the same.
fn launched(
    copy: &Fresh,
    fault: &str,
    pieces: usize,
    places: &mut BTreeSet<bool>,
    report: &Path,
) -> bool {
    let _none_yet = std::fs::remove_file(report);
    let option = format!("--report={}", report.display());
    // Without --settle=0 the companion may trace the program by then, to treat the text that the helper left.
    let run = Run::new(copy.path(), ["lives"])
        .options([option.as_str(), "--json", "--settle=0"])
        .env("TIEXEC_FAULT", fault);
    let held = run.hold();
    let pid = held.pid();
    let complete = std::fs::read_to_string(report).is_ok_and(|r| r.contains("\"launch\":{"));
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"), "{fault}");
    let name = copy.path().to_string_lossy().into_owned();
    let of_the_file = vmas(pid).iter().filter(|vma| vma.path == name).count();
    // There is one moment in which neither way home may unmap. A death in that moment leaves both images, and never
    // more.
    assert!(of_the_file <= 2 * pieces, "{fault}: {of_the_file} mappings, {pieces} without us");
    if complete {
        assert_file_pmd_mapped(pid, copy.path());
        assert_eq!(of_the_file, pieces, "{fault}");
    }
    let bias = held.said("bias").and_then(|b| u64::from_str_radix(&b, 16).ok());
    let text = vmas(pid).into_iter().filter(|vma| vma.path == name && vma.is_text());
    let bias = bias.unwrap_or_else(|| panic!("{fault}: no bias"));
    let own = text.min_by_key(|vma| vma.start.abs_diff(bias)).expect("text");
    let pmd = support::pmd_size();
    places.insert(own.start % pmd == own.offset % pmd);
    let done = held.finish();
    done.assert_code(7);
    if complete {
        done.assert_silent();
    } else if !done.stderr.is_empty() {
        done.assert_failed_open(&["helper_died"]);
    }
    complete
}

fn at_every_step(fault: &str) {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // The program ended at the old place and at the new one, after a death before the change and after it.
    let places = RefCell::new(BTreeSet::new());
    for (share, kind) in shared([Kind::DynamicPie, Kind::LldStaticPie, Kind::Musl]) {
        require!(kind.can_build(), "no compiler or linker for {kind:?}");
        places.borrow_mut().extend(at_every_step_of(fault, kind, share));
    }
    let places = places.into_inner();
    assert_eq!(places.len(), 2, "{fault}: died before the change and after it: {places:?}");
}

/// Returns whether the program ended at a congruent place, of all deaths.
fn at_every_step_of(fault: &str, kind: Kind, share: Share) -> BTreeSet<bool> {
    // If page cache were reclaimed meanwhile, the number of steps would change.
    let copy = Fresh::copy(&program("rebased", kind));
    let plain = Run::new(copy.path(), ["lives"]).plain().hold();
    let name = copy.path().to_string_lossy().into_owned();
    let pieces = vmas(plain.pid()).iter().filter(|vma| vma.path == name).count();
    drop(plain);
    let mut places = BTreeSet::new();
    share.sweep(6, &format!("{kind:?}: {fault}"), |n| {
        struck(&copy, &format!("{fault}:{n}"), pieces, &mut places)
    });
    assert!(!is_whole() || places.len() == 2, "{kind:?}, {fault}: {places:?}");
    places
}

#[test]
fn after_each_register_write() {
    at_every_step("die-after-setregs");
}

#[test]
fn after_each_stop_it_sees() {
    at_every_step("die-after-stop");
}

#[test]
fn after_each_write_to_its_memory() {
    at_every_step("die-after-write");
}

#[test]
fn after_each_step_of_a_move_that_is_taken_back() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let filter = program("seccomp_exec", Kind::DynamicPie);
    for (share, kind) in shared([Kind::DynamicPie, Kind::LldStaticPie]) {
        require!(kind.can_build(), "no linker for {kind:?}");
        let copy = Fresh::copy(&program("rebased", kind));
        // The filter refuses PR_SET_MM, when the program already refers to its new place.
        let run = Run::new(copy.path(), ["lives"]).behind([
            filter.as_os_str(),
            "errno=1".as_ref(),
            "prctl/0=35".as_ref(),
        ]);
        for fault in ["die-after-setregs", "die-after-write"] {
            for n in (1..40).filter(|&n| share.has(n)) {
                let done = run.clone().env("TIEXEC_FAULT", format!("{fault}:{n}")).hold().finish();
                done.assert_code(7);
            }
        }
    }
}
