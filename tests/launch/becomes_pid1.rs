//! A launched program as PID 1 of a namespace, under a subreaper, or of a user without any privilege has full coverage, no stray process
//! and no zombie.

use support::{Done, Kind, Public, Run, is_root, program, require};

/// Runs `identity`, and checks that it is treated and has no children.
fn assert_treated_and_childless(run: &Run) -> Done {
    let held = run.hold();
    assert_eq!(held.said("wait_plain").as_deref(), Some("No child processes"), "{}", held.command);
    assert_eq!(held.said("wait_all").as_deref(), Some("No child processes"), "{}", held.command);
    assert!(held.out_text().contains("\nstatus TracerPid:\t0\n"), "{}", held.out_text());
    let huge: u64 = held.said("huge").expect("a huge line").parse().expect("a number");
    assert!(huge >= 4 << 20, "{}: {huge} bytes are huge", held.command);
    let done = held.finish();
    done.assert_code(0).assert_silent();
    done
}

fn identity() -> Run {
    // The watch of the start would be a child there (`start::as_process_1_…`).
    Run::new(program("identity", Kind::DynamicPie), [""; 0]).options(["--settle=0"])
}

#[test]
fn pid_1_of_a_namespace() {
    require!(is_root(), "a PID namespace needs root");
    let run = identity().behind(["unshare", "--pid", "--fork", "--mount-proc"]);
    let done = assert_treated_and_childless(&run);
    assert_eq!(done.out().lines().next(), Some("pid 1"), "{done}");
    for code in [0, 7, 255] {
        let run = Run::new(program("exits", Kind::StaticNoPie), ["code", &code.to_string()]);
        run.behind(["unshare", "--pid", "--fork", "--mount-proc"])
            .output()
            .assert_code(code)
            .assert_silent();
    }
}

#[test]
fn pid_1_where_proc_shows_another_namespace() {
    require!(is_root(), "a PID namespace needs root");
    // /proc belongs to the outer namespace, so /proc/self does not exist. The program runs, and if its text is not huge
    // a line says why.
    let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
        .behind(["unshare", "--pid", "--fork"]);
    let done = run.output();
    done.assert_code(7);
    assert_eq!(done.out(), "ran\n");
    if let Some(reason) = done.fail_open_reason() {
        assert_eq!(reason, "proc_unavailable", "{done}");
    }
}

#[test]
fn under_a_subreaper_nothing_comes_up_to_be_reaped() {
    // Without --settle=0 the watch of the start would be an orphan that the subreaper has to reap.
    let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
        .options(["--settle=0"])
        .behind([program("subreaper", Kind::DynamicPie)]);
    let done = run.output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "ran\nexited 7\nstrays 0\n");
    // The same holds for a program that is not treated, and for a program that is killed.
    let run = Run::new(program("small", Kind::DynamicPie), ["3"])
        .options(["--settle=0"])
        .behind([program("subreaper", Kind::DynamicPie)]);
    assert_eq!(run.output().out(), "small ran\nexited 3\nstrays 0\n");
    let run = Run::new(program("exits", Kind::StaticPie), ["signal", "11"])
        .options(["--settle=0"])
        .behind([program("subreaper", Kind::DynamicPie)]);
    assert_eq!(run.output().out(), "ran\nsignaled 11\nstrays 0\n");
}

#[test]
fn an_unprivileged_user_gets_full_coverage() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let identity = public.add(&program("identity", Kind::DynamicPie), "identity", 0o755);
    let run = Run::new(identity, [""; 0]).binary(public.tiexec());
    let done = assert_treated_and_childless(&run.clone().behind(["runuser", "-u", "nobody", "--"]));
    assert!(done.out().contains("status Uid:\t65534\t65534"), "{done}");
    let setpriv = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ];
    let done = assert_treated_and_childless(&run.behind(setpriv));
    assert!(done.out().contains("status CapEff:\t0000000000000000"), "{done}");
}

#[test]
fn root_without_capabilities_gets_full_coverage() {
    require!(is_root(), "dropping capabilities needs root");
    let public = Public::new();
    let identity = public.add(&program("identity", Kind::DynamicPie), "identity", 0o755);
    let run = Run::new(identity, [""; 0]).binary(public.tiexec()).behind([
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--securebits=+noroot",
    ]);
    assert_treated_and_childless(&run);
}

#[test]
fn a_user_namespace_without_root_gets_full_coverage() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let identity = public.add(&program("identity", Kind::DynamicPie), "identity", 0o755);
    let nobody = ["runuser", "-u", "nobody", "--", "unshare", "--user", "--map-root-user"];
    let works = support::child::tool(&[
        "runuser",
        "-u",
        "nobody",
        "--",
        "unshare",
        "--user",
        "--map-root-user",
        "true",
    ])
    .status
    .success();
    require!(works, "unprivileged user namespaces are switched off");
    let run = Run::new(&identity, [""; 0]).binary(public.tiexec()).options(["--settle=0"]);
    let done = assert_treated_and_childless(&run.clone().behind(nobody));
    assert!(done.out().contains("status Uid:\t0\t0"), "{done}");
    let done = assert_treated_and_childless(&run.behind(nobody).behind([
        "--pid",
        "--fork",
        "--mount-proc",
    ]));
    assert_eq!(done.out().lines().next(), Some("pid 1"), "{done}");
}

#[test]
fn where_proc_hides_other_users_processes() {
    require!(is_root(), "a mount namespace needs root");
    let public = Public::new();
    let identity = public.add(&program("identity", Kind::DynamicPie), "identity", 0o755);
    let script = "mount -t proc -o hidepid=2 proc /proc; exec runuser -u nobody -- \"$@\"";
    let run = Run::new(identity, [""; 0])
        .options(["--settle=0"])
        .binary(public.tiexec())
        .behind(["unshare", "--mount", "--pid", "--fork"])
        .behind_sh(script);
    assert_treated_and_childless(&run);
}
