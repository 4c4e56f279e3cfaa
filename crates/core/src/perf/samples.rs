//! Records of samples, with `sample_id_all` and the sample type `IP | TID | TIME`. Each ends in the ids of its thread
//! and its time, which gives the order of records from several processors.

use crate::addr::{AddrRange, RemoteAddr};

/// `PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME`: what `sample_type` must be.
pub const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2;

const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;
const COMM_EXEC: u16 = 1 << 13;
/// Bytes of ids and time at the end of each record that is not a sample.
const TRAILER: usize = 16;

/// An event, and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Nanoseconds of perf's clock.
    pub time: u64,
    /// The event.
    pub what: What,
}

/// One event. Process ids are those of the opener's PID namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A process was executing here.
    Sample {
        /// The process.
        pid: u32,
        /// Its address.
        at: RemoteAddr,
    },
    /// A process mapped something executable.
    Mapped {
        /// The process.
        pid: u32,
        /// Its addresses.
        range: AddrRange,
        /// The name of what is mapped, as maps shows it.
        name: Vec<u8>,
    },
    /// A process began another program: its earlier mappings are gone.
    Exec {
        /// The process.
        pid: u32,
    },
    /// A process was forked: it has the mappings of its parent.
    Fork {
        /// The process.
        pid: u32,
        /// Its parent.
        parent: u32,
    },
    /// The number of records that did not fit into a buffer.
    Lost(u64),
}

/// Parses one whole record; `None` for a kind that TiExec does not use.
pub fn parse(record: &[u8]) -> Option<Event> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let misc = u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?);
    let kind = u32_at(0)?;
    if kind == SAMPLE {
        let what = What::Sample { at: RemoteAddr::new(u64_at(8)?), pid: u32_at(16)? };
        return Some(Event { time: u64_at(24)?, what });
    }
    let body = record.len().checked_sub(TRAILER)?;
    let what = match kind {
        LOST => What::Lost(u64_at(16)?),
        LOST_SAMPLES => What::Lost(u64_at(8)?),
        COMM if misc & COMM_EXEC != 0 => What::Exec { pid: u32_at(8)? },
        FORK if u32_at(8)? != u32_at(12)? => What::Fork { pid: u32_at(8)?, parent: u32_at(12)? },
        MMAP2 => {
            let range = AddrRange::with_len(RemoteAddr::new(u64_at(16)?), u64_at(24)?)?;
            let name = record.get(72..body)?;
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            What::Mapped { pid: u32_at(8)?, range, name: name[..end].to_vec() }
        }
        _ => return None,
    };
    Some(Event { time: u64_at(body + 8)?, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let trailer = if kind == SAMPLE {
            Vec::new()
        } else {
            [&[7u32, 7].map(u32::to_ne_bytes).concat()[..], &time.to_ne_bytes()].concat()
        };
        let len = u16::try_from(8 + body.len() + trailer.len()).unwrap();
        let header = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &len.to_ne_bytes()].concat();
        [header, body.to_vec(), trailer].concat()
    }

    fn u64s(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    fn u32s(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn what_the_kernel_writes() {
        let sample =
            record(SAMPLE, 2, &[u64s(&[0x40_1234]), u32s(&[7, 8]), u64s(&[99])].concat(), 0);
        let what = What::Sample { pid: 7, at: RemoteAddr::new(0x40_1234) };
        assert_eq!(parse(&sample), Some(Event { time: 99, what }));
        let mapped = [
            u32s(&[7, 8]),
            u64s(&[0x40_0000, 0x2000, 0x1000]),
            u32s(&[253, 1]),
            u64s(&[42, 0]),
            u32s(&[5, 2]),
            b"/usr/bin/x\0\0\0\0\0\0".to_vec(),
        ];
        let mapped = record(MMAP2, 2, &mapped.concat(), 100);
        let Some(Event { time: 100, what: What::Mapped { pid: 7, range, name } }) = parse(&mapped)
        else {
            panic!("{:?}", parse(&mapped));
        };
        assert_eq!(
            (range.to_string().as_str(), &name[..]),
            ("00400000-00402000", &b"/usr/bin/x"[..])
        );
        let thread = record(FORK, 0, &[u32s(&[7, 7, 9, 7]), u64s(&[1])].concat(), 1);
        assert_eq!(parse(&thread), None);
        let lost = record(LOST, 0, &u64s(&[1, 12]), 3);
        assert_eq!(parse(&lost), Some(Event { time: 3, what: What::Lost(12) }));
        for whole in [sample, mapped, lost] {
            for len in 0..whole.len() {
                let _cut_short = parse(&whole[..len]);
            }
        }
    }
}
