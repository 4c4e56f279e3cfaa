//! Root's output goes to the file that root named. Another user's link does not redirect the output, and another user's
//! pipe does not block it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use support::child::tool;
use support::{Done, Held, Kind, Public, Run, chmod, installed, is_root, program, require};

use super::ATTACKER;

const KEPT: &[u8] = b"root's own";

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

/// A file of root's, and a directory of the attacker's into which root's commands write.
struct Place {
    public: Public,
    theirs: PathBuf,
    out: PathBuf,
    secret: PathBuf,
}

fn place() -> Place {
    let public = Public::new();
    let theirs = public.path().join("theirs");
    std::fs::create_dir(&theirs).expect("an own directory");
    std::os::unix::fs::chown(&theirs, Some(2001), Some(2001)).expect("chown");
    let secret = public.path().join("secret");
    std::fs::write(&secret, KEPT).expect("an own file");
    Place { out: theirs.join("out"), public, theirs, secret }
}

/// The commands that write a file, each to this path. `figures` is a result of `bench`.
fn writers(out: &Path, figures: &Path) -> Vec<Run> {
    let out = out.to_string_lossy();
    let report = format!("--report={out}");
    let export = format!("--export-json={out}");
    let figures = figures.to_string_lossy();
    let ctl = |args: &[&str]| Run::new(support::tiexecctl(), args).plain();
    vec![
        Run::new(program("exits", Kind::DynamicPie), ["code", "0"]).options([report.as_str()]),
        ctl(&["advise", "-o", &out, "--", "true"]),
        ctl(&["bench", "--runs=6", "--warmup=0", &export, "--", "true"]),
        ctl(&["report", "-o", &out, &figures]),
    ]
}

/// Returns the figures of `tiexecctl bench`, in a file of root's.
fn figures(place: &Place) -> PathBuf {
    let figures = place.public.path().join("figures");
    let export = format!("--export-json={}", figures.display());
    let args = ["bench", "--runs=6", "--warmup=0", export.as_str(), "--", "true"];
    Run::new(support::tiexecctl(), args).plain().output();
    assert!(figures.exists(), "no figures to make a page of");
    figures
}

fn attacker(script: &str) -> Held {
    let mut held = Run::new("sh", ["-c", script]).plain().behind(ATTACKER).start();
    held.wait_line("ready");
    held
}

fn does(script: &str) {
    attacker(&format!("{script} && echo ready")).finish().assert_code(0);
}

fn assert_kept(place: &Place, done: &Done) {
    assert_eq!(std::fs::read(&place.secret).expect("root's file"), KEPT, "overwritten: {done}");
}

#[test]
fn a_link_that_another_user_has_put_there() {
    require!(needs(), "another user needs root");
    let place = place();
    let figures = figures(&place);
    let new = place.public.path().join("new");
    for leads_to in [&place.secret, &new] {
        does(&format!("ln -s {} {}", leads_to.display(), place.out.display()));
        for run in writers(&place.out, &figures) {
            let done = run.output();
            assert_kept(&place, &done);
            assert!(!new.exists(), "a file of root's was made: {done}");
            assert!(done.err().contains("it is a symbolic link"), "{done}");
            assert!(done.err().lines().count() == 1, "{done}");
        }
        std::fs::remove_file(&place.out).expect("a link");
    }
    assert_eq!(support::store::names(&place.theirs), [""; 0]);
}

#[test]
fn a_link_that_comes_and_goes() {
    require!(needs(), "another user needs root");
    let place = place();
    let (out, secret) = (place.out.display(), place.secret.display());
    let script = format!(
        "echo ready; while [ ! -e {0}/end ]; do ln -s {secret} {0}/l; mv -T {0}/l {out}; : >{0}/f; mv -T {0}/f {out}; done; exit 7",
        place.theirs.display()
    );
    let held = attacker(&script);
    let option = format!("--report={out}");
    let (mut refused, mut written) = (0, 0);
    let rounds = support::extent::rounds(60);
    for _ in 0..rounds {
        let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"]);
        let done = run.options([option.as_str()]).output();
        done.assert_code(7);
        assert_kept(&place, &done);
        if done.err().is_empty() {
            written += 1;
        } else {
            refused += 1;
        }
    }
    support::extent::met(refused, rounds, "refused");
    support::extent::met(written, rounds, "written");
    std::fs::write(place.theirs.join("end"), b"").expect("root may");
    held.finish().assert_code(7);
}

#[test]
fn a_pipe_of_another_users_that_nobody_reads() {
    require!(needs(), "another user needs root");
    let place = place();
    let figures = figures(&place);
    does(&format!("mkfifo -m 666 {}", place.out.display()));
    for run in writers(&place.out, &figures) {
        let done = run.output();
        assert!(done.err().contains("it is a pipe or a device of user 2001"), "{done}");
    }
}

/// Root can still write to files that were always safe to write to.
#[test]
fn pipes_descriptors_and_files_of_ones_own() {
    require!(needs() && installed("bash").is_some(), "another user needs root");
    let place = place();
    let figures = figures(&place);
    let page = |front: &[&str], out: &str| {
        let figures = figures.to_string_lossy();
        let run = Run::new(support::tiexecctl(), ["report", "-o", out, &figures]);
        run.plain().behind(front).output()
    };
    let is_page = |text: &[u8]| text.starts_with(b"<!") && text.ends_with(b"\n");
    for out in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let done = page(&[], out);
        done.assert_code(0).assert_silent();
        assert!(is_page(&done.stdout), "{out}: {done}");
    }
    page(&[], "/dev/null").assert_code(0).assert_silent();
    let whole = place.public.path().join("page");
    let text = whole.to_string_lossy().into_owned();
    let again = page(&["bash", "-c", "\"$@\" | cat; exit ${PIPESTATUS[0]}", "bash"], "/dev/fd/1");
    assert!(is_page(&again.stdout), "{again}");
    // The earlier file stays whole for every process and name that holds it.
    std::fs::write(&whole, KEPT).expect("an own file");
    let other = place.public.path().join("other");
    std::fs::hard_link(&whole, &other).expect("an own file");
    page(&[], &text).assert_code(0).assert_silent();
    assert!(is_page(&std::fs::read(&whole).expect("a page")));
    assert_eq!(std::fs::read(&other).expect("the file that was there"), KEPT);
    // The command waits for the reader of root's own pipe.
    std::fs::remove_file(&whole).expect("an own file");
    assert!(tool(&["mkfifo", &text]).status.success());
    let reader = Run::new("cat", [&text]).plain().start();
    page(&[], &text).assert_code(0).assert_silent();
    let read = reader.finish();
    assert!(is_page(&read.stdout), "{read}");
    // Root's own link is refused like another user's.
    std::fs::remove_file(&whole).expect("an own file");
    symlink(&other, &whole).expect("a link");
    assert!(page(&[], &text).err().contains("it is a symbolic link"));
    assert_eq!(std::fs::read(&other).expect("the file that was there"), KEPT);
    // In a directory where the user cannot create files, the user's existing file is overwritten.
    let fixed = place.public.path().join("fixed");
    std::fs::write(&fixed, b"").expect("an own file");
    std::os::unix::fs::chown(&fixed, Some(2001), Some(2001)).expect("chown");
    chmod(&figures, 0o644);
    let ctl = place.public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let args = ["report".as_ref(), "-o".as_ref(), fixed.as_os_str(), figures.as_os_str()];
    let done = Run::new(ctl, args).plain().behind(ATTACKER).output();
    done.assert_code(0).assert_silent();
    assert!(is_page(&std::fs::read(&fixed).expect("a page")));
}
