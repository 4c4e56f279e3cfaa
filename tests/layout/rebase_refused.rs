//! If the kernel refuses a step of the move, the program stays undamaged at its place, and its text becomes huge by a
//! copy.

use std::path::Path;

use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::smaps::vmas;
use support::{Fresh, Held, Kind, Prep, Report, Run, program, require};

/// The number of a file's mappings in a process, and the bytes from the first to the end of the last.
fn extent(held: &Held, file: &Path) -> (usize, u64) {
    let name = file.to_string_lossy();
    let ours: Vec<_> = vmas(held.pid()).into_iter().filter(|vma| vma.path == name).collect();
    let (first, last) = (ours.first().expect("an image"), ours.last().expect("an image"));
    (ours.len(), last.end - first.start)
}

/// Asserts that the program is not moved because of `why`, that it runs from an image of its text, and that the attempt
/// leaves nothing.
fn copied_instead(run: &Run, file: &Path, why: &str) {
    let plain = run.plain().hold();
    let (_, len) = extent(&plain, file);
    plain.finish().assert_code(7);
    let report = Report::new();
    let mut held = report.of(run).fixed_addresses().hold();
    let report = report.read();
    let launch = &report["launch"];
    assert_eq!(
        (&report["outcome"], &launch["rebased"]),
        (&"switched".into(), &false.into()),
        "{report}"
    );
    assert_eq!(launch["backing"], "image", "{report}");
    let setback = launch["setback"].as_str().unwrap_or_else(|| panic!("no setback: {report}"));
    assert!(setback.starts_with("rebase_failed: ") && setback.contains(why), "{setback}");
    assert_eq!(extent(&held, file).1, len, "one image, as long as without us");
    held.assert_full();
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn too_little_address_space_for_two() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("much_data", Kind::DynamicPie));
    let run = Run::new(copy.path(), [""; 0]);
    let plain = run.plain().hold();
    let (_, len) = extent(&plain, copy.path());
    drop(plain);
    // The limit leaves room for the program with its 16 MiB of zeroes, its libraries and the staging area of its text,
    // but not for a second image.
    let limit = Prep::Rlimit(libc::RLIMIT_AS, len + (32 << 20));
    copied_instead(&run.prep(limit), copy.path(), "ENOMEM");
}

#[test]
fn too_little_data_space_for_two() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("much_data", Kind::DynamicPie));
    let limit = Prep::Rlimit(libc::RLIMIT_DATA, 24 << 20);
    copied_instead(&Run::new(copy.path(), [""; 0]).prep(limit), copy.path(), "ENOMEM");
}

/// Asserts the same under a filter that answers one call with EPERM.
fn refused(call: &str, why: &str) {
    let filter = program("seccomp_exec", Kind::DynamicPie);
    for kind in [Kind::DynamicPie, Kind::LldPie] {
        require!(kind.can_build(), "no linker for {kind:?}");
        let copy = Fresh::copy(&program("rebased", kind));
        let run = Run::new(copy.path(), ["hold"]).behind([
            filter.as_os_str(),
            "errno=1".as_ref(),
            call.as_ref(),
        ]);
        copied_instead(&run, copy.path(), why);
    }
}

#[test]
fn the_last_mapping_is_refused() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE maps the bss, after the parts of the file.
    refused("mmap/3=0x100022", "EPERM");
}

#[test]
fn the_kernel_will_not_be_told_of_the_new_place() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // At PR_SET_MM the program already refers to its new place, and TiExec undoes all of that.
    refused("prctl/0=35", "prctl(PR_SET_MM_MAP)");
}
