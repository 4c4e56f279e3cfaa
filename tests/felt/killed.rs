//! If TiExec is killed at any moment, the program sees at most one interruption for each death: a short count that is
//! true, or one EINTR. No byte is lost.

use support::attaching::{FAULT_POINTS, switched};
use support::child::eventually;
use support::extent::{Share, met, several, sweep};
use support::smaps::status_field;
use support::{Random, Run, rounds};

use crate::looping::{Looping, Signals, in_turn};

fn killed(row: &'static str, signals: Signals) {
    let looping = Looping::new(row, signals);
    let pid = looping.pid();
    let mut random = Random::new();
    let mut deaths = 0;
    for _ in 0..rounds(4) {
        let run = if switched(pid) == 0 { looping.attach_run() } else { looping.revert_run() };
        let tool = run.start();
        // Most moments lie in the time in which the thread is stopped, because that is short.
        if random.below(4) == 0 {
            random.spin(20_000);
        } else {
            let mut tool_ended = false;
            eventually("TiExec traces the program or ends", || {
                tool_ended = support::child::state(tool.pid()) == Some('Z');
                tool_ended || status_field(pid, "TracerPid").is_some_and(|tracer| tracer != "0")
            });
            random.spin(if tool_ended { 1 } else { 3_000 });
        }
        tool.signal(libc::SIGKILL);
        deaths += usize::from(tool.finish().end().1 == Some(libc::SIGKILL));
    }
    met(deaths, rounds(4), row);
    looping.end(deaths);
}

/// Lets TiExec die at each place of an attach and then of a revert.
pub(crate) fn at_each_fault_point(shares: &[Share], row: &str, mut looping: Looping) {
    let mut deaths = 0;
    let (attach, revert) = (Looping::attach_run as fn(&Looping) -> Run, Looping::revert_run as _);
    for (name, run, undo) in [("attach", attach, revert), ("revert", revert, attach)] {
        for point in FAULT_POINTS {
            // A share of few places may have none. The count of all deaths shows that faults are built in.
            sweep(shares, 0, &format!("{row}: {name}, {point}"), |n| {
                let fault = format!("{point}:{n}");
                // An attach or a revert that finds no thread to stop says nothing about the place.
                for _ in 0..5 {
                    // Each death begins at the same state, and this stop is not felt either.
                    looping.did(&undo(&looping).output());
                    let done = run(&looping).env("TIEXEC_FAULT", &fault).output();
                    if done.end().1 == Some(libc::SIGKILL) {
                        deaths += 1;
                        return true;
                    }
                    looping.did(&done);
                    if done.status.code() == Some(0) {
                        break;
                    }
                }
                false
            });
        }
    }
    println!("{deaths} deaths");
    assert!(deaths > 0, "is fault injection built in?");
    looping.end(deaths);
}

macro_rules! at_each_fault_point {
    ($($shares:expr, $name:ident: $row:literal)+) => {$(
        #[test]
        fn $name() {
            // The rows below share the places. Those that use processors all the time have fewer.
            at_each_fault_point(&several($shares, 9), $row, Looping::new($row, Signals::No));
        }
    )+};
}

at_each_fault_point! {
    0..1, a_write_at_each_fault_point: "write"
    1..2, a_send_with_descriptors_at_each_fault_point: "send_scm"
    2..5, a_recv_with_a_timeout_at_each_fault_point: "recv"
    5..6, a_getrandom_at_each_fault_point: "getrandom"
    6..9, a_whole_recv_at_each_fault_point: "recv_all"
}

macro_rules! rows {
    ($($row:ident)+) => {$(
        #[test]
        fn $row() {
            for signals in in_turn(stringify!($row), &[Signals::No, Signals::Restart]) {
                killed(stringify!($row), signals);
            }
        }
    )+};
}

rows!(write writev write_small write_writers write_replaced sendfile send send_tcp send_scm recv recv_all recv_all_tcp);
rows!(getrandom urandom zero epoll_wait sigtimedwait semtimedop nanosleep futex eventfd waitid);
