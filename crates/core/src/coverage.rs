//! How much of each file's text is huge, according to the kernel's report of its pages, never according to a request.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::addr::{AddrRange, PageSize, Pages, mib};
use crate::area::Area;
use crate::numa::{self, OnNode};
use crate::order;
use crate::plan::Backing;
use crate::proc::maps::{FileId, Vma};
use crate::skip::{Reason, SkipReason};

/// The beginning of the name, in maps, of every memfd that TiExec makes.
pub const IMAGE_NAME_PREFIX: &[u8] = b"/memfd:tiexec:";
/// The end of the name of every image in a store.
pub const STORE_NAME_SUFFIX: &[u8] = b".tiexec";

/// Bytes left on base pages for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Rest {
    /// Why.
    pub reason: Reason,
    /// How many bytes.
    pub bytes: u64,
}

/// Bytes of huge text by the size of the pages that they lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OfSize {
    /// The size of each page, in bytes.
    pub page_size: u64,
    /// True if one PMD entry maps each page. Otherwise they are pages of the hugetlb pool of another size: contiguous
    /// smaller entries map them, or larger entries.
    pub pmd_mapped: bool,
    /// How many bytes.
    pub bytes: u64,
}

/// The huge text of one backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OfBacking {
    /// Bytes of text that are PMD-mapped or in hugetlb pages.
    pub huge_bytes: u64,
    /// Memory that the copies take, in bytes; images of the store count as a whole.
    pub cost_bytes: u64,
}

/// The huge text of each backing that has some.
pub type ByBacking = BTreeMap<Backing, OfBacking>;

/// Adds up the huge text of the files by backing.
pub fn by_backing(files: &[FileCoverage]) -> ByBacking {
    let mut sums = ByBacking::new();
    files.iter().for_each(|file| add_backings(&mut sums, &file.by_backing));
    sums
}

fn add_backings(sums: &mut ByBacking, more: &ByBacking) {
    for (backing, part) in more {
        let sum = sums.entry(*backing).or_default();
        sum.huge_bytes += part.huge_bytes;
        sum.cost_bytes += part.cost_bytes;
    }
}

/// Names the backings with what each costs, and with the text of each if there are several:
/// `image 8.0 MiB (cost 8.0 MiB shmem) + pagecache 16.0 MiB (cost 0)`. `None` if there are none.
pub fn backings_in_words(all: &ByBacking) -> Option<String> {
    let words = all.iter().map(|(backing, of)| {
        let text = match all.len() {
            1 => String::new(),
            _ => format!(" {} MiB", mib(of.huge_bytes)),
        };
        format!("{backing}{text} (cost {})", cost_in_words(&[(*backing, *of)].into()))
    });
    (!all.is_empty()).then(|| words.collect::<Vec<_>>().join(" + "))
}

/// Returns the memory that the copies of the backings take, and its kind: `8.0 MiB shmem, shared`. The page cache costs
/// nothing.
pub fn cost_in_words(all: &ByBacking) -> String {
    let costs = all.iter().filter_map(|(backing, of)| {
        let kind = match backing {
            Backing::Image => "shmem",
            Backing::Store => "shmem, shared",
            Backing::Hugetlb => "hugetlb",
            Backing::Pagecache | Backing::Anon => return None,
        };
        Some(format!("{} MiB {kind}", mib(of.cost_bytes)))
    });
    let costs: Vec<String> = costs.collect();
    if costs.is_empty() { "0".to_owned() } else { costs.join(" + ") }
}

/// The text of one file and how much of it is huge.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FileCoverage {
    /// The path as maps shows it, lossy UTF-8.
    pub path: String,
    /// True if the file has been unlinked or replaced since it was mapped.
    pub deleted: bool,
    /// Bytes of text mapped.
    pub text_bytes: u64,
    /// Bytes of it that are PMD-mapped or in hugetlb pages.
    pub huge_bytes: u64,
    /// Bytes of TiExec's copies that are PMD-mapped or in hugetlb pages, with the widened bytes. Text in the file's own
    /// page cache does not count.
    pub copied_bytes: u64,
    /// Memory that the copies take: the huge pages of memfds, and images of the store as a whole.
    pub cost_bytes: u64,
    /// The copies, and the memory of each. Several processes may have the same copy.
    #[serde(skip)]
    pub copies: BTreeMap<FileId, u64>,
    /// Bytes that are not text, but became executable because they share a huge page with text.
    pub widened_bytes: u64,
    /// The backings of its huge text. JSON has their names.
    #[serde(rename = "backings", serialize_with = "names")]
    pub by_backing: ByBacking,
    /// How much of `huge_bytes` lies in pages of which size, the smallest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<OfSize>,
    /// The NUMA nodes of the text, as far as it is mapped, huge or not, and with widened bytes; empty if the kernel
    /// does not report them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<OnNode>,
    /// Why the rest of the text is not huge.
    pub rest: Vec<Rest>,
}

