//! Every way of linking is treated. Images with privileges, unreadable ones and foreign ones run plain, silently, with
//! their privileges intact. A script is treated as its interpreter.

use support::child::tool;
use support::programs::COMMON;
use support::{Done, Kind, Public, Run, is_root, program, require, write_program};

const NOBODY: [&str; 4] = ["runuser", "-u", "nobody", "--"];

fn assert_treated(run: &Run) {
    let held = run.hold();
    assert!(held.coverage().is_full(), "{}: {:?}", held.command, held.coverage());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn every_way_of_linking() {
    for kind in COMMON {
        assert_treated(&Run::new(program("hold", kind), ["7"]));
    }
}

#[test]
fn musl_programs() {
    require!(Kind::Musl.can_build(), "no musl-gcc (musl-tools)");
    assert_treated(&Run::new(program("hold", Kind::Musl), ["7"]));
    assert_treated(&Run::new(program("hold", Kind::MuslStatic), ["7"]));
    // A static program that uses no signals has no way home from a signal frame. The program runs, and if it is not
    // treated, a line says so.
    let done = Run::new(program("argv", Kind::MuslStatic), ["x"]).output();
    done.assert_code(0);
    if let Some(reason) = done.fail_open_reason() {
        assert_eq!(reason, "no_gadget", "{done}");
    }
}

#[test]
fn a_program_without_libc() {
    let done = Run::new(program("entry_state", Kind::Bare), [""; 0]).output();
    done.assert_code(0).assert_silent();
}

#[test]
fn position_independent_programs_at_every_address() {
    // Each start has another address, so that 6 MiB have 2 or 3 whole huge pages.
    for _ in 0..25 {
        assert_treated(&Run::new(program("hold", Kind::DynamicPie), ["7"]));
        assert_treated(&Run::new(program("hold", Kind::StaticPie), ["7"]));
    }
}

#[test]
fn the_interpreter_of_a_script_is_treated() {
    let dir = tempfile::tempdir().expect("a directory");
    let interpreter = support::without_blanks(&program("hold", Kind::DynamicPie));
    let script = dir.path().join("script");
    write_program(&script, format!("#!{} 7\n", interpreter.display()).as_bytes(), 0o755);
    assert_treated(&Run::new(&script, ["rest"]));
    // The interpreter of this script is a script.
    let outer = dir.path().join("outer");
    write_program(&outer, format!("#!{}\n", script.display()).as_bytes(), 0o755);
    assert_treated(&Run::new(&outer, [""; 0]));
    // Blanks surround the interpreter, and the file ends without a line end.
    let bare = dir.path().join("bare");
    write_program(&bare, format!("#! \t{} 7", interpreter.display()).as_bytes(), 0o755);
    assert_treated(&Run::new(&bare, [""; 0]));
}

#[test]
fn a_file_without_magic_goes_to_the_shell() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script");
    write_program(&script, b"echo \"$0\" \"$1\"; exit 9\n", 0o755);
    let run = Run::new(&script, ["an argument"]);
    let (env, done) = (run.through_env().output(), run.output());
    assert_eq!(done.out(), env.out());
    env.assert_code(9);
    done.assert_code(9).assert_silent();
}

