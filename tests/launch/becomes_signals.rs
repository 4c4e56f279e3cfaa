//! Signals reach a launched program as without TiExec: before, during and after the launch.

use std::sync::atomic::{AtomicBool, Ordering};

use support::child::{eventually, state};
use support::extent::rounds;
use support::{Kind, Prep, Random, Run, program};

/// The signal lines of `identity`.
fn signal_lines(run: &Run) -> Vec<String> {
    let held = run.hold();
    let lines = held
        .out_text()
        .lines()
        .filter(|l| l.starts_with("status Sig") || l.starts_with("status ShdPnd"))
        .map(str::to_owned)
        .collect();
    held.finish().assert_code(0).assert_silent();
    lines
}

#[test]
fn blocked_and_ignored_signals_are_inherited_as_they_were() {
    let base = Run::new(program("identity", Kind::DynamicPie), [""; 0]);
    let rt = libc::SIGRTMIN() + 1;
    let some = base
        .clone()
        .prep(Prep::Block(libc::SIGUSR1))
        .prep(Prep::Block(rt))
        .prep(Prep::Block(libc::SIGCHLD))
        .prep(Prep::Ignore(libc::SIGHUP))
        .prep(Prep::Ignore(libc::SIGPIPE))
        .prep(Prep::Ignore(libc::SIGTRAP));
    let no_children = base.clone().prep(Prep::Ignore(libc::SIGCHLD));
    let mut all = base.clone();
    for signal in (1..=64).filter(|s| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(s)) {
        all = all.prep(Prep::Block(signal));
    }
    for run in [base, some, no_children, all] {
        let plain = signal_lines(&run.plain());
        assert_eq!(plain.len(), 5);
        assert_eq!(signal_lines(&run), plain);
    }
}

#[test]
fn ignored_sigchld_and_blocked_signals_do_not_stop_the_treatment() {
    for prep in [
        Prep::Ignore(libc::SIGCHLD),
        Prep::Block(libc::SIGCHLD),
        Prep::Block(libc::SIGTRAP),
        Prep::Ignore(libc::SIGTRAP),
    ] {
        let held = Run::new(program("hold", Kind::DynamicPie), ["3"]).prep(prep).hold();
        assert!(held.coverage().is_full(), "{prep:?}: {:?}", held.coverage());
        held.finish().assert_code(3).assert_silent();
    }
}

/// Sends these signals one after the other, without a pause, while `during` runs.
fn storm<T>(pid: i32, signals: &[i32], during: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for &signal in signals {
                    // SAFETY: kill has no memory conditions; the child is reaped only after the storm.
                    unsafe { libc::kill(pid, signal) };
                }
                std::thread::yield_now();
            }
        });
        // A panic must also stop the storm, or the scope never ends.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_storm_of_ignored_signals_during_the_launch_changes_nothing() {
    for round in 0..rounds(8) {
        let kind = [Kind::DynamicPie, Kind::StaticNoPie][round % 2];
        let mut held = Run::new(program("hold", kind), ["9"]).start();
        storm(held.pid(), &[libc::SIGWINCH, libc::SIGCHLD, libc::SIGURG, libc::SIGCONT], || {
            held.wait_line("ready")
        });
        held.assert_full();
        held.finish().assert_code(9).assert_silent();
    }
}

#[test]
fn signals_queued_during_the_launch_arrive_once_and_in_order() {
    let rt = libc::SIGRTMIN() + 2;
    let mut random = Random::new();
    for _ in 0..rounds(6) {
        let run = Run::new(program("pending", Kind::DynamicPie), [""; 0])
            .prep(Prep::Block(libc::SIGUSR1))
            .prep(Prep::Block(rt));
        let mut held = run.start();
        for value in 1..=5_usize {
            let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
            // SAFETY: sigqueue takes the value as a number; the child is not reaped.
            unsafe { libc::sigqueue(held.pid(), rt, value) };
            held.signal(libc::SIGUSR1);
            random.spin(1500);
        }
        held.wait_line("ready");
        assert!(held.said("huge").is_some_and(|h| h != "0"), "{}", held.out_text());
        let done = held.finish();
        done.assert_code(0).assert_silent();
        let mut want = vec![format!("took {} code 0 value 0", libc::SIGUSR1)];
        want.extend((1..=5).map(|v| format!("took {rt} code -1 value {v}")));
        let took: Vec<String> =
            done.out().lines().filter(|l| l.starts_with("took")).map(str::to_owned).collect();
        assert_eq!(took, want, "{done}");
    }
}

#[test]
fn a_launch_can_be_stopped_and_continued_at_any_moment() {
    let mut random = Random::new();
    for _ in 0..rounds(12) {
        let mut held = Run::new(program("hold", Kind::DynamicPie), ["6"]).start();
        random.spin(6000);
        held.signal(libc::SIGSTOP);
        assert_eq!(held.wait_stopped(), libc::SIGSTOP);
        held.signal(libc::SIGCONT);
        held.wait_line("ready");
        held.assert_full();
        held.signal(libc::SIGSTOP);
        assert_eq!(held.wait_stopped(), libc::SIGSTOP);
        assert_eq!(state(held.pid()), Some('T'));
        held.signal(libc::SIGCONT);
        held.finish().assert_code(6).assert_silent();
    }
}

#[test]
fn a_stop_in_the_launch_is_seen_by_the_parent() {
    let mut held = Run::new(program("hold", Kind::DynamicPie), ["6"]).start();
    for signal in [libc::SIGSTOP, libc::SIGTTIN, libc::SIGTSTP] {
        held.signal(signal);
        assert_eq!(held.wait_stopped(), signal);
        held.signal(libc::SIGCONT);
    }
    held.wait_line("ready");
    held.finish().assert_code(6).assert_silent();
}

#[test]
fn an_interval_timer_is_inherited_and_fires() {
    let held = Run::new(program("hold", Kind::DynamicPie), ["0"]).prep(Prep::Alarm(1)).start();
    // The program's standard input stays open, so only the alarm can end it.
    let mut held = held;
    held.wait_line("ready");
    eventually("the alarm kills", || state(held.pid()) == Some('Z'));
    held.finish().assert_signal(libc::SIGALRM).assert_silent();
}
