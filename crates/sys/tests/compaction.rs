//! The huge page that is taken so that the kernel compacts memory. Alone in its process, whose huge pages are counted.

use tiexec_sys::{compaction, thp};

#[test]
fn a_huge_page_is_taken_and_given_back() {
    let Some(pages) = thp::pages() else { return };
    for _ in 0..3 {
        // Whether the machine has one to spare is its own matter; nothing stays mapped.
        let _none_free = compaction::free_one(pages.pmd);
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let huge = smaps.lines().find(|line| line.starts_with("AnonHugePages:")).expect("a line");
    let kib = huge.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    assert!(kib.is_some_and(|kib| kib < pages.pmd.bytes() >> 10), "{huge}");
}
