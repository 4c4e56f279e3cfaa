//! `/proc/buddyinfo`: the free blocks of memory by their size (proc_buddyinfo(5)).

use super::{lines, number};

/// Returns how many free blocks of `2^order` pages there are, or could be cut from larger ones, over all zones.
///
/// A line is `Node 0, zone   Normal   4 2 1 …`: the count of free blocks of each order, from 0 on.
pub fn free_blocks(text: &[u8], order: u32) -> u64 {
    let in_line = |line: &[u8]| -> u64 {
        let words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        // "Node", its number, "zone", its name.
        let counts = words.skip(4).map(|word| number(word, 10).unwrap_or_default());
        (0..).zip(counts).skip(order as usize).fold(0, |sum: u64, (of, count)| {
            sum.saturating_add(count.saturating_mul(1 << (of - order).min(32)))
        })
    };
    lines(text).map(|(_, line)| in_line(line)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::free_blocks;

    const TEXT: &[u8] =
        b"Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      2 \n\
          Node 0, zone   Normal    216     55     13     14      2      5     14      7      1      3     40 \n";

    #[test]
    fn larger_blocks_count_as_what_they_can_be_cut_into() {
        assert_eq!(free_blocks(TEXT, 9), 1 + 2 * 2 + 3 + 2 * 40);
        assert_eq!(free_blocks(TEXT, 10), 42);
    }

    #[test]
    fn odd_text_has_none() {
        for text in [&b""[..], b"Node", b"Node 0, zone", b"Node 0, zone Normal x y z"] {
            assert_eq!(free_blocks(text, 0), 0);
        }
        assert_eq!(free_blocks(TEXT, 40), 0);
    }
}
