//! If the process or the machine forbids something, the call returns with the reason, and the program continues.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::attaching::{collapses, switched};
use support::machine::{FELT, Machine, is_throwaway};
use support::store::{mount, own_run};
use support::{Done, Kind, Prep, Run, is_root, require, require_of_machine};

use super::calls::calls;
use super::library::{calls_itself, directory, situation};

/// Makes the call in a situation. Returns its code and the reason.
fn call(prepare: impl FnOnce(Run) -> Run, name: &str, settings: &str) -> (i32, String) {
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let done = prepare(situation(&copy, &[name, settings])).output();
    outcome(&done)
}

fn outcome(done: &Done) -> (i32, String) {
    done.assert_code(7);
    let calls = calls(&done.out(), "call");
    let call = calls.last().unwrap_or_else(|| panic!("no call: {done}"));
    (call[0].parse().expect("a number"), call[3].clone())
}

fn works() -> (i32, String) {
    (0, "-".to_owned())
}

#[test]
fn it_works_where_memory_may_not_become_executable() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let done = situation(&copy, &["mdwe", "backing=image"]).output();
    require!(!done.out().contains("no mdwe"), "the kernel has no PR_SET_MDWE");
    assert_eq!(outcome(&done), works());
}

#[test]
fn it_works_where_the_process_has_switched_thp_off() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    assert_eq!(call(|run| run, "thp_disabled", "backing=image"), works());
}

#[test]
fn it_works_with_closed_standard_streams() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    assert_eq!(call(|run| run, "closed", "backing=image"), works());
}

#[test]
fn it_works_where_memfds_must_not_be_executable() {
    const NOEXEC: &str = "/proc/sys/vm/memfd_noexec";
    require!(
        is_root() && collapses() && std::path::Path::new(NOEXEC).exists(),
        "not root, or the kernel has no vm.memfd_noexec"
    );
    let script = format!("echo 2 >{NOEXEC}; \"$@\"");
    let behind = |run: Run| {
        run.behind(["unshare", "--pid", "--fork", "--mount-proc", "sh", "-ec", &script, "sh"])
    };
    assert_eq!(call(behind, "call", "backing=image"), works());
}

#[test]
fn without_rights_to_its_own_memory() {
    require!(is_root(), "root only: it gives rights up");
    // The /proc files of a process that is not dumpable belong to root, and the process is not root any more.
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let public = support::Public::new();
    let program = public.add(copy.path(), "calls_itself", 0o755);
    for file in ["libtiexec.so.1", "tiexec.h"] {
        public.add(&directory().join(file), file, 0o755);
    }
    let run = Run::new(program, ["undumpable"]).plain().env("LD_LIBRARY_PATH", public.path());
    let done = run.behind(["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"]).output();
    assert_eq!(outcome(&done), (-libc::EACCES, "ptrace_denied".to_owned()));
}

#[test]
fn without_room() {
    // A limit on file sizes can raise a signal, which must never reach the program.
    let limits: [(Prep, &[&str]); 2] = [
        (Prep::Rlimit(libc::RLIMIT_NOFILE, 4), &["fd_limit", "ptrace_denied"]),
        (Prep::Rlimit(libc::RLIMIT_FSIZE, 4096), &["no_huge_page"]),
    ];
    for (limit, reasons) in limits {
        let (code, reason) = call(|run| run.prep(limit), "call", "backing=image");
        assert!(code < 0 && reasons.contains(&&reason[..]), "{limit:?}: {code} {reason}");
    }
}

#[test]
fn without_memory() {
    let no_memory = (-libc::ENOMEM, "address_space".to_owned());
    assert_eq!(call(|run| run, "no_memory", "backing=image"), no_memory);
}

#[test]
fn where_proc_is_missing_or_of_another_namespace() {
    require!(is_root(), "root only: it mounts");
    let script = "mount -t tmpfs none /proc; exec \"$@\"";
    let missing = |run: Run| run.behind(["unshare", "-m", "sh", "-ec", script, "sh"]);
    let (code, reason) = call(missing, "call", "");
    assert!(code < 0, "{code} {reason}");
    // The PID of the process belongs to another process there.
    let other = |run: Run| run.behind(["unshare", "--pid", "--fork"]);
    let (code, reason) = call(other, "call", "");
    assert!(code < 0, "{code} {reason}");
}

#[test]
fn where_it_is_switched_off() {
    let off = (-libc::ECANCELED, "disabled".to_owned());
    assert_eq!(call(|run| run.env("TIEXEC", "off"), "call", ""), off);
    assert_eq!(call(|run| run, "call", "off"), off);
    require!(is_root(), "root only: it mounts");
    let disabled =
        "mount -t tmpfs none /etc; mkdir /etc/tiexec; >/etc/tiexec/disabled; exec \"$@\"";
    let switched = |run: Run| run.behind(["unshare", "-m", "sh", "-ec", disabled, "sh"]);
    assert_eq!(call(switched, "call", ""), off);
}

/// If the administrator has switched off huge pages for shmem, the library gets none either.
#[test]
fn where_the_machine_has_none() {
    require_of_machine!(is_throwaway(), FELT);
    let mut machine = Machine::lock();
    let knob = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    require!(machine.set(knob, "deny"), "no {knob}");
    let (code, reason) = call(|run| run, "call", "backing=image");
    assert_eq!((code, &reason[..]), (-libc::ENOMEM, "no_huge_page"));
}

/// Lets other users reach a directory at its path, in a mount namespace of this test: the repository may lie in a private home.
fn let_others_reach(directory: &Path) {
    let is_closed = |above: &&Path| {
        let above = std::fs::metadata(above).expect("a directory above");
        above.permissions().mode() & 0o001 == 0
    };
    let Some(outermost) = directory.ancestors().filter(is_closed).last() else { return };
    own_run();
    let aside = Path::new("/run/reachable");
    std::fs::create_dir(aside).expect("a directory in a /run of its own");
    mount(&directory.to_string_lossy(), aside, None, libc::MS_BIND, "");
    mount("none", outermost, Some("tmpfs"), 0, "mode=0755");
    std::fs::create_dir_all(directory).expect("directories in a new tmpfs");
    mount("/run/reachable", directory, None, libc::MS_BIND, "");
}

/// A program with more rights than its user ignores the user's environment.
#[test]
fn a_set_user_id_program_ignores_the_environment() {
    require!(is_root(), "root only: it makes a set-user-ID program");
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let public = support::Public::new();
    let program = public.add(copy.path(), "calls_itself", 0o755);
    let owned = std::os::unix::fs::chown(&program, Some(1718), Some(1718));
    owned.expect("root may");
    let_others_reach(directory());
    support::chmod(&program, 0o6755);
    let report = public.path().join("report");
    let library = super::library::shared();
    let settings = format!("backing=image,verbose,report={}", report.display());
    let run = Run::new(&program, ["nothing"]).plain();
    let run = run.env("LD_PRELOAD", &library).env("TIEXEC", &settings);
    let held = run.behind(["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"]).hold();
    assert_eq!(switched(held.pid()), 0);
    let done = held.finish();
    done.assert_code(7);
    assert!(!report.exists() && !done.err().contains("tiexec: "), "{done}");
    // The same program without the rights obeys the environment.
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    support::chmod(&program, 0o755);
    support::chmod(public.path(), 0o777);
    let run = Run::new(&program, ["nothing"]).plain();
    let run = run.env("LD_PRELOAD", &library).env("TIEXEC", &settings);
    let held = run.hold();
    assert!(switched(held.pid()) > 0);
    held.finish().assert_code(7);
}
