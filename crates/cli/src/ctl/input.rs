//! Input files that the user names. They are read whole, up to a limit, and no read waits for a writer that does not
//! exist.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use tiexec_sys::Errno;

/// Reads a text from a regular file, or from a pipe with a writer.
///
/// # Errors
/// The file is of another kind, is too long, or cannot be read.
pub(super) fn text_of(path: &Path, longest: u64) -> Result<String, String> {
    let failed = |errno: rustix::io::Errno| Errno::from(errno).to_string();
    // fifo(7): with O_NONBLOCK, open does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let is_pipe = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => false,
        // Such a pipe is <(COMMAND) of a shell. Without a writer, the read returns the end at once.
        FileType::Fifo => {
            let flags = rustix::fs::fcntl_getfl(&file).map_err(failed)?;
            rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(failed)?;
            true
        }
        _ => return Err("it is not a regular file".to_owned()),
    };
    let text = limited(File::from(file), longest)?;
    if is_pipe && text.is_empty() {
        return Err("nobody writes to this pipe".to_owned());
    }
    Ok(text)
}

/// Reads a text to its end.
///
/// # Errors
/// The text is too long, or cannot be read.
pub(super) fn limited(input: impl Read, longest: u64) -> Result<String, String> {
    let mut text = String::new();
    let read = input.take(longest + 1).read_to_string(&mut text);
    let count = read.map_err(|error| error.to_string())?;
    if count as u64 > longest {
        return Err(format!("it is longer than {} MiB", longest >> 20));
    }
    Ok(text)
}
