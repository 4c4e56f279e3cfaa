//! The executable may lie anywhere: deleted, without a name, on tmpfs or overlayfs, or on a machine that forbids
//! execution in the usual temporary directories.

use std::io::Read;
use std::os::fd::AsRawFd;

use support::{Kind, Prep, Public, Run, install, is_root, program, require};

fn assert_treated(run: &Run) {
    let held = run.hold();
    let huge: u64 = held.said("huge").expect("a huge line").parse().expect("a number");
    assert!(huge >= 4 << 20, "{}: {huge} bytes are huge", held.command);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_deleted_executable() {
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("gone");
        install(&program("hold", kind), &path, 0o755);
        let file = std::fs::File::open(&path).expect("the program");
        std::fs::remove_file(&path).expect("an own file");
        let run = Run::new("/proc/self/fd/77", ["7"]).prep(Prep::Fd(file.as_raw_fd(), 77));
        let held = run.hold();
        assert!(held.coverage().is_full(), "{:?}", held.coverage());
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn an_executable_that_never_had_a_name() {
    let mut content = Vec::new();
    std::fs::File::open(program("hold", Kind::StaticNoPie))
        .and_then(|mut f| f.read_to_end(&mut content))
        .expect("the program");
    // SAFETY: the name is a C string; the call makes a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"nameless".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and only this value owns it.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    std::io::Write::write_all(&mut &file, &content).expect("memory for the program");
    let read_only = std::fs::File::open(format!("/proc/self/fd/{fd}")).expect("the memfd again");
    drop(file);
    assert_treated(&Run::new("/proc/self/fd/77", ["7"]).prep(Prep::Fd(read_only.as_raw_fd(), 77)));
}

#[test]
fn an_executable_that_is_replaced_while_it_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("replaced");
    install(&program("hold", Kind::DynamicPie), &path, 0o755);
    let held = Run::new(&path, ["7"]).hold();
    assert!(held.coverage().is_full(), "{:?}", held.coverage());
    install(&program("small", Kind::DynamicPie), &dir.path().join("new"), 0o755);
    std::fs::rename(dir.path().join("new"), &path).expect("a rename in one directory");
    // The program runs its whole text once more before it ends.
    held.finish().assert_code(7).assert_silent();
    Run::new(&path, ["3"]).output().assert_code(3).assert_silent();
}

/// A launch in its own mount namespace, after a script has made mounts there. `$P` is the program, `$D` an empty
/// directory.
fn in_mounts(public: &Public, script: &str, launched: &str) -> Run {
    let mnt = public.path().join("mnt");
    std::fs::create_dir_all(&mnt).expect("a directory");
    let script = format!("mount --make-rprivate /; {script}; exec \"$@\"");
    Run::new(launched, ["7"])
        .binary(public.tiexec())
        .env("P", program("hold", Kind::DynamicPie))
        .env("D", mnt)
        .behind(["unshare", "--mount"])
        .behind_sh(&script)
}

#[test]
fn an_executable_on_tmpfs() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let at = public.path().join("mnt/program");
    let at = at.to_string_lossy();
    assert_treated(&in_mounts(
        &public,
        "mount -t tmpfs -o mode=755 tmpfs $D; cp \"$P\" $D/program",
        &at,
    ));
    assert_treated(&in_mounts(
        &public,
        "mount -t tmpfs -o mode=755,huge=always tmpfs $D; cp \"$P\" $D/program",
        &at,
    ));
}

#[test]
fn an_executable_on_overlayfs() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let at = public.path().join("mnt/program");
    let at = at.to_string_lossy();
    let overlay = "mkdir -p $D.l $D.u $D.w; cp \"$P\" $D.l/program; mount -t overlay -o lowerdir=$D.l,upperdir=$D.u,workdir=$D.w overlay $D";
    let run = in_mounts(&public, overlay, &at);
    require!(
        run.plain().hold().finish().status.code() == Some(7),
        "this kernel mounts no overlayfs"
    );
    // The program runs from the lower layer, and after a copy up.
    assert_treated(&run);
    assert_treated(&in_mounts(&public, &format!("{overlay}; touch $D/program"), &at));
}

#[test]
fn an_executable_on_a_read_only_and_nodev_nosuid_mount() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let at = public.path().join("mnt/program");
    let script = "mount -t tmpfs -o mode=755 tmpfs $D; cp \"$P\" $D/program; mount -o remount,ro,nosuid,nodev $D";
    assert_treated(&in_mounts(&public, script, &at.to_string_lossy()));
}

#[test]
fn an_executable_on_a_noexec_mount_is_the_same_error() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let at = public.path().join("mnt/program");
    let run = in_mounts(
        &public,
        "mount -t tmpfs -o noexec,mode=755 tmpfs $D; cp \"$P\" $D/program",
        &at.to_string_lossy(),
    );
    let (env, done) = (run.through_env().output(), run.output());
    env.assert_code(126);
    done.assert_code(126);
    assert!(
        done.err().starts_with("tiexec: ") && done.err().contains("ermission denied"),
        "{done}"
    );
}

#[test]
fn noexec_temporary_directories_do_not_matter() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let program = program("hold", Kind::DynamicPie);
    let script = "for d in /dev/shm /run; do mount -t tmpfs -o noexec tmpfs $d; done; mount -t tmpfs -o noexec tmpfs $D; export TMPDIR=$D";
    assert_treated(&in_mounts(&public, script, &program.to_string_lossy()));
}

#[test]
fn a_world_without_dev_run_tmp_and_sys() {
    require!(is_root(), "mounting needs root");
    let public = Public::new();
    let script = "mkdir $D.root; mount -t tmpfs -o mode=755 tmpfs $D.root; cd $D.root; mkdir proc bin; cp \"$P\" bin/program; cp \"$T\" bin/tiexec; \
                  for d in usr lib lib64; do [ -e /$d ] && mkdir $d && mount --rbind /$d $d; done; mount --rbind /proc proc";
    let script = format!("mount --make-rprivate /; {script}; exec chroot $D.root \"$@\"");
    let run = Run::new("/bin/program", ["7"])
        .binary("/bin/tiexec")
        .env("P", program("hold", Kind::DynamicPie))
        .env("T", public.tiexec())
        .env("D", public.path().join("mnt"))
        .behind(["unshare", "--mount"])
        .behind_sh(&script);
    // Without /sys the size of a huge page cannot be read. Either TiExec finds it another way, or a line says why no
    // text is huge.
    let held = run.hold();
    let huge: u64 = held.said("huge").expect("a huge line").parse().expect("a number");
    let done = held.finish();
    done.assert_code(7);
    if huge == 0 {
        assert!(done.fail_open_reason().is_some(), "{done}");
    } else {
        done.assert_silent();
    }
}

#[test]
fn a_current_directory_that_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let gone = dir.path().join("gone");
    std::fs::create_dir(&gone).expect("a directory");
    let program = program("hold", Kind::DynamicPie);
    assert_treated(&Run::new(program, ["7"]).cwd(&gone).behind_sh("rmdir \"$PWD\"; exec \"$@\""));
}

#[test]
fn a_relative_path() {
    let program = program("hold", Kind::DynamicPie);
    let (dir, name) = (
        program.parent().expect("a directory"),
        program.file_name().expect("a name").to_string_lossy(),
    );
    assert_treated(&Run::new(format!("./{name}"), ["7"]).cwd(dir));
    assert_treated(&Run::new(&*name, ["7"]).cwd(dir).env("PATH", ".:/usr/bin:/bin"));
    assert_treated(&Run::new(&*name, ["7"]).cwd(dir).env("PATH", ":/usr/bin:/bin"));
}
