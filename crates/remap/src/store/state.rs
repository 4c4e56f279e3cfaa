//! The content of a store.

use std::fmt;
use std::fs::File;
use std::io::Read;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use serde::Serialize;
use tiexec_core::escape::AsShown;
use tiexec_core::relaid;
use tiexec_core::skip::FailureKind;
use tiexec_sys::{Errno, thp};

use super::SUFFIX;
use super::directory::Directory;
use super::key::{SCHEMA, Sidecar, sidecar_name};
use super::lookup;
use super::users::Users;
use tiexec_tracee::Failure;

/// The longest sidecar that is read, in bytes.
const MAX_SIDECAR: u64 = 64 << 10;

/// The state of an image compared with its original.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In use, or ready to be.
    Ok,
    /// The original is gone or has changed, or the image is of another version or PMD size. Nobody will use it any
    /// more.
    Outdated,
    /// This user cannot examine the original.
    Unreadable,
    /// The image or its sidecar is not as a builder leaves it.
    Damaged,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Outdated => "outdated",
            Self::Unreadable => "unreadable",
            Self::Damaged => "damaged",
        })
    }
}

/// One image of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its file name.
    pub name: String,
    /// Its sidecar; `None` if that is missing or cannot be read.
    pub sidecar: Option<Sidecar>,
    /// The memory that it takes, in bytes.
    pub bytes: u64,
    /// When it was last read or mapped: seconds since 1970, nanoseconds.
    pub last_used: (i64, i64),
    /// How many processes map it.
    pub users: u64,
    /// Its state compared with its original.
    pub state: State,
}

/// The names in a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Names {
    pub(super) images: Vec<String>,
    pub(super) sidecars: Vec<String>,
    pub(super) temporaries: Vec<String>,
}

/// Reads the names in a store, sorted.
///
/// # Errors
/// `store_refused`: it cannot be read.
pub(super) fn names(directory: &Directory) -> Result<Names, Failure> {
    let failed = |errno: rustix::io::Errno| {
        Failure::of(FailureKind::StoreRefused)(Errno::from(errno))
            .about(format_args!("reading {}", directory.path.shown()))
    };
    let mut names = Names::default();
    for entry in Dir::read_from(&directory.fd).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let list = match name {
            "." | ".." => continue,
            name if name.starts_with('.') => &mut names.temporaries,
            name if name.ends_with(SUFFIX) => &mut names.images,
            name if name.ends_with(".json") => &mut names.sidecars,
            _ => continue,
        };
        list.push(name.to_owned());
    }
    names.images.sort();
    Ok(names)
}

/// Returns the entry of every image of a store.
///
/// # Errors
/// `store_refused`: the directory cannot be read.
pub fn entries(directory: &Directory, users: &Users) -> Result<Vec<Entry>, Failure> {
    let names = names(directory)?;
    Ok(names.images.into_iter().filter_map(|name| entry(directory, name, users)).collect())
}

fn entry(directory: &Directory, name: String, users: &Users) -> Option<Entry> {
    // An image that was removed meanwhile is left out.
    let stat = rustix::fs::statat(&directory.fd, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let sidecar = read_sidecar(directory, &name);
    let state = match &sidecar {
        _ if lookup::wrong_with(directory, &stat).is_some() => State::Damaged,
        None => State::Damaged,
        Some(sidecar) => state_of(sidecar),
    };
    Some(Entry {
        bytes: stat.st_blocks.cast_unsigned().saturating_mul(512),
        last_used: (stat.st_atime, stat.st_atime_nsec.cast_signed()),
        users: users.of(stat.st_dev, stat.st_ino),
        name,
        sidecar,
        state,
    })
}

fn state_of(sidecar: &Sidecar) -> State {
    let pmd = thp::pages().map(|pages| pages.pmd.bytes());
    if sidecar.key.layout_version != relaid::VERSION || Some(sidecar.key.pmd_size) != pmd {
        return State::Outdated;
    }
    match rustix::fs::statat(CWD, &sidecar.original, AtFlags::empty()) {
        Ok(stat) if sidecar.key.is_of(&stat) => State::Ok,
        Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => State::Outdated,
        Err(_) => State::Unreadable,
    }
}

/// Reads the sidecar of an image; `None` if it is missing or invalid.
pub(super) fn read_sidecar(directory: &Directory, image: &str) -> Option<Sidecar> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&directory.fd, sidecar_name(image), flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if lookup::wrong_with(directory, &stat).is_some() {
        return None;
    }
    let mut text = Vec::new();
    File::from(file).take(MAX_SIDECAR).read_to_end(&mut text).ok()?;
    let sidecar: Sidecar = serde_json::from_slice(&text).ok()?;
    (sidecar.schema == SCHEMA).then_some(sidecar)
}
