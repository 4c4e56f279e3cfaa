//! Checks whether images are still as their builders wrote them.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use tiexec_core::escape::AsShown;
use tiexec_core::relaid;
use tiexec_sys::reopen::PathFile;
use tiexec_sys::{Errno, thp};

use super::directory::Directory;
use super::key::Sidecar;
use super::{Wanted, fill, lookup, state};
use tiexec_tracee::Failure;

/// The time limit for the comparison of one image with its original.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of checking one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Its file name.
    pub name: String,
    /// The original's path; `None` if it is not known.
    pub original: Option<String>,
    /// Its defects; empty if it has none.
    pub problems: Vec<String>,
}

/// Reads every image of a store, and compares it with its sidecar and with its original's bytes.
///
/// # Errors
/// `store_refused`: the directory cannot be read.
pub fn verify(directory: &Directory) -> Result<Vec<Verdict>, Failure> {
    let names = state::names(directory)?;
    Ok(names.images.into_iter().filter_map(|name| one(directory, name)).collect())
}

fn one(directory: &Directory, name: String) -> Option<Verdict> {
    let stat = rustix::fs::statat(&directory.fd, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let mut problems = Vec::new();
    problems.extend(lookup::wrong_with(directory, &stat));
    let sidecar = state::read_sidecar(directory, &name);
    let original = sidecar.as_ref().map(|sidecar| sidecar.original.clone());
    match &sidecar {
        // Do not open a file that is not regular.
        _ if !problems.is_empty() => {}
        None => problems.push("has no sidecar that can be read".into()),
        Some(sidecar) => {
            let is_ours = sidecar.key.layout_version == relaid::VERSION;
            if is_ours && sidecar.key.image_name(Path::new(&sidecar.original)) != name {
                problems.push("has not the name that its sidecar gives it".into());
            }
            let size = stat.st_size.cast_unsigned();
            if sidecar.image_size != size {
                problems.push(format!("has {size} bytes, not {}", sidecar.image_size));
            }
            match hash(directory, &name) {
                Ok(hash) if hash == sidecar.blake3 => {
                    problems.extend(differs(sidecar, &name, &hash));
                }
                Ok(hash) => problems.push(format!("has BLAKE3 {hash}, not {}", sidecar.blake3)),
                Err(error) => problems.push(error),
            }
        }
    }
    Some(Verdict { name, original, problems })
}

/// Returns what is wrong with an image that has the hash `hash` if its original has the state of its key, but other
/// bytes. An image of an earlier state is out of date, and nobody uses it.
fn differs(sidecar: &Sidecar, name: &str, hash: &str) -> Option<String> {
    if sidecar.key.layout_version != relaid::VERSION {
        return None;
    }
    let path = Path::new(&sidecar.original);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let held = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    // Another file at the path may be one whose server never answers. It is not opened.
    if !rustix::fs::fstat(&held).is_ok_and(|stat| sidecar.key.is_of(&stat)) {
        return None;
    }
    let original = PathFile::from(held).open().ok()?;
    let pages = thp::pages().filter(|pages| pages.pmd.bytes() == sidecar.key.pmd_size)?;
    let wanted = Wanted::read(&original, path, pages, None).ok()?;
    let until = Instant::now() + PATIENCE;
    match fill::hash_of(&original, &wanted.layout, until) {
        Ok(own) if own.to_hex().as_str() == hash && wanted.name == name => None,
        Ok(_) => Some(format!("has other bytes than {}", path.shown())),
        Err(failure) => Some(format!("cannot be compared with {}: {failure}", path.shown())),
    }
}

fn hash(directory: &Directory, name: &str) -> Result<String, String> {
    // The read must not count as a use, or verifying would keep images from being pruned.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(&directory.fd, name, flags, Mode::empty());
    let file = open(flags | OFlags::NOATIME).or_else(|_not_the_owner| open(flags));
    let file = file.map_err(|errno| format!("cannot be opened: {}", Errno::from(errno)))?;
    let hash = fill::hash_again(&file.into());
    hash.map(|hash| hash.to_hex().to_string()).map_err(|error| format!("cannot be read: {error}"))
}
