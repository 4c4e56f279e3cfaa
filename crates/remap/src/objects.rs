//! Finds the shared objects with much text that `ld.so` is going to map for a program, by reading a few headers. A
//! program without such objects is not held for them.
//!
//! This approximates `ld.so`'s search (ld.so(8)) and takes microseconds. An object that the search misses stays on
//! base pages. An object that `ld.so` does not map costs a needless stop. Neither does harm. (`tiexecctl warm
//! --deps` has time, and asks `ld.so` itself.)

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tiexec_core::addr::{Pages, RemoteAddr};
use tiexec_core::config::Edges;
use tiexec_core::dynamic::{Dynamic, dynamic_part};
use tiexec_core::elf::{ElfFacts, ElfHeader, interpreter_part};
use tiexec_core::ldcache;
use tiexec_core::rebase::MainImage;

use crate::policy::Policy;
use crate::store::Store;

/// A shared object that has whole huge pages of text.
#[derive(Debug)]
pub struct Object {
    /// The file, open for reading.
    pub file: File,
    /// The path where it was found.
    pub path: PathBuf,
    /// Its headers.
    pub facts: ElfFacts,
}

/// The sums over a program's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// How many there are.
    pub objects: usize,
    /// How many bytes of them are read-only after relocation. `ld.so` takes time to relocate them.
    pub relro: u64,
}

impl Expected {
    /// Sums the objects up.
    pub fn of(objects: &[Object]) -> Self {
        let relro = objects.iter().filter_map(|object| object.facts.relro.as_ref());
        let relro = relro.map(|range| range.end.saturating_sub(range.start)).sum();
        Self { objects: objects.len(), relro }
    }
}

const GLIBC_CACHE: &str = "/etc/ld.so.cache";
/// Returns the directories that glibc searches last: Debian's, for containers without a cache, and those of other
/// systems.
fn glibc_directories() -> Vec<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let debian = ["/lib", "/usr/lib"].map(|directory| Path::new(directory).join(&multiarch));
    let others = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
    debian.into_iter().chain(others).collect()
}
/// The directories that musl searches if its own file of directories does not exist.
const MUSL_DIRECTORIES: &str = "/lib:/usr/local/lib:/usr/lib";
/// The most objects that are examined.
const MOST: usize = 512;
/// The longest name or path that is read, in bytes.
const LONGEST: usize = 1024;
/// How many bytes of strings are read at once. The names of a file's libraries lie together in most files.
const AT_ONCE: u64 = 16 << 10;

/// Returns the objects with at least one huge page of text, or with edges to be taken, that `ld.so` will map for
/// the program at `program`: those that the program and its libraries need, and those that the environment has
/// preloaded.
///
/// Returns none if an object is not found, because `ld.so` will end the program then. Also returns none if the
/// environment has `ld.so` only list the objects.
pub fn with_text(program: &Path, policy: &Policy) -> Vec<Object> {
    let listed = ["LD_TRACE_LOADED_OBJECTS", "LD_VERIFY"];
    if listed.into_iter().any(|name| std::env::var_os(name).is_some()) {
        return Vec::new();
    }
    Search::of(program).and_then(|search| search.run(policy)).unwrap_or_default()
}

/// Returns whether objects can get huge pages only from their own page cache. That is so if copies are for an image
/// store and none exists, and no edge is wanted. The kernel maps such pages by itself: at the first touch of
/// congruent text that lies in a huge folio (`do_set_pmd` in `mm/memory.c`).
pub fn have_page_cache_only(policy: &Policy) -> bool {
    let Policy { pages, sources, edges, .. } = *policy;
    // A store that must not be used is a setback, which the helper reports.
    let has_no_store = || matches!(Store::open_for_this_user(pages), Ok(None));
    edges.edges == Edges::Conservative && sources.pagecache && sources.store && has_no_store()
}

/// The headers of one ELF file.
struct Elf {
    file: File,
    facts: ElfFacts,
    /// The place of its interpreter's path.
    interpreter: Option<Range<u64>>,
    names: Names,
    identity: (u64, u64),
}

/// The libraries that a file needs, and where it has `ld.so` search for them.
#[derive(Default)]
struct Names {
    needed: Vec<Vec<u8>>,
    runpath: Option<Vec<u8>>,
    rpath: Option<Vec<u8>>,
}

