//! Raw system calls of this very process.

use crate::error::{SysError, check};

/// The right to make raw system calls in this process.
#[derive(Debug)]
pub struct Calls(());

impl Calls {
    /// Grants the right.
    ///
    /// # Safety
    /// Every call made with it must leave all memory that Rust code refers to readable with the bytes it had. The switch of
    /// text does: it maps new memory where nothing is, fills it with the text's own bytes, and moves it over that text.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Makes the call `number` with `args`, and returns the kernel's answer; `name` is what errors call it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make(&self, name: &'static str, number: i64, args: [u64; 6]) -> Result<u64, SysError> {
        let [a, b, c, d, e, f] = args;
        // SAFETY: who made `self` has promised that the calls made with it leave memory in use as it is.
        let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        Ok(check(name, answer)?.cast_unsigned())
    }
}
