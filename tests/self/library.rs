//! The installed library exports only the C API, in both of its forms.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::child::tool;
use support::{Fresh, Kind, Linked, Run, program_with};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

/// The directory with both libraries, the header and the description for pkg-config.
pub(crate) fn directory() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        support::once("libtiexec", |out| {
            let own = std::env::current_exe().expect("/proc is mounted");
            let mut script = Command::new(root().join("scripts/libtiexec"));
            let script = script.env("STRIP", "yes").arg(own.with_file_name("")).arg(out);
            let made = script.output().expect("a shell");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        })
    })
}

/// The file for `LD_PRELOAD`.
pub(crate) fn shared() -> PathBuf {
    // In LD_PRELOAD, a blank is the end of a name.
    support::without_blanks(directory()).join("libtiexec.so")
}

/// A private copy of `calls_itself` in small folios of the page cache, so that no part is huge before.
pub(crate) fn calls_itself(file: &str, kind: Kind) -> Fresh {
    let linked = Linked { directory: directory(), file };
    Fresh::small(&program_with("calls_itself", kind, linked))
}

/// Runs `calls_itself` with the shared library, in a situation.
pub(crate) fn situation(copy: &Fresh, args: &[&str]) -> Run {
    Run::new(copy.path(), args).plain()
}

/// The exported symbols of a library.
fn symbols(options: &[&str], file: &str) -> BTreeSet<String> {
    let path = directory().join(file);
    let args = [&["nm", "-g", "--defined-only", "-P"], options, &[path.to_str().expect("UTF-8")]];
    let output = tool(&args.concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names");
    // The line before the symbols of an archive's member has the archive's path.
    let names = text.lines().filter(|line| line.contains(' ') && !line.ends_with(':'));
    names.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// The build under test stands for a library that has grown: it is not optimised, so it is over the limit.
#[test]
fn a_library_over_its_limit_is_not_shipped() {
    let own = std::env::current_exe().expect("/proc is mounted");
    let place = tempfile::tempdir().expect("a directory");
    let (built, out) = (place.path().join("library"), place.path().join("out"));
    std::os::unix::fs::symlink(own.with_file_name(""), &built).expect("a symbolic link");
    let mut script = Command::new(root().join("scripts/libtiexec"));
    let made = script.env("STRIP", "yes").args([&built, &out]).output().expect("a shell");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("bytes, and the limit is 1258291; fix: "), "{said}");
    assert_eq!(made.status.code(), Some(1));
    assert!(!out.exists());
}

#[test]
fn they_show_the_api_and_nothing_else() {
    let api = ["tiexec_self", "tiexec_self_report", "tiexec_self_revert"].map(str::to_owned);
    assert_eq!(symbols(&["-D"], "libtiexec.so.1"), BTreeSet::from(api.clone()));
    assert_eq!(symbols(&[], "libtiexec.a"), BTreeSet::from(api));
}

#[test]
fn the_shared_one_has_a_name_of_its_version() {
    let path = shared();
    let output = tool(&["readelf", "-d", path.to_str().expect("UTF-8")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Library soname: [libtiexec.so.1]"), "{text}");
    // Every program finds these libraries.
    for needed in text.lines().filter(|line| line.contains("(NEEDED)")) {
        let known = ["libc.so", "libgcc_s.so", "ld-linux", "libm.so", "libpthread.so", "libdl.so"];
        assert!(known.iter().any(|name| needed.contains(name)), "{needed}");
    }
}

/// Writes the description for pkg-config to `at`. The original names the place of the installation; the copy names the
/// library's present place, by a symbolic link: a blank in a path would be the end of a word in pkg-config's output.
pub(crate) fn describe(at: &Path) {
    let described = std::fs::read_to_string(directory().join("tiexec.pc")).expect("it is there");
    assert!(described.contains("\nlibdir=${prefix}/lib\n"), "{described}");
    let _from_before = std::fs::remove_file(at.join("libtiexec"));
    std::os::unix::fs::symlink(directory(), at.join("libtiexec")).expect("a symbolic link");
    let lines = described.lines().map(|line| match line.split_once('=') {
        Some((key @ ("libdir" | "includedir"), _)) => format!("{key}=${{pcfiledir}}/libtiexec\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(at.join("tiexec.pc"), lines.collect::<String>()).expect("a file");
}
