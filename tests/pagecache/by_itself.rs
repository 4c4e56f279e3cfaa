//! Text that the kernel or the dynamic linker makes huge by itself stays as it is: TiExec does nothing, and says so in one line.

use support::attaching::{Before, assert_untouched, ctl, json, ok, switched};
use support::child::eventually;
use support::fresh::{assert_file_pmd_mapped, collapses_files};
use support::machine::{FELT, Machine, is_throwaway};
use support::smaps::touch_text;
use support::{Fresh, Held, Kind, Run, program, require_of_machine};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const NO_TUNABLE: &str = "the C library has no glibc.elf.thp (glibc 2.44), or the page cache of the target directory no huge folios";

/// A program whose text glibc.elf.thp covers, because each segment begins with a huge page. Nothing of it is cached.
fn cold() -> Fresh {
    Fresh::cold(&program("hold", Kind::SpreadPie))
}

fn with_tunable(copy: &Fresh) -> Run {
    Run::new(copy.path(), ["7"]).env("GLIBC_TUNABLES", "glibc.elf.thp=1")
}

/// Panics unless TiExec leaves this program, all of whose text is huge, as it is, and says that there is nothing to do.
fn assert_left_alone(held: Held, copy: &Fresh) {
    let pid = held.pid();
    let before = Before::of(pid);
    assert_file_pmd_mapped(pid, copy.path());
    let done = ctl(["attach", &pid.to_string()]);
    ok(&done);
    let said = done.out();
    assert!(said.lines().count() == 1 && said.ends_with("; nothing to do\n"), "{said}");
    assert_untouched(pid, &before);
    let report = json(&ctl(["inspect", "--json", &pid.to_string()]));
    let huge = &report["by_backing"]["pagecache"]["huge_bytes"];
    assert_eq!(*huge, held.coverage().huge, "{report}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn by_the_dynamic_linker() {
    let copy = cold();
    let held = with_tunable(&copy).plain().hold();
    require_of_machine!(held.coverage().is_full(), NO_TUNABLE);
    assert_left_alone(held, &copy);
}

#[test]
fn a_start_by_tiexec_copies_nothing() {
    let probe = cold();
    require_of_machine!(with_tunable(&probe).plain().hold().coverage().is_full(), NO_TUNABLE);
    let copy = cold();
    let held = with_tunable(&copy).hold();
    assert!(held.coverage().is_full() && switched(held.pid()) == 0, "{:?}", held.coverage());
    assert_left_alone(held, &copy);
}

#[test]
fn by_khugepaged() {
    require_of_machine!(is_throwaway(), FELT);
    require_of_machine!(
        collapses_files(),
        "khugepaged collapses no files of the file system of the target directory"
    );
    let mut machine = Machine::lock();
    assert!(machine.set(format!("{THP}/enabled"), "always"));
    assert!(machine.set(format!("{THP}/khugepaged/scan_sleep_millisecs"), "10"));
    assert!(machine.set(format!("{THP}/khugepaged/pages_to_scan"), "100000"));
    let mut copy = Fresh::small(&program("hold", Kind::DynamicNoPie));
    copy.let_go();
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    eventually("khugepaged has made the text huge", || {
        touch_text(held.pid());
        held.coverage().is_full()
    });
    assert_left_alone(held, &copy);
}
