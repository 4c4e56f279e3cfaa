//! Files that are written for the user: reports, pages, figures.
//!
//! Root may be told to write in a directory where other users create names too, such as `/tmp`. So TiExec follows no
//! link of theirs ([`trusted_directory`]), writes a new file beside the name, and puts it in place whole by rename(2)
//! ([`tiexec_remap::files`]). No reader finds half a file.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno as RawErrno;
use tiexec_core::escape;
use tiexec_remap::files::{self, New};
use tiexec_remap::trusted_directory::{self, Distrust};
use tiexec_sys::Errno;
use tiexec_sys::process::without_write_signals;
use tiexec_sys::startup::output_is_closed;
use tiexec_sys::with_symbols;

/// The mode of a new file, before the umask.
const MODE: u32 = 0o666;

/// Why the output cannot be written there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<RawErrno> for Refusal {
    fn from(errno: RawErrno) -> Self {
        Self(Errno::from(errno).to_string())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self(with_symbols(&error.to_string()))
    }
}

impl From<Distrust> for Refusal {
    fn from(distrust: Distrust) -> Self {
        match distrust.source {
            Some(errno) => Self(errno.to_string()),
            None => Self(format!("{distrust}; fix: {}", distrust.fix())),
        }
    }
}

fn refused<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(what.into()))
}

/// The place that the output is written to.
pub struct Output {
    directory: OwnedFd,
    name: OsString,
    what: What,
}

/// The kind of file that is there now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Nothing, or a file: a new file replaces it.
    File,
    /// A file in a directory where this user may create none: TiExec overwrites the file itself.
    FixedFile,
    /// A pipe or a device: TiExec writes to it.
    Special,
    /// A descriptor of this process, by its name.
    Descriptor,
}

impl Output {
    /// Checks, before a product is made that may take a while, whether it can be written there. Changes nothing.
    ///
    /// # Errors
    /// The obstacle.
    pub fn at(path: &Path) -> Result<Self, Refusal> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = name else { return refused("it is a directory") };
        let directory = trusted_directory::of_file(path)?;
        let what = if is_descriptor(path) { What::Descriptor } else { what(&directory, name)? };
        Ok(Self { directory, name: name.to_owned(), what })
    }

    /// Writes the product. A new file gets all of it or does not appear; a file that is overwritten, a pipe or a device
    /// may get a part.
    ///
    /// # Errors
    /// The write's failure.
    pub fn write(&self, product: &[u8]) -> Result<(), Refusal> {
        match self.what {
            What::File => {
                let mut new = New::beside(&self.directory, &self.name, MODE)?;
                new.file().write_all(product)?;
                Ok(new.put(&self.name)?)
            }
            _ => Ok(self.open_there(OFlags::empty())?.write_all(product)?),
        }
    }

    /// Returns whether [`write`](Self::write) puts a new file in place of the old one, so that each reader finds a whole
    /// file at any time.
    pub fn is_replaced(&self) -> bool {
        self.what == What::File
    }

    /// Checks that a new file of so many bytes has room. Leaves nothing.
    ///
    /// # Errors
    /// The obstacle, such as ENOSPC, EDQUOT or EFBIG.
    pub fn has_room(&self, bytes: usize) -> Result<(), Refusal> {
        if !self.is_replaced() {
            return Ok(());
        }
        let mut new = New::beside(&self.directory, &self.name, MODE)?;
        let zeros = [0; 4096];
        for at in (0..bytes).step_by(zeros.len()) {
            new.file().write_all(&zeros[..zeros.len().min(bytes - at)])?;
        }
        Ok(())
    }

    /// Takes back what [`write`](Self::write) has written: removes the file, or empties it in a directory where this user
    /// may remove none. A pipe and a device stay as they are.
    ///
    /// # Errors
    /// The file cannot be removed; it is as it was.
    pub fn take_back(&self) -> Result<(), Refusal> {
        match self.what {
            What::File => match files::remove(&self.directory, &self.name) {
                Ok(()) | Err(RawErrno::NOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            },
            What::FixedFile => self.open_there(OFlags::empty()).map(drop),
            What::Special | What::Descriptor => Ok(()),
        }
    }

    /// Opens the output for a product that comes bit by bit. An empty file is there from now on. Does not wait for a
    /// reader of a pipe.
    ///
    /// # Errors
    /// The failure to make or open the file.
    pub fn open(&self) -> Result<File, Refusal> {
        match self.what {
            What::File => {
                let mut new = New::beside(&self.directory, &self.name, MODE)?;
                let file = new.file().try_clone()?;
                new.put(&self.name)?;
                Ok(file)
            }
            _ => self.open_there(OFlags::NONBLOCK),
        }
    }

    /// Opens the file that is there already.
    fn open_there(&self, more: OFlags) -> Result<File, Refusal> {
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC | more;
        if self.what == What::Descriptor {
            return Ok(match self.name.as_bytes() {
                b"stdout" | b"1" => rustix::io::dup(standard_output()?)?,
                b"stderr" | b"2" => rustix::io::dup(io::stderr())?,
                _ => rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?,
            }
            .into());
        }
        let flags = flags | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        // Another file may have taken its place since the check.
        if kind(&stat, false) != Ok(self.what) {
            return refused("it has changed meanwhile");
        }
        if self.what == What::FixedFile {
            rustix::fs::ftruncate(&file, 0)?;
        }
        Ok(file.into())
    }
}

