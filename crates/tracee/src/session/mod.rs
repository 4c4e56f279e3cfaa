//! Self-restoring remote system calls.
//!
//! If the tracer died during a remote call, an ordinary tracee would be lost: it would run on with the tracer's
//! registers. TiExec prevents this. Before the first call it lays a *chain* of signal frames below the tracee's
//! stack pointer, and every register set that it gives the tracee returns into that chain:
//!
//! ```text
//!   call gadget: syscall; ret ──► frame: undo 2 ──► … ──► frame: undo 1 ──► home frame
//! ```
//!
//! Each frame is entered by `rt_sigreturn` and makes one system call that releases something: it closes a
//! descriptor, unmaps a staging area, or reaps the helper. The last frame restores every register, the extended
//! state and the signal mask. The chain is thus an undo log that the tracee executes itself. A session ends
//! normally by the same way home as after the tracer's death, so there is only one path to test.
//!
//! # Invariants
//!
//! - Frames to which the tracee's current registers lead are never rewritten. A changed chain is laid in the other
//!   of two slots, and only the next register set points there.
//! - The signal mask is changed only while a register set is installed that leads home.

mod batch;
mod complete;
mod descriptors;
mod identity;
mod undo;

use std::fmt;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::proc::status::Status;
use tiexec_sys::address_space::Memory;
use tiexec_sys::process::{self, Wait};
use tiexec_sys::ptrace::{self, Extended, Registers, Resume, SyscallStop};
use tiexec_sys::{Errno, Pid, SysError, c};

use crate::arch::{self, Call, ExtendedState, Gadgets};
use crate::error::TraceError;
use crate::fault;
use crate::remote::SystemCall;
use crate::syscall_manifest::{ManifestEntry, Permission};

use self::batch::Ending;
pub use self::batch::MAX_BATCH;
pub use self::descriptors::DESCRIPTOR_CALLS;

/// The most undo steps that a chain can hold.
const MAX_RELEASES: usize = 10;
/// SIGCHLD, as a bit of a signal mask.
const CHILD: u64 = 1 << (c::SIGCHLD - 1);
/// Room for strings to which calls point, in bytes.
pub const SCRATCH_LEN: u64 = 256;
/// Room for data to which a release points, in bytes.
const KEPT_LEN: u64 = 128;

/// Why no session can begin. The tracee is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The stack has too little room for the frames, or is not one on which frames may lie.
    StackRoom,
    /// Extended registers in use that a frame cannot carry.
    RegisterState,
    /// The thread has a shadow stack, which would not let it go home.
    ShadowStack,
    /// The thread may be in a system call, on an architecture where the registers do not show which.
    InACall,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StackRoom => {
                "a thread that could be stopped was on a stack that is not known, or full"
            }
            Self::RegisterState => "it uses registers that no frame can carry",
            Self::ShadowStack => "it has a shadow stack",
            Self::InACall => "a thread that could be stopped was in a system call",
        })
    }
}

/// The place where frames may lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ground {
    /// The address below which the frames lie; `None` if there is no such address.
    pub top: Option<RemoteAddr>,
    /// The writable VMA in which the frames lie.
    pub within: AddrRange,
}

/// Counters of a session's remote calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Remote system calls, including those on the way home.
    pub calls: u32,
}

