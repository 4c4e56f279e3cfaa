//! A launch leaves no process behind where somebody counts it: a limit on processes, a subreaper. (`tests/units` has
//! systemd.)

use std::path::{Path, PathBuf};

use super::start::{huge_of, library, loads};
use support::attaching::{MARK, companion, ctl_named};
use support::child::{self, Held, eventually, soon};
use support::machine::Groups;
use support::smaps::children;
use support::{Kind, Prep, Public, Run, is_root, program, require};

/// The number of processes that a limit below 1,024 allows and that no test needs.
const LOW: u64 = 1000;

fn low_limit() -> Prep {
    Prep::Rlimit(libc::RLIMIT_NPROC, LOW)
}

/// Says how the programs may be started: without `tiexec`, by default, and with nothing after the start.
fn ways(run: &Run) -> [(&'static str, Run); 3] {
    let nothing_later = run.clone().options(["--settle=0"]);
    [("plain", run.plain()), ("tiexec", run.clone()), ("tiexec --settle=0", nothing_later)]
}

/// Runs a server with three workers where four processes are the limit. TIEXEC_TEST_ROUNDS=1000 is the long form.
fn assert_all_workers(run: impl Fn(&Run) -> Run) {
    let directory = Public::new();
    let server = directory.add(&program("server", Kind::DynamicPie), "server", 0o755);
    let server = Run::new(server, ["workers", "3"]).binary(directory.tiexec());
    for round in 0..support::extent::rounds(4) {
        for (way, run) in ways(&run(&server)) {
            let mut held = run.hold();
            assert_eq!(held.said("workers").as_deref(), Some("3"), "round {round}, {way}");
            held.write(b"\n");
            held.finish().assert_code(7).assert_silent();
        }
    }
}

#[test]
fn a_limit_of_the_user_that_fits_exactly() {
    require!(is_root(), "a user of the test's own needs root");
    // No other process has this user, and root is exempt from the limit.
    let user = format!("--reuid={}", 1_000_000_000 + std::process::id());
    let limited = |run: &Run| {
        let script = "ulimit -u 4; exec \"$@\"";
        let front = ["setpriv", &user, "--clear-groups", "bash", "-c", script, "bash"];
        run.clone().behind(front)
    };
    assert_all_workers(limited);
}

/// Returns the directory of the hierarchy that counts processes.
fn counts_processes() -> Option<PathBuf> {
    let v1 = Path::new("/sys/fs/cgroup/pids");
    if v1.join("cgroup.procs").exists() {
        return Some(v1.to_owned());
    }
    let unified = Path::new("/sys/fs/cgroup");
    let given = std::fs::read_to_string(unified.join("cgroup.subtree_control")).ok()?;
    given.split_whitespace().any(|one| one == "pids").then(|| unified.to_owned())
}

#[test]
fn a_limit_of_the_cgroup_that_fits_exactly() {
    require!(is_root(), "cgroups need root");
    let mut cgroups = Groups::new();
    let group = counts_processes().and_then(|parent| cgroups.group(&parent));
    require!(group.is_some(), "no cgroup that counts processes can be made");
    let group = group.expect("just looked");
    std::fs::write(group.join("pids.max"), "4").expect("a limit");
    // The limit also counts if it is that of a cgroup above.
    let inner = group.join("inner");
    std::fs::create_dir(&inner).expect("a cgroup");
    for at in [&group, &inner] {
        let join = format!("echo $$ >'{}'/cgroup.procs; exec \"$@\"", at.display());
        assert_all_workers(|run| {
            // The kernel may count the processes of the round before for a moment longer.
            eventually("the cgroup is empty", || {
                std::fs::read_to_string(group.join("pids.current")).is_ok_and(|n| n == "0\n")
            });
            run.clone().behind_sh(&join)
        });
    }
    eventually("the inner cgroup is removed", || std::fs::remove_dir(&inner).is_ok());
}

/// The children of a process that have not ended.
fn living(pid: i32) -> Vec<i32> {
    let lives = |pid: &i32| child::state(*pid).is_some_and(|state| state != 'Z');
    children(pid).into_iter().filter(lives).collect()
}

fn under_a_subreaper(options: &[&str], mark: &str) -> Held {
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).options(options).env(MARK, mark);
    run.behind([program("subreaper", Kind::DynamicPie)]).hold()
}

