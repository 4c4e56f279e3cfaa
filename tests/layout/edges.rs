//! `--edges` makes the chosen part of a text's head and tail huge at launch. It makes no other memory huge and harms
//! none.

use serde_json::Value;
use support::edges::{ask, assert_unharmed, finish, hold, huge_ranges, text_bytes};
use support::first_output::reported_at_first_output;
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::smaps::vmas;
use support::{Fresh, Kind, Report, Run, installed, pmd_size, program, require};

const NONE: [&str; 0] = [];

fn run(kind: Kind, options: &[&str]) -> Run {
    Run::new(program("own_image", kind), NONE).options(["--deadline=2m"]).options(options)
}

fn report_of(run: &Run) -> (support::Held, Value) {
    let report = Report::new();
    let held = hold(&report.of(run));
    (held, report.read())
}

/// The text is at 0x5ff000–0xc02000. There is nothing below it, and nothing for a long distance above it.
#[test]
fn the_seeds_example_in_each_mode() {
    require!(pmd_size() == 2 << 20, "the example is made for huge pages of 2 MiB");
    let backing = "--backing=image";
    for (options, wanted, widened) in [
        (vec![backing], (0x60_0000, 0xc0_0000), 0),
        (vec![backing, "--edges=conservative", "--pad-threshold=0"], (0x60_0000, 0xc0_0000), 0),
        (vec![backing, "--edges=pad", "--pad-threshold=8K"], (0x60_0000, 0xe0_0000), 0x1f_e000),
        (vec![backing, "--edges=pad", "--pad-threshold=8193"], (0x60_0000, 0xc0_0000), 0),
        (vec![backing, "--edges=pad"], (0x40_0000, 0xe0_0000), 0x3f_d000),
        (vec![backing, "--edges=aggressive"], (0x40_0000, 0xe0_0000), 0x3f_d000),
    ] {
        let (mut held, report) = report_of(&run(Kind::SeedNoPie, &options));
        assert_eq!(huge_ranges(held.pid()), [wanted], "{options:?}");
        let text = (wanted.1.min(0xc0_2000)) - wanted.0.max(0x5f_f000);
        let main = &report["files"][0];
        assert_eq!(report["widened_bytes"], widened, "{options:?} {report}");
        assert_eq!((&main["huge_bytes"], &main["widened_bytes"]), (&text.into(), &widened.into()));
        assert_eq!(main["text_bytes"], 0x60_3000, "{report}");
        assert_eq!(report["outcome"], "switched", "{report}");
        assert_unharmed(&mut held);
        finish(held);
    }
}