fn names<S: Serializer>(all: &ByBacking, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.keys())
}

/// Adds up the huge text by backing, in bytes.
pub fn huge_by_backing(files: &[FileCoverage]) -> BTreeMap<String, u64> {
    let sums = by_backing(files).into_iter();
    sums.map(|(backing, of)| (backing.to_string(), of.huge_bytes)).collect()
}

impl FileCoverage {
    /// Returns whether no text of the file is huge, because no text of it fills a huge page.
    pub fn is_small(&self) -> bool {
        let too_small = |rest: &Rest| rest.reason == SkipReason::TooSmall;
        self.huge_bytes == 0 && self.rest.iter().all(too_small)
    }

    /// Adds the bytes of another part of the same file.
    fn add(&mut self, part: Self) {
        self.text_bytes += part.text_bytes;
        self.huge_bytes += part.huge_bytes;
        self.copied_bytes += part.copied_bytes;
        self.cost_bytes += part.cost_bytes;
        for (copy, bytes) in part.copies {
            *self.copies.entry(copy).or_default() += bytes;
        }
        self.widened_bytes += part.widened_bytes;
        add_backings(&mut self.by_backing, &part.by_backing);
        self.sizes.extend(part.sizes);
        self.nodes.extend(part.nodes);
    }
}

/// Returns the files that have a row of their own, and the others, which [are small](FileCoverage::is_small). If all
/// files are small, the largest has a row.
pub fn apart_from_small(files: &[FileCoverage]) -> (Vec<&FileCoverage>, Vec<&FileCoverage>) {
    let (mut small, mut others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.is_small());
    if others.is_empty() && !small.is_empty() {
        others.push(small.remove(0));
    }
    (others, small)
}

/// Returns the label of the last row, which sums up this many files.
pub fn small_files(count: usize) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("and {count} file{s} with text below a huge page")
}

/// A reason, known from the launch, for text in `range`. By its pages alone this text would get `base_pages`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// The text.
    pub range: AddrRange,
    /// Why it is not huge.
    pub reason: Reason,
}

/// Returns whether the VMA is text that TiExec put there.
pub fn is_ours(vma: &Vma) -> bool {
    vma.name.starts_with(IMAGE_NAME_PREFIX) || vma.path().ends_with(STORE_NAME_SUFFIX)
}

/// Returns why no attach treats a text, whatever its pages are.
pub fn left_alone(vma: &Vma) -> Option<SkipReason> {
    if vma.perms.shared || vma.name.starts_with(b"/memfd:") {
        Some(SkipReason::NotSelected)
    } else if vma.perms.write {
        Some(SkipReason::ModifiedText)
    } else {
        None
    }
}

/// Returns the file whose text the program itself has moved into the anonymous memory at `index`: the VMA of the file just
/// below. The memory fills a hole in the mappings of one file exactly, as after `node --use-largepages`, PHP's
/// `opcache.huge_code_pages`, and iodlr.
pub fn moved_text(entries: &[Area], index: usize) -> Option<&Vma> {
    let [below, moved, above] = entries.get(index.checked_sub(1)?..)?.get(..3)? else {
        return None;
    };
    let [below, moved, above] = [below, moved, above].map(|entry| &entry.vma);
    let is_code = moved.perms.exec && !moved.perms.write && moved.name.is_empty();
    let fills =
        below.range.end() == moved.range.start() && moved.range.end() == above.range.start();
    let is_one_file = below.file == above.file
        && below.offset_at(above.range.start()) == above.file_offset
        && !is_ours(below);
    (is_code && fills && is_one_file && below.is_file_backed() && !moved.is_file_backed())
        .then_some(below)
}

