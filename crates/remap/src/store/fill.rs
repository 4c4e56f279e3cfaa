//! Fills an image: copies its content, and hashes it on the way.
//!
//! A part of PMD size that holds text and nothing writable becomes one huge page before anything is written to it.
//! All other parts stay on base pages. Several threads take parts in turn.
//!
//! All memory is requested by calls that can fail, because touching a full tmpfs would raise SIGBUS.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{Hash, Hasher};
use tiexec_core::addr::mib;
use tiexec_core::relaid::{Copied, Layout, Written};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::SysError;
use tiexec_sys::memory::FillMapping;
use tiexec_tracee::arch;

use tiexec_tracee::Failure;

/// The most threads that fill one image.
const MAX_THREADS: usize = 4;

/// Bytes that are copied and hashed together, so that they stay in a core's own cache in between.
const BLOCK: usize = 256 << 10;

/// Why filling stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The tmpfs is full.
    Full,
    /// Any other failure.
    Failed(Failure),
}

/// Fills an empty image from its original until `deadline`, and returns its hash.
pub(super) fn fill(
    image: &File,
    original: &File,
    layout: &Layout,
    deadline: Instant,
) -> Result<Hash, Stop> {
    rustix::fs::ftruncate(image, layout.len).map_err(stopped("ftruncate"))?;
    run(Some(image), original, layout, deadline)
}

/// Returns the hash that an image of the original would have, and makes none.
pub(super) fn hash_of(
    original: &File,
    layout: &Layout,
    deadline: Instant,
) -> Result<Hash, Failure> {
    match run(None, original, layout, deadline) {
        Ok(hash) => Ok(hash),
        Err(Stop::Failed(failure)) => Err(failure),
        Err(Stop::Full) => Err(Failure::new(FailureKind::StoreFull, "no image is written")),
    }
}

fn run(
    image: Option<&File>,
    original: &File,
    layout: &Layout,
    deadline: Instant,
) -> Result<Hash, Stop> {
    let filler = Filler {
        image,
        original,
        layout,
        deadline,
        next: AtomicU64::new(0),
        done: Mutex::new(Ok(Vec::new())),
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 1..threads.min(MAX_THREADS) {
            // If no other thread can start, this one does all the work.
            let _refused = std::thread::Builder::new().spawn_scoped(scope, || filler.work());
        }
        filler.work();
    });
    let done = filler.done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut parts = done?;
    parts.sort_unstable_by_key(|&(index, _)| index);
    let parts: Vec<ChainingValue> = parts.into_iter().map(|(_, hash)| hash).collect();
    root(&parts).ok_or_else(|| {
        Stop::Failed(Failure::new(SkipReason::OddFile, "it has no text behind its headers"))
    })
}

struct Filler<'a> {
    /// `None` if only the hash is wanted.
    image: Option<&'a File>,
    original: &'a File,
    layout: &'a Layout,
    deadline: Instant,
    /// The next part that no thread has taken.
    next: AtomicU64,
    done: Mutex<Result<Vec<(u64, ChainingValue)>, Stop>>,
}

