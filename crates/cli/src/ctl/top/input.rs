//! The keys, read from standard input.
//!
//! This module replaces crossterm's reader. That reader loops for ever once the terminal is gone, because it treats the
//! end of the input, and EIO, as no input. It also waits for the rest of a partial key, even if a signal arrives. Here
//! the bytes are read only when poll(2) reports input.

use rustix::event::PollFlags;
use rustix::io::Errno;

/// A key with a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Char(char),
    Control(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
}

const ESC: u8 = 0x1b;
/// The most bytes that one key sends. [`Input::keys`] discards a longer sequence.
const LONGEST: usize = 32;

/// The bytes of an incomplete key.
#[derive(Debug, Default)]
pub(super) struct Input(Vec<u8>);

impl Input {
    /// Reads the input that poll(2) reported. Returns `false` once the terminal is gone.
    pub(super) fn read(&mut self, found: PollFlags) -> bool {
        if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return false;
        }
        if !found.contains(PollFlags::IN) {
            return true;
        }
        let mut buffer = [0; 1024];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.0.extend(&buffer[..count]);
                true
            }
            Err(errno) => matches!(errno, Errno::INTR | Errno::AGAIN),
        }
    }

    /// Returns whether a key is incomplete: the rest follows soon, or the key is Esc.
    pub(super) fn is_partial(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes the complete keys. With `at_last`, also takes incomplete bytes, of which only Esc is a key.
    pub(super) fn keys(&mut self, at_last: bool) -> Vec<Key> {
        let mut keys = Vec::new();
        while !self.0.is_empty() {
            let (length, key) = match first(&self.0) {
                Some(found) => found,
                None if at_last => (self.0.len(), (self.0 == [ESC]).then_some(Key::Escape)),
                None if self.0.len() > LONGEST => (self.0.len(), None),
                None => break,
            };
            self.0.drain(..length);
            keys.extend(key);
        }
        keys
    }
}

/// Returns the length of the first key, and the key if it has a meaning; `None` if it is incomplete. (ECMA-48; xterm's
/// `ctlseqs`.)
fn first(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match *bytes {
        [ESC, b'[', ref rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            Some((2 + end + 1, of_sequence(&rest[..end], rest[end])))
        }
        [ESC, b'O', last, ..] => Some((3, of_sequence(b"", last))),
        [ESC, b'O'] | [ESC] => None,
        [ESC, ESC, ..] => Some((1, Some(Key::Escape))),
        // The bytes may be Alt with a key, or Esc and a key that arrived together. The input is ambiguous, so it
        // gives no key.
        [ESC, ref rest @ ..] => first(rest).map(|(length, _)| (1 + length, None)),
        [b'\r' | b'\n', ..] => Some((1, Some(Key::Enter))),
        [0x7f | 0x08, ..] => Some((1, Some(Key::Backspace))),
        [byte @ 1..=26, ..] => Some((1, Some(Key::Control(char::from(b'a' + byte - 1))))),
        [byte, ..] => {
            let length = match byte {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => 1,
            };
            let letter = std::str::from_utf8(bytes.get(..length)?).ok();
            let letter = letter.and_then(|text| text.chars().next());
            match letter {
                Some(letter) => {
                    Some((length, Some(letter).filter(|it| !it.is_control()).map(Key::Char)))
                }
                None => Some((1, None)),
            }
        }
        [] => None,
    }
}

fn of_sequence(parameters: &[u8], last: u8) -> Option<Key> {
    Some(match (parameters, last) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'H') | (b"1" | b"7", b'~') => Key::Home,
        (_, b'F') | (b"4" | b"8", b'~') => Key::End,
        (b"5", b'~') => Key::PageUp,
        (b"6", b'~') => Key::PageDown,
        (_, b'M') => Key::Enter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_whole() {
        let mut input = Input("q\r\x7f\x03\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1~\x1b[4~ö".into());
        let all = [
            Key::Char('q'),
            Key::Enter,
            Key::Backspace,
            Key::Control('c'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Char('ö'),
        ];
        assert_eq!(input.keys(false), all);
        // A sequence without a meaning gives no key, but the byte after it gives one.
        let mut input = Input(b"\x1b[200~\x1bq\xff\x1b\x1b[B\0x".into());
        assert_eq!(input.keys(false), [Key::Escape, Key::Down, Key::Char('x')]);
    }

    #[test]
    fn a_part_of_a_key_waits_for_the_rest() {
        for (part, rest, key) in
            [(&b"\x1b"[..], &b"[A"[..], Key::Up), (b"\xc3", b"\xb6", Key::Char('ö'))]
        {
            let mut input = Input(part.to_vec());
            assert!(input.keys(false).is_empty() && input.is_partial());
            input.0.extend(rest);
            assert_eq!(input.keys(false), [key]);
            assert!(!input.is_partial());
        }
        assert_eq!(Input(b"\x1b".to_vec()).keys(true), [Key::Escape]);
        for odd in [&b"\x1b["[..], b"\x1bO", b"\xc3"] {
            let mut input = Input(odd.to_vec());
            assert!(input.keys(true).is_empty() && !input.is_partial());
        }
        let mut long = Input([b"\x1b[".as_slice(), &[b'1'; 64]].concat());
        assert!(long.keys(false).is_empty() && !long.is_partial());
    }
}
