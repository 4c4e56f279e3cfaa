//! What there is to know of a running process's text before anything is decided.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::coverage::is_ours;
use tiexec_core::plan::{Backing, RunningText};
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_core::proc::pagemap::modified_huge_pages;
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::skip::SkipReason;
use tiexec_sys::procfs::ProcDir;

use crate::failure::Failure;
use crate::pagecache;

/// Text VMAs and the files that they are of, each opened once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// In address order.
    pub texts: Vec<RunningText>,
    files: Vec<(FileId, File)>,
}

impl Texts {
    /// Reads the text VMAs among `entries`; brings what is not cached of their files into PMD-sized
    /// folios if `pagecache`, until `deadline`. `copy` is the backing for the rest.
    pub(crate) fn read(
        process: &ProcDir,
        entries: &[SmapsEntry],
        pages: Pages,
        pagecache: bool,
        copy: Option<Backing>,
        deadline: Instant,
    ) -> Self {
        let mut found = Self::default();
        for entry in entries.iter().filter(|entry| entry.vma.is_text()) {
            let mut text = RunningText {
                vma: entry.vma.clone(),
                folios: Vec::new(),
                copy,
                kept: Vec::new(),
                leave: leave(entry, pages).or_else(|| only_trace(entry, entries, pages)),
            };
            if let (None, Some(whole)) = (text.leave, entry.vma.range.align_inward(pages.pmd)) {
                text.leave = match found.look(process, &mut text, whole, pages) {
                    Ok(()) if pagecache => {
                        text.folios = found.folios(&text.vma, whole, pages, deadline);
                        None
                    }
                    Ok(()) => None,
                    Err(failure) => Some(failure.reason),
                };
            }
            found.texts.push(text);
        }
        found
    }

    /// Returns the file that a text VMA maps.
    pub(crate) fn file(&self, vma: &Vma) -> Option<&File> {
        self.files.iter().find(|(id, _)| *id == vma.file).map(|(_, file)| file)
    }

    /// Has a text's copy be of another kind.
    pub(super) fn copy_from(&mut self, vma: &Vma, backing: Backing) {
        for text in self.texts.iter_mut().filter(|text| text.vma == *vma) {
            text.copy = Some(backing);
        }
    }

    /// Opens the text's file and finds out which of its huge pages were written to.
    fn look(
        &mut self,
        process: &ProcDir,
        text: &mut RunningText,
        whole: AddrRange,
        pages: Pages,
    ) -> Result<(), Failure> {
        if self.file(&text.vma).is_none() {
            self.files.push((text.vma.file, open_mapped(process, &text.vma)?));
        }
        let words = pagemap(process, whole, pages)?;
        let modified = modified_huge_pages(whole, &words, pages);
        text.kept = modified.into_iter().map(|page| (page, SkipReason::ModifiedText)).collect();
        Ok(())
    }

    /// Returns the parts of the text's file that are in PMD-sized folios, where they can be
    /// PMD-mapped.
    fn folios(
        &self,
        vma: &Vma,
        whole: AddrRange,
        pages: Pages,
        deadline: Instant,
    ) -> Vec<Range<u64>> {
        let into = whole.start().get() - vma.range.start().get();
        let start = vma.file_offset.wrapping_add(into);
        let congruent = start & (pages.pmd.bytes() - 1) == 0;
        let Some(file) = self.file(vma).filter(|_| congruent) else { return Vec::new() };
        let Some(end) = start.checked_add(whole.len()) else { return Vec::new() };
        let prepared =
            pagecache::prepare(file, std::slice::from_ref(&(start..end)), pages, deadline);
        prepared.map(|prepared| prepared.huge).unwrap_or_default()
    }
}

/// Says why a text is to be left alone, from smaps.
fn leave(entry: &SmapsEntry, pages: Pages) -> Option<SkipReason> {
    let vma = &entry.vma;
    let whole = vma.range.align_inward(pages.pmd)?;
    if is_ours(vma)
        || entry.pmd_mapped() >= whole.len()
        || entry.kernel_page_size > pages.base.bytes()
    {
        // Huge already.
        return Some(SkipReason::NotSelected);
    }
    if entry.has_flag(*b"sl") {
        return Some(SkipReason::Sealed);
    }
    if vma.perms.write || vma.perms.shared || vma.name.starts_with(b"/memfd:") {
        return Some(SkipReason::NotSelected);
    }
    None
}

/// Leaves alone a text whose file nothing else is mapped of: with all of it in a copy, nobody could
/// tell any more what belongs there.
fn only_trace(entry: &SmapsEntry, entries: &[SmapsEntry], pages: Pages) -> Option<SkipReason> {
    let all_of_it = entry.vma.range.align_inward(pages.pmd) == Some(entry.vma.range);
    let others = entries.iter().filter(|other| other.vma.file == entry.vma.file).count() > 1;
    (all_of_it && !others).then_some(SkipReason::NotSelected)
}

/// Opens the file that a VMA maps: by the mapping itself, which takes CAP_CHECKPOINT_RESTORE or more,
/// otherwise by its path as the process sees it, if that is still the same file.
///
/// # Errors
/// `file_gone`.
pub(crate) fn open_mapped(process: &ProcDir, vma: &Vma) -> Result<File, Failure> {
    let range = vma.range;
    let link = format!("map_files/{:x}-{:x}", range.start().get(), range.end().get());
    let by_mapping = process.open_file(&link, false);
    if let Ok(file) = by_mapping {
        return Ok(file);
    }
    let gone = |what: &dyn std::fmt::Display| {
        Failure::new(SkipReason::FileGone, format!("{}: {what}", vma.display_path()))
    };
    let path = vma.path().strip_prefix(b"/").ok_or_else(|| gone(&"has no path"))?;
    let path = std::str::from_utf8(path).map_err(|error| gone(&error))?;
    let file = process.open_file(&format!("root/{path}"), false).map_err(|error| gone(&error))?;
    let same = file.metadata().is_ok_and(|meta| meta.ino() == vma.file.inode);
    if same { Ok(file) } else { Err(gone(&"is another file by now")) }
}

/// Reads the process's pagemap words for `range`.
///
/// # Errors
/// `proc_unavailable`.
pub(super) fn pagemap(
    process: &ProcDir,
    range: AddrRange,
    pages: Pages,
) -> Result<Vec<u64>, Failure> {
    const WORD: u64 = 8;
    let unread = |error: &dyn std::fmt::Display| Failure::new(SkipReason::ProcUnavailable, error);
    let file = process.open_file("pagemap", false).map_err(|error| unread(&error))?;
    let at = range.start().get() / pages.base.bytes() * WORD;
    let count = range.len() / pages.base.bytes();
    let mut bytes = vec![0; usize::try_from(count * WORD).map_err(|error| unread(&error))?];
    file.read_exact_at(&mut bytes, at).map_err(|error| unread(&error))?;
    let words = bytes.chunks_exact(WORD as usize);
    Ok(words.filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect())
}
