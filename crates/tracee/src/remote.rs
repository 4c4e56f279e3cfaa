//! The system calls that a process makes for TiExec, one function each.
//!
//! Each function returns a [`SystemCall`]: its number and arguments, and its name in errors. Next to each function
//! is the call's [entry](ManifestEntry) for the lists that are checked against seccomp filters. A call is encoded
//! from its entry, so the two cannot differ: the entry has the fixed arguments, and the function adds the others.

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::seccomp::Value::{Any, Is, Small};
use tiexec_sys::c;

pub use crate::syscall_manifest::SystemCall;
use crate::syscall_manifest::{ManifestEntry, constant};

/// The condition under which a file is mapped at a fixed range (mmap(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placing {
    /// At an address where nothing is mapped (`MAP_FIXED_NOREPLACE`, from Linux 4.17 on), without reserving memory.
    /// Otherwise a private mapping of pages of the hugetlb pool would reserve a second set of pages, for writes that
    /// never come.
    Aside,
    /// Over the present mappings (`MAP_FIXED`), also without reserving memory.
    Over,
    /// Where nothing is mapped, as the kernel maps a program.
    AsProgram,
}

impl Placing {
    const fn flags(self) -> i32 {
        c::MAP_PRIVATE
            | match self {
                Self::Aside => c::MAP_FIXED_NOREPLACE | c::MAP_NORESERVE,
                Self::Over => c::MAP_FIXED | c::MAP_NORESERVE,
                Self::AsProgram => c::MAP_FIXED_NOREPLACE,
            }
    }
}

/// `PROT_BTI` exists on aarch64 only; elsewhere no mapping has it.
const TEXT: i32 = c::PROT_READ | c::PROT_EXEC;

/// The entry of [`mmap`] with this protection.
pub const fn mmap_entry(protection: i32, placing: Placing) -> ManifestEntry {
    let name = match (placing, protection) {
        (Placing::AsProgram, _) => "mmap(MAP_FIXED_NOREPLACE)",
        (Placing::Aside, c::PROT_NONE) => "mmap(PROT_NONE)",
        (Placing::Aside, c::PROT_READ) => "mmap(PROT_READ)",
        (Placing::Aside, TEXT) => "mmap(PROT_READ|PROT_EXEC)",
        (Placing::Aside, _) => "mmap(PROT_READ|PROT_EXEC|PROT_BTI)",
        (Placing::Over, c::PROT_READ) => "mmap(PROT_READ, MAP_FIXED)",
        (Placing::Over, TEXT) => "mmap(MAP_FIXED)",
        (Placing::Over, _) => "mmap(PROT_BTI, MAP_FIXED)",
    };
    let flags = placing.flags();
    ManifestEntry::needed(
        name,
        c::SYS_mmap,
        [Any, Any, constant(protection), constant(flags), Small, Any],
    )
}

/// mmap(2): maps the file `fd` from `offset` on at `range`, privately. Returns the address of `range`.
pub fn mmap(
    range: AddrRange,
    protection: i32,
    placing: Placing,
    fd: u64,
    offset: u64,
) -> SystemCall {
    mmap_entry(protection, placing).with([range.start().get(), range.len(), fd, offset])
}

/// mmap(2) without a file, where nothing is mapped.
pub fn mmap_anonymous(range: AddrRange, protection: i32) -> SystemCall {
    let flags = constant(Placing::AsProgram.flags() | c::MAP_ANONYMOUS);
    // Without a file the descriptor is -1.
    let args = [Any, Any, constant(protection), flags, Is(u64::MAX), Is(0)];
    ManifestEntry::needed("mmap(MAP_ANONYMOUS)", c::SYS_mmap, args)
        .with([range.start().get(), range.len()])
}

/// The entry of [`munmap`].
pub const MUNMAP: ManifestEntry = ManifestEntry::needed("munmap", c::SYS_munmap, [Any, Any]);

