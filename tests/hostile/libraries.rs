//! A user chooses the libraries of a program, by its RPATH and by links there, and `ld.so` is not made for hostile files.
//! `tiexecctl warm --deps` of root's neither has `ld.so` read them with root's rights, nor opens what a user chose.

use std::ffi::OsStr;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::child::eventually;
use support::smaps::child_with;
use support::{Done, Public, Run, is_root, require, tiexecctl};

const USER: u32 = 2001;

const NOBODY: u32 = 65534;

/// A program that needs a library in a directory of the user's.
struct Needs {
    _public: Public,
    program: PathBuf,
    library: PathBuf,
    theirs: PathBuf,
}

fn cc(arguments: &[&str], output: &Path, source: &Path) {
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(output).arg(source).args(arguments);
    assert!(cc.status().expect("cc").success());
}

/// Makes the program, which belongs to `owner` and lies in a directory of root's.
fn needs(owner: u32) -> Needs {
    let public = Public::new();
    let theirs = public.path().join("theirs");
    std::fs::create_dir(&theirs).expect("an own directory");
    let (library, program) = (theirs.join("libtheirs.so"), public.path().join("program"));
    let source = public.path().join("source.c");
    std::fs::write(&source, "int theirs(void) { return 0; }\n").expect("a file");
    cc(&["-shared", "-fPIC"], &library, &source);
    std::fs::write(&source, "int theirs(void); int main(void) { return theirs(); }\n")
        .expect("a file");
    let directory = theirs.to_str().expect("a name of ours");
    let rpath = format!("-Wl,-rpath,{directory}");
    cc(&["-L", directory, "-ltheirs", &rpath], &program, &source);
    for path in [&theirs, &library] {
        chown(path, Some(USER), Some(USER)).expect("root");
    }
    chown(&program, Some(owner), Some(owner)).expect("root");
    Needs { _public: public, program, library, theirs }
}

fn warm(file: &Path) -> Run {
    let options = ["warm", "--check", "--deps", "--json"].map(OsStr::new);
    Run::new(tiexecctl(), options.into_iter().chain([file.as_os_str()])).plain()
}

fn done(file: &Path) -> Done {
    warm(file).output()
}

#[test]
fn ld_so_has_no_right_of_roots() {
    require!(is_root(), "another user needs root");
    for (owner, expected) in [(USER, USER), (0, NOBODY)] {
        let needs = needs(owner);
        std::fs::remove_file(&needs.library).expect("an own directory");
        // While it opens a FIFO, ld.so waits.
        let made = Command::new("mkfifo").args(["-m", "666"]).arg(&needs.library).status();
        assert!(made.expect("mkfifo").success());
        let script = "exec 9</etc/shadow && exec \"$@\"";
        let front = ["env", "PASSWORD=secret", "sh", "-c", script, "sh"];
        let command = warm(&needs.program).behind(front).start();
        let mut ld_so = None;
        eventually("ld.so runs", || {
            ld_so = child_with(command.pid(), "--list");
            ld_so.is_some()
        });
        let ld_so = PathBuf::from(format!("/proc/{}", ld_so.expect("just found")));
        let status = std::fs::read_to_string(ld_so.join("status")).expect("it waits");
        let line = |name: &str| {
            let mut lines = status.lines().filter_map(|line| line.strip_prefix(name));
            lines.next().expect("a line of status").split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(line("Uid:"), [expected.to_string().as_str(); 4], "a program of user {owner}");
        assert_eq!(line("Gid:"), [NOBODY.to_string().as_str(); 4]);
        assert_eq!(line("Groups:"), [""; 0]);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(line(set), ["0000000000000000"], "{set}");
        }
        assert_eq!(std::fs::read(ld_so.join("environ")).expect("root"), b"");
        let open = std::fs::read_dir(ld_so.join("fd")).expect("root").flatten();
        let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        assert!(!open.contains(&PathBuf::from("/etc/shadow")), "{open:?}");
        // The other end is here, and has nothing to say: ld.so finds an empty file.
        drop(std::fs::File::options().write(true).open(&needs.library).expect("a FIFO"));
        let done = command.finish();
        done.assert_code(3);
        assert!(done.err().contains(&format!(" --list as user {expected}: ")), "{done}");
    }
}

#[test]
fn a_library_of_theirs_is_not_opened() {
    require!(is_root(), "another user needs root");
    for owner in [USER, 0] {
        let needs = needs(owner);
        let done = done(&needs.program);
        let theirs = needs.theirs.display();
        let refusal = format!("{theirs} belongs to user {USER}; fix: name the file itself");
        assert!(done.err().contains(&refusal), "{done}");
        done.assert_code(3);
        // The system's own libraries are still found.
        assert!(done.out().contains("/libc.so.6"), "{done}");
    }
}

#[test]
fn a_link_to_what_only_root_may_read_is_not_followed() {
    require!(is_root(), "another user needs root");
    let needs = needs(0);
    let secret = needs.theirs.with_file_name("secret.so");
    std::fs::rename(&needs.library, &secret).expect("an own directory");
    chown(&secret, Some(0), Some(0)).expect("root");
    support::chmod(&secret, 0o600);
    symlink(&secret, &needs.library).expect("an own directory");
    let done = done(&needs.program);
    done.assert_code(3);
    assert!(!done.out().contains("/theirs/libtheirs.so"), "{done}");
    assert!(done.err().contains("libtheirs.so: cannot open shared object file"), "{done}");
}

#[test]
fn a_program_that_others_may_exchange_is_not_listed() {
    require!(is_root(), "another user needs root");
    let needs = needs(0);
    let exchanged = needs.theirs.join("program");
    std::fs::rename(&needs.program, &exchanged).expect("an own directory");
    let done = done(&exchanged);
    done.assert_code(3);
    let why = format!("others than its owner may replace {}", needs.theirs.display());
    assert!(done.err().contains(&why), "{done}");
    // A group of the owner's may exchange it, too.
    chown(&exchanged, Some(USER), Some(USER)).expect("root");
    assert!(!self::done(&exchanged).err().contains(&why));
    support::chmod(&needs.theirs, 0o775);
    let done = self::done(&exchanged);
    done.assert_code(3);
    assert!(done.err().contains(&why), "{done}");
}
