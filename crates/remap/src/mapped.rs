//! Finds where the image of each file lies in a process, also where TiExec's text has replaced a part of it.
//!
//! TiExec keeps no record of what was switched. What is left of a file in maps shows which file lies there and at
//! which place, and the file's own headers show what belongs where.

use std::collections::HashMap;
use std::rc::Rc;

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::coverage::{IMAGE_NAME_PREFIX, is_ours, moved_text};
use tiexec_core::file_ranges::{Part, Parts};
use tiexec_core::marks::Marks;
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_sys::address_space::Memory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError, areas};
use tiexec_tracee::Failure;
use tiexec_tracee::arch;

use crate::elf_file::loads;
use crate::open_mapped::open_mapped;
use crate::target_file::TargetFile;
use crate::workers::Workers;

/// The most other files that TiExec examines on either side of one of its areas. The VMAs of the area's own file are
/// the nearest, except for VMAs that the program has mapped between them.
const FILES_BESIDE: usize = 4;
/// The most VMAs of other files that are examined on either side. A program may have any number of them.
const VMAS_BESIDE: usize = 256;
/// For how many areas of a process the copy is sought that they were moved from, and the most candidates for each.
const MOVED: usize = 64;
const MOVED_FROM: usize = 8;

/// A file that a process maps.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The file.
    pub file: TargetFile,
    /// Its identity in maps.
    pub id: FileId,
    /// The parts at each place where the file is or could be, certain places first; empty if it is not an ELF file.
    pub places: Vec<Parts>,
}

/// The result of opening a file.
type Opened = Result<Rc<Mapped>, Failure>;

/// The files that a process maps, and where their parts are. Each file is opened once, when it is first needed.
pub(crate) struct Layouts<'a> {
    process: &'a ProcDir,
    workers: &'a Workers,
    pages: Pages,
    /// All VMAs, in address order.
    vmas: &'a [Vma],
    /// The VMAs of files that could be a program's, ascending.
    plain: Vec<&'a Vma>,
    opened: HashMap<FileId, Opened>,
    moved: usize,
}

impl<'a> Layouts<'a> {
    /// Takes `vmas`, which are all VMAs of a process in address order.
    pub(crate) fn new(
        process: &'a ProcDir,
        workers: &'a Workers,
        vmas: &'a [Vma],
        pages: Pages,
    ) -> Self {
        let plain = plain(vmas);
        Self { process, workers, pages, vmas, plain, opened: HashMap::new(), moved: 0 }
    }

    /// Returns the file that a VMA maps.
    ///
    /// # Errors
    /// `file_gone`.
    pub(crate) fn of(&mut self, vma: &Vma) -> Opened {
        if let Some(opened) = self.opened.get(&vma.file) {
            return opened.clone();
        }
        let opened = open_mapped(self.process, self.workers, vma).map(|file| {
            let places = Parts::find(&loads(&file), self.pages.base, self.vmas, vma.file, is_ours);
            Rc::new(Mapped { file, id: vma.file, places })
        });
        self.opened.insert(vma.file, opened.clone());
        opened
    }

    /// Returns the files that are mapped near `vmas[index]`, or there, the nearest first. Also returns the error of
    /// the nearest file that could not be opened.
    pub(crate) fn beside(&mut self, index: usize) -> (Vec<Rc<Mapped>>, Option<Failure>) {
        let (mut files, mut why) = (Vec::new(), None);
        for vma in beside(&self.plain, &self.vmas[index]) {
            match self.of(vma) {
                Ok(file) => files.push(file),
                Err(failure) => {
                    why.get_or_insert(failure);
                }
            }
        }
        (files, why)
    }

    /// Returns the file and what of it belongs in the place of TiExec's area at `index`, if the program has moved that area there
    /// and another area of the same copy is at its own place (mremap(2), `MREMAP_DONTUNMAP`).
    pub(crate) fn content_of_moved(&mut self, index: usize) -> Option<(Rc<Mapped>, Vec<Part>)> {
        if self.moved == MOVED {
            return None;
        }
        self.moved += 1;
        let moved = &self.vmas[index];
        let last = moved.file_offset.checked_add(moved.range.len())?;
        let has_it = |(other, vma): &(usize, &Vma)| {
            *other != index
                && vma.file == moved.file
                && vma.file_offset <= moved.file_offset
                && last <= vma.file_offset.saturating_add(vma.range.len())
        };
        let (vmas, moved) = (self.vmas, moved.clone());
        for (other, vma) in vmas.iter().enumerate().filter(has_it).take(MOVED_FROM) {
            let at = vma.range.start().checked_add(moved.file_offset - vma.file_offset)?;
            let place = AddrRange::with_len(at, moved.range.len())?;
            for file in self.beside(other).0 {
                let found = file.places.iter().find_map(|parts| {
                    let content = parts.content_of_copy(place)?;
                    parts.gaps(place).is_empty().then_some(content)
                });
                let shifted = found.and_then(|content| {
                    content.into_iter().map(|part| part.moved(at, moved.range.start())).collect()
                });
                if let Some(content) = shifted {
                    return Some((file, content));
                }
            }
        }
        None
    }

