//! `tiexecctl top` shows the true state of the processes, runs the other commands by keys, and restores the terminal.

use std::process::Command;

use support::attaching::{ctl, held, small, switched};
use support::child::eventually;
use support::tmux::Screen;
use support::{Held, Kind, Run, installed, is_root, program, require, tiexecctl};

/// A screen with a `top` that refreshes often.
fn top(columns: u16, rows: u16, environment: &[(&str, &str)]) -> Screen {
    let command = format!("'{}' top -d 0.3", tiexecctl().display());
    Screen::new(columns, rows, &command, environment)
}

/// Filters the rows to that process, and selects it.
fn choose(screen: &Screen, pid: i32) {
    screen.wait_for("CPU %");
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&[&pid.to_string()]).wait_for("1 match");
    // Enter opens the only match, and q leaves its view.
    screen.keys(&["Enter"]).wait_for("press m to sample it");
    screen.keys(&["q"]).wait_for("CPU %");
    row(screen, pid, "a look at its text", |row| row[1] != "...");
}

/// Waits until the row of a process fulfils the condition. Returns its columns.
fn row(screen: &Screen, pid: i32, what: &str, is_so: impl Fn(&[&str]) -> bool) -> Vec<String> {
    let columns = |text: &str| {
        let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{pid} ")));
        row.map(|row| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let text = screen.wait_until(what, |text| {
        columns(text).is_some_and(|row| {
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            row.len() >= 7 && is_so(&row)
        })
    });
    columns(&text).expect("just seen")
}

fn end(held: Held) {
    held.finish().assert_code(7);
}

#[test]
fn attaches_and_reverts() {
    require!(installed("tmux").is_some(), "no tmux");
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid();
    let screen = top(80, 24, &[("TIEXEC", "backing=image")]);
    screen.go();
    screen.wait_for("CPU %");
    // No process is selected yet.
    screen.keys(&["a"]).wait_for("select a process first");
    choose(&screen, pid);
    let before = row(&screen, pid, "its row", |_| true);
    assert_eq!((before[2].as_str(), before[5].as_str()), ("0.0", "-"), "{before:?}");
    assert!(before[1].parse::<f64>().expect("MiB") >= 6.0, "{before:?}");
    screen.keys(&["a"]).wait_for(&format!("attach to process {pid} (hold-dynamicnop)?  y: yes"));
    screen.keys(&["n"]).wait_for("nothing was changed");
    assert_eq!(switched(pid), 0);
    screen.keys(&["a"]).wait_for("y: yes");
    screen.keys(&["y"]).wait_for(&format!("undo: tiexecctl revert {pid}"));
    assert!(switched(pid) > 0);
    let after = row(&screen, pid, "the new text", |row| row[5] == "image");
    // The table has room for the memory of the copy, unless it has a column for the agent's rules.
    if !screen.text().contains(" RULE ") {
        assert!(after[6].parse::<f64>().expect("MiB") >= 4.0, "{after:?}");
    }
    assert!(after[3].parse::<u64>().expect("per cent") >= 50, "{after:?}");
    screen.keys(&["r"]).wait_for(&format!("revert process {pid} (hold-dynamicnop)?"));
    screen.keys(&["y"]);
    row(&screen, pid, "its own text", |row| row[5] == "-" && row[2] == "0.0");
    assert_eq!(switched(pid), 0);
    screen.keys(&["q"]).wait_for("ended 0");
    end(held);
}

#[test]
fn shows_a_process_without_its_first_thread() {
    require!(installed("tmux").is_some(), "no tmux");
    let held = Run::new(program("situations", Kind::DynamicPie), ["leader"]).plain().hold();
    let pid = held.pid();
    eventually("the first thread has ended", || support::child::state(pid) == Some('Z'));
    let screen = top(80, 24, &[]);
    screen.go();
    choose(&screen, pid);
    let shown = row(&screen, pid, "its text", |row| row[1] != "...");
    assert!(shown[1].parse::<f64>().is_ok_and(|mib| mib > 0.0), "{shown:?}");
    screen.keys(&["q"]).wait_for("ended 0");
    end(held);
}

#[test]
fn shows_files_reasons_and_the_model() {
    require!(installed("tmux").is_some(), "no tmux");
    require!(is_root(), "to sample takes root, or a setting");
    let copy = small("hotset", Kind::DynamicNoPie);
    let busy = Run::new(copy.path(), ["60", "600"]).plain().start();
    for columns in [80, 200] {
        let screen = top(columns, 50, &[]);
        screen.go();
        choose(&screen, busy.pid());
        screen.keys(&["Enter"]).wait_for("press m to sample it");
        let text = screen.wait_for("base_pages");
        assert!(text.contains(&format!("process {} (hotset-dynamic", busy.pid())), "{text}");
        // Either the table is complete, or its last column is below each row.
        assert_eq!(text.contains("    rest because "), columns == 80, "{text}");
        screen.keys(&["m"]).wait_for("sampling it for 5 s");
        let text = screen.wait_for("misses and");
        assert!(text.contains("\niTLB "), "{text}");
        screen.keys(&["Escape"]).wait_for("CPU %");
        screen.keys(&["q"]).wait_for("ended 0");
    }
}

/// After every kind of end, the terminal has its own modes and its own text.
#[test]
fn leaves_the_terminal_as_it_was() {
    require!(installed("tmux").is_some(), "no tmux");
    for (key, end) in [(Some("q"), "ended 0"), (Some("C-c"), "ended 0"), (None, "ended 143")] {
        let command = format!("echo before; '{}' top", tiexecctl().display());
        let screen = Screen::new(80, 24, &command, &[]);
        screen.go().wait_for("CPU %");
        assert!(!screen.text().contains("before"), "{}", screen.text());
        match key {
            Some(key) => {
                screen.keys(&[key]);
            }
            None => {
                let pid = screen.process_of(tiexecctl());
                // SAFETY: kill takes numbers, and the process is this test's own.
                assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
            }
        }
        let text = screen.wait_for("iexten");
        assert!(text.contains("before") && text.contains(end), "{key:?}: {text}");
        let modes: Vec<&str> = text.split([' ', '\n', ';']).collect();
        for mode in ["icanon", "echo", "isig", "icrnl", "opost"] {
            assert!(modes.contains(&mode), "{key:?}: no {mode}: {text}");
        }
        let sent = screen.sent_in_all();
        let shows = |what: &[u8]| sent.windows(what.len()).rposition(|part| part == what);
        assert!(shows(b"\x1b[?25h") > shows(b"\x1b[?25l"), "{key:?}: the cursor stays hidden");
    }
}

/// `top` ends even if SIGHUP is ignored, as under nohup(1), and in the middle of a key.
#[test]
fn ends_with_its_terminal() {
    require!(installed("tmux").is_some(), "no tmux");
    for before in ["", "trap '' HUP; "] {
        for keys in [&[][..], &["-H", "1b", "5b"]] {
            let command = format!("{before}'{}' top", tiexecctl().display());
            let screen = Screen::new(80, 24, &command, &[]);
            screen.go().wait_for("CPU %");
            let pid = screen.process_of(tiexecctl());
            if !keys.is_empty() {
                screen.keys(keys);
            }
            drop(screen);
            let ended = || matches!(support::child::state(pid), None | Some('Z'));
            let what = format!("{pid} ends: {before:?} {keys:?}");
            // `top` must not outlive a failure of this test.
            if !support::child::soon(ended) {
                // SAFETY: kill takes numbers, and the process is this test's own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("{what}: it did not");
            }
        }
    }
}

/// An incomplete key does not block `top`.
#[test]
fn takes_keys_that_come_in_parts() {
    require!(installed("tmux").is_some(), "no tmux");
    let screen = top(80, 24, &[]);
    screen.go().wait_for("by text");
    // ESC and [ alone are neither a key nor Esc. The first p may still count as their continuation.
    screen.keys(&["-H", "1b", "5b"]);
    screen.keys(&["p", "p"]).wait_for("by PID");
    screen.keys(&["-H", "1b", "5b"]);
    let pid = screen.process_of(tiexecctl());
    // SAFETY: kill takes numbers, and the process is this test's own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    screen.wait_for("ended 143");
}

#[test]
fn sorts_filters_and_takes_any_size() {
    require!(installed("tmux").is_some(), "no tmux");
    // Other tests run programs of other names.
    let dir = tempfile::tempdir().expect("a directory");
    let start = |kind, name: &str| {
        let path = dir.path().join(name);
        support::install(&program("hold", kind), &path, 0o755);
        Run::new(&path, ["7"]).plain().hold()
    };
    let one = start(Kind::DynamicNoPie, "sifted-one");
    let other = start(Kind::StaticNoPie, "sifted-other");
    let screen = top(80, 24, &[]);
    screen.go().wait_for("by text, every 0.3 s");
    for (key, by) in [
        ("h", "by share of huge text"),
        ("c", "by CPU"),
        ("p", "by PID"),
        ("p", "by PID, reversed"),
        ("n", "by name"),
        ("t", "by text"),
    ] {
        screen.keys(&[key]).wait_for(by);
    }
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&["SIFTED", "Enter"]);
    screen.wait_until("only those that match", |text| {
        let rows = text.lines().skip(4).filter(|line| line.contains(" sifted-"));
        rows.count() == 2 && !text.contains("tmux") && text.contains("match \"SIFTED\"")
    });
    let order = |screen: &Screen| {
        let text = screen.text();
        let at = |pid: i32| text.lines().position(|line| line.contains(&format!(" {pid} ")));
        at(one.pid()).zip(at(other.pid())).map(|(one, other)| one < other)
    };
    screen.keys(&["p"]).wait_for("by PID");
    eventually("sorted", || order(&screen) == Some(one.pid() < other.pid()));
    screen.keys(&["p"]).wait_for("reversed");
    eventually("sorted", || order(&screen) == Some(one.pid() > other.pid()));
    for (columns, rows) in [(20, 5), (1, 1), (200, 50)] {
        screen.resize(columns, rows);
        screen.keys(&["Down", "Enter", "Enter", "?", "Space"]);
    }
    let text = screen.wait_for("PROGRAM");
    assert!(text.contains("UNIT"), "{text}");
    screen.keys(&["Escape"]);
    screen.wait_until("all rows", |text| !text.contains("match"));
    screen.keys(&["?"]).wait_for("put its text onto huge pages");
    screen.keys(&["x", "q"]).wait_for("ended 0");
    end(one);
    end(other);
}

/// The processes of one program are one row, with their sums. No key changes all of them at once.
#[test]
fn processes_of_one_program_are_one_row() {
    require!(installed("tmux").is_some(), "no tmux");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kinsfolk");
    support::install(&program("hold", Kind::DynamicNoPie), &path, 0o755);
    let all: Vec<Held> = (0..3).map(|_| Run::new(&path, ["7"]).plain().hold()).collect();
    let pids: Vec<i32> = all.iter().map(Held::pid).collect();
    let first = *pids.iter().min().expect("three");
    let attached = ctl(["attach", "--backing=image", &first.to_string()]);
    attached.assert_code(0);
    // The screen has room for the rows of all other programs of the machine, too.
    let screen = top(100, 120, &[]);
    screen.go().wait_for("by text");
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&["kinsfolk"]).wait_for("1 match");
    // A key right behind Esc would be a part of it.
    screen.keys(&["Escape"]);
    screen.wait_until("no filter", |text| !text.contains("filter:"));
    screen.keys(&["p"]).wait_for("by PID");
    let family = row(&screen, first, "the family", |row| {
        row.windows(2).any(|two| two == ["kinsfolk", "x3"]) && row[5] == "image"
    });
    let (text, huge) = (family[1].parse::<f64>(), family[2].parse::<f64>());
    let (text, huge) = (text.expect("MiB"), huge.expect("MiB"));
    assert!(text >= 18.0 && huge >= 4.0 && huge < text / 2.0, "{family:?}");
    // The row of the family is selected by way of the filter, whose Enter shows the processes of the only match.
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&["kinsfolk"]).wait_for("1 match");
    screen.keys(&["Enter"]).wait_for("3 match");
    for pid in &pids {
        row(&screen, *pid, "its own row", |row| !row.contains(&"x3"));
    }
    screen.keys(&["f"]).wait_for("kinsfolk x3");
    screen.keys(&["Home", "a"]).wait_for("these are 3 processes");
    assert!(!screen.text().contains("y: yes"), "{}", screen.text());
    screen.keys(&["f"]).wait_for("3 match");
    screen.keys(&["f", "Enter"]).wait_for("3 match");
    screen.keys(&["q"]).wait_for("ended 0");
    all.into_iter().for_each(end);
}

