//! A program that is moved to an address where its text is congruent sees itself like a plain one, with every way of
//! linking, and its text lies on the page cache's huge folios.

use std::path::Path;

use support::first_output::reported_at_first_output;
use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, assert_pagecache, huge_folios};
use support::programs::{Cgo, build_go};
use support::{Done, Fresh, Held, Kind, Report, Run, installed, program, require, write_program};

/// The lines that do not name an address or a process.
fn facts(done: &Done) -> Vec<String> {
    let varying = ["bias ", "pid ", "huge ", "place "];
    let out = done.out();
    out.lines().filter(|l| !varying.iter().any(|v| l.starts_with(v))).map(str::to_owned).collect()
}

/// Launches the program until it prints "ready", and asserts that its text is at the right place.
fn hold_on_the_page_cache(run: &Run, file: &Path, rebased: bool) -> Held {
    let report = Report::new();
    let held = report.of(run).hold();
    assert_pagecache(&report.read(), rebased);
    assert_file_pmd_mapped(held.pid(), file);
    held
}

fn finds_itself(kind: Kind, rebased: bool) {
    let copy = Fresh::copy(&program("rebased", kind));
    let run = Run::new(copy.path(), ["hold"]);
    let plain = run.plain().hold().finish();
    plain.assert_code(7);
    let done = hold_on_the_page_cache(&run, copy.path(), rebased).finish();
    done.assert_code(7).assert_silent();
    assert_eq!(facts(&done), facts(&plain), "{kind:?}");
}

#[test]
fn linked_by_gnu_ld() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    finds_itself(Kind::DynamicPie, true);
    finds_itself(Kind::OneSegmentPie, true);
}

#[test]
fn a_program_that_cannot_be_moved_need_not_be() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    finds_itself(Kind::DynamicNoPie, false);
    finds_itself(Kind::StaticNoPie, false);
}

#[test]
fn linked_by_lld() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(Kind::LldPie.can_build(), "no lld");
    finds_itself(Kind::LldPie, true);
    finds_itself(Kind::LldSeparatePie, true);
}

#[test]
fn linked_by_mold() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(Kind::MoldPie.can_build(), "no mold");
    finds_itself(Kind::MoldPie, true);
    finds_itself(Kind::MoldSeparatePie, true);
}

#[test]
fn static_and_position_independent() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::StaticPie));
    // The kernel may have chosen a congruent address.
    let report = Report::new();
    let held = report.of(&Run::new(copy.path(), ["hold"])).hold();
    assert_file_pmd_mapped(held.pid(), copy.path());
    assert_eq!(report.read()["launch"]["backing"], "pagecache");
    held.finish().assert_code(7).assert_silent();

    require!(Kind::LldStaticPie.can_build(), "no lld");
    finds_itself(Kind::LldStaticPie, true);
}

#[test]
fn with_musl() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(Kind::Musl.can_build(), "no musl-gcc (musl-tools)");
    finds_itself(Kind::Musl, true);
    finds_itself(Kind::MuslStaticPie, true);
}

#[test]
fn exceptions_are_caught() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(Kind::CxxPie.can_build(), "no c++");
    for kind in [Kind::CxxPie, Kind::CxxStaticPie] {
        let copy = Fresh::copy(&program("rebased_throw", kind));
        let run = Run::new(copy.path(), [""; 0]).fixed_addresses();
        let plain = run.plain().hold().finish();
        plain.assert_code(7);
        let report = Report::new();
        let held = report.of(&run).hold();
        assert_file_pmd_mapped(held.pid(), copy.path());
        assert_eq!(report.read()["launch"]["rebased"], kind == Kind::CxxPie, "{kind:?}");
        let done = held.finish();
        done.assert_code(7).assert_silent();
        assert_eq!(facts(&done), facts(&plain));
        assert!(done.out().contains(" caught 1 1 1\n"), "{done}");
    }
}

/// A Go function of megabytes, in assembler, which returns 42 at its end.
fn go_text(mib: usize) -> String {
    let words = mib << 17;
    let filler = "\tQUAD $0xcccccccccccccccc\n".repeat(words);
    format!("TEXT ·big(SB),4,$0-8\n\tJMP end\n{filler}end:\n\tMOVQ $42, ret+0(FP)\n\tRET\n")
}

