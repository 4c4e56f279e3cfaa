//! `/proc/PID/numa_maps`: on which NUMA nodes the pages of each VMA lie (numa(7)). Linux writes it where it
//! is built with `CONFIG_NUMA`.

use super::{ParseError, lines, number};
use crate::addr::RemoteAddr;
use crate::numa::OnNode;

/// One VMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumaMapsEntry {
    /// Where it begins.
    pub start: RemoteAddr,
    /// On which nodes its mapped pages lie, the lowest first.
    pub nodes: Vec<OnNode>,
}

/// Parses the whole of `/proc/PID/numa_maps`. Words it does not know are passed over.
///
/// # Errors
/// A line that does not begin with an address, or a count that is not a number.
pub fn parse(text: &[u8]) -> Result<Vec<NumaMapsEntry>, ParseError> {
    lines(text)
        .map(|(line_number, line)| {
            let bad = |what| ParseError::new("numa_maps", line_number, what, line);
            let mut words = line.split(|&byte| byte == b' ');
            let start = words.next().and_then(|word| number(word, 16));
            let start = start.ok_or_else(|| bad("an address"))?;
            let (mut counts, mut kib) = (Vec::new(), 0);
            for word in words {
                // Blanks and '=' in a path are escaped.
                let Some(equals) = word.iter().position(|&byte| byte == b'=') else { continue };
                let (key, value) = (&word[..equals], &word[equals + 1..]);
                let value = || number(value, 10).ok_or_else(|| bad("a number"));
                if key == b"kernelpagesize_kB" {
                    kib = value()?;
                } else if let Some(node) = key.strip_prefix(b"N").and_then(|node| number(node, 10))
                {
                    let node = u32::try_from(node).map_err(|_too_large| bad("a node"))?;
                    counts.push((node, value()?));
                }
            }
            let bytes = |pages: u64| pages.saturating_mul(kib).saturating_mul(1024);
            let nodes = counts.into_iter();
            let nodes = nodes.map(|(node, pages)| OnNode { node, bytes: bytes(pages) }).collect();
            Ok(NumaMapsEntry { start: RemoteAddr::new(start), nodes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_nodes_and_passes_over_the_rest() {
        let text = b"00400000 default file=/usr/bin/N0\\0751 mapped=3 mapmax=2 N0=1 N1=2 kernelpagesize_kB=4\n\
                     00600000 prefer (many):0-1 file=/memfd:tiexec:m\\040(deleted) huge dirty=2 N1=2 kernelpagesize_kB=2048\n\
                     7ffc00000000 default stack\n";
        let entries = parse(text).unwrap();
        let on = |node, bytes| OnNode { node, bytes };
        let nodes: Vec<_> = entries.iter().map(|entry| entry.nodes.clone()).collect();
        assert_eq!(nodes, [vec![on(0, 4096), on(1, 8192)], vec![on(1, 4 << 20)], vec![]]);
        assert_eq!(entries[1].start, RemoteAddr::new(0x60_0000));
    }

    #[test]
    fn odd_text_is_refused_or_saturates() {
        for bad in [&b"x default\n"[..], b"1000 default N0=x\n", b"1000 default N99999999999=1\n"] {
            assert!(parse(bad).is_err());
        }
        let much = b"1000 default N0=18446744073709551615 kernelpagesize_kB=4\n";
        assert_eq!(parse(much).unwrap()[0].nodes[0].bytes, u64::MAX);
    }
}
