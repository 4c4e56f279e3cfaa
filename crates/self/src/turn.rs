//! One call at a time.

use std::sync::atomic::{AtomicI32, Ordering};

use tiexec_sys::process;

/// The process in which a call is at work; 0 for none. A child that is forked meanwhile inherits its parent's number,
/// and has no thread that would ever reset it.
static TAKEN_BY: AtomicI32 = AtomicI32::new(0);

/// The right to work on this process, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets the next call in"]
pub(crate) struct Turn(());

impl Turn {
    /// Takes the turn; `None` while another thread has it.
    pub(crate) fn take() -> Option<Self> {
        let this = process::this().as_raw_nonzero().get();
        let mut by = 0;
        loop {
            match TAKEN_BY.compare_exchange(by, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Self(())),
                Err(other) if other == this => return None,
                Err(other) => by = other,
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN_BY.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_it_and_a_childs_parent_has_not() {
        let turn = Turn::take().expect("nobody has it");
        assert!(Turn::take().is_none());
        drop(turn);
        TAKEN_BY.store(1, Ordering::Relaxed);
        drop(Turn::take().expect("process 1 is another"));
        drop(Turn::take().expect("nobody has it"));
    }
}
