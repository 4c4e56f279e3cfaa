//! `LD_PRELOAD=libtiexec.so PROGRAM`: real programs and others, without support for the library.

use std::os::fd::AsRawFd;
use std::path::Path;

use support::attaching::{collapses, small, switched};
use support::child::eventually;
use support::first_output::held_at_first_output;
use support::objects::late_library;
use support::smaps::vmas;
use support::{
    BUSY_NODE, Coverage, Fresh, Held, Kind, Prep, Run, coverage, installed, is_root, program,
    require,
};

use super::library::shared;

/// The program with the library preloaded, and these settings.
fn preloaded(run: &Run, settings: &str) -> Run {
    run.plain().env("LD_PRELOAD", shared()).env("TIEXEC", format!("deadline=1m,{settings}"))
}

fn hold(settings: &str) -> Held {
    let copy = small("hold", Kind::DynamicPie);
    preloaded(&Run::new(copy.path(), ["7"]), settings).hold()
}

fn assert_full(coverage: Coverage) {
    assert!(coverage.is_full(), "{coverage:?}");
}

#[test]
fn a_program_that_knows_nothing_of_it() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let held = hold("backing=image");
    assert_full(held.coverage());
    assert!(switched(held.pid()) > 0);
    held.finish().assert_code(7).assert_silent();
}

/// Asserts that the program's output is the same, and that all whole huge pages of its text are huge when it writes.
fn real_program(name: &str, path: &Path, args: &[&str]) {
    // The test uses a private copy, so that the page cache of the original does not count.
    let copy = Fresh::small(path);
    let run = Run::new(copy.path(), args).plain();
    let plain = run.output();
    plain.assert_code(0);
    let (coverage, output) = held_at_first_output(&preloaded(&run, "edges=conservative"));
    assert_eq!(output, plain.stdout, "{name}");
    assert!(coverage.is_full() || coverage.whole == 0, "{name}: {coverage:?}");
}

#[test]
fn real_programs() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let postgres = ["17", "16", "15", "14"]
        .map(|version| format!("/usr/lib/postgresql/{version}/bin/postgres"))
        .into_iter()
        .find(|path| Path::new(path).exists())
        .map(Into::into);
    let programs = [
        ("node", installed("node"), &["-e", "fs.writeSync(1, 'up')"][..]),
        ("python3", Some("/usr/bin/python3".into()), &["-c", "print(6*7)"]),
        ("mariadbd", installed("mariadbd"), &["--version"]),
        ("postgres", postgres, &["--version"]),
    ];
    for (name, path, args) in programs {
        match path.filter(|path| path.exists()) {
            Some(path) => real_program(name, &path.canonicalize().expect("it exists"), args),
            None => support::skip(&format!("no {name}")),
        }
    }
}

/// JIT, garbage collection, worker threads and child processes all run through switched text. The children inherit the
/// library.
#[test]
fn node_works_under_load() {
    require!(installed("node").is_some() && collapses(), "no node, or no MADV_COLLAPSE");
    let run = Run::new("node", ["-e", BUSY_NODE]).plain();
    let (plain, done) = (run.output(), preloaded(&run, "backing=image").output());
    plain.assert_code(0);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), plain.out());
}

#[test]
fn it_is_switched_off() {
    for settings in ["off", "backing=off", "except=hold*"] {
        let held = hold(settings);
        assert_eq!((switched(held.pid()), held.coverage().huge), (0, 0), "{settings}");
        held.finish().assert_code(7).assert_silent();
    }
    require!(is_root(), "root only: it mounts");
    let disabled =
        "mount -t tmpfs none /etc; mkdir /etc/tiexec; >/etc/tiexec/disabled; exec \"$@\"";
    let copy = small("hold", Kind::DynamicPie);
    let run = preloaded(&Run::new(copy.path(), ["7"]), "backing=image");
    let held = run.behind(["unshare", "-m", "sh", "-ec", disabled, "sh"]).hold();
    assert_eq!(switched(held.pid()), 0);
    held.finish().assert_code(7).assert_silent();
}

