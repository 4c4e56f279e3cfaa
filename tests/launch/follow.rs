//! `-f`, `--follow`: the programs that descendants start in any way get huge pages, and nothing else about the tree
//! changes.

use support::attaching::{MARK, companion, ctl, small, started, switched};
use support::child::eventually;
use support::pty::Pty;
use support::{Fresh, Held, Kind, Prep, Public, Random, Run, is_root, program, require};

fn followed(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Run {
    Run::new(program, args).options(["-f", "--backing=image"])
}

/// Waits until the tree's program is ready and switched. Returns the PID that the program prints.
fn wait_switched(held: &mut Held) -> i32 {
    held.wait_line("ready");
    let pid = held.said_pid();
    eventually("the followed program's text is huge", || switched(pid) > 0);
    pid
}

fn is_alive(pid: i32) -> bool {
    support::child::state(pid).is_some_and(|state| state != 'Z')
}

#[test]
fn however_a_program_is_started() {
    let descend = program("descend", Kind::DynamicPie);
    for how in ["fork", "vfork", "spawn", "clone", "thread", "daemon"] {
        let copy = small("hold", Kind::DynamicPie);
        let run = followed(&descend, &[how, &copy.path().to_string_lossy(), "7"]);
        let mut held = run.start();
        wait_switched(&mut held);
        held.write(b"\n");
        let done = held.finish();
        done.assert_code(if how == "daemon" { 0 } else { 7 }).assert_silent();
    }
}

#[test]
fn a_copy_ends_with_the_program_that_has_it() {
    let copy = small("hold", Kind::DynamicPie);
    let mark = format!("copies-{}", std::process::id());
    let script = "\"$0\" 7; /bin/true; echo next; read line";
    let run = followed("sh", &["-c", script, &copy.path().to_string_lossy()]).env(MARK, &mark);
    let mut held = run.start();
    wait_switched(&mut held);
    let follower = companion(&mark).expect("there is a companion");
    let copies = || {
        let descriptors = std::fs::read_dir(format!("/proc/{follower}/fd")).expect("it lives");
        let links = descriptors.flatten().filter_map(|entry| entry.path().read_link().ok());
        links.filter(|link| link.to_string_lossy().contains("memfd:tiexec:")).count()
    };
    assert!(copies() > 0, "another start of the program could share the copy");
    held.write(b"\n");
    held.wait_line("next");
    eventually("the copy is let go of", || copies() == 0);
    held.write(b"\n");
    held.finish().assert_code(0);
}

#[test]
fn shells_and_make_see_what_they_see_without() {
    let make = "all: one two\none two:\n\t@true; echo $@; sh -c 'exit 3' || echo status $$?\n";
    let dir = tempfile::tempdir().expect("a directory");
    let makefile = dir.path().join("Makefile");
    std::fs::write(&makefile, make).expect("a file");
    let script = "a=; for i in 1 2 3; do sh -c \"exit $i\" & a=\"$a $!\"; done; for p in $a; do wait $p; echo $?; done; wait; echo $?;
                  trap 'echo chld' CHLD; /bin/true; trap - CHLD; (exit 5) & wait $!; echo $?; x=$(sh -c 'kill -9 $$' 2>&1); echo $?";
    let plain = |run: &Run| {
        let (plain, followed) = (run.plain().output(), run.output());
        assert_eq!(plain.end(), followed.end(), "{followed}");
        assert_eq!((plain.out(), plain.err()), (followed.out(), followed.err()), "{followed}");
    };
    for shell in ["bash", "dash", "sh"] {
        require!(support::installed(shell).is_some(), "no {shell}");
        plain(&followed(shell, &["-c", script]));
        plain(&followed(shell, &["-c", "exit 9"]));
        plain(&followed(shell, &["-c", "kill -TERM $$"]));
    }
    require!(support::installed("make").is_some(), "no make");
    plain(&followed("make", &["-f", &makefile.to_string_lossy()]));
    plain(&followed("make", &["-f", "/nonexistent"]));
    plain(&followed("sh", &["-c", "/nonexistent/program"]));
}

#[test]
fn hundreds_of_short_programs() {
    let script =
        "i=0; while [ $i -lt 300 ]; do /bin/true || exit 9; i=$((i+1)); done; /bin/false; echo $?";
    let done = followed("sh", &["-c", script]).output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "1\n");
}

