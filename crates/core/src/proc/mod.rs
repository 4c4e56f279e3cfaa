//! Parsers of the kernel's text under `/proc`: bytes in, values out.
//!
//! Kernel text is input. It is bytes, not UTF-8. Parsers keep or ignore unknown fields and flags,
//! and never fail for them. No content makes a parser panic (fuzz targets of the same names).

pub mod auxv;
pub mod buddyinfo;
pub mod cgroup;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod pagemap;
pub mod pressure;
pub mod sched;
pub mod stack;
pub mod stat;
pub mod status;
pub mod syscall;

use thiserror::Error;

/// A line of kernel text that does not have the form of the manual.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line} of {file}: {what}: {text:?}")]
pub struct ParseError {
    /// The file under `/proc/PID`.
    pub file: &'static str,
    /// The line, counted from 1.
    pub line: usize,
    /// The text that the parser expected.
    pub what: &'static str,
    /// The line itself, shortened, with bytes that are not UTF-8 replaced.
    pub text: String,
}

impl ParseError {
    pub(crate) fn new(file: &'static str, line: usize, what: &'static str, text: &[u8]) -> Self {
        let shown = &text[..text.len().min(120)];
        Self { file, line, what, text: String::from_utf8_lossy(shown).into_owned() }
    }
}

/// Parses all of `digits` in `radix`; rejects signs, blanks and overflow.
pub(crate) fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// Splits `text` into lines without their ends; a last line without an end counts.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    text.split(|&byte| byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| (index + 1, line))
}
