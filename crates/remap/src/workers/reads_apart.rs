//! The requests that a reader answers.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tiexec_core::addr::Pages;
use tiexec_core::elf::LoadSegment;
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::{Backing, Span};
use tiexec_core::proc::maps::FileId;
use tiexec_sys::reopen::PathFile;
use tiexec_tracee::Failure;

use crate::file_facts::FileFacts;
use crate::image::ImageMemory;
use crate::images::{Content, Image};
use crate::pagecache::{self, Small};

/// The requests to the process that opens the files of a process of other credentials. This is a trait, so that
/// libtiexec, which starts no reader, does not contain the reader's code.
pub(crate) trait ReadsApart: Debug + Send + Sync {
    /// Returns whether the reader has answered every request so far.
    fn answers(&self) -> bool;

    /// Opens a file in the reader. Returns its number there.
    ///
    /// # Errors
    /// `file_gone`: the process's user may not read it; `helper_died`.
    fn open(&self, file: &PathFile) -> Result<(u32, FileFacts), Failure>;

    /// As pread(2).
    ///
    /// # Errors
    /// As pread(2); `Other` if there was no answer.
    fn read_at(&self, id: u32, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// As [`pagecache::prepare`].
    ///
    /// # Errors
    /// As [`pagecache::prepare`] and [`headroom::charged_to`](crate::headroom::charged_to); `helper_died`.
    fn prepare_cache(
        &self,
        id: u32,
        chunks: &[Range<u64>],
        pages: Pages,
        small: Small,
        deadline: Instant,
    ) -> Result<pagecache::Prepared, Failure>;

    /// Returns the image, made now or before. maps will show it by the name of the file at `path`.
    ///
    /// # Errors
    /// As [`Images::get`](crate::images::Images::get) and [`headroom::charged_to`](crate::headroom::charged_to); `helper_died`.
    fn make_image(
        &self,
        id: u32,
        wanted: &Wanted,
        path: &str,
        deadline: Instant,
    ) -> Result<Image, Failure>;

    /// Sends an open file over `socket`.
    ///
    /// # Errors
    /// `switch_failed`; `helper_died`.
    fn send_over(&self, id: u32, socket: BorrowedFd<'_>) -> Result<(), Failure>;
}

/// A file that is open in a reader.
#[derive(Debug)]
pub(crate) struct OpenApart {
    /// The reader.
    pub reader: Arc<dyn ReadsApart>,
    /// The file's number there.
    pub id: u32,
    /// The kernel's facts about it when it was opened.
    pub facts: FileFacts,
    /// Its LOAD segments, once they were read.
    pub loads: OnceLock<Vec<LoadSegment>>,
    /// The parts of it that were compared with copies, and are the same.
    same: Mutex<Vec<SameBytes>>,
    /// The images of it that the reader has made.
    images: Mutex<Vec<(Content, Arc<Image>)>>,
}

/// An image that a process needs. The processes of one program need images with the same [`Content`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The spans that it holds, by their addresses in the process.
    pub spans: Vec<Span>,
    /// The parts of the file from which the bytes come.
    pub parts: Option<Parts>,
    /// Where its memory comes from.
    pub backing: Backing,
    /// The sizes of pages.
    pub pages: Pages,
    /// The NUMA nodes on which its huge pages alternate.
    pub nodes: Vec<u32>,
}

/// Bytes of a copy in a memory file that are those of another file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SameBytes {
    /// The memory file. The kernel does not use its inode number again soon.
    pub copy: FileId,
    /// The first of these bytes in the memory file.
    pub at: u64,
    /// Their number.
    pub len: u64,
    /// The first of them in the other file.
    pub file_offset: u64,
}

impl OpenApart {
    /// Has the reader open the file.
    ///
    /// # Errors
    /// `file_gone`: the process's user may not read it; `helper_died`.
    pub(crate) fn open(reader: &Arc<dyn ReadsApart>, file: &PathFile) -> Result<Self, Failure> {
        let (id, facts) = reader.open(file)?;
        let (loads, same, images) = Default::default();
        Ok(Self { reader: Arc::clone(reader), id, facts, loads, same, images })
    }

    /// Returns whether a copy was found to have these bytes, in another process of the same credentials.
    pub(crate) fn is_same(&self, bytes: &SameBytes) -> bool {
        lock(&self.same).contains(bytes)
    }

    /// Notes that a copy has these bytes.
    pub(crate) fn note_same(&self, bytes: SameBytes) {
        lock(&self.same).push(bytes);
    }

    /// Returns the image. The reader makes it once for all processes that need the same content, if there is `room` for it.
    ///
    /// # Errors
    /// As [`ReadsApart::make_image`], and those of `room`.
    pub(crate) fn image(
        &self,
        wanted: Wanted,
        path: &str,
        room: impl FnOnce() -> Result<(), Failure>,
        deadline: Instant,
    ) -> Result<Arc<Image>, Failure> {
        let mut images = lock(&self.images);
        let Wanted { spans, parts, backing, pages, nodes } = &wanted;
        let memory = ImageMemory { backing: *backing, pages: *pages, nodes };
        let content = Content::of(spans, parts.as_ref(), memory);
        if let Some((_, image)) = images.iter().find(|(made, _)| *made == content) {
            return Ok(Arc::clone(image));
        }
        room()?;
        let image = Arc::new(self.reader.make_image(self.id, &wanted, path, deadline)?);
        images.push((content, Arc::clone(&image)));
        Ok(image)
    }
}

/// Locks a list, which is valid between any two statements.
pub(super) fn lock<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
