//! TiExec without CAP_SYS_ADMIN, as for an ordinary user and in a container: the kernel does not show whether a running thread is
//! in a system call. So a stop may cut a transfer short, and the thread completes it.

use support::extent::{Share, is_whole};
use support::{is_root, require};

use crate::killed::at_each_fault_point;
use crate::looping::{Busy, Looping, Signals, in_turn};

/// The program has the same rights, because TiExec treats others as hostile.
const WITHOUT_ADMIN: [&str; 3] = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];

fn unfelt(row: &'static str) {
    require!(is_root(), "not root");
    for signals in in_turn(row, &[Signals::No, Signals::Restart]) {
        let mut looping = Looping::behind(&WITHOUT_ADMIN, row, signals);
        for busy in in_turn(row, if is_whole() { &[0, 2] } else { &[0, 1] }) {
            let busy = Busy::new(busy);
            looping.turns(support::rounds(2));
            busy.end();
        }
        looping.end(0);
    }
}

macro_rules! rows {
    ($($row:ident)+) => {$(
        #[test]
        fn $row() {
            unfelt(stringify!($row));
        }
    )+};
}

rows!(write writev write_small write_nonblock write_gone send send_tcp send_scm send_dontwait getrandom urandom zero);
rows!(recv recv_block read epoll_wait epoll_pwait poll semtimedop sigtimedwait futex nanosleep accept_timeout);

/// A send that waits for a limited time is not completed. TiExec says so.
#[test]
fn what_is_not_completed_is_reported() {
    require!(is_root(), "not root");
    let mut looping = Looping::behind(&WITHOUT_ADMIN, "send_timeout", Signals::No);
    looping.turns(support::rounds(6));
    let told = looping.told();
    looping.end(told);
}

/// Another thread puts another file in the descriptor's place. The rest of the transfer must not go there, so the thread goes home
/// with a count that is short and true.
#[test]
fn a_replaced_descriptor_gets_nothing() {
    require!(is_root(), "not root");
    let mut looping = Looping::behind(&WITHOUT_ADMIN, "write_replaced", Signals::No);
    looping.turns(support::rounds(6));
    looping.end(usize::MAX);
}

/// The count of a transfer is true, whenever TiExec dies while the thread completes it.
mod killed {
    use super::*;

    fn at_each(index: u32, row: &'static str) {
        require!(is_root(), "not root");
        // There are three rows below.
        let share = Share { index, of: 3 };
        at_each_fault_point(&[share], row, Looping::behind(&WITHOUT_ADMIN, row, Signals::No));
    }

    #[test]
    fn a_write() {
        at_each(0, "write");
    }

    #[test]
    fn a_send() {
        at_each(1, "send");
    }

    #[test]
    fn a_getrandom() {
        at_each(2, "getrandom");
    }
}
