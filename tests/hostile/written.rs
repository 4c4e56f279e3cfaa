//! Another user who may rename the directories on the way to a file decides neither where root's file appears nor whose
//! file it becomes.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};

use support::{Done, Held, Kind, Public, Run, chmod, installed, is_root, program, require};

use super::ATTACKER;

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

fn install_to(directory: &Path) -> Done {
    let args = ["install-to".as_ref(), directory.as_os_str()];
    Run::new(support::tiexecctl(), args).plain().output()
}

/// Makes a directory of the attacker's.
fn theirs(public: &Public) -> PathBuf {
    let theirs = public.path().join("theirs");
    std::fs::create_dir(&theirs).expect("an own directory");
    chown(&theirs, Some(2001), Some(2001)).expect("chown");
    theirs
}

fn attacker(script: &str) -> Held {
    let mut held = Run::new("sh", ["-c", script]).plain().behind(ATTACKER).start();
    held.wait_line("ready");
    held
}

/// Returns all files of the programs' names below a directory.
fn programs(at: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(at).expect("a directory").flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(programs(&path)),
            _ if path.file_name().is_some_and(|name| name == "tiexec") => {
                found.push(path.display().to_string())
            }
            _ => {}
        }
    }
    found
}

/// The attacker exchanges two directories all the time. Each has the attacker's own file under all names that a new file
/// could get while it is written.
#[test]
fn a_directory_that_is_exchanged_while_programs_are_installed() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let theirs = theirs(&public);
    let next = std::process::id();
    let script = format!(
        "cd {} && mkdir a b && for pid in $(seq {next} $(({next} + 3000))); do echo theirs >b/.tiexec-$pid; done; \
         echo ready; while [ ! -e end ]; do mv -T a c; mv -T b a; mv -T c b; done; exit 7",
        theirs.display()
    );
    let held = attacker(&script);
    for _ in 0..100 {
        let done = install_to(&theirs.join("a"));
        done.assert_code(1);
        let why = format!("{} belongs to user 2001; fix: chown root ", theirs.display());
        assert!(done.err().contains(&why), "{done}");
    }
    std::fs::write(theirs.join("end"), b"").expect("root may");
    held.finish().assert_code(7);
    assert_eq!(programs(&theirs), [""; 0]);
}

/// Neither the last directory, nor one on the way, nor a link, may be another user's to replace.
#[test]
fn programs_are_installed_only_where_nobody_else_can_replace_them() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let theirs = theirs(&public);
    let own = public.path().join("own");
    std::fs::create_dir(&own).expect("an own directory");
    let open = public.path().join("open");
    std::fs::create_dir_all(open.join("own")).expect("own directories");
    chmod(&open, 0o777);
    let link = public.path().join("link");
    symlink(&own, &link).expect("a link");
    let their_link = public.path().join("their-link");
    symlink(&own, &their_link).expect("a link");
    std::os::unix::fs::lchown(&their_link, Some(2001), Some(2001)).expect("chown");
    for (directory, why) in [
        (theirs.clone(), "belongs to user 2001"),
        (theirs.join("new"), "belongs to user 2001"),
        (open.clone(), "is writable by others (mode 0777); fix: chmod go-w "),
        (open.join("own"), "is writable by others (mode 0777)"),
        (open.join("../own"), "is writable by others (mode 0777)"),
        (their_link.join("new"), "is a symbolic link of user 2001"),
    ] {
        let done = install_to(&directory);
        done.assert_code(1);
        assert!(done.err().contains(why), "{directory:?}: {done}");
        let found = [&theirs, &own, &open].map(|at| programs(at)).concat();
        assert_eq!(found, [""; 0], "{directory:?}");
    }
    // Root's own link leads on, as /bin does to /usr/bin. Missing directories are made.
    install_to(&link.join("new/bin")).assert_code(0).assert_silent();
    let installed = own.join("new/bin/tiexec");
    let metadata = installed.metadata().expect("it is installed");
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (0, 0o755));
}

/// A volume of a pod belongs to all its containers, whatever their users.
#[test]
fn programs_are_installed_into_a_volume() {
    require!(needs() && installed("unshare").is_some(), "a mount needs root");
    let public = Public::new();
    let volume = public.path().join("volume");
    std::fs::create_dir(&volume).expect("an own directory");
    let script = "mount -t tmpfs -o mode=0777 volume \"$1\" && shift && \"$@\" && \
                  stat -c '%u %a' \"$3/tiexec\" \"$3/bin\"";
    let at = volume.to_string_lossy().into_owned();
    let ctl = support::tiexecctl().to_string_lossy().into_owned();
    let front = ["unshare", "-m", "sh", "-c", script, "sh", &at];
    for directory in [at.clone(), format!("{at}/bin")] {
        let done = Run::new(&ctl, ["install-to", &directory]).plain().behind(front).output();
        assert!(done.out().starts_with("0 755\n"), "{done}");
    }
}

/// A link in the path, not as its last part, led to any directory of root's.
#[test]
fn a_link_of_theirs_on_the_way_to_a_report() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let theirs = theirs(&public);
    let own = public.path().join("own");
    std::fs::create_dir_all(own.join("below")).expect("own directories");
    let done = attacker(&format!(
        "cd {} && ln -s {} link && mkdir movable && echo ready",
        theirs.display(),
        own.display()
    ));
    done.finish().assert_code(0);
    // Root made this link, but whoever owns the directory may give it another's name.
    symlink(&own, theirs.join("roots")).expect("a link");
    let report = |path: PathBuf| {
        let option = format!("--report={}", path.display());
        let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"]);
        run.options([option.as_str()]).output()
    };
    for (path, why) in [
        ("link/out", "is a symbolic link of user 2001; fix: name another directory"),
        ("link/below/out", "is a symbolic link of user 2001"),
        ("roots/out", "is behind a directory that others may move"),
        ("movable/../out", "is behind a directory that others may move"),
        ("movable/../../own/out", "is behind a directory that others may move"),
    ] {
        let done = report(theirs.join(path));
        done.assert_code(7);
        assert!(done.err().contains(why) && done.err().lines().count() == 1, "{path}: {done}");
        let (root, below) = (std::fs::read_dir(&own), std::fs::read_dir(own.join("below")));
        assert_eq!((root.expect("own").count(), below.expect("own").count()), (1, 0), "{path}");
    }
    // The attacker's directory itself is where root wants it.
    report(theirs.join("movable/out")).assert_code(7).assert_silent();
    assert!(theirs.join("movable/out").exists());
    // Root's own link, and `..` where nobody moves anything.
    symlink(&own, public.path().join("link")).expect("a link");
    report(public.path().join("link/below/../out")).assert_code(7).assert_silent();
    assert!(own.join("out").exists());
}