/// A tracee in syscall-exit-stop that makes calls for TiExec.
#[derive(Debug)]
#[must_use = "a session ends by going home"]
pub struct Session {
    pid: Pid,
    /// The process's ID in its own PID namespace, if known.
    own_id: Option<u32>,
    memory: Memory,
    /// True if the tracee did something unexpected. TiExec detached from it then, and writes nothing more to it.
    lost: bool,
    /// The time at which the tracee is given up if it has not reached the next stop; `None` for never.
    until: Option<Instant>,
    gadgets: Gadgets,
    permission: Permission,
    home: Registers,
    /// The signals that are blocked while the tracee follows the chain.
    chain_mask: u64,
    /// The signal mask of home.
    home_mask: u64,
    /// The extended registers of home.
    extended: Extended,
    /// The same registers as frames hold them. The next field is the address of the part that is not in the frame.
    state: ExtendedState,
    apart: RemoteAddr,
    /// The address of eight bytes of zero.
    zeroes: RemoteAddr,
    /// Two places for a chain and the home frame at its end.
    slots: [RemoteAddr; 2],
    kept: RemoteAddr,
    scratch: RemoteAddr,
    /// The undo steps; the last is made first.
    releases: Vec<Call>,
    /// The beginning of the chain for `releases`, once laid.
    chain: Option<RemoteAddr>,
    current_slot: usize,
    masked: bool,
    /// True if calls are made even while the process is stopped by a signal.
    while_stopped: bool,
    /// The means to end a batch; `None` if batches are not allowed.
    ending: Option<Ending>,
    /// How many calls of a batch a slot has room for.
    batch_room: usize,
    /// True if the signal that ends batches is not blocked.
    signal_is_open: bool,
    /// True if the tracee is stopped where it takes signals. There the kernel checks for an interrupted call to
    /// restart.
    takes_signals: bool,
    counts: Counts,
}

impl Session {
    /// Lays the frames on the tracee's stack. The tracee must be in syscall-exit-stop, or where a signal would be
    /// taken. It will go on with the registers `home`, whose stack pointer is inside `stack`: a writable VMA that
    /// nothing else uses below the pointer. (The initial stack right after exec is such a VMA; a goroutine's is
    /// not.)
    ///
    /// `lets_child_in` says whether SIGCHLD may come on the way home; all other signals are blocked there. The
    /// blocked signals are unchanged until the first call. `last_release` is the last step before home: it reaps
    /// this process. `memory` is that of the tracee since its exec.
    ///
    /// # Errors
    /// A [`Refusal`] or a [`TraceError`]. The tracee's registers and mask are unchanged.
    pub fn begin(
        pid: Pid,
        memory: &Memory,
        gadgets: Gadgets,
        home: Registers,
        stack: AddrRange,
        lets_child_in: bool,
        last_release: SystemCall,
    ) -> Result<Result<Self, Refusal>, TraceError> {
        let top = arch::below_red_zone(&home);
        let ground = Ground { top, within: stack };
        let begun = Self::lay(pid, memory, gadgets, Permission::all(), home, ground, None)?;
        Ok(begun.map(|mut session| {
            session.batch_room = 0;
            if lets_child_in {
                session.chain_mask = !CHILD;
            }
            session.releases.push(last_release.call);
            session.while_stopped = false;
            session
        }))
    }

