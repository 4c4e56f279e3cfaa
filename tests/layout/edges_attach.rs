//! `--edges` in a running process: after an attach, a second attach, and a revert, the neighbouring memory has lost
//! nothing, and nothing of TiExec is left.

use support::attaching::{
    Before, assert_untouched, ctl, descriptors, files_joined, json, revert, small, switched,
};
use support::child::eventually;
use support::edges::{ask, assert_unharmed, finish, hold, huge_ranges};
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::smaps::{Vma, mappings, vmas};
use support::{Done, Fresh, Held, Kind, Report, Run, pmd_size, program, require};

const NONE: [&str; 0] = [];

fn held(copy: &Fresh) -> Held {
    hold(&Run::new(copy.path(), NONE).plain())
}

fn attach(pid: i32, backing: &str, edges: &str) -> Done {
    let (backing, edges) = (format!("--backing={backing}"), format!("--edges={edges}"));
    ctl(["attach", "--json", &backing, &edges, &pid.to_string()])
}

/// The addresses at which anything is mapped, without the heap and the stack, which grow by themselves.
fn mapped(pid: i32) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    let is_growing = |vma: &Vma| vma.path == "[heap]" || vma.path == "[stack]";
    for vma in mappings(pid).into_iter().filter(|vma| !is_growing(vma)) {
        match all.last_mut() {
            Some(last) if last.1 == vma.start => last.1 = vma.end,
            _ => all.push((vma.start, vma.end)),
        }
    }
    all
}

fn widened(done: &Done) -> u64 {
    json(done)["widened_bytes"].as_u64().expect("a number")
}

/// Below and above the text nothing is mapped. Another thread could map something there at any moment, so the attach
/// takes no edge, and names the start that does.
#[test]
fn an_edge_with_a_gap_is_left_to_a_start() {
    require!(pmd_size() == 2 << 20, "the example is made for huge pages of 2 MiB");
    let copy = small("own_image", Kind::SeedNoPie);
    let mut held = held(&copy);
    let pid = held.pid();
    let addresses = mapped(pid);
    for (edges, command) in [
        ("pad", "tiexec --edges=pad"),
        ("aggressive", "tiexec --edges=aggressive"),
        ("pad --pad-threshold=8K", "tiexec --edges=pad --pad-threshold=8192"),
    ] {
        let options = format!("--edges={edges}");
        let pid_text = pid.to_string();
        let words = ["attach", "--json", "--backing=image"].into_iter().chain(options.split(' '));
        let done = ctl(words.chain([pid_text.as_str()]));
        done.assert_code(0).assert_silent();
        assert_eq!(huge_ranges(pid), [(0x60_0000, 0xc0_0000)], "{done}");
        assert_eq!((widened(&done), mapped(pid)), (0, addresses.clone()), "{done}");
        let restart = &json(&done)["restart"];
        assert_eq!(
            (&restart["command"], &restart["here_bytes"]),
            (&command.into(), &0x60_0000.into())
        );
        let report = Report::new();
        let start = Run::new(copy.path(), NONE).options(["--backing=image", "--deadline=2m"]);
        let started = hold(&report.of(&start.options(options.split(' '))));
        assert_eq!(report.read()["files"][0]["huge_bytes"], restart["launch_bytes"], "{done}");
        finish(started);
    }
    let line = ctl(["attach", "--edges=pad", &pid.to_string()]).out();
    assert!(line.contains("; a start by tiexec --edges=pad gives 6.0 of 6.0 MiB"), "{line}");
    assert_unharmed(&mut held);
    finish(held);
}

