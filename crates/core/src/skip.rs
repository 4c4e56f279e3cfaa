//! Why a piece of text was left on base pages.
//!
//! The strings are an interface: JSON, messages, metrics labels and the manual use the same ones.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! reasons {
    (
        $(#[$of:meta])* $name:ident as $side:ident;
        $($(#[doc = $doc:literal])+ $variant:ident = $text:literal),+ $(,)?
    ) => {
        $(#[$of])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name { $($(#[doc = $doc])+ $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the stable snake_case name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Returns the description above, which the manual and the guide use.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+)),+ }
            }
        }

        impl From<$name> for Reason {
            fn from(one: $name) -> Self {
                Self::$side(one)
            }
        }

        impl PartialEq<$name> for Reason {
            fn eq(&self, other: &$name) -> bool {
                *self == Self::$side(*other)
            }
        }
    };
}

reasons! {
    /// Why text is not taken: a decision, or a property of the text or of its file. A skip is not an error, but a
    /// function may return it as its failure.
    SkipReason as Skipped;
    /// The text fills no whole, aligned huge page.
    TooSmall = "too_small",
    /// This is the first or the last part of the text. It shares its huge page with other memory, or does not
    /// fill it. `--edges` decides whether such parts are taken. An attach takes none whose huge page is partly
    /// free; a start does.
    Edges = "edges",
    /// The text could be on huge pages. Nobody has put it there, or the program has not used it yet: the kernel maps
    /// page cache at the first use.
    BasePages = "base_pages",
    /// The text is on huge pages already.
    AlreadyPmdMapped = "already_pmd_mapped",
    /// A call of mprotect(2) has cut the mapping of the text inside a huge page. A huge page must lie in one
    /// mapping.
    CutInPieces = "cut_in_pieces",
    /// `--select`, `--only` or `--except` leaves the text out. TiExec also leaves alone text that is mapped
    /// shared, text in a memfd, and kernel threads. It copies no text that a revert could not put back: that of a file that is not
    /// ELF, or of which nothing else is mapped near by.
    NotSelected = "not_selected",
    /// The text is colder than the huge pages that `--max-huge-pages` took.
    Budget = "budget",
    /// The program is set-user-ID or set-group-ID, or has file capabilities. It could lose these privileges under
    /// a tracer, so TiExec leaves it alone.
    PrivilegedImage = "privileged_image",
    /// The user may execute the file, but not read it.
    UnreadableImage = "unreadable_image",
    /// The program is a 32-bit one, or one for another processor.
    ForeignImage = "foreign_image",
    /// TiExec is switched off: by `--backing=off`, by `TIEXEC=off`, by `off` in `/etc/tiexec/config`, or by
    /// `/etc/tiexec/disabled`.
    Disabled = "disabled",
    /// Under `--backing pagecache`: the address of the text and its offset in the file differ modulo the size of a
    /// huge page. The kernel cannot map a huge page of the page cache there.
    NotCongruent = "not_congruent",
    /// The text fills no page of the size that `--page-size` names.
    PageSize = "page_size",
    /// Pages of the text were written to, or can be: by a breakpoint, a uprobe, a text relocation, a live patch or an
    /// instrumentation tool such as Frida. Or the file lies on overlayfs, as in a container, and was written to since
    /// the process mapped it: then the process goes on with the old bytes.
    ModifiedText = "modified_text",
    /// The text is sealed against changes (mseal(2)). A dry run does not notice this.
    Sealed = "sealed",
    /// The text may be executed but not read, or it has a memory protection key or memory tags of its own.
    ProtectionKey = "protection_key",
    /// The program could not be stopped after its dynamic linker had mapped the shared libraries: it has a
    /// seccomp filter, or it is linked with musl and has no RELRO. The libraries stay on base pages. `--strict`
    /// ignores this; only `-v` and the report show it.
    LinkerUnwatched = "linker_unwatched",
    /// The page cache holds the text in small pieces. Where the kernel cannot collapse these, only eviction changes
    /// that.
    SmallFolios = "small_folios",
    /// This machine has no image store.
    NoStore = "no_store",
    /// The image store has no image of the file. This user may not build one, or building it takes too long for a
    /// launch.
    NotStored = "not_stored",
    /// The image in the store fits only one load address modulo the huge page size. This process has the file at
    /// another one.
    Misplaced = "misplaced",
    /// Some users may not read the file, so it gets no image in the store that everybody may read.
    NotShareable = "not_shareable",
    /// The headers of the file are such that the store cannot hold an image of it.
    OddFile = "odd_file",
    /// The page cache does not hold the text.
    NotCached = "not_cached",
    /// The kernel tells the state of the page cache only to the owner of the file, and to users who may write to
    /// it.
    NotOwner = "not_owner",
}

reasons! {
    /// Why text could not be taken: an event that went wrong, a resource that is missing, or a refusal.
    FailureKind as Failed;
    /// The program could not be moved to an address at which its text suits the huge pages of the page cache.
    /// Only the report shows this, as `setback`.
    RebaseFailed = "rebase_failed",
    /// The kernel had no free huge page: memory is short or fragmented. A later attempt may succeed.
    NoHugePage = "no_huge_page",
    /// Transparent huge pages are switched off for this process (`PR_SET_THP_DISABLE`).
    ThpDisabled = "thp_disabled",
    /// This kernel has no transparent huge pages.
    ThpUnsupported = "thp_unsupported",
    /// The memory cgroup of the process, or one above it, is too near its limit. It needs room for the copy (or for the
    /// text that a launch evicts and reads back), and 64 MiB more. A process of another user also gets this reason if
    /// its cgroup, or one above it, has `memory.oom.group` set (then write 0 to that file; systemd: OOMPolicy=stop). So
    /// it does if TiExec cannot join the cgroup.
    MemcgHeadroom = "memcg_headroom",
    /// The machine has too little memory available (`MemAvailable` in `/proc/meminfo`). It needs room for the copy (or
    /// for the text that a launch evicts and reads back), and 64 MiB more. Text that would fill more than a quarter of
    /// the machine's memory has this reason, too.
    MemoryHeadroom = "memory_headroom",
    /// The pool of reserved huge pages has too few free ones, or the hugetlb cgroup allows no more.
    HugetlbPool = "hugetlb_pool",
    /// `--numa` names a node that has no memory for this process, or the kernel or a seccomp filter refused
    /// mbind(2).
    Numa = "numa",
    /// The kernel or a seccomp filter refused memfd_create(2).
    NoMemfd = "no_memfd",
    /// A seccomp filter forbids a system call that the switch needs, or may forbid it, or TiExec cannot read the
    /// filter.
    Seccomp = "seccomp",
    /// The process sends its own system calls to a handler (`PR_SET_SYSCALL_USER_DISPATCH`). The system calls of
    /// TiExec would end there. Before Linux 6.4, TiExec cannot see that.
    SyscallDispatch = "syscall_dispatch",
    /// The kernel, Yama, a security module or a seccomp filter forbids tracing the program. With
    /// `kernel.yama.ptrace_scope` 2 only `CAP_SYS_PTRACE` allows it; 3 forbids it to everybody until the next
    /// boot.
    PtraceDenied = "ptrace_denied",
    /// A debugger or another tracer, such as strace(1), traces a thread of the process. A thread has one tracer at
    /// most.
    AlreadyTraced = "already_traced",
    /// The process changed or unmapped something at an edge of the text while TiExec prepared that edge, or has
    /// locked only a part of the edge in memory. The rest of the text is not affected.
    EdgeInUse = "edge_in_use",
    /// The process has nearly as many mappings as it may have (`vm.max_map_count`).
    MapCount = "map_count",
    /// For two seconds each thread was in a system call that a stop would make fail (EINTR) or end early, or could
    /// not be stopped (state D, frozen). A later attempt may succeed.
    NoThread = "no_thread",
    /// The mapped file cannot be opened any more, or another file has its name.
    FileGone = "file_gone",
    /// The process is another user's, and its file lies on a file system that TiExec does not know to be local,
    /// such as FUSE, NFS or an overlay of these. That user may decide when a read ends, so TiExec does not open the
    /// file.
    ForeignFilesystem = "foreign_filesystem",
    /// The process executed another program, or its text or its credentials changed, after TiExec had looked at
    /// it. TiExec leaves it as it is.
    Changed = "changed",
    /// The files of the process under `/proc` are longer than TiExec reads (32 MiB of maps): the process has too
    /// many mappings, or their names are too long.
    Oversized = "oversized",
    /// Another TiExec of this user is at work on the process. Repeat the command when that one has ended.
    Busy = "busy",
    /// `/proc` is not mounted, or it belongs to another PID namespace.
    ProcUnavailable = "proc_unavailable",
    /// The helper process was killed before it was done.
    HelperDied = "helper_died",
    /// The huge pages were not ready within `--deadline`, or a process of another user kept TiExec waiting.
    Deadline = "deadline",
    /// The limit on the address space of the process (`RLIMIT_AS`) leaves no room to prepare the text.
    AddressSpace = "address_space",
    /// The process has locked all memory that it will map (mlockall(2) with `MCL_FUTURE`), and its limit on locked memory
    /// (`RLIMIT_MEMLOCK`) leaves no room for the copy.
    LockedMemory = "locked_memory",
    /// The process has no free file descriptor (`RLIMIT_NOFILE`).
    FdLimit = "fd_limit",
    /// The program has no instruction sequence by which TiExec could make it run a system call safely. The kernel may
    /// still map text huge that lies in huge pages of the page cache.
    NoGadget = "no_gadget",
    /// The stack of the stopped thread has no room for what TiExec writes there, from which the thread restores itself.
    StackRoom = "stack_room",
    /// The thread uses registers that TiExec cannot restore (AMX tiles, the streaming mode of SME), or it has a shadow
    /// stack, or it runs 32-bit code.
    RegisterState = "register_state",
    /// The kernel refused to put the prepared pages in place. If the text is unmapped by then, TiExec maps the same
    /// bytes again at once. If a thread executes there in between, the process ends with SIGSEGV.
    SwitchFailed = "switch_failed",
    /// The helper process, or a thread that it needs, could not be started: a limit on processes, or no memory.
    ForkFailed = "fork_failed",
    /// The file of the program could not be read in full.
    ReadFailed = "read_failed",
    /// The program ended before its text was switched.
    TargetGone = "target_gone",
    /// Another user could have made or changed the image store, or an image in it.
    StoreRefused = "store_refused",
    /// The image store has no room for the image, even after removing the images that nobody uses.
    StoreFull = "store_full",
    /// The text cannot be evicted and read again in huge pages: running processes have it mapped or locked, or on an
    /// overlay it is not written back yet (then run `sync FILE` first). Processes that have mapped the text and not
    /// touched it, or that read it by read(2), do not count.
    InUse = "in_use",
    /// The file has pages that are not yet written back to the disk.
    DirtyFile = "dirty_file",
    /// A process has the file open for writing.
    OpenForWriting = "open_for_writing",
    /// The file system read the text into the page cache in small pieces: it has no large folios (pieces of cached file
    /// memory as large as a huge page) for this file, or memory is fragmented.
    NoLargeFolios = "no_large_folios",
}

/// Why text was left on base pages. A plan can hold failures too: a file that cannot be opened leaves its text out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The text is not taken.
    Skipped(SkipReason),
    /// Taking it failed.
    Failed(FailureKind),
}

