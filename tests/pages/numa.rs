//! `--numa` chooses the nodes for the huge pages of a copy, `inspect` reports the nodes of text, and the kernel
//! confirms both.

use std::collections::BTreeMap;

use serde_json::Value;
use support::attaching::{ctl, json, ok, revert, small};
use support::machine::{Machine, moves_pages_of_the_pool};
use support::smaps::{NO_TEXT_FOR_LARGE, vmas};
use support::{Held, Kind, Report, Run, is_root, pmd_size, program, require, require_of_machine};

/// A list as the kernel prints it.
fn list(path: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let number = |word: &str| word.parse::<u32>().expect("a number");
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    };
    text.trim().split(',').filter(|word| !word.is_empty()).flat_map(part).collect()
}

/// The nodes that have memory.
fn nodes() -> Vec<u32> {
    list("/sys/devices/system/node/has_memory")
}

/// A processor of each of the first two nodes.
fn processors() -> [u32; 2] {
    let nodes = nodes();
    [0, 1].map(|n| list(&format!("/sys/devices/system/node/node{}/cpulist", nodes[n]))[0])
}

/// Bytes on each node, of the mappings that begin at one of these addresses.
fn on_nodes(pid: i32, starts: &[u64]) -> BTreeMap<u32, u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("numa_maps");
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let (start, rest) = line.split_once(' ').expect("an address");
        if !starts.contains(&u64::from_str_radix(start, 16).expect("an address")) {
            continue;
        }
        let word = |key: &str| rest.split(' ').find_map(|word| word.strip_prefix(key));
        let size = word("kernelpagesize_kB=").map_or(0, |kib| kib.parse::<u64>().expect("a size"));
        for node in nodes() {
            if let Some(pages) = word(&format!("N{node}=")) {
                let pages: u64 = pages.parse().expect("a count");
                *sums.entry(node).or_default() += pages * size * 1024;
            }
        }
    }
    sums
}

/// Bytes of TiExec's copies on each node.
fn placed(pid: i32) -> BTreeMap<u32, u64> {
    let ours: Vec<u64> =
        vmas(pid).iter().filter(|vma| vma.is_switched()).map(|vma| vma.start).collect();
    assert!(!ours.is_empty(), "no copy in {:?}", vmas(pid));
    on_nodes(pid, &ours)
}

/// The nodes of all text, from `inspect`.
fn inspected(pid: i32) -> BTreeMap<u32, u64> {
    let done = ctl(["inspect", "--json", &pid.to_string()]);
    let report: Value = json(ok(&done));
    let files = report["files"].as_array().expect("files");
    let mut sums = BTreeMap::new();
    for on in files.iter().filter_map(|file| file["nodes"].as_array()).flatten() {
        let number = |key: &str| on[key].as_u64().expect("a number");
        *sums.entry(number("node") as u32).or_default() += number("bytes");
    }
    sums
}

fn assert_inspect_agrees(pid: i32) {
    let text: Vec<u64> =
        vmas(pid).iter().filter(|vma| vma.is_text()).map(|vma| vma.start).collect();
    assert_eq!(inspected(pid), on_nodes(pid, &text));
}

fn has_numa() -> bool {
    std::path::Path::new("/proc/self/numa_maps").exists() && !nodes().is_empty()
}

/// `hold`, attached to with these options.
fn attached(front: [&str; 3], options: &[&str], behind: &[&str]) -> Held {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().behind(front).hold();
    let pid = held.pid().to_string();
    let args = [&["attach"], options, &[&pid]].concat();
    ok(&Run::new(support::tiexecctl(), args).plain().behind(behind).output());
    held
}

