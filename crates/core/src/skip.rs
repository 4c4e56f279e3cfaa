//! Why a piece of text was left on base pages.
//!
//! The strings are an interface: JSON, messages, metrics labels and the manual use the same ones.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! reasons {
    (
        $(#[$of:meta])* $name:ident as $side:ident;
        $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?
    ) => {
        $(#[$of])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every one there is, in the manual's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the stable snake_case name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
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
    /// The ragged head and tail outside the whole huge pages.
    Edges = "edges",
    /// Could be on huge pages and is not: nobody has switched it.
    BasePages = "base_pages",
    /// PMD-mapped already.
    AlreadyPmdMapped = "already_pmd_mapped",
    /// Huge pages of the text lie in more than one mapping each: mprotect(2) has cut it in pieces, and a
    /// huge page lies in one.
    CutInPieces = "cut_in_pieces",
    /// `--select` leaves the text out, or nothing can be done with it.
    NotSelected = "not_selected",
    /// Colder than what `--max-huge-pages` took.
    Budget = "budget",
    /// The image is setuid, setgid or has file capabilities: a tracer would cost it its privileges.
    PrivilegedImage = "privileged_image",
    /// The image may be executed but not read by this user.
    UnreadableImage = "unreadable_image",
    /// A 32-bit image, or one for another machine.
    ForeignImage = "foreign_image",
    /// The user, the administrator or the environment switched TiExec off.
    Disabled = "disabled",
    /// Mapped where its address and its file offset differ modulo the huge page: no page cache folio
    /// can be PMD-mapped there.
    NotCongruent = "not_congruent",
    /// The text fills no page of the size that `--page-size` names.
    PageSize = "page_size",
    /// Pages of the text were written to: a breakpoint, a uprobe, a text relocation, a live patch.
    ModifiedText = "modified_text",
    /// The text is sealed against changes (mseal(2)).
    Sealed = "sealed",
    /// The text may be executed but not read, or has a memory protection key or memory tags of its own.
    ProtectionKey = "protection_key",
    /// The program could not be stopped once its shared objects were mapped.
    LinkerUnwatched = "linker_unwatched",
    /// The page cache holds the text in small folios, and only evicting it would change that.
    SmallFolios = "small_folios",
    /// There is no image store here.
    NoStore = "no_store",
    /// The image store has no image of the file, and this user, or this launch in its time, cannot build one.
    NotStored = "not_stored",
    /// Mapped where each start has the file in another place. The store's image fits the one place that many starts have.
    Misplaced = "misplaced",
    /// Not everybody may read the file, so it gets no image that everybody may read.
    NotShareable = "not_shareable",
    /// The file's headers are beyond what an image of the store can be made of.
    OddFile = "odd_file",
    /// The page cache does not hold the text.
    NotCached = "not_cached",
    /// The kernel tells the state of the page cache only to the file's owner and to those who may write to the file.
    NotOwner = "not_owner",
}

reasons! {
    /// Why text could not be taken: an event that went wrong, a resource that is missing, or a refusal.
    FailureKind as Failed;
    /// The program could not be moved to where its text would be congruent.
    RebaseFailed = "rebase_failed",
    /// The kernel had no free huge page, or would not collapse.
    NoHugePage = "no_huge_page",
    /// `PR_SET_THP_DISABLE` is in force for this process.
    ThpDisabled = "thp_disabled",
    /// The kernel has no transparent huge pages at all.
    ThpUnsupported = "thp_unsupported",
    /// The memory cgroup, or one above it, has too little left for the image.
    MemcgHeadroom = "memcg_headroom",
    /// The machine has too little memory for the image, or text is too large for it.
    MemoryHeadroom = "memory_headroom",
    /// The hugetlb pool, or the hugetlb cgroup, has too few pages.
    HugetlbPool = "hugetlb_pool",
    /// The nodes that `--numa` names have no memory for this process, or the kernel refused to place pages.
    Numa = "numa",
    /// `memfd_create` was refused.
    NoMemfd = "no_memfd",
    /// A seccomp filter forbids a call that is needed, or may do so.
    Seccomp = "seccomp",
    /// The program answers its own system calls (`PR_SET_SYSCALL_USER_DISPATCH`): ours would come to
    /// its handler.
    SyscallDispatch = "syscall_dispatch",
    /// The kernel or a security module refuses to let us trace the program.
    PtraceDenied = "ptrace_denied",
    /// A debugger or tracer is there already; a process has one tracer at most.
    AlreadyTraced = "already_traced",
    /// Something came to be mapped beside the text, in the huge page at its edge.
    EdgeInUse = "edge_in_use",
    /// The process has nearly as many mappings as it may (`vm.max_map_count`).
    MapCount = "map_count",
    /// Every thread was where a stop would have been noticed, or could not be made.
    NoThread = "no_thread",
    /// The file that is mapped could not be opened any more, or is another one.
    FileGone = "file_gone",
    /// The file lies on a file system whose answers may never come (FUSE, a network, an overlay of a user's), and the
    /// process is another user's.
    ForeignFilesystem = "foreign_filesystem",
    /// The process executed another program, or its text or its credentials changed, after it was looked at.
    Changed = "changed",
    /// The process's `/proc` files are longer than TiExec reads: its mappings are too many, or their names too long.
    Oversized = "oversized",
    /// Another TiExec of this user is at work on the process.
    Busy = "busy",
    /// `/proc` is not mounted, or is another PID namespace's.
    ProcUnavailable = "proc_unavailable",
    /// The helper process ended before it was done.
    HelperDied = "helper_died",
    /// The copy was not staged in time.
    Deadline = "deadline",
    /// The target's address space limit, `RLIMIT_AS`, leaves no room for staging.
    AddressSpace = "address_space",
    /// The target has no file descriptor left.
    FdLimit = "fd_limit",
    /// No `syscall; ret` or no `rt_sigreturn` stub in the program: nothing safe to call through.
    NoGadget = "no_gadget",
    /// No room on the stack for the self-restoring frame.
    StackRoom = "stack_room",
    /// Registers are in use that the frame cannot carry, the thread has a shadow stack, or it runs 32-bit
    /// code.
    RegisterState = "register_state",
    /// The kernel refused the staging or the switch itself.
    SwitchFailed = "switch_failed",
    /// The helper process, or a thread that is needed, could not be created.
    ForkFailed = "fork_failed",
    /// The image file could not be read in full.
    ReadFailed = "read_failed",
    /// The program ended before it reached the point where its text would have been switched.
    TargetGone = "target_gone",
    /// The image store, or an image in it, could have been made by somebody else: it is not used.
    StoreRefused = "store_refused",
    /// The image store has no room for the image, also after removing images that nobody uses.
    StoreFull = "store_full",
    /// Running processes have the text mapped, or locked: it cannot be evicted and read in anew.
    InUse = "in_use",
    /// The file has pages that are not written back yet.
    DirtyFile = "dirty_file",
    /// Somebody has the file open for writing.
    OpenForWriting = "open_for_writing",
    /// The file system keeps files in small folios only.
    NoLargeFolios = "no_large_folios",
}

/// Why text was left on base pages. A plan can hold failures too: a file that cannot be opened leaves its text out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(untagged)]
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

    /// Returns what changes it, where that is certain.
    pub const fn fix(self) -> Option<&'static str> {
        match self {
            Self::Skipped(why) => why.fix(),
            Self::Failed(kind) => kind.fix(),
        }
    }

    /// As [`fix`](Self::fix), about this file, where it is known which.
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
            Self::NotOwner => "run it as root, or as the file's owner",
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
            Self::FdLimit => "raise the limit on open files (ulimit -n)",
            Self::ForkFailed => {
                "raise the limit on processes (ulimit -u), or pids.max of the pids cgroup"
            }
            Self::StoreFull => "tiexecctl store setup --size=SIZE",
            Self::InUse => {
                "stop what uses it, tiexecctl warm FILE, start it again (systemd: ExecStartPre=-+/usr/bin/tiexecctl warm FILE)"
            }
            Self::DirtyFile => "sync FILE, then tiexecctl warm FILE",
            Self::PtraceDenied => "`tiexecctl doctor` tells what forbids it",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fix_names_an_action() {
        let actions = ["allow ", "attach ", "leave ", "raise ", "run ", "stop ", "sync "];
        let commands = ["tiexecctl ", "`tiexecctl ", "mount "];
        for reason in Reason::all() {
            let Some(fix) = reason.fix() else { continue };
            let mut named = actions.iter().chain(&commands);
            assert!(named.any(|start| fix.starts_with(start)), "{reason}: {fix}");
            assert!(!fix.contains("PID"), "{reason}: {fix}");
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