/// Adds up the huge bytes of each file's text VMAs; the file with the most text comes first.
///
/// Text that the program [has moved itself](moved_text) counts for its file.
///
/// TiExec's spans lie where a file's text was. Each span counts for the file whose VMA it touches. `originals` may say,
/// in address order, which text was there. Then only that text counts as text, and the other executable bytes of the
/// span count apart.
pub fn coverage(
    entries: &[Area],
    pages: Pages,
    notes: &[Note],
    originals: &[Vma],
) -> Vec<FileCoverage> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for index in 0..entries.len() {
        let Some(next) = Run::of(entries, index, pages, originals) else { continue };
        match runs.last_mut() {
            Some(run) if run.adjoins(&next) => run.append(next),
            _ => runs.push(next),
        }
    }
    let mut sums: BTreeMap<FileId, FileSum> = BTreeMap::new();
    for run in runs {
        let rest = run.rest(pages.pmd, notes);
        sums.entry(run.owner.file).or_insert_with(|| FileSum::of(run.owner)).add(run, rest);
    }
    let mut files: Vec<FileCoverage> = sums.into_values().map(FileSum::finish).collect();
    order::by(&mut files, |a, b| b.text_bytes.cmp(&a.text_bytes).then_with(|| a.path.cmp(&b.path)));
    files
}

/// Pieces of one file's text that lie side by side. Before a switch they were one VMA.
struct Run<'a> {
    owner: &'a Vma,
    range: AddrRange,
    /// Text in it, joined where it adjoins.
    texts: Vec<AddrRange>,
    /// What it adds to its file. The cost leaves out whole images of a store.
    part: FileCoverage,
    /// Images of a store, and the memory of each; an image may occur more than once.
    images: Vec<(FileId, u64)>,
}

impl<'a> Run<'a> {
    /// Makes a run of one VMA; `None` if the VMA is not text.
    fn of(entries: &'a [Area], index: usize, pages: Pages, originals: &'a [Vma]) -> Option<Self> {
        let entry = entries.get(index)?;
        let vma = &entry.vma;
        let moved = moved_text(entries, index);
        if !vma.is_text() && moved.is_none() {
            return None;
        }
        let known = originals.iter().filter(|text| text.range.overlaps(vma.range));
        let mut texts: Vec<AddrRange> =
            known.clone().filter_map(|text| text.range.intersection(vma.range)).collect();
        let owner = match { known }.next() {
            Some(known) => known,
            None if is_ours(vma) => owner(entries, index),
            None => moved.unwrap_or(vma),
        };
        if texts.is_empty() {
            texts.push(vma.range);
        }
        let text: u64 = texts.iter().map(|text| text.len()).sum();
        let widened = vma.range.len().saturating_sub(text);
        let mapped = entry.huge_in(vma.range);
        let huge = match entry.huge {
            Some(_) => texts.iter().map(|&text| entry.huge_in(text)).sum(),
            // The kernel does not report which bytes are huge; at least these are.
            None => mapped.saturating_sub(widened),
        };
        let copied = if is_ours(vma) { mapped } else { 0 };
        let image = entry.image_bytes.filter(|_| is_ours(vma)).map(|bytes| (vma.file, bytes));
        let cost = if image.is_some() { 0 } else { copied };
        let copies = (cost > 0).then_some((vma.file, cost));
        let backing = backing_of(entry, pages.base).filter(|_| huge > 0);
        let of_backing = OfBacking { huge_bytes: huge, cost_bytes: cost };
        let size = (huge > 0).then(|| size_of(entry, pages, huge));
        Some(Self {
            owner,
            range: vma.range,
            texts,
            part: FileCoverage {
                text_bytes: text,
                huge_bytes: huge,
                copied_bytes: copied,
                cost_bytes: cost,
                copies: copies.into_iter().collect(),
                widened_bytes: widened,
                by_backing: backing.map(|backing| (backing, of_backing)).into_iter().collect(),
                sizes: size.into_iter().collect(),
                nodes: entry.nodes.clone(),
                ..FileCoverage::default()
            },
            images: image.into_iter().collect(),
        })
    }

    /// Returns whether `next` has text of the same file and begins where this run ends.
    fn adjoins(&self, next: &Self) -> bool {
        self.owner.file == next.owner.file && self.range.end() == next.range.start()
    }