#[test]
fn a_subreaper_gets_no_living_process() {
    for _ in 0..support::extent::rounds(4) {
        let mut held = under_a_subreaper(&[], "subreaper");
        assert_eq!(living(held.pid()), [held.said_pid()], "{}", held.command);
        held.write(b"\n");
        let done = held.finish();
        done.assert_code(0).assert_silent();
        assert!(done.out().contains("exited 7\n"), "{done}");
    }
}

#[test]
fn a_subreaper_is_named() {
    let mut held = under_a_subreaper(&["-v"], "named");
    let line =
        format!(": no process watches its start, because process {} is a subreaper", held.pid());
    assert!(held.err_text().contains(&line), "{line}: {}", held.err_text());
    held.write(b"\n");
    held.finish().assert_code(0);
}

/// An option is an order: what it asks for is done, and the line says who may count it.
#[test]
fn what_the_user_asks_for_is_done() {
    for option in ["--follow", "--settle=1m"] {
        let mark = format!("ordered{option}");
        let mut held = under_a_subreaper(&[option], &mark);
        let follower = companion(&mark).expect("there is a companion");
        assert!(living(held.pid()).contains(&follower), "{option}");
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        let line = format!(": {name} keeps one process more beside it, and process {}", held.pid());
        assert!(held.err_text().contains(&line), "{line}: {}", held.err_text());
        held.write(b"\n");
        // SAFETY: kill has no memory conditions; the companion lives at least as long as its program.
        unsafe { libc::kill(follower, libc::SIGKILL) };
        held.finish().assert_code(0);

        let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).prep(low_limit());
        let run = run.options([option]).env(MARK, &mark);
        let mut held = run.hold();
        assert!(companion(&mark).is_some(), "{option}");
        assert!(held.err_text().contains("the user may have only 1000 processes"), "{option}");
        held.write(b"\n");
        held.finish().assert_code(7);
        let held = run.options(["-q"]).hold();
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn a_process_that_systemd_itself_started() {
    for (named, is_counted) in [("$$", true), ("1", false)] {
        let mark = format!("main-{is_counted}-{}", std::process::id());
        let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).env(MARK, &mark);
        let script = format!("export SYSTEMD_EXEC_PID={named}; exec \"$@\"");
        let mut held = run.behind_sh(&script).hold();
        assert_eq!(companion(&mark).is_none(), is_counted, "{}", held.command);
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn a_usual_limit_is_no_reason() {
    let mark = format!("usual-{}", std::process::id());
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).env(MARK, &mark);
    let mut held = run.prep(Prep::Rlimit(libc::RLIMIT_NPROC, 1024)).hold();
    assert!(companion(&mark).is_some(), "the start is watched");
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn what_is_left_undone_is_one_line_and_its_fix_helps() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 4);
    let run = loads(&library).prep(low_limit());
    let mut held = run.clone().options(["-v"]).start();
    held.wait_line("loaded");
    let said = held.err_text();
    let mut lines = said.lines().filter(|line| line.contains("no process watches its start"));
    let line = lines.next().unwrap_or_else(|| panic!("no line: {said}"));
    assert_eq!(lines.next(), None);
    assert_eq!(huge_of(held.pid(), &library), 0);
    let (_, fix) = line.split_once("; fix: ").expect("a fix");
    let (now, later) = fix.split_once("; for later starts: ").expect("two commands");
    // Without systemd, as in most containers, nothing can start the agent.
    let wanted = match Path::new("/run/systemd/system").is_dir() {
        true => "systemctl enable --now tiexecd",
        false => "tiexec --until-exec=NAME, if it executes the program NAME",
    };
    assert_eq!(later, wanted);
    ctl_named(now).assert_code(0);
    assert!(soon(|| huge_of(held.pid(), &library) > 0), "{line}");
    held.write(b"\n");
    held.finish().assert_code(7);
    // Without -v nothing is said.
    let mut held = run.start();
    held.wait_line("loaded");
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}
