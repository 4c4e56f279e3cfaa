//! `/proc/PID/maps`: one line per VMA (proc_pid_maps(5), `fs/proc/task_mmu.c` `show_map_vma`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{ParseError, lines, number};
use crate::addr::{AddrRange, RemoteAddr};

/// The `rwxp` column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Perms {
    /// `r`: may be read.
    pub read: bool,
    /// `w`: may be written.
    pub write: bool,
    /// `x`: may be executed.
    pub exec: bool,
    /// `s`: writes reach the file; else `p`, private.
    pub shared: bool,
}

impl Perms {
    /// Returns whether all access is forbidden (`PROT_NONE`).
    pub const fn is_none(self) -> bool {
        !(self.read || self.write || self.exec)
    }
}

impl fmt::Display for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |set: bool, letter: char| if set { letter } else { '-' };
        write!(
            f,
            "{}{}{}{}",
            bit(self.read, 'r'),
            bit(self.write, 'w'),
            bit(self.exec, 'x'),
            if self.shared { 's' } else { 'p' }
        )
    }
}

impl fmt::Debug for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A file's identity as maps shows it. Not every file system reports the same device number by
/// `stat` (btrfs subvolumes, overlayfs): compare only with another line of maps.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct FileId {
    /// Device major number.
    pub major: u32,
    /// Device minor number.
    pub minor: u32,
    /// Inode number; 0 for memory that no file backs.
    pub inode: u64,
}

/// The name of a mapping in maps. Copies share its bytes, because a process may map a file with a long name many times.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Name(Arc<[u8]>);

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Name {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl PartialEq<[u8]> for Name {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl<const LEN: usize> PartialEq<&[u8; LEN]> for Name {
    fn eq(&self, other: &&[u8; LEN]) -> bool {
        **self == other[..]
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self))
    }
}

/// One kernel area: one line of maps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vma {
    /// Its addresses, multiples of the base page.
    pub range: AddrRange,
    /// Its permissions.
    pub perms: Perms,
    /// Position in the file of its first byte, in bytes; meaningless without a file.
    pub file_offset: u64,
    /// The file's identity.
    pub file: FileId,
    /// The name column exactly as printed, still escaped (a newline is `\012`) and with any
    /// ` (deleted)`; empty for anonymous memory, `[heap]` and the like for the kernel's own.
    pub name: Name,
    /// True if an indirect branch into it must meet an instruction made for that (`PROT_BTI` on aarch64). Only smaps
    /// shows it; for a VMA read from maps, this is false.
    pub guarded: bool,
}

impl Vma {
    /// Returns whether a file backs the area (a memfd counts; `[vdso]` does not).
    pub fn is_file_backed(&self) -> bool {
        self.file.inode != 0
    }

    /// Returns where in the file the byte at `addr` lies, or would lie if the VMA reached so far; wrapping.
    pub fn offset_at(&self, addr: RemoteAddr) -> u64 {
        self.file_offset.wrapping_add(addr.get().wrapping_sub(self.range.start().get()))
    }

    /// Returns the part of the VMA that lies in `range`; `None` if no byte does.
    pub fn within(&self, range: AddrRange) -> Option<Self> {
        let range = self.range.intersection(range)?;
        Some(Self { range, file_offset: self.offset_at(range.start()), ..self.clone() })
    }

    /// Returns whether this is a *text VMA*: executable, backed by a file.
    pub fn is_text(&self) -> bool {
        self.perms.exec && self.is_file_backed()
    }

    /// Returns the name without a trailing ` (deleted)`.
    pub fn path(&self) -> &[u8] {
        self.name.strip_suffix(b" (deleted)").unwrap_or(&self.name)
    }

    /// Makes this VMA share the bytes of its name with `other`, if their names are equal.
    pub(crate) fn share_name(&mut self, other: &Self) {
        if self.name == other.name {
            self.name = other.name.clone();
        }
    }

    /// Returns the name as JSON has it: lossy UTF-8, without ` (deleted)`. Output for people [shows](crate::escape) it.
    pub fn display_path(&self) -> String {
        String::from_utf8_lossy(self.path()).into_owned()
    }
}

