//! Shows names and paths to people: no character of them reaches a terminal, a table or a log as anything but text.
//!
//! A program chooses its name, its paths and its arguments. Unescaped, some characters would be commands to the
//! terminal of the person who reads them (ESC, and the C1 controls, which are two bytes in UTF-8), forge lines (a line
//! end), or make text appear in another order than it has (bidirectional controls). This module shows such characters
//! as Rust's escapes: `\x1b`, `\u{202e}`, `\n`. It shows bytes that are not UTF-8 as `\xff`. Backslashes stay as they
//! are, as in systemd's names of units. So a reader cannot distinguish an escape that is a part of a name from an
//! escape made here.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;

/// Bytes of a name, shown on one line.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

/// Bytes of a name, shown as one word of a command that a person may copy into a shell.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a>(Shown<'a>);

/// Values that can be shown.
pub trait AsShown {
    /// Returns the value for a message or a table: one line, without any character that acts on a terminal.
    fn shown(&self) -> Shown<'_>;

    /// Returns the same for a command: in quotes if a shell would take it for more or less than one word.
    fn word(&self) -> Word<'_> {
        Word(self.shown())
    }
}

impl AsShown for [u8] {
    fn shown(&self) -> Shown<'_> {
        Shown(self)
    }
}

impl AsShown for str {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl AsShown for OsStr {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl AsShown for Path {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_os_str().as_bytes())
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            chunk.valid().chars().for_each(|letter| push(&mut text, letter));
            for byte in chunk.invalid() {
                write!(text, "\\x{byte:02x}")?;
            }
        }
        f.pad(&text)
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter);
        let shown = self.0.to_string();
        if !shown.is_empty() && shown.chars().all(plain) {
            f.write_str(&shown)
        } else {
            write!(f, "'{}'", shown.replace('\'', "'\\''"))
        }
    }
}

/// Returns the words of a command, as a person may copy them into a shell.
pub fn in_shell(words: impl IntoIterator<Item: AsRef<OsStr>>) -> String {
    let words: Vec<String> =
        words.into_iter().map(|word| word.as_ref().word().to_string()).collect();
    words.join(" ")
}

/// Escapes every character of a text that would do more than end a line or move to a column.
pub fn lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|letter| does_something(letter) && !is_layout(letter)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_layout(letter) { shown.push(letter) } else { push(&mut shown, letter) }
    }
    Cow::Owned(shown)
}

/// Returns a value as JSON on one line, in which every such character is escaped in the way of JSON.
///
/// # Panics
/// If the value has keys that are not strings, or a number that JSON does not have.
pub fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("strings, numbers, lists and maps of names");
    // JSON has such characters in strings only, and serde_json escapes those of ASCII except DEL there.
    if !text.contains(does_something) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if does_something(letter) {
            let _infallible = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// Returns whether a character is a command to a terminal or a reader rather than text: C0, DEL and C1, the line and
/// paragraph separators, and characters that set the direction of writing. All of them are in the basic plane.
fn does_something(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a character is part of the layout of TiExec's own texts.
fn is_layout(letter: char) -> bool {
    matches!(letter, '\n' | '\t')
}

fn push(text: &mut String, letter: char) {
    match letter {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        _ if letter.is_ascii_control() => {
            let _infallible = write!(text, "\\x{:02x}", u32::from(letter));
        }
        _ if does_something(letter) => {
            let _infallible = write!(text, "\\u{{{:x}}}", u32::from(letter));
        }
        _ => text.push(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let words = ["tiexec", "--edges=pad", "a b", "it's", ""];
        assert_eq!(in_shell(words), r"tiexec --edges=pad 'a b' 'it'\''s' ''");
    }

    #[test]
    fn what_does_something_is_shown_as_text() {
        let shown = |bytes: &[u8]| bytes.shown().to_string();
        assert_eq!(shown(b"plain name.so"), "plain name.so");
        assert_eq!(shown("Grüße 日本 🐘 \\x2d".as_bytes()), "Grüße 日本 🐘 \\x2d");
        assert_eq!(shown(b"\x1b[31m\x07\n\r\t\0\x7f"), "\\x1b[31m\\x07\\n\\r\\t\\x00\\x7f");
        assert_eq!(shown("\u{85}\u{9b}31m".as_bytes()), "\\u{85}\\u{9b}31m");
        assert_eq!(shown("\u{202e}cod.exe\u{2066}".as_bytes()), "\\u{202e}cod.exe\\u{2066}");
        assert_eq!(
            shown("\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}".as_bytes()),
            "\\u{61c}\\u{200e}\\u{200f}\\u{2028}\\u{2029}"
        );
        assert_eq!(shown(b"\x9b31m\xff\xc3"), "\\x9b31m\\xff\\xc3");
        assert_eq!(format!("[{:<6}]", "a\n".shown()), "[a\\n   ]");
    }

    #[test]
    fn every_byte_and_every_character_ends_as_text() {
        let bytes: Vec<u8> = (0..=255).collect();
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        for text in [bytes.shown().to_string(), all.shown().to_string(), lines(&all).into_owned()] {
            assert!(!text.contains(|letter| does_something(letter) && !is_layout(letter)));
        }
        assert!(!all.shown().to_string().contains('\n'));
        assert_eq!(lines(&all).matches('\n').count(), 1);
        let text = json(&all);
        assert!(!text.contains(does_something));
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), all);
    }

    #[test]
    fn what_is_plain_is_not_copied() {
        assert!(matches!(lines("two\nlines\n"), Cow::Borrowed(_)));
        assert_eq!(lines("a\tb\u{9b}\r\n"), "a\tb\\u{9b}\\r\n");
    }
}
