//! Lays an ELF file out again, so that its text lies at offsets congruent with its addresses modulo the huge page. Images of
//! the store have this layout.
//!
//! If text fits at its own offsets, and as many huge pages hold it there, the image has *all of the file's offsets*
//! (`own_offsets`), its headers and its build ID. A reader of maps that takes the image for the file is right then. Otherwise
//! every LOAD segment moves:
//!
//! ```text
//! image offset  0         front                                       tail
//!               | headers | text ··· hole ··· call frames | hole | symbols | sections | section headers |
//!                 notes     image offset = vaddr + shift
//! ```
//!
//! The shift is a multiple of the huge page plus the load bias, modulo the huge page, of the processes that the image
//! fits. A file has one image, for the load bias that many starts have:
//!
//! - a program at fixed addresses: 0;
//! - a program that a launch moves: [the best one](crate::rebase::launch_bias);
//! - a shared object: where the kernel maps large files, from a multiple of the huge page on.
//!
//! The file and program headers, and the notes that hold the build ID, must differ from the original. They go to a
//! front of their own, so each byte of text is the original's, even if the original's headers lie inside the text. From
//! other LOAD segments the image holds the parts that tools read from files (`kept`), and holes instead of the
//! program's data. Bytes that no LOAD segment maps (symbols, debug sections) follow behind, and the section headers
//! come last. So `readelf`, `nm`, `perf` and `gdb` read the image as they read the original.
//!
//! A huge page of the image that holds text, and nothing that may be written to, can be mapped as a whole: where no
//! segment maps it, it holds filler that traps.
//!
//! The result is a description: which ranges to copy, which bytes to write. Nothing in the file is
//! trusted; every sum is checked.

mod headers;
mod kept;
mod notes;
mod own_offsets;
mod place;
mod segments;
mod tail;

use std::ops::Range;

use object::elf::{FileHeader64, ProgramHeader64, ProgramType};
use object::endian::LittleEndian;
use object::pod;
use object::read::ReadRef;
use object::read::elf::FileHeader;
use thiserror::Error;

use crate::addr::{AddrRange, Pages};
use crate::elf::{ElfError, ElfHeader};
use crate::rebase::launch_bias;
use own_offsets::OwnOffsets;
use place::Place;
use segments::To;

/// The version of the layout rules. This version does not use images of another version.
///
/// 2: filler beside text. 3: for launches, the load bias at which most text lies in whole huge pages. 4: shared objects for
/// where the kernel maps them; no data. 5: the file's own offsets, where they fit.
pub const VERSION: u32 = 5;

/// Why a file cannot have an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LayoutError {
    /// No ELF file of this machine.
    #[error("{0}")]
    Elf(#[from] ElfError),
    /// Headers that contradict themselves, or point past the end of the file.
    #[error("malformed ELF headers: {0}")]
    Malformed(&'static str),
    /// Headers that may be sound, but that no image can be made from.
    #[error("odd ELF file: {0}")]
    Odd(&'static str),
}

/// A range of the original that goes into the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Offset in the original, in bytes.
    pub from: u64,
    /// Offset in the image, in bytes.
    pub to: u64,
    /// Length in bytes; never 0.
    pub len: u64,
}

/// Bytes of the image that do not come from the original.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Offset in the image, in bytes.
    pub at: u64,
    /// The bytes; never empty.
    pub bytes: Vec<u8>,
}

/// How a file's image is made, and where its text lies in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Length of the image in bytes. A range that neither [`copies`](Self::copies) nor
    /// [`writes`](Self::writes) name is a hole.
    pub len: u64,
    /// The copied ranges, by ascending image offset; disjoint from one another and from the writes.
    pub copies: Vec<Copied>,
    /// The written ranges, by ascending image offset; disjoint.
    pub writes: Vec<Written>,
    /// The original's build ID.
    pub build_id: Option<Vec<u8>>,
    pages: Pages,
    /// The load bias, modulo the PMD size, of the processes that the image fits.
    bias: u64,
    /// Image offset minus vaddr, wrapping.
    shift: u64,
    /// Vaddrs of text, whole base pages, ascending and disjoint.
    texts: Vec<AddrRange>,
    /// Image offsets of huge pages that hold text and nothing that may be written to, joined where they
    /// adjoin; ascending.
    huge: Vec<Range<u64>>,
}

/// Returns whether a program header is of this kind (`p_type`, elf(5)).
fn is(header: &ProgramHeader64<LittleEndian>, kind: ProgramType) -> bool {
    header.p_type.get(LittleEndian) == kind
}

