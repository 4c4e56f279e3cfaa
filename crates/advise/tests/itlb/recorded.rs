//! Traces of the pages in which real programs executed, recorded and reduced by `bench/itlb`.
//!
//! Numbers in LEB128: instructions, pages; for each page, how many of the samples, one every 10007 instructions, fell
//! into it; then the references, each as the page's position in the order of last use (a new page: the number of pages
//! so far). The file omits references that cannot change the misses of an LRU of 64 or more entries.

/// A trace.
pub(crate) struct Trace {
    /// Instructions executed.
    pub(crate) instructions: u64,
    /// Samples in each page.
    pub(crate) samples: Vec<u64>,
    /// The pages, in the order in which they were used.
    pub(crate) references: Vec<u64>,
}

pub(crate) fn read(name: &str) -> Trace {
    let path = format!("{}/testdata/itlb/{name}.lru", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut bytes = bytes.into_iter().peekable();
    let mut number = || {
        bytes.peek()?;
        let (mut value, mut shift) = (0_u64, 0);
        for byte in bytes.by_ref() {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        Some(value)
    };
    let instructions = number().expect("a number of instructions");
    let pages = number().expect("a number of pages");
    let samples = (0..pages).map(|_| number().expect("samples")).collect();
    let mut order: Vec<u64> = Vec::new();
    let mut references = Vec::new();
    while let Some(position) = number() {
        let position = usize::try_from(position).expect("a position");
        if position == order.len() {
            order.insert(0, order.len() as u64);
        } else {
            order[..=position].rotate_right(1);
        }
        references.push(order[0]);
    }
    Trace { instructions, samples, references }
}
