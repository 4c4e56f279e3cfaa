//! The processes that have a part of a file mapped, or the file open for writing, for a message that names them.

use std::fmt::Write;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_sys::pagecache::FileMapping;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{self, PathFile};
use tiexec_sys::{Pid, areas, process};
use tiexec_tracee::clock;

use crate::workers;

/// How long the search may take. A hostile process can hold the lock of its maps for ever, or have a million descriptors;
/// then nobody is named.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most processes that a message names.
const MOST: usize = 3;

/// Returns the processes that map `part` of a file (bytes) in words: `process 7 has`, `processes 7, 8, 9 and 2 more have`.
/// Names nobody if no process can be found, for instance because it runs in another PID namespace. `mapping` is a
/// mapping of the file in this process, by which the file is known in `/proc/PID/maps` (on some file systems `stat`
/// gives another device).
pub(crate) fn mappers(mapping: &FileMapping, part: &Range<u64>) -> String {
    let start = mapping.start();
    let own = ProcDir::this_process().and_then(|this| areas::vmas(&this)).unwrap_or_default();
    let file = own.iter().find(|vma| vma.range.contains(start)).map(|vma| vma.file);
    let maps_it = |file: FileId, vma: &Vma| {
        let end = vma.file_offset.saturating_add(vma.range.len());
        vma.file == file && vma.file_offset < part.end && part.start < end
    };
    let find = |file: FileId| {
        find(|process| {
            areas::vmas(process).is_ok_and(|vmas| vmas.iter().any(|vma| maps_it(file, vma)))
        })
    };
    in_words(&file.map(find).unwrap_or_default(), "running processes have")
}

/// Returns the processes that have the file open for writing, in words, as [`mappers`] does.
pub(crate) fn writers(file: &File) -> String {
    let own = ProcDir::this_process()
        .and_then(|this| PathFile::of_process(&this, &format!("fd/{}", file.as_raw_fd())))
        .and_then(|file| file.identity());
    let find = |file| find(|process| reopen::has_open_for_writing(process, file).unwrap_or(false));
    in_words(&own.map(find).unwrap_or_default(), "a process has")
}

/// Returns the words for the processes; `nobody` if there are none.
fn in_words(found: &[i32], nobody: &str) -> String {
    match found {
        [] => nobody.to_owned(),
        [one] => format!("process {one} has"),
        all => {
            let (named, others) = all.split_at(all.len().min(MOST));
            let named: Vec<_> = named.iter().map(ToString::to_string).collect();
            let mut text = format!("processes {}", named.join(", "));
            if !others.is_empty() {
                let _infallible = write!(text, " and {} more", others.len());
            }
            text + " have"
        }
    }
}

/// Searches for processes in a child of this process, which has the file open and mapped, too. Returns none if the search
/// takes too long.
fn find(uses_it: impl Fn(&ProcDir) -> bool) -> Vec<i32> {
    let parent = process::this();
    let search = || {
        let others = ProcDir::every().filter(|&(pid, _)| pid != parent && pid != process::this());
        let users = others.filter(|(_, process)| uses_it(process));
        users.map(|(pid, _): (Pid, _)| pid.as_raw_nonzero().get()).collect()
    };
    workers::apart(clock::answer(PATIENCE), search).unwrap_or_default()
}
