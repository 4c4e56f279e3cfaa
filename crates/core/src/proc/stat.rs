//! `/proc/PID/stat`: among others, the fields with the addresses of a program's parts, as the kernel keeps them
//! (proc_pid_stat(5)). These are zero for a reader that may not trace the process.

use super::{ParseError, number};

/// The addresses of a program's parts, as the kernel keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// `startcode`.
    pub start_code: u64,
    /// `endcode`.
    pub end_code: u64,
    /// `startstack`.
    pub start_stack: u64,
    /// `start_data`.
    pub start_data: u64,
    /// `end_data`.
    pub end_data: u64,
    /// `start_brk`.
    pub start_brk: u64,
    /// `arg_start`.
    pub arg_start: u64,
    /// `arg_end`.
    pub arg_end: u64,
    /// `env_start`.
    pub env_start: u64,
    /// `env_end`.
    pub env_end: u64,
}

/// Returns the fields after the name, which is field 2; the first of them is field 3.
fn fields(text: &[u8]) -> Result<Vec<&[u8]>, ParseError> {
    // The name may hold anything, parentheses and newlines too.
    let close = text.iter().rposition(|&byte| byte == b')');
    let close = close.ok_or_else(|| ParseError::new("stat", 1, "a name in ()", text))?;
    let fields = text[close + 1..].split(u8::is_ascii_whitespace);
    Ok(fields.filter(|field| !field.is_empty()).collect())
}

/// Returns the state of the process's first thread (`state`), such as `S`.
///
/// # Errors
/// The field is missing.
pub fn state(text: &[u8]) -> Result<u8, ParseError> {
    let state = fields(text)?.first().and_then(|field| field.first().copied());
    state.ok_or_else(|| ParseError::new("stat", 1, "state", text))
}

/// Returns the kernel's flags of a process or a thread (`flags`; the bits are those of `include/linux/sched.h`).
fn flags(text: &[u8]) -> Result<u64, ParseError> {
    let field = fields(text)?.get(9 - 3).and_then(|digits| number(digits, 10));
    field.ok_or_else(|| ParseError::new("stat", 1, "flags", text))
}

/// Returns whether the process is a thread of the kernel (bit `PF_KTHREAD` of `flags`).
///
/// # Errors
/// The field is missing or is not a number.
pub fn is_kernel_thread(text: &[u8]) -> Result<bool, ParseError> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    flags(text).map(|flags| flags & PF_KTHREAD != 0)
}

/// Returns whether the thread runs none of its program's code any more, because it has begun to end (bit `PF_EXITING`
/// of `flags`).
///
/// # Errors
/// The field is missing or is not a number.
pub fn is_ending(text: &[u8]) -> Result<bool, ParseError> {
    const PF_EXITING: u64 = 0x4;
    flags(text).map(|flags| flags & PF_EXITING != 0)
}

/// Returns when the process began, in clock ticks since boot (`starttime`). Together with its id, this identifies a
/// process for ever.
///
/// # Errors
/// The field is missing or is not a number.
pub fn start_time(text: &[u8]) -> Result<u64, ParseError> {
    let field = fields(text)?.get(22 - 3).and_then(|digits| number(digits, 10));
    field.ok_or_else(|| ParseError::new("stat", 1, "starttime", text))
}

/// Returns the time for which all of the process's threads ran (`utime` and `stime`), in clock ticks.
///
/// # Errors
/// A field is missing or is not a number.
pub fn run_time(text: &[u8]) -> Result<u64, ParseError> {
    let fields = fields(text)?;
    let field = |index: usize| fields.get(index - 3).and_then(|digits| number(digits, 10));
    let both = field(14).zip(field(15)).map(|(user, system)| user.saturating_add(system));
    both.ok_or_else(|| ParseError::new("stat", 1, "utime", text))
}

/// Returns the same time plus that of the children that the process has waited for (`cutime` and `cstime`), and so on
/// down.
///
/// # Errors
/// A field is missing or is not a number.
pub fn run_time_with_children(text: &[u8]) -> Result<u64, ParseError> {
    let own = run_time(text)?;
    let fields = fields(text)?;
    let field = |index: usize| fields.get(index - 3).and_then(|digits| number(digits, 10));
    let both = field(16).zip(field(17)).map(|(user, system)| user.saturating_add(system));
    let children = both.ok_or_else(|| ParseError::new("stat", 1, "cutime", text))?;
    Ok(own.saturating_add(children))
}

/// Returns the process's parent (`ppid`); 0 if it has none, or if this PID namespace does not show the parent.
///
/// # Errors
/// The field is missing or is not a number.
pub fn parent(text: &[u8]) -> Result<u64, ParseError> {
    let field = fields(text)?.get(4 - 3).and_then(|digits| number(digits, 10));
    field.ok_or_else(|| ParseError::new("stat", 1, "ppid", text))
}

/// Returns whether the process is in the foreground of the terminal whose device number is `device`
/// (`pgrp`, `tty_nr`, `tpgid`).
///
/// # Errors
/// A field is missing or is not a number.
pub fn in_foreground(text: &[u8], device: u64) -> Result<bool, ParseError> {
    let fields = fields(text)?;
    let field = |index: usize| fields.get(index - 3).and_then(|digits| number(digits, 10));
    let (group, terminal) =
        field(5).zip(field(7)).ok_or_else(|| ParseError::new("stat", 1, "tty_nr", text))?;
    // Without a terminal `tpgid` is -1.
    Ok(terminal == device && field(8) == Some(group))
}

