//! Kernel text and address spaces that are rare, or that no kernel writes.

use tiexec_core::addr::*;
use tiexec_core::proc::*;
use tiexec_core::smaps;
use tiexec_core::snapshot::Snapshot;
#[test]
fn a_cgroup_beside_the_mounts_root_is_not_below_it() {
    let f = cgroup::memory_cgroup(
        b"0::/docker/xyz/app\n",
        b"32 29 0:28 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
    )
    .unwrap();
    assert_eq!(String::from_utf8_lossy(&f.below), "");
}
#[test]
fn an_escaped_root_is_compared_unescaped() {
    let f = cgroup::memory_cgroup(
        b"0::/a b/app\n",
        b"32 29 0:28 /a\\040b /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
    )
    .unwrap();
    assert_eq!(String::from_utf8_lossy(&f.below), "app");
}
#[test]
fn a_unit_may_have_colons_in_its_name() {
    assert_eq!(
        cgroup::units(b"0::/system.slice/dbus-:1.2-org.example@0.service\n", b"")
            .map(|units| units.system)
            .as_deref(),
        Some("dbus-:1.2-org.example@0.service")
    );
}
#[test]
fn a_name_keeps_its_blanks() {
    assert_eq!(status::parse(b"Name:\t a \nState:\tS\n").name, b" a ");
}
#[test]
fn absurd_sizes_saturate() {
    let t = b"400000-600000 r-xp 0 fe:00 1 /a\nAnonHugePages: 18014398509481983 kB\nShmemPmdMapped: 18014398509481983 kB\n";
    assert_eq!(smaps::parse(t).unwrap()[0].huge_bytes(), u64::MAX);
}
#[test]
fn text_that_goes_backwards_is_refused() {
    assert!(
        maps::parse(b"500000-600000 r-xp 0 fe:00 1 /a\n400000-500001 r-xp 0 fe:00 1 /a\n").is_err()
    );
    assert!(
        smaps::parse(
            b"500000-600000 r-xp 0 fe:00 1 /a\nRss: 0 kB\n400000-500001 r-xp 0 fe:00 1 /a\n"
        )
        .is_err()
    );
}
#[test]
fn a_gap_that_just_fits_is_found() {
    let pages = Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
    let vmas =
        maps::parse(b"100000-201000 r-xp 0 fe:00 1 /a\n601000-700000 r-xp 0 fe:00 1 /a\n").unwrap();
    let s = Snapshot { pages, vmas, entry: RemoteAddr::default() };
    assert_eq!(s.free_area(0x1f0000).map(|a| a.to_string()).as_deref(), Some("00400000-005f0000"));
}
#[test]
fn the_widest_gap_counts_from_its_first_huge_page() {
    // The widest gap holds no aligned 2 MiB, a narrower one does.
    let pages = Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
    let vmas = maps::parse(b"100000-201000 r-xp 0 fe:00 1 /a\n5ff000-600000 r-xp 0 fe:00 1 /a\n800000-900000 r-xp 0 fe:00 1 /a\n").unwrap();
    let s = Snapshot { pages, vmas, entry: RemoteAddr::default() };
    assert_eq!(s.free_area(2 << 20).map(|a| a.to_string()).as_deref(), Some("00600000-00800000"));
}
