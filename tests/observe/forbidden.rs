//! If the kernel forbids examining or tracing a process, the message names the cause and a fix that helps.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::attaching::{held, small};
use support::{Kind, Public, Run, is_root, program, require, tiexecctl};

const WITHOUT_PTRACE: [&str; 3] =
    ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn root_without_the_capability_is_not_told_to_become_root() {
    require!(is_root(), "needs root to give up a capability");
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    let run = |words: &[&str]| {
        Run::new(tiexecctl(), words.iter().copied().chain([pid.as_str()]))
            .plain()
            .behind(WITHOUT_PTRACE)
            .output()
    };
    for command in ["attach", "revert"] {
        let done = run(&[command]);
        done.assert_code(5);
        assert!(done.err().contains("CAP_SYS_PTRACE is missing in this process; fix: run it with"));
        assert!(!done.err().contains("run it as root"), "{done}");
    }
    let done = run(&["doctor"]);
    assert!(done.out().contains("an attach is forbidden: "), "{done}");
    assert!(done.out().contains(" MiB more could be; fix: start it as `tiexec "), "{done}");
    let machine = Run::new(tiexecctl(), ["doctor"]).plain().behind(WITHOUT_PTRACE).output();
    assert!(machine.out().contains("attach      CAP_SYS_PTRACE is missing: "), "{machine}");
    held.finish().assert_code(7);
}

/// A daemon that holds keys, such as ssh-agent, is not dumpable, so even its own user may not examine it.
#[test]
fn a_user_is_not_told_to_become_the_user_that_it_is() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let guarded = program("hostile/undumpable", Kind::DynamicPie);
    let guarded = public.add(&guarded, "guarded", 0o755);
    let held = Run::new(&guarded, ["7"]).plain().behind(NOBODY).hold();
    let pid = held.pid().to_string();
    for command in ["attach", "revert", "inspect", "advise"] {
        let done = Run::new(&ctl, [command, &pid]).plain().behind(NOBODY).output();
        done.assert_code(5);
        assert!(done.err().contains("the process is this user's, but guarded"), "{done}");
        assert!(done.err().ends_with("; fix: run it as root\n"), "{done}");
        assert!(done.err().lines().count() == 1, "{done}");
    }
    let root = Run::new(&ctl, ["inspect", &pid]).plain().output();
    root.assert_code(0).assert_silent();
    held.finish().assert_code(7);
}

#[test]
fn rules_check_of_a_process_of_root() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    let none = public.path().join("none");
    std::fs::create_dir(&none).expect("a directory");
    support::chmod(&none, 0o755);
    let none = none.display().to_string();
    let words = ["rules", "check", "--conf-dir", &none, "--state-dir", &none, &pid];
    let done = Run::new(&ctl, words).plain().behind(NOBODY).output();
    done.assert_code(5);
    assert!(done.err().contains("permission denied (EACCES); fix: run it as root"), "{done}");
    held.finish().assert_code(7);
}

#[test]
fn programs_by_their_files_as_another_user() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let hold = public.add(&program("hold", Kind::DynamicPie), "hold-of-root", 0o755);
    let held = Run::new(&hold, ["7"]).plain().hold();
    let hidden = public.path().join("hidden");
    std::fs::create_dir(&hidden).expect("a directory");
    std::fs::copy(&hold, hidden.join("hold")).expect("a copy");
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700)).expect("chmod");
    let find = |path: &Path| {
        let words = [OsStr::new("inspect"), OsStr::new("--exe"), path.as_os_str()];
        let done = Run::new(&ctl, words).plain().behind(NOBODY).output();
        done.assert_code(4);
        done.err()
    };
    let said = find(&hold);
    assert!(said.contains(": no process that you may look at runs it ("), "{said}");
    assert!(said.contains(" could not be looked at); fix: run it as root"), "{said}");
    let said = find(&hidden.join("hold"));
    assert!(said.contains(": cannot look at the file: permission denied (EACCES) ("), "{said}");
    let said = find(public.path());
    assert!(said.contains(": it is a directory ("), "{said}");
    assert!(said.ends_with("; fix: name the file of a program\n"), "{said}");
    held.finish().assert_code(7);
}

/// If the command did not end, it would wait for the end of a process that it may never examine.
#[test]
fn following_ends_with_an_attach_that_is_forbidden() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let held = held(&small("hold", Kind::DynamicNoPie));
    let words = ["attach", "--follow", &held.pid().to_string()];
    let done = Run::new(&ctl, words).plain().behind(NOBODY).output();
    done.assert_code(5);
    assert!(done.err().contains("ptrace_denied"), "{done}");
    held.finish().assert_code(7);
}
