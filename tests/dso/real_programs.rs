//! Real programs whose text lies in shared objects have the same output as without TiExec, and every whole huge page of
//! the large objects is PMD-mapped.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::child::eventually;
use support::objects::object_coverage;
use support::{Held, Report, Run, has_library, installed, require};

fn said(argv: &[&str]) -> String {
    let output = Command::new(argv[0]).args(&argv[1..]).output();
    output.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// The `rustc` itself, not rustup's proxy.
fn rustc() -> Option<PathBuf> {
    let path = PathBuf::from(said(&["rustc", "--print", "sysroot"])).join("bin/rustc");
    path.is_file().then_some(path)
}

fn with_copies(run: Run) -> Run {
    run.options(["--backing", "image", "--deadline", "30s"])
}

/// Runs a compiler that reads `source` from its standard input, with and without TiExec. The input comes after the
/// report, so that the compiler cannot end before the look at its libraries. Asserts the same output and end. At least
/// `percent` of the text in files that fill a huge page must be huge, and the same of each named object.
fn assert_covered(run: &Run, source: &str, objects: &[&str], percent: u64) {
    let fed = |mut held: Held| {
        held.write(source.as_bytes());
        held.finish()
    };
    let report = Report::new();
    let plain = fed(run.plain().start());
    plain.assert_code(0);
    let held = report.of(&with_copies(run.clone())).start();
    eventually("the launch is reported", || report.complete());
    let done = fed(held);
    assert_eq!(
        (done.end(), done.out(), done.err()),
        (plain.end(), plain.out(), plain.err()),
        "{run:?}"
    );
    let said = report.read();
    assert_eq!(said["reason"], serde_json::Value::Null, "{said}");
    let files = said["files"].as_array().expect("files");
    let number = |file: &serde_json::Value, key: &str| file[key].as_u64().expect("a number");
    for object in objects {
        let file = files.iter().find(|f| f["path"].as_str().is_some_and(|p| p.contains(object)));
        let file = file.unwrap_or_else(|| panic!("{object} in {said}"));
        assert!(number(file, "huge_bytes") * 100 >= number(file, "text_bytes") * percent, "{file}");
    }
    assert!(number(&said, "huge_bytes") * 100 >= number(&said, "text_bytes") * percent, "{said}");
}

#[test]
fn rustc_waits_for_its_source() {
    let rustc = rustc();
    require!(rustc.is_some(), "no rustc");
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--crate-type=lib", "--emit=metadata", "--crate-name=a", "-"];
    let run = Run::new(rustc.expect("there is one"), args).cwd(dir.path());
    assert_covered(&run, "pub fn f() {}\n", &["librustc_driver", "libLLVM"], 90);
}

#[test]
fn rustc_compiles() {
    let rustc = rustc();
    require!(rustc.is_some(), "no rustc");
    let rustc = rustc.expect("there is one");
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("a.rs");
    std::fs::write(
        &source,
        "pub fn f(n: u64) -> String { (0..n).map(|i| format!(\"{i}\")).collect() }\n",
    )
    .expect("a file");
    let object = |run: &Run| {
        run.output().assert_code(0).assert_silent();
        std::fs::read(dir.path().join("a.o")).expect("an object file")
    };
    let run = Run::new(&rustc, ["--crate-type=lib", "--emit=obj", "-O", "a.rs"]).cwd(dir.path());
    let plain = object(&run.plain());
    assert!(!plain.is_empty());
    assert_eq!(object(&with_copies(run)), plain);
}

#[test]
fn clang_compiles() {
    require!(installed("clang").is_some(), "no clang");
    // Without -fintegrated-cc1, the driver might start another process that reads the source.
    let args = ["-fintegrated-cc1", "-S", "-o", "-", "-x", "c", "-"];
    let source = "int f(int a) { return a * 3; }\n";
    assert_covered(&Run::new("clang", args), source, &["libLLVM", "libclang-cpp"], 85);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("a.c"), "int f(int a) { return a * 3; }\n").expect("a file");
    let run = Run::new("clang", ["-O2", "-S", "-o", "-", "a.c"]).cwd(dir.path());
    let (plain, done) = (run.plain().output(), with_copies(run).output());
    plain.assert_code(0);
    assert_eq!((done.end(), done.out()), (plain.end(), plain.out()), "{done}");
}

#[test]
fn mariadbd_says_its_version() {
    require!(installed("mariadbd").is_some(), "no mariadbd");
    let run = Run::new("mariadbd", ["--version"]);
    let (plain, done) = (run.plain().output(), with_copies(run).output());
    plain.assert_code(0);
    assert_eq!((done.end(), done.out()), (plain.end(), plain.out()), "{done}");
}

#[test]
fn java_runs() {
    require!(installed("java").is_some(), "no java");
    let run = Run::new("java", ["-version"]);
    let (plain, done) = (run.plain().output(), run.output());
    plain.assert_code(0);
    assert_eq!((done.end(), done.err()), (plain.end(), plain.err()));
}

#[test]
fn a_python_whose_interpreter_is_a_library() {
    let python = said(&["python3", "-c", "import sys; print(sys.executable)"]);
    let shared = !python.is_empty() && has_library(Path::new(&python), "/libpython");
    require!(shared, "python3 has no libpython of its own");
    let script = "import zlib, json; print(json.dumps(zlib.crc32(b'x' * 100000)), flush=True); print('ready', flush=True); input()";
    let held = with_copies(Run::new(&python, ["-c", script])).hold();
    let all = support::smaps::vmas(held.pid());
    let library = all.iter().find(|vma| vma.path.contains("libpython")).expect("it is mapped");
    let coverage = object_coverage(held.pid(), Path::new(&library.path));
    assert_eq!(coverage.huge, coverage.whole, "{coverage:?}");
    let done = Run::new(&python, ["-c", script]).plain().output();
    assert_eq!(held.out_text(), done.out());
}
