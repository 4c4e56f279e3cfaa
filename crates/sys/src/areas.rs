//! The mappings of a running process, and the huge parts of its executable memory.
//!
//! smaps would show all of this. But reading smaps holds the process's mmap lock while the kernel counts every page
//! that the process has (`m_start` and `show_smap` in `fs/proc/task_mmu.c`): 20 ms for each GiB of base pages. No
//! thread of the process can map or unmap anything meanwhile. A reader cannot read only a part of smaps: after a seek
//! the kernel formats everything before that place, to count it (`traverse` in `fs/seq_file.c`). Reading maps walks
//! over no page, and `PAGEMAP_SCAN` walks only over the pages that the caller names.

use std::fs::File;
use std::io::Read;

use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::area::{Area, SmapsFor};
use tiexec_core::proc::ParseError;
use tiexec_core::proc::maps::{self, Vma};
use tiexec_core::smaps;

use crate::address_space::AddressSpace;
use crate::error::{Errno, SysError};
use crate::hugetlb;
use crate::pagemap_scan::{self, scan};
use crate::procfs::{LONGEST_MAPS, ProcDir, io_error};
use crate::procmap_query;

/// The result of a look at a process.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its VMAs, in address order.
    pub areas: Vec<Area>,
    /// Why smaps was read; `None` if it was not. While it is read, the process cannot map memory.
    pub smaps_for: Option<SmapsFor>,
}

/// Returns which VMAs a process has, and which parts of the executable ones are huge.
///
/// # Errors
/// ESRCH, ENOENT if the process is gone; EACCES, EPERM without the right to trace it; EINVAL if the kernel's text
/// cannot be parsed.
///
/// # Kernel
/// `PAGEMAP_SCAN` since Linux 6.7. Before 6.7 this reads smaps, which gives the amount of huge memory but not its
/// addresses.
pub fn look(process: &ProcDir, pages: Pages) -> Result<Seen, SysError> {
    let open = |name| process.open_named(name, name);
    let (maps, pagemap) = (open("maps")?, open("pagemap")?);
    look_through(process, &maps, &pagemap, pages)
}

/// As [`look`], at an address space that was opened before. `process` is the directory of a process that uses it.
///
/// # Errors
/// As [`look`].
pub fn look_at(space: &AddressSpace, process: &ProcDir, pages: Pages) -> Result<Seen, SysError> {
    look_through(process, space.maps_file(), space.pagemap(), pages)
}

fn look_through(
    process: &ProcDir,
    maps: &File,
    pagemap: &File,
    pages: Pages,
) -> Result<Seen, SysError> {
    match by_scan(process, maps, pagemap, pages) {
        Err(SysError { errno: Errno::NOTTY | Errno::INVAL | Errno::NOSYS, call: SCAN }) => {
            Ok(Seen { areas: by_smaps(process)?, smaps_for: Some(SmapsFor::Huge) })
        }
        areas => Ok(Seen { areas: areas?, smaps_for: None }),
    }
}

/// Returns the VMAs of a process, without their huge parts.
///
/// # Errors
/// As [`look`]. EINVAL also if the process changes its mappings all the time.
pub fn vmas(process: &ProcDir) -> Result<Vec<Vma>, SysError> {
    consistent("maps", || process.read("maps"), maps::parse)
}

/// Reads the whole of smaps: for a process that nobody waits for, or for facts that no other file has.
///
/// # Errors
/// As [`look`].
pub fn by_smaps(process: &ProcDir) -> Result<Vec<Area>, SysError> {
    consistent("smaps", || process.read("smaps"), smaps::parse)
}

/// Reads smaps from its beginning up to the VMA that ends at `end` or beyond, and no further. For each read that asks
/// for more bytes than are ready, the kernel counts the pages of one VMA. So it does not count what lies above; and the
/// text of a program lies below the program's memory.
///
/// # Errors
/// As [`look`].
pub fn smaps_up_to(process: &ProcDir, end: RemoteAddr) -> Result<Vec<Area>, SysError> {
    consistent("smaps", || read_smaps_up_to(process, end), smaps::parse)
}

fn read_smaps_up_to(process: &ProcDir, end: RemoteAddr) -> Result<Vec<u8>, SysError> {
    /// Shorter than the last line of any executable VMA: `VmFlags: rd ex mr mw me`.
    const STEP: usize = 16;
    const LONGEST_SMAPS: u64 = LONGEST_MAPS;
    const LAST_FIELD: &[u8] = b"VmFlags:";
    let call = "smaps";
    let mut file = process.open_named(call, call)?;
    let (mut text, mut line) = (Vec::new(), 0);
    let mut is_last = false;
    loop {
        // A read beyond the end of the last line would make the kernel count the next VMA.
        let in_last_line = is_last && text[line..].starts_with(LAST_FIELD);
        let mut buffer = [0; STEP];
        let wanted = if in_last_line { 1 } else { STEP };
        let count = file.read(&mut buffer[..wanted]).map_err(io_error(call))?;
        text.extend(&buffer[..count]);
        while let Some(len) = text[line..].iter().position(|&byte| byte == b'\n') {
            let whole = &text[line..line + len];
            if whole.starts_with(LAST_FIELD) && is_last {
                text.truncate(line + len + 1);
                return Ok(text);
            }
            // The first line of a VMA is a line of maps.
            let found = maps::parse_vma(whole, 0).is_ok_and(|vma| vma.range.end() >= end);
            is_last = is_last || found;
            line += len + 1;
        }
        if count == 0 {
            return Ok(text);
        }
        if text.len() as u64 > LONGEST_SMAPS {
            return Err(SysError { call, errno: Errno::FBIG });
        }
    }
}

