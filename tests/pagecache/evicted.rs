//! Text that the kernel evicts as soon as nobody has it mapped becomes huge all the same.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::fresh::{NO_HUGE_FOLIOS, huge_folios, uncache};
use support::{Fresh, Kind, Report, Run, program, require};

/// How often the program is launched.
const LAUNCHES: usize = 64;

/// Does `work` while a thread takes the file out of the page cache again and again, as reclaim does
/// to what nobody has mapped.
fn while_evicted(path: &Path, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                uncache(path);
            }
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn between_the_look_and_the_switch() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    let run = report.of(&Run::new(copy.path(), ["brief"]).options(["--deadline=2m"]));
    let mut without_a_copy = 0;
    while_evicted(copy.path(), || {
        for _ in 0..LAUNCHES {
            // A launch whose text is not huge says so on its standard error.
            run.output().assert_code(7).assert_silent();
            let report = report.read();
            assert_eq!(report["outcome"], "switched", "{report}");
            without_a_copy += usize::from(report["launch"]["bytes_copied"] == 0);
        }
    });
    // The thread sometimes evicts a folio before the touch that read it has mapped it. The kernel
    // then reads that page in alone (`filemap_fault`, mm/filemap.c), and its huge page is copied.
    assert!(
        without_a_copy > LAUNCHES / 2,
        "{without_a_copy} of {LAUNCHES} launches copied nothing"
    );
}
