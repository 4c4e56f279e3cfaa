//! The key of an image: its original file, and that file's state.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use tiexec_core::relaid::{self, Layout};

use super::SUFFIX;

/// Version of the sidecar's form.
pub const SCHEMA: u32 = 1;

/// The state of the file from which an image is made. A file in one state has one image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The device on which the original lies.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When its content changed last: seconds, nanoseconds.
    pub mtime: (i64, i64),
    /// When its inode changed last: seconds, nanoseconds.
    pub ctime: (i64, i64),
    /// Its build ID in hexadecimal.
    pub build_id: Option<String>,
    /// [`relaid::VERSION`] of the image.
    pub layout_version: u32,
    /// The PMD size for which the image was laid out, in bytes.
    pub pmd_size: u64,
}

impl Key {
    /// Makes the key of a file in the state that `stat` shows.
    pub(crate) fn new(stat: &Stat, layout: &Layout) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size.cast_unsigned(),
            mtime: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
            ctime: (stat.st_ctime, stat.st_ctime_nsec.cast_signed()),
            build_id: layout.build_id.as_deref().map(hex),
            layout_version: relaid::VERSION,
            pmd_size: layout.pages().pmd.bytes(),
        }
    }

    /// Returns whether `stat` shows the original, unchanged since.
    pub(crate) fn is_of(&self, stat: &Stat) -> bool {
        self.device == stat.st_dev
            && self.inode == stat.st_ino
            && self.size == stat.st_size.cast_unsigned()
            && self.mtime == (stat.st_mtime, stat.st_mtime_nsec.cast_signed())
            && self.ctime == (stat.st_ctime, stat.st_ctime_nsec.cast_signed())
    }

    /// Returns the file name of the image: the original's name, so that a reader of maps recognizes it, and a digest of the
    /// key. The colon between them tells async-profiler that the file is not a library. Otherwise async-profiler, inside a JVM, takes the image's
    /// first mapping for the beginning of `libjvm.so`, reads the JVM's variables at wrong addresses, and crashes it.
    pub fn image_name(&self, original: &Path) -> String {
        let mut digest = blake3::Hasher::new();
        digest.update(b"tiexec image");
        for number in [self.device, self.inode, self.size, self.pmd_size] {
            digest.update(&number.to_le_bytes());
        }
        for number in [self.mtime.0, self.mtime.1, self.ctime.0, self.ctime.1] {
            digest.update(&number.to_le_bytes());
        }
        digest.update(&self.layout_version.to_le_bytes());
        digest.update(self.build_id.as_deref().unwrap_or("none").as_bytes());
        let digest = digest.finalize().to_hex();
        format!("{}:{}{SUFFIX}", readable(original), &digest[..32])
    }
}

/// The most characters of the original's name in the image's name.
const NAME_LEN: usize = 40;

/// Returns the original's file name without characters that have a meaning for shells, terminals or maps.
fn readable(original: &Path) -> String {
    let name = original.file_name().unwrap_or_default().as_bytes();
    let plain = |&byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'+' => char::from(byte),
        _ => '_',
    };
    let name: String = name.iter().map(plain).take(NAME_LEN).collect();
    // A leading dot marks a temporary file in the store.
    if name.starts_with('.') { name.replacen('.', "_", 1) } else { name }
}

/// Returns bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The sidecar of an image, in `NAME.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sidecar {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The original's path when the image was built; lossy if it is not UTF-8.
    pub original: String,
    /// The state of the file from which the image was made.
    pub key: Key,
    /// Length of the image in bytes.
    pub image_size: u64,
    /// BLAKE3 of the image, as `b3sum` prints it.
    pub blake3: String,
    /// When it was built, seconds since 1970.
    pub built: u64,
}

/// Returns the name of an image's sidecar.
pub(crate) fn sidecar_name(image: &str) -> String {
    format!("{image}.json")
}

/// Returns the name under which an image or a sidecar is written, before it gets its final name.
pub(crate) fn temporary_name(name: &str) -> String {
    format!(".{name}.new")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            device: 1,
            inode: 2,
            size: 3,
            mtime: (4, 5),
            ctime: (6, 7),
            build_id: Some("ab".into()),
            layout_version: 1,
            pmd_size: 2 << 20,
        }
    }

    #[test]
    fn every_part_of_the_key_is_in_the_name() {
        let name = |key: &Key| key.image_name(Path::new("/usr/bin/node"));
        let changes: [fn(&mut Key); 10] = [
            |key| key.device += 1,
            |key| key.inode += 1,
            |key| key.size += 1,
            |key| key.mtime.0 += 1,
            |key| key.mtime.1 += 1,
            |key| key.ctime.0 += 1,
            |key| key.ctime.1 += 1,
            |key| key.build_id = None,
            |key| key.layout_version += 1,
            |key| key.pmd_size *= 2,
        ];
        let mut names = vec![name(&key())];
        for change in changes {
            let mut key = key();
            change(&mut key);
            names.push(name(&key));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| name.starts_with("node:") && name.len() == 4 + 1 + 32 + 7));
    }

    #[test]
    fn names_are_plain() {
        let name = |path: &str| key().image_name(Path::new(path));
        assert!(name("/x/a b\n\u{e9}").starts_with("a_b___:"));
        assert!(name("/x/.hidden").starts_with("_hidden:"));
        assert!(name("/").starts_with(':'));
        assert!(name("/x/libstdc++.so.6").starts_with("libstdc++.so.6:"));
        assert_eq!(name(&"n".repeat(200)).len(), 40 + 1 + 32 + 7);
    }
}
