//! `/proc/PID/status`: the few lines of it that TiExec needs (proc_pid_status(5)).

use super::{lines, number};
use crate::numa::parse_list;

/// The lines of `/proc/PID/status` that TiExec uses. A missing line leaves `None` or the default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The command name, at most 15 bytes, as printed (newline and backslash escaped).
    pub name: Vec<u8>,
    /// The state letter: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, …
    pub state: u8,
    /// Thread-group id, in the PID namespace of the mounted `/proc`.
    pub tgid: Option<u32>,
    /// Thread-group id, in the process's own PID namespace. Since Linux 4.1.
    pub ns_tgid: Option<u32>,
    /// True if it is in a PID namespace below that of the mounted `/proc`, as the processes of a container are.
    pub in_own_pid_namespace: bool,
    /// The PID of its tracer; 0 if it has none.
    pub tracer_pid: u32,
    /// Real and effective user ids.
    pub uids: Option<(u32, u32)>,
    /// Its identity and its rights.
    pub credentials: Credentials,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// How many seccomp filters are in force; `None` if the kernel does not report it (before Linux 5.9). A thread
    /// inherits the filters of the thread that made it, and can only add more.
    pub seccomp_filters: Option<u32>,
    /// Number of threads.
    pub threads: u32,
    /// True if the process may use THP; false after `PR_SET_THP_DISABLE`. `None` before Linux 5.0.
    pub thp_enabled: Option<bool>,
    /// Pending signals of the thread and of the process, one bit per signal (bit 0 is signal 1).
    pub pending: u64,
    /// Blocked signals, likewise.
    pub blocked: u64,
    /// Signals that are ignored, likewise.
    pub ignored: u64,
    /// Signals that a handler catches, likewise.
    pub caught: u64,
    /// `VmLck`, bytes locked in memory.
    pub locked: u64,
    /// `HugetlbPages`, bytes mapped of the hugetlb pool. Since Linux 4.4, if the kernel has the pool.
    pub hugetlb: Option<u64>,
    /// How often the thread has gone to sleep, or otherwise given up the processor by itself.
    pub slept: u64,
    /// True if the thread has a shadow stack (`x86_Thread_features`, since Linux 6.6, x86-64).
    pub shadow_stack: bool,
    /// True if there is an address space at all (kernel threads and zombies have none).
    pub has_mm: bool,
}

/// `CAP_SYS_PTRACE`, as a bit of [`Credentials::effective`]. Its holder may trace a privileged program, and the program
/// keeps its privileges.
pub const CAP_SYS_PTRACE: u64 = 1 << 19;

/// The rights of a thread, without its user namespace, its filters and its security label (credentials(7)). User and
/// group ids are those of the reader's user namespace; capabilities count in the thread's own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// Real, effective, saved and file system user id.
    pub uids: Vec<u32>,
    /// Real, effective, saved and file system group id.
    pub gids: Vec<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding and ambient capabilities, one bit per capability.
    pub capabilities: [u64; 5],
}

