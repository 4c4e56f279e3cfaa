//! Finds the shared objects with much text that `ld.so` is going to map for a program, by reading a few headers. A
//! program without such objects is not held for them.
//!
//! This approximates `ld.so`'s search (ld.so(8)) and takes microseconds. An object that the search misses stays on
//! base pages. An object that `ld.so` does not map costs a needless stop. Neither does harm. (`tiexecctl warm
//! --deps` has time, and asks `ld.so` itself.)

use std::collections::{HashSet, VecDeque};
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
    interpreter: Option<PathBuf>,
    needed: Vec<Vec<u8>>,
    runpath: Option<Vec<u8>>,
    rpath: Option<Vec<u8>>,
    identity: (u64, u64),
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
            interpreter: None,
            needed: Vec::new(),
            runpath: None,
            rpath: None,
            identity: (meta.dev(), meta.ino()),
            facts,
            file,
        };
        if let Some(part) = interpreter_part(&header, table) {
            elf.interpreter =
                elf.string(part.start).map(|path| PathBuf::from(OsStr::from_bytes(&path)));
        }
        if let Some(part) = dynamic_part(&header, table) {
            // A dynamic section larger than any that a linker writes is ignored.
            let len = usize::try_from(part.end - part.start).ok().filter(|&len| len < 1 << 16)?;
            let mut bytes = vec![0; len];
            elf.file.read_exact_at(&mut bytes, part.start).ok()?;
            let dynamic = Dynamic::parse(&bytes, &elf.facts).unwrap_or_default();
            elf.needed = dynamic.needed.iter().filter_map(|&at| elf.string(at)).collect();
            elf.runpath = dynamic.runpath.and_then(|at| elf.string(at));
            elf.rpath =
                dynamic.rpath.filter(|_| elf.runpath.is_none()).and_then(|at| elf.string(at));
        }
        Some(elf)
    }

    fn string(&self, at: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; LONGEST];
        let len = self.file.read_at(&mut bytes, at).ok()?;
        let end = bytes[..len].iter().position(|&byte| byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }
}

/// A file whose libraries must still be searched for.
struct Pending {
    path: PathBuf,
    elf: Elf,
    /// `DT_RPATH` of the program, which applies to all files.
    rpath: Vec<PathBuf>,
}

struct Search {
    program: Pending,
    /// glibc's cache; `None` for musl.
    cache: Option<Vec<u8>>,
    environment: Vec<PathBuf>,
    last: Vec<PathBuf>,
}

impl Search {
    /// Returns `None` for a file that no `ld.so` starts.
    fn of(program: &Path) -> Option<Self> {
        let elf = Elf::open(program)?;
        let interpreter = elf.interpreter.clone()?;
        let name = interpreter.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (cache, last) = match name.strip_prefix("ld-musl-") {
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
        let rpath = elf.rpath.as_deref().map_or_else(Vec::new, |list| directories(list, program));
        let environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let environment = directories(environment.as_bytes(), program);
        let program = Pending { path: program.to_owned(), elf, rpath };
        Some(Self { program, cache, environment, last })
    }

    /// Returns `None` if a library is not found.
    fn run(self, policy: &Policy) -> Option<Vec<Object>> {
        let Policy { pages, edges, .. } = *policy;
        let Self { program, cache, environment, last } = self;
        let mut seen = HashSet::from([program.elf.identity]);
        let mut asked: HashSet<Vec<u8>> = HashSet::new();
        let mut found = Vec::new();
        let interpreter = program.elf.interpreter.clone();
        let own_name = interpreter.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        let for_all = program.rpath.clone();
        let mut pending = VecDeque::from([(program, preloaded())]);
        while let Some((Pending { path, elf, rpath }, also)) = pending.pop_front() {
            let runpath =
                elf.runpath.as_deref().map_or_else(Vec::new, |list| directories(list, &path));
            let needed: Vec<(Vec<u8>, bool)> = also
                .into_iter()
                .map(|name| (name, false))
                .chain(elf.needed.iter().cloned().map(|name| (name, true)))
                .collect();
            for (name, must) in needed {
                let musl_itself = cache.is_none() && name == b"libc.so";
                let linker = own_name.as_deref().is_some_and(|own| own.as_bytes() == name);
                if musl_itself || linker || !asked.insert(name.clone()) {
                    continue;
                }
                let rpath = if elf.runpath.is_some() { &[][..] } else { &rpath };
                let candidates = candidates(&name, [rpath, &environment, &runpath], &cache, &last);
                let Some((path, elf)) =
                    { candidates }.find_map(|path| Some((path.clone(), Elf::open(&path)?)))
                else {
                    if must {
                        return None;
                    }
                    continue;
                };
                if !seen.insert(elf.identity) || seen.len() > MOST {
                    continue;
                }
                let mut rpath = for_all.clone();
                rpath.extend(
                    elf.rpath.as_deref().map_or_else(Vec::new, |list| directories(list, &path)),
                );
                if (elf.facts.fills_as_object(pages.pmd, pages.base)
                    || edges.is_for(elf.facts.text_bytes(), pages.pmd))
                    && let Ok(file) = elf.file.try_clone()
                {
                    found.push(Object { file, path: path.clone(), facts: elf.facts.clone() });
                }
                pending.push_back((Pending { path, elf, rpath }, Vec::new()));
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