#[test]
fn go() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(installed("go").is_some() && cfg!(target_arch = "x86_64"), "no go on PATH");
    let sources = support::sources().join("go_pie");
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["main.go", "go.mod"] {
        std::fs::copy(sources.join(name), dir.path().join(name)).expect("a copy");
    }
    std::fs::write(dir.path().join("text_amd64.s"), go_text(5)).expect("a source");
    let built = dir.path().join("go_pie");
    let complaint =
        build_go(dir.path(), Cgo::Without, &["-buildmode=pie"], &built).err().unwrap_or_default();
    require!(complaint.is_empty(), "go build: {complaint}");

    let copy = Fresh::copy(&built);
    let run = Run::new(copy.path(), [""; 0]);
    let plain = run.plain().hold().finish();
    plain.assert_code(7);
    let done = hold_on_the_page_cache(&run, copy.path(), true).finish();
    done.assert_code(7).assert_silent();
    assert_eq!(facts(&done), facts(&plain));
    assert!(done.out().starts_with("24755000 50 42 11 true\n"), "{done}");
}

/// Runs a private copy of an installed program, if it is position-independent. The launched and the plain program must
/// print the same.
fn real(path: &str, args: &[&str]) {
    let copy = Fresh::copy(Path::new(path));
    let run = Run::new(copy.path(), args);
    let plain = run.plain().output();
    plain.assert_code(0);
    for _ in 0..3 {
        let report = Report::new();
        let output = reported_at_first_output(&run, &report);
        assert_eq!(String::from_utf8_lossy(&output), plain.out());
        assert_pagecache(&report.read(), true);
    }
}

#[test]
fn postgres() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let known = ["13", "14", "15", "16", "17", "18"]
        .map(|v| format!("/usr/lib/postgresql/{v}/bin/postgres"));
    let found = known.iter().find(|path| Path::new(path).exists());
    require!(found.is_some(), "no postgres");
    let path = found.expect("just found");
    real(path, &["--version"]);
    // All settings and their descriptions: a walk through most of its data.
    real(path, &["--describe-config"]);
}

#[test]
fn mariadbd() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let path = "/usr/sbin/mariadbd";
    require!(Path::new(path).exists(), "no mariadbd");
    let dir = tempfile::tempdir().expect("a directory");
    let datadir = format!("--datadir={}", dir.path().display());
    real(path, &["--no-defaults", &datadir, "--user=root", "--help", "--verbose"]);

    // A working server, with tables, a function that the optimiser calls, and an index.
    let copy = Fresh::copy(Path::new(path));
    let share = ["/usr/share/mariadb", "/usr/share/mysql"];
    require!(share.iter().any(|share| Path::new(share).exists()), "none of {share:?}");
    let script = dir.path().join("bootstrap.sql");
    let sql = "CREATE DATABASE d; USE d; CREATE TABLE t (a INT PRIMARY KEY, b TEXT) ENGINE=Aria; \
               INSERT INTO t VALUES (1,'x'),(2,REPEAT('y',1000)); \
               SELECT SUM(a*LENGTH(b)) INTO OUTFILE 'result' FROM t WHERE b REGEXP '^(x|y+)$';\n";
    write_program(&script, sql.replace("; ", ";\n").as_bytes(), 0o644);
    let run = Run::new(
        copy.path(),
        [
            "--no-defaults",
            &datadir,
            "--user=root",
            "--bootstrap",
            "--skip-grant-tables",
            "--innodb=OFF",
            "--default-storage-engine=Aria",
            "--silent-startup",
        ],
    );
    let sh = format!("exec \"$@\" <'{}'", script.display());
    let report = Report::new();
    let done = report.of(&run.behind_sh(&sh)).output();
    done.assert_code(0);
    assert_pagecache(&report.read(), true);
    let result = std::fs::read_to_string(dir.path().join("d/result"));
    assert_eq!(result.ok().as_deref(), Some("2001\n"), "{done}");
}
