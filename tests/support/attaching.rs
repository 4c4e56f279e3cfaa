//! Programs that already run: attached to and reverted from outside, and their mappings before and after.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::attached::descriptors;
use super::child::{Done, Held};
use super::fresh::Fresh;
use super::launch::Run;
use super::programs::{Kind, program};
use super::smaps::{Vma, pmd_size, vmas};

/// `tiexecctl` with these arguments.
pub(crate) fn ctl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Done {
    ctl_behind(&[], args)
}

/// The same behind a command that changes something first, and then execs it.
pub(crate) fn ctl_behind<S: AsRef<OsStr>>(
    front: &[&str],
    args: impl IntoIterator<Item = S>,
) -> Done {
    started(front, super::tiexecctl(), args).finish()
}

/// Starts a command of ours.
pub(crate) fn started<S: AsRef<OsStr>>(
    front: &[&str],
    binary: &Path,
    args: impl IntoIterator<Item = S>,
) -> Held {
    let mut words: Vec<_> = front.iter().map(|word| OsStr::new(word).to_owned()).collect();
    words.push(binary.as_os_str().to_owned());
    words.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_remove("TIEXEC");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Held::spawn(command, format!("{words:?}"), Duration::from_secs(40), false)
}

/// `tiexecctl attach --backing=image --json`.
pub(crate) fn attach(pid: i32) -> Done {
    ctl(["attach", "--backing=image", "--json", &pid.to_string()])
}

/// `tiexecctl revert --json`.
pub(crate) fn revert(pid: i32) -> Done {
    ctl(["revert", "--json", &pid.to_string()])
}

/// What a command printed as JSON.
pub(crate) fn json(done: &Done) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// The program, private, in small folios of the page cache: nothing of it is huge before.
pub(crate) fn small(name: &str, kind: Kind) -> Fresh {
    let copy = Fresh::cold(&program(name, kind));
    super::warm::cache_small(copy.path());
    copy
}

/// `hold`, running; ends with 7 if its text is right to the end.
pub(crate) fn held(copy: &Fresh) -> Held {
    Run::new(copy.path(), ["7"]).plain().hold()
}

/// All mappings, those joined that one line could show: same file, permissions, and offsets that go on.
pub(crate) fn joined(pid: i32) -> Vec<String> {
    let mut all: Vec<Vma> = Vec::new();
    for vma in vmas(pid) {
        match all.last_mut() {
            Some(last)
                if last.end == vma.start
                    && last.path == vma.path
                    && last.perms == vma.perms
                    && last.path.starts_with('/')
                    && last.offset + (last.end - last.start) == vma.offset =>
            {
                last.end = vma.end;
            }
            _ => all.push(vma),
        }
    }
    let line = |v: &Vma| format!("{:x}-{:x} {} {:x} {}", v.start, v.end, v.perms, v.offset, v.path);
    // Whoever is stopped between two allocations may have a longer heap afterwards.
    all.iter().filter(|vma| vma.path != "[heap]").map(line).collect()
}

/// The bytes of it that images of ours hold.
pub(crate) fn switched(pid: i32) -> u64 {
    vmas(pid).iter().filter(|vma| vma.is_switched()).map(|vma| vma.end - vma.start).sum()
}

/// Panics unless every whole huge page of the main text is PMD-mapped and an image of ours.
pub(crate) fn assert_switched(pid: i32) {
    let all = vmas(pid);
    let ours: Vec<&Vma> = all.iter().filter(|vma| vma.is_switched()).collect();
    assert!(!ours.is_empty(), "nothing of ours in {:?}", joined(pid));
    for vma in ours {
        assert_eq!(vma.perms, "r-xp", "{vma:?}");
        assert_eq!(vma.counter("ShmemPmdMapped"), vma.end - vma.start, "{vma:?}");
        assert_eq!(vma.start % pmd_size(), 0, "{vma:?}");
    }
    let coverage = super::coverage(pid);
    assert!(coverage.is_full(), "{coverage:?}");
}

/// Panics unless the process is exactly as before: its mappings and its descriptors.
pub(crate) fn assert_untouched(pid: i32, before: &Before) {
    assert_eq!(joined(pid), before.maps, "mappings");
    assert_eq!(descriptors(pid), before.descriptors, "descriptors");
}

/// What a process had before.
pub(crate) struct Before {
    maps: Vec<String>,
    descriptors: Vec<String>,
}

impl Before {
    pub(crate) fn of(pid: i32) -> Before {
        Before { maps: joined(pid), descriptors: descriptors(pid) }
    }
}
