//! Builds new images: under a temporary name that is also the lock, then renamed.
//!
//! The lock is `flock` on the temporary file, so it ends when the builder ends, in whatever way. The next builder
//! takes over the file that a dead one left. The image gets its name only when it is whole, its sidecar is written
//! and it has its final mode.

use std::fs::File;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blake3::Hash;
use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::relaid::Layout;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_tracee::Failure;

use super::directory::{Directory, Kind};
use super::fill::{self, Stop};
use super::temporary::Temporary;
use super::{BuildOrder, Wanted, lookup, prune};
use crate::headroom;

/// How long a process that waits for another builder sleeps between polls.
const LOOK: Duration = Duration::from_millis(1);

/// The coarsest step of a file's times: two changes within one step show the same time.
const TIME_STEP: Duration = Duration::from_millis(20);

/// Builds the image, or waits for the process that builds it already. Returns the image open for reading.
pub(super) fn build(
    directory: &Directory,
    wanted: &Wanted,
    order: &BuildOrder<'_>,
) -> Result<File, Failure> {
    let find = || lookup::open(directory, &wanted.name, wanted.layout.len);
    let temporary = loop {
        if let Some(temporary) = Temporary::lock(directory, &wanted.name)? {
            break temporary;
        }
        if Instant::now() >= order.deadline {
            let detail = format!("another process still builds {}", wanted.name);
            return Err(Failure::new(FailureKind::Deadline, detail));
        }
        std::thread::sleep(LOOK);
        if let Some(image) = find()? {
            return Ok(image);
        }
    };
    if let Some(image) = find()? {
        // The previous builder finished between the lookup and the lock.
        return Ok(image);
    }
    if order.path.to_str().is_none() {
        // The sidecar could not hold this path.
        let detail = format!("the path {} is no UTF-8", order.path.shown());
        return Err(Failure::new(SkipReason::OddFile, detail));
    }
    headroom::check(order.process, wanted.layout.memory())?;
    leave_half(directory, wanted.layout.memory())?;
    settle(&wanted.key.ctime);
    let hash = fill_or_make_room(&temporary, wanted, order)?;
    let still = rustix::fs::fstat(order.original);
    if !still.is_ok_and(|stat| wanted.key.is_of(&stat)) {
        let detail = format!("{} changed while it was copied", order.path.shown());
        return Err(Failure::new(FailureKind::ReadFailed, detail));
    }
    temporary.finish(wanted, order.path, &hash)?;
    find()?.ok_or_else(|| {
        Failure::new(FailureKind::StoreRefused, format_args!("{} was removed again", wanted.name))
    })
}

/// Checks that an image of `bytes` leaves half of a user's runtime directory free for other programs. Removes
/// unused images first if needed.
fn leave_half(directory: &Directory, bytes: u64) -> Result<(), Failure> {
    if directory.kind == Kind::System {
        return Ok(());
    }
    let fits = || {
        rustix::fs::fstatvfs(&directory.fd).is_ok_and(|fs| {
            let (all, free) = (fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize);
            free >= bytes.saturating_add(all / 2)
        })
    };
    if fits() || (prune::make_room(directory, bytes) > 0 && fits()) {
        return Ok(());
    }
    let detail = format!(
        "an image of {} MiB would take more than half of {}",
        mib(bytes),
        directory.path.shown()
    );
    Err(Failure::new(FailureKind::StoreFull, detail))
}

/// Waits until a change of the file would show in its times.
fn settle(changed: &(i64, i64)) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed =
        Duration::new(u64::try_from(changed.0).unwrap_or(0), u32::try_from(changed.1).unwrap_or(0));
    // A time in the future comes from a clock that was set back, not from a change just now.
    if let Some(age) = now.checked_sub(changed).filter(|&age| age < TIME_STEP) {
        std::thread::sleep(TIME_STEP - age);
    }
}

/// Fills the image. If the tmpfs is full, removes unused images and tries once more.
fn fill_or_make_room(
    temporary: &Temporary<'_>,
    wanted: &Wanted,
    order: &BuildOrder<'_>,
) -> Result<Hash, Failure> {
    let layout: &Layout = &wanted.layout;
    let mut made_room = false;
    loop {
        match fill::fill(&temporary.file, order.original, layout, order.deadline) {
            Ok(hash) => return Ok(hash),
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Full) => {
                temporary.empty()?;
                if made_room || prune::make_room(temporary.directory, layout.memory()) == 0 {
                    let detail = format!(
                        "{} has no room for {} MiB",
                        temporary.directory.path.shown(),
                        mib(layout.memory())
                    );
                    return Err(Failure::new(FailureKind::StoreFull, detail));
                }
                made_room = true;
            }
        }
    }
}