/// Returns the parts of a process's executable memory that are huge, in address order.
///
/// # Errors
/// As [`look`].
pub fn huge_text(process: &ProcDir, pages: Pages) -> Result<Vec<AddrRange>, SysError> {
    let seen = look(process, pages)?;
    let executable = seen.areas.iter().filter(|area| area.vma.perms.exec);
    Ok(executable.flat_map(|area| area.huge_parts(pages.pmd)).collect())
}

const SCAN: &str = pagemap_scan::CALL;

/// Reads and parses a file of VMAs. The kernel writes the file piece by piece, so VMAs that are mapped meanwhile may
/// come out of order.
fn consistent<T>(
    call: &'static str,
    read: impl Fn() -> Result<Vec<u8>, SysError>,
    parse: impl Fn(&[u8]) -> Result<Vec<T>, ParseError>,
) -> Result<Vec<T>, SysError> {
    const ATTEMPTS: u32 = 8;
    for _ in 0..ATTEMPTS {
        if let Ok(parsed) = parse(&read()?) {
            return Ok(parsed);
        }
    }
    Err(SysError { call, errno: Errno::INVAL })
}

fn by_scan(
    process: &ProcDir,
    maps: &File,
    pagemap: &File,
    pages: Pages,
) -> Result<Vec<Area>, SysError> {
    let vmas = consistent("maps", || procmap_query::read_maps(maps), maps::parse)?;
    let page_sizes = PageSizes::of(process, maps)?;
    vmas.into_iter()
        .map(|vma| {
            // The kernel's own area at the top of the address space is not user memory.
            if !vma.perms.exec || vma.range.start().get() >= 1 << 63 {
                return Ok(Area::of(vma));
            }
            let range = vma.range.start().get()..vma.range.end().get();
            let page_size = match could_be_of_a_pool(&vma) {
                true => page_sizes.of_vma(&vma, pages),
                false => pages.base.bytes(),
            };
            let mut area = Area { page_size, ..Area::of(vma) };
            // Nothing in it can be huge. Most libraries are so small.
            if page_size == pages.base.bytes() && area.vma.range.align_inward(pages.pmd).is_none() {
                return Ok(area);
            }
            let wanted = pagemap_scan::PRESENT | pagemap_scan::HUGE;
            // To tell whether a page is a file's, the kernel looks at more than the page table. So it is asked that only about
            // the huge parts.
            let told = wanted | pagemap_scan::FILE;
            let mut parts = Vec::new();
            for huge in scan(pagemap, range, wanted, wanted)? {
                parts.extend(scan(pagemap, huge.range, wanted, told)?);
            }
            for found in parts {
                let ends = (RemoteAddr::new(found.range.start), RemoteAddr::new(found.range.end));
                if let Some(part) = AddrRange::new(ends.0, ends.1) {
                    area.add_huge(part, found.kinds & pagemap_scan::FILE != 0);
                }
            }
            Ok(area)
        })
        .collect()
}

/// Returns whether a mapping could have pages of the hugetlb pool: it then begins and ends at a multiple of their size
/// (`hugetlbfs_file_mmap` in `fs/hugetlbfs/inode.c`).
fn could_be_of_a_pool(vma: &Vma) -> bool {
    /// The smallest size of any pool: 16 entries of the lowest table, on aarch64.
    const SMALLEST: u64 = 64 << 10;
    (vma.range.start().get() | vma.range.end().get()) & (SMALLEST - 1) == 0
}

/// The ways to learn the page size of a mapping.
enum PageSizes<'a> {
    /// From `ioctl(PROCMAP_QUERY)`, since Linux 6.11.
    Asked(&'a File),
    /// The process has no page of the hugetlb pool.
    Base,
    /// Before 6.11: from the device, because the pool's pages lie in the kernel's own file systems, one for each size.
    /// (The pages of a mounted hugetlbfs are not recognised then.)
    ByDevice(Vec<(u64, PageSize)>),
}

impl<'a> PageSizes<'a> {
    fn of(process: &ProcDir, maps: &'a File) -> Result<Self, SysError> {
        match procmap_query::mapping_at(maps, RemoteAddr::new(0)) {
            Err(error) if error.errno == Errno::NOTTY => {}
            _ => return Ok(Self::Asked(maps)),
        }
        match process.status()?.hugetlb {
            Some(0) => Ok(Self::Base),
            _ => Ok(Self::ByDevice(hugetlb::devices())),
        }
    }