/// A reader that waits for the end of the output does not wait for the companion, which lives as long as the daemon.
#[test]
fn no_descriptor_is_held() {
    let mark = "293.417";
    let script = format!("(setsid sleep {mark} </dev/null >/dev/null 2>&1 & echo $!)");
    let done = followed("sh", &["-c", &script]).env(MARK, mark).output();
    done.assert_code(0).assert_silent();
    let sleeper: i32 = done.out().trim().parse().expect("a pid");
    let companion = companion(mark).expect("there is a companion");
    assert!(is_alive(sleeper) && is_alive(companion));
    let fds =
        std::fs::read_dir(format!("/proc/{companion}/fd")).expect("its descriptors").flatten();
    for fd in fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()) {
        let fd = fd.to_string_lossy().into_owned();
        assert!(fd == "/" || fd.starts_with("anon_inode:"), "{fd}");
    }
    let score = std::fs::read_to_string(format!("/proc/{companion}/oom_score_adj")).expect("its");
    assert_eq!(score.trim(), "1000");
    // SAFETY: kill has no memory conditions; the sleeper's time is far from over.
    unsafe { libc::kill(sleeper, libc::SIGKILL) };
    eventually("the companion ends with the tree", || !is_alive(companion));
}

#[test]
fn no_wait_of_the_programs_sees_the_companion() {
    let held = followed(program("identity", Kind::DynamicPie), &[]).hold();
    assert_eq!(held.said("wait_plain").as_deref(), Some("No child processes"), "{}", held.command);
    assert_eq!(held.said("wait_all").as_deref(), Some("No child processes"), "{}", held.command);
    held.finish().assert_code(0).assert_silent();
}

