//! The output for people and for programs, as accepted snapshots: users see a change here.

use std::collections::BTreeMap;

use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::coverage::{ByBacking, FileCoverage, OfBacking, Rest};
use tiexec_core::plan::{Backing, Means, Plan, Span, plan};
use tiexec_core::proc::maps::{FileId, Perms, Vma};
use tiexec_core::report::{Cost, Kind, LinkedStop, Outcome, Report};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_core::snapshot::Snapshot;

const MIB: u64 = 1 << 20;

/// The text of one file: how much is huge, by which backings in equal parts, and why the rest is not.
fn file(
    path: &str,
    text: u64,
    huge: u64,
    backings: &[Backing],
    rest: &[(impl Into<Reason> + Copy, u64)],
) -> FileCoverage {
    let part = |&backing: &Backing| {
        let huge_bytes = huge / backings.len() as u64;
        let cost_bytes = if backing == Backing::Pagecache { 0 } else { huge_bytes };
        (backing, OfBacking { huge_bytes, cost_bytes })
    };
    let by_backing: ByBacking = backings.iter().map(part).collect();
    let copied: u64 = by_backing.values().map(|of| of.cost_bytes).sum();
    FileCoverage {
        path: path.to_owned(),
        deleted: false,
        text_bytes: text,
        huge_bytes: huge,
        copied_bytes: copied,
        copies: BTreeMap::new(),
        cost_bytes: copied,
        widened_bytes: 0,
        by_backing,
        sizes: Vec::new(),
        nodes: Vec::new(),
        rest: rest.iter().map(|&(reason, bytes)| Rest { reason: reason.into(), bytes }).collect(),
    }
}

fn small(path: &str, kib: u64) -> FileCoverage {
    file(path, kib << 10, 0, &[], &[(SkipReason::TooSmall, kib << 10)])
}

fn span(start: u64, end: u64, file_offset: u64) -> Span {
    let (range, backing) = (range(start, end), Backing::Image);
    Span { range, file_offset, backing, widened_bytes: 0, edge: false }
}

fn range(start: u64, end: u64) -> AddrRange {
    AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).expect("start before end")
}

/// A database server with one larger library and a dozen small ones.
fn mysqld() -> Report {
    let edges = [(SkipReason::Edges, 4 * MIB)];
    let mut files = vec![
        file("/usr/sbin/mysqld", 56 * MIB, 52 * MIB, &[Backing::Image], &edges),
        file("/usr/lib/libcrypto.so.3", 3 * MIB, 0, &[], &[(SkipReason::TooSmall, 3 * MIB)]),
    ];
    files.extend((1..=12).map(|number| small(&format!("/usr/lib/lib{number}.so"), 256)));
    let mut report = Report::new(Kind::Launch, 4242, "mysqld".to_owned(), files);
    report.unit = Some("mysql.service".to_owned());
    report.launch = Some(Cost {
        backing: Some(Backing::Image),
        thread: None,
        stop_us: 110,
        linked: Some(LinkedStop { linked_stop_us: Some(310) }),
        remote_syscalls: 9,
        bytes_copied: 52 * MIB,
        rebased: Some(false),
        setback: None,
        interrupted: None,
        spans: vec![span(0x80_0000, 0x3c0_0000, 0x40_0000)],
    });
    report
}

/// A launch that failed open.
fn node_without_headroom() -> Report {
    let rest = [
        (Reason::from(SkipReason::Edges), 0x28_c000),
        (FailureKind::MemcgHeadroom.into(), 24 * MIB),
    ];
    let files = vec![
        file("/usr/bin/node", 0x1a8_c000, 0, &[], &rest),
        small("/usr/lib/x86_64-linux-gnu/libc.so.6", 1368),
        small("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", 152),
    ];
    let mut report = Report::new(Kind::Launch, 7, "node".to_owned(), files);
    report.reason = Some(FailureKind::MemcgHeadroom.into());
    report.detail = Some("/sys/fs/cgroup/app has 31.5 MiB left, 88.0 MiB needed".to_owned());
    report
}

/// An inspected process: an updated program, page cache and hugetlb side by side, part of it huge.
fn mixed() -> Report {
    let rest = [(SkipReason::Edges, 600 << 10), (SkipReason::BasePages, 8 * MIB)];
    let mut server = file(
        "/opt/server/bin/server",
        40 * MIB + (600 << 10),
        32 * MIB,
        &[Backing::Hugetlb],
        &rest,
    );
    server.deleted = true;
    let both = [Backing::Image, Backing::Pagecache];
    let rest = [(SkipReason::Edges, 1000)];
    let plugin = file("/opt/server/lib/plugin.so", 6 * MIB + 1000, 6 * MIB, &both, &rest);
    let mut report = Report::new(Kind::Inspect, 99_999, "server".to_owned(), vec![server, plugin]);
    report.outcome = Outcome::Partial;
    report.reason = Some(SkipReason::BasePages.into());
    report
}

