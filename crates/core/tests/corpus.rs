//! The parsers' results for files that a real kernel and real linkers wrote (`testdata/README.md`).

use tiexec_core::addr::{PageSize, Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::coverage::{FileCoverage, coverage};
use tiexec_core::elf::{ElfFacts, ElfHeader};
use tiexec_core::plan::{Backing, Means, Plan, plan};
use tiexec_core::proc::maps::{self, Vma};
use tiexec_core::proc::{auxv, cgroup, status};
use tiexec_core::skip::SkipReason;
use tiexec_core::smaps;
use tiexec_core::snapshot::Snapshot;

macro_rules! captured {
    ($path:literal) => {
        include_bytes!(concat!("../testdata/", $path))
    };
}

const MAPS: [(&str, &[u8]); 6] = [
    ("sleep", captured!("maps/sleep")),
    ("node", captured!("maps/node")),
    ("python3", captured!("maps/python3")),
    ("java", captured!("maps/java")),
    ("prometheus", captured!("maps/prometheus")),
    ("gofmt", captured!("maps/gofmt")),
];

const SMAPS: [(&str, &[u8]); 5] = [
    ("sleep", captured!("smaps/sleep")),
    ("node", captured!("smaps/node")),
    ("prometheus", captured!("smaps/prometheus")),
    ("gofmt", captured!("smaps/gofmt")),
    ("every-huge-page", captured!("smaps/every-huge-page")),
];

fn size(bytes: u64) -> PageSize {
    PageSize::new(bytes).expect("a power of two")
}

fn pages() -> Pages {
    Pages { base: size(4 << 10), pmd: size(2 << 20) }
}

fn maps_of(name: &str) -> Vec<Vma> {
    let (_, text) = MAPS.iter().find(|(found, _)| *found == name).expect("a captured file");
    maps::parse(text).expect("what the kernel prints")
}

fn smaps_of(name: &str) -> Vec<Area> {
    let (_, text) = SMAPS.iter().find(|(found, _)| *found == name).expect("a captured file");
    smaps::parse(text).expect("what the kernel prints")
}

fn snapshot(maps: &str, auxv: &[u8]) -> Snapshot {
    let entry = auxv::get(auxv, auxv::AT_ENTRY).expect("every vector has an entry point");
    Snapshot { pages: pages(), vmas: maps_of(maps), entry: RemoteAddr::new(entry) }
}

/// Returns `start-end` of each text VMA of the file called `path`.
fn text_of(vmas: &[Vma], path: &str) -> Vec<String> {
    let of_file = |vma: &&Vma| vma.is_text() && vma.path() == path.as_bytes();
    vmas.iter().filter(of_file).map(|vma| vma.range.to_string()).collect()
}

#[test]
fn every_line_of_maps_is_understood_and_in_order() {
    for (name, text) in MAPS {
        let vmas = maps_of(name);
        let lines = text.iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(vmas.len(), lines, "{name}");
        for pair in vmas.windows(2) {
            assert!(pair[0].range.end() <= pair[1].range.start(), "{name}: {pair:?}");
        }
        for vma in &vmas {
            assert!(vma.range.start().is_aligned(pages().base), "{name}: {vma:?}");
            assert!(vma.range.end().is_aligned(pages().base), "{name}: {vma:?}");
            assert!(!vma.range.is_empty(), "{name}: {vma:?}");
        }
        let named = |wanted: &[u8]| vmas.iter().filter(|vma| *vma.name == *wanted).count();
        assert_eq!(
            (named(b"[stack]"), named(b"[vdso]"), named(b"[vsyscall]")),
            (1, 1, 1),
            "{name}"
        );
    }
}

#[test]
fn the_kernels_own_code_is_no_text() {
    for (name, _) in MAPS {
        for vma in maps_of(name) {
            if vma.name.starts_with(b"[") {
                assert!(!vma.is_text(), "{name}: {vma:?}");
            }
            // Code that a JIT made is backed by nothing.
            if vma.perms.exec && vma.name.is_empty() {
                assert!(!vma.is_text(), "{name}: {vma:?}");
            }
        }
    }
    let jit = |vma: &&Vma| vma.perms.exec && vma.perms.write && vma.name.is_empty();
    assert!(maps_of("java").iter().any(|vma| jit(&vma)), "java has some");
}

#[test]
fn nodes_text_is_where_its_linker_and_v8_put_it() {
    let vmas = maps_of("node");
    let text = text_of(&vmas, "/usr/bin/node");
    let of_linker = ["00b6f000-00b71000", "00b72000-025fe000", "02600000-02601000"];
    assert_eq!(text[..3], of_linker);
    // V8's second mapping of its built-in functions, near its heap.
    assert_eq!(text[3..], ["7f8a52600000-7f8a52792000"]);
    let main = vmas.iter().find(|vma| vma.range.contains(RemoteAddr::new(0xb7_2000))).unwrap();
    assert_eq!(main.file_offset, 0x77_2000);
    assert_eq!((main.file.major, main.file.minor), (0xfe, 0));
    assert!(main.perms.read && main.perms.exec && !main.perms.write && !main.perms.shared);
}

#[test]
fn shared_file_mappings_of_java_and_go_are_seen_as_shared() {
    for (name, path) in [
        ("java", "/tmp/hsperfdata_root/"),
        ("gofmt", "/home/user/.config/go/telemetry/local/gofmt.v1.count"),
    ] {
        let vmas = maps_of(name);
        let vma = vmas.iter().find(|vma| vma.path().starts_with(path.as_bytes())).expect(name);
        assert!(vma.perms.shared && vma.perms.write && !vma.is_text(), "{vma:?}");
    }
}

#[test]
fn the_entry_point_names_the_main_executable() {
    for (name, vector, path) in [
        ("sleep", &captured!("auxv/sleep")[..], "/usr/bin/sleep"),
        ("prometheus", captured!("auxv/prometheus"), "/usr/bin/prometheus"),
        ("gofmt", captured!("auxv/gofmt"), "/usr/local/go/bin/gofmt"),
    ] {
        let snapshot = snapshot(name, vector);
        let vma = snapshot.vma_at(snapshot.entry).expect(name);
        assert!(vma.is_text(), "{vma:?}");
        assert_eq!(vma.display_path(), path);
        assert_eq!(snapshot.main_file(), Some(vma.file));
    }
}

#[test]
fn the_auxiliary_vector_tells_kinds_of_programs_apart() {
    let get = |vector: &[u8], key| auxv::get(vector, key);
    let (sleep, prometheus) = (captured!("auxv/sleep"), captured!("auxv/prometheus"));
    let (gofmt, su) = (captured!("auxv/gofmt"), captured!("auxv/su"));
    assert_eq!(get(gofmt, auxv::AT_BASE), Some(0), "a static program has no interpreter");
    assert_eq!(get(gofmt, auxv::AT_ENTRY), Some(0x48_5c40));
    assert_eq!(get(prometheus, auxv::AT_BASE), Some(0x7f12_1d49_3000));
    assert_eq!(get(prometheus, auxv::AT_ENTRY), Some(0x40_2350));
    assert_eq!(get(sleep, auxv::AT_PHDR), Some(0x5560_0a72_1040));
    for plain in [&sleep[..], prometheus, gofmt] {
        assert_eq!(get(plain, auxv::AT_SECURE), Some(0));
    }
    assert_eq!(get(su, auxv::AT_SECURE), Some(1), "setuid");
    assert_eq!(get(su, auxv::AT_NULL), None, "the end is no entry");
}

/// Plans with one copying backing and nothing else.
fn plan_by(snapshot: &Snapshot, backing: Backing) -> Plan {
    plan(snapshot, &Means { copies: &[backing], ..Means::default() })
}

#[test]
fn prometheus_gets_every_whole_huge_page_of_its_text() {
    let snapshot = snapshot("prometheus", captured!("auxv/prometheus"));
    let plan = plan_by(&snapshot, Backing::Image);
    // 00402000-01923000: the first whole huge page is at 6 MiB, the last ends at 24 MiB.
    let spans: Vec<_> =
        plan.spans().map(|span| (span.range.to_string(), span.file_offset)).collect();
    assert_eq!(spans, [("00600000-01800000".to_owned(), 0x20_0000)]);
    let main = plan.texts.iter().find(|text| !text.spans.is_empty()).unwrap();
    assert_eq!(main.rest, [(SkipReason::Edges.into(), 0x1fe000 + 0x12_3000)]);
    for text in &plan.texts {
        if text.spans.is_empty() {
            assert_eq!(text.rest, [(SkipReason::TooSmall.into(), text.vma.range.len())]);
        }
    }
}

#[test]
fn small_programs_have_nothing_planned() {
    for (name, vector) in
        [("sleep", &captured!("auxv/sleep")[..]), ("gofmt", captured!("auxv/gofmt"))]
    {
        let plan = plan_by(&snapshot(name, vector), Backing::Image);
        assert_eq!(plan.huge_bytes(), 0, "{name}");
        assert!(plan.text_bytes() > 0, "{name}");
    }
}

#[test]
fn java_leaves_its_largest_text_to_another_day() {
    // The launcher is small; libjvm, a DSO, is not.
    let vmas = maps_of("java");
    let launcher = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java";
    let entry = vmas.iter().find(|vma| vma.is_text() && vma.display_path() == launcher).unwrap();
    let snapshot = Snapshot { pages: pages(), entry: entry.range.start(), vmas: vmas.clone() };
    let plan = plan_by(&snapshot, Backing::Image);
    assert_eq!(plan.huge_bytes(), 0);
    let jvm = plan.texts.iter().find(|text| text.vma.path().ends_with(b"/libjvm.so")).unwrap();
    assert_eq!(jvm.rest, [(SkipReason::NotSelected.into(), jvm.vma.range.len())]);
    assert!(jvm.vma.range.len() > 8 << 20);
}

#[test]
fn staging_room_is_free_in_every_captured_address_space() {
    for (name, _) in MAPS {
        let snapshot =
            Snapshot { pages: pages(), vmas: maps_of(name), entry: RemoteAddr::default() };
        for len in [2 << 20, 24 << 20, 1 << 30] {
            let area = snapshot.free_area(len).expect(name);
            assert_eq!(area.len(), len);
            assert!(area.start().is_aligned(pages().pmd));
            assert!(snapshot.vmas.iter().all(|vma| !vma.range.overlaps(area)), "{name}: {area}");
        }
        assert_eq!(snapshot.free_area(1 << 48), None, "{name}");
    }
}

#[test]
fn every_entry_of_smaps_is_understood() {
    for (name, text) in SMAPS {
        let entries = smaps_of(name);
        let count = |needle: &[u8]| text.windows(needle.len()).filter(|at| *at == needle).count();
        assert_eq!(entries.len(), count(b"\nVmFlags:"), "{name}");
        for entry in &entries {
            assert!(entry.page_size >= 4096, "{name}: {entry:?}");
            assert!(entry.huge_bytes() <= entry.vma.range.len(), "{name}: {entry:?}");
            assert_eq!(entry.has_flag(*b"ex"), entry.vma.perms.exec, "{name}: {entry:?}");
            assert_eq!(entry.has_flag(*b"wr"), entry.vma.perms.write, "{name}: {entry:?}");
        }
        let stack = entries.iter().find(|entry| entry.vma.name == b"[stack]").expect(name);
        assert!(stack.has_flag(*b"gd"), "{name}: a stack grows: {stack:?}");
    }
}

#[test]
fn each_kind_of_huge_page_is_counted_as_what_it_is() {
    let entries = smaps_of("every-huge-page");
    let at = |start: u64| {
        entries.iter().find(|entry| entry.vma.range.start().get() == start).expect("captured")
    };
    let image = at(0x6000_0000_0000);
    assert_eq!((image.file_huge, image.huge_bytes()), (4 << 20, 4 << 20));
    let hugetlb = at(0x6000_0040_0000);
    assert_eq!((hugetlb.file_huge, hugetlb.huge_bytes()), (2 << 20, 2 << 20));
    assert!(hugetlb.page_size == 2 << 20 && hugetlb.has_flag(*b"ht"));
    let pagecache = at(0x6000_0100_0000);
    assert_eq!((pagecache.file_huge, pagecache.huge_bytes()), (4 << 20, 4 << 20));
    let anon = at(0x6000_0200_0000);
    assert_eq!((anon.anon_huge, anon.huge_bytes()), (2 << 20, 2 << 20));
    assert!(!anon.vma.is_text());
}

#[test]
fn coverage_of_every_kind_of_huge_page_names_the_backings() {
    let files = coverage(&smaps_of("every-huge-page"), pages(), &[], &[]);
    let with_huge: Vec<(&str, u64, Vec<Backing>)> = files
        .iter()
        .filter(|file| file.huge_bytes > 0)
        .map(|file| {
            (file.path.as_str(), file.huge_bytes, file.by_backing.keys().copied().collect())
        })
        .collect();
    assert_eq!(
        with_huge,
        [
            ("/memfd:tiexec:node", 4 << 20, vec![Backing::Image]),
            ("/usr/bin/node", 4 << 20, vec![Backing::Pagecache]),
            ("/memfd:tiexec:node", 2 << 20, vec![Backing::Hugetlb]),
        ]
    );
}

#[test]
fn a_plain_nodes_text_is_all_on_base_pages() {
    let files = coverage(&smaps_of("node"), pages(), &[], &[]);
    let node = &files[0];
    assert_eq!(node.path, "/usr/bin/node");
    // Three text segments and V8's second mapping.
    assert_eq!(node.text_bytes, 0x2000 + 0x1a8_c000 + 0x1000 + 0x19_2000);
    assert_eq!((node.huge_bytes, node.by_backing.len()), (0, 0));
    let bytes = |wanted: SkipReason| {
        node.rest.iter().find(|rest| rest.reason == wanted).map_or(0, |rest| rest.bytes)
    };
    assert_eq!(bytes(SkipReason::BasePages), 24 << 20);
    assert_eq!(bytes(SkipReason::Edges), 0x8_e000 + 0x1f_e000);
    assert_eq!(bytes(SkipReason::TooSmall), 0x2000 + 0x1000 + 0x19_2000);
    let small = |file: &FileCoverage| file.rest.iter().all(|r| r.reason == SkipReason::TooSmall);
    assert!(files[1..].iter().all(small), "{files:?}");
}

#[test]
fn status_tells_plain_processes() {
    for (text, name, threads) in [
        (&captured!("status/sleep")[..], &b"sleep"[..], 1),
        (captured!("status/gofmt"), b"gofmt", 4),
        (captured!("status/node"), b"node", 7),
    ] {
        let status = status::parse(text);
        assert_eq!(status.name, name);
        assert_eq!(status.state, b'S');
        assert_eq!(status.threads, threads);
        assert_eq!((status.tracer_pid, status.seccomp, status.locked), (0, 0, 0));
        assert_eq!((status.pending, status.blocked), (0, 0));
        assert_eq!(status.thp_enabled, Some(true));
        assert!(status.has_mm && status.tgid.is_some());
    }
}

#[test]
fn status_of_an_odd_process_tells_all_that_is_odd() {
    let status = status::parse(captured!("status/odd"));
    assert_eq!(status.name, b"odd (\\\\ \\n) name", "as printed: escaped");
    assert_eq!(status.state, b't');
    assert_eq!((status.tgid, status.tracer_pid), (Some(28810), 28806));
    assert_eq!(status.uids, Some((0, 0)));
    assert_eq!((status.seccomp, status.threads), (2, 3));
    assert_eq!(status.thp_enabled, Some(false));
    // SIGUSR1 is 10, SIGWINCH 28.
    assert_eq!((status.pending, status.blocked), (1 << 9, 1 << 9 | 1 << 27));
    assert_eq!(status.locked, 68 << 10);
    assert!(status.has_mm);
}

#[test]
fn kernel_threads_and_zombies_have_no_address_space() {
    let kthread = status::parse(captured!("status/kthread"));
    assert_eq!((kthread.name.as_slice(), kthread.state), (&b"kthreadd"[..], b'S'));
    let zombie = status::parse(captured!("status/zombie"));
    assert_eq!(zombie.state, b'Z');
    assert!(!kthread.has_mm && !zombie.has_mm);
}

#[test]
fn the_memory_cgroup_of_a_service_is_found() {
    let text = captured!("cgroup/v1-service.cgroup");
    let found = cgroup::memory_cgroup(text, captured!("cgroup/v1-service.mountinfo")).unwrap();
    assert_eq!(found.mount, b"/sys/fs/cgroup/memory");
    assert_eq!(found.below, b"system.slice/web.service");
    assert!(!found.unified);
    let unit = cgroup::units(text, b"").map(|units| units.to_string());
    assert_eq!(unit.as_deref(), Some("web.service"));
}

#[test]
fn a_cgroup_namespace_hides_the_path_and_leaves_the_mounts_top() {
    let text = captured!("cgroup/namespace.cgroup");
    let found = cgroup::memory_cgroup(text, captured!("cgroup/namespace.mountinfo")).unwrap();
    assert_eq!((&found.mount[..], &found.below[..]), (&b"/sys/fs/cgroup/memory"[..], &b""[..]));
    assert_eq!(cgroup::units(text, b""), None);
}

struct Image {
    name: &'static str,
    prefix: &'static [u8],
    position_independent: bool,
    dynamic: bool,
    entry: u64,
    loads: usize,
    text_bytes: u64,
    fills: bool,
}

const IMAGES: [Image; 6] = [
    Image {
        name: "node",
        prefix: captured!("elf/node"),
        position_independent: false,
        dynamic: true,
        entry: 0xbb_8330,
        loads: 6,
        text_bytes: 0x1e90 + 0x1a8_bca0 + 0x1f1,
        fills: true,
    },
    Image {
        name: "go",
        prefix: captured!("elf/go"),
        position_independent: false,
        dynamic: false,
        entry: 0x49_2920,
        loads: 3,
        text_bytes: 0x69_deb1,
        fills: true,
    },
    Image {
        name: "prometheus",
        prefix: captured!("elf/prometheus"),
        position_independent: false,
        dynamic: true,
        entry: 0x40_2350,
        loads: 4,
        text_bytes: 0x152_0ad1,
        fills: true,
    },
    Image {
        name: "true",
        prefix: captured!("elf/true"),
        position_independent: true,
        dynamic: true,
        entry: 0x23d0,
        loads: 4,
        text_bytes: 0x3d59,
        fills: false,
    },
    Image {
        name: "libc.so.6",
        prefix: captured!("elf/libc.so.6"),
        position_independent: true,
        dynamic: true,
        entry: 0x2_7410,
        loads: 4,
        text_bytes: 0x15_50fc,
        fills: false,
    },
    Image {
        name: "ldconfig",
        prefix: captured!("elf/ldconfig"),
        position_independent: true,
        dynamic: false,
        entry: 0x1ed0,
        loads: 4,
        text_bytes: 0xb_33fd,
        fills: false,
    },
];

// The captured images are x86-64 ones: elsewhere they are foreign.
#[cfg(target_arch = "x86_64")]
#[test]
fn elf_headers_of_real_files_tell_their_facts() {
    for image in IMAGES {
        let Image { name, prefix, .. } = image;
        let header = ElfHeader::parse(prefix).expect(name);
        assert_eq!(header.position_independent, image.position_independent, "{name}");
        assert_eq!((header.entry, header.table_offset), (image.entry, 64), "{name}");
        let facts = ElfFacts::parse(&header, &prefix[64..]).expect(name);
        assert_eq!(facts.dynamic, image.dynamic, "{name}");
        assert_eq!(facts.loads.len(), image.loads, "{name}");
        assert_eq!(facts.text_bytes(), image.text_bytes, "{name}");
        assert_eq!(facts.may_fill(size(2 << 20), size(4 << 10)), image.fills, "{name}");
        assert!(!facts.may_fill(size(512 << 20), size(64 << 10)), "{name}");
        let write = |facts: &ElfFacts| facts.loads.iter().filter(|load| load.write).count();
        assert_eq!(write(&facts), 1, "{name}");
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn elf_headers_of_another_machine_are_foreign() {
    for image in IMAGES {
        assert_eq!(ElfHeader::parse(image.prefix), Err(tiexec_core::elf::ElfError::Foreign));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn elf_headers_agree_with_maps_on_where_the_text_is() {
    // A non-PIE's vaddrs are its addresses.
    let prefix = captured!("elf/prometheus");
    let header = ElfHeader::parse(prefix).expect("a native image");
    let facts = ElfFacts::parse(&header, &prefix[64..]).expect("parsed above");
    let text = facts.loads.iter().find(|load| load.is_text()).expect("text");
    let vmas = maps_of("prometheus");
    let vma =
        vmas.iter().find(|vma| vma.is_text() && vma.path() == b"/usr/bin/prometheus").unwrap();
    assert_eq!(vma.range.start().get(), text.vaddr);
    assert_eq!(vma.range.end().get(), (text.vaddr + text.file_size).next_multiple_of(4096));
    assert_eq!(vma.file_offset, text.file_offset);
}
