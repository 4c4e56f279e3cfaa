//! Finds the file that an exec would end up running, and judges whether to treat it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tiexec_core::elf::{ElfError, ElfFacts, ElfHeader, interpreter_part};
use tiexec_core::script;
use tiexec_core::skip::SkipReason;

/// The program that an exec would run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A program whose text we may look after.
    Treat(Image),
    /// A program to exec without treatment, and why.
    Plain(SkipReason),
    /// A file that TiExec does not understand: the exec leaves the judgement to the kernel.
    Unknown,
}

/// A native 64-bit ELF image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Its path, after the `#!` chain.
    pub path: PathBuf,
    /// Its headers.
    pub facts: ElfFacts,
}

/// How many bytes of a file are read at first: the program headers follow the ELF header in every file that a linker
/// wrote.
pub const PREFIX: usize = 4096;

/// Finds the file that execvp(3) would try first with success, or `None`.
pub fn search(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    if program.is_empty() {
        return None;
    }
    // Without PATH: the value of confstr(_CS_PATH) in glibc.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    path.as_bytes().split(|&byte| byte == b':').find_map(|directory| {
        let directory =
            if directory.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(directory) };
        let candidate = Path::new(directory).join(program);
        is_executable(&candidate).then_some(candidate)
    })
}

/// Returns whether exec would at least try to run the file: a regular one with the x bit for us.
pub fn is_executable(path: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD};
    let may = rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    may && path.metadata().is_ok_and(|meta| meta.is_file())
}

/// Judges the file at `path`, and the interpreters that `#!` lines name.
pub fn judge(path: &Path) -> Verdict {
    let mut path = path.to_owned();
    for _ in 0..=script::MAX_DEPTH {
        // Opening a device or a FIFO would have an effect on it.
        if !path.metadata().is_ok_and(|meta| meta.is_file()) {
            return Verdict::Unknown;
        }
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Verdict::Plain(SkipReason::UnreadableImage);
            }
            Err(_) => return Verdict::Unknown,
        };
        let Ok(meta) = file.metadata() else { return Verdict::Unknown };
        let mut prefix = vec![0; PREFIX];
        let Ok(len) = read_up_to(&file, &mut prefix, 0) else { return Verdict::Unknown };
        prefix.truncate(len);
        if let Some(next) = script::interpreter(&prefix) {
            path = PathBuf::from(OsStr::from_bytes(next));
            continue;
        }
        return judge_elf(path, &file, &meta, &prefix);
    }
    Verdict::Unknown
}

fn judge_elf(path: PathBuf, file: &File, meta: &std::fs::Metadata, prefix: &[u8]) -> Verdict {
    let header = match ElfHeader::parse(prefix) {
        Ok(header) => header,
        Err(ElfError::Foreign) => return Verdict::Plain(SkipReason::ForeignImage),
        Err(_) => return Verdict::Unknown,
    };
    let Ok(table) = program_headers(file, &header, prefix) else { return Verdict::Unknown };
    let Ok(facts) = ElfFacts::parse(&header, &table) else { return Verdict::Unknown };
    // The privilege bits count only on the image itself, never on a script.
    let (setuid, setgid_exec) = (0o4000, 0o2010);
    if meta.mode() & setuid != 0
        || meta.mode() & setgid_exec == setgid_exec
        || has_capabilities(file)
    {
        return Verdict::Plain(SkipReason::PrivilegedImage);
    }
    Verdict::Treat(Image { path, facts })
}

/// Returns the interpreter that the file at `path` names and that does not exist: the one of its `#!` line, or its
/// `ld.so`.
pub fn missing_interpreter(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..=script::MAX_DEPTH {
        // Opening a device would have an effect on it.
        let file = path.metadata().ok()?.is_file().then(|| open(&path))?.ok()?;
        let mut prefix = vec![0; PREFIX];
        let len = read_up_to(&file, &mut prefix, 0).ok()?;
        prefix.truncate(len);
        let is_script = script::interpreter(&prefix).map(<[u8]>::to_vec);
        let next = match &is_script {
            Some(next) => next.clone(),
            None => elf_interpreter(&file, &prefix)?,
        };
        let next = PathBuf::from(OsStr::from_bytes(&next));
        if !next.exists() {
            return Some(next);
        }
        is_script?;
        path = next;
    }
    None
}

/// Reads the path of the `ld.so` that an ELF file names.
fn elf_interpreter(file: &File, prefix: &[u8]) -> Option<Vec<u8>> {
    let header = ElfHeader::parse(prefix).ok()?;
    let table = program_headers(file, &header, prefix).ok()?;
    let part = interpreter_part(&header, &table)?;
    // The kernel takes no path that is longer (`load_elf_binary` in `fs/binfmt_elf.c`).
    let len = usize::try_from(part.end - part.start).ok().filter(|&len| len <= PREFIX)?;
    let mut interpreter = vec![0; len];
    let read = read_up_to(file, &mut interpreter, part.start).ok()?;
    interpreter.truncate(read);
    Some(interpreter.split(|&byte| byte == 0).next()?.to_vec())
}

/// Opens a file for reading; does not wait at a FIFO.
pub fn open(path: &Path) -> std::io::Result<File> {
    // The open must not wait for the other end of a FIFO.
    OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
}

/// Returns the program headers, from `prefix` where they are in it.
pub fn program_headers(file: &File, header: &ElfHeader, prefix: &[u8]) -> std::io::Result<Vec<u8>> {
    let in_prefix = usize::try_from(header.table_offset)
        .ok()
        .and_then(|start| prefix.get(start..start.checked_add(header.table_len)?));
    if let Some(table) = in_prefix {
        return Ok(table.to_vec());
    }
    let mut table = vec![0; header.table_len];
    let len = read_up_to(file, &mut table, header.table_offset)?;
    table.truncate(len);
    Ok(table)
}

/// Reads until `buffer` is full or the file ends; returns the number of bytes read.
pub fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns whether the file has capabilities (capabilities(7), "File capabilities").
fn has_capabilities(file: &File) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok_and(|len| len > 0)
}
