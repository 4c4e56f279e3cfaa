//! The program runs in spite of a stream without a reader, its own signals, an odd namespace, or an exec from a thread.

use support::{Kind, Run, is_root, program, require};

fn ran() -> Run {
    Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
}

#[test]
fn a_full_stderr_does_not_hold_the_program() {
    // The pipe is full, and no process ever reads it.
    let fill = "import os,sys,fcntl\n\
        r,w=os.pipe()\n\
        fcntl.fcntl(w,fcntl.F_SETFL,os.O_NONBLOCK)\n\
        try:\n  while True: os.write(w,b'x'*4096)\n\
        except BlockingIOError: pass\n\
        fcntl.fcntl(w,fcntl.F_SETFL,0)\n\
        os.dup2(w,2)\n\
        os.set_inheritable(r,True)\n\
        os.execvp(sys.argv[1],sys.argv[1:])\n";
    for (options, environment) in [
        (&["--deadline=0"][..], ""),
        (&["--report"], ""),
        (&["--report", "--json", "--backing=hugetlb"], ""),
        (&[], "bogus=1"),
    ] {
        let run = ran().options(options).env("TIEXEC", environment).behind(["python3", "-c", fill]);
        let done = run.output();
        done.assert_code(7);
        assert_eq!(done.out(), "ran\n");
    }
}

#[test]
fn a_broken_stderr_does_not_kill_the_program() {
    let broken = "import os,sys,signal\n\
        signal.signal(signal.SIGPIPE,signal.SIG_DFL)\n\
        r,w=os.pipe()\n\
        os.dup2(w,2)\n\
        os.close(r)\n\
        os.execvp(sys.argv[1],sys.argv[1:])\n";
    for (options, environment) in [
        (&["--report"][..], ""),
        (&["--deadline=0"], ""),
        (&[], "bogus=1"),
        (&["--backing=off", "--report"], ""),
    ] {
        let run =
            ran().options(options).env("TIEXEC", environment).behind(["python3", "-c", broken]);
        let done = run.output();
        done.assert_code(7);
        assert_eq!(done.out(), "ran\n");
    }
}

#[test]
fn a_report_to_a_fifo_that_nobody_reads_is_no_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    assert!(support::child::tool(&["mkfifo", &fifo.to_string_lossy()]).status.success());
    let option = format!("--report={}", fifo.display());
    let done = ran().options([option.as_str()]).output();
    done.assert_code(7);
    assert!(done.err().starts_with("tiexec: cannot write the report to "), "{done}");
    assert!(done.err().ends_with("; fix: name another file in --report\n"), "{done}");
}

#[test]
fn a_blocked_sigchld_of_the_programs_own_child_arrives_whenever_it_comes() {
    let front = program("keeps_sigchld", Kind::DynamicPie);
    let waits = program("waits_sigchld", Kind::DynamicPie);
    for round in 0..40 {
        // The delays range from before the fork of the helper to after the program's start.
        let delay = (round * 250).to_string();
        let run = Run::new(&waits, [""; 0]).behind([front.as_os_str(), delay.as_ref()]);
        let done = run.output();
        done.assert_code(7);
        assert_eq!(done.out(), "came\n", "after {delay} us: {done}");
    }
}

#[test]
fn the_helper_never_becomes_the_init_of_a_namespace() {
    require!(is_root(), "a PID namespace needs root");
    // The program's own first child must become the new namespace's init, as with a plain exec.
    let done = Run::new("/bin/sh", ["-c", "sh -c 'echo $$'; exit 7"])
        .options(["--until-exec=nothing"])
        .behind(["unshare", "-p"])
        .output();
    done.assert_code(7);
    assert_eq!(done.out(), "1\n", "{done}");
    done.assert_failed_open(&["fork_failed"]);
}

#[test]
fn an_exec_from_another_thread_leaves_no_helper_behind() {
    let front = program("exec_from_thread", Kind::DynamicPie);
    let exits = program("exits", Kind::DynamicPie);
    for _ in 0..10 {
        let argv = [exits.as_os_str(), "code".as_ref(), "7".as_ref()];
        // The output ends when the last holder of stderr has gone. A stray helper would hold it.
        let done = Run::new(&front, argv).options(["--until-exec=exits"]).output();
        done.assert_code(7);
        assert_eq!(done.out(), "ran\n", "{done}");
        assert!(!done.err().contains("ended"), "{done}");
    }
}
