//! `/proc/TID/syscall`: what a thread is doing (proc_pid_syscall(5)).

use super::{ParseError, number};

/// The activity of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Running, or waiting for a processor.
    Running,
    /// Blocked, but not in a system call: in a page fault, or stopped.
    Blocked,
    /// Blocked in a system call.
    Call {
        /// Its number.
        number: u64,
        /// Its arguments, raw.
        args: [u64; 6],
    },
}

/// Parses the one line.
///
/// # Errors
/// The field that is malformed.
pub fn parse(text: &[u8]) -> Result<Doing, ParseError> {
    let line = text.trim_ascii();
    if line == b"running" {
        return Ok(Doing::Running);
    }
    let bad = |what| ParseError::new("syscall", 1, what, text);
    let mut words = line.split(|&byte| byte == b' ');
    let call = words.next().unwrap_or_default();
    // Behind the call and its arguments come the stack pointer and the program counter. A worker of io_uring shows those of its
    // creator's call, and no stack (`copy_thread`): a stop would make its request fail.
    let has_stack = |words: &mut dyn Iterator<Item = &[u8]>| match words.next() {
        Some(b"0x0") => Err(bad("a stack pointer")),
        _ => Ok(()),
    };
    if call == b"-1" {
        return has_stack(&mut words).map(|()| Doing::Blocked);
    }
    let number_of_call = number(call, 10).ok_or_else(|| bad("a system call's number"))?;
    let mut args = [0; 6];
    for arg in &mut args {
        let word = words.next().and_then(|word| word.strip_prefix(b"0x"));
        *arg = word.and_then(|digits| number(digits, 16)).ok_or_else(|| bad("six arguments"))?;
    }
    has_stack(&mut words).map(|()| Doing::Call { number: number_of_call, args })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        assert_eq!(parse(b"running\n").unwrap(), Doing::Running);
        assert_eq!(parse(b"-1 0x7ffe 0x7f00\n").unwrap(), Doing::Blocked);
        let line = b"232 0x5 0x7f 0x40 0xffffffffffffffff 0x0 0x8 0x7ffc 0x7f11\n";
        let args = [5, 0x7f, 0x40, u64::MAX, 0, 8];
        assert_eq!(parse(line).unwrap(), Doing::Call { number: 232, args });
    }

    #[test]
    fn anything_else_is_an_error() {
        let worker = b"426 0x3 0x0 0x1 0x1 0x0 0x8 0x0 0x0";
        for line in [
            &b""[..],
            b"x",
            b"1",
            b"1 2 3",
            b"0 0x1 0x2 0x3 0x4 0x5",
            b"-2 0x0 0x0",
            b"-1 0x0 0x0",
            worker,
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
