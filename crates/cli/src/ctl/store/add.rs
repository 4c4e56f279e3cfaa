//! `tiexecctl store add FILE…`: builds images in advance.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use tiexec_core::escape::AsShown;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_remap::Failure;
use tiexec_remap::store::{BuildOrder, Store};
use tiexec_sys::procfs::ProcDir;

use super::super::progress::{Progress, counted};
use super::super::told;
use super::{cannot, own, print};
use crate::exit;
use crate::stdio::warn;

/// The time limit for one image. It is long because no program waits for it.
const PATIENCE: Duration = Duration::from_secs(600);

/// The result for one file.
#[derive(Serialize)]
struct Added<'a> {
    original: &'a Path,
    image: Option<PathBuf>,
    reason: Option<Reason>,
    detail: Option<String>,
}

pub(super) fn run(files: &[PathBuf], json: bool) -> u8 {
    let doing = "build images";
    let store = match own(doing) {
        Ok(store) => store,
        Err(status) => return status,
    };
    let process = match ProcDir::this_process() {
        Ok(process) => process,
        Err(error) => {
            warn(format_args!("cannot {doing}: {error}"));
            return super::super::failed_status(error.errno);
        }
    };
    let mut all = Vec::new();
    let mut printed = exit::OK;
    let (mut progress, begun) = (Progress::default(), Instant::now());
    for (done, path) in files.iter().enumerate() {
        progress.now(|| {
            let line = counted("building images", done, files.len(), "files", begun);
            format!("{line}, {}", path.shown())
        });
        let result = add(&store, &process, path);
        if let Err(failure) = &result {
            cannot(&format!("build an image of {}", path.shown()), failure);
        }
        let (image, failure) = match result {
            Ok(image) => (Some(image), None),
            Err(failure) => (None, Some(failure)),
        };
        if let (Some(image), false) = (&image, json) {
            printed = told(printed, print(&format!("{}\n", image.shown())));
        }
        let reason = failure.as_ref().map(|failure| failure.reason);
        let detail = failure.map(|failure| failure.detail);
        all.push(Added { original: path, image, reason, detail });
    }
    drop(progress);
    let built = all.iter().filter(|added| added.image.is_some()).count();
    if json {
        printed = print(&super::list::as_json("store_add", &[("images", &all)]));
    }
    let unreadable = Some(Reason::from(SkipReason::UnreadableImage));
    match built {
        0 if all.iter().all(|added| added.reason == unreadable) => exit::NOT_PERMITTED,
        0 => exit::FAILED,
        _ if built < all.len() => exit::PARTIAL,
        _ => printed,
    }
}

fn add(store: &Store, process: &ProcDir, path: &Path) -> Result<PathBuf, Failure> {
    let unread = |error: std::io::Error| {
        let reason = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Reason::from(SkipReason::UnreadableImage),
            _ => FailureKind::ReadFailed.into(),
        };
        Failure::of(reason)(error)
    };
    // The path that maps shows, with all links resolved.
    let path = path.canonicalize().map_err(unread)?;
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let original = File::options().read(true).custom_flags(flags).open(&path).map_err(unread)?;
    if !original.metadata().map_err(unread)?.is_file() {
        return Err(Failure::new(SkipReason::OddFile, "is not a regular file"));
    }
    let deadline = Instant::now() + PATIENCE;
    let order = BuildOrder { original: &original, path: &path, bias: None, process, deadline };
    store.find_or_build(&order).map(|image| image.path)
}
