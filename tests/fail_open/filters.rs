//! The program runs even if seccomp filters refuse, kill or trap TiExec's calls, or if tracing is refused.

use support::{Done, Kind, Run, program};

const EPERM: &str = "errno=1";
const ENOSYS: &str = "errno=38";

/// A launch under a filter with this action for these calls. The program itself makes none of the calls.
fn filtered(action: &str, calls: &str) -> Run {
    let filter = program("seccomp_exec", Kind::DynamicPie);
    let run = Run::new(program("exits", Kind::StaticNoPie), ["code", "7"]).behind([
        filter.as_os_str(),
        action.as_ref(),
        calls.as_ref(),
    ]);
    let plain = run.plain().output();
    assert_eq!(
        plain.end(),
        (Some(7), None),
        "the program alone must live under the filter: {plain}"
    );
    run
}

fn assert_runs(run: &Run) -> Done {
    let done = run.output();
    done.assert_code(7);
    assert_eq!(done.out(), "ran\n", "{done}");
    done
}

#[test]
fn calls_that_are_refused() {
    for (calls, reasons) in [
        ("memfd_create", &["no_memfd", "seccomp"][..]),
        ("ftruncate", &["seccomp", "no_memfd"]),
        ("mremap", &["seccomp", "switch_failed"]),
        ("madvise", &["seccomp", "no_huge_page"]),
        ("ptrace", &["ptrace_denied", "seccomp"]),
        ("process_vm_writev", &["seccomp", "ptrace_denied", "switch_failed"]),
        ("clone,clone3,fork,vfork", &["fork_failed", "seccomp"]),
        ("setsid", &["seccomp", "fork_failed"]),
        (
            "memfd_create,madvise,mremap,ptrace,clone,clone3,fork,vfork",
            &["seccomp", "no_memfd", "ptrace_denied", "fork_failed"],
        ),
    ] {
        for errno in [EPERM, ENOSYS, "errno=12"] {
            let done = assert_runs(&filtered(errno, calls));
            // TiExec may avoid the call instead of giving a reason.
            if let Some(reason) = done.fail_open_reason() {
                assert!(
                    reasons.contains(&reason.as_str()),
                    "{errno} {calls}: {reason} is not one of {reasons:?}: {done}"
                );
            } else {
                assert!(
                    !["memfd_create", "mremap", "ptrace"].contains(&calls),
                    "{errno} {calls}: there is no way round this: {done}"
                );
            }
        }
    }
}

/// The calls, which the test filters one at a time. The program must live in every case.
const CALLS: [&str; 27] = [
    "memfd_create",
    "ftruncate",
    "fallocate",
    "madvise",
    "mremap",
    "munmap",
    "wait4",
    "waitid",
    "fcntl",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "setsid",
    "pidfd_open",
    "pidfd_getfd",
    "pipe2",
    "socketpair",
    "sendmsg",
    "recvmsg",
    "kill",
    "eventfd2",
    "pwrite64",
    "copy_file_range",
    "sendfile",
    "splice",
    "close_range",
    "statfs",
];

#[test]
fn any_call_may_be_refused() {
    for calls in CALLS.into_iter().chain([
        "rt_sigreturn",
        "clone",
        "clone3",
        "prctl",
        "tgkill",
        "poll",
        "ppoll",
        "rt_sigprocmask",
        "sigaltstack",
    ]) {
        for errno in [EPERM, ENOSYS] {
            let done = assert_runs(&filtered(errno, calls));
            // There is at most the one line.
            done.fail_open_reason();
        }
    }
}

/// A launch cannot survive a filter that kills TiExec before it has begun. These are therefore only calls that TiExec
/// can do without, or can rehearse in a child.
fn assert_rehearsed(action: &str) {
    let mut dead = Vec::new();
    for calls in [
        "memfd_create",
        "ftruncate",
        "madvise",
        "mremap",
        "wait4",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "setsid",
        "socketpair",
    ] {
        let run = filtered(action, calls);
        let done = run.output();
        if done.end() != (Some(7), None) || done.out() != "ran\n" {
            dead.push(format!("{calls}: {done}"));
        } else if let Some(reason) = done.fail_open_reason() {
            assert!(
                ["seccomp", "ptrace_denied", "no_memfd", "helper_died"].contains(&reason.as_str()),
                "{calls}: {done}"
            );
        }
    }
    assert!(dead.is_empty(), "the launch did not survive {action} of {}", dead.join("\n"));
}

#[test]
fn calls_that_kill() {
    assert_rehearsed("kill");
}

#[test]
fn calls_that_trap() {
    assert_rehearsed("trap");
}

#[test]
fn a_filter_that_refuses_nothing_of_ours_does_not_matter() {
    let filter = program("seccomp_exec", Kind::DynamicPie);
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).behind([
        filter.as_os_str(),
        EPERM.as_ref(),
        "sendfile,splice".as_ref(),
    ]);
    let held = run.hold();
    assert!(held.coverage().is_full(), "{:?}", held.coverage());
    held.finish().assert_code(7).assert_silent();
}

/// A companion whose waiting call is refused ends, and never spins.
#[test]
fn a_companion_that_may_not_wait_ends() {
    let filter = program("seccomp_exec", Kind::DynamicPie);
    let script = r#""$1" errno=1 ppoll,poll "$2" --settle=1m sleep 1m & program=$!
        sleep 3
        for stat in /proc/[0-9]*/stat; do cat $stat 2>/dev/null; done
        kill $program"#;
    let shown = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script, "bash"])
        .args([filter.as_path(), support::tiexec()])
        .output()
        .expect("unshare");
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("(sleep)"), "{shown}");
    // The time in user mode and in the kernel, in ticks of 10 ms.
    let used = |line: &str| -> u64 {
        let numbers = line.rsplit(')').next().unwrap_or_default().split_whitespace();
        numbers.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    };
    let spun = shown.lines().find(|line| line.contains("(tiexec") && used(line) > 100);
    assert_eq!(spun, None, "{shown}");
}

/// A program that installs one more filter after its start has other filters than this process. TiExec can neither read
/// nor try that filter, so it leaves the program alone, and the program lives.
#[test]
fn a_program_with_one_more_filter_is_left_alone() {
    let (filter, late) =
        (program("seccomp_exec", Kind::DynamicPie), program("hold", Kind::DynamicPie));
    let exec =
        |action: &str, calls: &str| [filter.clone().into_os_string(), action.into(), calls.into()];
    for (more, is_huge) in [(false, true), (true, false)] {
        let inner = exec("kill", "mremap").into_iter().filter(|_| more);
        let script = r#"i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec "$@""#;
        let args = ["-c", script, "sh"].map(Into::into).into_iter().chain(inner);
        let args = args.chain([late.clone().into_os_string(), "7".into()]);
        let held = Run::new("sh", args).behind(exec(EPERM, "splice")).hold();
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert_eq!(held.coverage().is_full(), is_huge, "{more}: {:?}", held.coverage());
        held.finish().assert_code(7).assert_silent();
    }
}