/// Malformed settings are ignored, and the others count.
#[test]
fn settings_of_garbage() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let long = format!("backing=image,only={}", "[a".repeat(20_000));
    for settings in [
        "=,=,edges=round,backing=image",
        "backing=image,\u{1b}[2J,\u{202e}=\n",
        "backing=image,numa=node=9999999999",
    ] {
        let held = hold(settings);
        assert_full(held.coverage());
        held.finish().assert_code(7).assert_silent();
    }
    // A malformed pattern matches no program.
    let held = hold(&long);
    assert_eq!(switched(held.pid()), 0);
    held.finish().assert_code(7).assert_silent();
    // With the option for messages, the library reports it, without control characters for the terminal.
    let copy = small("hold", Kind::DynamicPie);
    let run = preloaded(&Run::new(copy.path(), ["7"]), "verbose,backing=image,\u{1b}[2J=1");
    let done = run.hold().finish();
    done.assert_code(7);
    assert!(done.err().contains("TIEXEC ignored in part"), "{done}");
    assert!(done.err().contains("text on huge pages"), "{done}");
    assert!(!done.err().contains('\u{1b}'), "{done}");
}

/// The text of a shell's children becomes huge, and small programs beside them do not overwrite their report.
#[test]
fn children_inherit_it() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let copy = small("hold", Kind::DynamicPie);
    let report = copy.dir().join("report.json");
    let settings = format!("backing=image,json,report={}", report.display());
    let script = format!("'{}' 7; code=$?; /bin/true; exit $code", copy.path().display());
    let mut held = preloaded(&Run::new("sh", ["-c", &script]), &settings).start();
    held.wait_line("ready");
    let child = support::smaps::children(held.pid())[0];
    assert_full(coverage(child));
    held.finish().assert_code(7).assert_silent();
    let text = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["pid"], &report["kind"]), (&child.into(), &"attach".into()));
    assert!(report["huge_bytes"].as_u64() >= Some(4 << 20), "{report}");
}

/// No reader of the report can stop or kill the program.
#[test]
fn a_report_that_nobody_can_take() {
    let copy = small("hold", Kind::DynamicPie);
    let run = Run::new(copy.path(), ["7"]);
    let pipe = copy.dir().join("pipe");
    let made = support::child::tool(&["mkfifo", pipe.to_str().expect("UTF-8")]);
    assert!(made.status.success());
    let without_reader = preloaded(&run, &format!("backing=image,report={}", pipe.display()));
    let done = without_reader.hold().finish();
    done.assert_code(7);
    assert!(done.err().contains("cannot write"), "{done}");
    let file = copy.dir().join("report");
    let limited = preloaded(&run, &format!("backing=image,report={}", file.display()));
    let done = limited.prep(Prep::Rlimit(libc::RLIMIT_FSIZE, 0)).hold().finish();
    done.assert_code(7);
    assert!(!file.exists());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let gone = preloaded(&run, "backing=image,report=/dev/stderr");
    gone.stdio([-1, -1, writer.as_raw_fd()]).output().assert_code(7);
}

#[test]
fn text_that_is_loaded_later() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let dir = tempfile::tempdir().expect("a directory");
    let library = late_library(dir.path()).to_string_lossy().into_owned();
    let run = Run::new(program("late", Kind::DynamicPie), ["wait", &library]);
    let mut held = preloaded(&run, "backing=image,settle=100s").hold();
    let before = switched(held.pid());
    held.write(b"\n");
    held.wait_line("loaded");
    let pid = held.pid();
    eventually("the library's text is huge", || switched(pid) >= before + (4 << 20));
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
    // Without the setting there is no such thread.
    let held = preloaded(&run, "backing=image").hold();
    let threads = std::fs::read_dir(format!("/proc/{}/task", held.pid())).expect("an own child");
    assert_eq!(threads.count(), 1);
}

/// A static program has no dynamic linker that would load the library.
#[test]
fn a_program_without_a_dynamic_linker() {
    let copy = small("hold", Kind::StaticNoPie);
    let held = preloaded(&Run::new(copy.path(), ["7"]), "backing=image").hold();
    assert_eq!(switched(held.pid()), 0);
    assert!(vmas(held.pid()).iter().all(|vma| !vma.path.contains("libtiexec")));
    held.finish().assert_code(7).assert_silent();
}

/// `tiexec` starts a program with the library preloaded. Each does the work that the other has not done.
#[test]
fn together_with_a_launch() {
    require!(is_root() && collapses(), "not root, or the kernel has no MADV_COLLAPSE");
    let copy = small("hold", Kind::DynamicPie);
    let run = Run::new(copy.path(), ["7"]).env("LD_PRELOAD", shared());
    let held = run.env("TIEXEC", "backing=image").options(["--deadline=1m"]).hold();
    assert_full(held.coverage());
    held.finish().assert_code(7).assert_silent();
}
