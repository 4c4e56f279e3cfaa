//! The program runs even if huge pages fail because of too little memory, a limit or a knob, and one line on stderr
//! says why its text is on base pages. `filters.rs` has seccomp and ptrace.

use support::attaching::switched;
use support::child::eventually;
use support::machine::{
    FELT, Groups, Machine, hugetlb_controller, inside, is_throwaway, memory_controller, quiet,
};
use support::{
    Coverage, Done, Fresh, Kind, Prep, Public, Run, is_root, pmd_size, program, program_big,
    require, require_of_machine, smaps,
};

const PR_SET_THP_DISABLE: i32 = 41;

/// Runs `hold`. Returns its coverage and its end. In every case the program must run, and its status is its own.
fn launch(run: &Run) -> (Coverage, Done) {
    let held = run.hold();
    let coverage = support::coverage(held.said_pid());
    let done = held.finish();
    done.assert_code(7);
    (coverage, done)
}

/// These tests check how a copy fails, so they exclude the page cache, which may happen to be huge.
fn hold() -> Run {
    hold_by("image")
}

fn hold_by(backing: &str) -> Run {
    Run::new(program("hold", Kind::DynamicPie), ["7"]).options(["--backing", backing])
}

/// Asserts that the program runs without a copy, and that a line gives one of the reasons. (Its text may still be huge by the
/// file's page cache, independently of TiExec.)
fn assert_fails_open(run: &Run, reasons: &[&str]) {
    let without_copy = |run: &Run| {
        let held = run.hold();
        let copied = switched(held.said_pid());
        let done = held.finish();
        done.assert_code(7);
        assert_eq!(copied, 0, "{done}");
        done
    };
    without_copy(run).assert_failed_open(reasons);
    // -q silences the line, and the program still runs.
    without_copy(&run.clone().options(["-q"])).assert_silent();
}

fn assert_covered(run: &Run) {
    let (coverage, done) = launch(run);
    assert!(coverage.is_full(), "{coverage:?}: {done}");
    done.assert_silent();
}

/// Asserts that either all text is huge without a message, or a line gives one of the reasons. (In the second case the
/// text may still be huge by the file's page cache, independently of TiExec.)
fn assert_consistent(run: &Run, reasons: &[&str]) {
    let (coverage, done) = launch(run);
    match done.fail_open_reason() {
        None => assert!(coverage.is_full(), "silent, but {coverage:?}: {done}"),
        Some(_) => {
            done.assert_failed_open(reasons);
        }
    }
}

#[test]
fn thp_disabled_for_the_process() {
    for kind in support::programs::COMMON {
        let run =
            Run::new(program("hold", kind), ["7"]).prep(Prep::Prctl(PR_SET_THP_DISABLE, 1, 0));
        assert_fails_open(&run, &["thp_disabled"]);
    }
}

#[test]
fn thp_never_does_not_matter_to_an_image() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root(), "THP settings need root");
    let mut machine = Machine::lock();
    for knob in ["enabled", "shmem_enabled", "defrag"] {
        require!(
            machine.set(format!("/sys/kernel/mm/transparent_hugepage/{knob}"), "never"),
            "no knob {knob}"
        );
    }
    require!(support::attaching::collapses(), "no MADV_COLLAPSE here");
    assert_covered(&hold());
}

#[test]
fn shmem_deny_is_a_reason_or_does_not_matter() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root(), "THP settings need root");
    let mut machine = Machine::lock();
    require!(
        machine.set("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "deny"),
        "no such knob"
    );
    assert_consistent(&hold(), &["no_huge_page", "thp_disabled", "thp_unsupported"]);
}

/// The number of unused pages in the pool.
fn free_in_pool() -> u64 {
    let kib = pmd_size() / 1024;
    let free = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
    let free = std::fs::read_to_string(free).expect("the pool");
    free.trim().parse().expect("a number")
}

#[test]
fn the_hugetlb_pool_is_empty() {
    let _quiet = quiet();
    require!(free_in_pool() == 0, "somebody has filled the hugetlb pool");
    assert_fails_open(&hold_by("hugetlb"), &["hugetlb_pool"]);
}

