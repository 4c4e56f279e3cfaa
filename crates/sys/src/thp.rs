//! Page sizes, also those of the hugetlb pool, and THP settings, read from the kernel.

use std::path::Path;
use std::sync::OnceLock;

use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::order;

use crate::kernel_file;

/// The directory in which the kernel shows its THP settings.
pub const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// Returns the sizes of the hugetlb pool's pages, the smallest first; none without `CONFIG_HUGETLBFS`.
pub fn pool_sizes() -> Vec<PageSize> {
    let entries = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        PageSize::new(kib.parse::<u64>().ok()?.checked_mul(1024)?)
    };
    let mut sizes: Vec<PageSize> = entries.filter_map(size).collect();
    order::by(&mut sizes, Ord::cmp);
    sizes
}

/// Returns the size of a base page.
pub(crate) fn base_page() -> Option<PageSize> {
    PageSize::new(u64::try_from(rustix::param::page_size()).ok()?)
}

/// Returns the page sizes for a plan with pages of the hugetlb pool of this size.
pub fn pages_of_pool(size: PageSize) -> Option<Pages> {
    Some(Pages { base: base_page()?, pmd: size })
}

/// Returns the page sizes, or `None` if the kernel has no THP (or `/sys` is not mounted and the PMD
/// size is not known). This asks the kernel until it has an answer.
pub fn pages() -> Option<Pages> {
    static FOUND: OnceLock<Pages> = OnceLock::new();
    match FOUND.get() {
        Some(&found) => Some(found),
        None => find_pages().map(|found| *FOUND.get_or_init(|| found)),
    }
}

fn find_pages() -> Option<Pages> {
    let base = base_page()?;
    let text = kernel_file::read(format!("{DIRECTORY}/hpage_pmd_size")).ok();
    let pmd = match text {
        Some(text) => PageSize::new(text.trim().parse().ok()?)?,
        // Without /sys: a page of last-level table entries, 8 bytes each, maps this much on both
        // architectures (a PMD entry stands for one such page).
        None if !Path::new("/sys/kernel").exists() => {
            PageSize::new(base.bytes().checked_mul(base.bytes() / 8)?)?
        }
        None => return None,
    };
    Some(Pages { base, pmd })
}

/// Returns the chosen word of a setting such as `enabled`: the one in brackets.
pub fn knob(name: &str) -> Option<String> {
    let text = kernel_file::read(format!("{DIRECTORY}/{name}")).ok()?;
    let chosen = text.split('[').nth(1)?.split(']').next()?;
    Some(chosen.to_owned())
}
