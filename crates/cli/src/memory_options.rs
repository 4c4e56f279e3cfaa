//! `--numa` and `--page-size`: whether this machine has what they name.

use tiexec_core::addr::{PageSize, short};
use tiexec_core::config::{BackingChoice, Settings};
use tiexec_core::numa::Numa;
use tiexec_sys::{numa_nodes, thp};

/// Checks what was said by option. (What the environment says wrongly leaves text on base pages.)
///
/// # Errors
/// The defect, in words.
pub(crate) fn check(
    page_size: Option<PageSize>,
    numa: Option<Numa>,
    settings: &Settings,
) -> Result<(), String> {
    if let Some(size) = page_size {
        if settings.backing != BackingChoice::Hugetlb {
            return Err(format!(
                "cannot use --page-size {}: it is for --backing hugetlb; fix: add --backing hugetlb",
                shown(size)
            ));
        }
        let sizes = thp::pool_sizes();
        if !sizes.contains(&size) {
            let sizes: Vec<String> = sizes.into_iter().map(shown).collect();
            let (there, fix) = match sizes.is_empty() {
                true => ("and no others".to_owned(), "leave out --backing hugetlb"),
                false => (format!("only: {}", sizes.join(", ")), "name one of these"),
            };
            return Err(format!(
                "cannot use --page-size {}: /sys/kernel/mm/hugepages has no pages of that size, {there}; fix: {fix}",
                shown(size)
            ));
        }
    }
    if let Some(numa) = numa {
        if settings.backing == BackingChoice::Pagecache {
            return Err(format!(
                "cannot use --numa {numa} with --backing pagecache: the page cache lies where it was read in; \
                 fix: leave out --backing pagecache, or --numa"
            ));
        }
        if let Numa::Node(node) = numa {
            let turns = numa.turns(&numa_nodes::usable_nodes(), node);
            turns.map_err(|error| {
                format!(
                    "cannot use --numa {numa}: {error} (/sys/devices/system/node); fix: name a node that has memory"
                )
            })?;
        }
    }
    Ok(())
}

fn shown(size: PageSize) -> String {
    short(size.bytes())
}
