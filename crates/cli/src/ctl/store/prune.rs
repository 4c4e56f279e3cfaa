//! `tiexecctl store prune`: removes images that nobody needs.

use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_remap::store::directory::{Directory, SYSTEM};
use tiexec_remap::store::prune::{Outcomes, Removed, Why, prune};

use super::super::told;
use super::{all, cannot, print};
use crate::exit;
use crate::stdio::warn;

pub(super) fn run(all_unused: bool, json: bool) -> u8 {
    let doing = "prune the image store";
    let ours = match ours(doing) {
        Ok(ours) => ours,
        Err(status) => return status,
    };
    let mut removed: Vec<Removed> = Vec::new();
    let mut statuses = Vec::new();
    for directory in &ours {
        match prune(directory, all_unused) {
            Ok(outcomes) => statuses.extend(take(outcomes, &mut removed)),
            Err(failure) => statuses.push(cannot(doing, &failure)),
        }
    }
    let printed = if json {
        print(&super::list::as_json("store_prune", &[("removed", &removed)]))
    } else {
        print(&removed.iter().map(line).collect::<String>())
    };
    told(exit::together(&statuses), printed)
}

/// Adds what was removed, and says what could not be. Returns the statuses.
pub(super) fn take(outcomes: Outcomes, removed: &mut Vec<Removed>) -> Vec<u8> {
    let mut status = |outcome| match outcome {
        Ok(one) => {
            removed.push(one);
            exit::OK
        }
        Err(failure) => cannot("remove an image", &failure),
    };
    outcomes.into_iter().map(&mut status).collect()
}

/// Returns the stores from which this user can remove images.
pub(super) fn ours(doing: &str) -> Result<Vec<Directory>, u8> {
    let directories = all(doing)?;
    let there_are_others = !directories.is_empty();
    let ours: Vec<Directory> = directories.into_iter().filter(Directory::is_ours).collect();
    if ours.is_empty() && there_are_others {
        warn(format_args!(
            "cannot {doing}: only root can remove images from {SYSTEM}; fix: run it as root"
        ));
        return Err(exit::NOT_PERMITTED);
    }
    Ok(ours)
}

pub(super) fn line(removed: &Removed) -> String {
    let why = match removed.why {
        Why::Outdated => "outdated",
        Why::Damaged => "damaged",
        Why::Unused => "unused",
        Why::LeftOver => "left by a dead builder",
        Why::Asked => "as asked",
    };
    let name = removed.original.as_deref().unwrap_or(&removed.name).shown();
    format!("removed {name} ({} MiB): {why}\n", mib(removed.bytes))
}