/// Parses one line of maps; also the first line of each smaps entry.
///
/// # Errors
/// The column that is malformed.
pub fn parse_vma(line: &[u8], number_of_line: usize) -> Result<Vma, ParseError> {
    let bad = |what| ParseError::new("maps", number_of_line, what, line);
    // "%lx-%lx %c%c%c%c %08llx %02x:%02x %lu ", then blanks up to column 73, then the name.
    let mut rest = line;
    let mut column = |what| {
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        if field.is_empty() { Err(bad(what)) } else { Ok(field) }
    };
    let range = column("an address range")?;
    let perms = column("permissions")?;
    let file_offset = column("a file offset")?;
    let device = column("a device")?;
    let inode = column("an inode")?;
    let name = rest.iter().position(|&byte| byte != b' ').map_or(&[][..], |at| &rest[at..]);

    let (start, end) = split_once(range, b'-').ok_or_else(|| bad("an address range"))?;
    let address = |digits| number(digits, 16).map(RemoteAddr::new);
    let range = address(start)
        .zip(address(end))
        .and_then(|(start, end)| AddrRange::new(start, end))
        .ok_or_else(|| bad("an address range"))?;
    let &[read, write, exec, shared] = perms else { return Err(bad("permissions")) };
    let perms = Perms {
        read: read == b'r',
        write: write == b'w',
        exec: exec == b'x',
        shared: shared == b's',
    };
    let (major, minor) = split_once(device, b':').ok_or_else(|| bad("a device"))?;
    let device_number = |digits| number(digits, 16).and_then(|value| u32::try_from(value).ok());
    Ok(Vma {
        range,
        perms,
        file_offset: number(file_offset, 16).ok_or_else(|| bad("a file offset"))?,
        file: FileId {
            major: device_number(major).ok_or_else(|| bad("a device"))?,
            minor: device_number(minor).ok_or_else(|| bad("a device"))?,
            inode: number(inode, 10).ok_or_else(|| bad("an inode"))?,
        },
        name: name.into(),
        guarded: false,
    })
}

/// Parses the whole of `/proc/PID/maps`.
///
/// # Errors
/// The first line that is not a VMA, or that begins before the last one ended. Even while the target changes its
/// mappings, "the mapped addresses will never go backwards" (`Documentation/filesystems/proc.rst`), so such text is not
/// the kernel's.
pub fn parse(text: &[u8]) -> Result<Vec<Vma>, ParseError> {
    let mut vmas: Vec<Vma> = Vec::new();
    for (number, line) in lines(text) {
        let mut vma = parse_vma(line, number)?;
        if let Some(last) = vmas.last() {
            if vma.range.start() < last.range.end() {
                return Err(ParseError::new("maps", number, "address order", line));
            }
            vma.share_name(last);
        }
        vmas.push(vma);
    }
    Ok(vmas)
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|&byte| byte == at)?;
    Some((&text[..index], &text[index + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_own_example() {
        let text = b"00400000-00b6f000 r--p 00000000 fe:00 3293                               /usr/bin/node\n\
            7ffd1000-7ffd2000 rw-p 00000000 00:00 0                                  [stack]\n\
            7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n";
        let vmas = parse(text).unwrap();
        assert_eq!(vmas.len(), 3);
        assert_eq!(vmas[0].path(), b"/usr/bin/node");
        assert_eq!(vmas[0].file, FileId { major: 0xfe, minor: 0, inode: 3293 });
        assert_eq!(vmas[0].perms.to_string(), "r--p");
        assert_eq!(vmas[1].name, b"[stack]");
        assert!(vmas[2].name.is_empty());
    }

    #[test]
    fn names_are_bytes_with_blanks_and_marks() {
        let line = b"400000-401000 r-xs 00001000 00:2d 370 /tmp/a b\\012\xff (deleted)";
        let vma = parse_vma(line, 1).unwrap();
        assert_eq!(vma.path(), b"/tmp/a b\\012\xff");
        assert!(vma.perms.shared && vma.is_text());
    }

    #[test]
    fn bad_lines_name_their_column() {
        for (line, what) in [
            (&b"zz-11 r-xp 0 0:0 0"[..], "an address range"),
            (b"20-10 r-xp 0 0:0 0", "an address range"),
            (b"10-20 r-x 0 0:0 0", "permissions"),
            (b"10-20 r-xp g 0:0 0", "a file offset"),
            (b"10-20 r-xp 0 00 0", "a device"),
            (b"10-20 r-xp 0 0:0 -1", "an inode"),
            (b"10-20", "permissions"),
        ] {
            assert_eq!(parse_vma(line, 7).unwrap_err().what, what);
        }
    }
}
