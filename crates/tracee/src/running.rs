//! Stops one thread of a running process, and begins a session in it.
//!
//! The other threads go on. The thread is stopped at any point, in a system call or not, and goes on afterwards as
//! if it had not been stopped. If this process dies meanwhile, the thread goes on as after a signal handler.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::proc::pagemap::is_guard;
use tiexec_core::proc::status::Status;
use tiexec_core::proc::syscall::{self, Doing};
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::{AddressSpace, Memory};
use tiexec_sys::process::{self, Wait};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::ptrace::{self, Options, Registers, Resume, Rseq};
use tiexec_sys::{Pid, c};

use crate::arch::{self, Call, Gadgets, Interruption, Sight};
use crate::error::TraceError;
use crate::fault;
use crate::interrupted::{self, Repeat};
use crate::session::{Ground, Refusal, Session};
use crate::stopped::Stopped;
use crate::syscall_manifest::{Filters, Permission};
use crate::target::Target;
use crate::threads::{self, Takes};

/// Seizes the thread and stops it, at the latest at `deadline`. `memory` is that of its process. `takes` is how the thread takes
/// a stop, by a look just before.
///
/// A thread that a signal has stopped is only seized, never interrupted. The kernel traps such a thread in the seizure itself
/// (`ptrace_set_stopped`, `kernel/ptrace.c`), so a SIGCONT comes before the seizure or after the stop.
///
/// # Errors
/// - [`TraceError::Changed`]: the thread executed another program meanwhile; it is let go.
/// - EPERM as for `PTRACE_SEIZE`: another tracer, or no permission.
/// - [`TraceError::Late`]: the thread sleeps where nothing wakes it (state D). It is detached when the calling
///   thread ends.
/// - [`TraceError::Continued`].
/// - [`TraceError::RseqUntold`]: the thread is also detached then.
/// - [`TraceError::Foreign`]: the thread goes on already.
/// - [`TraceError::Gone`].
pub fn stop(
    tid: Pid,
    memory: &Memory,
    takes: Takes,
    deadline: Instant,
) -> Result<Stopped, TraceError> {
    let asleep_in = sleeps_in(tid);
    fault::before_seize(tid);
    ptrace::seize(tid, Options::default())?;
    if takes == Takes::GroupStopped {
        let stop = process::wait_until(tid, Instant::now()).map_err(TraceError::waiting)?;
        return match stop {
            Some(Wait::GroupStop(_)) => looked(tid, memory, true, asleep_in),
            Some(Wait::Exited(_) | Wait::Killed(_)) => Err(TraceError::Gone),
            Some(other) => {
                let signal = if let Wait::Signal(signal) = other { signal } else { 0 };
                ptrace::resume(tid, Resume::Detach, signal)?;
                Err(TraceError::Continued)
            }
            None => Err(TraceError::Continued),
        };
    }
    ptrace::interrupt(tid)?;
    let mut stops = 1;
    let group_stopped = loop {
        let stop = process::wait_until(tid, deadline).map_err(TraceError::waiting)?;
        let stop = stop.ok_or(TraceError::Late)?;
        fault::at(fault::Point::Stop);
        match stop {
            Wait::Interrupted => break false,
            Wait::GroupStop(_) => break true,
            Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
            // A signal that came first is taken first. Any stop uses the interruption up (`ptrace_stop` in
            // `kernel/signal.c`), so request another one.
            Wait::Signal(signal) => {
                ptrace::interrupt(tid)?;
                ptrace::resume(tid, Resume::Run, signal)?;
                stops += 1;
            }
            // The new program may have privileges that the old one had not. Do not even examine it.
            Wait::ExecEvent => {
                ptrace::resume(tid, Resume::Detach, 0)?;
                return Err(TraceError::Changed);
            }
            Wait::SyscallStop | Wait::Event(_) => {
                ptrace::interrupt(tid)?;
                ptrace::resume(tid, Resume::Run, 0)?;
                stops += 1;
            }
        }
    };
    Ok(Stopped { stops, ..looked(tid, memory, group_stopped, asleep_in)? })
}