    /// Lays the frames of a tracee that was stopped at any point. `now` is its status, if it was read since. `home`
    /// are the registers with which the tracee must go on if this process dies: those with which a signal handler's
    /// return would leave it. The session begins without releases. `permission` has all calls that the session will
    /// make. All reads and writes use `memory`.
    ///
    /// # Errors
    /// A [`Refusal`] or a [`TraceError`]. The tracee's registers and mask are unchanged. [`TraceError::Changed`] if
    /// `memory` is not that of the tracee.
    pub fn lay(
        pid: Pid,
        memory: &Memory,
        gadgets: Gadgets,
        permission: Permission,
        home: Registers,
        ground: Ground,
        now: Option<&Status>,
    ) -> Result<Result<Self, Refusal>, TraceError> {
        let Ground { top, within } = ground;
        let mask = ptrace::signal_mask(pid)?;
        if arch::has_shadow_stack(pid, now)? {
            return Ok(Err(Refusal::ShadowStack));
        }
        for (set, in_use) in arch::OBSTACLES {
            if ptrace::register_set(pid, *set)?.is_some_and(|registers| in_use(&registers)) {
                return Ok(Err(Refusal::RegisterState));
            }
        }
        let extended = ptrace::extended_registers(pid)?;
        let Some(state) = arch::extended_state(&extended) else {
            return Ok(Err(Refusal::RegisterState));
        };
        // Zeroes follow it, for calls that point at zeroes.
        let mut xstate = state.apart.clone();
        xstate.resize(xstate.len().next_multiple_of(8), 0);
        let zeroes = xstate.len() as u64;
        xstate.extend([0; 8]);

        // The layout, from high to low: extended state (64-byte aligned, as XRSTOR requires), two slots for the
        // chain with its home frame, data for releases, scratch. If the stack is small, there is no room for
        // batches.
        let layout = |batch_room: usize| {
            let slot_len =
                arch::FRAME_LEN * (batch_room + MAX_RELEASES) as u64 + arch::home_frame_len(&state);
            let top = top?.checked_sub(xstate.len() as u64)?;
            let xstate = RemoteAddr::new(top.get() & !63);
            let first = RemoteAddr::new(xstate.checked_sub(slot_len)?.get() & !15);
            let second = RemoteAddr::new(first.checked_sub(slot_len)?.get() & !15);
            let kept = second.checked_sub(KEPT_LEN)?;
            let scratch = kept.checked_sub(SCRATCH_LEN)?;
            let used = AddrRange::new(scratch, top)?;
            within.covers(used).then_some((batch_room, xstate, [first, second], kept, scratch))
        };
        let laid = layout(MAX_BATCH).or_else(|| layout(0));
        let Some((batch_room, xstate_at, slots, kept, scratch)) = laid else {
            return Ok(Err(Refusal::StackRoom));
        };
        identity::check(pid, memory, scratch)?;
        memory.write(xstate_at, &xstate)?;
        Ok(Ok(Self {
            pid,
            own_id: now.and_then(|now| now.ns_tgid),
            memory: memory.clone(),
            lost: false,
            until: None,
            gadgets,
            permission,
            home,
            chain_mask: !0,
            home_mask: mask,
            extended,
            state,
            apart: xstate_at,
            zeroes: RemoteAddr::new(xstate_at.get() + zeroes),
            slots,
            kept,
            scratch,
            releases: Vec::new(),
            chain: None,
            current_slot: 0,
            masked: false,
            while_stopped: true,
            ending: None,
            batch_room,
            signal_is_open: false,
            takes_signals: false,
            counts: Counts::default(),
        }))
    }

    /// Makes the tracee make a call, and returns the kernel's answer. Signals stay pending. A SIGSTOP takes effect,
    /// and the call is made after SIGCONT.
    ///
    /// # Errors
    /// The tracee is gone, or on its way home.
    pub fn call(&mut self, call: SystemCall) -> Result<Result<u64, SysError>, TraceError> {
        let SystemCall { name, call } = call;
        let answer = if fault::fails_call() { Err(Errno::NOMEM) } else { self.make(call)? };
        Ok(answer.map_err(|errno| SysError { call: name, errno }))
    }

    /// Makes a call or a release.
    fn make(&mut self, call: Call) -> Result<Result<u64, Errno>, TraceError> {
        self.enter(call)?;
        let returned = self.run_to(|stop| match stop {
            SyscallStop::Exit(value) => Some(value),
            _ => None,
        })?;
        Ok(answer(returned))
    }

    /// Makes a call, and interrupts it if it takes longer than `patience`. It then returns what it has done, or
    /// ERESTARTSYS.
    fn make_within(
        &mut self,
        call: Call,
        patience: Duration,
    ) -> Result<Result<u64, Errno>, TraceError> {
        /// How long an interrupted call takes at most to end.
        const TO_END: Duration = Duration::from_secs(10);
        self.enter(call)?;
        let soon = Instant::now() + patience;
        let stop = match resume_to_syscall(self.pid, self.while_stopped, Some(soon)) {
            Err(TraceError::Late) => {
                ptrace::interrupt(self.pid)?;
                match next_stop(self.pid, Some(soon + TO_END)) {
                    Ok(Wait::SyscallStop) => {
                        ptrace::syscall_stop(self.pid).map_err(TraceError::from)
                    }
                    Ok(other) => Err(TraceError::Unexpected(other)),
                    Err(error) => Err(error),
                }
            }
            stop => stop,
        };
        match self.or_lose(stop)? {
            SyscallStop::Exit(value) => Ok(answer(value)),
            _ => self.or_lose(Err(TraceError::Unexpected(Wait::SyscallStop))),
        }
    }

