//! Records without `sample_id_all`: what programs do. Records from several processors come in no order.

use crate::addr::{AddrRange, RemoteAddr};
use crate::proc::maps::FileId;

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC`: the name changed by an exec.
const COMM_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`: the record has the file's build ID in the place of its identity.
const MMAP_BUILD_ID: u16 = 1 << 14;

/// An event. Process ids are those of the opener's PID namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// A process began another program.
    Exec {
        /// The process.
        pid: u32,
    },
    /// A process was forked. Threads that start are not reported.
    Forked {
        /// The new process.
        pid: u32,
    },
    /// The first thread of a process ended, and with it nearly always the process.
    Ended {
        /// The process.
        pid: u32,
    },
    /// A process mapped something executable, or made it so.
    Mapped {
        /// The process.
        pid: u32,
        /// Its addresses.
        range: AddrRange,
        /// The file; inode 0 for none.
        file: FileId,
        /// Position in the file of the first byte, in bytes.
        file_offset: u64,
    },
    /// The buffer was full, and the kernel lost records.
    Lost,
}

/// Parses one whole record; `None` for a kind that TiExec does not use.
pub fn parse(record: &[u8]) -> Option<Record> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let misc = u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?);
    match u32_at(0)? {
        LOST => Some(Record::Lost),
        COMM if misc & COMM_EXEC != 0 => Some(Record::Exec { pid: u32_at(8)? }),
        // The fields are pid, ppid, tid, ptid (`struct perf_task_event` in `kernel/events/core.c`). The parent of a
        // new thread is its own process.
        FORK => {
            let (pid, parent) = (u32_at(8)?, u32_at(12)?);
            (pid != parent).then_some(Record::Forked { pid })
        }
        EXIT => {
            let (pid, tid) = (u32_at(8)?, u32_at(16)?);
            (pid == tid).then_some(Record::Ended { pid })
        }
        MMAP2 => {
            let range = AddrRange::with_len(RemoteAddr::new(u64_at(16)?), u64_at(24)?)?;
            let file = if misc & MMAP_BUILD_ID == 0 {
                FileId { major: u32_at(40)?, minor: u32_at(44)?, inode: u64_at(48)? }
            } else {
                FileId::default()
            };
            Some(Record::Mapped { pid: u32_at(8)?, range, file, file_offset: u64_at(32)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{HEADER_LEN, record_len};

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(HEADER_LEN + body.len()).unwrap();
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &len.to_ne_bytes(), body].concat()
    }

    fn mapped() -> Vec<u8> {
        let numbers = [0x7f00_0020_0000_u64, 0x40_0000, 0x1000].map(u64::to_ne_bytes).concat();
        let ids = [7u32, 8].map(u32::to_ne_bytes).concat();
        let device = [253u32, 1].map(u32::to_ne_bytes).concat();
        let rest = [42u64, 0].map(u64::to_ne_bytes).concat();
        record(MMAP2, 2, &[ids, numbers, device, rest, vec![5, 0, 0, 0, 2, 0, 0, 0]].concat())
    }

    #[test]
    fn what_the_kernel_writes() {
        let exec = record(COMM, COMM_EXEC | 2, &[7u32, 7].map(u32::to_ne_bytes).concat());
        assert_eq!(parse(&exec), Some(Record::Exec { pid: 7 }));
        let renamed = record(COMM, 2, &[7u32, 9].map(u32::to_ne_bytes).concat());
        assert_eq!(parse(&renamed), None);
        let task = |kind, ids: [u32; 4]| {
            record(kind, 0, &[&ids.map(u32::to_ne_bytes).concat()[..], &[0; 8]].concat())
        };
        assert_eq!(parse(&task(FORK, [8, 7, 8, 7])), Some(Record::Forked { pid: 8 }));
        assert_eq!(parse(&task(FORK, [7, 7, 9, 7])), None, "a thread");
        assert_eq!(parse(&task(EXIT, [8, 7, 8, 7])), Some(Record::Ended { pid: 8 }));
        assert_eq!(parse(&task(EXIT, [7, 1, 9, 1])), None, "a thread");
        let Some(Record::Mapped { pid: 7, range, file, file_offset: 0x1000 }) = parse(&mapped())
        else {
            panic!("{:?}", parse(&mapped()))
        };
        assert_eq!(range.len(), 0x40_0000);
        assert_eq!(file, FileId { major: 253, minor: 1, inode: 42 });
        assert_eq!(parse(&record(LOST, 0, &[0; 16])), Some(Record::Lost));
    }

    #[test]
    fn a_record_cut_short_is_none() {
        let whole = mapped();
        for len in 0..56 {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        assert_eq!(record_len([0; 8]), None);
        assert_eq!(record_len(whole[..8].try_into().unwrap()), Some(whole.len()));
    }
}