/// Returns whether the path names a descriptor of this process. Such a path is a link, but no other user has put it
/// there.
fn is_descriptor(path: &Path) -> bool {
    let number = |rest: &Path| {
        rest.to_str()
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    path == Path::new("/dev/stdout")
        || path == Path::new("/dev/stderr")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|at| path.strip_prefix(at).is_ok_and(number))
}

/// Returns the kind of file at the name.
fn what(directory: &OwnedFd, name: &OsStr) -> Result<What, Refusal> {
    let may_make = || rustix::fs::accessat(directory, ".", Access::WRITE_OK, AtFlags::empty());
    let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(RawErrno::NOENT) => {
            may_make()?;
            return Ok(What::File);
        }
        Err(errno) => return Err(errno.into()),
    };
    let what = kind(&stat, may_make().is_ok())?;
    if what != What::File {
        rustix::fs::accessat(directory, name, Access::WRITE_OK, AtFlags::empty())?;
    }
    Ok(what)
}

/// Returns how to write to the file that is there; `may_make` says whether files may be created beside it.
fn kind(stat: &Stat, may_make: bool) -> Result<What, Refusal> {
    let own = rustix::process::geteuid().as_raw();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            refused("it is a symbolic link; fix: name what it leads to, or remove it")
        }
        FileType::Directory => refused("it is a directory"),
        FileType::RegularFile if may_make => Ok(What::File),
        FileType::RegularFile if stat.st_nlink > 1 => refused("it has another name besides"),
        FileType::RegularFile => Ok(What::FixedFile),
        FileType::Fifo | FileType::CharacterDevice => {
            if stat.st_uid == own || stat.st_uid == 0 {
                Ok(What::Special)
            } else {
                refused(format!("it is a pipe or a device of user {}", stat.st_uid))
            }
        }
        _ => refused("it is neither a file, nor a pipe, nor a terminal"),
    }
}

/// Returns standard output.
///
/// # Errors
/// EBADF if standard output was closed when the program began. Another file may have its number by now.
pub fn standard_output() -> Result<BorrowedFd<'static>, RawErrno> {
    if output_is_closed() { Err(RawErrno::BADF) } else { Ok(rustix::stdio::stdout()) }
}

/// Writes all of `text` to standard output, and waits as long as that takes. A broken pipe causes no signal. Names in
/// `text` are written as by [`write_briefly`].
///
/// # Errors
/// The error of write(2).
pub fn write_to_the_end(text: &str) -> Result<(), RawErrno> {
    write_styled_to_the_end(text, |line| line.into())
}

/// As [`write_to_the_end`]; `style` may put control sequences into each line after its names are escaped.
///
/// # Errors
/// The error of write(2).
pub fn write_styled_to_the_end(
    text: &str,
    style: impl Fn(&str) -> Cow<'_, str>,
) -> Result<(), RawErrno> {
    let stream = standard_output()?;
    let text = escape::lines(text);
    let text: String = text.split_inclusive('\n').map(style).collect();
    let mut rest = text.as_bytes();
    without_write_signals(|| {
        while !rest.is_empty() {
            match rustix::io::write(stream, rest) {
                Ok(0) => return Err(RawErrno::IO),
                Ok(count) => rest = &rest[count..],
                Err(RawErrno::INTR) => {}
                Err(RawErrno::AGAIN) => {
                    let _again = poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    })
}

/// The number of bytes that a ready pipe takes without blocking (`PIPE_BUF`).
const READY: usize = 4096;
/// How long to wait for a full stream, in milliseconds.
const PATIENCE_MS: i64 = 100;

/// Writes all of `text`, unless the stream stays full for a tenth of a second. A broken stream causes no signal. Names
/// in `text` should be [escaped](escape); a name that is not escaped does nothing to a terminal either.
///
/// # Errors
/// The error of write(2); EAGAIN for a full stream.
pub fn write_briefly(stream: impl AsFd, text: &str) -> Result<(), RawErrno> {
    let text = escape::lines(text);
    let text = text.as_bytes();
    let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE_MS * 1_000_000 };
    without_write_signals(|| {
        let mut rest = text;
        while !rest.is_empty() {
            // O_NONBLOCK will not do, because the program would share it.
            let mut ready = [PollFd::new(&stream, PollFlags::OUT)];
            if poll(&mut ready, Some(&patience))? == 0 {
                return Err(RawErrno::AGAIN);
            }
            match rustix::io::write(&stream, &rest[..rest.len().min(READY)]) {
                Ok(0) => return Err(RawErrno::IO),
                Ok(count) => rest = &rest[count..],
                Err(RawErrno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    })
}