impl Elf {
    fn open(path: &Path) -> Option<Self> {
        // The open must not wait for the other end of a FIFO.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nonblock).open(path).ok()?;
        let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        // The program headers follow the ELF header in every file that a linker wrote.
        let mut prefix = [0; 2048];
        let len = file.read_at(&mut prefix, 0).ok()?;
        let prefix = &prefix[..len];
        let header = ElfHeader::parse(prefix).ok()?;
        let mut read = Vec::new();
        let start = usize::try_from(header.table_offset).ok()?;
        let table = match prefix.get(start..start.checked_add(header.table_len)?) {
            Some(table) => table,
            None => {
                read.resize(header.table_len, 0);
                file.read_exact_at(&mut read, header.table_offset).ok()?;
                &read
            }
        };
        let facts = ElfFacts::parse(&header, table).ok()?;
        let mut elf = Self {
            interpreter: interpreter_part(&header, table),
            names: Names::default(),
            identity: (meta.dev(), meta.ino()),
            facts,
            file,
        };
        if let Some(part) = dynamic_part(&header, table) {
            // A dynamic section larger than any that a linker writes is ignored.
            let len = usize::try_from(part.end - part.start).ok().filter(|&len| len < 1 << 16)?;
            let mut bytes = vec![0; len];
            elf.file.read_exact_at(&mut bytes, part.start).ok()?;
            let Dynamic { needed, runpath, rpath } =
                Dynamic::parse(&bytes, &elf.facts).unwrap_or_default();
            let rpath = rpath.filter(|_| runpath.is_none());
            let places = needed.iter().copied().chain(runpath).chain(rpath);
            let strings = Strings::read(&elf.file, places);
            elf.names = Names {
                needed: needed.iter().filter_map(|&at| strings.get(at)).collect(),
                runpath: runpath.and_then(|at| strings.get(at)),
                rpath: rpath.and_then(|at| strings.get(at)),
            };
        }
        Some(elf)
    }

    /// Returns the path of the `ld.so` that the file names.
    fn interpreter(&self) -> Option<PathBuf> {
        let at = self.interpreter.as_ref()?.start;
        let path = Strings::read(&self.file, std::iter::once(at)).get(at)?;
        Some(PathBuf::from(OsStr::from_bytes(&path)))
    }
}

/// Strings of a file, each of which ends in a zero byte.
struct Strings<'a> {
    file: &'a File,
    /// The place of the first of them in the file.
    start: u64,
    /// The bytes from there on.
    bytes: Vec<u8>,
}

impl<'a> Strings<'a> {
    /// Reads the strings at these places by one call, as far as they lie together.
    fn read(file: &'a File, places: impl Iterator<Item = u64> + Clone) -> Self {
        let (first, last) = (places.clone().min(), places.max());
        let (start, last) = (first.unwrap_or(0), last.unwrap_or(0));
        let len = (last - start).saturating_add(LONGEST as u64).min(AT_ONCE);
        let mut bytes = vec![0; if first.is_some() { len as usize } else { 0 }];
        let read = file.read_at(&mut bytes, start).unwrap_or(0);
        bytes.truncate(read);
        Self { file, start, bytes }
    }

    /// Returns the string at this place; `None` if it is too long, or cannot be read.
    fn get(&self, at: u64) -> Option<Vec<u8>> {
        let until_zero = |bytes: &[u8]| {
            let longest = &bytes[..bytes.len().min(LONGEST)];
            let end = longest.iter().position(|&byte| byte == 0)?;
            Some(bytes[..end].to_vec())
        };
        let read = usize::try_from(at - self.start).ok().and_then(|at| self.bytes.get(at..));
        read.and_then(until_zero).or_else(|| {
            let mut bytes = [0; LONGEST];
            let len = self.file.read_at(&mut bytes, at).ok()?;
            until_zero(&bytes[..len])
        })
    }
}

/// A file whose libraries must still be searched for.
struct Pending {
    path: PathBuf,
    names: Names,
    /// `DT_RPATH` of the program, which applies to all files, and of this file.
    rpath: Vec<PathBuf>,
}

struct Search {
    program: Pending,
    identity: (u64, u64),
    /// The name of its `ld.so`.
    linker: OsString,
    /// glibc's cache; `None` for musl.
    cache: Option<Vec<u8>>,
    environment: Vec<PathBuf>,
    last: Vec<PathBuf>,
}

impl Search {
    /// Returns `None` for a file that no `ld.so` starts.
    fn of(program: &Path) -> Option<Self> {
        let elf = Elf::open(program)?;
        let linker = elf.interpreter()?.file_name().unwrap_or_default().to_owned();
        let (cache, last) = match linker.to_string_lossy().strip_prefix("ld-musl-") {
            Some(rest) => {
                let file = format!("/etc/ld-musl-{}.path", rest.trim_end_matches(".so.1"));
                let list =
                    std::fs::read_to_string(file).unwrap_or_else(|_| MUSL_DIRECTORIES.into());
                let list = list.split([':', '\n']).filter(|part| !part.is_empty());
                (None, list.map(PathBuf::from).collect())
            }
            None => {
                let cache = std::fs::read(GLIBC_CACHE).unwrap_or_default();
                (Some(cache), glibc_directories())
            }
        };
        let Elf { names, identity, .. } = elf;
        let rpath = names.rpath.as_deref().map_or_else(Vec::new, |list| directories(list, program));
        let environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let environment = directories(environment.as_bytes(), program);
        let program = Pending { path: program.to_owned(), names, rpath };
        Some(Self { program, identity, linker, cache, environment, last })
    }

