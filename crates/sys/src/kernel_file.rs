//! Files of the kernel's own file systems, by which a program sets something or reads one value: `/proc`, `/sys`, cgroups.

#![expect(
    clippy::disallowed_methods,
    reason = "no user can put another file in the place of one of the kernel's"
)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Writes to a file of the kernel's. `path` must lie below `/proc` or `/sys`.
///
/// # Errors
/// The errors of open(2) and write(2).
pub fn write(path: impl AsRef<Path>, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)
}

/// Reads a file of the kernel's that has one value. The kernel writes such a file at once, so this reads once, and needs a third
/// of the calls of [`std::fs::read_to_string`]. `path` must lie below `/proc` or `/sys`.
///
/// # Errors
/// The errors of open(2) and read(2); `InvalidData` if the file is not text.
pub fn read(path: impl AsRef<Path>) -> std::io::Result<String> {
    const LONGEST: usize = 4096;
    let mut text = vec![0; LONGEST];
    let len = File::open(path)?.read(&mut text)?;
    text.truncate(len);
    String::from_utf8(text).map_err(|_no_text| std::io::ErrorKind::InvalidData.into())
}
