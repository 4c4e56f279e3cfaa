//! Real programs run as without TiExec, and every whole huge page inside their text is PMD-mapped when their main runs.

use std::path::Path;

use support::first_output::held_at_first_output;
use support::smaps::{coverage_of, vmas};
use support::{BUSY_NODE, Coverage, Fresh, Run, has_library, installed, require};

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
    let node = Fresh::installed("node");
    require!(node.is_some(), "no node on PATH");
    let node = node.expect("just looked");
    let script = "console.log('pid '+process.pid);console.log('ready');\
                  process.stdin.on('data',()=>{}).on('end',()=>process.exit(13))";
    let mut run = Run::new(node.path(), ["-e", script]);
    // Debian 13's node has its text in libnode.so. This test does not copy that, so a start finds it in any state.
    if has_library(node.path(), "/libnode.so") {
        run = run.options(["--backing=image", "--deadline=2m"]);
    }
    let mut held = run.start();
    held.wait_line("ready");
    let vmas = vmas(held.pid());
    let library = vmas.iter().find(|vma| vma.path.contains("/libnode.so"));
    let file = library.map_or(node.path(), |vma| Path::new(&vma.path));
    let coverage = coverage_of(&vmas, file);
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
    let go = Fresh::installed("go");
    require!(go.is_some(), "no go on PATH");
    // Go finds its own files beside its program, or by this variable.
    let root = support::child::tool(&["go", "env", "GOROOT"]);
    let root = String::from_utf8_lossy(&root.stdout).trim().to_owned();
    let go = go.expect("just looked");
    assert_covered(&Run::new(go.path(), ["version"]).env("GOROOT", root));
}

#[test]
fn the_biggest_go_program_of_this_machine() {
    let known: [(&str, &[&str]); 4] = [
        ("prometheus", &["--version"]),
        ("kubectl", &["version", "--client"]),
        ("docker", &["--version"]),
        ("terraform", &["version"]),
    ];
    let found = known.into_iter().filter_map(|(name, args)| Some((Fresh::installed(name)?, args)));
    let found: Vec<_> = found.take(2).collect();
    require!(!found.is_empty(), "no big Go program on PATH");
    for (copy, args) in found {
        let (name, coverage) =
            (copy.path().display(), assert_covered(&Run::new(copy.path(), args)));
        assert!(coverage.huge >= 8 << 20, "{name}: {coverage:?}");
    }
}

#[test]
fn prometheus() {
    let copy = Fresh::installed("prometheus");
    require!(copy.is_some(), "no prometheus on PATH");
    assert_covered(&Run::new(copy.expect("just looked").path(), ["--version"]));
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
    let python = support::programs::python();
    require!(python.is_some(), "no Python of the distribution's");
    let python = python.expect("just looked");
    let script = "import sys, zlib; sys.stdout.write('%x\\n' % zlib.crc32(bytes(range(256)) * 5000)); sys.stdout.flush()";
    let run = Run::new(python.path(), ["-c", script]);
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
    let copy = Fresh::small(std::path::Path::new(&cc1));
    let run = Run::new(
        copy.path(),
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
