//! Removal of the files that a store can do without: images whose originals are gone, images nobody
//! uses, and leftovers of dead builders.

use std::cmp::Reverse;
use std::fs::File;

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::Serialize;
use tiexec_sys::lease::{Against, Lease};

use super::SUFFIX;
use super::directory::Directory;
use super::key::sidecar_name;
use super::state::{self, Entry, State};
use super::temporary::Temporary;
use super::users::Users;
use tiexec_tracee::Failure;

/// Why something was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Its original is gone or has changed. Processes that still map it keep it, and their maps show
    /// `(deleted)`.
    Outdated,
    /// It was not as a builder leaves one.
    Damaged,
    /// No process maps it.
    Unused,
    /// A builder died and left it.
    LeftOver,
    /// Somebody asked for it.
    Asked,
}

/// Something that was removed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Removed {
    /// Its file name.
    pub name: String,
    /// The original's path, as far as it is known.
    pub original: Option<String>,
    /// Memory it took, in bytes.
    pub bytes: u64,
    /// Why.
    pub why: Why,
}

/// Removes outdated and damaged images and what dead builders left; with `all_unused` also every
/// image that no process maps.
///
/// An image in use that is neither outdated nor damaged stays.
///
/// # Errors
/// `store_refused`: the directory cannot be read. A file that cannot be removed stays.
pub fn prune(directory: &Directory, all_unused: bool) -> Result<Vec<Removed>, Failure> {
    let mut removed = Vec::new();
    for entry in state::entries(directory, &Users::default())? {
        match entry.state {
            State::Outdated => removed.extend(remove(directory, entry, Why::Outdated)),
            State::Damaged => removed.extend(remove(directory, entry, Why::Damaged)),
            State::Ok | State::Unreadable if all_unused => {
                removed.extend(remove_unused(directory, entry));
            }
            State::Ok | State::Unreadable => {}
        }
    }
    removed.extend(remove_left_overs(directory)?);
    Ok(removed)
}

/// Removes the images of the file that was `original`, in whatever state, also those in use: processes that map one keep
/// it until they end.
///
/// # Errors
/// `store_refused`: the directory cannot be read. A file that cannot be removed stays.
pub fn remove_images_of(directory: &Directory, original: &str) -> Result<Vec<Removed>, Failure> {
    let is_of =
        |entry: &Entry| entry.sidecar.as_ref().is_some_and(|sidecar| sidecar.original == original);
    let entries = state::entries(directory, &Users::default())?.into_iter().filter(is_of);
    Ok(entries.filter_map(|entry| remove(directory, entry, Why::Asked)).collect())
}

/// Removes images that nobody uses, the one used longest ago first, until `bytes` are free; returns
/// how many bytes it freed. Outdated ones go before all others.
pub(super) fn make_room(directory: &Directory, bytes: u64) -> u64 {
    let left_over = remove_left_overs(directory).unwrap_or_default();
    let mut freed: u64 = left_over.iter().map(|removed| removed.bytes).sum();
    let mut entries = state::entries(directory, &Users::default()).unwrap_or_default();
    entries.sort_by_key(|entry| (Reverse(entry.state == State::Outdated), entry.last_used));
    let free =
        || rustix::fs::fstatvfs(&directory.fd).map_or(u64::MAX, |fs| fs.f_bfree * fs.f_frsize);
    for entry in entries {
        if freed > 0 && free() >= bytes {
            break;
        }
        // An image that is mapped stays: to remove it would free nothing.
        freed += remove_unused(directory, entry).map_or(0, |removed| removed.bytes);
    }
    freed
}

/// Removes an image unless some process has it open or maps it.
fn remove_unused(directory: &Directory, entry: Entry) -> Option<Removed> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&directory.fd, &entry.name, flags, Mode::empty()).ok()?;
    let file = File::from(file);
    // Held until it is gone: whoever wants to open it meanwhile then finds nothing.
    let _lease = Lease::try_take(&file, Against::Openers).ok()??;
    remove(directory, entry, Why::Unused)
}

fn remove(directory: &Directory, entry: Entry, why: Why) -> Option<Removed> {
    let Entry { name, sidecar, bytes, .. } = entry;
    rustix::fs::unlinkat(&directory.fd, &name, AtFlags::empty()).ok()?;
    let _missing = rustix::fs::unlinkat(&directory.fd, sidecar_name(&name), AtFlags::empty());
    Some(Removed { name, original: sidecar.map(|sidecar| sidecar.original), bytes, why })
}

/// Removes temporary files that nobody has locked, and sidecars without an image.
fn remove_left_overs(directory: &Directory) -> Result<Vec<Removed>, Failure> {
    let names = state::names(directory)?;
    let mut removed = Vec::new();
    let mut note = |name: &str, bytes: u64| {
        let name = name.to_owned();
        removed.push(Removed { name, original: None, bytes, why: Why::LeftOver });
    };
    let bytes_of = |name: &str| {
        let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(0, |stat| stat.st_blocks.cast_unsigned().saturating_mul(512))
    };
    for name in &names.temporaries {
        let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".new"));
        let Some(inner) = inner else { continue };
        let bytes = bytes_of(name);
        let image = inner.strip_suffix(".json").unwrap_or(inner);
        // Under the lock of its image: a live builder holds that.
        let Ok(Some(lock)) = Temporary::lock(directory, image) else { continue };
        if image != inner {
            let _gone = rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty());
        }
        drop(lock);
        note(name, bytes);
    }
    for name in &names.sidecars {
        let image = name.strip_suffix(".json").filter(|image| image.ends_with(SUFFIX));
        let Some(image) = image else { continue };
        let missing = || {
            let stat = rustix::fs::statat(&directory.fd, image, AtFlags::SYMLINK_NOFOLLOW);
            stat.err() == Some(rustix::io::Errno::NOENT)
        };
        if !missing() {
            continue;
        }
        let Ok(Some(_lock)) = Temporary::lock(directory, image) else { continue };
        let bytes = bytes_of(name);
        // Looked at again under the lock: its builder may have just finished.
        if missing() && rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty()).is_ok() {
            note(name, bytes);
        }
    }
    Ok(removed)
}
