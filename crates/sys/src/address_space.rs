//! The address space of a process, opened once.
//!
//! A process id, a pidfd and a start time survive execve(2); an address space does not. So after the first look at a
//! running process, TiExec reads and writes its memory only through the files opened here. Each file pins the `struct
//! mm_struct` that the process had at that moment (`mm_access` and `proc_mem_open` in `fs/proc/base.c`). After an exec
//! the files give nothing, never the new program's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::maps::Vma;

use crate::error::{Errno, SysError};
use crate::procfs::ProcDir;
use crate::procmap_query::{self, Mapping};
use crate::random;

/// `/proc/PID/mem` — the memory of a process, in the address space that the process had when this was opened.
///
/// A write goes through the page protections (`FOLL_FORCE`): write only where the process itself may write.
#[derive(Clone, Debug)]
pub struct Memory(Arc<File>);

const OPEN: &str = "open(/proc/PID/mem)";
const READ: &str = "pread(/proc/PID/mem)";
const WRITE: &str = "pwrite(/proc/PID/mem)";

impl Memory {
    /// Opens the memory of `process` for reading and writing.
    ///
    /// # Errors
    /// EACCES, EPERM without the right to trace the process (`PTRACE_MODE_ATTACH_FSCREDS`); ESRCH, ENOENT once the
    /// process has ended.
    pub fn open(process: &ProcDir) -> Result<Self, SysError> {
        let file = process.open_file("mem", true);
        let file = file.map_err(|error| SysError { call: OPEN, ..error })?;
        Ok(Self(Arc::new(file)))
    }

    /// Fills all of `buffer` from `addr`.
    ///
    /// # Errors
    /// EFAULT where not all of it is mapped, or once no process uses the address space.
    pub fn read(&self, addr: RemoteAddr, buffer: &mut [u8]) -> Result<(), SysError> {
        let failed = |error: std::io::Error| SysError { call: READ, errno: io_errno(&error) };
        self.0.read_exact_at(buffer, addr.get()).map_err(failed)
    }

    /// Reads `N` words of 64 bits from `addr`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn words<const N: usize>(&self, addr: RemoteAddr) -> Result<[u64; N], SysError> {
        let mut words = [[0; size_of::<u64>()]; N];
        self.read(addr, words.as_flattened_mut())?;
        Ok(words.map(u64::from_ne_bytes))
    }

    /// Reads the string at `addr`, up to its zero byte or `PATH_MAX` bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_string(&self, addr: RemoteAddr) -> Result<Vec<u8>, SysError> {
        // A read never crosses the end of a page: the next page may not be mapped.
        let page = rustix::param::page_size() as u64;
        let mut string = Vec::new();
        let mut at = addr;
        while string.len() < libc::PATH_MAX as usize {
            let mut part = vec![0; (page - at.get() % page) as usize];
            self.read(at, &mut part)?;
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                string.extend(&part[..end]);
                break;
            }
            let next = at.checked_add(part.len() as u64);
            at = next.ok_or(SysError { call: READ, errno: Errno(libc::EFAULT) })?;
            string.extend(part);
        }
        Ok(string)
    }

    /// Writes all of `bytes` to `addr`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<(), SysError> {
        let failed = |error: std::io::Error| SysError { call: WRITE, errno: io_errno(&error) };
        self.0.write_all_at(bytes, addr.get()).map_err(failed)
    }

    /// Returns whether a process still uses the address space. `mem_rw` (`fs/proc/base.c`) reads nothing of an address
    /// space that no process uses any more. In an address space in use, address 0 is not mapped, so reading it fails.
    pub fn is_used(&self) -> bool {
        !matches!(self.0.read_at(&mut [0], 0), Ok(0))
    }
}

/// Returns the kernel's error number; a read or write of no bytes becomes EFAULT.
fn io_errno(error: &std::io::Error) -> Errno {
    match error.raw_os_error() {
        None | Some(libc::EIO) => Errno(libc::EFAULT),
        Some(code) => Errno(code),
    }
}

/// The address space of a process: its memory, its mappings and its page tables. The files were opened one after the
/// other and all belong to the same address space.
#[derive(Debug)]
pub struct AddressSpace {
    memory: Memory,
    maps: File,
    pagemap: File,
    auxv: File,
}

