//! `--settle`: text that a program maps later becomes huge too.

use support::attaching::{started, switched};
use support::child::{eventually, soon};
use support::objects::late_library as library;
use support::smaps::{Vma, vmas};
use support::{Kind, Run, busy_java, program, require};

#[test]
fn a_library_loaded_later_at_a_launch() {
    loaded_later("later");
}

/// `/proc/PID/maps` of such a program may contradict itself. TiExec then reads it again.
#[test]
fn a_library_loaded_while_mappings_change_all_the_time() {
    loaded_later("churn");
}

fn loaded_later(mode: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path()).to_string_lossy().into_owned();
    let late = program("late", Kind::DynamicPie);
    let run = Run::new(late, [mode, &library]).options(["--settle=100s", "--backing=image"]);
    let mut held = run.hold();
    held.wait_line("loaded");
    let (pid, before) = (held.pid(), 4 << 20);
    eventually("the library's text is huge", || switched(pid) > before);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_library_loaded_later_after_an_attach() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path()).to_string_lossy().into_owned();
    let mut held = Run::new(program("late", Kind::DynamicPie), ["wait", &library]).plain().hold();
    let pid = held.pid();
    let word = pid.to_string();
    let args = ["attach", "--settle=100s", "--backing=image", &word];
    let attach = started(&[], support::tiexecctl(), args);
    eventually("its own text is huge", || switched(pid) > 0);
    let before = switched(pid);
    held.write(b"\n");
    held.wait_line("loaded");
    eventually("the library's text is huge", || switched(pid) > before);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
    let done = attach.finish();
    done.assert_code(0);
    assert_eq!(done.out().lines().count(), 2, "{done}");
}

/// `java` itself is small. It loads its large libraries later.
#[test]
fn java() {
    let java = busy_java();
    require!(java.is_some(), "no JDK");
    let (java, dir) = java.expect("just looked");
    let args = ["-cp", &dir.path().to_string_lossy(), "Busy"];
    let held = Run::new(java, args).options(["--settle=100s", "--backing=image"]).hold();
    let pid = held.pid();
    let jvm = |vma: &Vma| vma.path.contains("tiexec:libjvm.so") && vma.huge() > 0;
    let is_huge = soon(|| vmas(pid).iter().any(jvm));
    assert!(
        is_huge,
        "{:#?}",
        vmas(pid).iter().filter(|vma| vma.path.contains("jvm")).collect::<Vec<_>>()
    );
    held.finish().assert_code(7).assert_silent();
}