    /// Sends the tracee into a call, and waits until it has entered it.
    fn enter(&mut self, call: Call) -> Result<(), TraceError> {
        debug_assert!(self.permission.covers(&call), "{call:?} is not in the manifest");
        let chain = self.lay_chain()?;
        self.install(arch::aim_at_call(&self.home, self.gadgets, &call, chain))?;
        self.counts.calls += 1;
        self.run_to(self.entry_of(&call))
    }

    /// Writes `bytes`, at most 256, to an address for the next call to point at. Returns the address.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn scratch(&self, bytes: &[u8]) -> Result<RemoteAddr, TraceError> {
        debug_assert!(bytes.len() as u64 <= SCRATCH_LEN, "scratch holds 256 bytes");
        self.write(self.scratch, bytes)?;
        Ok(self.scratch)
    }

    /// Writes `bytes`, at most 128 and once only, to an address for releases to point at, for the rest of the
    /// session. Returns the address.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn keep(&self, bytes: &[u8]) -> Result<RemoteAddr, TraceError> {
        debug_assert!(bytes.len() as u64 <= KEPT_LEN, "there is room for 128 bytes");
        self.write(self.kept, bytes)?;
        Ok(self.kept)
    }

    /// Fills all of `buffer` from address `addr` of the tracee.
    ///
    /// # Errors
    /// EFAULT; the tracee is gone.
    pub fn read(&self, addr: RemoteAddr, buffer: &mut [u8]) -> Result<(), TraceError> {
        Ok(self.memory.read(addr, buffer)?)
    }

    /// Writes all of `bytes` to address `addr` of the tracee, if the tracee itself may write there.
    ///
    /// # Errors
    /// EFAULT; the tracee is gone.
    pub fn write(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<(), TraceError> {
        self.memory.write(addr, bytes)?;
        fault::at(fault::Point::Write);
        Ok(())
    }

    /// Returns the address of eight bytes of zero, valid for the rest of the session.
    pub fn zeroes(&self) -> RemoteAddr {
        self.zeroes
    }

    /// Returns the gadgets through which the tracee makes calls.
    pub fn gadgets(&self) -> Gadgets {
        self.gadgets
    }

    /// Returns whether an optional call may be made.
    pub fn may(&self, call: &ManifestEntry) -> bool {
        self.permission.has(call)
    }

    /// Returns the tracee's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the stack pointer of home. At an exec stop it points at `argc`.
    pub fn stack_pointer(&self) -> RemoteAddr {
        arch::stack_pointer(&self.home)
    }

    /// Returns the program counter of home. At an exec stop it is the program's first instruction.
    pub fn program_counter(&self) -> RemoteAddr {
        arch::program_counter(&self.home)
    }

    /// Returns the counts as they will be when the tracee is home.
    pub fn counts(&self) -> Counts {
        let on_the_way = u32::try_from(self.releases.len()).unwrap_or(0);
        Counts { calls: self.counts.calls + on_the_way }
    }

    fn install(&mut self, registers: Registers) -> Result<(), TraceError> {
        self.stands()?;
        ptrace::set_registers(self.pid, &registers)?;
        fault::at(fault::Point::SetRegisters);
        if !self.masked {
            // From here on the installed registers lead home, and the home frame restores the mask.
            ptrace::set_signal_mask(self.pid, !0)?;
            fault::at(fault::Point::SetMask);
            self.masked = true;
        }
        Ok(())
    }

    /// Accepts only the entry of this very call, made through the gadget. Another thread may have rewritten the
    /// gadget or the frames, and the answer of another call means nothing.
    fn entry_of(&self, call: &Call) -> impl FnOnce(SyscallStop) -> Option<()> + use<> {
        let (call, after) = (*call, arch::after_call(self.gadgets).get());
        move |stop| match stop {
            SyscallStop::Entry { number, args, next } => {
                let same = i64::try_from(number) == Ok(call.number) && args == call.args;
                (same && next == after).then_some(())
            }
            _ => None,
        }
    }

    /// Gives the tracee up if the session does not end within `patience`, because another thread of a hostile
    /// process may make it run anything. The tracee is detached when the calling thread ends, and goes home by
    /// itself if it still can.
    pub fn limit(&mut self, patience: Duration) {
        self.until = Some(Instant::now() + patience);
    }

    /// Makes sure that the tracee is still stopped where the session left it.
    fn stands(&self) -> Result<(), TraceError> {
        if self.lost { Err(TraceError::Changed) } else { Ok(()) }
    }

    /// Resumes the tracee until its next syscall-stop, which must be one that `wanted` accepts. At any other stop,
    /// detaches from the tracee: it runs code that the session did not lay, perhaps of another program.
    fn run_to<T>(
        &mut self,
        wanted: impl FnOnce(SyscallStop) -> Option<T>,
    ) -> Result<T, TraceError> {
        self.stands()?;
        self.takes_signals = false;
        let stop = resume_to_syscall(self.pid, self.while_stopped, self.until)
            .and_then(|stop| wanted(stop).ok_or(TraceError::Unexpected(Wait::SyscallStop)));
        self.or_lose(stop)
    }

    /// Detaches from a tracee that did not reach the point to which it was sent.
    fn or_lose<T>(&mut self, came: Result<T, TraceError>) -> Result<T, TraceError> {
        if came.is_err() {
            self.lost = true;
            let _gone = ptrace::resume(self.pid, Resume::Detach, 0);
        }
        came
    }
}