    fn of_vma(&self, vma: &Vma, pages: Pages) -> u64 {
        let base = pages.base.bytes();
        match self {
            Self::Asked(maps) => {
                let asked = procmap_query::mapping_at(maps, vma.range.start()).ok().flatten();
                asked.map_or(base, |mapping| mapping.page_size)
            }
            Self::Base => base,
            Self::ByDevice(devices) => {
                let device = rustix::fs::makedev(vma.file.major, vma.file.minor);
                let found = devices.iter().find(|&&(of_pool, _)| of_pool == device);
                found.map_or(base, |&(_, size)| size.bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;
    use crate::reservation::Reservation;

    fn here() -> ProcDir {
        ProcDir::this_process().expect("/proc")
    }

    #[test]
    fn what_the_scan_tells_is_what_smaps_tells() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        let len = usize::try_from(4 * pages.pmd.bytes()).expect("an address");
        let reserved = Reservation::new(len, pages.pmd).expect("address space");
        let at = reserved.start().as_ptr();
        let all = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
        reserved.map("mmap", [0, len], all, MapFlags::PRIVATE, None).expect("memory");
        reserved.advise("madvise", 0, len / 2, libc::MADV_HUGEPAGE).expect("a kernel with THP");
        reserved.advise("madvise", len / 2, len / 2, libc::MADV_NOHUGEPAGE).expect("the same");
        // SAFETY: the writable mapping was made above, belongs to this test alone, and has no reference into it.
        unsafe { at.write_bytes(1, len) };
        let seen = look(&here(), pages).expect("/proc");
        let told = by_smaps(&here()).expect("/proc");
        let of = |areas: &[Area], start: usize| {
            let start = start as u64;
            areas.iter().find(|area| area.vma.range.start().get() == start).cloned()
        };
        for at in [at.addr(), at.addr() + len / 2] {
            let (seen, told) = (of(&seen.areas, at).expect("seen"), of(&told, at).expect("told"));
            assert_eq!(seen.vma, told.vma);
            assert_eq!((seen.anon_huge, seen.file_huge), (told.anon_huge, told.file_huge));
            assert_eq!(seen.page_size, told.page_size);
            let huge: u64 = seen.huge_parts(pages.pmd).iter().map(|part| part.len()).sum();
            assert_eq!(huge, told.huge_bytes());
        }
    }

    #[test]
    fn the_beginning_of_smaps_is_as_all_of_it() {
        let code = RemoteAddr::new(here as fn() -> ProcDir as usize as u64);
        let all = by_smaps(&here()).expect("/proc");
        let at = all.iter().position(|area| area.vma.range.contains(code)).expect("it runs");
        let some = smaps_up_to(&here(), all[at].vma.range.end()).expect("/proc");
        assert_eq!(some.len(), at + 1);
        let told = |areas: &[Area]| -> Vec<_> {
            areas.iter().map(|area| (area.vma.clone(), area.flags.clone())).collect()
        };
        assert_eq!(told(&some[at..]), told(&all[at..=at]));
        let beyond = smaps_up_to(&here(), RemoteAddr::new(u64::MAX)).expect("/proc");
        assert!(beyond.len() > some.len());
    }

    #[test]
    fn a_text_that_contradicts_itself_is_read_again() {
        const TORN: &[u8] = b"1000-2000 r--p 0 00:00 0\n1000-3000 r--p 0 00:00 0\n";
        const WHOLE: &[u8] = b"1000-3000 r--p 0 00:00 0\n";
        let read = |torn: u32| {
            let left = std::cell::Cell::new(torn);
            let next = || {
                let text = if left.get() == 0 { WHOLE } else { TORN };
                left.set(left.get().saturating_sub(1));
                Ok(text.to_vec())
            };
            consistent("maps", next, maps::parse).map(|vmas| vmas.len())
        };
        assert_eq!(read(0), Ok(1));
        assert_eq!(read(7), Ok(1));
        assert_eq!(read(8), Err(SysError { call: "maps", errno: Errno::INVAL }));
    }

    #[test]
    fn both_ways_to_tell_pages_of_the_pool_agree() {
        let pages = crate::thp::pages().expect("a kernel with THP");
        for (device, size) in hugetlb::devices() {
            let file = hugetlb::file(size).expect("it was there just now");
            let len = usize::try_from(size.bytes()).expect("an address");
            // SAFETY: a new mapping at an address of the kernel's choice; no code touches it.
            let at = unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                let protection = ProtFlags::READ | ProtFlags::EXEC;
                rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file.as_fd(), 0)
            };
            let at = at.expect("address space");
            let maps = here().open_file("maps", false).expect("/proc");
            let vmas = consistent("maps", || here().read("maps"), maps::parse).expect("/proc");
            let vma = vmas.iter().find(|vma| vma.range.start().get() == at.addr() as u64);
            let vma = vma.expect("it is mapped");
            assert_eq!(PageSizes::ByDevice(vec![(device, size)]).of_vma(vma, pages), size.bytes());
            assert_eq!(
                PageSizes::of(&here(), &maps).expect("/proc").of_vma(vma, pages),
                size.bytes()
            );
            // SAFETY: the mapping was made above, and no reference into it exists.
            unsafe { rustix::mm::munmap(at, len) }.expect("it is mapped");
        }
    }
}
