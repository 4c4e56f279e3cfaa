//! Long work shows its progress on a terminal, in one line that fits, and nowhere else. After Ctrl-C, the work on the present
//! process ends as always, and no other process is begun.

use std::path::Path;

use support::attaching::{ctl, small, switched};
use support::child::eventually;
use support::smaps::stat_field;
use support::tmux::Screen;
use support::{Held, Kind, Public, Run, installed, is_root, program, require, tiexecctl};

/// The bytes with which a progress line begins, and each output that takes its place.
const WIPE: &str = "\r\x1b[K";

/// Starts `tiexecctl` on a screen of 80 columns. Without the trap, Ctrl-C would end the shell, too.
fn screen(args: &str) -> Screen {
    let screen =
        Screen::new(80, 400, &format!("trap : INT; '{}' {args}", tiexecctl().display()), &[]);
    screen.go();
    screen
}

/// Asserts that the line was shown, and that no line of the progress is wider than the terminal.
fn assert_shown(screen: &Screen, line: &str) {
    let sent = || String::from_utf8_lossy(&screen.sent()).into_owned();
    eventually("the log has the progress", || sent().contains(&format!("{WIPE}{line}")));
    for line in sent().split(WIPE).skip(1) {
        let line = line.split(['\r', '\n']).next().unwrap_or_default();
        assert!(line.chars().count() <= 80, "{line:?}");
    }
}

/// Asserts that the command shows no progress.
fn assert_none(args: &str) {
    let screen = screen(args);
    screen.wait_for("ended ");
    let sent = String::from_utf8_lossy(&screen.sent_in_all()).into_owned();
    assert!(!sent.contains(WIPE), "{args}: {sent}");
}

