//! Names are only text: no name can send a command to a terminal, forge a line, reverse text, or forge a field of a
//! log.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use support::attaching::{ctl, json, started};
use support::store::{own_run, set_up};
use support::tmux::Screen;
use support::{Done, Held, Kind, Run, fresh, install, is_root, program, require};

/// A file name with every control character, after a few words of the attacker. Its first bytes are the name of a
/// process.
fn words() -> OsString {
    let mut bytes = b"\x1b[2J\n\x9b\x7f\tok\r".to_vec();
    bytes.extend(
        "\u{85}\u{9b}31m\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{2069}".bytes(),
    );
    OsString::from(OsStr::from_bytes(&bytes))
}

/// Every byte that a name can hold.
fn every_byte() -> OsString {
    let bytes: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    OsString::from(OsStr::from_bytes(&bytes))
}

/// A program at a path with all of these characters.
struct Odd {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn odd(name: &str) -> Odd {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let below = dir.path().canonicalize().expect("it is there").join(every_byte());
    std::fs::create_dir(&below).expect("a directory");
    support::chmod(dir.path(), 0o755);
    let path = below.join(words());
    install(&program(name, Kind::DynamicNoPie), &path, 0o755);
    fresh::uncache(&path);
    Odd { _dir: dir, path }
}

/// Asserts that the whole output of a command is text.
fn assert_plain(done: &Done) -> &Done {
    for (stream, bytes) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
        let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{stream}: {e}: {done}"));
        let odd = text.chars().find(|&letter| {
            letter.is_control() && letter != '\n'
                || "\u{61c}\u{200e}\u{200f}".contains(letter)
                || ('\u{2028}'..='\u{202e}').contains(&letter)
                || ('\u{2066}'..='\u{2069}').contains(&letter)
        });
        assert_eq!(odd, None, "{stream}: {done}");
        // A line end in a name has not forged a line.
        assert!(
            !text.lines().any(|line| line.starts_with('\u{fffd}') || line.starts_with("ok\\r")),
            "{done}"
        );
    }
    done
}

fn held(odd: &Odd) -> Held {
    Run::new(&odd.path, ["7"]).plain().hold()
}

fn of(pid: i32, args: &[&str]) -> Done {
    let pid = pid.to_string();
    ctl(args.iter().copied().chain([pid.as_str()]))
}

#[test]
fn of_a_process() {
    let odd = odd("hold");
    let held = held(&odd);
    let pid = held.pid();
    let comm = std::fs::read(format!("/proc/{pid}/comm")).expect("its name");
    assert!(comm.starts_with(b"\x1b[2J\n\x9b\x7f"), "{comm:?}");
    for args in [
        &["inspect"][..],
        &["doctor"],
        &["attach", "--dry-run"],
        &["attach", "--backing=image"],
        &["inspect"],
        &["revert", "--dry-run"],
        &["revert"],
    ] {
        let done = of(pid, args);
        done.assert_code(0);
        assert_plain(&done);
        assert!(!done.stdout.is_empty(), "{done}");
    }
    let path = odd.path.to_string_lossy().into_owned();
    for args in [
        &["inspect", "--json"][..],
        &["doctor", "--json"],
        &["attach", "--dry-run", "--json"],
        &["attach", "--backing=image", "--json"],
        &["revert", "--json"],
    ] {
        let done = of(pid, args);
        assert_plain(done.assert_code(0));
        // The path is as in maps, where the kernel escapes a line end.
        let all = json(&done).to_string();
        if args[0] != "doctor" && args[0] != "revert" {
            let name = serde_json::to_string(&path.replace('\n', "\\012")).expect("a string");
            assert!(all.contains(name.trim_matches('"')), "{name} in {all}");
        }
    }
    held.finish().assert_code(7);
}

/// The text about a family has placeholders, which no name can forge.
#[test]
fn of_a_family() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("\u{1}\u{2}\u{3}1");
    install(&program("hold", Kind::DynamicNoPie), &path, 0o755);
    fresh::uncache(&path);
    let all = [(); 2].map(|()| Run::new(&path, ["7"]).plain().hold());
    let pids = all.each_ref().map(|held| held.pid().to_string());
    let who = format!(" 2 processes {}, each", pids.join(" "));
    for command in [&["inspect"][..], &["attach", "--backing=image"], &["inspect"], &["revert"]] {
        let done = ctl(command.iter().copied().chain(pids.iter().map(String::as_str)));
        assert_plain(done.assert_code(0));
        assert_eq!(done.out().matches(&who).count(), 1, "{done}");
    }
    for held in all {
        held.finish().assert_code(7);
    }
}