impl AddressSpace {
    /// Opens `mem`, `maps`, `pagemap` and `auxv` of `process`.
    ///
    /// # Errors
    /// As [`Memory::open`]. ESRCH also if the process executed another program meanwhile.
    pub fn open(process: &ProcDir) -> Result<Self, SysError> {
        let memory = Memory::open(process)?;
        let maps = process.open_file("maps", false)?;
        let pagemap = process.open_file("pagemap", false)?;
        let auxv = process.open_file("auxv", false)?;
        // An exec between the first open and the last would leave files of two address spaces. Then the first address
        // space is still in use only if another process shares it. In that case a later check asks the stopped thread.
        if !memory.is_used() {
            return Err(SysError { call: OPEN, errno: Errno::SRCH });
        }
        Ok(Self { memory, maps, pagemap, auxv })
    }

    /// Reads `/proc/PID/auxv`: what the kernel told the program when it made this address space (getauxval(3)).
    ///
    /// # Errors
    /// `call` names the file.
    pub fn auxv(&self) -> Result<Vec<u8>, SysError> {
        /// More than the kernel keeps for any program (`saved_auxv` in `struct mm_struct`).
        const LONGEST: usize = 4096;
        let mut text = vec![0; LONGEST];
        let len = self.auxv.read_at(&mut text, 0);
        let len = len.map_err(|error| SysError { call: "auxv", errno: io_errno(&error) })?;
        text.truncate(len);
        Ok(text)
    }

    /// Returns whether this is still the address space of `process`, as far as `/proc` shows. After an exec it is not:
    /// either no process uses it any more, or a process that shared it does. In the second case the kernel told the
    /// program that `process` runs other addresses (if addresses are random).
    pub fn is_still_of(&self, process: &ProcDir) -> bool {
        self.memory.is_used() && self.auxv().is_ok_and(|told| process.read("auxv") == Ok(told))
    }

    /// Returns whether this is the address space that the caller runs in: it then holds a random word of the caller's.
    pub fn is_this_process(&self) -> bool {
        let Ok(word) = random::word() else { return false };
        let here = Box::new(word.to_ne_bytes());
        let mut there = [0; size_of::<u64>()];
        let at = RemoteAddr::new(here.as_ptr().addr() as u64);
        self.memory.read(at, &mut there).is_ok() && there == *std::hint::black_box(here)
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns `/proc/PID/pagemap`.
    pub fn pagemap(&self) -> &File {
        &self.pagemap
    }

    /// Reads `/proc/PID/maps`: empty once no process uses the address space.
    ///
    /// # Errors
    /// `call` names the file; EFBIG as [`ProcDir::read`].
    pub fn maps(&self) -> Result<Vec<u8>, SysError> {
        procmap_query::read_maps(&self.maps)
    }

    /// Returns `/proc/PID/maps`.
    pub(crate) fn maps_file(&self) -> &File {
        &self.maps
    }

    /// Returns the first of `vmas` that the process does not map any more as it was.
    ///
    /// # Errors
    /// As [`procmap_query::first_changed`].
    pub fn first_changed<'a>(&self, vmas: &[&'a Vma]) -> Result<Option<&'a Vma>, SysError> {
        procmap_query::first_changed(&self.maps, vmas)
    }

    /// Returns the mapping that holds `addr`.
    ///
    /// # Errors
    /// As [`procmap_query::mapping_at`].
    pub fn mapping_at(&self, addr: RemoteAddr) -> Result<Option<Mapping>, SysError> {
        procmap_query::mapping_at(&self.maps, addr)
    }

    /// Returns the first mapping that holds `addr` or lies above it.
    ///
    /// # Errors
    /// As [`procmap_query::mapping_at`].
    pub fn next_mapping(&self, addr: RemoteAddr) -> Result<Option<Mapping>, SysError> {
        procmap_query::next_mapping(&self.maps, addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_and_written() {
        let space = AddressSpace::open(&ProcDir::this_process().expect("/proc")).expect("ours");
        let word = Box::new(7u64);
        let at = RemoteAddr::new((&raw const *word).addr() as u64);
        let mut bytes = [0; 8];
        space.memory().read(at, &mut bytes).expect("ours");
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        assert!(space.memory().is_used());
        assert!(space.is_this_process());
        assert_eq!(
            space.memory().read(RemoteAddr::new(8), &mut bytes).map_err(|e| e.errno.0),
            Err(libc::EFAULT)
        );
        let text = space.maps().expect("ours");
        let vmas = tiexec_core::proc::maps::parse(&text).expect("the kernel's");
        // The heap grows while this test runs; a function does not.
        let code = RemoteAddr::new(this_process_is_read_and_written as fn() as usize as u64);
        let vma = vmas.iter().find(|vma| vma.range.contains(code)).expect("it runs");
        assert_eq!(space.first_changed(&[vma]).expect("ours"), None);
        let other = Vma { file_offset: vma.file_offset + 4096, ..vma.clone() };
        assert_eq!(space.first_changed(&[vma, &other]).expect("ours"), Some(&other));
    }
}
