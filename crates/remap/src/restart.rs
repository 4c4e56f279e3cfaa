//! How much huge text a new launch would give a running program, at a better address.

use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::config::EdgePolicy;
use tiexec_core::coverage::FileCoverage;
use tiexec_core::plan::{Plan, plan_start};
use tiexec_core::proc::auxv;
use tiexec_core::rebase::MainImage;
use tiexec_core::report::Restart;
use tiexec_core::skip::FailureKind;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{PathFile, Version};
use tiexec_tracee::Failure;

use crate::elf_file::elf_facts;
use crate::open_mapped::open_exe;
use crate::pagecache::{self, ChunkState};

/// A running program, and what a launch would do to it.
#[derive(Clone, Debug)]
pub struct Started {
    /// The whole range in which the program lies now.
    pub image: AddrRange,
    /// The plan of a launch.
    pub plan: Plan,
    /// The options that the launch needs for this plan, each behind a blank.
    options: &'static str,
    /// Bytes of its text.
    text_bytes: u64,
    /// Bytes of its text that fill whole huge pages at its present address.
    whole_bytes: u64,
}

/// Plans a start of the program that a process runs.
///
/// # Errors
/// The program's file could not be opened, or is of a kind that no launch treats.
pub fn plan(process: &ProcDir, edges: EdgePolicy, pages: Pages) -> Result<Started, Failure> {
    let exe = open_exe(process)?;
    let (header, facts) = elf_facts(&exe)?;
    let auxv = process.read("auxv").map_err(Failure::unreadable)?;
    let nowhere = || Failure::new(FailureKind::ProcUnavailable, "auxv has no entry point");
    let entry = RemoteAddr::new(auxv::get(&auxv, auxv::AT_ENTRY).ok_or_else(nowhere)?);
    let image = MainImage::new(&facts, header.entry, entry);
    let texts = facts.loads.iter().filter(|load| load.is_text());
    let moved = |at: RemoteAddr| RemoteAddr::new(at.get().wrapping_add(image.load_bias));
    let texts: Vec<AddrRange> = texts
        .filter_map(|load| load.mapped(pages.base))
        .filter_map(|text| AddrRange::new(moved(text.start()), moved(text.end())))
        .collect();
    let whole = texts.iter().filter_map(|text| text.align_inward(pages.pmd));
    let (plan, options) = of_start(&exe, &image, entry, edges, pages);
    Ok(Started {
        image: image.range(pages.base).ok_or_else(nowhere)?,
        plan,
        options,
        text_bytes: texts.iter().map(|text| text.len()).sum(),
        whole_bytes: whole.map(AddrRange::len).sum(),
    })
}

/// How long a plan counts for other processes of the same program. A family of processes is looked at one after the other.
const RECENT: Duration = Duration::from_secs(1);

/// The inputs of a plan, beside the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Basis {
    exe: Version,
    entry: u64,
    edges: EdgePolicy,
    pages: Pages,
}

/// As [`plan`], or returns the last plan, if it is recent and was made for the same program at the same address.
fn recent_plan(process: &ProcDir, edges: EdgePolicy, pages: Pages) -> Result<Started, Failure> {
    static LAST: Mutex<Option<(Instant, Basis, Started)>> = Mutex::new(None);
    let basis = || {
        let exe = PathFile::of_process(process, "exe").ok()?.version().ok()?;
        let entry = auxv::get(&process.read("auxv").ok()?, auxv::AT_ENTRY)?;
        Some(Basis { exe, entry, edges, pages })
    };
    let Some(basis) = basis() else { return plan(process, edges, pages) };
    // The value is whole between any two statements.
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((made, of, started)) = &*last
        && *of == basis
        && made.elapsed() < RECENT
    {
        return Ok(started.clone());
    }
    let started = plan(process, edges, pages)?;
    *last = Some((Instant::now(), basis, started.clone()));
    Ok(started)
}

/// Plans by what the page cache holds now, and reads nothing into it. A launch places a program for the page cache
/// if any of its text is in huge folios. Returns the options for the plan, too: without them, a launch may make the page
/// cache huge where a copy gives more.
fn of_start(
    exe: &File,
    image: &MainImage,
    entry: RemoteAddr,
    edges: EdgePolicy,
    pages: Pages,
) -> (Plan, &'static str) {
    let by = |folios: &[Range<u64>]| plan_start(image, entry, folios, edges, pages);
    let len = exe.metadata().map_or(0, |meta| meta.len());
    let bias = image.congruent_bias(pages.pmd).unwrap_or(0);
    let chunks = image.chunks(bias, pages, edges, len);
    let (copied, cached) = (by(&[]), by(&chunks));
    let Ok(states) = pagecache::state(exe, &chunks, pages) else { return (copied, "") };
    if states.iter().all(|(_, state)| *state == ChunkState::Small) {
        let is_more = copied.huge_bytes() > cached.huge_bytes();
        return (copied, if is_more { " --backing=image" } else { "" });
    }
    let huge = states.into_iter().filter(|(_, state)| *state == ChunkState::Huge);
    let huge: Vec<Range<u64>> = huge.map(|(page, _)| page).collect();
    if !huge.is_empty() {
        return (by(&huge), "");
    }
    // A launch reads text that is not cached, in huge folios or in small ones; plan for the worse result.
    (if cached.huge_bytes() < copied.huge_bytes() { cached } else { copied }, "")
}

/// Returns what a launch would give, if that is more than the process has or can have. `files` are those of the
/// process.
pub fn gain(
    process: &ProcDir,
    files: &[FileCoverage],
    edges: EdgePolicy,
    pages: Pages,
) -> Option<Restart> {
    let Started { plan, options, text_bytes, whole_bytes, .. } =
        recent_plan(process, edges, pages).ok()?;
    let exe = process.exe_path().ok()?;
    // Nobody can start a program in a memfd by a path.
    if exe.starts_with(b"/memfd:") {
        return None;
    }
    let path =
        String::from_utf8_lossy(exe.strip_suffix(b" (deleted)").unwrap_or(&exe)).into_owned();
    let huge = files.iter().find(|file| file.path == path).map_or(0, |file| file.huge_bytes);
    let (here_bytes, launch_bytes) = (huge.max(whole_bytes), plan.huge_bytes());
    let command = format!("tiexec{options}{}", edges.options());
    let restart = Restart { path, text_bytes, here_bytes, launch_bytes, command };
    (restart.launch_bytes > restart.here_bytes).then_some(restart)
}