/// Runs `identity` as nobody, plain and launched, and checks that both see the same privileges.
fn same_privileges(run: &Run, must_have: &str) {
    let facts = |done: Done| {
        done.assert_code(0).assert_silent();
        let out = done.out();
        out.lines()
            .filter(|l| {
                l.starts_with("status ") || l.starts_with("secure ") || l.starts_with("prctl ")
            })
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let run = run.clone().behind(NOBODY);
    let plain = facts(run.plain().output());
    assert!(plain.iter().any(|l| l.contains(must_have)), "{must_have}: {plain:?}");
    assert_eq!(facts(run.output()), plain);
}

#[test]
fn setuid_and_setgid_images_keep_their_privileges() {
    require!(is_root(), "making a set-user-ID file needs root");
    let public = Public::new();
    let identity = program("identity", Kind::StaticNoPie);
    for (name, mode, must_have) in [
        ("suid", 0o4755, "status Uid:\t65534\t0\t0\t0"),
        ("sgid", 0o2755, "status Gid:\t65534\t0\t0\t0"),
        ("both", 0o6755, "secure 1"),
    ] {
        let file = public.add(&identity, name, mode);
        let run = Run::new(&file, [""; 0]).binary(public.tiexec());
        let works = run.plain().behind(NOBODY).output().out().contains("secure 1");
        require!(works, "{} is on a nosuid mount", file.display());
        same_privileges(&run, must_have);
        // If a report is requested, it has the reason.
        let done = run.options(["--report", "--json"]).behind(NOBODY).output();
        assert!(done.err().contains("privileged_image"), "{done}");
    }
}

#[test]
fn file_capabilities_are_kept() {
    require!(
        is_root() && support::installed("setcap").is_some(),
        "setcap needs root and libcap2-bin"
    );
    let public = Public::new();
    let file = public.add(&program("identity", Kind::StaticNoPie), "fcaps", 0o755);
    let set = tool(&["/usr/sbin/setcap", "cap_net_raw,cap_net_admin+ep", &file.to_string_lossy()]);
    require!(set.status.success(), "this file system has no file capabilities");
    same_privileges(
        &Run::new(&file, [""; 0]).binary(public.tiexec()),
        "status CapEff:\t0000000000003000",
    );
}

#[test]
fn a_setuid_program_in_an_unprivileged_chain_keeps_its_privileges() {
    require!(is_root(), "making a set-user-ID file needs root");
    let public = Public::new();
    let suid = public.add(&program("identity", Kind::StaticNoPie), "suid", 0o4755);
    for how in ["exec \"$0\"", "cd \"${0%/*}\" && exec ./suid"] {
        let run = Run::new("/bin/sh", ["-c", how, &suid.to_string_lossy()])
            .binary(public.tiexec())
            .options(["--until-exec=suid"])
            .behind(NOBODY);
        let done = run.output();
        assert!(done.out().contains("status Uid:\t65534\t0\t0\t0"), "{how}: {done}");
        assert!(done.err().contains("left alone before a privileged program"), "{how}: {done}");
    }
}

#[test]
fn a_setuid_interpreter_or_script_is_as_with_plain_exec() {
    require!(is_root(), "making a set-user-ID file needs root");
    let public = Public::new();
    let suid = public.add(&program("argv", Kind::StaticNoPie), "suid", 0o4755);
    let script = public.path().join("script");
    write_program(&script, format!("#!{} one\n", suid.display()).as_bytes(), 0o4755);
    let run = Run::new(&script, ["two"]).binary(public.tiexec()).behind(NOBODY);
    let (plain, done) = (run.plain().output(), run.output());
    assert_eq!(done.stdout, plain.stdout, "{done}");
    plain.assert_code(0);
    done.assert_code(0).assert_silent();
}

#[test]
fn an_unreadable_image_runs_plain() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let file = public.add(&program("exits", Kind::StaticNoPie), "unreadable", 0o711);
    let run = Run::new(&file, ["code", "7"]).binary(public.tiexec()).behind(NOBODY);
    let done = run.output();
    done.assert_code(7).assert_silent();
    assert_eq!(done.out(), "ran\n");
    let done = Run::new(&file, ["code", "7"])
        .binary(public.tiexec())
        .options(["--report", "--json"])
        .behind(NOBODY)
        .output();
    done.assert_code(7);
    assert!(done.err().contains("unreadable_image"), "{done}");
}

#[test]
fn a_32_bit_image_runs_plain() {
    let program = program("foreign32", Kind::Bare32);
    let works =
        std::process::Command::new(&program).output().is_ok_and(|o| o.status.code() == Some(32));
    require!(works, "this kernel runs no 32-bit programs");
    let done = Run::new(&program, [""; 0]).output();
    done.assert_code(32).assert_silent();
    assert_eq!(done.out(), "32-bit ran\n");
    let done = Run::new(&program, [""; 0]).options(["--report", "--json"]).output();
    done.assert_code(32);
    assert!(done.err().contains("foreign_image"), "{done}");
}

#[test]
fn tiexec_itself_may_be_launched_by_tiexec() {
    let nested = support::tiexec().to_path_buf();
    let run = Run::new(nested, [program("hold", Kind::DynamicPie).as_os_str(), "7".as_ref()]);
    assert_treated(&run);
}