/// The headers of the file, which lie in memory right below its text, are read-only data.
#[test]
fn an_edge_without_a_gap_there_and_back() {
    let copy = small("own_image", Kind::DynamicNoPie);
    let mut held = held(&copy);
    let pid = held.pid();
    assert_eq!(ask(&mut held, "protect"), "ok");
    let (before, addresses) = (Before::of(pid), mapped(pid));
    let plain = attach(pid, "image", "conservative");
    let whole = switched(pid);
    assert!(whole > 0 && widened(&plain) == 0, "{plain}");
    revert(pid).assert_code(0).assert_silent();
    for _ in 0..3 {
        let done = attach(pid, "image", "aggressive");
        done.assert_code(0).assert_silent();
        assert!(widened(&done) > 0 && switched(pid) > whole, "{done}");
        assert_eq!(mapped(pid), addresses, "{done}");
        let seen = json(&ctl(["inspect", "--json", &pid.to_string()]));
        assert_eq!(seen["widened_bytes"], widened(&done), "{seen}");
        // The second attach has nothing to do.
        let again = attach(pid, "image", "aggressive");
        again.assert_code(0).assert_silent();
        assert_eq!(json(&again)["attach"], serde_json::Value::Null, "{again}");
        assert_eq!(ask(&mut held, "check").parse::<u64>().map(|n| n > 6 << 20), Ok(true));
        revert(pid).assert_code(0).assert_silent();
        assert_untouched(pid, &before);
        assert_eq!(ask(&mut held, "check").parse::<u64>().map(|n| n > 6 << 20), Ok(true));
    }
    attach(pid, "image", "pad").assert_code(0);
    assert_unharmed(&mut held);
    finish(held);
}

/// The kernel takes back no part of a page of the pool, so an attach takes no edge by one.
#[test]
fn pages_of_the_pool_hold_no_edge() {
    let mut machine = support::machine::Machine::lock();
    require!(machine.pool(8), "8 huge pages cannot be reserved");
    let copy = small("own_image", Kind::DynamicNoPie);
    let mut held = held(&copy);
    let done = attach(held.pid(), "hugetlb", "aggressive");
    done.assert_code(0).assert_silent();
    assert!(widened(&done) == 0 && !huge_ranges(held.pid()).is_empty(), "{done}");
    revert(held.pid()).assert_code(0).assert_silent();
    assert_unharmed(&mut held);
    finish(held);
}

/// Returns the two figures of a line "X of Y MiB text".
fn figures(done: &Done) -> (String, String) {
    let out = done.out();
    let before = out.split(" MiB text").next().expect("a line");
    let mut words = before.split_ascii_whitespace().rev();
    let all = words.next().expect("a figure").to_owned();
    (words.nth(1).expect("a figure").to_owned(), all)
}

#[test]
fn attach_and_revert_count_the_same_bytes() {
    for edges in ["pad", "aggressive"] {
        let copy = small("own_image", Kind::DynamicNoPie);
        let mut held = held(&copy);
        let pid = held.pid().to_string();
        let edges = format!("--edges={edges}");
        let attached = ctl(["attach", "--backing=image", &edges, &pid]);
        attached.assert_code(0).assert_silent();
        let (huge, _) = figures(&attached);
        let reverted = ctl(["revert", &pid]);
        reverted.assert_code(0).assert_silent();
        assert_eq!(figures(&reverted), (huge.clone(), huge), "{attached}{reverted}");
        assert_unharmed(&mut held);
        finish(held);
    }
}

