//! Removes files that a store no longer needs: images whose originals are gone, images that nobody uses, and
//! remains of dead builders.

use std::cmp::Reverse;
use std::fs::File;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno as RawErrno;
use serde::Serialize;
use tiexec_core::skip::FailureKind;
use tiexec_sys::Errno;
use tiexec_sys::lease::{Against, Lease};

use crate::files;

use super::SUFFIX;
use super::directory::Directory;
use super::key::sidecar_name;
use super::state::{self, Entry, State};
use super::temporary::Temporary;
use super::users::Users;
use tiexec_tracee::Failure;

/// Why a file was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The original is gone or has changed. Processes that still map the image keep it, and their maps show
    /// `(deleted)`.
    Outdated,
    /// The image was not as a builder leaves one.
    Damaged,
    /// No process maps the image.
    Unused,
    /// A builder died and left it.
    LeftOver,
    /// The caller requested it.
    Asked,
}

/// A file that was removed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Removed {
    /// Its file name.
    pub name: String,
    /// The original's path; `None` if it is not known.
    pub original: Option<String>,
    /// The memory that it took, in bytes.
    pub bytes: u64,
    /// The reason.
    pub why: Why,
}

/// What became of the images that were to be removed. `Err` is `store_refused`: the image cannot be removed, and stays.
pub type Outcomes = Vec<Result<Removed, Failure>>;

/// Removes outdated and damaged images, and what dead builders left. With `all_unused`, also removes every image
/// that no process maps or has open.
///
/// An image in use stays if it is neither outdated nor damaged.
///
/// # Errors
/// `store_refused`: the directory cannot be read.
pub fn prune(directory: &Directory, all_unused: bool) -> Result<Outcomes, Failure> {
    let mut outcomes = Vec::new();
    for entry in state::entries(directory, &Users::default())? {
        match entry.state {
            State::Outdated => outcomes.push(remove(directory, entry, Why::Outdated)),
            State::Damaged => outcomes.push(remove(directory, entry, Why::Damaged)),
            State::Ok | State::Unreadable if all_unused => {
                outcomes.extend(remove_unused(directory, entry));
            }
            State::Ok | State::Unreadable => {}
        }
    }
    match remove_left_overs(directory) {
        Ok(removed) => outcomes.extend(removed.into_iter().map(Ok)),
        Err(failure) => outcomes.push(Err(failure)),
    }
    Ok(outcomes)
}

/// Removes the images of the file whose path was `original`, in whatever state, even if they are in use. Processes
/// that map one keep it until they end.
///
/// # Errors
/// `store_refused`: the directory cannot be read.
pub fn remove_images_of(directory: &Directory, original: &str) -> Result<Outcomes, Failure> {
    let is_of =
        |entry: &Entry| entry.sidecar.as_ref().is_some_and(|sidecar| sidecar.original == original);
    let entries = state::entries(directory, &Users::default())?.into_iter().filter(is_of);
    Ok(entries.map(|entry| remove(directory, entry, Why::Asked)).collect())
}

/// Removes unused images until `bytes` are free. Outdated images go first, then those whose last use is longest
/// ago. Returns how many bytes it freed.
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
        // A mapped image stays, because removing it would free nothing.
        let removed = remove_unused(directory, entry).and_then(Result::ok);
        freed += removed.map_or(0, |removed| removed.bytes);
    }
    freed
}

/// Removes an image unless a process maps it or has it open.
fn remove_unused(directory: &Directory, entry: Entry) -> Option<Result<Removed, Failure>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&directory.fd, &entry.name, flags, Mode::empty()).ok()?;
    let file = File::from(file);
    // Hold the lease until the file is removed. A process that tries to open it meanwhile then finds no file.
    let _lease = Lease::try_take(&file, Against::Openers).ok()??;
    Some(remove(directory, entry, Why::Unused))
}

fn remove(directory: &Directory, entry: Entry, why: Why) -> Result<Removed, Failure> {
    let Entry { name, sidecar, bytes, .. } = entry;
    match files::remove(&directory.fd, &name) {
        // Somebody else may remove it at the same time.
        Ok(()) | Err(RawErrno::NOENT) => {}
        Err(errno) => {
            let what = format!("{name}: {}", Errno::from(errno));
            return Err(Failure::new(FailureKind::StoreRefused, what));
        }
    }
    let _missing = files::remove(&directory.fd, sidecar_name(&name));
    Ok(Removed { name, original: sidecar.map(|sidecar| sidecar.original), bytes, why })
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
        // Take the lock of the image, which a live builder holds.
        let Ok(Some(lock)) = Temporary::lock(directory, image) else { continue };
        if image != inner {
            let _gone = files::remove(&directory.fd, name);
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
        // Check again under the lock, because the builder may just have finished.
        if missing() && files::remove(&directory.fd, name).is_ok() {
            note(name, bytes);
        }
    }
    Ok(removed)
}