/// None of these characters reaches the terminal from the table or the detail view of `top`.
#[test]
fn of_a_screen() {
    require!(support::installed("tmux").is_some(), "no tmux");
    let odd = odd("hold");
    let held = held(&odd);
    let pid = held.pid().to_string();
    let command = format!("'{}' top -d 0.3", support::tiexecctl().display());
    let screen = Screen::new(200, 50, &command, &[("LC_ALL", "C.UTF-8")]);
    let title = screen.title();
    screen.go().wait_for("PROGRAM");
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&[&pid]).wait_for("1 match");
    screen.wait_for("\\x1b[2J\\n\\x9b");
    screen.keys(&["Enter"]).wait_for("press m");
    screen.keys(&["a"]).wait_for("attach to process");
    screen.keys(&["y"]).wait_for(&format!("undo: tiexecctl revert {pid}"));
    screen.wait_for("edges");
    screen.keys(&["q", "q"]).wait_for("ended 0");
    assert_eq!(screen.title(), title);
    let sent = screen.sent_in_all();
    let text = std::str::from_utf8(&sent).expect("UTF-8");
    let odd = text.chars().find(|&letter| {
        ('\u{80}'..='\u{9f}').contains(&letter)
            || "\u{7f}\u{61c}\u{200e}\u{200f}".contains(letter)
            || ('\u{2028}'..='\u{202e}').contains(&letter)
            || ('\u{2066}'..='\u{2069}').contains(&letter)
    });
    assert_eq!(odd, None);
    // `top` itself does not send this kind of command to the terminal.
    assert!(!text.contains("\x1b]"), "a command of the name's");
    assert!(!text.contains('\t') && !text.contains('\x07'), "a control character of the name's");
    held.finish().assert_code(7);
}

#[test]
fn of_a_launched_program() {
    let odd = odd("hold");
    for options in [
        &["--report"][..],
        &["--report", "--json"],
        &["--dry-run"],
        &["--dry-run", "--json"],
        &["-v", "--backing=hugetlb"],
    ] {
        let mut held = Run::new(&odd.path, ["7"]).options(options).start();
        held.write(b"\n");
        let mut done = held.finish();
        // The output of the program itself is not checked.
        done.stdout.clear();
        assert_plain(&done);
    }
    let missing = odd.path.with_file_name(every_byte());
    let done = Run::new(&missing, [] as [&str; 0]).output();
    assert_plain(done.assert_code(127));
    std::fs::write(&missing, b"no program").expect("a file");
    let done = Run::new(&missing, [] as [&str; 0]).output();
    assert_plain(done.assert_code(126));
}

#[test]
fn of_files_and_arguments() {
    require!(is_root(), "an image store needs root");
    own_run();
    set_up("64m");
    let odd = odd("hold");
    let missing = odd.path.with_file_name("gone\x1b]0;\x07\n\u{9b}");
    let file = odd.path.as_os_str();
    let runs: [&[&OsStr]; 14] = [
        &["warm".as_ref(), file],
        &["warm".as_ref(), "--check".as_ref(), file],
        &["warm".as_ref(), "--check".as_ref(), "--json".as_ref(), file],
        &["warm".as_ref(), "--deps".as_ref(), file],
        &["warm".as_ref(), missing.as_os_str()],
        &["store".as_ref(), "add".as_ref(), file],
        &["store".as_ref(), "add".as_ref(), missing.as_os_str()],
        &["store".as_ref(), "list".as_ref()],
        &["store".as_ref(), "list".as_ref(), "--json".as_ref()],
        &["store".as_ref(), "verify".as_ref()],
        &["store".as_ref(), "prune".as_ref(), "--all".as_ref()],
        &["report".as_ref(), missing.as_os_str()],
        &["report".as_ref(), "-o".as_ref(), missing.as_os_str(), "1".as_ref()],
        &["attach".as_ref(), "--exe".as_ref(), missing.as_os_str()],
    ];
    for args in runs {
        assert_plain(&ctl(args));
    }
    let words = words();
    for args in [
        &[words.as_os_str()][..],
        &["inspect".as_ref(), &words],
        &["attach".as_ref(), "--unit".as_ref(), &words],
        &["attach".as_ref(), &words],
    ] {
        let done = ctl(args);
        assert_plain(&done);
        assert!(!done.stderr.is_empty(), "{done}");
    }
    let option = OsString::from(format!("--{}", "\x1b[2J\u{202e}"));
    for binary in [support::tiexec(), support::tiexecctl()] {
        let done = started(&[], binary, [&option]).finish();
        assert_plain(&done);
        assert!(!done.stderr.is_empty(), "{done}");
    }
}