#[test]
fn the_hugetlb_pool_is_used_only_when_named() {
    require!(is_root(), "the hugetlb pool needs root");
    let mut machine = Machine::lock();
    require!(machine.pool(8), "no huge pages for the pool");
    let before = free_in_pool();
    for kind in support::programs::COMMON {
        let held = Run::new(program("hold", kind), ["7"])
            .options(["--backing", "hugetlb", "--deadline", "2m"])
            .hold();
        assert!(held.coverage().is_full(), "{:?}", held.coverage());
        let vmas = smaps::vmas(held.pid());
        assert!(
            vmas.iter().any(|v| v.is_switched() && v.counter("KernelPageSize") == pmd_size()),
            "{vmas:?}"
        );
        held.finish().assert_code(7).assert_silent();
        // The helper may end a moment after the program.
        eventually("the pages are back in the pool", || free_in_pool() == before);
    }
    let held = hold().hold();
    assert!(held.coverage().is_full());
    assert_eq!(free_in_pool(), before, "--backing auto does not touch the pool");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn the_hugetlb_pool_is_too_small() {
    require!(is_root(), "the hugetlb pool needs root");
    let mut machine = Machine::lock();
    require!(free_in_pool() == 0, "somebody has filled the hugetlb pool");
    require!(machine.pool(1), "no huge pages for the pool");
    // Some kernels map text huge by themselves if it is cached in huge folios.
    let copy = Fresh::small(&program_big("hold", Kind::DynamicPie, 32));
    let run = Run::new(copy.path(), ["7"]).options(["--backing", "hugetlb"]);
    let (coverage, done) = launch(&run);
    assert!(!coverage.is_full(), "{coverage:?}");
    done.assert_failed_open(&["hugetlb_pool"]);
}

/// Sets this limit of a hugetlb cgroup to 0. Then either the reservation at mmap or the fault fails.
fn hugetlb_group(limit: &str) {
    require!(is_root(), "cgroups need root");
    let mut machine = Machine::lock();
    require!(machine.pool(8), "no huge pages for the pool");
    let parent = hugetlb_controller(&mut machine);
    require!(parent.is_some(), "no cgroup v2 with a hugetlb controller");
    let group = machine.group(&parent.expect("just checked"));
    require!(group.is_some(), "no cgroup can be made");
    let group = group.expect("just checked");
    let size = if pmd_size() == 2 << 20 { "2MB" } else { "32MB" };
    let file = group.join(format!("hugetlb.{size}.{limit}"));
    require!(std::fs::write(&file, "0").is_ok(), "no {}", file.display());
    let run = hold_by("hugetlb")
        .behind_sh(&format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display()));
    assert_fails_open(&run, &["hugetlb_pool"]);
}

#[test]
fn a_hugetlb_cgroup_refuses_at_mmap() {
    hugetlb_group("rsvd.max");
}

#[test]
fn a_hugetlb_cgroup_refuses_at_the_fault() {
    hugetlb_group("max");
}

#[test]
fn a_memory_cgroup_without_headroom() {
    require!(is_root(), "cgroups need root");
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, limit) = controller.expect("just checked");
    let mut cgroups = Groups::new();
    let group = cgroups.group(&parent);
    require!(group.is_some(), "no cgroup can be made");
    let group = group.expect("just checked");
    std::fs::write(group.join(limit), (40 << 20).to_string()).expect("a limit");
    assert_fails_open(&inside(&group, hold()), &["memcg_headroom"]);
    // The limit of an ancestor counts too.
    let below = group.join("below");
    std::fs::create_dir(&below).expect("a cgroup");
    if below.join(limit).exists() {
        assert_fails_open(&inside(&below, hold()), &["memcg_headroom"]);
    }
    support::child::eventually("the inner group is empty", || std::fs::remove_dir(&below).is_ok());
    // With room below the limit, the program is treated.
    std::fs::write(group.join(limit), (400 << 20).to_string()).expect("a limit");
    assert_covered(&inside(&group, hold()));
}

#[test]
fn the_address_space_is_limited() {
    // The limit leaves room for the program and half of a staged copy.
    let big =
        Run::new(program_big("hold", Kind::StaticNoPie, 32), ["7"]).options(["--backing", "image"]);
    let held = big.plain().hold();
    let peak = smaps::status_field(held.pid(), "VmPeak")
        .and_then(|v| v.split(' ').next()?.parse::<u64>().ok())
        .expect("VmPeak");
    held.finish().assert_code(7);
    let run = big.prep(Prep::Rlimit(libc::RLIMIT_AS, (peak << 10) + (16 << 20)));
    run.plain().output().assert_code(7);
    assert_fails_open(&run, &["address_space"]);
}

#[test]
fn hardly_any_address_space_at_all() {
    // These limits are so low that TiExec itself may fail. The program alone has enough room. Below the first one not even the
    // linker can load this tiexec, or leaves no room for one allocation.
    let limit = |kib: u64| Prep::Rlimit(libc::RLIMIT_AS, kib << 10);
    let begins = |kib: &u64| {
        let version = Run::new("x", [""; 0]).options(["--version"]);
        version.prep(limit(*kib)).output().status.success()
    };
    let least = (1024..65536).step_by(64).find(begins).expect("64 MiB are enough");
    let small = Run::new(program("hold", Kind::StaticNoPie), ["7"]);
    // A buffer of the helper has 128 KiB, so smaller steps meet the limit at which only that buffer finds no room.
    let little = (2..16).map(|part| 64 * part);
    for more in little.chain([1, 2, 4, 6, 8, 16, 40].map(|mib| mib << 10)) {
        let run = small.clone().prep(limit(least + more));
        if run.plain().output().status.code() != Some(7) {
            continue;
        }
        assert_consistent(
            &run,
            &["address_space", "fork_failed", "proc_unavailable", "helper_died", "stack_room"],
        );
    }
}