/// Returns the processor on which the thread runs, or last ran (`processor`).
///
/// # Errors
/// The field is missing or is not a number.
pub fn processor(text: &[u8]) -> Result<u64, ParseError> {
    let field = fields(text)?.get(39 - 3).and_then(|digits| number(digits, 10));
    field.ok_or_else(|| ParseError::new("stat", 1, "processor", text))
}

/// The fields that a list of all processes shows, parsed in one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary<'a> {
    /// The name, without its parentheses (`comm`).
    pub name: &'a [u8],
    /// See [`run_time`].
    pub run_time: u64,
    /// See [`start_time`].
    pub start_time: u64,
    /// The size of the address space in bytes (`vsize`); 0 for a thread of the kernel and for a process that has ended.
    pub size: u64,
    /// The start of the stack (`startstack`), which the kernel chooses at each exec; 0 for a reader that may not trace the
    /// process.
    pub start_stack: u64,
}

/// Parses the fields of a list of processes.
///
/// # Errors
/// A field is missing or is not a number.
pub fn summary(text: &[u8]) -> Result<Summary<'_>, ParseError> {
    let odd = || ParseError::new("stat", 1, "the fields 1 to 28", text);
    let open = text.iter().position(|&byte| byte == b'(').ok_or_else(odd)?;
    let close = text.iter().rposition(|&byte| byte == b')').ok_or_else(odd)?;
    let name = text.get(open + 1..close).ok_or_else(odd)?;
    let mut fields = text[close + 1..].split(u8::is_ascii_whitespace).filter(|it| !it.is_empty());
    // The field that was read last; the first one behind the name is field 3.
    let mut last = 2;
    let mut field = |index: usize| {
        let digits = fields.nth(index - last - 1);
        last = index;
        digits.and_then(|digits| number(digits, 10)).ok_or_else(odd)
    };
    let run_time = field(14)?.saturating_add(field(15)?);
    let (start_time, size, start_stack) = (field(22)?, field(23)?, field(28)?);
    Ok(Summary { name, run_time, start_time, size, start_stack })
}

/// Parses the addresses of the program's parts.
///
/// # Errors
/// A field is missing or is not a number.
pub fn layout(text: &[u8]) -> Result<Layout, ParseError> {
    let fields = fields(text)?;
    let field = |index: usize, what| {
        let value = fields.get(index - 3).and_then(|digits| number(digits, 10));
        value.ok_or_else(|| ParseError::new("stat", 1, what, text))
    };
    Ok(Layout {
        start_code: field(26, "startcode")?,
        end_code: field(27, "endcode")?,
        start_stack: field(28, "startstack")?,
        start_data: field(45, "start_data")?,
        end_data: field(46, "end_data")?,
        start_brk: field(47, "start_brk")?,
        arg_start: field(48, "arg_start")?,
        arg_end: field(49, "arg_end")?,
        env_start: field(50, "env_start")?,
        env_end: field(51, "env_end")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_last_parenthesis() {
        let rest: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let line = format!("1 (a) 9 (b\n) {}\n", rest.join(" "));
        let layout = layout(line.as_bytes()).unwrap();
        assert_eq!((layout.start_code, layout.end_code, layout.start_stack), (26, 27, 28));
        assert_eq!((layout.start_data, layout.end_data, layout.start_brk), (45, 46, 47));
        assert_eq!((layout.arg_start, layout.arg_end), (48, 49));
        assert_eq!((layout.env_start, layout.env_end), (50, 51));
        assert_eq!(start_time(line.as_bytes()).unwrap(), 22);
        assert_eq!(parent(line.as_bytes()).unwrap(), 4);
        assert_eq!(processor(line.as_bytes()).unwrap(), 39);
        assert_eq!(run_time(line.as_bytes()).unwrap(), 14 + 15);
        let all = Summary {
            name: b"a) 9 (b\n",
            run_time: 14 + 15,
            start_time: 22,
            size: 23,
            start_stack: 28,
        };
        assert_eq!(summary(line.as_bytes()).unwrap(), all);
        assert!(!in_foreground(line.as_bytes(), 7).unwrap());
        let foreground = b"1 (x) S 1 50 50 34816 50 0";
        assert!(in_foreground(foreground, 34816).unwrap());
        assert!(!in_foreground(foreground, 34817).unwrap());
        assert!(!in_foreground(b"1 (x) S 1 50 50 0 -1 0", 0).unwrap());
    }

    #[test]
    fn a_thread_of_the_kernel_has_its_flag() {
        let kthreadd = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0";
        assert!(is_kernel_thread(kthreadd).unwrap());
        assert!(!is_kernel_thread(b"7 (cat) R 1 7 7 0 -1 4194304 90 0").unwrap());
        assert!(is_kernel_thread(b"7 (cat) R 1 7").is_err());
    }

    #[test]
    fn a_thread_that_ends_has_its_flag() {
        assert!(is_ending(b"7 (cat) R 1 7 7 0 -1 4194308 90 0").unwrap());
        assert!(!is_ending(b"7 (cat) R 1 7 7 0 -1 4194304 90 0").unwrap());
        assert!(is_ending(b"7 (cat) R 1 7").is_err());
    }

    #[test]
    fn a_short_or_odd_line_is_an_error() {
        for line in [&b""[..], b")(", b"1 (x", b"1 (x) S 1 2", b"1 (x) S -1 x"] {
            assert!(layout(line).is_err() && summary(line).is_err());
        }
    }
}
