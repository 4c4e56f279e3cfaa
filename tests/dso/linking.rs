//! `ld.so` and the init functions do the same as without TiExec.

use std::path::Path;

use support::child::eventually;
use support::objects::{Made, WithObject};
use support::smaps::status_field;
use support::{Kind, Prep, Report, program, require};

#[test]
fn init_functions_that_return() {
    let with = WithObject::new(Made::Gnu);
    for (does, wait, signals) in [
        ("fork", "No child processes", 0),
        ("child", "none yet", 0),
        ("threads", "No child processes", 0),
        ("sleep", "No child processes", 0),
        ("handlers", "No child processes", 1),
        ("block", "No child processes", 0),
    ] {
        let held = with.run(&["7"]).env("OBJECT_INIT", does).hold();
        // If the program blocks all signals, the helper notices it later.
        eventually(&format!("{does}: {:?}", with.coverage(held.pid())), || {
            let let_go = status_field(held.pid(), "TracerPid").as_deref() == Some("0");
            let_go && with.coverage(held.pid()).is_full()
        });
        assert!(held.out_text().contains(&format!("wait {wait}\n")), "{does}: {}", held.out_text());
        let seen: i32 = held.said("signals").and_then(|n| n.parse().ok()).expect("a number");
        // A program with a handler gets one SIGCHLD for the helper.
        let more = if does == "handlers" { 100 } else { 0 };
        assert!(seen == signals || seen == signals + more, "{does}: {seen}");
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn a_child_from_before_is_the_programs_own() {
    let with = WithObject::new(Made::Gnu);
    let held = with.run(&["7", "waits"]).env("OBJECT_INIT", "child").hold();
    assert!(held.out_text().contains("wait a child\n"), "{}", held.out_text());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn init_functions_that_do_not_return() {
    let with = WithObject::new(Made::Gnu);
    for (does, out) in [("exit", ""), ("die", ""), ("exec", "ready\n"), ("exec-thread", "ready\n")]
    {
        let run = with.run(&["7"]).env("OBJECT_INIT", does);
        let (plain, done) = (run.plain().output(), run.output());
        assert_eq!(done.end(), plain.end(), "{does}: {done}");
        assert_eq!((done.out().as_str(), done.err()), (out, plain.err()), "{does}");
    }
}

#[test]
fn a_missing_library_is_told_by_the_linker_alone() {
    let with = WithObject::sized(Made::Gnu, 6, 6);
    std::fs::remove_file(&with.object).expect("an own file");
    let run = with.run(&["7"]);
    let (plain, done) = (run.plain().output(), run.output());
    plain.assert_code(127);
    done.assert_code(127);
    assert_eq!(done.err(), plain.err());
    // Only the linker notices this error.
    let with = WithObject::new(Made::Gnu);
    let run = with.run(&["7"]).env("LD_PRELOAD", "/nonexistent.so").env("LD_DEBUG", "libs");
    let held = run.hold();
    assert!(with.coverage(held.pid()).is_full());
    held.finish().assert_code(7);
}

#[test]
fn a_stop_is_a_stop() {
    let with = WithObject::new(Made::Gnu);
    let mut held = with.run(&["7"]).env("OBJECT_INIT", "stop").start();
    let pid = held.pid();
    eventually("it stops", || matches!(support::child::state(pid), Some('t' | 'T')));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(held.out_text(), "", "it goes on when it is told to");
    held.signal(libc::SIGCONT);
    held.wait_line("ready");
    let coverage = with.coverage(pid);
    assert!(coverage.is_full(), "{coverage:?}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn with_signals_blocked() {
    let with = WithObject::new(Made::Gnu);
    let held = with.run(&["7"]).prep(Prep::Block(libc::SIGURG)).hold();
    let coverage = with.coverage(held.pid());
    assert!(coverage.is_full(), "{coverage:?}");
    assert_eq!(status_field(held.pid(), "SigBlk").as_deref(), Some("0000000000400000"));
    assert_eq!(status_field(held.pid(), "ShdPnd").as_deref(), Some("0000000000000000"));
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn under_a_filter() {
    let with = WithObject::sized(Made::Gnu, 6, 6);
    let filter = program("seccomp_exec", Kind::DynamicPie);
    let report = Report::new();
    let run = report.of(&with.run(&["7"])).behind([
        filter.as_os_str(),
        "errno=1".as_ref(),
        "prctl/0=35".as_ref(),
    ]);
    let held = run.hold();
    assert!(held.coverage().is_full(), "the program's own text is not concerned");
    assert_eq!(with.coverage(held.pid()).huge, 0);
    held.finish().assert_code(7).assert_silent();
    let said = report.read();
    assert_eq!(said["reason"], "linker_unwatched", "{said}");
}

#[test]
fn one_that_takes_long_to_relocate() {
    let with = WithObject::new(Made::Relocated);
    for _ in 0..20 {
        let held = with.run(&["7"]).hold();
        // The program ran freely meanwhile, and may already be past this state.
        eventually("its object is on huge pages, it is let go, and has no child", || {
            with.coverage(held.pid()).is_full()
                && status_field(held.pid(), "TracerPid").as_deref() == Some("0")
                && support::smaps::children(held.pid()).is_empty()
        });
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn where_nothing_tells_that_ld_so_is_done() {
    require!(Made::MuslNoRelro.can_build(), "no musl-gcc");
    let with = WithObject::new(Made::MuslNoRelro);
    let report = Report::new();
    let held = report.of(&with.run(&["7"])).hold();
    assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"));
    assert_eq!(with.coverage(held.pid()).huge, 0);
    held.finish().assert_code(7).assert_silent();
    assert_eq!(report.read()["reason"], "linker_unwatched");
}

#[test]
fn by_an_ordinary_user() {
    require!(support::is_root(), "not root: it is one already");
    let (with, public) = (WithObject::new(Made::Gnu), support::Public::new());
    let object = public.add(&with.object, "libbig_object.so", 0o755);
    let copy = public.add(&with.program, "program", 0o755);
    support::warm::cache_small(Path::new(&object));
    let tiexec = public.tiexec();
    let held = support::Run::new("setpriv", ["--reuid=65534", "--regid=65534", "--clear-groups"])
        .plain()
        .with_arg(tiexec)
        .with_arg("--backing=image")
        .with_arg("--deadline=2m")
        .with_arg(copy)
        .with_arg("7")
        .hold();
    let coverage = support::objects::object_coverage(held.pid(), &object);
    assert!(coverage.is_full(), "{coverage:?}");
    held.finish().assert_code(7).assert_silent();
}