#[test]
fn no_descriptor_is_left() {
    // A dynamically linked tiexec needs a descriptor to load. A released tiexec is static and needs none.
    let is_loaded = |limit| {
        let version = Run::new("x", [""; 0]).options(["--version"]);
        version.prep(Prep::Rlimit(libc::RLIMIT_NOFILE, limit)).output().status.success()
    };
    let hold = |limit| {
        Run::new(program("hold", Kind::StaticNoPie), ["7"])
            .prep(Prep::Rlimit(libc::RLIMIT_NOFILE, limit))
    };
    if is_loaded(3) {
        hold(3).output().assert_code(7).assert_failed_open(&["fd_limit"]);
    }
    // Each round allows one descriptor more. From some number on, the program is treated. With fewer, a line says why
    // not.
    for limit in (4..=12).filter(|&limit| is_loaded(limit)) {
        assert_consistent(&hold(limit), &["fd_limit"]);
    }
    assert_covered(&hold(32));
}

#[test]
fn a_file_size_limit_kills_nobody() {
    // A memfd is a file. A process that grows it past RLIMIT_FSIZE gets SIGXFSZ.
    for limit in [0, 1, 1 << 20] {
        let run = hold().prep(Prep::Rlimit(libc::RLIMIT_FSIZE, limit));
        let (coverage, done) = launch(&run);
        assert!(coverage.is_full() || done.fail_open_reason().is_some(), "{coverage:?}: {done}");
    }
}

#[test]
fn other_limits_do_not_matter() {
    for (resource, limit) in [
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_DATA, 4 << 20),
        (libc::RLIMIT_STACK, 128 << 10),
        (libc::RLIMIT_CORE, 0),
    ] {
        assert_covered(&hold().prep(Prep::Rlimit(resource, limit)));
    }
}

#[test]
fn no_process_is_left() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let program = public.add(&program("exits", Kind::StaticNoPie), "exits", 0o755);
    // The limit counts all processes of the user, so the test uses a user without other processes.
    let front = [
        "setpriv",
        "--reuid",
        "64123",
        "--regid",
        "64123",
        "--clear-groups",
        "prlimit",
        "--nproc=1:1",
    ];
    // Text on the page cache becomes huge without a helper.
    let run = Run::new(program, ["code", "7"]).binary(public.tiexec()).behind(front);
    let run = run.options(["--backing=image"]);
    run.plain().output().assert_code(7);
    let done = run.output();
    done.assert_code(7).assert_failed_open(&["fork_failed"]);
    assert_eq!(done.out(), "ran\n");
}

#[test]
fn strict_overcommit_does_not_matter() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root(), "overcommit settings need root");
    let mut machine = Machine::lock();
    require!(machine.no_overcommit(1 << 10), "vm.overcommit_memory cannot be set");
    assert_covered(&hold());
    assert_covered(&Run::new(program("hold", Kind::StaticNoPie), ["7"]));
}

#[test]
fn the_deadline_has_passed() {
    let run = Run::new(program_big("hold", Kind::DynamicPie, 32), ["7"]);
    // On a slow machine the companion would copy the text before the test looks.
    let run = run.options(["--backing", "image", "--settle=0"]);
    assert_fails_open(&run.clone().options(["--deadline", "0ms"]), &["deadline"]);
    // The launch leaves text alone that is not staged in time, and reports it.
    let (coverage, done) = launch(&run.options(["--deadline", "1ms"]));
    match done.fail_open_reason() {
        None => assert!(coverage.is_full(), "{coverage:?}: {done}"),
        Some(reason) => {
            assert_eq!(reason, "deadline", "{done}");
            assert!(!coverage.is_full(), "{coverage:?}: {done}");
        }
    }
    assert_covered(
        &Run::new(program_big("hold", Kind::DynamicPie, 32), ["7"]).options(["--deadline", "2m"]),
    );
}

#[test]
fn proc_is_not_mounted() {
    require!(is_root(), "unmounting /proc needs root");
    let public = Public::new();
    let program = public.add(&program("exits", Kind::DynamicPie), "exits", 0o755);
    let script = "mount --make-rprivate /; umount -l /proc; exec \"$@\"";
    let run = Run::new(program, ["code", "7"])
        .binary(public.tiexec())
        .behind(["unshare", "--mount"])
        .behind_sh(script);
    let done = run.output();
    done.assert_code(7).assert_failed_open(&["proc_unavailable"]);
    assert_eq!(done.out(), "ran\n");
}

#[test]
fn a_program_without_anything_to_call_through() {
    let done = Run::new(program("no_gadget", Kind::Bare), [""; 0]).output();
    done.assert_code(7);
    if let Some(reason) = done.fail_open_reason() {
        assert_eq!(reason, "no_gadget", "{done}");
    }
}
