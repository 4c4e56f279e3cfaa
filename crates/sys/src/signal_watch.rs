//! Signals of a crash that processes send, and that the kernel sends to a program which faults, by the tracepoint
//! `signal:signal_generate`.
//!
//! The end of a process does not show who sent the signal. The tracepoint does: the kernel's own faults have a positive
//! code, and signals of kill(2) and similar calls do not (sigaction(2), `si_code`).

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

use crate::error::{Errno, SysError, check};
use crate::perf_event::{Attributes, Rings, WATERMARK};
use crate::process::INITIAL_PID_NAMESPACE;
use crate::procfs::ProcDir;

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_RAW: u64 = 1 << 10;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// `_IOW('$', 6, char *)`.
const PERF_EVENT_IOC_SET_FILTER: u32 = 0x4008_2406;
/// Only SIGILL, SIGTRAP, SIGABRT, SIGBUS and SIGSEGV that a process sends.
const FILTER: &CStr = c"(sig==4||sig==5||sig==6||sig==7||sig==11)&&code<=0";
/// The beginning of a filter for faults.
const FAULTS: &str = "(sig==4||sig==5||sig==6||sig==7||sig==11)&&code>0";
/// Most names in a filter. The kernel takes a page of text.
const NAMES: usize = 64;
/// The place of the fields in a record: after the header, the two ids of the sender, and the length.
const RAW: usize = 20;
/// Bytes of records per processor.
const MOST: usize = 16 << 10;

/// A signal that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The signal.
    pub signal: i32,
    /// The process that sent it.
    pub sender: i32,
    /// The process, or the thread, that the signal was sent to.
    pub target: i32,
}

/// The offsets of the tracepoint's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fields {
    signal: usize,
    pid: usize,
    result: usize,
}

/// Records of signals that processes send.
#[derive(Debug)]
pub struct SignalWatch {
    rings: Rings,
    fields: Fields,
}

impl SignalWatch {
    /// Watches all processes.
    ///
    /// # Errors
    /// ENOENT if tracefs is not mounted; EACCES, EPERM without CAP_PERFMON; EOPNOTSUPP outside of the initial PID
    /// namespace, because the tracepoint uses the numbers of that one.
    pub fn open() -> Result<Self, SysError> {
        Self::open_with(FILTER)
    }

    /// Watches programs of these names (`comm`) for faults, which have the process itself as sender and the thread that
    /// faults as target. A name with a character that a filter could take for its own, or too many names, widen the watch to
    /// all programs.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_faults(names: &BTreeSet<Vec<u8>>) -> Result<Self, SysError> {
        let filter = CString::new(filter_of_faults(names));
        let none = |_zero_byte| SysError { call: "filter of faults", errno: Errno::INVAL };
        Self::open_with(&filter.map_err(none)?)
    }

    fn open_with(filter: &CStr) -> Result<Self, SysError> {
        let namespace = ProcDir::this_process()?.namespace("ns/pid")?;
        if namespace != INITIAL_PID_NAMESPACE {
            return Err(SysError { call: "signal:signal_generate", errno: Errno::OPNOTSUPP });
        }
        let none = || SysError { call: "open(events/signal/signal_generate)", errno: Errno::NOENT };
        let read = |name: &str| {
            let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
            let paths = places.map(|at| format!("{at}/events/signal/signal_generate/{name}"));
            paths.iter().find_map(|path| std::fs::read_to_string(path).ok()).ok_or_else(none)
        };
        let id = read("id")?.trim().parse().map_err(|_no_number| none())?;
        let fields = fields(&read("format")?).ok_or_else(none)?;
        let attributes = Attributes {
            kind: PERF_TYPE_TRACEPOINT,
            config: id,
            sample_period: 1,
            sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_RAW,
            flags: WATERMARK,
            wakeup_watermark: MOST as u32,
            ..Attributes::default()
        };
        let rings = Rings::open_everywhere(&attributes, MOST)?;
        for event in rings.descriptors() {
            // SAFETY: the kernel reads the string, which ends in a zero byte and is live.
            let returned = unsafe {
                libc::ioctl(
                    event.as_raw_fd(),
                    PERF_EVENT_IOC_SET_FILTER as libc::Ioctl,
                    filter.as_ptr(),
                )
            };
            check("ioctl(PERF_EVENT_IOC_SET_FILTER)", returned.into())?;
        }
        Ok(Self { rings, fields })
    }

    /// Passes to `each` all signals that were sent since the last call, and not ignored. Returns whether records are missing
    /// among them.
    #[must_use = "a signal may be missing"]
    pub fn read(&mut self, mut each: impl FnMut(Sent)) -> bool {
        let (fields, mut lost) = (self.fields, false);
        let was_full = self.rings.read(256, |record| {
            lost |= record.is_none_or(tells_of_loss);
            if let Some(sent) = record.and_then(|record| parse(record, fields)) {
                each(sent);
            }
        });
        lost || was_full
    }
}