#[test]
fn copies_lie_on_nodes_that_are_there() {
    require_of_machine!(has_numa(), "a kernel without NUMA");
    let first = nodes()[0];
    for numa in [format!("--numa=node={first}"), "--numa=local".into(), "--numa=interleave".into()]
    {
        // With --numa TiExec makes a copy even if the page cache is huge, because the page cache lies on the node that
        // read it.
        let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).options([&numa]).hold();
        let whole = 2 * pmd_size();
        assert!(held.coverage().is_full(), "{numa}: {:?}", held.coverage());
        let all: u64 = placed(held.pid()).values().sum();
        assert!(all >= whole, "{numa}: {all}");
        if numa.contains("node") {
            assert_eq!(placed(held.pid()), BTreeMap::from([(first, all)]));
        }
        assert_inspect_agrees(held.pid());
        ok(&revert(held.pid()));
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn a_report_tells_the_nodes() {
    require_of_machine!(has_numa(), "a kernel without NUMA");
    let report = Report::new();
    let run = Run::new(program("hold", Kind::DynamicNoPie), ["7"]).options(["--numa=local"]);
    let held = report.of(&run).hold();
    let nodes = report.read()["files"][0]["nodes"].clone();
    let bytes: u64 =
        nodes.as_array().expect("nodes").iter().filter_map(|on| on["bytes"].as_u64()).sum();
    assert!(bytes >= 2 * pmd_size(), "{nodes}");
    held.finish().assert_code(7);
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let absent = nodes().iter().max().map_or(7, |last| last + 7);
    let numa = format!("--numa=node={absent}");
    let said = format!("node {absent} has no memory");
    // Some kernels map text huge by themselves if it is cached in huge folios.
    let copy = small("hold", Kind::DynamicNoPie);
    let run = Run::new(copy.path(), ["7"]);
    let done = run.clone().options([&numa]).output();
    done.assert_code(125);
    assert!(done.err().contains(&said) && done.out().is_empty(), "{done}");

    let held = run.plain().hold();
    let done = ctl(["attach", &numa, &held.pid().to_string()]);
    done.assert_code(2);
    assert!(done.err().contains(&said), "{done}");
    held.finish().assert_code(7);

    // The program runs in spite of a bad node in the environment.
    let held = run.env("TIEXEC", format!("numa=node={absent}")).hold();
    assert_eq!(held.coverage().huge, 0);
    held.finish().assert_code(7).assert_failed_open(&["numa"]);
}

#[test]
fn the_page_cache_lies_where_it_is() {
    let run = Run::new("/bin/true", [""; 0]).options(["--numa=local", "--backing=pagecache"]);
    let done = run.output();
    done.assert_code(125);
    assert!(done.err().contains("cannot use --numa "), "{done}");
    assert!(done.err().contains("; fix: leave out --backing pagecache"), "{done}");
    for bad in ["node", "node=x", "1", "all"] {
        Run::new("/bin/true", [""; 0]).options([format!("--numa={bad}")]).output().assert_code(125);
    }
}

/// Asserts that the copy is spread evenly over these nodes.
fn assert_lies_on(held: &Held, nodes: &[u32], what: &str) {
    let placed = placed(held.pid());
    assert_eq!(placed.keys().copied().collect::<Vec<_>>(), nodes, "{what}: {placed:?}");
    let (least, most) = (placed.values().min(), placed.values().max());
    assert!(most.expect("some") - least.expect("some") <= pmd_size(), "{what}: {placed:?}");
    assert_inspect_agrees(held.pid());
}

/// Every choice, by launch and by attach, with one backing.
fn everywhere(backing: &str) {
    let all = nodes();
    let [near, far] = [all[0], all[1]];
    let processors = processors().map(|number| number.to_string());
    let on = |processor: usize| ["taskset", "-c", &processors[processor]];
    let both = [near, far];
    let named = |node: u32| format!("--numa=node={node}");
    let (at_near, at_far) = (named(near), named(far));
    // The process that fills the copy runs on one node, and the test requests the other.
    for (numa, from, expected) in [
        ("--numa=interleave", 0, &both[..]),
        ("--numa=interleave", 1, &both[..]),
        (&at_near, 1, &both[..1]),
        (&at_far, 0, &both[1..]),
        ("--numa=local", 0, &both[..1]),
        ("--numa=local", 1, &both[1..]),
    ] {
        let what = format!("{backing} {numa} from {from}");
        let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).options([
            backing,
            numa,
            "--deadline=2m",
        ]);
        let held = run.behind(on(from)).hold();
        assert!(held.coverage().is_full(), "{what}: {:?}", held.coverage());
        assert_lies_on(&held, expected, &what);
        held.finish().assert_code(7).assert_silent();
    }
    for (numa, from, expected) in [
        ("--numa=interleave", 0, &both[..]),
        (&at_near, 1, &both[..1]),
        (&at_far, 0, &both[1..]),
        // The node is that of the program, not of the attaching process.
        ("--numa=local", 0, &both[1..]),
        ("--numa=local", 1, &both[..1]),
    ] {
        let what = format!("attach {backing} {numa} from {from}");
        let held = attached(on(1 - from), &[backing, numa], &on(from));
        assert_lies_on(&held, expected, &what);
        held.finish().assert_code(7);
    }
}

#[test]
fn images_lie_where_they_are_wanted() {
    require_of_machine!(nodes().len() > 1, "one NUMA node");
    everywhere("--backing=image");
}

#[test]
fn pages_of_the_pool_lie_where_they_are_wanted() {
    require_of_machine!(nodes().len() > 1, "one NUMA node");
    require!(is_root(), "the hugetlb pool needs root");
    let mut machine = Machine::lock();
    let kib = pmd_size() / 1024;
    for node in nodes() {
        let node = format!("/sys/devices/system/node/node{node}/hugepages");
        let filled = machine.reserve(format!("{node}/hugepages-{kib}kB/nr_hugepages"), 8);
        require!(filled, "no pool on each node");
    }
    require!(moves_pages_of_the_pool(), "the kernel moves no pages of the pool");
    everywhere("--backing=hugetlb");
}

#[test]
fn a_family_shares_an_image_only_where_it_lies_right() {
    require_of_machine!(nodes().len() > 1, "one NUMA node");
    let processors = processors().map(|number| number.to_string());
    let copy = small("hold", Kind::DynamicNoPie);
    let held = [0, 1].map(|n| {
        Run::new(copy.path(), ["7"]).plain().behind(["taskset", "-c", &processors[n]]).hold()
    });
    let [one, other] = held.each_ref().map(|held| held.pid().to_string());
    ok(&ctl(["attach", "--backing=image", "--numa=local", &one, &other]));
    for (held, node) in held.into_iter().zip(nodes()) {
        assert_lies_on(&held, &[node], "one of two");
        held.finish().assert_code(7);
    }
}
