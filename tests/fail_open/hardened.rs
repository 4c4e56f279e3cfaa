//! Programs run on a hardened kernel. TiExec treats them as far as the kernel permits, and names the obstacle to the
//! rest.

use support::attaching::{
    Before, assert_switched, assert_there_and_back, assert_untouched, attach, collapses, ctl, held,
    json, ok, revert, small, started,
};
use support::machine::{FELT, Machine, YAMA, is_throwaway, yama_scope};
use support::smaps::{status_field, vmas};
use support::{
    Done, Kind, Prep, Public, Run, installed, is_root, program, require, require_of_machine,
    tiexecctl,
};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Launches `hold`, which must run in every case. Returns whether its text was huge, and its end.
fn launch(run: &Run) -> (bool, Done) {
    let held = run.hold();
    let coverage = held.coverage();
    assert!(coverage.huge == 0 || coverage.is_full(), "{coverage:?}");
    let done = held.finish();
    done.assert_code(7);
    (coverage.is_full(), done)
}

#[test]
fn yama_lets_a_launch_be_traced_where_it_lets_anybody() {
    let Some(scope) = yama_scope() else {
        return support::skip_for_want_of_a_machine("no Yama in this kernel");
    };
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root() && installed("setpriv").is_some(), "sysctls and other users need root");
    require!(scope < 3, "kernel.yama.ptrace_scope is 3: yama_forbids.rs");
    let public = Public::new();
    let program = public.add(&program("hold", Kind::DynamicPie), "hold", 0o755);
    let root = Run::new(&program, ["7"]).options(["--backing=image"]);
    let user = root.clone().binary(public.tiexec()).behind(NOBODY);
    for scope in 0..=2 {
        let mut machine = Machine::lock();
        require!(machine.set(YAMA, &scope.to_string()), "{YAMA} takes no {scope}");
        let (covered, done) = launch(&root);
        assert!(covered, "root, {scope}: {done}");
        done.assert_silent();
        let (covered, done) = launch(&user);
        // A scope of 2 requires a capability of every tracer.
        assert_eq!(covered, scope < 2, "a user, {scope}: {done}");
        if covered {
            done.assert_silent();
        } else {
            done.assert_failed_open(&["ptrace_denied"]);
            assert!(done.err().contains("kernel.yama.ptrace_scope is 2"), "{done}");
        }
    }
}

#[test]
fn yama_refuses_an_attach_by_its_name() {
    let Some(scope) = yama_scope() else {
        return support::skip_for_want_of_a_machine("no Yama in this kernel");
    };
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root() && installed("setpriv").is_some(), "sysctls and other users need root");
    require!(scope < 3, "kernel.yama.ptrace_scope is 3: yama_forbids.rs");
    let public = Public::new();
    let binary = public.add(tiexecctl(), "tiexecctl", 0o755);
    let program = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let mut machine = Machine::lock();
    let held = Run::new(&program, ["7"]).plain().behind(NOBODY).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    for scope in 0..=2 {
        require!(machine.set(YAMA, &scope.to_string()), "{YAMA} takes no {scope}");
        let text = pid.to_string();
        let done = started(&NOBODY, &binary, ["attach", "--backing=image", &text]).finish();
        if scope == 0 {
            done.assert_code(0);
            assert_switched(pid);
            ok(&revert(pid));
        } else {
            done.assert_code(5);
            let knob = format!("kernel.yama.ptrace_scope is {scope}");
            for part in ["ptrace_denied", &knob] {
                assert!(done.err().contains(part), "{part}: {done}");
            }
        }
        assert_untouched(pid, &before);
        // Root's capability is enough for each scope.
        assert_there_and_back(pid);
    }
    held.finish().assert_code(7);
}

/// Returns whether the kernel can forbid memory that was writable to become executable (`PR_GET_MDWE`, since 6.3).
fn has_mdwe() -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(66, 0, 0, 0, 0) >= 0 }
}

/// `PR_SET_MDWE` with `PR_MDWE_REFUSE_EXEC_GAIN`: a mapping that was created without execute permission cannot gain it.
const MDWE: Prep = Prep::Prctl(65, 1, 0);

#[test]
fn writing_and_executing_are_kept_apart_at_launch() {
    require!(has_mdwe(), "the kernel has no PR_SET_MDWE");
    for kind in support::programs::COMMON {
        let run = Run::new(program("hold", kind), ["7"]).options(["--backing=image"]);
        let (covered, done) = launch(&run.prep(MDWE));
        assert!(covered, "{kind:?}: {done}");
        done.assert_silent();
    }
}

