//! `/proc/PID/status`: the few lines of it that decide something (proc_pid_status(5)).

use super::{lines, number};
use crate::numa::parse_list;

/// What TiExec asks of `/proc/PID/status`. A line that is missing leaves `None` or the default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The command name, at most 15 bytes, as printed (newline and backslash escaped).
    pub name: Vec<u8>,
    /// The state letter: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, …
    pub state: u8,
    /// Thread-group id, as the mounted `/proc` counts.
    pub tgid: Option<u32>,
    /// Its thread-group id as it counts itself, in its own PID namespace. Since Linux 4.1.
    pub ns_tgid: Option<u32>,
    /// Who traces it; 0 for nobody.
    pub tracer_pid: u32,
    /// Real and effective user ids.
    pub uids: Option<(u32, u32)>,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Effective capabilities, one bit per capability (capabilities(7)).
    pub capabilities: u64,
    /// Number of threads.
    pub threads: u32,
    /// Whether THP may be used: 0 after `PR_SET_THP_DISABLE`. Since Linux 5.0.
    pub thp_enabled: Option<bool>,
    /// Pending signals of the thread and of the process, one bit per signal (bit 0 is signal 1).
    pub pending: u64,
    /// Blocked signals, likewise.
    pub blocked: u64,
    /// Signals that a handler catches, likewise.
    pub caught: u64,
    /// `VmLck`, bytes locked in memory.
    pub locked: u64,
    /// How often it has gone to sleep, or otherwise given the processor away by itself.
    pub slept: u64,
    /// Whether there is an address space at all (kernel threads and zombies have none).
    pub has_mm: bool,
}

/// Parses `/proc/PID/status`. Never fails: lines it does not understand are passed over.
pub fn parse(text: &[u8]) -> Status {
    let mut status = Status::default();
    for (_, line) in lines(text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        let mut words = value.split(|byte| byte.is_ascii_whitespace());
        let first = words.next().unwrap_or_default();
        let small = || number(first, 10).and_then(|value| u32::try_from(value).ok());
        match &line[..colon] {
            b"Name" => {
                // A name may begin or end with a blank: only the tab is the kernel's.
                let name = &line[colon + 1..];
                status.name = name.strip_prefix(b"\t").unwrap_or(name).to_vec();
            }
            b"State" => status.state = first.first().copied().unwrap_or_default(),
            b"Tgid" => status.tgid = small(),
            b"NStgid" => {
                let last = value.rsplit(|byte| byte.is_ascii_whitespace()).next();
                let last = last.and_then(|word| number(word, 10));
                status.ns_tgid = last.and_then(|value| u32::try_from(value).ok());
            }
            b"TracerPid" => status.tracer_pid = small().unwrap_or_default(),
            b"Uid" => {
                let second = words.next().and_then(|word| number(word, 10));
                let effective = second.and_then(|value| u32::try_from(value).ok());
                status.uids = small().zip(effective);
            }
            b"Seccomp" => status.seccomp = small().unwrap_or_default(),
            b"CapEff" => status.capabilities = number(first, 16).unwrap_or_default(),
            b"Threads" => status.threads = small().unwrap_or_default(),
            b"THP_enabled" => status.thp_enabled = small().map(|value| value != 0),
            b"SigPnd" | b"ShdPnd" => status.pending |= number(first, 16).unwrap_or_default(),
            b"SigBlk" => status.blocked = number(first, 16).unwrap_or_default(),
            b"SigCgt" => status.caught = number(first, 16).unwrap_or_default(),
            b"VmLck" => status.locked = number(first, 10).unwrap_or_default().saturating_mul(1024),
            b"VmSize" => status.has_mm = true,
            b"voluntary_ctxt_switches" => status.slept = number(first, 10).unwrap_or_default(),
            _ => {}
        }
    }
    status
}

/// Returns the NUMA nodes whose memory the process may have (cpuset(7)); `None` where the kernel does not
/// say.
pub fn allowed_nodes(text: &[u8]) -> Option<Vec<u32>> {
    let list = lines(text).find_map(|(_, line)| line.strip_prefix(b"Mems_allowed_list:"))?;
    std::str::from_utf8(list).ok().and_then(parse_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_decides_and_passes_over_the_rest() {
        let status = parse(
            b"Name:\tmy (odd)\\nname\nState:\tt (tracing stop)\nTgid:\t42\nNStgid:\t42\t9\t1\nTracerPid:\t7\n\
              Uid:\t1000\t0\t0\t0\nVmSize:\t 100 kB\nVmLck:\t 8 kB\nThreads:\t3\nSigPnd:\t0000000000000001\n\
              ShdPnd:\t0000000000010000\nSigBlk:\t00000000000000ff\nSigCgt:\t0000000000000200\nSeccomp:\t2\nTHP_enabled:\t0\nvoluntary_ctxt_switches:\t150\nNew:\t??\n",
        );
        assert_eq!(status.slept, 150);
        assert_eq!(status.name, b"my (odd)\\nname");
        assert_eq!((status.state, status.tgid, status.tracer_pid), (b't', Some(42), 7));
        assert_eq!(status.ns_tgid, Some(1));
        assert_eq!(status.uids, Some((1000, 0)));
        assert_eq!((status.seccomp, status.threads), (2, 3));
        assert_eq!((status.pending, status.blocked, status.caught), (0x10001, 0xff, 0x200));
        assert_eq!((status.thp_enabled, status.locked, status.has_mm), (Some(false), 8192, true));
    }

    #[test]
    fn nodes_are_a_list() {
        let text = b"Mems_allowed:\t0000000b\nMems_allowed_list:\t0-1,3\n";
        assert_eq!(allowed_nodes(text), Some(vec![0, 1, 3]));
        assert_eq!(allowed_nodes(b"Mems_allowed_list:\tall\n"), None);
        assert_eq!(allowed_nodes(b""), None);
    }

    #[test]
    fn nonsense_gives_the_default() {
        assert_eq!(parse(b"Tgid:\nTgid: -4\nSeccomp: 99999999999\n\xff\xfe"), Status::default());
    }
}