fn filter_of_faults(names: &BTreeSet<Vec<u8>>) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_plain = |name: &Vec<u8>| !name.is_empty() && name.iter().all(plain);
    if names.is_empty() || names.len() > NAMES || !names.iter().all(is_plain) {
        return FAULTS.to_owned();
    }
    let of_name = |name: &Vec<u8>| format!("comm==\"{}\"", String::from_utf8_lossy(name));
    let names: Vec<String> = names.iter().map(of_name).collect();
    format!("{FAULTS}&&({})", names.join("||"))
}

/// Returns whether the kernel had no room for a record before this one.
fn tells_of_loss(record: &[u8]) -> bool {
    record.get(..4) == Some(&PERF_RECORD_LOST.to_ne_bytes())
}

/// Parses a record; `None` for another kind of record, and for a signal that had no effect.
fn parse(record: &[u8], fields: Fields) -> Option<Sent> {
    let i32_at = |at: usize| Some(i32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    if i32_at(0)? != PERF_RECORD_SAMPLE.cast_signed() || i32_at(RAW + fields.result)? != 0 {
        return None;
    }
    let (signal, target) = (i32_at(RAW + fields.signal)?, i32_at(RAW + fields.pid)?);
    Some(Sent { signal, sender: i32_at(8)?, target })
}

/// Finds the fields in the tracepoint's `format`.
fn fields(format: &str) -> Option<Fields> {
    let offset = |name: &str| {
        let end = format!(" {name};");
        format.lines().find_map(|line| {
            let (field, rest) = line.trim().strip_prefix("field:")?.split_once('\t')?;
            if !field.ends_with(&end) {
                return None;
            }
            rest.trim().strip_prefix("offset:")?.split(';').next()?.parse().ok()
        })
    };
    Some(Fields { signal: offset("sig")?, pid: offset("pid")?, result: offset("result")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: signal_generate\nID: 261\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:char comm[16];\toffset:20;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:36;\tsize:4;\tsigned:1;\n\
        \tfield:int result;\toffset:44;\tsize:4;\tsigned:1;\n";

    #[test]
    fn a_name_is_no_part_of_a_filter() {
        let filter = |names: &[&str]| {
            filter_of_faults(&names.iter().map(|name| name.as_bytes().to_vec()).collect())
        };
        let of_two = "&&(comm==\"go_crash\"||comm==\"tidb-server\")";
        assert_eq!(filter(&["tidb-server", "go_crash"]), format!("{FAULTS}{of_two}"));
        for odd in ["a\"||sig==9||\"", "", "a b", "*", "\u{e9}"] {
            assert_eq!(filter(&["x", odd]), FAULTS, "{odd}");
        }
        let many: Vec<String> = (0..NAMES).map(|name| format!("fifteen-bytes{name:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(filter(&many).len() < 4096);
    }

    #[test]
    fn fields_are_where_the_kernel_says() {
        assert_eq!(fields(FORMAT), Some(Fields { signal: 8, pid: 36, result: 44 }));
        assert_eq!(fields("field:int sig;\toffset:x;"), None);
    }

    #[test]
    fn a_record_tells_who_sent_what() {
        let fields = fields(FORMAT).unwrap();
        let mut record = vec![0; RAW + 48];
        let mut put =
            |at: usize, value: i32| record[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(0, 9);
        put(8, 7);
        put(RAW + 8, 6);
        put(RAW + 36, 42);
        assert_eq!(parse(&record, fields), Some(Sent { signal: 6, sender: 7, target: 42 }));
        assert_eq!(parse(&record[..60], fields), None);
        record[RAW + 44] = 1;
        assert_eq!(parse(&record, fields), None, "it was ignored");
        assert!(!tells_of_loss(&record) && tells_of_loss(&[2, 0, 0, 0, 0, 0, 24, 0]));
    }
}