    /// Appends a run that [adjoins](Self::adjoins) this one.
    fn append(&mut self, next: Self) {
        self.range = AddrRange::new(self.range.start(), next.range.end()).unwrap_or(self.range);
        for text in next.texts {
            match self.texts.last_mut() {
                Some(last) if last.end() == text.start() => {
                    *last = AddrRange::new(last.start(), text.end()).unwrap_or(*last);
                }
                _ => self.texts.push(text),
            }
        }
        self.part.add(next.part);
        self.images.extend(next.images);
    }

    /// Returns the reasons for which text of the run is not huge, and how many bytes each concerns.
    fn rest(&self, pmd: PageSize, notes: &[Note]) -> [(Reason, u64); 2] {
        let FileCoverage { text_bytes: len, huge_bytes: huge, .. } = self.part;
        let whole = self.texts.iter().filter_map(|text| text.align_inward(pmd));
        let whole: u64 = whole.map(AddrRange::len).sum();
        let left = len - huge.min(len);
        if whole == 0 {
            return [(SkipReason::TooSmall.into(), left), (SkipReason::Edges.into(), 0)];
        }
        let edges = (len - whole).min(left);
        // If several pieces have a reason, the reason of the largest piece counts.
        let within = |note: &Note| note.range.intersection(self.range).map_or(0, AddrRange::len);
        let noted = notes.iter().filter(|note| note.range.overlaps(self.range));
        let noted = noted.min_by_key(|note| Reverse(within(note)));
        let reason = noted.map_or(SkipReason::BasePages.into(), |note| note.reason);
        [(SkipReason::Edges.into(), edges), (reason, left - edges)]
    }
}

/// The sum of one file's runs.
struct FileSum {
    file: FileCoverage,
    rest: BTreeMap<Reason, u64>,
    /// Images of a store, and the memory of each.
    images: BTreeMap<FileId, u64>,
}

impl FileSum {
    fn of(owner: &Vma) -> Self {
        let file = FileCoverage {
            path: owner.display_path(),
            deleted: owner.name.ends_with(b" (deleted)"),
            ..FileCoverage::default()
        };
        Self { file, rest: BTreeMap::new(), images: BTreeMap::new() }
    }

    /// Adds a run, and the [rest](Run::rest) of it.
    fn add(&mut self, run: Run<'_>, rest: [(Reason, u64); 2]) {
        self.file.add(run.part);
        self.images.extend(run.images);
        for (reason, bytes) in rest {
            *self.rest.entry(reason).or_default() += bytes;
        }
    }

    fn finish(self) -> FileCoverage {
        let Self { mut file, rest, images } = self;
        let stored = images.values().sum::<u64>();
        file.cost_bytes += stored;
        if let Some(store) = file.by_backing.get_mut(&Backing::Store) {
            store.cost_bytes += stored;
        }
        file.copies.extend(images);
        file.sizes = sum(&file.sizes);
        file.nodes = numa::sum(file.nodes);
        let rest = rest.into_iter().filter(|&(_, bytes)| bytes > 0);
        file.rest = rest.map(|(reason, bytes)| Rest { reason, bytes }).collect();
        file
    }
}

/// Finds the file whose text TiExec's text at `index` replaces. This file has the nearest VMA that adjoins without a
/// gap; VMAs below come first. Libraries lie side by side, so a file that the image's name fits comes before any other.
fn owner(entries: &[Area], index: usize) -> &Vma {
    let ours = &entries[index].vma;
    let back = entries[..=index].windows(2).rev().map(|pair| (&pair[0], &pair[1], &pair[0]));
    let forth = entries[index..].windows(2).map(|pair| (&pair[0], &pair[1], &pair[1]));
    let joined = |(low, high, _): &(&Area, &Area, _)| low.vma.range.end() == high.vma.range.start();
    let neighbours = back.take_while(joined).chain(forth.take_while(joined));
    let files: Vec<&Vma> = neighbours
        .map(|(_, _, entry): (_, _, &Area)| &entry.vma)
        .filter(|vma| vma.is_file_backed() && !is_ours(vma))
        .collect();
    let namesake = files.iter().find(|vma| is_image_of(ours, vma));
    namesake.or(files.first()).copied().unwrap_or(ours)
}