/// The lines of the five sets of [`Credentials::capabilities`].
const CAPABILITY_SETS: [&[u8]; 5] = [b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb"];

impl Credentials {
    /// Returns the permitted capabilities.
    pub const fn permitted(&self) -> u64 {
        self.capabilities[1]
    }

    /// Returns the effective capabilities.
    pub const fn effective(&self) -> u64 {
        self.capabilities[2]
    }

    /// Returns whether `other` has the same ids, groups and permitted capabilities. Effective capabilities do not
    /// count, because a thread may raise and drop them at any time.
    pub fn same_rights(&self, other: &Self) -> bool {
        let all = |of: &Self| (of.uids.clone(), of.gids.clone(), of.groups.clone(), of.permitted());
        all(self) == all(other)
    }
}

/// Parses `/proc/PID/status`. Never fails: skips unknown lines.
pub fn parse(text: &[u8]) -> Status {
    let mut status = Status::default();
    for (_, line) in lines(text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        let mut words = value.split(|byte| byte.is_ascii_whitespace());
        let first = words.next().unwrap_or_default();
        let small = || number(first, 10).and_then(|value| u32::try_from(value).ok());
        let kib = || number(first, 10).map(|kib| kib.saturating_mul(1024));
        match &line[..colon] {
            b"Name" => {
                // A name may begin or end with a blank; only the tab is the kernel's.
                let name = &line[colon + 1..];
                status.name = name.strip_prefix(b"\t").unwrap_or(name).to_vec();
            }
            b"State" => status.state = first.first().copied().unwrap_or_default(),
            b"Tgid" => status.tgid = small(),
            b"NStgid" => {
                let last = value.rsplit(|byte| byte.is_ascii_whitespace()).next();
                let last = last.and_then(|word| number(word, 10));
                status.ns_tgid = last.and_then(|value| u32::try_from(value).ok());
                let words = value.split(|byte| byte.is_ascii_whitespace());
                status.in_own_pid_namespace = words.filter(|word| !word.is_empty()).count() > 1;
            }
            b"TracerPid" => status.tracer_pid = small().unwrap_or_default(),
            b"Uid" => {
                let second = words.next().and_then(|word| number(word, 10));
                let effective = second.and_then(|value| u32::try_from(value).ok());
                status.uids = small().zip(effective);
                status.credentials.uids = ids(value);
            }
            b"Gid" => status.credentials.gids = ids(value),
            b"Groups" => status.credentials.groups = ids(value),
            b"Seccomp" => status.seccomp = small().unwrap_or_default(),
            b"Seccomp_filters" => status.seccomp_filters = small(),
            key @ (b"CapInh" | b"CapPrm" | b"CapEff" | b"CapBnd" | b"CapAmb") => {
                let set = number(first, 16).unwrap_or_default();
                let index = CAPABILITY_SETS.iter().position(|name| *name == key);
                if let Some(of_kind) = status.credentials.capabilities.get_mut(index.unwrap_or(5)) {
                    *of_kind = set;
                }
            }
            b"Threads" => status.threads = small().unwrap_or_default(),
            b"THP_enabled" => status.thp_enabled = small().map(|value| value != 0),
            b"SigPnd" | b"ShdPnd" => status.pending |= number(first, 16).unwrap_or_default(),
            b"SigBlk" => status.blocked = number(first, 16).unwrap_or_default(),
            b"SigIgn" => status.ignored = number(first, 16).unwrap_or_default(),
            b"SigCgt" => status.caught = number(first, 16).unwrap_or_default(),
            b"VmLck" => status.locked = kib().unwrap_or_default(),
            b"HugetlbPages" => status.hugetlb = kib(),
            b"x86_Thread_features" => {
                status.shadow_stack = first == b"shstk" || words.any(|word| word == b"shstk");
            }
            b"VmSize" => status.has_mm = true,
            b"voluntary_ctxt_switches" => status.slept = number(first, 10).unwrap_or_default(),
            _ => {}
        }
    }
    status
}

/// Returns the seccomp mode: 0 none, 1 strict, 2 filter. It is all that is read of the text.
pub fn seccomp(text: &[u8]) -> u32 {
    let value = lines(text).find_map(|(_, line)| line.strip_prefix(b"Seccomp:"));
    let mode = value.and_then(|value| number(value.trim_ascii(), 10));
    mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or_default()
}

fn ids(value: &[u8]) -> Vec<u32> {
    let words = value.split(|byte| byte.is_ascii_whitespace());
    words.filter_map(|word| u32::try_from(number(word, 10)?).ok()).collect()
}

/// Returns the thread's credentials; `None` if a line is missing.
pub fn credentials(text: &[u8]) -> Option<Credentials> {
    let keys: [&[u8]; 8] =
        [b"Uid:", b"Gid:", b"Groups:", b"CapInh:", b"CapPrm:", b"CapEff:", b"CapBnd:", b"CapAmb:"];
    let is_one = |line: &[u8]| keys.iter().any(|key| line.starts_with(key));
    // The kernel writes each line once.
    let found = lines(text).filter(|(_, line)| is_one(line)).count();
    (found == keys.len()).then(|| parse(text).credentials)
}

/// Returns the NUMA nodes whose memory the process may have (cpuset(7)); `None` if the kernel does not report them.
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
              Uid:\t1000\t0\t0\t0\nGid:\t7\t8\t9\t10\nGroups:\t4 24 \nCapPrm:\t00000000000000c0\nVmSize:\t 100 kB\nVmLck:\t 8 kB\nVmStk:\t 132 kB\nHugetlbPages:\t 2048 kB\nThreads:\t3\nSigPnd:\t0000000000000001\n\
              ShdPnd:\t0000000000010000\nSigBlk:\t00000000000000ff\nSigCgt:\t0000000000000200\nSeccomp:\t2\nTHP_enabled:\t0\nvoluntary_ctxt_switches:\t150\nNew:\t??\n",
        );
        assert_eq!(status.slept, 150);
        assert_eq!(status.name, b"my (odd)\\nname");
        assert_eq!((status.state, status.tgid, status.tracer_pid), (b't', Some(42), 7));
        let Credentials { uids, gids, groups, capabilities } = status.credentials;
        assert_eq!((uids, gids), (vec![1000, 0, 0, 0], vec![7, 8, 9, 10]));
        assert_eq!((groups, capabilities), (vec![4, 24], [0, 0xc0, 0, 0, 0]));
        assert_eq!((status.ns_tgid, status.in_own_pid_namespace), (Some(1), true));
        assert!(!parse(b"Tgid:\t42\nNStgid:\t42\n").in_own_pid_namespace);
        assert_eq!(status.uids, Some((1000, 0)));
        assert_eq!((status.seccomp, status.threads), (2, 3));
        assert_eq!((status.pending, status.blocked, status.caught), (0x10001, 0xff, 0x200));
        assert_eq!((status.thp_enabled, status.locked, status.has_mm), (Some(false), 8192, true));
        assert_eq!(status.hugetlb, Some(2 << 20));
    }

    #[test]
    fn credentials_are_all_ids_and_all_capabilities() {
        let text =
            b"Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapInh:\t01\nCapPrm:\t02\n\
                     CapEff:\t03\nCapBnd:\t04\nCapAmb:\t05\n";
        let all = Credentials {
            uids: vec![1, 2, 3, 4],
            gids: vec![5, 6, 7, 8],
            groups: vec![9, 10],
            capabilities: [1, 2, 3, 4, 5],
        };
        assert_eq!(credentials(text), Some(all));
        let without = |line: &str| String::from_utf8_lossy(text).replace(line, "");
        assert_eq!(credentials(without("9 10 ").as_bytes()).map(|all| all.groups), Some(vec![]));
        for line in ["Uid:", "Gid:", "Groups:", "CapAmb:\t05\n"] {
            assert_eq!(credentials(without(line).as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_shadow_stack_is_a_feature_among_others() {
        let has = |text: &[u8]| parse(text).shadow_stack;
        assert!(has(b"x86_Thread_features:\tshstk \nx86_Thread_features_locked:\t\n"));
        assert!(has(b"x86_Thread_features:\twrss shstk \n"));
        // A locked feature cannot be turned on or off any more; that does not mean that it is on.
        assert!(!has(b"x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n"));
        assert!(!has(b"x86_Thread_features:\twrss shstks\n"));
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