    /// Returns whether TiExec's area at `index` lies where nothing belongs: it is filler in a huge page at the edge of a
    /// text, where the text's file has nothing. Returns false in doubt. (What a dead TiExec had staged carries a mark.)
    pub(crate) fn belongs_nowhere(&mut self, memory: &Memory, index: usize) -> bool {
        let range = self.vmas[index].range;
        let (files, _) = self.beside(index);
        let places = files.iter().flat_map(|file| &file.places);
        let certain: Vec<&Parts> = places.filter(|parts| parts.is_certain()).collect();
        if certain.iter().any(|parts| parts.is_at(range)) {
            return false;
        }
        let pages = range.align_outward(self.pages.pmd);
        let beside_text = |parts: &&Parts| pages.is_some_and(|pages| parts.text_bytes(pages) > 0);
        certain.iter().any(beside_text)
            && range.len() < EDGES_IN_A_ROW * self.pages.pmd.bytes()
            && is_filler(memory, range)
    }

    /// Returns the file and its certain place if the VMA, a mapping of the file itself, was widened, or remains of
    /// a widened mapping: it is executable beyond the file's text. The program may have made such a mapping itself,
    /// unless the mapping is [marked](is_marked_widened).
    pub(crate) fn widened(&mut self, vma: &Vma) -> Option<(Rc<Mapped>, Parts)> {
        if !has_widened_form(vma, self.pages) {
            return None;
        }
        let file = self.of(vma).ok()?;
        let pages = vma.range.align_outward(self.pages.pmd)?;
        let is_wide = |parts: &&Parts| {
            let text = parts.text_bytes(vma.range);
            // A revert maps text first, so the remains of a huge page hold less text than the page did.
            let is_rest = pages != vma.range;
            parts.continues_text(vma)
                && !parts.is_closed(vma.range)
                && text < if is_rest { parts.text_bytes(pages) } else { vma.range.len() }
        };
        // A file may have thousands of places that are in doubt. They come last.
        let certain = file.places.iter().take_while(|parts| parts.is_certain());
        let parts = { certain }.find(is_wide)?.clone();
        Some((file, parts))
    }

    /// As the function [`originals`].
    fn originals(&mut self, entries: &[Area]) -> Vec<Vma> {
        let mut found: Vec<Vma> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let vma = &entry.vma;
            if found.iter().any(|text| text.range.overlaps(vma.range)) {
                continue;
            }
            if let Some(file) = moved_text(entries, index) {
                found.push(Vma { range: vma.range, ..file.clone() });
                continue;
            }
            let mut places: Vec<(Rc<Mapped>, Parts)> = Vec::new();
            if vma.is_text() && is_ours(vma) {
                for file in self.beside(index).0 {
                    let here = file.places.iter().filter(|parts| parts.is_at(vma.range));
                    places.extend(here.map(|parts| (Rc::clone(&file), parts.clone())));
                }
            } else if let Some(widened) = self.widened(vma)
                && is_marked_widened(self.process, entry)
            {
                places.push(widened);
            }
            for (file, parts) in places.iter().filter(|(_, parts)| parts.is_certain()) {
                let of_file = self.vmas.iter().find(|vma| vma.file == file.id && !is_ours(vma));
                let text = |part: &Part| {
                    let (range, file_offset) = (part.range, part.file_offset);
                    Some(Vma { range, file_offset, ..of_file?.clone() })
                };
                found.extend(parts.texts().filter_map(text));
            }
        }
        found
    }
}

/// Returns the VMAs of files that could be a program's, for [`is_found_beside`].
pub(crate) fn plain(vmas: &[Vma]) -> Vec<&Vma> {
    vmas.iter().filter(|vma| is_plain(vma)).collect()
}

/// Returns whether the file `id` is among those that a revert examines for a copy at `copy`. `plain` are the [plain] VMAs as
/// they are beside the copy, in address order.
pub(crate) fn is_found_beside(plain: &[&Vma], copy: &Vma, id: FileId) -> bool {
    beside(plain, copy).iter().any(|vma| vma.file == id)
}

/// Returns whether a VMA maps a file that could be a program's or a library's.
fn is_plain(vma: &Vma) -> bool {
    let special = [&b"/dev/"[..], b"/memfd:", b"/SYSV", b"anon_inode:"];
    vma.is_file_backed()
        && !is_ours(vma)
        && !vma.perms.shared
        && !special.iter().any(|start| vma.name.starts_with(start))
}

