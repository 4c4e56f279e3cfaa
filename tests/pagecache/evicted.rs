//! Text that the kernel evicts as soon as nobody has it mapped becomes huge all the same.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::fresh::{NO_HUGE_FOLIOS, assert_pagecache, huge_folios, uncache};
use support::{Fresh, Kind, Report, Run, program, require};

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
    while_evicted(copy.path(), || {
        for _ in 0..64 {
            run.output().assert_code(7).assert_silent();
            assert_pagecache(&report.read(), true);
        }
    });
}
