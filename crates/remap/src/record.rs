//! The record of a process: what one TiExec writes down for the next one. It is the content of the file that `lock`
//! locks, so the holder of the lock alone reads and writes it.
//!
//! The first line says who has reverted the process, and has always the same length. TiExec writes it by one write(2)
//! within one page, which no SIGKILL divides (`generic_perform_write` in `mm/filemap.c` looks for one between two pages). The
//! notes of `attach::waits` follow. A version of TiExec without the first line wrote notes only, so a
//! file may begin with them.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of the first line, its end included.
const FIRST: usize = 64;
/// The first line begins so.
const REVERTED: &str = "reverted";

/// Who has reverted a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// An operator, who wants the process to stay on base pages.
    Operator,
    /// TiExec itself, for a time: a drain of the agent, a canary, a benchmark.
    TiExec,
}

impl By {
    const fn word(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::TiExec => "tiexec",
        }
    }
}

/// The record of a process.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a>(&'a File);

impl<'a> Record<'a> {
    /// The record in this file, which is open for reading and writing.
    pub const fn in_file(file: &'a File) -> Self {
        Self(file)
    }

    /// Returns who has reverted the process since it began the program with this mark, and nobody has attached to it
    /// since.
    pub fn reverted(self, program: u64) -> Option<By> {
        let first = self.first()?;
        let mut words = std::str::from_utf8(&first).ok()?.split_ascii_whitespace();
        let (begin, by, mark) = (words.next()?, words.next()?, words.next()?);
        if begin != REVERTED || mark.parse() != Ok(program) {
            return None;
        }
        [By::Operator, By::TiExec].into_iter().find(|one| one.word() == by)
    }

    /// Writes down who reverts the program with this mark; `None` forgets the revert. Without room, nothing is written
    /// down.
    pub fn note_reverted(self, program: u64, by: Option<By>) {
        let text = by.map_or(String::new(), |by| format!("{REVERTED} {} {program}", by.word()));
        if self.first().is_none() {
            if text.is_empty() {
                return;
            }
            let notes = self.notes(usize::MAX);
            let _without_room = self.begin().and_then(|()| self.append(&notes));
        }
        let _without_room = self.put(&text);
    }

    /// Returns at most `most` bytes of the notes.
    pub(crate) fn notes(self, most: usize) -> Vec<u8> {
        let from = self.first().map_or(0, |_| FIRST as u64);
        let len = self.0.metadata().map_or(0, |meta| meta.len()).saturating_sub(from);
        let mut text = vec![0; usize::try_from(len).unwrap_or(most).min(most)];
        let len = self.0.read_at(&mut text, from).unwrap_or(0);
        text.truncate(len);
        text
    }

    /// Replaces the notes.
    ///
    /// # Errors
    /// ENOSPC, EIO: some notes are lost.
    pub(crate) fn replace_notes(self, text: &[u8]) -> std::io::Result<()> {
        match self.first() {
            Some(_) => self.0.set_len(FIRST as u64)?,
            None => self.begin()?,
        }
        self.append(text)
    }

    /// Returns the first line, if there is one.
    fn first(self) -> Option<[u8; FIRST]> {
        let mut first = [0; FIRST];
        self.0.read_exact_at(&mut first, 0).ok()?;
        (first[FIRST - 1] == b'\n' && !first[0].is_ascii_digit()).then_some(first)
    }

    /// Makes the file have an empty first line only.
    fn begin(self) -> std::io::Result<()> {
        self.0.set_len(0)?;
        self.put("")
    }

    fn put(self, text: &str) -> std::io::Result<()> {
        self.0.write_all_at(format!("{text:<width$}\n", width = FIRST - 1).as_bytes(), 0)
    }

    fn append(self, notes: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(notes, FIRST as u64)
    }

    /// Returns whether nothing is written down.
    pub(crate) fn is_empty(self) -> bool {
        match self.first() {
            Some(first) => first.trim_ascii().is_empty() && self.notes(1).is_empty(),
            None => self.notes(1).is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revert_is_of_one_program_and_beside_the_notes() {
        let file = tempfile::tempfile().unwrap();
        let record = Record::in_file(&file);
        assert!(record.is_empty() && record.reverted(7).is_none());
        record.note_reverted(u64::MAX, None);
        assert_eq!(file.metadata().unwrap().len(), 0);
        record.note_reverted(u64::MAX, Some(By::Operator));
        record.replace_notes(b"1 2 3\n").unwrap();
        assert_eq!(record.reverted(u64::MAX), Some(By::Operator));
        assert_eq!(record.reverted(7), None);
        record.note_reverted(7, Some(By::TiExec));
        assert_eq!((record.reverted(7), record.notes(99)), (Some(By::TiExec), b"1 2 3\n".to_vec()));
        record.note_reverted(7, None);
        assert!(record.reverted(7).is_none() && !record.is_empty());
        record.replace_notes(b"").unwrap();
        assert!(record.is_empty());
    }

    #[test]
    fn notes_of_an_earlier_version_stay() {
        let notes = "12 345 232 10 99\n".repeat(9);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(notes.as_bytes(), 0).unwrap();
        let record = Record::in_file(&file);
        assert_eq!((record.notes(usize::MAX), record.reverted(7)), (notes.clone().into(), None));
        record.note_reverted(7, Some(By::Operator));
        assert_eq!((record.notes(9999), record.reverted(7)), (notes.into(), Some(By::Operator)));
        assert_eq!(record.notes(5), b"12 34");
    }

    #[test]
    fn garbage_is_no_revert() {
        for text in
            ["reverted", "reverted god 7", "reverted operator", "reverted operator x", "\u{0}"]
        {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(format!("{text:<63}\n").as_bytes(), 0).unwrap();
            assert_eq!(Record::in_file(&file).reverted(7), None, "{text:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"reverted operator 7\n", 0).unwrap();
        assert_eq!(Record::in_file(&file).reverted(7), None, "it is cut short");
    }
}
