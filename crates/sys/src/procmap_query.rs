//! Reads one mapping of a process without all others: `ioctl(PROCMAP_QUERY)` on `/proc/PID/maps`.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::proc::maps::{self, FileId, Perms, Vma};

use crate::error::{Errno, SysError, check};
use crate::procfs::{LONGEST_MAPS, read_to_end};

/// The place of a mapping, and its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: AddrRange,
    /// Its permissions.
    pub perms: Perms,
    /// Position in the file of its first byte, in bytes.
    pub file_offset: u64,
    /// The file's identity.
    pub file: FileId,
    /// Bytes in each of its pages: a page of the hugetlb pool, or a base page.
    pub page_size: u64,
}

impl Mapping {
    /// Returns whether this mapping is that VMA.
    fn is(&self, vma: &Vma) -> bool {
        (self.range, self.perms, self.file, self.file_offset) == place(vma)
    }

    /// Returns whether this mapping is what has become of that VMA or of a piece of it, and still holds `part`.
    pub fn holds(&self, vma: &Vma, part: AddrRange) -> bool {
        let is_congruent = self.file_offset.wrapping_sub(self.range.start().get())
            == vma.file_offset.wrapping_sub(vma.range.start().get());
        self.range.covers(part) && is_congruent && (self.perms, self.file) == (vma.perms, vma.file)
    }
}

/// Returns the fields that identify a VMA.
const fn place(vma: &Vma) -> (AddrRange, Perms, FileId, u64) {
    (vma.range, vma.perms, vma.file, vma.file_offset)
}

/// Returns the mapping that holds `addr` of the process whose `maps` this is.
///
/// # Errors
/// ENOTTY before Linux 6.11; ESRCH once no process uses the address space.
pub fn mapping_at(maps: &File, addr: RemoteAddr) -> Result<Option<Mapping>, SysError> {
    query(maps, addr, 0)
}

/// As [`mapping_at`]; the first mapping above `addr` if none holds it.
///
/// # Errors
/// As [`mapping_at`].
pub fn next_mapping(maps: &File, addr: RemoteAddr) -> Result<Option<Mapping>, SysError> {
    const PROCMAP_QUERY_COVERING_OR_NEXT_VMA: u64 = 0x10;
    query(maps, addr, PROCMAP_QUERY_COVERING_OR_NEXT_VMA)
}

fn query(maps: &File, addr: RemoteAddr, flags: u64) -> Result<Option<Mapping>, SysError> {
    const CALL: &str = "ioctl(PROCMAP_QUERY)";
    let mut query =
        ProcmapQuery { query_flags: flags, query_addr: addr.get(), ..ProcmapQuery::default() };
    query.size = size_of::<ProcmapQuery>() as u64;
    // SAFETY: the kernel reads and writes the live structure, whose size is in it. The pointers in it for names are
    // null with a length of 0.
    let returned = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    match check(CALL, returned.into()) {
        Ok(_) => Ok(query.mapping()),
        Err(error) if error.errno == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the first of `vmas` that the process of `maps` does not have, or has otherwise: at another address, with
/// other permissions, of another file or another part of it.
///
/// # Errors
/// ESRCH once no process uses the address space. Before Linux 6.11 this reads all of maps.
pub fn first_changed<'a>(maps: &File, vmas: &[&'a Vma]) -> Result<Option<&'a Vma>, SysError> {
    for vma in vmas {
        match mapping_at(maps, vma.range.start()) {
            Ok(Some(now)) if now.is(vma) => {}
            Ok(_) => return Ok(Some(vma)),
            Err(error) if error.errno == Errno::NOTTY => return first_changed_in_all(maps, vmas),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn first_changed_in_all<'a>(maps: &File, vmas: &[&'a Vma]) -> Result<Option<&'a Vma>, SysError> {
    let now = maps::parse(&read_maps(maps)?).unwrap_or_default();
    let changed = |vma: &&&Vma| !now.iter().any(|now| place(now) == place(vma));
    Ok(vmas.iter().find(changed).copied())
}

/// Reads maps from its beginning, whatever the position of the file is.
///
/// # Errors
/// EFBIG as [`ProcDir::read`](crate::procfs::ProcDir::read).
pub(crate) fn read_maps(maps: &File) -> Result<Vec<u8>, SysError> {
    read_to_end(FromStart { file: maps, at: 0 }, LONGEST_MAPS, "maps")
}

/// Reads at its own positions.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// `PROCMAP_QUERY` (`include/uapi/linux/fs.h`): `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl =
    (3 << 30 | (size_of::<ProcmapQuery>() as u32) << 16 | (b'f' as u32) << 8 | 17) as libc::Ioctl;

/// `struct procmap_query` (`include/uapi/linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

impl ProcmapQuery {
    fn mapping(&self) -> Option<Mapping> {
        let [start, end] = [self.vma_start, self.vma_end].map(RemoteAddr::new);
        let flag = |bit: u64| self.vma_flags & bit != 0;
        Some(Mapping {
            range: AddrRange::new(start, end)?,
            // PROCMAP_QUERY_VMA_READABLE, _WRITABLE, _EXECUTABLE, _SHARED.
            perms: Perms { read: flag(1), write: flag(2), exec: flag(4), shared: flag(8) },
            file_offset: self.vma_offset,
            file: FileId { major: self.dev_major, minor: self.dev_minor, inode: self.inode },
            page_size: self.vma_page_size,
        })
    }
}