#[test]
fn text_that_is_locked_and_its_neighbours_are_not_keeps_its_edges() {
    let locked = |pid: i32| -> Vec<(u64, u64)> {
        let all = vmas(pid).into_iter().filter(|vma| vma.flags.iter().any(|flag| flag == "lo"));
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for vma in all {
            match joined.last_mut() {
                Some(last) if last.1 == vma.start => last.1 = vma.end,
                _ => joined.push((vma.start, vma.end)),
            }
        }
        joined
    };
    let copy = small("own_image", Kind::DynamicNoPie);
    let free = hold(&Run::new(copy.path(), NONE).plain());
    let done = attach(free.pid(), "image", "aggressive");
    assert!(widened(&done) > 0, "{done}");
    let all = huge_ranges(free.pid());
    finish(free);
    let mut held = hold(&Run::new(copy.path(), NONE).plain());
    let pid = held.pid();
    let exe = copy.path().to_string_lossy().into_owned();
    let is_its = |vma: &support::smaps::Vma| vma.is_text() && vma.path == exe;
    let text =
        vmas(pid).into_iter().find(is_its).map(|vma| (vma.start, vma.end)).expect("its text");
    assert_eq!(ask(&mut held, &format!("lock {:x} {:x}", text.0, text.1)), "ok");
    let before = Before::of(pid);
    let done = attach(pid, "image", "aggressive");
    assert!(done.err().contains("edge_in_use") && widened(&done) == 0, "{done}");
    assert!(switched(pid) > 0, "{done}");
    assert_eq!(locked(pid), [text]);
    revert(pid).assert_code(0).assert_silent();
    assert_eq!(locked(pid), [text]);
    assert_untouched(pid, &before);
    // Attach locks no memory in a process that has locked other memory.
    let mut other = hold(&Run::new(copy.path(), NONE).plain());
    let pid = other.pid();
    assert_eq!(ask(&mut other, "place 30000000 stays"), "stays");
    assert_eq!(ask(&mut other, "lock 30000000 30001000"), "ok");
    attach(pid, "image", "aggressive").assert_code(0).assert_silent();
    assert_eq!(huge_ranges(pid), all);
    assert_eq!(locked(pid), [(0x3000_0000, 0x3000_1000)]);
    revert(pid).assert_code(0).assert_silent();
    assert_eq!(locked(pid), [(0x3000_0000, 0x3000_1000)]);
    finish(other);
    finish(held);
}

/// An edge is taken or not, by where the kernel has placed the program. Whatever is taken, an attach maps nothing at
/// addresses that were free.
#[test]
fn every_layout_there_and_back() {
    for (kind, has_edges) in [
        (Kind::DynamicPie, false),
        (Kind::DynamicNoPie, true),
        (Kind::StaticPie, false),
        (Kind::OneSegmentPie, false),
        (Kind::LldPie, false),
        (Kind::LldSeparatePie, false),
        (Kind::MoldPie, false),
        (Kind::MoldSeparatePie, false),
        (Kind::SpreadPie, false),
        (Kind::SpreadLldPie, false),
    ] {
        if !kind.can_build() {
            support::skip(&format!("{kind:?} cannot be built here"));
            continue;
        }
        let copy = small("own_image", kind);
        let mut held = held(&copy);
        let pid = held.pid();
        assert_eq!(ask(&mut held, "protect"), "ok");
        let (before, addresses) = (Before::of(pid), mapped(pid));
        attach(pid, "image", "conservative").assert_code(0).assert_silent();
        let conservative = switched(pid);
        // A later attach can add the edges.
        let done = attach(pid, "image", "pad");
        done.assert_code(0).assert_silent();
        assert!(switched(pid) > conservative || !has_edges, "{kind:?}: {:?}", vmas(pid));
        assert_eq!(mapped(pid), addresses, "{kind:?}: {done}");
        assert!(ask(&mut held, "check").parse::<u64>().is_ok(), "{kind:?}");
        revert(pid).assert_code(0).assert_silent();
        assert_untouched(pid, &before);
        attach(pid, "image", "pad").assert_code(0).assert_silent();
        assert_unharmed(&mut held);
        finish(held);
    }
}

/// The program has written to its read-only data, so that huge page does not belong to the file any more.
#[test]
fn what_the_program_has_written_to_is_left() {
    let copy = small("own_image", Kind::SpreadPie);
    let mut held = hold(&Run::new(copy.path(), NONE).plain());
    let pid = held.pid();
    let exe = copy.path().to_string_lossy().into_owned();
    let relro: Vec<_> =
        vmas(pid).into_iter().filter(|v| v.path == exe && v.counter("Anonymous") > 0).collect();
    assert!(!relro.is_empty());
    attach(pid, "image", "aggressive").assert_code(0).assert_silent();
    for was in relro {
        let now = vmas(pid).into_iter().find(|now| now.start == was.start);
        let now = now.unwrap_or_else(|| panic!("{was:?} is gone"));
        assert_eq!((now.end, &now.perms, &now.path), (was.end, &was.perms, &was.path));
    }
    assert_unharmed(&mut held);
    finish(held);
}