/// Text on page-cache folios, whoever made them: nothing copied, nothing lost.
fn pagecache() -> Report {
    let file = file(
        "/usr/bin/cc1plus",
        33 * MIB,
        32 * MIB,
        &[Backing::Pagecache],
        &[(SkipReason::Edges, MIB)],
    );
    Report::new(Kind::Inspect, 31, "cc1plus".to_owned(), vec![file])
}

fn vma(start: u64, end: u64, perms: &str, file_offset: u64, inode: u64, name: &str) -> Vma {
    let perms = perms.as_bytes();
    Vma {
        range: range(start, end),
        perms: Perms {
            read: perms[0] == b'r',
            write: perms[1] == b'w',
            exec: perms[2] == b'x',
            shared: perms[3] == b's',
        },
        file_offset,
        file: if inode == 0 { FileId::default() } else { FileId { major: 0xfe, minor: 0, inode } },
        name: name.as_bytes().into(),
        guarded: false,
    }
}

/// Plans with one copying backing and nothing else.
fn plan_by(snapshot: &Snapshot, backing: Backing) -> Plan {
    plan(snapshot, &Means { copies: &[backing], ..Means::default() })
}

fn plan_of_node(backing: Backing) -> Plan {
    let pages = Pages {
        base: PageSize::new(4 << 10).expect("a power of two"),
        pmd: PageSize::new(2 << 20).expect("a power of two"),
    };
    let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let jvm = "/usr/lib/jvm/lib/server/libjvm.so";
    let vmas = vec![
        vma(0x40_0000, 0xb6_f000, "r--p", 0, 3293, "/usr/bin/node"),
        vma(0xb6_f000, 0xb7_1000, "r-xp", 0x76_f000, 3293, "/usr/bin/node"),
        vma(0xb7_2000, 0x25f_e000, "r-xp", 0x77_2000, 3293, "/usr/bin/node"),
        vma(0x260_1000, 0x563_a000, "r--p", 0x220_1000, 3293, "/usr/bin/node"),
        vma(0x600_0000, 0x610_0000, "rw-p", 0, 0, "[heap]"),
        vma(0x7f85_0000_0000, 0x7f85_0100_0000, "r-xp", 0, 7, jvm),
        vma(0x7f85_2f04_2000, 0x7f85_2f19_8000, "r-xp", 0x2_6000, 99, libc),
        vma(0x7ffd_1000_0000, 0x7ffd_1002_1000, "rw-p", 0, 0, "[stack]"),
    ];
    plan_by(&Snapshot { pages, vmas, entry: RemoteAddr::new(0xbb_8330) }, backing)
}

fn plan_of_nothing() -> Plan {
    let pages = Pages {
        base: PageSize::new(64 << 10).expect("a power of two"),
        pmd: PageSize::new(512 << 20).expect("a power of two"),
    };
    plan_by(&Snapshot { pages, vmas: Vec::new(), entry: RemoteAddr::default() }, Backing::Image)
}

/// Spreads the one line over several, to be read here and compared field by field.
fn spread(json: &str) -> String {
    assert!(!json.contains('\n'), "one object on one line");
    let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    serde_json::to_string_pretty(&value).expect("what was just parsed")
}

#[test]
fn the_designs_example_as_a_table() {
    insta::assert_snapshot!(mysqld());
}

#[test]
fn the_designs_example_as_json() {
    insta::assert_snapshot!(mysqld().to_json());
}

#[test]
fn a_launch_that_failed_open_says_why_in_the_table() {
    insta::assert_snapshot!(node_without_headroom());
}

#[test]
fn a_launch_that_failed_open_says_why_in_json() {
    insta::assert_snapshot!(spread(&node_without_headroom().to_json()));
}

#[test]
fn several_backings_and_a_deleted_program_as_a_table() {
    insta::assert_snapshot!(mixed());
}

#[test]
fn several_backings_and_a_deleted_program_as_json() {
    insta::assert_snapshot!(spread(&mixed().to_json()));
}

#[test]
fn page_cache_text_costs_nothing() {
    insta::assert_snapshot!(pagecache());
}

#[test]
fn a_process_without_text_as_a_table() {
    insta::assert_snapshot!(Report::new(Kind::Inspect, 2, "kthreadd".to_owned(), Vec::new()));
}

#[test]
fn a_plan_as_a_table() {
    insta::assert_snapshot!(plan_of_node(Backing::Image));
}

#[test]
fn a_plan_as_json() {
    insta::assert_snapshot!(plan_of_node(Backing::Hugetlb).to_json(None, None));
}

#[test]
fn a_plan_that_cannot_be_carried_out_says_why_in_json() {
    insta::assert_snapshot!(spread(
        &plan_of_node(Backing::Image).to_json(Some(FailureKind::Seccomp.into()), None)
    ));
}

#[test]
fn a_plan_without_text() {
    let plan = plan_of_nothing();
    insta::assert_snapshot!("a_plan_without_text_as_a_table", plan);
    insta::assert_snapshot!("a_plan_without_text_as_json", plan.to_json(None, None));
}
