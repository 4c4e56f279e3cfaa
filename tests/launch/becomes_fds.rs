//! A launched program has the same descriptors as without TiExec, and no other process has them.

use std::os::fd::AsRawFd;

use support::pty::pipe;
use support::smaps::vmas;
use support::{Kind, Prep, Run, program};

fn fd_lines(text: &str) -> Vec<String> {
    text.lines().filter(|l| l.starts_with("fd ")).map(str::to_owned).collect()
}

#[test]
fn descriptors_are_those_of_a_plain_exec() {
    let (read, write) = pipe();
    let file = tempfile::tempfile().expect("a temporary file");
    let base = Run::new(program("identity", Kind::DynamicPie), [""; 0]);
    let many = base
        .clone()
        .prep(Prep::Fd(file.as_raw_fd(), 203))
        .prep(Prep::Fd(read.as_raw_fd(), 207))
        .prep(Prep::Fd(write.as_raw_fd(), 1000));
    for run in [base, many] {
        let plain = run.plain().hold();
        let want = fd_lines(&plain.out_text());
        plain.finish().assert_code(0);
        assert!(want.len() >= 3, "{want:?}");
        let held = run.hold();
        assert!(held.coverage().is_full(), "{:?}", held.coverage());
        assert_eq!(fd_lines(&held.out_text()), want);
        held.finish().assert_code(0).assert_silent();
    }
}

#[test]
fn closed_standard_streams_stay_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    for closed in 1..8 {
        let seen = |plain: bool| {
            let file = dir.path().join(if plain { "plain" } else { "launched" });
            let mut run = Run::new(program("identity", Kind::DynamicPie), [&file]);
            if plain {
                run = run.plain();
            }
            for fd in (0..3).filter(|fd| closed & (1 << fd) != 0) {
                run = run.prep(Prep::CloseFd(fd));
            }
            run.start().finish().assert_code(0);
            std::fs::read_to_string(&file).expect("the program wrote its file")
        };
        let plain = seen(true);
        let launched = seen(false);
        assert_eq!(fd_lines(&launched), fd_lines(&plain), "with descriptors {closed:03b} closed");
        let huge: u64 = support::child::said(&launched, "huge")
            .expect("a huge line")
            .parse()
            .expect("a number");
        assert!(huge >= 4 << 20, "with descriptors {closed:03b} closed: {huge}");
    }
}

#[test]
fn nobody_else_holds_the_programs_pipes() {
    let (mut read, write) = pipe();
    let run =
        Run::new(program("hold", Kind::DynamicPie), ["4"]).prep(Prep::Fd(write.as_raw_fd(), 9));
    let held = run.hold();
    drop(write);
    // Only the program has the write end now, so the end of file arrives exactly when it ends.
    let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "the write end is closed already");
    held.finish().assert_code(4).assert_silent();
    let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 5000) }, 1, "somebody else holds the write end");
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut read, &mut rest).expect("an ended pipe");
    assert!(rest.is_empty());
}

#[test]
fn standard_input_is_not_eaten() {
    let big: Vec<u8> = (0..1_000_000_u32).flat_map(|i| i.to_le_bytes()).collect();
    let node = support::installed("node");
    support::require!(node.is_some(), "no node on PATH");
    let script = "let n=0,h=0;process.stdin.on('data',d=>{n+=d.length;for(const b of d)h=(h*31+b)>>>0});\
                  process.stdin.on('end',()=>console.log(n,h))";
    let mut held = Run::new("node", ["-e", script]).start();
    held.write(&big);
    let done = held.finish();
    done.assert_code(0).assert_silent();
    let hash = big.iter().fold(0_u32, |h, &b| h.wrapping_mul(31).wrapping_add(b.into()));
    assert_eq!(done.out(), format!("{} {hash}\n", big.len()));
}

#[test]
fn no_mapping_but_the_text_is_changed() {
    let rest = |run: Run| {
        let held = run.hold();
        let exe = std::fs::read_link(format!("/proc/{}/exe", held.pid()))
            .expect("exe")
            .to_string_lossy()
            .into_owned();
        let mut seen: Vec<String> = vmas(held.pid())
            .into_iter()
            .filter(|v| !(v.is_switched() || v.is_text() && v.path == exe))
            // The ends of the heap and the stack depend on the program's use.
            .map(|v| {
                if v.path.starts_with("[heap") || v.path.starts_with("[stack") {
                    (v, 0)
                } else {
                    (v.clone(), v.end - v.start)
                }
            })
            .map(|(v, size)| format!("{} {size} {}", v.perms, v.path))
            .collect();
        seen.sort();
        held.finish().assert_code(0).assert_silent();
        seen
    };
    for kind in support::programs::COMMON {
        let run = Run::new(program("hold", kind), ["0"]);
        assert_eq!(rest(run.clone()), rest(run.plain()), "{kind:?}");
    }
}

#[test]
fn switched_text_is_never_writable_and_is_private() {
    let run = Run::new(program("hold", Kind::DynamicPie), ["0"]).options(["--backing", "image"]);
    let held = run.hold();
    let switched: Vec<_> = vmas(held.pid()).into_iter().filter(|v| v.is_switched()).collect();
    assert!(!switched.is_empty());
    for vma in switched {
        assert_eq!(vma.perms, "r-xp", "{vma:?}");
        assert!(vma.path.ends_with(" (deleted)"), "{vma:?}");
        assert_eq!(vma.counter("Anonymous"), 0, "no page of it was copied: {vma:?}");
    }
    held.finish().assert_code(0).assert_silent();
}