impl Reason {
    /// Returns every reason there is.
    pub fn all() -> impl Iterator<Item = Self> {
        let skipped = SkipReason::ALL.iter().map(|&why| Self::Skipped(why));
        skipped.chain(FailureKind::ALL.iter().map(|&kind| Self::Failed(kind)))
    }

    /// Returns the stable snake_case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skipped(why) => why.as_str(),
            Self::Failed(kind) => kind.as_str(),
        }
    }

    /// Returns its description, in sentences.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Skipped(why) => why.meaning(),
            Self::Failed(kind) => kind.meaning(),
        }
    }

    /// Returns whether this is worth a line on stderr when a launch fails open. The others are
    /// normal: nothing to gain, or a program that must be left alone.
    pub const fn is_failure(self) -> bool {
        match self {
            Self::Skipped(why) => matches!(
                why,
                SkipReason::NotCongruent
                    | SkipReason::PageSize
                    | SkipReason::ModifiedText
                    | SkipReason::Sealed
                    | SkipReason::ProtectionKey
                    | SkipReason::SmallFolios
                    | SkipReason::NotCached
                    | SkipReason::NotOwner
            ),
            Self::Failed(kind) => !matches!(kind, FailureKind::TargetGone),
        }
    }

    /// Returns the fix, if a certain one is known.
    pub const fn fix(self) -> Option<&'static str> {
        match self {
            Self::Skipped(why) => why.fix(),
            Self::Failed(kind) => kind.fix(),
        }
    }

    /// As [`fix`](Self::fix), with the name of the file, if it is known.
    pub fn fix_for(self, file: Option<&str>) -> Option<String> {
        Some(self.fix()?.replace("FILE", file.unwrap_or("FILE")))
    }
}

