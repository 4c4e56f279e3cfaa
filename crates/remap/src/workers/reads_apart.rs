//! The requests that a reader answers.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use tiexec_core::addr::Pages;
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::Span;
use tiexec_sys::reopen::PathFile;
use tiexec_tracee::Failure;

use crate::file_facts::FileFacts;
use crate::image::Memory;
use crate::images::Image;
use crate::pagecache;

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
        deadline: Instant,
    ) -> Result<pagecache::Prepared, Failure>;

    /// Returns an image of `spans`, made now or before.
    ///
    /// # Errors
    /// As [`Images::get`](crate::images::Images::get) and [`headroom::charged_to`](crate::headroom::charged_to); `helper_died`.
    fn make_image(
        &self,
        id: u32,
        parts: Option<&Parts>,
        name: &str,
        spans: &[Span],
        memory: Memory<'_>,
        deadline: Instant,
    ) -> Result<Image, Failure>;

    /// Sends an open file over `socket`.
    ///
    /// # Errors
    /// `switch_failed`; `helper_died`.
    fn send_over(&self, id: u32, socket: BorrowedFd<'_>) -> Result<(), Failure>;
}
