//! Real programs run as without TiExec, and every whole huge page inside their text is PMD-mapped when their main runs.

use support::first_output::held_at_first_output;
use support::{BUSY_NODE, Coverage, Run, installed, require};

fn assert_covered(run: &Run) -> Coverage {
    let plain = run.plain().output();
    plain.assert_code(0);
    let done = run.output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), plain.out(), "{done}");
    assert!(!plain.stdout.is_empty(), "{plain}");
    let (coverage, output) = held_at_first_output(run);
    assert_eq!(output, plain.stdout, "{run:?}");
    assert!(coverage.is_full(), "{run:?}: {coverage:?}");
    coverage
}

#[test]
fn node_has_24_mib_of_huge_text() {
    require!(installed("node").is_some(), "no node on PATH");
    let script = "console.log('pid '+process.pid);console.log('ready');\
                  process.stdin.on('data',()=>{}).on('end',()=>process.exit(13))";
    // With a report, a helper maps all of the text. Otherwise, if node's file is warm, the kernel maps only the parts
    // that node has used.
    let dir = tempfile::tempdir().expect("a directory");
    let report = format!("--report={}", dir.path().join("report").display());
    let mut held = Run::new("node", ["-e", script]).options([report]).start();
    held.wait_line("ready");
    let coverage = held.coverage();
    assert!(coverage.is_full(), "{coverage:?}");
    assert!(coverage.text < 24 << 20 || coverage.huge >= 24 << 20, "{coverage:?}");
    assert_eq!(held.said_pid(), held.pid());
    held.finish().assert_code(13).assert_silent();
}

#[test]
fn node_works_under_load() {
    require!(installed("node").is_some(), "no node on PATH");
    let run = Run::new("node", ["-e", BUSY_NODE]);
    let (plain, done) = (run.plain().output(), run.output());
    plain.assert_code(0);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), plain.out());
}

#[test]
fn go_programs() {
    require!(installed("go").is_some(), "no go on PATH");
    assert_covered(&Run::new("go", ["version"]));
}

#[test]
fn the_biggest_go_program_of_this_machine() {
    let known: [(&str, &[&str]); 4] = [
        ("prometheus", &["--version"]),
        ("kubectl", &["version", "--client"]),
        ("docker", &["--version"]),
        ("terraform", &["version"]),
    ];
    let found: Vec<_> = known.into_iter().filter(|(name, _)| installed(name).is_some()).collect();
    require!(!found.is_empty(), "no big Go program on PATH");
    for (name, args) in found.into_iter().take(2) {
        let coverage = assert_covered(&Run::new(name, args));
        assert!(coverage.huge >= 8 << 20, "{name}: {coverage:?}");
    }
}

#[test]
fn prometheus() {
    require!(installed("prometheus").is_some(), "no prometheus on PATH");
    let run = Run::new("prometheus", ["--version"]);
    assert_covered(&run);
}

#[test]
fn go_with_many_threads() {
    require!(installed("go").is_some(), "no go on PATH");
    let dir = tempfile::tempdir().expect("a directory");
    let run = Run::new("go", ["list", "-f", "{{.ImportPath}} {{len .GoFiles}}", "std"])
        .cwd(dir.path())
        .env("GOCACHE", dir.path())
        .env("GOFLAGS", "-mod=mod");
    let (plain, done) = (run.plain().output(), run.output());
    plain.assert_code(0);
    done.assert_code(0).assert_silent();
    assert!(plain.out().lines().count() > 100, "{plain}");
    assert_eq!(done.out(), plain.out());
}

#[test]
fn python() {
    require!(installed("python3").is_some(), "no python3 on PATH");
    let python = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(|p| std::path::Path::new(p).exists())
        .unwrap_or("python3");
    let script = "import sys, zlib; sys.stdout.write('%x\\n' % zlib.crc32(bytes(range(256)) * 5000)); sys.stdout.flush()";
    let run = Run::new(python, ["-c", script]);
    let (plain, done) = (run.plain().output(), run.output());
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), plain.out());
    let (coverage, output) = held_at_first_output(&run);
    assert_eq!(output, plain.stdout);
    assert_eq!(coverage.huge, coverage.whole, "{coverage:?}");
}

#[test]
fn the_c_compiler() {
    let proper = support::child::tool(&["cc", "-print-prog-name=cc1"]);
    let cc1 = String::from_utf8_lossy(&proper.stdout).trim().to_owned();
    require!(std::path::Path::new(&cc1).is_file(), "cc has no cc1 here");
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("a.c");
    std::fs::write(&source, "int f(int a) { return a * 3; }\n").expect("a source file");
    let source: std::ffi::OsString = source.into();
    let run = Run::new(
        &cc1,
        ["-quiet".into(), source, "-O2".into(), "-o".into(), std::ffi::OsString::from("-")],
    );
    let coverage = assert_covered(&run);
    assert!(coverage.huge >= 16 << 20, "{coverage:?}");
}

#[test]
fn a_big_program_of_our_own() {
    let run = Run::new(support::program_big("hold", support::Kind::DynamicPie, 32), ["0"]);
    let held = run.hold();
    let coverage = held.coverage();
    assert!(coverage.is_full() && coverage.huge >= 30 << 20, "{coverage:?}");
    held.finish().assert_code(0).assert_silent();
}