#[test]
fn as_pid_1_it_is_a_child_that_no_plain_wait_sees() {
    require!(is_root(), "a PID namespace needs root");
    let run = followed(program("identity", Kind::DynamicPie), &[]);
    let held = run.behind(["unshare", "--pid", "--fork", "--mount-proc"]).hold();
    assert_eq!(held.said("wait_plain").as_deref(), Some("No child processes"), "{}", held.command);
    assert_eq!(held.said("wait_all").as_deref(), Some("a child"), "{}", held.command);
    held.finish().assert_code(0).assert_silent();
    // The program receives no report of the companion's end.
    let descend = program("descend", Kind::DynamicPie);
    let copy = small("hold", Kind::DynamicNoPie);
    let run = followed(descend, &["vfork", &copy.path().to_string_lossy(), "7"]);
    let mut held = run.behind(["unshare", "--pid", "--fork", "--mount-proc"]).start();
    held.wait_line("ready");
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_privileged_program_in_an_unprivileged_tree_keeps_its_privileges() {
    require!(is_root(), "another user needs root");
    let public = Public::new();
    let uids = public.add(&program("uids", Kind::DynamicPie), "uids", 0o4755);
    let hold = support::warm::small(&program("hold", Kind::DynamicPie), public.path());
    let script = format!("'{}' && exit 1; '{}' 5", uids.display(), hold.display());
    let run = followed("sh", &["-c", &script]).binary(public.tiexec());
    let run = run.behind(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    let mut held = run.start();
    held.wait_line("ready");
    let pid = held.said_pid();
    assert_eq!(held.said("ids").as_deref(), Some("65534 0"), "the setuid bit counts");
    held.write(b"\n");
    eventually("the next program is switched", || {
        held.has_said("huge");
        let text = held.out_text();
        let last = text.lines().filter_map(|line| line.strip_prefix("pid ")).next_back();
        let last = last.and_then(|last| last.parse().ok()).filter(|&last: &i32| last != pid);
        last.is_some_and(|last| switched(last) > 0)
    });
    held.write(b"\n");
    held.finish().assert_code(5).assert_silent();
}

#[test]
fn the_companion_may_be_killed_at_any_moment() {
    let mut random = Random::new();
    let descend = program("descend", Kind::DynamicPie);
    for _ in 0..support::extent::rounds(4) {
        let copy = small("hold", Kind::DynamicPie);
        let path = copy.path().to_string_lossy().into_owned();
        let mut held = followed(&descend, &["fork", &path, "7"]).env(MARK, &path).start();
        held.wait_line("ready");
        let companion = companion(&path).expect("there is a companion");
        // The companion examines a program after it has worked, or when it is a second old.
        random.spin(1_300_000);
        // SAFETY: kill has no memory conditions.
        unsafe { libc::kill(companion, libc::SIGKILL) };
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
    }
}

/// A thread without a processor does not reach its stop in time. TiExec must release the thread later, so the follower
/// stays alive.
#[test]
fn a_program_that_hardly_runs_goes_on() {
    require!(support::installed("chrt").is_some(), "no chrt");
    let mut random = Random::new();
    let busy = || {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "while :; do :; done"]).spawn().expect("sh")
    };
    for _ in 0..support::extent::rounds(2) {
        let copy = small("hold", Kind::DynamicPie);
        let mut loops: Vec<_> = (0..8).map(|_| busy()).collect();
        let args = ["fork", "/usr/bin/env", "chrt", "-i", "0", &copy.path().to_string_lossy(), "7"];
        let mut held = followed(program("descend", Kind::DynamicPie), &args).start();
        held.write(b"\n");
        random.spin(600_000);
        for child in &mut loops {
            child.kill().expect("an own child");
            child.wait().expect("an own child");
        }
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn by_path() {
    let descend = program("descend", Kind::DynamicPie);
    let (wanted, unwanted) = (small("hold", Kind::DynamicPie), small("hold", Kind::DynamicPie));
    let held = |copy: &Fresh, options: [String; 1]| {
        let run = followed(&descend, &["fork", &copy.path().to_string_lossy(), "7"]);
        let mut held = run.options(options).start();
        held.wait_line("ready");
        held
    };
    let path = unwanted.path().display();
    let except = held(&unwanted, [format!("--except={path}")]);
    let only = held(&unwanted, [format!("--only={}", wanted.path().display())]);
    let mut treated = held(&wanted, [format!("--except={path}")]);
    wait_switched(&mut treated);
    // These programs began before the program that is switched now.
    for mut held in [except, only, treated] {
        let huge = switched(held.said_pid()) > 0;
        assert_eq!(
            huge,
            held.command.contains("--except") && !held.command.contains(&format!("{path} 7")),
            "{}",
            held.command
        );
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn ctrl_c_reaches_the_program_and_not_the_companion() {
    let mut pty = Pty::new();
    let path = program("terminal", Kind::DynamicPie);
    let run = followed(&path, &[]).env(MARK, &path);
    let run = run.stdio([pty.slave_fd(); 3]).prep(Prep::Terminal);
    let held = run.start();
    let said = pty.wait_for("ready\r\n");
    assert!(said.starts_with("tty 111 foreground 1"), "{said:?}");
    pty.type_keys("\x03");
    pty.wait_for("got INT\r\n");
    assert!(companion(&path.to_string_lossy()).is_some());
    pty.type_keys("quit\n");
    held.finish().assert_code(42);
}

/// If the kernel gives no perf records, TiExec reports it and scans /proc.
#[test]
fn without_perf() {
    let library = support::files().join("no_perf.so");
    let source = support::sources().join("no_perf.c");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    assert!(cc.status().expect("cc").success());
    let descend = program("descend", Kind::DynamicPie);
    let copy = small("hold", Kind::DynamicPie);
    let run = followed(&descend, &["spawn", &copy.path().to_string_lossy(), "7"]);
    let mut held =
        run.env("LD_PRELOAD", support::without_blanks(&library)).env(MARK, copy.path()).start();
    wait_switched(&mut held);
    let companion = companion(&copy.path().to_string_lossy()).expect("it is there");
    held.write(b"\n");
    let done = held.finish();
    done.assert_code(7);
    eventually("the companion ends with the tree", || !is_alive(companion));
    assert_eq!(done.err().lines().count(), 1, "{done}");
    assert!(done.err().contains("perf_event_open: permission denied (EACCES)"), "{done}");
}

#[test]
fn an_attach_follows_what_is_there_and_what_comes() {
    let descend = program("descend", Kind::DynamicPie);
    let (first, second) = (small("hold", Kind::DynamicPie), small("hold", Kind::DynamicPie));
    let script = format!("'{}' 7; '{}' 5", first.path().display(), second.path().display());
    let mut held = Run::new(&descend, ["fork", "/bin/sh", "-c", &script]).plain().start();
    held.wait_line("ready");
    let child = held.said_pid();
    let root = held.pid().to_string();
    let attach = started(&[], support::tiexecctl(), ["attach", "-f", "--backing=image", &root]);
    eventually("the descendant is switched", || switched(child) > 0);
    held.write(b"\n");
    let next = || {
        let list = std::fs::read_dir("/proc").expect("/proc").flatten();
        let mut pids = list.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.find(|pid| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == second.path())
        })
    };
    eventually("the next one is switched", || next().is_some_and(|pid| switched(pid) > 0));
    held.write(b"\n");
    held.finish().assert_code(5).assert_silent();
    // The attach ends with the tree. A program that is too small to switch is no failure.
    attach.finish().assert_code(0);
}

#[test]
fn an_attach_that_stays_ends_by_ctrl_c_and_harms_nobody() {
    let copy = small("hold", Kind::DynamicPie);
    let mut held = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = held.pid();
    let attach = started(&[], support::tiexec(), ["-f", "--backing=image", "-p", &pid.to_string()]);
    eventually("it is switched", || switched(pid) > 0);
    attach.signal(libc::SIGINT);
    attach.finish().assert_signal(libc::SIGINT);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
    ctl(["attach", "-f", "--for", "1s", "1"]).assert_code(2);
}
