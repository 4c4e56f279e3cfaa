//! Makes a policy of settings.

use tiexec_core::addr::{PageSize, short};
use tiexec_core::config::{Evict, Settings};
use tiexec_remap::Failure;
use tiexec_remap::policy::{Policy, unsupported};
use tiexec_remap::sources::Sources;
use tiexec_sys::thp;

/// Returns the policy that the settings ask for; with `dry_run`, only for a plan.
///
/// # Errors
/// `thp_unsupported`.
pub fn policy(settings: &Settings, dry_run: bool) -> Result<Policy, Failure> {
    let Settings { backing, numa, select, edges, .. } = *settings;
    let pages = settings.pool_page().map_or_else(thp::pages, thp::pages_of_pool);
    let pages = pages.ok_or_else(unsupported)?;
    let sources = Sources::asked_for(backing, numa);
    let deadline = settings.deadline();
    let evict = settings.evict == Evict::Unused && !dry_run;
    Ok(Policy { pages, sources, select, edges, numa, evict, deadline, dry_run })
}

/// Says that a program has too little text for pages of that size.
pub fn too_large(size: PageSize) -> String {
    format!("no text of it fills a page of {}", short(size.bytes()))
}
