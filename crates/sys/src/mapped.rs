//! What of a process's executable memory is PMD-mapped, and where.

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::proc::smaps;

use crate::error::{Errno, SysError};
use crate::pagecache::scan_huge;
use crate::procfs::ProcDir;

/// Returns the parts of a process's executable memory that are PMD-mapped, in address order.
///
/// # Errors
/// ESRCH, ENOENT if it is gone; EACCES, EPERM without leave to trace it.
///
/// # Kernel
/// `ioctl(PAGEMAP_SCAN)` since Linux 6.7. Before, smaps says how much, not where: then the whole huge
/// pages of an area count if they all are, and not otherwise.
pub fn huge_text(process: &ProcDir, pmd: PageSize) -> Result<Vec<AddrRange>, SysError> {
    let malformed = SysError { call: "smaps", errno: Errno::INVAL };
    let entries = smaps::parse(&process.read("smaps")?).map_err(|_unreadable| malformed)?;
    let some = entries.iter().filter(|entry| entry.vma.perms.exec && entry.pmd_mapped() > 0);
    let pagemap = process.open_file("pagemap", false);
    let mut found = Vec::new();
    for entry in some {
        let range = entry.vma.range;
        let ends = range.start().get()..range.end().get();
        let scanned = pagemap.as_ref().ok().and_then(|map| scan_huge(map, ends, pmd, 0).ok());
        match scanned {
            Some(parts) => found.extend(parts.into_iter().filter_map(|part| {
                AddrRange::new(RemoteAddr::new(part.start), RemoteAddr::new(part.end))
            })),
            None => {
                let whole = range.align_inward(pmd);
                found.extend(whole.filter(|whole| whole.len() == entry.pmd_mapped()));
            }
        }
    }
    Ok(found)
}