/// Returns what a system call has returned. The kernel's convention: −4095..=−1 is an error.
fn answer(returned: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&returned) {
        Err(Errno(i32::try_from(-returned).unwrap_or(0)))
    } else {
        Ok(returned.cast_unsigned())
    }
}

/// Waits for the tracee's next stop.
///
/// # Errors
/// [`TraceError::Late`] after `until`.
fn next_stop(pid: Pid, until: Option<Instant>) -> Result<Wait, TraceError> {
    let stop = match until {
        Some(until) => process::wait_until(pid, until).map_err(TraceError::waiting)?,
        None => Some(process::wait_polling(pid).map_err(TraceError::waiting)?),
    };
    stop.ok_or(TraceError::Late)
}

/// Resumes the tracee until its next syscall-stop. Lets signals and group-stops take effect.
pub(crate) fn resume_to_syscall(
    pid: Pid,
    while_stopped: bool,
    until: Option<Instant>,
) -> Result<SyscallStop, TraceError> {
    let is_syscall = |stop| (stop == Wait::SyscallStop).then_some(());
    resume_until(pid, (Resume::ToSyscall, 0), while_stopped, until, is_syscall)?;
    Ok(ptrace::syscall_stop(pid)?)
}

/// Resumes the tracee, in this way and with this signal, until a stop for which `reached` returns a value. Other
/// signals and group-stops take effect.
fn resume_until<T>(
    pid: Pid,
    (way, signal): (Resume, i32),
    while_stopped: bool,
    until: Option<Instant>,
    reached: impl Fn(Wait) -> Option<T>,
) -> Result<T, TraceError> {
    let (mut how, mut signal) = (way, signal);
    loop {
        ptrace::resume(pid, how, signal)?;
        let stop = next_stop(pid, until)?;
        fault::at(fault::Point::Stop);
        if let Some(reached) = reached(stop) {
            return Ok(reached);
        }
        (how, signal) = match stop {
            Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
            Wait::Signal(signal) => (way, signal),
            // A process held at its exec stop stays stopped until SIGCONT. A process that is attached to was
            // stopped before, and will be again once it is let go.
            Wait::GroupStop(_) if while_stopped => (way, 0),
            Wait::GroupStop(_) => (Resume::Listen, 0),
            Wait::Interrupted => (way, 0),
            Wait::ExecEvent => return Err(TraceError::Changed),
            other => return Err(TraceError::Unexpected(other)),
        };
    }
}
