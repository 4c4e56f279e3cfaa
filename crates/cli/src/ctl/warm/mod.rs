//! `tiexecctl warm FILE…`: brings the text of files into huge folios of their page cache.

mod closure;
mod elf_file;
mod table;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tiexec_core::addr::{Pages, mib};
use tiexec_core::escape::AsShown;
use tiexec_core::skip::SkipReason;
use tiexec_remap::warm as remap;

use super::progress::Progress;
use super::{pages, print, told};
use crate::exit;
use crate::options::Warm;
use crate::stdio::warn;
use elf_file::ElfFile;
use table::{Row, Rows};

pub(super) fn run(options: &Warm) -> u8 {
    let pages = match pages("warm anything") {
        Ok(pages) => pages,
        Err(status) => return status,
    };
    let mut run = Run::new(options, pages);
    for path in &options.files {
        run.named(path);
    }
    drop(run.progress);
    let rows = run.rows;
    let printed = match (options.json, options.quiet) {
        (true, _) => print(&rows.to_json()),
        (false, true) => exit::OK,
        (false, false) => print(&rows.to_string()),
    };
    if printed == exit::OK { rows.status() } else { printed }
}

/// Warms the programs that rules name, and prints a line for each; returns the exit status.
///
/// Files that cannot be the program of a process are skipped, because a pattern also matches scripts, links and
/// directories.
pub(super) fn programs<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> u8 {
    let pages = match pages("warm anything") {
        Ok(pages) => pages,
        Err(status) => return status,
    };
    let options = Warm { files: Vec::new(), check: false, deps: false, json: false, quiet: true };
    let mut run = Run::new(&options, pages);
    let own = rustix::process::geteuid().as_raw();
    let mut printed = exit::OK;
    for path in paths {
        let before = run.rows.lines().count();
        // No other user may choose a file for root to read.
        let refused = |why: String| {
            let line = format!("{}: {}{why}\n", path.shown(), SkipReason::NotOwner.as_str());
            print(&line)
        };
        match ElfFile::open_if_trusted(path) {
            Ok(Err(distrust)) => {
                let why = format!(": {distrust}; fix: {}", distrust.fix());
                printed = told(printed, refused(why));
            }
            Ok(Ok(file)) if ![0, own].contains(&file.owner) => {
                printed = told(printed, refused(String::new()));
            }
            Ok(Ok(_)) if !path.symlink_metadata().is_ok_and(|file| file.is_file()) => continue,
            Ok(Ok(file)) => run.file(path, &file),
            Err((error, exit::NOT_PERMITTED)) => run.failed(path, &error, exit::NOT_PERMITTED),
            Err(_no_program) => continue,
        }
        for line in run.rows.lines().skip(before) {
            printed = told(printed, print(&line));
        }
    }
    told(run.rows.status(), printed)
}

/// Returns whether a file is an ELF image that no other user than this one and root could have put there. No other file is opened.
pub(super) fn is_trusted_elf(path: &Path) -> bool {
    matches!(ElfFile::open_if_trusted(path), Ok(Ok(_)))
}

struct Run<'a> {
    options: &'a Warm,
    pages: Pages,
    /// Device and inode of each finished file, because a file may be named twice, or needed twice.
    seen: HashSet<(u64, u64)>,
    rows: Rows,
    progress: Progress,
    /// The number of files that were begun, and of those that are known.
    begun: usize,
    known: usize,
}

impl<'a> Run<'a> {
    fn new(options: &'a Warm, pages: Pages) -> Self {
        Self {
            options,
            pages,
            seen: HashSet::new(),
            rows: Rows::new(options.check),
            progress: Progress::unless(options.quiet),
            begun: 0,
            known: options.files.len(),
        }
    }

    fn doing(&self) -> &'static str {
        if self.options.check { "check" } else { "warm" }
    }

    /// Does one file of the command line and, with `--deps`, the libraries that it needs.
    fn named(&mut self, path: &Path) {
        let Some(file) = self.opened(path, ElfFile::open(path)) else { return };
        if self.options.deps {
            self.progress.now(|| format!("listing the libraries of {}", path.shown()));
        }
        // The libraries are listed before the file is warmed, because ld.so maps the file while it lists them.
        let needed = if self.options.deps { closure::of(path, &file) } else { Ok(Vec::new()) };
        self.known += needed.as_ref().map_or(0, Vec::len);
        self.file(path, &file);
        match needed {
            Ok(needed) => needed.iter().for_each(|path| self.dependency(path)),
            Err(error) => {
                self.failed(path, &format!("what it needs is not known: {error}"), exit::FAILED);
            }
        }
    }

    fn dependency(&mut self, path: &Path) {
        if let Some(file) = self.opened(path, ElfFile::open_trusted(path)) {
            self.file(path, &file);
        }
    }

    fn opened(&mut self, path: &Path, opened: Result<ElfFile, (String, u8)>) -> Option<ElfFile> {
        match opened {
            Ok(file) => Some(file),
            Err((error, status)) => {
                self.failed(path, &error, status);
                None
            }
        }
    }

    fn failed(&mut self, path: &Path, error: &str, status: u8) {
        warn(format_args!("cannot {} {}: {error}", self.doing(), path.shown()));
        self.rows.failed(path, error, status);
    }

    fn file(&mut self, path: &Path, file: &ElfFile) {
        self.begun += 1;
        if !self.seen.insert(file.identity) {
            return;
        }
        let files = match self.known {
            0 | 1 => String::new(),
            known => format!("file {} of {known}, ", self.begun),
        };
        let text = file.facts.text_parts(self.pages.base);
        let progress = &mut self.progress;
        let done = if self.options.check {
            progress.at(|| format!("checking {files}{}", path.shown()));
            remap::look(&file.file, &text, self.pages)
        } else {
            let total = text.iter().map(|part| part.end - part.start).sum();
            remap::warm(&file.file, &text, self.pages, |bytes| {
                progress.at(|| {
                    let (bytes, total) = (mib(bytes), mib(total));
                    format!("warming {files}{bytes} of {total} MiB, {}", path.shown())
                });
            })
        };
        match done {
            Ok(warmth) => {
                self.explain(path, &warmth);
                self.rows.done(Row::new(path, warmth));
            }
            Err(failure) => self.failed(path, &failure.detail, exit::FAILED),
        }
    }

    /// Prints why a file did not become huge.
    fn explain(&self, path: &Path, warmth: &remap::Warmth) {
        let missing = warmth.missing();
        let Some(obstacle) = &warmth.obstacle else { return };
        if missing == 0 || self.options.quiet {
            return;
        }
        let pmd = self.pages.pmd.bytes();
        let fix = obstacle.reason.fix_for(Some(&path.word().to_string()));
        warn(format_args!(
            "cannot warm {} of {} huge pages of {}: {}{}",
            missing / pmd,
            (missing + warmth.huge_bytes) / pmd,
            path.shown(),
            obstacle.detail,
            fix.map_or(String::new(), |fix| format!("; fix: {fix}")),
        ));
    }
}