/// A process that executes another program becomes a new row.
#[test]
fn sees_another_program_in_a_process() {
    require!(installed("tmux").is_some(), "no tmux");
    let script = "read go; exec sleep 1000";
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("sh");
    let pid = i32::try_from(shell.id()).expect("a process id");
    let screen = top(80, 24, &[]);
    screen.go();
    choose(&screen, pid);
    row(&screen, pid, "the shell", |row| row.last() == Some(&"sh"));
    drop(shell.stdin.take().map(|mut pipe| std::io::Write::write_all(&mut pipe, b"\n")));
    row(&screen, pid, "the program", |row| row.last() == Some(&"sleep") && row[1] != "...");
    shell.kill().expect("an own child");
    shell.wait().expect("it ends");
    screen.wait_for("0 match");
}

/// Returns whether the bytes set a colour (ECMA-48, SGR).
fn has_colour(sent: &[u8]) -> bool {
    let text = String::from_utf8_lossy(sent);
    let commands = text.split("\x1b[").skip(1).filter_map(|rest| {
        let end = rest.find(|letter: char| letter.is_ascii_alphabetic())?;
        rest[end..].starts_with('m').then(|| rest[..end].to_owned())
    });
    let is_colour =
        |number: &str| matches!(number.parse(), Ok(30_u32..=38 | 40..=48 | 90..=97 | 100..=107));
    commands.into_iter().any(|command| command.split(';').any(is_colour))
}

