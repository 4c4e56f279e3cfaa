//! Tests the huge page that is taken so that the kernel compacts memory. The test is alone in its process, because it
//! counts the huge pages of that process.

use tiexec_sys::{compaction, thp};

#[test]
fn a_huge_page_is_taken_and_given_back() {
    let Some(pages) = thp::pages() else { return };
    for _ in 0..3 {
        // The machine may have no huge page to spare; nothing stays mapped in either case.
        let _none_free = compaction::free_one(pages.pmd);
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let huge = smaps.lines().find(|line| line.starts_with("AnonHugePages:")).expect("a line");
    let kib = huge.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    assert!(kib.is_some_and(|kib| kib < pages.pmd.bytes() >> 10), "{huge}");
}