/// munmap(2).
pub fn munmap(range: AddrRange) -> SystemCall {
    MUNMAP.with([range.start().get(), range.len()])
}

/// The entry of [`mremap`].
pub const MREMAP: ManifestEntry = ManifestEntry::needed(
    "mremap(MREMAP_FIXED)",
    c::SYS_mremap,
    [Any, Any, Any, constant(c::MREMAP_MAYMOVE | c::MREMAP_FIXED), Any],
);

/// mremap(2): moves the mapping `from` to `to`, over the mappings there. The kernel unmaps these before it can
/// refuse.
pub fn mremap(from: AddrRange, to: RemoteAddr) -> SystemCall {
    MREMAP.with([from.start().get(), from.len(), from.len(), to.get()])
}

/// The advice of [`madvise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// `MADV_POPULATE_READ`, from Linux 5.14 on: maps all pages of the range, or fails.
    PopulateRead,
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_COLLAPSE`, from Linux 6.1 on.
    Collapse,
    /// `MADV_DONTNEED`.
    DontNeed,
}

/// The entry of [`madvise`].
pub const fn madvise_entry(advice: Advice) -> ManifestEntry {
    let (name, advice) = match advice {
        Advice::PopulateRead => ("madvise(MADV_POPULATE_READ)", c::MADV_POPULATE_READ),
        Advice::HugePage => ("madvise(MADV_HUGEPAGE)", c::MADV_HUGEPAGE),
        Advice::Collapse => ("madvise(MADV_COLLAPSE)", c::MADV_COLLAPSE),
        Advice::DontNeed => ("madvise(MADV_DONTNEED)", c::MADV_DONTNEED),
    };
    ManifestEntry::needed(name, c::SYS_madvise, [Any, Any, constant(advice)])
}

/// madvise(2).
pub fn madvise(range: AddrRange, advice: Advice) -> SystemCall {
    madvise_entry(advice).with([range.start().get(), range.len()])
}

/// The entry of [`mlock`].
pub const MLOCK: ManifestEntry =
    ManifestEntry::needed("mlock", c::SYS_mlock, [Any, Any]).optional();

/// mlock(2).
pub fn mlock(range: AddrRange) -> SystemCall {
    MLOCK.with([range.start().get(), range.len()])
}

/// The entry of [`msync`].
pub const MSYNC: ManifestEntry = ManifestEntry::needed(
    "msync(MS_INVALIDATE)",
    c::SYS_msync,
    [Any, Any, constant(c::MS_INVALIDATE)],
)
.optional();

/// msync(2) with `MS_INVALIDATE`, which changes nothing on Linux. Returns EBUSY if memory is locked (`mm/msync.c`).
pub fn msync(range: AddrRange) -> SystemCall {
    MSYNC.with([range.start().get(), range.len()])
}

/// The entry of [`memfd_create`].
const MEMFD_CREATE: ManifestEntry =
    ManifestEntry::needed("memfd_create", c::SYS_memfd_create, [Any, Small]);

/// memfd_create(2): `name` is the address of a string. Returns a descriptor.
pub fn memfd_create(name: RemoteAddr, flags: u32) -> SystemCall {
    MEMFD_CREATE.with([name.get(), flags.into()])
}

/// openat(2): opens the path at address `path` for reading. Errors show the call as `name`. `flags` are added to
/// `O_CLOEXEC`. Returns a descriptor.
pub fn open(name: &'static str, path: RemoteAddr, flags: i32) -> SystemCall {
    let directory = Is(i64_bits(c::AT_FDCWD));
    let flags = constant(c::O_RDONLY | c::O_CLOEXEC | flags);
    ManifestEntry::needed(name, c::SYS_openat, [directory, Any, flags]).with([path.get()])
}

/// The entry of [`close`].
pub const CLOSE: ManifestEntry = ManifestEntry::needed("close", c::SYS_close, [Small]);

/// close(2).
pub fn close(fd: u64) -> SystemCall {
    CLOSE.with([fd])
}

/// The entry of [`socketpair`].
pub const SOCKETPAIR: ManifestEntry = ManifestEntry::needed(
    "socketpair(AF_UNIX)",
    c::SYS_socketpair,
    [constant(c::AF_UNIX), constant(c::SOCK_DGRAM | c::SOCK_CLOEXEC), Is(0), Any],
);

/// socketpair(2): a pair of datagram sockets, whose descriptors the kernel writes to `pair`.
pub fn socketpair(pair: RemoteAddr) -> SystemCall {
    SOCKETPAIR.with([pair.get()])
}

/// The entry of [`recvmsg`].
pub const RECVMSG: ManifestEntry = ManifestEntry::needed(
    "recvmsg(SCM_RIGHTS)",
    c::SYS_recvmsg,
    [Small, Any, constant(c::MSG_CMSG_CLOEXEC | c::MSG_DONTWAIT)],
);

/// recvmsg(2) without waiting: `message` is the address of a `struct msghdr`.
pub fn recvmsg(fd: u64, message: RemoteAddr) -> SystemCall {
    RECVMSG.with([fd, message.get()])
}

/// The entry of [`send_byte`].
pub const SEND_BYTE: ManifestEntry =
    ManifestEntry::needed("sendto", c::SYS_sendto, [Small, Any, Is(1), constant(c::MSG_DONTWAIT)])
        .optional();

/// sendto(2) of the one byte at `byte`, without waiting.
pub fn send_byte(fd: u64, byte: RemoteAddr) -> SystemCall {
    SEND_BYTE.with([fd, byte.get()])
}

/// The entries of the calls by which a thread completes what a stop has cut short.
pub const COMPLETING: [ManifestEntry; 5] = [POLL, WRITE, SEND, GETRANDOM, READ];

const POLL: ManifestEntry =
    ManifestEntry::needed("poll", c::SYS_poll, [Any, Is(1), Small]).optional();
const WRITE: ManifestEntry =
    ManifestEntry::needed("write", c::SYS_write, [Small, Any, Any]).optional();
const SEND: ManifestEntry =
    ManifestEntry::needed("sendto", c::SYS_sendto, [Small, Any, Any, Small]).optional();
const GETRANDOM: ManifestEntry =
    ManifestEntry::needed("getrandom", c::SYS_getrandom, [Any, Any, Small]).optional();
const READ: ManifestEntry =
    ManifestEntry::needed("read", c::SYS_read, [Small, Any, Any]).optional();

/// poll(2) of the one `struct pollfd` at `at`, for at most `time` milliseconds.
pub(crate) fn poll(at: RemoteAddr, time: u32) -> SystemCall {
    POLL.with([at.get(), time.into()])
}

/// write(2).
pub(crate) fn write(fd: u64, from: u64, len: u64) -> SystemCall {
    WRITE.with([fd, from, len])
}

/// sendto(2) over a connected socket.
pub(crate) fn send(fd: u64, from: u64, len: u64, flags: u64) -> SystemCall {
    SEND.with([fd, from, len, flags])
}

/// getrandom(2).
pub(crate) fn getrandom(to: u64, len: u64, flags: u64) -> SystemCall {
    GETRANDOM.with([to, len, flags])
}

/// read(2).
pub(crate) fn read(fd: u64, to: u64, len: u64) -> SystemCall {
    READ.with([fd, to, len])
}

/// The entry of [`set_thp_disable`].
pub const fn set_thp_disable_entry(disable: bool) -> ManifestEntry {
    let args = [constant(c::PR_SET_THP_DISABLE), Is(disable as u64), Is(0), Is(0), Is(0)];
    ManifestEntry::needed("prctl(PR_SET_THP_DISABLE)", c::SYS_prctl, args).optional()
}

/// prctl(2) with `PR_SET_THP_DISABLE`.
pub fn set_thp_disable(disable: bool) -> SystemCall {
    set_thp_disable_entry(disable).with([])
}

/// prctl(2) with `PR_SET_MM_MAP`: `map` is the address of a `struct prctl_mm_map`, `len` its length in bytes.
pub fn set_mm_map(map: RemoteAddr, len: u64) -> SystemCall {
    let args = [constant(c::PR_SET_MM), constant(c::PR_SET_MM_MAP), Any, Is(len), Is(0)];
    ManifestEntry::needed("prctl(PR_SET_MM_MAP)", c::SYS_prctl, args).with([map.get()])
}

/// The entry of [`set_normal_scheduling`].
pub const SET_NORMAL_SCHEDULING: ManifestEntry = ManifestEntry::needed(
    "sched_setscheduler(SCHED_OTHER)",
    c::SYS_sched_setscheduler,
    [Is(0), constant(c::SCHED_OTHER), Any],
)
.optional();

/// sched_setscheduler(2) of the calling thread with `SCHED_OTHER`. `parameter` is the address of a priority of 0.
pub fn set_normal_scheduling(parameter: RemoteAddr) -> SystemCall {
    SET_NORMAL_SCHEDULING.with([parameter.get()])
}

/// The entry of [`copy_within`].
pub(crate) const COPY_WITHIN: ManifestEntry = ManifestEntry::needed(
    "process_vm_readv",
    c::SYS_process_vm_readv,
    [Small, Any, Is(1), Any, Is(1), Is(0)],
)
.optional();

/// process_vm_readv(2) of the process `pid` itself. Each address is that of a `struct iovec`. Copies the bytes that
/// `from` describes to those that `to` describes.
pub(crate) fn copy_within(pid: u32, to: RemoteAddr, from: RemoteAddr) -> SystemCall {
    COPY_WITHIN.with([pid.into(), to.get(), from.get()])
}

/// process_vm_writev(2) of the process `pid` itself. Each address is that of a `struct iovec`. Copies the bytes
/// that `from` describes to those that `to` describes. Returns the number of bytes written.
pub fn write_within(pid: u32, from: RemoteAddr, to: RemoteAddr) -> SystemCall {
    let args = [Small, Any, Is(1), Any, Is(1), Is(0)];
    ManifestEntry::needed("process_vm_writev", c::SYS_process_vm_writev, args).with([
        pid.into(),
        from.get(),
        to.get(),
    ])
}

/// wait4(2) for a child of any kind.
pub fn wait4(pid: u32) -> SystemCall {
    let args = [Small, Is(0), constant(c::__WALL), Is(0)];
    ManifestEntry::needed("wait4", c::SYS_wait4, args).with([pid.into()])
}

/// exit_group(2).
pub(crate) fn exit_group(status: u8) -> SystemCall {
    ManifestEntry::needed("exit_group", c::SYS_exit_group, [Small]).with([status.into()])
}

const fn i64_bits(value: i32) -> u64 {
    (value as i64).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_what_its_entry_fixes_and_the_rest_in_order() {
        let range = AddrRange::with_len(RemoteAddr::new(0x20_0000), 0x1000).expect("a range");
        let call = mmap(range, TEXT, Placing::Aside, 7, 0x3000);
        let flags = c::MAP_PRIVATE | c::MAP_FIXED_NOREPLACE | c::MAP_NORESERVE;
        let flags = u64::from(flags.unsigned_abs());
        assert_eq!(call.args(), [0x20_0000, 0x1000, 5, flags, 7, 0x3000]);
        assert_eq!(call.name, "mmap(PROT_READ|PROT_EXEC)");
        let call = mremap(range, RemoteAddr::new(0x40_0000));
        assert_eq!(call.args(), [0x20_0000, 0x1000, 0x1000, 3, 0x40_0000, 0]);
        assert_eq!(close(9).args(), [9, 0, 0, 0, 0, 0]);
    }
}
