//! Images for running processes: TiExec makes each one in its own process, once for all targets that need the same.

use std::cell::OnceCell;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::{Backing, Span};
use tiexec_core::skip::FailureKind;
use tiexec_sys::SysError;
use tiexec_sys::address_space::Memory;
use tiexec_tracee::Failure;

use crate::file_state::FileState;
use crate::image::{self, Filled, ImageMemory, Source};
use crate::store::Store;

/// The text of some spans of one file, in huge pages.
#[derive(Debug)]
pub(crate) struct Image {
    /// A sealed memfd, or a file of the store.
    pub file: File,
    /// The place of each span in it. The addresses are those of the process for which it was made.
    pub filled: Filled,
    /// The spans in that process.
    pub spans: Vec<Span>,
}

/// Identifies the content of an image: the file and its state, and what the image has of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Key {
    state: FileState,
    content: Content,
}

/// Identifies what an image has of its file, whatever the addresses are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    contents: Vec<(u64, u64, u64)>,
    spans: Vec<u64>,
    backing: Backing,
    huge: PageSize,
    nodes: Vec<u32>,
}

impl Content {
    /// Returns the content of an image of these spans.
    pub(crate) fn of(spans: &[Span], parts: Option<&Parts>, memory: ImageMemory<'_>) -> Self {
        Self {
            contents: image::contents(spans, parts),
            spans: spans.iter().map(|span| span.range.len()).collect(),
            backing: memory.backing,
            huge: memory.pages.pmd,
            nodes: memory.nodes.to_vec(),
        }
    }
}

/// The available images: those made here, by their key, and the store.
///
/// An image made here is kept for others while a process lives that has received it. Its memory is freed with the
/// last process that maps it.
#[derive(Debug, Default)]
pub struct Images {
    made: Vec<Made>,
    bytes_copied: u64,
    store: OnceCell<Result<Option<Store>, Failure>>,
}

/// An image that was made here.
#[derive(Debug)]
struct Made {
    key: Key,
    image: Arc<Image>,
    /// The memory of the processes that received it. Empty if they are not known, as in a reader, which ends soon.
    users: Vec<Memory>,
}

/// The most processes that are recorded as users of one image; each takes a descriptor.
const MAX_USERS: usize = 8;

impl Made {
    fn give_to(&mut self, user: Option<&Memory>) -> Arc<Image> {
        self.users.retain(Memory::is_used);
        if self.users.len() < MAX_USERS {
            self.users.extend(user.cloned());
        }
        Arc::clone(&self.image)
    }

    fn is_used(&self) -> bool {
        self.users.is_empty() || self.users.iter().any(Memory::is_used)
    }
}

impl Images {
    /// Returns how many bytes were copied so far into all images.
    pub(crate) fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    /// Returns whether images were made here that a process may use.
    pub fn has_copies(&self) -> bool {
        !self.made.is_empty()
    }

    /// Lets go of the images whose users have all ended.
    pub fn forget_unused(&mut self) {
        self.made.retain(Made::is_used);
    }

    /// Returns the store that this user can use, if there is one.
    ///
    /// # Errors
    /// `store_refused`.
    pub(crate) fn store(&self, pages: Pages) -> Result<Option<&Store>, Failure> {
        let store = self.store.get_or_init(|| Store::open_for_this_user(pages));
        store.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// Returns the image of `spans` of a file for the process with the memory `user`. Makes the image if it does
    /// not exist; maps will show it by the name of the file at `path`.
    ///
    /// # Errors
    /// No memory, no huge page, no descriptor; `read_failed`: also if somebody writes to the file meanwhile. Nothing is
    /// left behind.
    pub(crate) fn get(
        &mut self,
        source: Source<'_>,
        path: &str,
        spans: &[Span],
        memory: ImageMemory<'_>,
        user: Option<&Memory>,
        deadline: Instant,
    ) -> Result<Arc<Image>, Failure> {
        let state_now =
            || FileState::of_open(source.file).map_err(Failure::of(FailureKind::ReadFailed));
        let state = state_now()?;
        let key = Key { state, content: Content::of(spans, source.parts, memory) };
        self.forget_unused();
        if let Some(made) = self.made.iter_mut().find(|made| made.key == key) {
            return Ok(made.give_to(user));
        }
        let memfd = make_memfd(path, memory)?;
        let filled = image::fill(&memfd, source, spans, memory, deadline)?;
        if !state_now()?.has_the_bytes_of(&state) {
            let what = "somebody wrote to the file while it was copied";
            return Err(Failure::new(FailureKind::ReadFailed, what));
        }
        let image = Arc::new(Image { file: memfd, filled, spans: spans.to_vec() });
        self.bytes_copied += image.filled.copied;
        let mut made = Made { key, image, users: Vec::new() };
        let image = made.give_to(user);
        self.made.push(made);
        Ok(image)
    }
}

fn make_memfd(path: &str, memory: ImageMemory<'_>) -> Result<File, Failure> {
    let name = image::memfd_name(path);
    let ImageMemory { backing, pages, .. } = memory;
    let flags = MemfdFlags::from_bits_retain(image::memfd_flags(backing, pages.pmd));
    let of_pool = backing == Backing::Hugetlb;
    let reason = if of_pool { FailureKind::HugetlbPool } else { FailureKind::NoMemfd };
    memfd(name.as_bytes(), flags).map_err(Failure::of(reason))
}

/// `memfd_create` — makes an empty memfd. Its mode has no x bits if the kernel supports that.
///
/// # Errors
/// As memfd_create(2).
pub(super) fn memfd(name: &[u8], flags: MemfdFlags) -> Result<File, SysError> {
    // Before Linux 6.3 there is no MFD_NOEXEC_SEAL.
    memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(name, flags))
        .map(File::from)
        .map_err(SysError::of("memfd_create"))
}
