//! Text becomes huge even if the kernel evicts it as soon as no process maps it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::fresh::{NO_HUGE_FOLIOS, evict_unmapped, huge_folios};
use support::{Fresh, Kind, Report, Run, extent, program, require};

/// The number of launches, but for `make soak`.
const FEW_LAUNCHES: usize = 6;

/// Does `work` while a thread evicts the file from the page cache again and again, as reclaim does with unmapped pages.
fn while_evicted(path: &Path, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                evict_unmapped(path);
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
    let copy = Fresh::cold(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    let options = ["--deadline=2m", "--evict=never"];
    let run = report.of(&Run::new(copy.path(), ["brief"]).options(options));
    let launches = extent::rounds(FEW_LAUNCHES);
    let mut without_a_copy = 0;
    while_evicted(copy.path(), || {
        for _ in 0..launches {
            // A launch without huge text would print a line on standard error.
            run.output().assert_code(7).assert_silent();
            let report = report.read();
            assert_eq!(report["outcome"], "switched", "{report}");
            without_a_copy += usize::from(report["launch"]["bytes_copied"] == 0);
        }
    });
    // The thread sometimes evicts a folio after a touch has read it and before the touch maps it. The kernel then reads
    // only that page (`filemap_fault`, mm/filemap.c), and TiExec copies its huge page.
    extent::met(without_a_copy, launches, "launches without a copy");
}