impl Layout {
    /// Reads the headers of a whole file and lays it out for these page sizes.
    ///
    /// # Errors
    /// [`LayoutError`]: the file has no image.
    pub fn read<'data, R: ReadRef<'data>>(file: R, pages: Pages) -> Result<Self, LayoutError> {
        let past_end = |()| LayoutError::Malformed("headers past the end of the file");
        let file_len = file.len().map_err(past_end)?;
        let prefix =
            file.read_bytes_at(0, file_len.min(ElfHeader::LEN as u64)).map_err(past_end)?;
        let facts = ElfHeader::parse(prefix)?;
        let header = FileHeader64::<LittleEndian>::parse(file);
        let mut header = *header.map_err(object_error("the file header"))?;
        let programs =
            file.read_bytes_at(facts.table_offset, facts.table_len as u64).map_err(past_end)?;
        let count = facts.table_len / size_of::<ProgramHeader64<LittleEndian>>();
        let (programs, _) = pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(programs, count)
            .map_err(past_end)?;

        let table_end = (ElfHeader::LEN + facts.table_len) as u64;
        let sections = tail::read(&header, file)?;
        let notes = notes::gather(programs, &sections, file, table_end)?;
        let front = notes
            .end
            .checked_next_multiple_of(pages.pmd.bytes())
            .ok_or(LayoutError::Odd("no room for the headers"))?;
        let behind = |bias| To::Behind { front, bias };
        let mut segments = segments::place(programs, file_len, behind(0), pages)?;
        let bias = match place::of(&facts, programs, file) {
            Place::Fixed => 0,
            Place::Moved => launch_bias(&segments.texts, pages.pmd),
            Place::Kernels(bias) => bias & (pages.pmd.bytes() - pages.base.bytes()),
        };
        if bias != 0 {
            segments = segments::place(programs, file_len, behind(bias), pages)?;
        }
        let own = OwnOffsets { header: &header, programs, sections: &sections, file, pages, bias };
        if let Some(own) = own.layout(&segments.huge, notes.build_id.clone()) {
            return Ok(own);
        }
        let tail = tail::place(&sections, file_len, &segments, &notes)?;

        let mut copies = kept::kept(&header, &sections, &tail.sections, file, &segments);
        header.e_phoff.set(LittleEndian, ElfHeader::LEN as u64);
        header.e_shoff.set(LittleEndian, tail.table_offset);
        let programs = headers::headers(&segments, programs, &notes, &tail);
        let mut head = pod::bytes_of(&header).to_vec();
        head.extend(pod::bytes_of_slice(&programs));
        let mut writes = vec![Written { at: 0, bytes: head }];
        writes.extend(notes.writes());
        let table = pod::bytes_of_slice(&tail.sections).to_vec();
        if !table.is_empty() {
            writes.push(Written { at: tail.table_offset, bytes: table });
        }
        copies.extend(tail.copies);
        let copied = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.len));
        // A file may map the same bytes many times; its image must not hold each of them.
        if copied > file_len.saturating_mul(2) {
            return Err(LayoutError::Odd("segments share too many bytes"));
        }
        Ok(Self {
            len: tail.end,
            copies,
            writes,
            build_id: notes.build_id,
            pages,
            bias,
            shift: segments.shift,
            texts: segments.texts,
            huge: segments.huge,
        })
    }

    /// Returns the image offset, in bytes, of these vaddrs (run-time addresses less the load bias). Returns `None`
    /// unless all of them are text of one segment, or lie in huge pages that hold text and nothing that may be written
    /// to.
    pub fn offset_of(&self, vaddrs: AddrRange) -> Option<u64> {
        let start = vaddrs.start().get().wrapping_add(self.shift);
        let end = start.checked_add(vaddrs.len())?;
        let covered = self.texts.iter().any(|text| text.covers(vaddrs))
            || self.huge.iter().any(|huge| huge.start <= start && end <= huge.end);
        (covered && !vaddrs.is_empty()).then_some(start)
    }

    /// Returns the vaddrs of text, rounded out to base pages as the kernel maps them.
    pub fn texts(&self) -> &[AddrRange] {
        &self.texts
    }

    /// Returns whether the huge page of the image at `offset` holds text and nothing that may be written to. Such pages
    /// must be huge. `offset` is a multiple of the PMD size.
    pub fn is_text(&self, offset: u64) -> bool {
        self.huge.iter().any(|huge| huge.contains(&offset))
    }

    /// Returns where filler belongs in a huge page of text, in whole base pages. It belongs between two ranges that are
    /// copied or written: the first ends at `from`, the second begins at `to`. The rest of the page in which a segment
    /// ends is zeros, as the kernel maps it.
    pub fn filler(&self, from: u64, to: u64) -> Option<Range<u64>> {
        let start = from.checked_next_multiple_of(self.pages.base.bytes())?;
        (start < to).then_some(start..to)
    }

    /// Returns whether the image fits a process with this load bias: its text can be mapped there by PMD entries.
    pub fn fits(&self, load_bias: u64) -> bool {
        load_bias.wrapping_sub(self.bias) & (self.pages.pmd.bytes() - 1) == 0
    }

    /// Returns the page sizes that the layout was made for.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns how many bytes of memory the image takes: its text's huge pages, and base pages.
    pub fn memory(&self) -> u64 {
        let base = self.pages.base.bytes();
        let copied = self.copies.iter().map(|copy| (copy.to, copy.len));
        let written = self.writes.iter().map(|write| (write.at, write.bytes.len() as u64));
        // A huge page counts as a whole, so add its bytes that are not copied from any segment.
        let beside = segments::total(&self.huge)
            .saturating_sub(segments::copied_in(&self.copies, &self.huge));
        copied
            .chain(written)
            .map(|(at, len)| (at % base).saturating_add(len).next_multiple_of(base))
            .fold(beside, u64::saturating_add)
    }
}

/// Turns the ELF reader's error into ours.
fn object_error(what: &'static str) -> impl FnOnce(object::read::Error) -> LayoutError {
    move |_unstructured| LayoutError::Malformed(what)
}
