//! On kernels that collapse cached files (with `READ_ONLY_THP_FOR_FS`, or from 7.2 on), text that is cached in small folios becomes huge in its
//! place: at a launch, in a running program, and by `tiexecctl warm`.

use support::attaching::{ctl, ok};
use support::fresh::{assert_file_pmd_mapped, assert_launched_on_pagecache, collapses_files};
use support::{Fresh, Kind, Run, program, require_of_machine};

const NO_COLLAPSE: &str =
    "the kernel collapses no files of the file system of the target directory";

/// A copy in small folios, which no other process has mapped.
fn small(kind: Kind) -> Fresh {
    let mut copy = Fresh::small(&program("hold", kind));
    copy.let_go();
    copy
}

#[test]
fn at_launch() {
    require_of_machine!(collapses_files(), NO_COLLAPSE);
    for kind in [Kind::DynamicPie, Kind::DynamicNoPie, Kind::StaticNoPie] {
        assert_launched_on_pagecache(&small(kind), kind);
    }
}

#[test]
fn while_it_runs() {
    require_of_machine!(collapses_files(), NO_COLLAPSE);
    let copy = small(Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    ok(&ctl(["attach", "--json", &held.pid().to_string()]));
    assert_file_pmd_mapped(held.pid(), copy.path());
    held.finish().assert_code(7).assert_silent();
}

/// A plain exec finds huge text afterwards.
#[test]
fn by_warm() {
    require_of_machine!(collapses_files(), NO_COLLAPSE);
    let copy = small(Kind::DynamicNoPie);
    let done = ctl(["warm", "--json", &copy.path().to_string_lossy()]);
    done.assert_code(0);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    assert_file_pmd_mapped(held.pid(), copy.path());
    assert!(held.coverage().is_full());
    held.finish().assert_code(7).assert_silent();
}