    /// Returns `None` if a library is not found.
    fn run(self, policy: &Policy) -> Option<Vec<Object>> {
        let Policy { pages, edges, .. } = *policy;
        let Self { program, identity, linker, cache, environment, last } = self;
        let mut seen = BTreeSet::from([identity]);
        let mut asked = BTreeSet::new();
        let mut found = Vec::new();
        let for_all = program.rpath.clone();
        let mut pending = VecDeque::from([(program, preloaded())]);
        while let Some((Pending { path, names, rpath }, also)) = pending.pop_front() {
            let runpath =
                names.runpath.as_deref().map_or_else(Vec::new, |list| directories(list, &path));
            let rpath = if names.runpath.is_some() { Vec::new() } else { rpath };
            let also = also.into_iter().map(|name| (name, false));
            for (name, must) in also.chain(names.needed.into_iter().map(|name| (name, true))) {
                let musl_itself = cache.is_none() && name == b"libc.so";
                let is_linker = linker.as_bytes() == name;
                if musl_itself || is_linker || !asked.insert(name.clone()) {
                    continue;
                }
                let candidates = candidates(&name, [&rpath, &environment, &runpath], &cache, &last);
                let found_at = { candidates }.find_map(|path| Some((Elf::open(&path)?, path)));
                let Some((Elf { file, facts, names, identity, .. }, path)) = found_at else {
                    if must {
                        return None;
                    }
                    continue;
                };
                if !seen.insert(identity) || seen.len() > MOST {
                    continue;
                }
                let mut rpath = for_all.clone();
                rpath.extend(
                    names.rpath.as_deref().map_or_else(Vec::new, |list| directories(list, &path)),
                );
                if facts.fills_as_object(pages.pmd, pages.base)
                    || edges.is_for(facts.text_bytes(), pages.pmd)
                {
                    found.push(Object { file, path: path.clone(), facts });
                }
                pending.push_back((Pending { path, names, rpath }, Vec::new()));
            }
        }
        Some(found)
    }
}

/// Returns the libraries that the environment preloads.
fn preloaded() -> Vec<Vec<u8>> {
    let list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let names = list.as_bytes().split(|&byte| byte == b':' || byte == b' ');
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Returns the paths at which the library may lie, in the order of `ld.so`'s search.
fn candidates<'a>(
    name: &'a [u8],
    lists: [&'a [PathBuf]; 3],
    cache: &'a Option<Vec<u8>>,
    last: &'a [PathBuf],
) -> impl Iterator<Item = PathBuf> + 'a {
    let as_path = Path::new(OsStr::from_bytes(name));
    let by_path = name.contains(&b'/').then(|| as_path.to_owned());
    let by_name = by_path.is_none();
    let first = { lists }.into_iter().flatten().map(move |directory| directory.join(as_path));
    let cached = cache
        .iter()
        .filter_map(move |cache| ldcache::find(cache, name))
        .map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let last = last.iter().map(move |directory| directory.join(as_path));
    by_path.into_iter().chain(first.chain(cached).chain(last).filter(move |_| by_name))
}

/// Splits a list of directories. `$ORIGIN` is the directory of `of`. Entries with other tokens are left out.
fn directories(list: &[u8], of: &Path) -> Vec<PathBuf> {
    let origin = || {
        let real = std::fs::canonicalize(of).unwrap_or_else(|_| of.to_owned());
        real.parent().map(|parent| parent.as_os_str().to_owned())
    };
    let one = |part: &[u8]| {
        let part = OsStr::from_bytes(part);
        let Some(text) = part.to_str().filter(|text| text.contains('$')) else {
            return Some(PathBuf::from(part));
        };
        let origin: OsString = origin()?;
        let text = text.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin.to_str()?);
        (!text.contains('$')).then(|| PathBuf::from(text))
    };
    list.split(|&byte| byte == b':' || byte == b';')
        .filter(|part| !part.is_empty())
        .filter_map(one)
        .collect()
}

/// Returns the parts of an object's file that can be PMD-mapped from its page cache.
pub(crate) fn chunks_of(object: &Object, pages: Pages) -> Vec<Range<u64>> {
    MainImage::new(&object.facts, 0, RemoteAddr::new(0)).congruent_chunks(0, pages)
}