/// Returns one VMA of each file among `plain` that is mapped near `vma`, or there; the nearest first. `plain` is in
/// address order.
fn beside<'a>(plain: &[&'a Vma], vma: &Vma) -> Vec<&'a Vma> {
    let above = plain.partition_point(|other| other.range.start() <= vma.range.start());
    let (below, above) = plain.split_at(above);
    let sides: [Box<dyn Iterator<Item = &&Vma>>; 2] =
        [Box::new(below.iter().rev()), Box::new(above.iter())];
    let [below, above] = sides.map(|side| {
        let mut files: Vec<&Vma> = Vec::new();
        for &vma in side.take(VMAS_BESIDE) {
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

/// The most huge pages that can lie side by side and all be edges: the tail of one text and the head of the next,
/// neither of which need have more than that.
const EDGES_IN_A_ROW: u64 = 4;

/// Returns whether a mapping has, by its line in maps, the form of widened page cache, or of the remains that a
/// revert that died left of it.
fn has_widened_form(vma: &Vma, pages: Pages) -> bool {
    let Vma { range, file_offset, .. } = *vma;
    let pmd = pages.pmd.bytes();
    vma.is_text()
        && vma.is_file_backed()
        && !is_ours(vma)
        && !vma.perms.write
        && !vma.perms.shared
        && file_offset.wrapping_sub(range.start().get()) & (pmd - 1) == 0
        && (range.align_inward(pages.pmd) == Some(range) || range.len() < EDGES_IN_A_ROW * pmd)
}

/// Returns whether a launch or an attach made a mapping that [was widened](Layouts::widened): TiExec advises such
/// mappings `MADV_HUGEPAGE`. Only smaps shows the advice, but the process cannot map memory while smaps is read. It
/// is therefore read for such mappings only, and no further than to their ends, because what lies below a text is
/// small.
pub(crate) fn is_marked_widened(process: &ProcDir, area: &Area) -> bool {
    const ADVISED: [u8; 2] = *b"hg";
    if !area.flags.is_empty() {
        return area.has_flag(ADVISED);
    }
    let told = areas::smaps_up_to(process, area.vma.range.end()).unwrap_or_default();
    let same = told.iter().find(|told| told.vma.range == area.vma.range);
    same.is_some_and(|same| same.has_flag(ADVISED))
}

/// Returns VMAs for the text that belongs where TiExec's text is, and for the text that the program [has moved](moved_text). The
/// headers of the files say which text belongs in TiExec's place. Text whose place is in doubt is left out.
pub fn originals(process: &ProcDir, workers: &Workers, entries: &[Area], pages: Pages) -> Vec<Vma> {
    let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    Layouts::new(process, workers, &vmas, pages).originals(entries)
}

/// Returns the marks of an address space, by what its auxv says.
pub(crate) fn marks(auxv: &[u8], pages: Pages) -> Option<Marks> {
    Marks::of(auxv::get(auxv, auxv::AT_RANDOM)?, pages)
}

/// Returns whether a process has TiExec's text, or mappings that a dead TiExec left; `None` if TiExec cannot read
/// the process's maps.
pub fn has_text_of_ours(process: &ProcDir, pages: Pages) -> Option<bool> {
    let vmas = match areas::vmas(process) {
        Err(SysError { errno: Errno::SRCH | Errno::NOENT, .. }) => return Some(false),
        vmas => vmas.ok()?,
    };
    if vmas.iter().any(|vma| vma.is_text() && is_ours(vma)) || {
        let marks = process.read("auxv").ok().and_then(|auxv| marks(&auxv, pages));
        marks.is_some_and(|marks| !marks.left(&vmas).is_empty())
    } {
        return Some(true);
    }
    let workers = Workers::none();
    let mut layouts = Layouts::new(process, &workers, &vmas, pages);
    let mut texts = vmas.iter().filter(|vma| vma.is_text());
    Some(texts.any(|vma| {
        layouts.widened(vma).is_some() && is_marked_widened(process, &Area::of(vma.clone()))
    }))
}

/// A copy of text in memory, and the bytes of it that a process maps.
pub type Copied = (FileId, u64);

/// Returns the copies of text that a process executes; an empty list if its maps cannot be read. Processes may share a
/// copy.
pub fn copies(process: &ProcDir) -> Vec<Copied> {
    let vmas = areas::vmas(process).unwrap_or_default();
    let mut copies: Vec<Copied> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.name.starts_with(IMAGE_NAME_PREFIX)) {
        // An image holds the copies one behind the other, so the end of the last one is its size.
        let end = vma.file_offset + vma.range.len();
        match copies.iter_mut().find(|(file, _)| *file == vma.file) {
            Some((_, bytes)) => *bytes = end.max(*bytes),
            None => copies.push((vma.file, end)),
        }
    }
    copies
}

/// Returns whether the range holds nothing but filler.
fn is_filler(memory: &Memory, range: AddrRange) -> bool {
    const CHUNK: u64 = 1 << 20;
    let (mut filler, mut here) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    arch::fill_with_traps(&mut filler);
    let mut at = 0;
    while at < range.len() {
        let len = CHUNK.min(range.len() - at) as usize;
        let from = RemoteAddr::new(range.start().get() + at);
        if memory.read(from, &mut here[..len]).is_err() || here[..len] != filler[..len] {
            return false;
        }
        at += len as u64;
    }
    true
}
