//! A file named on the command line, opened and found to be an ELF image.

use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;
use tiexec_core::elf::{ElfFacts, ElfHeader, interpreter_part};
use tiexec_core::escape::AsShown;
use tiexec_core::script;
use tiexec_remap::trusted_directory::{self, Distrust, Rule, Trust};

use crate::exit;
use tiexec_engine::launch::image_file::{PREFIX, open, program_headers, read_up_to};

/// The longest path that an ELF file may name.
const PATH_MAX: u64 = 4096;

/// An ELF image of this machine, open for reading.
pub(super) struct ElfFile {
    pub(super) file: File,
    pub(super) facts: ElfFacts,
    /// Its interpreter: `PT_INTERP`.
    pub(super) interpreter: Option<PathBuf>,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    /// The user that it belongs to.
    pub(super) owner: u32,
}

impl ElfFile {
    /// Opens a file. Symlinks are followed.
    ///
    /// # Errors
    /// The reason in words, with the exit status for it.
    pub(super) fn open(path: &Path) -> Result<Self, (String, u8)> {
        // The kind of the file is checked before the open, because opening a device can have effects.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(wrong("not a regular file"));
        }
        Self::of(open(path).map_err(io)?)
    }

    /// Opens a file that no other user chose. Others may choose which libraries `ld.so` lists, for example by the RPATH of
    /// a library.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_trusted(path: &Path) -> Result<Self, (String, u8)> {
        match trusted(path) {
            Ok(None) => Self::open(path),
            Ok(Some(file)) => Self::of(file),
            Err(distrust) => {
                let fix =
                    if distrust.source.is_none() { "; fix: name the file itself" } else { "" };
                Err((format!("{distrust}{fix}"), exit::FAILED))
            }
        }
    }

    /// As [`open_trusted`](Self::open_trusted). The inner error says why another user could have chosen the file. It is not
    /// opened then.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_if_trusted(path: &Path) -> Result<Result<Self, Distrust>, (String, u8)> {
        match trusted(path) {
            Ok(None) => Self::open(path).map(Ok),
            Ok(Some(file)) => Self::of(file).map(Ok),
            Err(distrust) if distrust.is_of_others() => Ok(Err(distrust)),
            Err(distrust) => Err((distrust.to_string(), exit::FAILED)),
        }
    }

    fn of(file: File) -> Result<Self, (String, u8)> {
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(wrong("not a regular file"));
        }
        // If the file is not cached, only the page with the headers should be read. Read-ahead would bring pages in as
        // small folios, and `--check` should not read text at all.
        let _best_effort = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let mut prefix = vec![0; PREFIX];
        let len = read_up_to(&file, &mut prefix, 0).map_err(io)?;
        prefix.truncate(len);
        if let Some(interpreter) = script::interpreter(&prefix) {
            let interpreter = interpreter.shown();
            return Err(wrong(&format!("a script; what runs is its interpreter, {interpreter}")));
        }
        let elf = |error: tiexec_core::elf::ElfError| (error.to_string(), exit::FAILED);
        let header = ElfHeader::parse(&prefix).map_err(elf)?;
        let table = program_headers(&file, &header, &prefix).map_err(io)?;
        let facts = ElfFacts::parse(&header, &table).map_err(elf)?;
        let mut texts = facts.loads.iter().filter(|load| load.is_text());
        if texts.any(|load| load.file_offset + load.file_size > metadata.len()) {
            return Err(wrong("truncated: the file ends before its text"));
        }
        let interpreter = match interpreter_part(&header, &table) {
            Some(part) => {
                Some(read_path(&file, &part).ok_or_else(|| wrong("malformed PT_INTERP"))?)
            }
            None => None,
        };
        let _best_effort = rustix::fs::fadvise(&file, 0, None, Advice::Normal);
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { file, facts, interpreter, identity, owner: metadata.uid() })
    }
}

/// Opens a file for root that no other user chose; `None` for another user, who reads whatever the kernel allows.
fn trusted(path: &Path) -> Result<Option<File>, Distrust> {
    let user = rustix::process::geteuid();
    let rule = Rule { user: user.as_raw(), trust: Trust::Installed, make: &[] };
    user.is_root().then(|| trusted_directory::open_file(path, &rule)).transpose()
}

fn io(error: std::io::Error) -> (String, u8) {
    let status = exit::of_io(&error);
    let errno = error.raw_os_error().map(tiexec_sys::Errno);
    (errno.map_or_else(|| error.to_string(), |errno| errno.to_string()), status)
}

fn wrong(what: &str) -> (String, u8) {
    (what.to_owned(), exit::FAILED)
}

/// Reads a path that ends in a zero byte.
fn read_path(file: &File, part: &Range<u64>) -> Option<PathBuf> {
    let len = part.end.checked_sub(part.start).filter(|len| (2..=PATH_MAX).contains(len))?;
    let mut path = vec![0; usize::try_from(len).ok()?];
    let read = read_up_to(file, &mut path, part.start).ok()?;
    let path = path.get(..read)?.strip_suffix(b"\0")?;
    (!path.contains(&0)).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}
