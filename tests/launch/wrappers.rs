//! `tiexec WRAPPER PROGRAM`: wrappers that exec the program are followed. For wrappers that start the program in another
//! process, a line says where the word `tiexec` belongs, with the whole command.

use super::start::library;
use support::child::{self, eventually};
use support::smaps::{Vma, vmas};
use support::{Kind, Public, Run, install, installed, is_root, program, require};

/// Runs the wrapper, and then the command that the line names.
fn assert_line_helps(run: Run) {
    let wrong = run.options(["--backing=image"]).output();
    wrong.assert_code(0);
    assert_eq!(child::said(&wrong.out(), "huge").as_deref(), Some("0"), "{wrong}");
    let said = wrong.err();
    let (_, fix) = said.trim_end().split_once("; fix: ").unwrap_or_else(|| panic!("{wrong}"));
    assert_eq!(said.lines().count(), 1, "{wrong}");
    let right = Run::new("sh", ["-c", fix]).plain().output();
    right.assert_code(0).assert_silent();
    let huge = child::said(&right.out(), "huge").and_then(|huge| huge.parse::<u64>().ok());
    assert!(huge.is_some_and(|huge| huge > 0), "{fix}: {right}");
}

#[test]
fn the_line_names_a_command_that_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let hold = dir.path().join("it's a program");
    install(&program("hold", Kind::DynamicPie), &hold, 0o755);
    let (hold, lock) = (hold.to_string_lossy(), dir.path().join("lock"));
    let lock = lock.to_string_lossy();
    let wrappers: [&[&str]; 5] = [
        &["timeout", "--signal=KILL", "-k", "9", "600", &hold, "0"],
        &["/usr/bin/timeout", "600", &hold, "0"],
        &["flock", "-w", "600", &lock, &hold, "0"],
        &["xargs", "-n", "1", &hold, "0"],
        &["xargs", &hold],
    ];
    for words in wrappers {
        require!(installed(words[0]).is_some() || words[0].starts_with('/'), "no wrapper");
        assert_line_helps(Run::new(words[0], &words[1..]));
    }
}

#[test]
fn of_another_user() {
    require!(is_root(), "another user needs root");
    require!(installed("runuser").is_some() && installed("su").is_some(), "no runuser, no su");
    let public = Public::new();
    let hold = public.add(&program("hold", Kind::DynamicPie), "hold", 0o755);
    let hold = hold.to_string_lossy();
    let command = format!("{hold} 0");
    let wrappers: [&[&str]; 3] = [
        &["runuser", "-u", "nobody", "--", &hold, "0"],
        &["su", "nobody", "-s", "/bin/sh", "-c", &command],
        &["flock", "/dev/null", "-c", &command],
    ];
    for words in wrappers {
        assert_line_helps(Run::new(words[0], &words[1..]).binary(public.tiexec()));
    }
}

#[test]
fn a_program_of_that_name_is_not_the_wrapper() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = dir.path().join("timeout");
    install(&program("hold", Kind::DynamicPie), &own, 0o755);
    let done = Run::new(&own, ["7"]).options(["--backing=image"]).output();
    done.assert_code(7).assert_silent();
    let link = dir.path().join("flock");
    std::os::unix::fs::symlink("/bin/true", &link).expect("a link");
    Run::new(&link, ["1", "2", "3"]).output().assert_code(0).assert_silent();
}

#[test]
fn nothing_is_said_where_nothing_helps() {
    let silent: [&[&str]; 5] = [
        &["timeout", "--version"],
        &["xargs"],
        &["flock", "-F", "/dev/null", "/bin/true"],
        &["env", "/bin/true"],
        &["nice", "/bin/true"],
    ];
    for words in silent {
        Run::new(words[0], &words[1..]).output().assert_code(0).assert_silent();
    }
    let quiet = Run::new("timeout", ["600", "/bin/true"]).options(["-q"]);
    quiet.output().assert_code(0).assert_silent();
    // The companion reaches the program.
    let followed = Run::new("timeout", ["600", "/bin/true"]).options(["-f"]);
    followed.output().assert_code(0).assert_silent();
    let odd = Run::new("timeout", ["--sig=KILL", "600", "/bin/true"]).output();
    let general = "; fix: write tiexec before the program that timeout starts\n";
    assert!(odd.assert_code(0).err().ends_with(general), "{odd}");
}

#[test]
fn wrappers_that_exec_are_followed() {
    let late = program("late", Kind::DynamicPie);
    let own = late.file_name().expect("a name").to_string_lossy().into_owned();
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 4);
    let wrappers: [&[&str]; 6] = [
        &["env", "A=1"],
        &["nice", "-n", "1"],
        &["setpriv", "--inh-caps=-all"],
        &["chrt", "-o", "0"],
        &["taskset", "ffffffff"],
        &["stdbuf", "-o0"],
    ];
    let started = wrappers.map(|words| {
        let words: Vec<_> = words.iter().map(Into::into).collect();
        let program = [late.clone().into_os_string(), "busy".into(), library.clone().into()];
        let words: Vec<std::ffi::OsString> = words.into_iter().chain(program).collect();
        let mut held = Run::new(&words[0], &words[1..]).start();
        held.wait_line("loaded");
        held
    });
    for mut held in started {
        let pid = held.pid();
        let is_its = |vma: &Vma| vma.path.contains(&own) && vma.huge() > 0;
        eventually("the program's own text is huge", || vmas(pid).iter().any(is_its));
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
    }
}
