//! Each start of a program has the same text huge, for every address that the kernel chooses. A launch moves the
//! program to an address where copies hold the most whole huge pages, and the address stays random.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::first_output::held_at_first_output;
use support::{Fresh, Kind, Report, Run, installed, pmd_size, program, require, rounds};

/// Starts the program many times with copies. Returns the huge bytes of its own text in all starts, and the size of the
/// text.
fn starts(program: &Path, arg: &str, code: i32) -> (BTreeSet<u64>, u64) {
    let report = Report::new();
    // A companion that looks meanwhile would add a report of its own.
    let run = Run::new(program, [arg]).options(["--backing=image", "--settle=0"]);
    let mut seen = BTreeSet::new();
    let mut text = 0;
    for _ in 0..rounds(15) {
        report.of(&run).output().assert_code(code);
        let report = report.read();
        let files = report["files"].as_array().expect("files");
        let path = program.to_str().expect("UTF-8");
        let own = files.iter().find(|file| file["path"] == path);
        let own = own.unwrap_or_else(|| panic!("{path} in {report}"));
        seen.insert(own["huge_bytes"].as_u64().expect("bytes"));
        text = own["text_bytes"].as_u64().expect("bytes");
    }
    println!("{}: {seen:?} of {text}", program.display());
    (seen, text)
}

#[test]
fn each_start_has_all_whole_huge_pages() {
    for kind in [Kind::DynamicPie, Kind::StaticPie] {
        let copy = Fresh::cold(&program("rebased", kind));
        let (seen, text) = starts(copy.path(), "brief", 7);
        let most = text / pmd_size() * pmd_size();
        assert_eq!(seen, BTreeSet::from([most]), "{kind:?}");
    }
}

/// A server of Debian, whose text of 5 MiB would fill one or two huge pages, depending on the kernel's choice of the
/// address. So each start shows a fault with nearly even chances.
#[test]
fn each_start_of_a_real_server() {
    let servers = |directory: &str| -> Vec<PathBuf> {
        let versions = std::fs::read_dir(directory).into_iter().flatten().flatten();
        versions.map(|version| version.path().join("bin/postgres")).collect()
    };
    let postgres = servers("/usr/lib/postgresql").into_iter().find(|path| path.exists());
    let server = postgres.or_else(|| installed("mariadbd"));
    require!(server.is_some(), "neither postgres nor mariadbd");
    let dir = tempfile::tempdir().expect("a directory");
    let server = support::warm::small(&server.expect("just looked"), dir.path());
    let run = Run::new(&server, ["--version"]).options(["--backing=image", "--settle=0"]);
    for _ in 0..rounds(15) {
        // Without a stop it may end before tiexec has looked at it.
        let (coverage, _) = held_at_first_output(&run);
        let most = coverage.text / pmd_size() * pmd_size();
        assert_eq!(coverage.huge, most, "{coverage:?}");
    }
}