#[test]
fn the_page_cache_serves_edges_and_gives_them_back() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // A program that is not position-independent is congruent at its own address.
    let copy = Fresh::copy(&program("own_image", Kind::StaticNoPie));
    let mut held = held(&copy);
    let pid = held.pid();
    assert_eq!(ask(&mut held, "protect"), "ok");
    let left = || (files_joined(pid), descriptors(pid));
    let before = left();
    let done = attach(pid, "pagecache", "pad");
    done.assert_code(0).assert_silent();
    assert!(json(&done)["widened_bytes"].as_u64() > Some(0), "{done}");
    assert_eq!(switched(pid), 0, "nothing is a copy");
    let seen = json(&ctl(["inspect", "--json", &pid.to_string()]));
    assert_eq!(seen["widened_bytes"], json(&done)["widened_bytes"]);
    let again = attach(pid, "pagecache", "pad");
    assert_eq!(json(&again)["attach"], serde_json::Value::Null, "{again}");
    assert!(ask(&mut held, "check").parse::<u64>().is_ok());
    revert(pid).assert_code(0).assert_silent();
    assert_eq!(left(), before);
    attach(pid, "pagecache", "pad").assert_code(0);
    assert_unharmed(&mut held);
    finish(held);
}

/// A launch can be reverted like an attach.
#[test]
fn a_launch_is_reverted() {
    for kind in [Kind::SeedNoPie, Kind::DynamicPie, Kind::StaticPie] {
        let copy = small("own_image", kind);
        let run = Run::new(copy.path(), NONE);
        let mut plain = hold(&run.plain());
        let mut held = hold(&run.options(["--backing=image", "--edges=pad", "--deadline=2m"]));
        let pid = held.pid();
        assert!(!huge_ranges(pid).is_empty());
        revert(pid).assert_code(0).assert_silent();
        assert_eq!(huge_ranges(pid), []);
        assert_eq!(shape(pid), shape(plain.pid()), "{kind:?}");
        assert_eq!(ask(&mut held, "check"), ask(&mut plain, "check"));
        assert_unharmed(&mut held);
        finish(held);
        finish(plain);
    }
}

/// The layout of the mappings of the program's own file, relative to the first.
pub(super) fn shape(pid: i32) -> Vec<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("an own child");
    let exe = exe.to_string_lossy().into_owned();
    let mut first = None;
    support::attaching::joined(pid)
        .iter()
        .filter(|line| line.ends_with(&*exe))
        .map(|line| {
            let (range, rest) = line.split_once(' ').expect("a line of maps");
            let (start, end) = range.split_once('-').expect("a range");
            let number = |digits| u64::from_str_radix(digits, 16).expect("hex");
            let base = *first.get_or_insert(number(start));
            format!("{:x}-{:x} {rest}", number(start) - base, number(end) - base)
        })
        .collect()
}

/// Threads of the program map, write and unmap pages in the gaps all the time. TiExec never needs a gap, so they are
/// never in its way.
#[test]
fn neighbours_that_come_and_go_are_never_in_the_way() {
    require!(pmd_size() == 2 << 20, "the example is made for huge pages of 2 MiB");
    let copy = small("own_image", Kind::SeedNoPie);
    let mut held = held(&copy);
    let pid = held.pid();
    assert_eq!(ask(&mut held, "neighbours 400000 5fe000"), "2");
    for _ in 0..support::extent::rounds(20) {
        let done = attach(pid, "image", "pad");
        done.assert_code(0).assert_silent();
        assert_eq!(huge_ranges(pid), [(0x60_0000, 0xc0_0000)], "{done}");
        revert(pid).assert_code(0).assert_silent();
        assert_eq!(switched(pid), 0);
        eventually("the neighbours go on", || ask(&mut held, "told") != "0");
    }
    assert_eq!(ask(&mut held, "check").parse::<u64>().map(|n| n > 6 << 20), Ok(true));
    finish(held);
}