/// [Looks](look) at the thread. Lets it go if it is foreign.
fn looked(
    tid: Pid,
    memory: &Memory,
    group_stopped: bool,
    asleep_in: Option<AsleepIn>,
) -> Result<Stopped, TraceError> {
    let seen = look(tid, memory, group_stopped, asleep_in);
    if matches!(seen, Err(TraceError::Foreign)) {
        // Detach the thread with its present registers, because not all of them could be restored.
        ptrace::resume(tid, Resume::Detach, 0)?;
    }
    seen
}

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// [`TraceError::Foreign`]; [`TraceError::Gone`].
pub fn registers(tid: Pid) -> Result<Registers, TraceError> {
    let registers =
        ptrace::registers(tid)?.filter(|registers| !arch::are_of_another_abi(registers));
    let registers = registers.ok_or(TraceError::Foreign)?;
    // The meaning of number and arguments depends on the ABI of the call.
    if ptrace::syscall_architecture(tid)? != arch::AUDIT_ARCH {
        return Err(TraceError::Foreign);
    }
    Ok(registers)
}

/// The system call in which a thread sleeps, as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AsleepIn {
    number: i64,
    args: [u64; 6],
    /// How often the thread has [slept](tiexec_core::proc::status::Status::slept), this time included.
    times: u64,
}

/// Examines a thread that has just stopped. `asleep_in` is the call in which it slept before, if its registers do
/// not show it.
pub(crate) fn look(
    tid: Pid,
    memory: &Memory,
    group_stopped: bool,
    asleep_in: Option<AsleepIn>,
) -> Result<Stopped, TraceError> {
    let since = Instant::now();
    let mut registers = registers(tid)?;
    let sight = if arch::CALLS_ARE_SEEN { None } else { sight(memory, &registers, asleep_in) };
    let mut interruption = arch::interruption(&registers, sight.as_ref());
    let (mut shown, mut waits_again) = (interruption == Interruption::Shown, None);
    if shown && let Some((call, repeat)) = repeated(tid, &registers, interruption, asleep_in) {
        // If a signal is pending at the end, the kernel lets the thread see the interruption. Otherwise it makes
        // the call again.
        arch::mark_restartable(&mut registers, call.args[0]);
        waits_again = (repeat == Repeat::WithTimeout).then_some(call.number);
        interruption = Interruption::Again;
        shown = false;
    }
    let untouched = registers;
    let home = after_restartable_sequence(tid, memory, registers)?;
    let dispatches = ptrace::syscalls_are_dispatched(tid)?;
    let registers = home;
    Ok(Stopped {
        tid,
        since,
        stops: 1,
        group_stopped,
        registers,
        untouched,
        interruption,
        shown,
        waits_again,
        dispatches,
    })
}

/// Returns the system call in which the thread sleeps, if its registers will not show it.
pub(crate) fn sleeps_in(tid: Pid) -> Option<AsleepIn> {
    if arch::CALLS_ARE_SEEN {
        return None;
    }
    let times = times_slept(tid)?;
    let text = ProcDir::of(tid).ok()?.read("syscall").ok()?;
    match syscall::parse(&text) {
        Ok(Doing::Call { number, args }) => {
            Some(AsleepIn { number: i64::try_from(number).ok()?, args, times })
        }
        _ => None,
    }
}

fn times_slept(tid: Pid) -> Option<u64> {
    Some(ProcDir::of(tid).ok()?.status().ok()?.slept)
}

/// Returns the facts about a stopped thread beside its registers.
fn sight(memory: &Memory, registers: &Registers, asleep_in: Option<AsleepIn>) -> Option<Sight> {
    let mut code = [0; 2 * arch::INSTRUCTION];
    let from = arch::program_counter(registers).checked_sub(arch::INSTRUCTION as u64)?;
    memory.read(from, &mut code).ok()?;
    Some(Sight { code, asleep_in: asleep_in.map(|call| call.number) })
}