fn list(all: &[Held]) -> String {
    all.iter().map(|held| held.pid().to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_attach_and_a_revert_of_many() {
    require!(installed("tmux").is_some(), "no tmux");
    let copy = small("brood", Kind::DynamicNoPie);
    let exe = copy.path().display().to_string();
    let mut brood = Run::new(copy.path(), ["40"]).plain().start();
    brood.wait_line("ready");
    for (command, line) in [
        ("attach --backing=image", "attaching: 0 of 41 processes done"),
        ("revert", "reverting: 0 of 41 processes done"),
    ] {
        assert_none(&format!("{command} --exe '{exe}' 2>&1 | cat"));
        assert_none(&format!("{command} -q --exe '{exe}'"));
        ctl(["revert", "-q", "--exe", &exe]).assert_code(0);
        if command == "revert" {
            ctl(["attach", "-q", "--backing=image", "--exe", &exe]).assert_code(0);
        }
        let screen = screen(&format!("{command} --each --exe '{exe}'"));
        let text = screen.wait_for("ended 0");
        assert_shown(&screen, line);
        // Each process has its own line, and nothing stays of the progress.
        assert_eq!(text.lines().filter(|line| line.starts_with("brood-")).count(), 41, "{text}");
        assert!(!text.contains(" processes done"), "{text}");
    }
    brood.finish().assert_code(7);
}

/// The terminal stops the output, so that the command waits in the line about the first process.
fn interrupted_at_the_first(command: &str, next: &str, front: &[&str]) {
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let start = |_| Run::new(&copy, ["7"]).plain().behind(front).hold();
    let mut all: Vec<Held> = (0..3).map(start).collect();
    all.sort_by_key(Held::pid);
    let pids = list(&all);
    let on_copies = || all.iter().filter(|held| switched(held.pid()) > 0).count();
    let words: Vec<&str> = pids.split(' ').collect();
    let all_at_once = |command: &str| {
        let options: &[&str] = if command == "attach" { &["--backing=image"] } else { &[] };
        ctl([&[command, "-q"], options, &words].concat()).assert_code(0);
    };
    if command == "revert" {
        all_at_once("attach");
    }
    let before = on_copies();
    let err = public.path().join("err");
    let options = if command == "attach" { "--backing=image" } else { "" };
    let args = format!("{command} --each {options} {pids} 2>'{}'", err.display());
    let line = format!("trap : INT; '{}' {args}", tiexecctl().display());
    let screen = Screen::new(80, 50, &line, &[]);
    screen.keys(&["C-s"]).go();
    eventually("the first is done", || on_copies() != before);
    screen.keys(&["C-c"]);
    let text = screen.wait_for("ended 130");
    let has_line = |held: &&Held| text.contains(&format!("hold {}: ", held.pid()));
    assert_eq!(all.iter().filter(has_line).count(), 1, "{text}");
    assert_eq!(on_copies().abs_diff(before), 1, "{text}");
    let said = std::fs::read_to_string(&err).expect("its messages");
    assert_eq!(
        said,
        format!("tiexecctl: interrupted: 1 of 3 processes done; {next}: tiexecctl revert {pids}\n")
    );
    // The proposed command works.
    all_at_once("revert");
    assert_eq!(on_copies(), 0);
    for held in all {
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn ctrl_c_ends_the_work_on_many_after_the_present_process() {
    require!(installed("tmux").is_some(), "no tmux");
    interrupted_at_the_first("attach", "undo", &[]);
    interrupted_at_the_first("revert", "the rest", &[]);
}

/// A child process works on the processes of another user.
#[test]
fn ctrl_c_ends_the_work_on_many_of_another_user() {
    require!(installed("tmux").is_some(), "no tmux");
    require!(is_root(), "needs root to be another user");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    interrupted_at_the_first("attach", "undo", &user);
    interrupted_at_the_first("revert", "the rest", &user);
}

#[test]
fn sampling_shows_its_time_and_its_samples() {
    require!(installed("tmux").is_some(), "no tmux");
    require!(is_root(), "to sample takes root, or a setting");
    let hot = small("hotset", Kind::DynamicNoPie);
    let mut hot = Run::new(hot.path(), ["60", "600"]).plain().start();
    hot.wait_line("spinning");
    let pid = hot.pid();
    let works = || {
        let before = stat_field(pid, 14);
        eventually("it works", || stat_field(pid, 14) > before + 40);
    };
    for (command, line) in [
        (format!("advise --duration 10m {pid}"), format!("sampling process {pid}: ")),
        (format!("report --duration 10m -o /dev/null {pid}"), format!("sampling process {pid}: ")),
        (
            format!("attach --backing=image --max-huge-pages=1 --settle=5s {pid}"),
            format!("sampling process {pid}: "),
        ),
    ] {
        let screen = screen(&command);
        let has_samples = |line: &str| {
            let count = line.split(" s, ").nth(1).and_then(|rest| rest.split(' ').next());
            count.is_some_and(|count| count.parse::<u64>().is_ok_and(|it| it > 0))
        };
        eventually("progress with samples", || {
            let sent = String::from_utf8_lossy(&screen.sent()).into_owned();
            sent.split(WIPE).any(|one| one.starts_with(&line) && has_samples(one))
        });
        works();
        if !command.starts_with("attach") {
            screen.keys(&["C-c"]);
        }
        let text = screen.wait_for("ended 0");
        assert!(!text.contains("sampling process") && !text.contains("estimating"), "{text}");
        assert_shown(&screen, &line);
    }
}

#[test]
fn files_are_counted() {
    require!(installed("tmux").is_some(), "no tmux");
    let copy = small("hold", Kind::DynamicNoPie);
    let path = |file: &Path| format!("'{}'", file.display());
    let warm = format!("warm --deps {} /bin/true", path(copy.path()));
    let screen = screen(&warm);
    let text = screen.wait_for("ended ");
    assert_shown(&screen, "listing the libraries of /");
    assert!(!text.contains("listing the libraries"), "{text}");
    assert_none(&format!("{warm} -q"));
}

#[test]
fn a_benchmark_shows_its_progress_before_its_first_round() {
    require!(installed("tmux").is_some(), "no tmux");
    let screen = screen("bench --runs=6 -- sleep 600");
    screen.wait_for("0 of 14 runs");
    screen.keys(&["C-c"]);
    let text = screen.wait_for("ended 130");
    assert!(!text.contains("0 of 14 runs"), "{text}");
}

/// The command writes to the same terminal: one line says what goes on, and nothing is overwritten.
#[test]
fn a_sampled_command_has_the_terminal_for_itself() {
    require!(installed("tmux").is_some(), "no tmux");
    require!(is_root(), "to sample takes root, or a setting");
    let screen = screen("advise -- sleep 600");
    screen.wait_for("tiexecctl: sampling sleep until it ends; Ctrl-C ends it");
    screen.keys(&["C-c"]);
    screen.wait_for("ended ");
    let sent = String::from_utf8_lossy(&screen.sent_in_all()).into_owned();
    assert!(!sent.contains(WIPE), "{sent}");
}