#[test]
fn writing_and_executing_are_kept_apart_in_a_running_program() {
    require!(has_mdwe(), "the kernel has no PR_SET_MDWE");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().prep(MDWE).hold();
    assert_there_and_back(held.pid());
    held.finish().assert_code(7);
}

#[test]
fn sealed_text_is_left_alone() {
    let copy = small("situations", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["sealed"]).plain().hold();
    require!(held.said("no").is_none(), "the kernel has no mseal(2)");
    let pid = held.pid();
    let before = Before::of(pid);
    let done = attach(pid);
    assert!(json(&done).to_string().contains("\"sealed\""), "{done}");
    assert_untouched(pid, &before);
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
    held.finish().assert_code(7);
}

const NOEXEC: &str = "/proc/sys/vm/memfd_noexec";

/// Runs a script in a PID namespace with this `vm.memfd_noexec`, which applies only to that namespace.
fn in_a_namespace(value: &str, script: &str) -> [String; 7] {
    let script = format!("echo {value} >{NOEXEC} && {script}");
    ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", &script].map(str::to_owned)
}

#[test]
fn memory_files_without_an_executable_bit_at_launch() {
    require!(is_root(), "sysctls of a PID namespace need root");
    require!(std::path::Path::new(NOEXEC).exists(), "the kernel has no vm.memfd_noexec");
    for value in ["0", "1", "2"] {
        let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).options(["--backing=image"]);
        let mut front = in_a_namespace(value, "exec \"$@\"").to_vec();
        front.push("sh".to_owned());
        let held = run.behind(front).hold();
        let huge = held.said("huge").and_then(|huge| huge.parse::<u64>().ok());
        assert!(huge.is_some_and(|huge| huge >= 4 << 20), "{value}: {}", held.out_text());
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn memory_files_without_an_executable_bit_for_a_running_program() {
    require!(is_root(), "sysctls of a PID namespace need root");
    require!(std::path::Path::new(NOEXEC).exists(), "the kernel has no vm.memfd_noexec");
    let copy = small("hold", Kind::DynamicNoPie);
    // The process that makes the memory file must be in the namespace, so the script runs both there.
    let script = "{ sleep 600 | \"$1\" 7 & } && pid=$! &&
        until [ \"$(readlink /proc/$pid/exe)\" = \"$1\" ]; do sleep 0.1; done &&
        \"$2\" attach --quiet --backing=image $pid &&
        awk '/^ShmemPmdMapped/ { sum += $2 } END { print \"switched\", sum }' /proc/$pid/smaps";
    for value in ["0", "1", "2"] {
        let [unshare, front @ ..] = in_a_namespace(value, script);
        let run = Run::new(unshare, front).plain().with_arg("sh").with_arg(copy.path());
        let done = run.with_arg(tiexecctl()).output();
        done.assert_code(0);
        let huge = support::child::said(&done.out(), "switched").and_then(|kib| kib.parse().ok());
        assert!(huge.is_some_and(|kib: u64| kib >= 4 << 10), "{value}: {done}");
    }
}

/// The settings of THP apply to the memory of programs. `MADV_COLLAPSE` ignores them.
#[test]
fn thp_never_does_not_matter_to_a_copy() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root(), "THP settings need root");
    require!(collapses(), "no MADV_COLLAPSE here");
    let mut machine = Machine::lock();
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    for knob in ["enabled", "shmem_enabled", "defrag"] {
        let knob = format!("/sys/kernel/mm/transparent_hugepage/{knob}");
        require!(machine.set(&knob, "never"), "no {knob}");
    }
    ok(&attach(pid));
    assert_switched(pid);
    let said = ctl(["inspect", &pid.to_string()]);
    said.assert_code(0);
    ok(&revert(pid));
    assert!(!vmas(pid).iter().any(|vma| vma.is_switched()));
    held.finish().assert_code(7);
    let run = Run::new(copy.path(), ["7"]).options(["--backing=image"]);
    let (covered, done) = launch(&run);
    assert!(covered, "{done}");
    // The kernel decides about the page cache. The program runs without a message.
    let (_, done) = launch(&Run::new(copy.path(), ["7"]));
    done.assert_silent();
}