/// Returns whether the image's name fits the file: it has the beginning of the file's name, with odd characters
/// replaced.
fn is_image_of(image: &Vma, file: &Vma) -> bool {
    let last = |path: &'_ [u8]| path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let (path, of) = (image.path(), file.path());
    let name = match path.strip_prefix(IMAGE_NAME_PREFIX) {
        Some(name) => name,
        None => {
            let name = path[last(path)..].strip_suffix(STORE_NAME_SUFFIX).unwrap_or_default();
            // A colon and a digest follow; a dash and a digest, if an earlier version made the image.
            let end = name.iter().rposition(|&byte| byte == b':' || byte == b'-');
            &name[..end.unwrap_or(0)]
        }
    };
    let of = &of[last(of)..];
    let same = |(a, b): (&u8, &u8)| a == b || *a == b'_';
    !name.is_empty() && name.len() <= of.len() && name.iter().zip(of).all(same)
}

fn backing_of(entry: &Area, base: PageSize) -> Option<Backing> {
    if entry.is_hugetlb(base) {
        Some(Backing::Hugetlb)
    } else if entry.file_huge > 0 && is_ours(&entry.vma) {
        let memfd = entry.vma.name.starts_with(IMAGE_NAME_PREFIX);
        Some(if memfd { Backing::Image } else { Backing::Store })
    } else if entry.file_huge > 0 {
        // A file on a tmpfs has its page cache there too.
        Some(Backing::Pagecache)
    } else if entry.anon_huge > 0 {
        Some(Backing::Anon)
    } else {
        None
    }
}

/// Returns in which pages the `huge` bytes of a VMA lie.
fn size_of(entry: &Area, pages: Pages, huge: u64) -> OfSize {
    let of_pool = entry.is_hugetlb(pages.base);
    let page_size = if of_pool { entry.page_size } else { pages.pmd.bytes() };
    OfSize { page_size, pmd_mapped: page_size == pages.pmd.bytes(), bytes: huge }
}