impl Filler<'_> {
    fn work(&self) {
        let mut buffer = vec![0; BLOCK];
        let part = self.layout.pages().pmd.bytes();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(start) = index.checked_mul(part).filter(|&start| start < self.layout.len)
            else {
                return;
            };
            let end = start.saturating_add(part).min(self.layout.len);
            let hash = self.part(start, end, &mut buffer);
            let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match (&mut *done, hash) {
                (Ok(done), Ok(hash)) => done.push((index, hash)),
                (Ok(_), Err(stop)) => {
                    *done = Err(stop);
                    return;
                }
                (Err(_), _) => return,
            }
        }
    }

    /// Fills the part of the image from `start` to `end`.
    fn part(&self, start: u64, end: u64, buffer: &mut [u8]) -> Result<ChainingValue, Stop> {
        if Instant::now() >= self.deadline {
            let detail =
                format!("{} of {} MiB were copied in time", mib(start), mib(self.layout.len));
            return Err(Stop::Failed(Failure::new(FailureKind::Deadline, detail)));
        }
        if let Some(image) = self.image.filter(|_| self.layout.is_text(start)) {
            self.make_huge(image, start)?;
        }
        let mut hash = Hasher::new();
        hash.set_input_offset(start);
        let mut at = start;
        for piece in pieces(self.layout, start, end) {
            self.between(at, piece.at(), start, &mut hash, buffer)?;
            at = piece.at() + piece.len();
            match piece {
                Piece::Written { at, bytes } => {
                    hash.update(bytes);
                    self.write(bytes, at)?;
                }
                Piece::Copied(copy) => self.copy(copy, &mut hash, buffer)?,
            }
        }
        self.between(at, end, start, &mut hash, buffer)?;
        Ok(hash.finalize_non_root())
    }

    /// Fills the space between two pieces of the part that begins at `start`: with filler beside text, otherwise
    /// with a hole.
    fn between(
        &self,
        from: u64,
        to: u64,
        start: u64,
        hash: &mut Hasher,
        buffer: &mut [u8],
    ) -> Result<(), Stop> {
        let filler = self.layout.filler(from, to).filter(|_| self.layout.is_text(start));
        let Some(filler) = filler else {
            update_zeros(hash, to - from);
            return Ok(());
        };
        update_zeros(hash, filler.start - from);
        let mut at = filler.start;
        while at < filler.end {
            let len =
                usize::try_from(filler.end - at).map_or(buffer.len(), |len| len.min(buffer.len()));
            let block = &mut buffer[..len];
            arch::fill_with_traps(block);
            hash.update(block);
            self.write(block, at)?;
            at += len as u64;
        }
        Ok(())
    }

    fn copy(&self, copy: Copied, hash: &mut Hasher, buffer: &mut [u8]) -> Result<(), Stop> {
        let mut into = 0;
        while into < copy.len {
            let len =
                usize::try_from(copy.len - into).map_or(buffer.len(), |len| len.min(buffer.len()));
            let block = &mut buffer[..len];
            self.original.read_exact_at(block, copy.from + into).map_err(|error| {
                let at = format!("reading at {:#x}", copy.from + into);
                Stop::Failed(Failure::of(FailureKind::ReadFailed)(error).about(at))
            })?;
            hash.update(block);
            self.write(block, copy.to + into)?;
            into += len as u64;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), Stop> {
        self.image.map_or(Ok(()), |image| image.write_all_at(bytes, at).map_err(unwritten))
    }

    /// Makes the part of the image that begins at `start` one huge page of zeros.
    fn make_huge(&self, image: &File, start: u64) -> Result<(), Stop> {
        let pages = self.layout.pages();
        let len = usize::try_from(pages.pmd.bytes()).unwrap_or(usize::MAX);
        let base = usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX);
        let mapping = FillMapping::at(image, start, len, pages.pmd)
            .map_err(|error| Stop::Failed(Failure::of(FailureKind::AddressSpace)(error)))?;
        mapping.advise_huge();
        mapping.make_huge(0, len, len, base).map_err(|error| self.refused(image, error))
    }

    /// Tells a full tmpfs from a machine without a free huge page, because the kernel returns the same error for
    /// both.
    fn refused(&self, image: &File, error: SysError) -> Stop {
        let left = rustix::fs::fstatvfs(image).map_or(u64::MAX, |fs| fs.f_bfree * fs.f_frsize);
        if left < self.layout.pages().pmd.bytes() {
            return Stop::Full;
        }
        Stop::Failed(Failure::of(FailureKind::NoHugePage)(error))
    }
}

