//! The processes that have a part of a file mapped, for a message that names them.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_sys::pagecache::FileMapping;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas, process};

use crate::workers;

/// How long the search may take. A hostile process can hold the lock of its maps for ever; then nobody is named.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most processes that a message names.
const MOST: usize = 3;

/// Returns the processes that map `part` of a file (bytes) in words: `process 7 has`, `processes 7, 8, 9 and 2 more have`.
/// Names nobody if no process can be found, for instance because it runs in another PID namespace. `mapping` is a
/// mapping of the file in this process, by which the file is known in `/proc/PID/maps` (on some file systems `stat`
/// gives another device).
pub(crate) fn in_words(mapping: &FileMapping, part: &Range<u64>) -> String {
    let start = mapping.start();
    let own = ProcDir::this_process().and_then(|this| areas::vmas(&this)).unwrap_or_default();
    let file = own.iter().find(|vma| vma.range.contains(start)).map(|vma| vma.file);
    // The search runs in a child of this process, which has the mapping, too.
    let this = process::this();
    let found = file.and_then(|file| workers::apart(PATIENCE, || find(file, part, this)).ok());
    let found = found.unwrap_or_default();
    match found.as_slice() {
        [] => "running processes have".to_owned(),
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

fn find(file: FileId, part: &Range<u64>, parent: Pid) -> Vec<i32> {
    let maps_it = |vma: &Vma| {
        let end = vma.file_offset.saturating_add(vma.range.len());
        vma.file == file && vma.file_offset < part.end && part.start < end
    };
    let others = ProcDir::every().filter(|&(pid, _)| pid != parent && pid != process::this());
    let users = others
        .filter(|(_, process)| areas::vmas(process).is_ok_and(|vmas| vmas.iter().any(maps_it)));
    users.map(|(pid, _): (Pid, _)| pid.as_raw_nonzero().get()).collect()
}
