//! Seccomp filters: if a filter refuses a call, the library returns cleanly. A filter that kills can kill only a child
//! of the trial.

use std::collections::BTreeSet;

use support::attaching::collapses;
use support::{Kind, require};

use super::library::{calls_itself, situation};

/// Calls the library under filters with this action, each for one system call. Returns the numbers of the calls whose
/// filter ended the program, how often all text became huge, and how often no text did.
fn under_each(action: &str) -> (BTreeSet<i64>, u64, u64) {
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    // The number of system calls when this test was written.
    const CALLS: i64 = 470;
    let halves = [(0, CALLS / 2), (CALLS / 2 + 1, CALLS)];
    let runs: Vec<_> = halves
        .iter()
        .map(|(first, last)| {
            let range = [first.to_string(), last.to_string()];
            let args = ["each", "backing=image", action, &range[0], &range[1]];
            situation(&copy, &args).start()
        })
        .collect();
    let mut sums = (BTreeSet::new(), 0, 0);
    for run in runs {
        let done = run.finish();
        done.assert_code(7);
        let out = done.out();
        let harmed = out.lines().filter_map(|line| line.strip_prefix("harmed "));
        sums.0.extend(harmed.map(|line| {
            line.split(' ').next().and_then(|number| number.parse::<i64>().ok()).expect("a number")
        }));
        let number = |word: &str| -> u64 {
            support::child::said(&out, word).and_then(|text| text.parse().ok()).expect("a number")
        };
        sums.1 += number("full");
        sums.2 += number("refused");
    }
    sums
}

#[test]
fn each_call_that_is_refused_is_a_clean_return() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let (harmed, full, refused) = under_each("errno");
    assert_eq!(harmed, BTreeSet::new());
    assert!(full > 300 && refused > 10, "{full} {refused}");
}

/// The calls that precede the trial of all others, or implement it.
fn before_the_trial() -> BTreeSet<i64> {
    let calls = [
        libc::SYS_prctl,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigpending,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_getpid,
        libc::SYS_pipe2,
        libc::SYS_clone,
        libc::SYS_fcntl,
        libc::SYS_close,
        libc::SYS_wait4,
        libc::SYS_sched_getscheduler,
        libc::SYS_clock_nanosleep,
        libc::SYS_read,
    ];
    BTreeSet::from(calls)
}

/// The child of the trial that a filter kills is a copy of the program, with all of its memory.
#[test]
fn a_filter_that_kills_leaves_no_core() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    require!(pattern.trim() == "core", "kernel.core_pattern is not \"core\"");
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let dir = tempfile::tempdir_in(copy.dir()).expect("a directory");
    let number = libc::SYS_pkey_alloc.to_string();
    let args = ["each", "backing=image", "kill", &number, &number];
    let run = situation(&copy, &args).behind_sh("ulimit -c unlimited; exec \"$@\"").cwd(dir.path());
    let done = run.output();
    done.assert_code(7);
    assert!(done.out().contains("full 0\nrefused 1\n"), "{done}");
    let left = std::fs::read_dir(dir.path()).expect("a directory");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_filter_that_kills_is_not_tripped() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    for action in ["kill", "trap"] {
        let (harmed, full, refused) = under_each(action);
        let unforeseen = &harmed - &before_the_trial();
        assert!(unforeseen.is_empty(), "{action}: {unforeseen:?}");
        assert!(full > 300 && refused > 10, "{action}: {full} {refused}");
    }
}