#[test]
fn has_no_colour_where_none_is_wanted() {
    require!(installed("tmux").is_some(), "no tmux");
    for (value, colour) in [("1", false), ("", true)] {
        let screen = top(80, 24, &[("NO_COLOR", value)]);
        screen.go().wait_for("CPU %");
        screen.keys(&["q"]).wait_for("ended 0");
        assert_eq!(has_colour(&screen.sent_in_all()), colour, "NO_COLOR={value}");
        // tmux sends the shell's answer, too, which has no colour.
        let command = format!("'{}' doctor", tiexecctl().display());
        let screen = Screen::new(80, 50, &command, &[("NO_COLOR", value)]);
        screen.go().wait_for("ended ");
        assert_eq!(has_colour(&screen.sent_in_all()), colour, "NO_COLOR={value}: doctor");
    }
}

/// Names may contain letters that the terminal cannot show.
#[test]
fn sends_ascii_where_the_locale_is_not_utf_8() {
    require!(installed("tmux").is_some(), "no tmux");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("größe");
    support::install(&program("hold", Kind::DynamicNoPie), &path, 0o755);
    let held = Run::new(&path, ["7"]).plain().hold();
    for (locale, name) in [("C", "gr??e"), ("C.UTF-8", "größe")] {
        let screen = top(80, 24, &[("LC_ALL", locale)]);
        screen.go();
        choose(&screen, held.pid());
        screen.wait_for(name);
        screen.keys(&["Enter"]).wait_for("program ");
        screen.wait_for(&format!("({name})"));
        screen.keys(&["q", "q"]).wait_for("ended 0");
        assert_eq!(screen.sent_in_all().is_ascii(), locale == "C");
    }
    end(held);
}

#[test]
fn says_what_helps_without_a_terminal() {
    let done = ctl(["top"]);
    done.assert_code(2);
    let err = done.err();
    assert!(
        err.contains("is not a terminal; fix: tiexecctl status") && done.stdout.is_empty(),
        "{done}"
    );
    for delay in ["0", "soon", "-1", "inf", "NaN"] {
        ctl(["top", "--delay", delay]).assert_code(2);
    }
}