/// Files that people read later.
#[test]
fn of_a_page() {
    require!(is_root(), "to sample takes root, or a setting");
    let odd = odd("hotset");
    let busy = Run::new(&odd.path, ["30", "600"]).plain().start();
    for format in ["--html", "--svg", "--json"] {
        let out = odd.path.with_file_name("page");
        let pid = busy.pid().to_string();
        let mut args = vec!["report", "--duration", "1s", "-o", out.to_str().unwrap_or("page")];
        // The directory's name is not UTF-8, so the page is written through a link.
        let link = tempfile::tempdir().expect("a directory");
        let page = link.path().join("page");
        args[4] = page.to_str().expect("UTF-8");
        if format == "--svg" {
            args.push(format);
        }
        args.push(&pid);
        let done = if format == "--json" {
            ctl(["advise", "--duration", "1s", "--json", &pid])
        } else {
            ctl(&args)
        };
        assert_plain(done.assert_code(0));
        if format != "--json" {
            let stdout = std::fs::read(&page).expect("it was written");
            let text = String::from_utf8_lossy(&stdout);
            assert!(text.contains("[2J"), "the name is not in it");
            // The directory's name has these bytes one after the other. In a page they would begin an element.
            assert!(!text.contains(";<="), "{text}");
            assert_plain(&Done { stdout, ..done });
        }
    }
    assert_plain(&of(busy.pid(), &["advise", "--duration", "1s"]));
}

/// A field of a journal record ends with its line, and the record has only TiExec's fields.
#[test]
fn of_the_journal() {
    require!(is_root(), "another /run needs root");
    own_run();
    std::fs::create_dir_all("/run/systemd/journal").expect("directories");
    let journal = UnixDatagram::bind("/run/systemd/journal/socket").expect("a socket");
    let odd = odd("hold");
    let held = held(&odd);
    of(held.pid(), &["attach", "--backing=image", "-q"]).assert_code(0);
    let mut record = [0; 64 << 10];
    let len = journal.recv(&mut record).expect("a record");
    let text = std::str::from_utf8(&record[..len]).expect("UTF-8");
    for line in text.lines() {
        let key = line.split('=').next().expect("a key");
        assert!(
            key.starts_with("TIEXEC_")
                || ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "OBJECT_PID"].contains(&key),
            "{line:?}"
        );
        assert!(!line.contains(char::is_control) && !line.contains('\u{202e}'), "{line:?}");
    }
    assert_eq!(text.lines().count(), 12, "{text}");
    held.finish().assert_code(7);
}

/// The name of a unit comes from a cgroup directory, which its user can create.
#[test]
fn of_a_unit() {
    require!(is_root(), "a cgroup needs root");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let named = |line: &&str| line.contains(" - cgroup2 ") || line.contains("name=systemd");
    let mount = mounts.lines().find(named).and_then(|line| line.split(' ').nth(4));
    require!(mount.is_some(), "no hierarchy of cgroups is mounted");
    let group = Path::new(mount.expect("just seen"))
        .join(format!("tiexec-test-{}-\x1b[2J\u{202e}.service", std::process::id()));
    require!(std::fs::create_dir(&group).is_ok(), "no cgroup can be made");
    let odd = odd("hold");
    let held = held(&odd);
    std::fs::write(group.join("cgroup.procs"), held.pid().to_string()).expect("an own cgroup");
    let all = [of(held.pid(), &["inspect"]), of(held.pid(), &["inspect", "--json"])];
    held.finish().assert_code(7);
    let _gone = std::fs::remove_dir(&group);
    for done in all {
        assert_plain(&done);
        assert!(done.out().contains("[2J"), "{done}");
    }
}