impl SkipReason {
    const fn fix(self) -> Option<&'static str> {
        Some(match self {
            Self::SmallFolios => "tiexecctl warm FILE, or leave out --backing pagecache",
            Self::NotCongruent => "leave out --backing pagecache",
            Self::LinkerUnwatched => "attach to it once it runs (tiexecctl attach)",
            Self::NoStore => "tiexecctl store setup",
            Self::NotStored => "tiexecctl store add FILE, as root for the system's store",
            Self::Misplaced => "run it with --backing=image, for a copy at each start",
            Self::NotShareable => {
                "run it with --backing=image, for a copy at each start, or install it where all may read it"
            }
            Self::NotCached => "tiexecctl warm FILE",
            Self::NotOwner => "tiexecctl warm FILE, as root or as the file's owner",
            _ => return None,
        })
    }
}

impl FailureKind {
    const fn fix(self) -> Option<&'static str> {
        Some(match self {
            Self::MapCount => "raise vm.max_map_count",
            Self::MemcgHeadroom => "raise memory.max (systemd: MemoryMax=)",
            Self::HugetlbPool => "raise vm.nr_hugepages, or leave out --backing hugetlb",
            Self::Numa => "leave out --numa",
            Self::Deadline => {
                "allow more time (--deadline=2s), or prepare the file once (tiexecctl warm FILE)"
            }
            Self::AddressSpace => "raise the limit on address space (ulimit -v)",
            Self::LockedMemory => {
                "raise the limit on locked memory (ulimit -l, systemd: LimitMEMLOCK=)"
            }
            Self::FdLimit => "raise the limit on open files (ulimit -n)",
            Self::ForkFailed => {
                "raise the limit on processes (ulimit -u), or pids.max of the pids cgroup"
            }
            Self::StoreFull => "tiexecctl store setup --size=SIZE",
            Self::InUse => {
                "stop what uses it, tiexecctl warm FILE, start it again (systemd: ExecStartPre=-+/usr/bin/tiexecctl warm FILE)"
            }
            Self::DirtyFile => "sync FILE, then tiexecctl warm FILE",
            Self::PtraceDenied => "run `tiexecctl doctor`, which names what forbids it",
            Self::ProcUnavailable => "mount -t proc proc /proc",
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Cow<'de, str>>::deserialize(deserializer)?;
        let mut all = Self::all();
        let found = all.find(|reason| reason.as_str() == name);
        found.ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&name), &"a reason"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fix_names_an_action() {
        let actions = ["allow ", "attach ", "leave ", "raise ", "run ", "stop ", "sync "];
        let commands = ["tiexecctl ", "mount "];
        for reason in Reason::all() {
            let Some(fix) = reason.fix() else { continue };
            let mut named = actions.iter().chain(&commands);
            assert!(named.any(|start| fix.starts_with(start)), "{reason}: {fix}");
            assert!(!fix.contains("PID"), "{reason}: {fix}");
        }
    }

    #[test]
    fn every_meaning_is_whole_sentences() {
        for reason in Reason::all() {
            let meaning = reason.meaning();
            assert!(meaning.starts_with(' ') && meaning.ends_with('.'), "{reason}: {meaning}");
            assert!(!meaning.contains("  "), "{reason}: {meaning}");
        }
    }

    #[test]
    fn json_and_display_agree_for_every_reason() {
        for reason in Reason::all() {
            let json = format!("\"{reason}\"");
            assert_eq!(serde_json::to_string(&reason).unwrap(), json);
            assert_eq!(serde_json::from_str::<Reason>(&json).unwrap(), reason);
        }
    }
}
