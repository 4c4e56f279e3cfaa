//! The sizes of huge pages that the settings ask for.

use tiexec_core::addr::{PageSize, Pages, short};
use tiexec_core::config::Settings;
use tiexec_sys::thp;

/// Returns the page sizes to plan with; `None` where the kernel has no huge pages.
pub fn pages(settings: &Settings) -> Option<Pages> {
    settings.pool_page().map_or_else(thp::pages, thp::pages_of_pool)
}

/// Says that a program has too little text for pages of that size.
pub fn too_large(size: PageSize) -> String {
    format!("no text of it fills a page of {}", short(size.bytes()))
}