/// Adds up the bytes in pages of the same size; the smallest size first.
fn sum(parts: &[OfSize]) -> Vec<OfSize> {
    let mut sizes: BTreeMap<u64, OfSize> = BTreeMap::new();
    for part in parts {
        let sum = sizes.entry(part.page_size).or_insert(OfSize { bytes: 0, ..*part });
        sum.bytes += part.bytes;
    }
    sizes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{PageSize, RemoteAddr};
    use crate::skip::FailureKind;
    use crate::smaps;

    fn pages() -> Pages {
        Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() }
    }

    fn coverage_of(smaps: &str, notes: &[Note]) -> Vec<FileCoverage> {
        coverage(&smaps::parse(smaps.as_bytes()).unwrap(), pages(), notes, &[])
    }

    #[test]
    fn what_was_no_text_is_counted_apart() {
        let maps = "005ff000-00c10000 r-xp 001ff000 fe:00 1 /usr/bin/main\n";
        let originals = crate::proc::maps::parse(maps.as_bytes()).unwrap();
        let of = |smaps: &str| {
            coverage(&smaps::parse(smaps.as_bytes()).unwrap(), pages(), &[], &originals)
        };
        let all = "00400000-00e00000 r-xp 00000000 00:01 77 /memfd:tiexec:main (deleted)\n\
                   ShmemPmdMapped: 10240 kB\n";
        let files = of(all);
        assert_eq!(files.len(), 1);
        let main = &files[0];
        assert_eq!((main.path.as_str(), main.text_bytes), ("/usr/bin/main", 0x61_1000));
        assert_eq!((main.huge_bytes, main.widened_bytes), (0x61_1000, 0xa0_0000 - 0x61_1000));
        assert_eq!((main.copied_bytes, rest(main)), (10 << 20, vec![]));
        // One huge page is split, and nothing shows which. So count the bytes that must be text of the other pages.
        let files = of(&all.replace("10240", "8192"));
        assert_eq!(files[0].huge_bytes, (8 << 20) - (0xa0_0000 - 0x61_1000));
        // Page cache, widened at the tail only.
        let tail = "005ff000-00c00000 r-xp 001ff000 fe:00 1 /usr/bin/main\n\
                    FilePmdMapped: 6144 kB\n\
                    00c00000-00e00000 r-xp 00800000 fe:00 1 /usr/bin/main\n\
                    FilePmdMapped: 2048 kB\n";
        let files = of(tail);
        assert_eq!((files[0].text_bytes, files[0].huge_bytes), (0x61_1000, 0x61_0000));
        assert_eq!((files[0].widened_bytes, files[0].copied_bytes), (0x1f_0000, 0));
        assert_eq!(rest(&files[0]), [(SkipReason::Edges.into(), 0x1000)]);
    }

    fn rest(file: &FileCoverage) -> Vec<(Reason, u64)> {
        file.rest.iter().map(|rest| (rest.reason, rest.bytes)).collect()
    }

    /// A non-PIE whose six whole huge pages are switched, with its ragged head and tail.
    const SWITCHED: &str = "\
        00400000-005ff000 r--p 00000000 fe:00 1 /usr/bin/main\n\
        005ff000-00600000 r-xp 001ff000 fe:00 1 /usr/bin/main\n\
        00600000-01200000 r-xp 00000000 00:01 77 /memfd:tiexec:main (deleted)\n\
        ShmemPmdMapped: 12288 kB\n\
        01200000-01210000 r-xp 00e00000 fe:00 1 /usr/bin/main\n";

    #[test]
    fn a_switched_span_counts_to_the_file_it_stands_in_for() {
        let files = coverage_of(SWITCHED, &[]);
        assert_eq!(files.len(), 1);
        let main = &files[0];
        assert_eq!((main.path.as_str(), main.deleted), ("/usr/bin/main", false));
        assert_eq!((main.text_bytes, main.huge_bytes), (0xc1_1000, 12 << 20));
        let image = OfBacking { huge_bytes: 12 << 20, cost_bytes: 12 << 20 };
        assert_eq!(main.by_backing, [(Backing::Image, image)].into());
        let words = backings_in_words(&main.by_backing);
        assert_eq!(words.as_deref(), Some("image (cost 12.0 MiB shmem)"));
        assert_eq!(rest(main), [(SkipReason::Edges.into(), 0x1_1000)]);
    }

    #[test]
    fn a_switched_span_finds_its_file_above_it_too() {
        let files = coverage_of(
            "00600000-00800000 r-xp 00000000 00:01 77 /memfd:tiexec:m (deleted)\n\
             KernelPageSize: 2048 kB\n\
             Private_Hugetlb: 2048 kB\n\
             00800000-00a00000 r-xp 00000000 00:01 78 /memfd:tiexec:m (deleted)\n\
             ShmemPmdMapped: 2048 kB\n\
             00a00000-00a01000 r--p 00400000 fe:00 1 /usr/bin/m\n",
            &[],
        );
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].path, "/usr/bin/m");
        let words = backings_in_words(&files[0].by_backing);
        let both = "image 2.0 MiB (cost 2.0 MiB shmem) + hugetlb 2.0 MiB (cost 2.0 MiB hugetlb)";
        assert_eq!(words.as_deref(), Some(both));
        assert_eq!(cost_in_words(&files[0].by_backing), "2.0 MiB shmem + 2.0 MiB hugetlb");
        assert_eq!((files[0].huge_bytes, rest(&files[0])), (4 << 20, vec![]));
    }

    #[test]
    fn a_span_with_no_file_beside_it_stands_for_itself() {
        let files = coverage_of(
            "00400000-00401000 r-xp 00000000 fe:00 1 /usr/bin/m\n\
             00600000-00800000 r-xp 00000000 00:01 77 /memfd:tiexec:m (deleted)\n\
             ShmemPmdMapped: 2048 kB\n",
            &[],
        );
        let names: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.deleted)).collect();
        assert_eq!(names, [("/memfd:tiexec:m", true), ("/usr/bin/m", false)]);
    }

    #[test]
    fn a_span_between_two_libraries_belongs_to_its_namesake() {
        for name in [
            "/memfd:tiexec:libb.so.1 (deleted)",
            "/run/x/libb.so.1:0123abcd.tiexec",
            "/run/x/libb.so.1-0123abcd.tiexec",
        ] {
            let files = coverage_of(
                &format!(
                    "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1 /usr/lib/liba.so\n\
                     7f0000001000-7f0000200000 rw-p 00001000 fe:00 1 /usr/lib/liba.so\n\
                     7f0000200000-7f0000400000 r-xp 00000000 00:01 77 {name}\n\
                     ShmemPmdMapped: 2048 kB\n\
                     7f0000400000-7f0000401000 r-xp 00200000 fe:00 2 /usr/lib/libb.so.1\n"
                ),
                &[],
            );
            let found: Vec<_> =
                files.iter().map(|file| (file.path.as_str(), file.huge_bytes)).collect();
            assert_eq!(found, [("/usr/lib/libb.so.1", 2 << 20), ("/usr/lib/liba.so", 0)]);
        }
    }

    #[test]
    fn a_span_that_lost_its_huge_pages_is_on_base_pages() {
        let split = SWITCHED.replace("12288 kB", "8192 kB");
        let files = coverage_of(&split, &[]);
        assert_eq!(files[0].huge_bytes, 8 << 20);
        assert_eq!(
            rest(&files[0]),
            [(SkipReason::Edges.into(), 0x1_1000), (SkipReason::BasePages.into(), 4 << 20)]
        );
    }

    #[test]
    fn a_note_tells_why_its_text_is_not_huge() {
        let smaps = "00400000-00801000 r-xp 00000000 fe:00 1 /a\n\
                     00a00000-00c00000 r-xp 00000000 fe:00 2 /b\n\
                     00c00000-00c01000 r-xp 00000000 fe:00 3 /c\n";
        let range =
            |start, end| AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap();
        let note = |range| Note { range, reason: FailureKind::Deadline.into() };
        let notes = [note(range(0x40_0000, 0x80_0000)), note(range(0xc0_0000, 0xc0_1000))];
        let files = coverage_of(smaps, &notes);
        assert_eq!(
            rest(&files[0]),
            [(SkipReason::Edges.into(), 0x1000), (FailureKind::Deadline.into(), 4 << 20)]
        );
        assert_eq!(rest(&files[1]), [(SkipReason::BasePages.into(), 2 << 20)]);
        // `too_small` comes before every other reason.
        assert_eq!(rest(&files[2]), [(SkipReason::TooSmall.into(), 0x1000)]);
    }

    #[test]
    fn what_smaps_counts_beyond_the_area_is_not_believed() {
        let files = coverage_of(
            "00400000-00600000 r-xp 00000000 fe:00 1 /a\nFilePmdMapped: 6144 kB\n",
            &[],
        );
        assert_eq!((files[0].huge_bytes, files[0].text_bytes), (2 << 20, 2 << 20));
    }

    #[test]
    fn only_text_is_counted() {
        let files = coverage_of(
            "00400000-00600000 r--p 00000000 fe:00 1 /a\nFilePmdMapped: 2048 kB\n\
             00600000-00800000 r-xp 00000000 00:00 0 \nAnonHugePages: 2048 kB\n\
             00800000-00801000 r-xp 00000000 00:00 0 [vdso]\n",
            &[],
        );
        assert_eq!(files, []);
    }

    #[test]
    fn text_that_the_program_has_moved_counts_for_its_file() {
        let moved = |above: &str| {
            coverage_of(
                &format!(
                    "00500000-00600000 r-xp 00100000 fe:00 1 /a\n\
                     00600000-00a00000 r-xp 00000000 00:00 0 \nAnonHugePages: 4096 kB\n\
                     {above}\n"
                ),
                &[],
            )
        };
        let files = moved("00a00000-00a01000 r-xp 00600000 fe:00 1 /a");
        assert_eq!((files[0].text_bytes, files[0].huge_bytes), (0x50_1000, 4 << 20));
        assert_eq!((files[0].copied_bytes, files[0].cost_bytes), (0, 0));
        assert_eq!(files[0].by_backing.keys().collect::<Vec<_>>(), [&Backing::Anon]);
        assert_eq!(rest(&files[0]), [(SkipReason::Edges.into(), 0x10_1000)]);
        // Beside another file, another place of the file, or nothing, it is code that the program has made.
        for above in [
            "00a00000-00a01000 r-xp 00600000 fe:00 2 /b",
            "00a00000-00a01000 r-xp 00601000 fe:00 1 /a",
            "00b00000-00b01000 r-xp 00700000 fe:00 1 /a",
        ] {
            let files = moved(above);
            assert!(files.iter().all(|file| file.huge_bytes == 0), "{above}: {files:?}");
        }
    }

    #[test]
    fn text_mapped_twice_counts_twice() {
        let files = coverage_of(
            "00400000-00600000 r-xp 00000000 fe:00 1 /a\n\
             7f0000001000-7f0000002000 r-xp 00001000 fe:00 1 /a\n",
            &[],
        );
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].text_bytes, (2 << 20) + 0x1000);
        assert_eq!(
            rest(&files[0]),
            [(SkipReason::TooSmall.into(), 0x1000), (SkipReason::BasePages.into(), 2 << 20)]
        );
    }
}