/// Makes sure that the thread does not violate `filters` when it is let go.
///
/// The kernel makes an interrupted call again under the present filters. It makes a call with a remaining time as
/// another call (`restart_syscall`), which the author of a filter may have forgotten. If that call is not allowed,
/// the thread makes its own call again from the beginning, with all of its time. If that is not allowed either, the
/// call returns EINTR.
pub fn restart_within(filters: &Filters, stopped: &mut Stopped) {
    let registers = &stopped.registers;
    let Some(number) = arch::call_number(registers, stopped.interruption) else { return };
    let allow = |number, args: [u64; 6]| {
        filters.allow(&Call { number, args }, arch::program_counter(registers).get())
    };
    // The kernel has allowed this call once.
    let itself =
        || matches!(filters, Filters::Unknown(_)) || allow(number, arch::call_arguments(registers));
    let ended = || (arch::call_ended(registers), Interruption::Shown, true);
    let changed = match stopped.interruption {
        Interruption::WithRemainingTime
            if !allow(c::SYS_restart_syscall, arch::call_arguments(registers)) =>
        {
            if itself() {
                (arch::call_again(registers), Interruption::None, stopped.shown)
            } else {
                ended()
            }
        }
        Interruption::Again if !itself() => ended(),
        _ => return,
    };
    (stopped.registers, stopped.interruption, stopped.shown) = changed;
    stopped.waits_again = None;
    // A thread in a system call is in no restartable sequence, so both register sets are the same.
    stopped.untouched = stopped.registers;
}

/// Lets the thread go on as if it had not been stopped. Its program counter stays unchanged, because the kernel
/// itself aborts a restartable sequence then.
///
/// # Errors
/// [`TraceError::Gone`].
pub fn let_go(stopped: &Stopped) -> Result<(), TraceError> {
    ptrace::set_registers(stopped.tid, &stopped.untouched)?;
    ptrace::resume(stopped.tid, Resume::Detach, 0)?;
    Ok(())
}

/// Lets a thread go that may belong to another program by now. Changes nothing in it.
///
/// # Errors
/// [`TraceError::Gone`].
pub fn drop_untouched(stopped: &Stopped) -> Result<(), TraceError> {
    ptrace::resume(stopped.tid, Resume::Detach, 0)?;
    Ok(())
}

/// The outcome of a wait that the kernel makes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// The thread sleeps in it, and has [slept](tiexec_core::proc::status::Status::slept) so often, this time included.
    Asleep(u64),
    /// It ended at once.
    Over,
    /// It was not seen.
    Unseen,
}

