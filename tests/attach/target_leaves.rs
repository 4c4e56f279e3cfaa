//! The program may end, exec, fork or be killed at any moment of an attach or a revert. TiExec does not affect that,
//! and reports the outcome.

use support::attaching::{attach, attach_run, revert_run};
use support::extent::{met, rounds};
use support::{Kind, Random, Run, program};

/// Makes the program do that at a random moment of an attach, and then of a revert. Returns how often TiExec came too
/// late, and of how many rounds.
fn leaves(what: &str, signal: i32, end: (Option<i32>, Option<i32>)) -> (usize, usize) {
    let rounds = rounds(16);
    let mut random = Random::new();
    let mut gone = 0;
    for round in 0..rounds {
        let held = Run::new(program("leaver", Kind::DynamicPie), [what]).plain().hold();
        let pid = held.pid();
        let run = if round % 2 == 0 {
            attach_run(pid)
        } else {
            attach(pid).assert_code(0);
            revert_run(pid)
        };
        let tool = run.start();
        random.spin(15_000);
        held.signal(signal);
        let done = tool.finish();
        let code = done.status.code();
        assert!(matches!(code, Some(0 | 1 | 3 | 4)), "{what} {round}: {done}");
        gone += usize::from(code == Some(4));
        let ended = held.finish();
        assert_eq!(ended.end(), end, "{what} {round}: {done} {ended}");
        ended.assert_silent();
        assert_eq!(
            ended.out().contains("again"),
            what.starts_with("exec"),
            "{what} {round}: {ended}"
        );
    }
    (gone, rounds)
}

const SEVEN: (Option<i32>, Option<i32>) = (Some(7), None);

#[test]
fn it_is_killed() {
    let (gone, rounds) = leaves("", libc::SIGKILL, (None, Some(libc::SIGKILL)));
    met(gone, rounds, "killed in the middle");
}

#[test]
fn it_exits() {
    let (gone, rounds) = leaves("exit", libc::SIGUSR1, SEVEN);
    met(gone, rounds, "ended in the middle");
}

#[test]
fn it_execs_from_another_thread() {
    leaves("exec", libc::SIGUSR1, SEVEN);
}

#[test]
fn it_execs_from_its_first_thread() {
    leaves("exec_first", libc::SIGUSR1, SEVEN);
}

#[test]
fn it_forks() {
    leaves("fork", libc::SIGUSR1, SEVEN);
}