fn unwritten(error: std::io::Error) -> Stop {
    use rustix::io::Errno as E;
    match rustix::io::Errno::from_io_error(&error) {
        Some(E::NOSPC | E::DQUOT) => Stop::Full,
        _ => Stop::Failed(Failure::of(FailureKind::StoreFull)(error).about("writing")),
    }
}

fn stopped(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Stop {
    move |errno| Stop::Failed(Failure::of(FailureKind::StoreFull)(SysError::of(call)(errno)))
}

/// The content of the image in one part.
enum Piece<'a> {
    Copied(Copied),
    Written { at: u64, bytes: &'a [u8] },
}

impl Piece<'_> {
    fn at(&self) -> u64 {
        match self {
            Self::Copied(copy) => copy.to,
            Self::Written { at, .. } => *at,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Copied(copy) => copy.len,
            Self::Written { bytes, .. } => bytes.len() as u64,
        }
    }
}

/// Returns the pieces of the layout within `start..end`, by ascending image offset.
fn pieces(layout: &Layout, start: u64, end: u64) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for copy in &layout.copies {
        let (first, last) = (copy.to.max(start), (copy.to + copy.len).min(end));
        if first < last {
            let from = copy.from + (first - copy.to);
            pieces.push(Piece::Copied(Copied { from, to: first, len: last - first }));
        }
    }
    for Written { at, bytes } in &layout.writes {
        let (first, last) = ((*at).max(start), (at + bytes.len() as u64).min(end));
        let into = |position: u64| usize::try_from(position - at).unwrap_or(bytes.len());
        if first < last
            && let Some(bytes) = bytes.get(into(first)..into(last))
        {
            pieces.push(Piece::Written { at: first, bytes });
        }
    }
    pieces.sort_by_key(Piece::at);
    pieces
}

fn update_zeros(hash: &mut Hasher, len: u64) {
    let zeros = [0; 4096];
    let mut left = len;
    while left > 0 {
        let part = usize::try_from(left).map_or(zeros.len(), |left| left.min(zeros.len()));
        hash.update(&zeros[..part]);
        left -= part as u64;
    }
}

/// Joins the hashes of an image's parts to the hash of the image; `None` with fewer than two parts. All parts but
/// the last have one length, a power of two, so each is a subtree of BLAKE3's own.
fn root(parts: &[ChainingValue]) -> Option<Hash> {
    if parts.len() < 2 {
        return None;
    }
    let (left, right) = parts.split_at(left_of(parts.len()));
    Some(merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash))
}

fn subtree(parts: &[ChainingValue]) -> ChainingValue {
    match parts {
        [one] => *one,
        _ => {
            let (left, right) = parts.split_at(left_of(parts.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Returns the largest power of two below `count`, which is 2 or more.
fn left_of(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// Reads a whole image and returns its hash.
///
/// # Errors
/// The error of read(2).
pub(super) fn hash_again(image: &File) -> std::io::Result<Hash> {
    let len = image.metadata()?.len();
    let mut buffer = vec![0; BLOCK];
    let mut hash = Hasher::new();
    let mut at = 0;
    while at < len {
        let part = usize::try_from(len - at).map_or(BLOCK, |left| left.min(BLOCK));
        image.read_exact_at(&mut buffer[..part], at)?;
        hash.update(&buffer[..part]);
        at += part as u64;
    }
    Ok(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_the_parts_is_that_of_the_whole() {
        const PART: usize = 4096;
        for len in
            [PART + 1, 2 * PART, 3 * PART - 7, 4 * PART, 5 * PART + 1, 8 * PART, 23 * PART + 99]
        {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let parts: Vec<ChainingValue> = bytes
                .chunks(PART)
                .zip(0u64..)
                .map(|(part, index)| {
                    let mut hash = Hasher::new();
                    hash.set_input_offset(index * PART as u64).update(part).finalize_non_root()
                })
                .collect();
            assert_eq!(root(&parts), Some(blake3::hash(&bytes)), "{len}");
        }
        assert_eq!(root(&[]), None);
    }
}