/// Watches a thread whose wait [begins again](Stopped::waits_again), after the end of its session and at most until `deadline`.
/// The thread is not seen asleep if it has returned from the call since.
///
/// The thread is detached when the calling thread ends, and the kernel does not disturb its sleep then
/// (`__ptrace_unlink`, `kernel/ptrace.c`). To detach it earlier would take a stop, which would interrupt the call again.
pub fn watch_wait(stopped: &Stopped, deadline: Instant) -> Again {
    const FIRST: Duration = Duration::from_micros(10);
    const LONGEST: Duration = Duration::from_millis(1);
    let tid = stopped.tid;
    let (Some(call), Ok(process)) = (stopped.watched(), ProcDir::of(tid)) else {
        return Again::Unseen;
    };
    let mut pause = FIRST;
    loop {
        // The kernel shows the call only of a thread that no processor runs. So the count of sleeps has this one.
        let slept = (threads::call_of(&process, tid) == Some(call))
            .then(|| threads::alive(&process, tid))
            .flatten()
            .map(|status| status.slept);
        match process::wait_until(tid, Instant::now()) {
            Ok(None) => {}
            Ok(Some(stop)) => {
                let signal = if let Wait::Signal(signal) = stop { signal } else { 0 };
                let _gone = ptrace::resume(tid, Resume::Detach, signal);
                return Again::Over;
            }
            // It was detached already, before its call, or has ended.
            Err(_) => return Again::Over,
        }
        match slept {
            Some(slept) => return Again::Asleep(slept),
            None if Instant::now() >= deadline => return Again::Unseen,
            None => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

/// Returns the call that the registers are in, if it may be made again, and what the thread notices then.
fn repeated(
    tid: Pid,
    registers: &Registers,
    interruption: Interruption,
    asleep_in: Option<AsleepIn>,
) -> Option<(Call, Repeat)> {
    let number = arch::call_number(registers, interruption)?;
    let mut args = arch::call_arguments(registers);
    if !arch::CALLS_ARE_SEEN {
        // The result has overwritten the first argument. The argument that was read before is valid if the thread
        // has slept only once since, in the stop, because it did not run in between then.
        let asleep_in = asleep_in?;
        args[0] = asleep_in.args[0];
        let same = number == asleep_in.number && args == asleep_in.args;
        if !same || times_slept(tid)? != asleep_in.times + 1 {
            return None;
        }
    }
    let process = ProcDir::of(tid).ok()?;
    let repeat = interrupted::repeat(&process, number, &args)?;
    Some((Call { number, args }, repeat))
}

/// Returns the registers with which the thread must go on. If the thread is inside a restartable sequence
/// (rseq(2)), these abort the sequence, as the kernel does when it preempts a thread. Once other registers are
/// installed, the kernel cannot see the sequence any more, and the thread would commit it although other threads
/// had run.
fn after_restartable_sequence(
    tid: Pid,
    memory: &Memory,
    mut registers: Registers,
) -> Result<Registers, TraceError> {
    let Rseq { area } = ptrace::rseq(tid)?.ok_or(TraceError::RseqUntold)?;
    if area == 0 {
        return Ok(registers);
    }
    // struct rseq: cpu_id_start, cpu_id, rseq_cs.
    let Ok([sequence]) = memory.words(RemoteAddr::new(area.wrapping_add(8))) else {
        return Ok(registers);
    };
    if sequence == 0 {
        return Ok(registers);
    }
    // struct rseq_cs: version and flags, start_ip, post_commit_offset, abort_ip.
    let Ok([_, start, len, abort]) = memory.words(RemoteAddr::new(sequence)) else {
        return Ok(registers);
    };
    let at = arch::program_counter(&registers).get();
    if at.wrapping_sub(start) < len {
        arch::set_program_counter(&mut registers, RemoteAddr::new(abort));
    }
    Ok(registers)
}

/// Returns the ground on which frames may lie for a stopped thread: the stack below its stack pointer. The stack
/// must be one that the kernel or a C library made for a thread to use downwards. Returns `None` for any other,
/// such as a goroutine's, below which other data may lie.
pub fn frame_ground(
    snapshot: &Snapshot,
    target: &Target,
    stopped: &Stopped,
) -> Option<(RemoteAddr, AddrRange)> {
    let top = arch::below_red_zone(&stopped.registers)?;
    let at = arch::stack_pointer(&stopped.registers);
    let stack = snapshot.vma_at(at).filter(|vma| vma.perms.write && !vma.perms.shared)?;
    let own = if stack.name == b"[stack]" && stopped.tid == target.pid {
        stack.range
    } else {
        thread_stack(snapshot, &target.space, stopped, stack.range)?
    };
    let used = AddrRange::new(RemoteAddr::new(at.get() & !7), own.end())?;
    let lowest = lowest_of_alternate_stacks(target.space.memory(), used)?;
    Some((top, AddrRange::new(lowest.map_or(own.start(), |at| at.max(own.start())), own.end())?))
}

/// Returns the lowest address of the alternate signal stack (sigaltstack(2)) that a thread is on; `Some(None)` if it is on
/// none. A program may have such a stack in a local variable or in TLS, with other data below it. `used` is what the
/// thread has used of its stack, from the stack pointer up. `None` if that cannot be read.
///
/// The kernel writes the alternate stack into each signal frame (`__save_altstack`, kernel/signal.c): `uc_flags`, `uc_link`,
/// `ss_sp`, `ss_flags` and `ss_size`. Any words that look so count, because a ground that is too small does no harm.
fn lowest_of_alternate_stacks(memory: &Memory, used: AddrRange) -> Option<Option<RemoteAddr>> {
    /// The sizes of the alternate stacks that are looked for, in bytes: from `MINSIGSTKSZ` up. A local variable is hardly
    /// larger.
    const SIZES: RangeInclusive<u64> = 2048..=1 << 20;
    const WORD: u64 = 8;
    /// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS`; aarch64 has none.
    const UC_FLAGS: u64 = 7;
    let len = usize::try_from(used.len().min(*SIZES.end())).ok()?;
    let mut bytes = vec![0; len];
    memory.read(used.start(), &mut bytes).ok()?;
    let at = used.start().get();
    let is_around =
        |start: u64, len: u64, at: u64| at.checked_sub(start).is_some_and(|into| into < len);
    let words = |words: &[[u8; 8]]| -> Option<[u64; 5]> {
        Some(<[[u8; 8]; 5]>::try_from(words).ok()?.map(u64::from_ne_bytes))
    };
    let bottoms = bytes.as_chunks().0.windows(5).enumerate().filter_map(|(index, bytes)| {
        let [flags, link, start, _, len] = words(bytes)?;
        let frame = at + index as u64 * WORD;
        (flags <= UC_FLAGS
            && link == 0
            && SIZES.contains(&len)
            && is_around(start, len, at)
            && is_around(start, len, frame))
        .then(|| RemoteAddr::new(start))
    });
    Some(bottoms.max())
}

/// Returns the part of the mapping `within` that glibc or musl made this thread's stack, up to the thread's control
/// block. Such a stack has the block at its top, above the stack pointer. The block has a word that holds its own
/// address. A guard lies below the stack.
fn thread_stack(
    snapshot: &Snapshot,
    space: &AddressSpace,
    stopped: &Stopped,
    within: AddrRange,
) -> Option<AddrRange> {
    let at = arch::stack_pointer(&stopped.registers);
    let control_block = arch::thread_pointer(stopped.tid, &stopped.registers).ok()?;
    if !within.contains(control_block) || control_block <= at {
        return None;
    }
    const WORD: usize = size_of::<u64>();
    let lowest = control_block.get().saturating_sub(arch::CONTROL_BLOCK_BELOW);
    let from = lowest.max(within.start().get());
    let mut words = vec![0; (control_block.get() - from) as usize + WORD];
    space.memory().read(RemoteAddr::new(from), &mut words).ok()?;
    let mut words = (from..).step_by(WORD).zip(words.chunks_exact(WORD));
    if !words.any(|(at, word)| word == at.to_ne_bytes()) {
        return None;
    }
    let pages = snapshot.pages;
    // Stacks whose guards are not mappings may be joined into one mapping.
    let guards =
        guards(space.pagemap(), AddrRange::new(within.start(), control_block)?, pages.base)?;
    if let Some(&last) = guards.last() {
        let below = last < at;
        return AddrRange::new(last.checked_add(pages.base.bytes())?, control_block)
            .filter(|_| below);
    }
    let guarded =
        snapshot.vmas.iter().any(|vma| vma.range.end() == within.start() && vma.perms.is_none());
    AddrRange::new(within.start(), control_block).filter(|_| guarded)
}

/// Returns the guards inside a mapping (`MADV_GUARD_INSTALL`), ascending; `None` if they cannot be read.
fn guards(pagemap: &File, range: AddrRange, base: PageSize) -> Option<Vec<RemoteAddr>> {
    /// The longest range that is searched while a thread is stopped, in bytes.
    const LONGEST: u64 = 256 << 20;
    const WORD: u64 = 8;
    let range = range.align_inward(base).filter(|range| range.len() <= LONGEST)?;
    let mut bytes = vec![0; usize::try_from(range.len() / base.bytes() * WORD).ok()?];
    pagemap.read_exact_at(&mut bytes, range.start().get() / base.bytes() * WORD).ok()?;
    let words = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
    let at = |index: usize| range.start().checked_add(index as u64 * base.bytes());
    Some(words.enumerate().filter(|(_, word)| is_guard(*word)).filter_map(|(i, _)| at(i)).collect())
}

/// Begins a session in the stopped thread, whose status is `now`. The frames lie on the thread's stack.
///
/// # Errors
/// A [`Refusal`], also if the stack cannot hold frames; a [`TraceError`]. The thread is stopped and unchanged.
/// [`TraceError::Changed`] if the target's address space is not that of the thread.
pub fn begin(
    snapshot: &Snapshot,
    target: &Target,
    gadgets: Gadgets,
    stopped: &Stopped,
    now: &Status,
    permission: Permission,
) -> Result<Result<Session, Refusal>, TraceError> {
    if stopped.interruption == Interruption::Unknown {
        return Ok(Err(Refusal::InACall));
    }
    let Some((top, within)) = frame_ground(snapshot, target, stopped) else {
        return Ok(Err(Refusal::StackRoom));
    };
    let home = arch::after_a_signal(&stopped.registers, stopped.interruption);
    let ground = Ground { top: Some(top), within };
    Session::lay(stopped.tid, target.space.memory(), gadgets, permission, home, ground, Some(now))
}
