//! Which file's image lies where in a process, also where TiExec's text stands in for a part of it.
//!
//! No record is kept of what was switched: the file's own headers say what belongs where, and what is
//! left of it in maps says which file, and at which place.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::coverage::is_ours;
use tiexec_core::parts::Parts;
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::skip::SkipReason;
use tiexec_sys::procfs::ProcDir;

use crate::failure::Failure;
use crate::program::elf_facts;

/// A file's image in a process.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The file.
    pub file: File,
    /// One of its VMAs.
    pub vma: Vma,
    /// What of it belongs where.
    pub parts: Parts,
}

/// Most other files that are looked at on either side of an area of ours: those of its own file are the
/// nearest, but for what the program mapped between them.
const FILES_BESIDE: usize = 4;

/// Returns the images that have a part where `entries[index]` is, or that are around it; the error of
/// the nearest file that could not be opened if there are none.
pub(crate) fn around(
    process: &ProcDir,
    entries: &[SmapsEntry],
    index: usize,
    pages: Pages,
) -> Result<Vec<Mapped>, Failure> {
    let range = entries[index].vma.range;
    let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    let mut why = None;
    let mut found = Vec::new();
    for vma in beside(&vmas, index) {
        let opened = open_mapped(process, vma).and_then(|file| Ok((elf_facts(&file)?.1, file)));
        let (facts, file) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                why.get_or_insert(failure);
                continue;
            }
        };
        for parts in Parts::find(&facts.loads, pages.base, &vmas, vma.file, is_ours) {
            if !parts.is_at(range) {
                continue;
            }
            if let Ok(file) = file.try_clone() {
                found.push(Mapped { file, vma: vma.clone(), parts });
            }
        }
    }
    match why {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

/// Returns a VMA of each file that is mapped near `vmas[index]`, or there, the nearest first.
fn beside(vmas: &[Vma], index: usize) -> Vec<&Vma> {
    let plain = |vma: &&Vma| {
        let special = [&b"/dev/"[..], b"/memfd:", b"/SYSV", b"anon_inode:"];
        vma.is_file_backed()
            && !is_ours(vma)
            && !vma.perms.shared
            && !special.iter().any(|start| vma.name.starts_with(start))
    };
    let below = vmas[..=index].iter().rev().filter(plain);
    let above = vmas[index + 1..].iter().filter(plain);
    let sides: [Box<dyn Iterator<Item = &Vma>>; 2] = [Box::new(below), Box::new(above)];
    let [below, above] = sides.map(|side| {
        let mut files: Vec<&Vma> = Vec::new();
        for vma in side {
            if files.iter().all(|other| other.file != vma.file) {
                if files.len() == FILES_BESIDE {
                    break;
                }
                files.push(vma);
            }
        }
        files
    });
    let mut near: Vec<&Vma> = Vec::new();
    for turn in 0..FILES_BESIDE {
        for vma in [below.get(turn), above.get(turn)].into_iter().flatten() {
            if near.iter().all(|other| other.file != vma.file) {
                near.push(vma);
            }
        }
    }
    near
}

/// Returns whether the entry is text of ours: a copy; or, by its form, page cache that was widened. (A
/// program's own text may have that form too: [`is_widened`] tells by its headers.)
pub(crate) fn may_be_ours(entry: &SmapsEntry, pages: Pages) -> bool {
    let vma = &entry.vma;
    vma.is_text() && (is_ours(vma) || has_widened_form(vma, pages) && entry.has_flag(*b"hg"))
}

/// Returns whether a mapping has the form of widened page cache, by its line in maps.
pub fn has_widened_form(vma: &Vma, pages: Pages) -> bool {
    vma.is_text()
        && !vma.perms.write
        && !vma.perms.shared
        && vma.range.align_inward(pages.pmd) == Some(vma.range)
        && vma.file_offset & (pages.pmd.bytes() - 1) == 0
}

/// Returns whether a mapping of the file itself reaches beyond its text.
pub(crate) fn is_widened(range: AddrRange, parts: &Parts) -> bool {
    parts.text_bytes(range) < range.len()
}

/// Returns the text that the headers of their files place where text of ours is: each as its own mapping
/// would be. What cannot be told is left out.
pub fn originals(process: &ProcDir, entries: &[SmapsEntry], pages: Pages) -> Vec<Vma> {
    let mut found: Vec<Vma> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if !may_be_ours(entry, pages)
            || found.iter().any(|text| text.range.overlaps(entry.vma.range))
        {
            continue;
        }
        for Mapped { vma, parts, .. } in around(process, entries, index, pages).unwrap_or_default()
        {
            let texts = parts.texts().filter(|_| parts.is_certain()).map(|part| Vma {
                range: part.range,
                file_offset: part.file_offset,
                ..vma.clone()
            });
            found.extend(texts);
        }
    }
    found
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
