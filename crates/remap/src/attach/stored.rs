//! Images in the store for a running process. The process cannot be moved, so it can use an image of the store only
//! where the image fits: for a program at fixed addresses, and for a shared object that the kernel maps at a
//! multiple of the huge page. Text at a random address gets a copy of its own (`crate::images`).

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use tiexec_core::escape::AsShown;
use tiexec_core::plan::{Backing, Plan, Span};
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;

use super::texts::Texts;
use super::{AttachOrder, PrivateCopies};
use crate::elf_file::elf_facts;
use crate::image::Filled;
use crate::images::{Image, Images};
use crate::store::{BuildOrder, Store, StoredImage};
use crate::target_file::TargetFile;

/// Bytes of an image that a machine builds in a millisecond, roughly.
const BUILT_PER_MILLISECOND: u128 = 256 << 10;

/// The store's image of a file, and the load bias at which the process has the file.
#[derive(Debug)]
pub(crate) struct Stored {
    file: FileId,
    bias: u64,
    image: StoredImage,
}

/// Finds the images of the texts for which a copy is planned, and has missing ones built until `deadline`. A text
/// that has an image gets it as its copy. For any other text the reason is noted.
///
/// Also returns the first reason why a text has no image although it could have one.
pub(crate) fn find(
    order: &AttachOrder<'_>,
    images: &Images,
    texts: &mut Texts,
    plan: &Plan,
    deadline: Instant,
) -> (Vec<Stored>, Option<Failure>) {
    let none = || Failure::new(SkipReason::NoStore, "there is no image store");
    let store = images.store(order.policy.pages).and_then(|store| store.ok_or_else(none));
    let (mut found, mut setback) = (Vec::new(), None);
    let copied = |span: &&Span| span.backing == Backing::Image;
    for text in &plan.texts {
        let spans: Vec<&Span> = text.spans.iter().filter(copied).collect();
        let Some(file) = texts.file(&text.vma).filter(|_| !spans.is_empty()) else { continue };
        let one = store.clone().and_then(|store| {
            let file = original(file, &text.vma)?;
            find_one(order, store, &mut found, &text.vma, &file, deadline)
        });
        match one {
            Ok(Some(stored))
                if spans.iter().all(|span| stored.image.part(span, stored.bias).is_ok()) =>
            {
                texts.copy_from(&text.vma, Backing::Store);
            }
            Ok(_) => {}
            Err(failure) => {
                texts.is_not_stored(&text.vma, failure.reason);
                let usual = match failure.reason {
                    Reason::Skipped(SkipReason::NoStore) => true,
                    // Such a process gets a copy of its own.
                    Reason::Skipped(SkipReason::Misplaced) => {
                        order.private_copies == PrivateCopies::All
                    }
                    _ => false,
                };
                if !usual {
                    setback.get_or_insert(failure);
                }
            }
        }
    }
    (found, setback)
}

/// Opens a text's file for the store, which accepts only files that other users can also start.
fn original(file: &TargetFile, vma: &Vma) -> Result<File, Failure> {
    let private = |what: &str| {
        let detail = format!("{} {what}", vma.display_path().shown());
        Failure::new(SkipReason::NotShareable, detail)
    };
    if file.facts().links == 0 {
        return Err(private("has no name any more"));
    }
    file.for_the_store(vma.path()).ok_or_else(|| private("is not only root's to change"))
}

fn find_one<'a>(
    order: &AttachOrder<'_>,
    store: &Store,
    found: &'a mut Vec<Stored>,
    vma: &Vma,
    original: &File,
    deadline: Instant,
) -> Result<Option<&'a Stored>, Failure> {
    let (_, facts) = elf_facts(original)?;
    let Some(bias) = facts.load_bias(vma, order.policy.pages.base) else { return Ok(None) };
    let known = |stored: &Stored| stored.file == vma.file && stored.bias == bias;
    if let Some(index) = found.iter().position(known) {
        return Ok(found.get(index));
    }
    let path = Path::new(OsStr::from_bytes(vma.path()));
    // An image that cannot be built in time would be begun again at each start.
    let in_time = || {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let len = original.metadata().map_or(0, |meta| meta.len());
        order.private_copies == PrivateCopies::All
            || u128::from(len) <= left * BUILT_PER_MILLISECOND
    };
    let image = if order.policy.dry_run {
        store.find(original, path, Some(bias))?
    } else if in_time() {
        let process = &ProcDir::this_process().map_err(Failure::unreadable)?;
        let bias = Some(bias);
        Some(store.find_or_build(&BuildOrder { original, path, bias, process, deadline })?)
    } else {
        let found = store.find(original, path, Some(bias))?;
        if found.is_none() {
            store.may_build(original, path)?;
            let detail = format!("building an image of {} takes longer", path.shown());
            return Err(Failure::new(SkipReason::NotStored, detail));
        }
        found
    };
    let Some(image) = image else { return Ok(None) };
    found.push(Stored { file: vma.file, bias, image });
    Ok(found.last())
}

/// Returns the image of these spans of a text.
///
/// # Errors
/// `store_refused`: the store has no image of the spans.
pub(super) fn image(stored: &[Stored], vma: &Vma, spans: &[Span]) -> Result<Image, Failure> {
    let whole = |stored: &Stored| {
        let parts = spans.iter().map(|span| stored.image.part(span, stored.bias));
        let staged = parts.collect::<Result<Vec<_>, _>>().ok()?;
        Some((stored.image.file.try_clone().ok()?, staged))
    };
    let of_it = stored.iter().filter(|stored| stored.file == vma.file);
    let (file, staged) = of_it
        .filter_map(whole)
        .next()
        .ok_or_else(|| Failure::new(FailureKind::StoreRefused, "the image has no such text"))?;
    let filled = Filled { staged, ..Filled::default() };
    Ok(Image { file, filled, spans: spans.to_vec() })
}
