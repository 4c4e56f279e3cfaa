//! A program that makes one call over and over sees no short count, no EINTR, no lost, doubled or changed byte, and no
//! timeout that ends early, beside what its own signals explain. The rows are those of
//! `docs/design/interrupted-calls.md`.

use support::attaching::switched;
use support::child::{eventually, state};
use support::extent::is_whole;
use support::require_of_machine;

use crate::looping::{ALL_SIGNALS, Busy, Looping, Signals, in_turn};

/// Attaches and reverts by turns. `make soak` does it with each kind of signals, while no, one and four other processes
/// compete with the program. `make test` takes one of each for a row, but never four processes: the other tests compete there.
fn unfelt(row: &'static str) {
    for signals in in_turn(row, &ALL_SIGNALS) {
        let mut looping = Looping::new(row, signals);
        require_of_machine!(looping.lacks().is_none(), "the kernel lacks the call");
        for busy in in_turn(row, if is_whole() { &[0, 1, 4] } else { &[0, 1] }) {
            let busy = Busy::new(busy);
            looping.turns(support::rounds(2));
            busy.end();
        }
        looping.end(0);
    }
}

/// A stopped program that SIGCONT lets go on, after TiExec has looked and before it traces, is in its next call by then.
#[test]
fn continued() {
    let mut looping = Looping::new("recvmmsg", Signals::Quiet);
    let pid = looping.pid();
    for _ in 0..support::rounds(3) {
        looping.signal(libc::SIGSTOP);
        eventually("the program stands", || state(pid) == Some('T'));
        let run = if switched(pid) == 0 { looping.attach_run() } else { looping.revert_run() };
        looping.did(&run.env("TIEXEC_FAULT", "continue-before-seize:1").output());
        assert_ne!(state(pid), Some('T'), "nobody sent SIGCONT");
    }
    looping.end(0);
}

/// The list of calls names each row.
fn is_listed(row: &str) {
    let list = include_str!("../../docs/design/interrupted-calls.md");
    assert!(list.contains(&format!("`{row}`")), "{row} is not in the list");
}

macro_rules! rows {
    ($($row:ident)+) => {$(
        #[test]
        fn $row() {
            is_listed(stringify!($row));
            unfelt(stringify!($row));
        }
    )+};
}

// Pipes.
rows!(write writev write_nonblock write_small write_writers write_gone write_replaced read open_fifo splice vmsplice);
// Files.
rows!(sendfile_pipe sendfile_file copy_file_range read_file write_file fallocate getdents64);
rows!(getrandom urandom urandom_write zero write_pty read_pty);
// Sockets.
rows!(sendfile send send_tcp send_timeout send_dontwait send_scm send_dgram sendmmsg recvmmsg);
rows!(recv recv_block recv_all recv_all_tcp accept accept_timeout connect_timeout close_linger);
// Waits.
rows!(epoll_wait epoll_pwait epoll_pwait2 poll ppoll ppoll_readonly select pselect);
rows!(nanosleep nanosleep_rem clock_nanosleep futex futex_timeout futex_waitv futex_pi);
rows!(sigtimedwait signalfd eventfd timerfd inotify semtimedop semop msgrcv mq_timedreceive flock setlkw);
// Others.
rows!(waitid debugger io_getevents io_uring_enter io_uring_submit bpf);
