//! `--page-size` takes the pool's pages of that size and plans with it. Reports name the size, and count such pages
//! separately from those that PMD entries map.

use std::path::Path;

use serde_json::Value;
use support::attaching::{Before, assert_untouched, ctl, json, ok, revert, small};
use support::machine::Machine;
use support::smaps::{Vma, vmas};
use support::{Kind, Report, Run, is_root, pmd_size, program, require};

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The sizes that the kernel has pools for, the smallest first.
fn sizes() -> Vec<u64> {
    let entries = std::fs::read_dir(POOLS).into_iter().flatten().flatten();
    let size = |name: String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
        Some(kib * 1024)
    };
    let mut sizes: Vec<u64> =
        entries.filter_map(|entry| size(entry.file_name().into_string().ok()?)).collect();
    sizes.sort_unstable();
    sizes
}

fn pool(size: u64, file: &str) -> String {
    format!("{POOLS}/hugepages-{}kB/{file}", size / 1024)
}

/// Adds 8 MiB to the pool of that size.
fn fill(machine: &mut Machine, size: u64) -> bool {
    machine.reserve(pool(size, "nr_hugepages"), (8 << 20) / size)
}

/// The bytes of our text, all of which must be in pages of that size.
fn of_size(pid: i32, size: u64) -> u64 {
    let all = vmas(pid);
    let ours: Vec<&Vma> = all.iter().filter(|vma| vma.is_switched()).collect();
    let sum = |vma: &&Vma| vma.counter("Private_Hugetlb") + vma.counter("Shared_Hugetlb");
    for vma in &ours {
        assert_eq!(vma.counter("KernelPageSize"), size, "{vma:?}");
        assert_eq!((sum(vma), vma.start % size), (vma.end - vma.start, 0), "{vma:?}");
    }
    ours.iter().map(sum).sum()
}

/// Returns the sizes of the program's pages in a report.
fn told(report: &Value, copy: &Path) -> Value {
    let files = report["files"].as_array().expect("files");
    let main = files.iter().find(|file| file["path"] == *copy.to_string_lossy());
    main.unwrap_or_else(|| panic!("{report}"))["sizes"].clone()
}

#[test]
fn each_size_that_text_can_fill() {
    require!(is_root(), "the hugetlb pool needs root");
    let mut machine = Machine::lock();
    let sizes: Vec<u64> = sizes().into_iter().filter(|size| *size <= 2 << 20).collect();
    require!(!sizes.is_empty(), "no pool of pages that 6 MiB of text fill");
    for size in sizes {
        require!(fill(&mut machine, size), "no memory for pages of {size}");
        let free = || std::fs::read_to_string(pool(size, "free_hugepages")).expect("the pool");
        let before = free();
        // Without --select=main, libraries would also have text for small pages.
        let options =
            ["--backing=hugetlb", "--select=main", &format!("--page-size={}K", size / 1024)]
                .map(str::to_owned);
        for kind in support::programs::COMMON {
            let copy = small("hold", kind);
            let report = Report::new();
            let run = Run::new(copy.path(), ["7"]).options(&options);
            let held = report.of(&run).hold();
            let bytes = of_size(held.pid(), size);
            // Less than one page is missing at each end of each mapping of the text.
            assert!(bytes >= (6 << 20) - 2 * size, "{kind:?}: {bytes} in pages of {size}");
            let seen = serde_json::json!([
                {"page_size": size, "pmd_mapped": size == pmd_size(), "bytes": bytes}
            ]);
            assert_eq!(told(&report.read(), copy.path()), seen, "launch");
            let pid = held.pid().to_string();
            assert_eq!(told(&json(ok(&ctl(["inspect", "--json", &pid]))), copy.path()), seen);
            let table = ctl(["inspect", &pid]).out();
            let label = match size >> 20 {
                0 => format!("hugetlb {}K", size >> 10),
                mib => format!("hugetlb {mib}M"),
            };
            assert_eq!(table.contains(&label), size != pmd_size(), "{table}");
            held.finish().assert_code(7).assert_silent();
            assert_eq!(free(), before, "the pages are back in the pool");
        }
        let copy = small("hold", Kind::DynamicPie);
        let held = Run::new(copy.path(), ["7"]).plain().hold();
        let (pid, untouched) = (held.pid(), Before::of(held.pid()));
        let text = pid.to_string();
        ok(&ctl(["attach", "--quiet", &options[0], &options[1], &options[2], &text]));
        assert!(of_size(pid, size) >= (6 << 20) - 2 * size);
        ok(&revert(pid));
        assert_untouched(pid, &untouched);
        held.finish().assert_code(7);
        assert_eq!(free(), before, "the pages are back in the pool");
    }
}

#[test]
fn a_size_that_is_not_there_is_refused() {
    let run = Run::new(program("hold", Kind::DynamicNoPie), ["7"]);
    let odd = (16..40).map(|bit| 1u64 << bit).find(|size| !sizes().contains(size)).expect("one");
    let absent = format!("--page-size={odd}");
    let done = run.clone().options(["--backing=hugetlb", &absent]).output();
    done.assert_code(125);
    assert!(done.err().contains("/sys/kernel/mm/hugepages has no pages of that size"), "{done}");
    let size = format!("--page-size={}", sizes().first().copied().unwrap_or(odd));
    let done = run.clone().options([&size]).output();
    done.assert_code(125);
    assert!(done.err().starts_with("tiexec: cannot use --page-size "), "{done}");
    assert!(done.err().ends_with("for --backing hugetlb; fix: add --backing hugetlb\n"), "{done}");
    run.clone().options(["--backing=hugetlb", "--page-size=100000"]).output().assert_code(125);

    let held = run.plain().hold();
    let done = ctl(["attach", "--backing=hugetlb", &absent, &held.pid().to_string()]);
    done.assert_code(2);
    held.finish().assert_code(7);
}

#[test]
fn a_size_that_no_text_fills_is_told() {
    let large = sizes().into_iter().find(|size| *size > 8 << 20);
    require!(large.is_some(), "no pool of pages larger than the text");
    let options = ["--backing=hugetlb".to_owned(), format!("--page-size={}", large.expect("one"))];
    // Some kernels map text huge by themselves if it is cached in huge folios.
    let copy = small("hold", Kind::DynamicNoPie);
    let run = Run::new(copy.path(), ["7"]);
    let held = run.clone().options(&options).hold();
    assert_eq!(held.coverage().huge, 0);
    let done = held.finish();
    done.assert_code(7).assert_failed_open(&["page_size"]);
    assert!(done.err().contains("no text of it fills a page of"), "{done}");
    run.clone().options(&options).options(["--strict"]).output().assert_code(125);

    let held = run.plain().hold();
    let done = ctl(["attach", &options[0], &options[1], &held.pid().to_string()]);
    done.assert_code(1);
    assert!(done.err().contains("no text of it fills a page of"), "{done}");
    held.finish().assert_code(7);
}