#[test]
fn the_environment_sets_it_too_and_a_dry_run_shows_it() {
    let options = ["--backing=image", "--dry-run", "--json"];
    let done = Run::new(program("own_image", Kind::SeedNoPie), NONE)
        .options(options)
        .env("TIEXEC", "edges=pad,pad-threshold=8KiB")
        .output();
    done.assert_code(0);
    let plan: Value = serde_json::from_slice(&done.stdout).expect("a plan");
    let widened: Vec<u64> = plan["spans"]
        .as_array()
        .expect("spans")
        .iter()
        .map(|s| s["widened_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(widened, [0, 0x1f_e000], "{plan}");
    assert_eq!(
        (&plan["huge_bytes"], &plan["widened_bytes"]),
        (&0x60_2000.into(), &0x1f_e000.into())
    );
    let table = Run::new(program("own_image", Kind::SeedNoPie), NONE)
        .options(["--backing=image", "--dry-run", "--edges=aggressive"])
        .output();
    assert!(table.out().contains("become executable"), "{table}");
    let wrong = Run::new("true", NONE).options(["--edges=all"]).output();
    wrong.assert_code(125);
    let wrong = Run::new("true", NONE).options(["--pad-threshold=4KB"]).output();
    wrong.assert_code(125);
}

#[test]
fn every_layout_a_linker_makes_is_whole_afterwards() {
    for kind in [
        Kind::DynamicPie,
        Kind::DynamicNoPie,
        Kind::StaticPie,
        Kind::StaticNoPie,
        Kind::OneSegmentPie,
        Kind::OneSegmentNoPie,
        Kind::LldPie,
        Kind::LldSeparatePie,
        Kind::LldStaticPie,
        Kind::MoldPie,
        Kind::MoldSeparatePie,
        Kind::SpreadPie,
        Kind::SpreadLldPie,
        Kind::SeedNoPie,
    ] {
        if !kind.can_build() {
            support::skip(&format!("{kind:?} cannot be built here"));
            continue;
        }
        let conservative = huge_bytes(kind, "conservative");
        for edges in ["pad", "aggressive"] {
            let (mut held, report) =
                report_of(&run(kind, &["--backing=image", &format!("--edges={edges}")]));
            let pid = held.pid();
            let huge: u64 = huge_ranges(pid).iter().map(|(start, end)| end - start).sum();
            let text = report["files"][0]["huge_bytes"].as_u64().expect("a number");
            let widened = report["widened_bytes"].as_u64().expect("a number");
            assert_eq!(huge, text + widened, "{kind:?} {edges} {report}");
            // The text of OneSegmentNoPie begins with a huge page, and its data lies in the huge page in which the text
            // ends.
            let has_edges = kind != Kind::OneSegmentNoPie;
            // A position-independent program is moved to an address where all its whole pages are huge in any case.
            if format!("{kind:?}").ends_with("NoPie") {
                assert_eq!(huge > conservative, has_edges, "{kind:?} {edges}: {huge} {report}");
            }
            assert!(huge >= conservative, "{kind:?} {edges}: {huge} {report}");
            assert_nothing_writable_is_executable(pid);
            assert_unharmed(&mut held);
            finish(held);
        }
    }
}

fn huge_bytes(kind: Kind, edges: &str) -> u64 {
    let edges = format!("--edges={edges}");
    let held = hold(&run(kind, &["--backing=image", &edges]));
    let huge = huge_ranges(held.pid()).iter().map(|(start, end)| end - start).sum();
    finish(held);
    huge
}

fn assert_nothing_writable_is_executable(pid: i32) {
    let both = |perms: &str| perms.contains('w') && perms.contains('x');
    let wrong: Vec<_> = vmas(pid).into_iter().filter(|vma| both(&vma.perms)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The program's data lies in the huge page in which its text ends.
#[test]
fn writable_data_in_the_same_huge_page_stays_on_base_pages() {
    for edges in ["--edges=pad", "--edges=aggressive"] {
        let mut held = hold(&run(Kind::DynamicNoPie, &["--backing=image", edges]));
        let pid = held.pid();
        let all = vmas(pid);
        let exe = program("own_image", Kind::DynamicNoPie);
        let data = all.iter().filter(|v| v.path == exe.to_string_lossy() && v.perms.contains('w'));
        let data = data.map(|v| v.start).min().expect("it has data");
        let last = huge_ranges(pid).last().copied().expect("it has text");
        assert_eq!(last.1, data / pmd_size() * pmd_size(), "{all:?}");
        assert_eq!(huge_ranges(pid)[0].0, 0x40_0000, "its head shares with read-only data only");
        assert_unharmed(&mut held);
        finish(held);
    }
}

/// Without address randomisation the heap begins directly after the data.
#[test]
fn the_heap_grows_as_it_would() {
    for kind in
        [Kind::SeedNoPie, Kind::DynamicNoPie, Kind::StaticNoPie, Kind::StaticPie, Kind::SpreadPie]
    {
        for randomised in [false, true] {
            let mut run = run(kind, &["--backing=image", "--edges=aggressive"]);
            if !randomised {
                run = run.fixed_addresses();
            }
            let mut held = hold(&run);
            assert_unharmed(&mut held);
            finish(held);
        }
    }
}

#[test]
fn a_jump_into_the_filler_is_a_trap() {
    require!(pmd_size() == 2 << 20, "the example is made for huge pages of 2 MiB");
    for address in ["400000", "5feffc", "c02000", "dfffff"] {
        let mut held = hold(&run(Kind::SeedNoPie, &["--backing=image", "--edges=pad"]));
        held.write(format!("trap {address}\n").as_bytes());
        held.finish().assert_signal(libc::SIGTRAP);
    }
    // Without edges this place is unmapped.
    let mut held = hold(&run(Kind::SeedNoPie, &["--backing=image"]));
    held.write(b"trap 400000\n");
    held.finish().assert_signal(libc::SIGSEGV);
}

/// Read-only data and text have the same layout in the page cache and in memory, so nothing is copied.
#[test]
fn the_page_cache_serves_edges_within_the_file() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    for kind in [Kind::StaticPie, Kind::StaticNoPie, Kind::SpreadPie] {
        let copy = Fresh::copy(&program("own_image", kind));
        let run = Run::new(copy.path(), NONE).options([
            "--backing=pagecache",
            "--deadline=2m",
            "--edges=pad",
        ]);
        let (mut held, report) = report_of(&run);
        let launch = &report["launch"];
        assert_eq!((&launch["backing"], &launch["bytes_copied"]), (&"pagecache".into(), &0.into()));
        let pid = held.pid();
        let ours = vmas(pid).into_iter().filter(|vma| vma.is_switched()).count();
        assert_eq!(ours, 0, "{kind:?}: a copy");
        assert!(report["widened_bytes"].as_u64() > Some(0), "{kind:?} {report}");
        let len = std::fs::metadata(copy.path()).expect("a file").len();
        let beyond = |vma: &support::smaps::Vma| {
            vma.path == copy.path().to_string_lossy()
                && vma.is_text()
                && vma.offset + (vma.end - vma.start) > len.next_multiple_of(4096)
        };
        assert!(!vmas(pid).iter().any(beyond), "{kind:?}: beyond the end of the file");
        assert_unharmed(&mut held);
        finish(held);
    }
}

#[test]
fn hugetlb_pages_hold_edges_too() {
    let mut machine = support::machine::Machine::lock();
    require!(machine.pool(8), "8 huge pages cannot be reserved");
    let mut held = hold(&run(Kind::SeedNoPie, &["--backing=hugetlb", "--edges=aggressive"]));
    assert_eq!(huge_ranges(held.pid()), [(0x40_0000, 0xe0_0000)]);
    assert_unharmed(&mut held);
    finish(held);
}

#[test]
fn real_programs_have_all_of_their_text_on_huge_pages() {
    let postgres = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let postgres = postgres.map(|dir| dir.path().join("bin/postgres")).find(|path| path.exists());
    let python = std::path::PathBuf::from("/usr/bin/python3");
    let programs = [
        (installed("node"), vec!["-e", "console.log(6 * 7)"]),
        (installed("mariadbd"), vec!["--version"]),
        (postgres, vec!["--version"]),
        (installed("prometheus"), vec!["--version"]),
        (Some(python).filter(|path| path.exists()), vec!["-c", "print(6 * 7)"]),
        (installed("go"), vec!["version"]),
    ];
    for (path, args) in programs {
        let Some(path) = path else { continue };
        let plain = Run::new(&path, &args).plain().output();
        let report = Report::new();
        let run =
            Run::new(&path, &args).options(["--backing=image", "--edges=pad", "--deadline=2m"]);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        // PostgreSQL 17 ends before tiexec has looked at it.
        let output = match name {
            "postgres" => reported_at_first_output(&run, &report),
            _ => report.of(&run).output().assert_code(0).stdout.clone(),
        };
        assert_eq!(output, plain.stdout, "{}", path.display());
        let told = report.read();
        // The largest text is the program's own. Debian's node has its text in libnode.so.
        let main = &told["files"][0];
        let file = main["path"].as_str().unwrap_or_else(|| panic!("{told}"));
        assert!(file.contains(name), "{told}");
        let (text, huge) = (main["text_bytes"].as_u64(), main["huge_bytes"].as_u64());
        // V8 may map its built-in functions a second time.
        assert!(text >= Some(text_bytes(file.as_ref())), "{told}");
        assert!(huge.unwrap_or(0) * 100 >= text.unwrap_or(1) * 95, "{}: {told}", path.display());
    }
}

#[test]
fn ask_is_heard() {
    // The tests above rely on this: `ask` detects damage.
    let mut held = hold(&Run::new(program("own_image", Kind::SeedNoPie), NONE).plain());
    assert_eq!(ask(&mut held, "protect"), "ok");
    assert_eq!(huge_ranges(held.pid()), []);
    held.write(b"trap 400000\n");
    held.finish().assert_signal(libc::SIGSEGV);
}
