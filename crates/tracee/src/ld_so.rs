//! Follows a program from the exec stop until `ld.so` is done: it has mapped and relocated all shared
//! objects,
//! and no code of theirs has run.
//!
//! It is done when it has made the program's own RELRO read-only, for it relocates the program last
//! (`dl_main` in glibc's `elf/rtld.c`, `__dls3` in musl's `ldso/dynlink.c`). The program stops behind that
//! system call; without RELRO, behind one that somebody else makes. But each stop costs, from 8 µs to
//! 100 µs where a processor has to be woken, and `ld.so` makes hundreds of calls before it relocates. So
//! at first the program runs without stops, and is looked at from outside until it seems to have mapped
//! all it will; from then on it stops at each call.
//!
//! (A breakpoint at the entry point by perf_event_open(2) would be one stop, but the first perf event of
//! a machine makes the kernel wait for an RCU grace period, 10 to 30 ms: `account_event` in
//! `kernel/events/core.c`.)
//!
//! Where it stops, its system call has ended. If this process dies before, it does not stop.

use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_sys::address_space::Memory;
use tiexec_sys::process::{self, Wait};
use tiexec_sys::ptrace::{self, Resume, SyscallStop};
use tiexec_sys::{Errno, Pid, c};

use crate::arch::{self, Gadgets};
use crate::error::TraceError;
use crate::fault;
use crate::running;
use crate::session::{Counts, Session};
use crate::stopped::Stopped;

/// TiExec stops waiting for a program whose `ld.so` makes more calls than this.
const MOST_CALLS: u32 = 20_000;
/// TiExec also stops waiting if other code makes more calls than this, and the program can be stopped
/// behind none of them.
const MOST_BY_OTHERS: u32 = 100;

/// Calls behind which a thread can be stopped: they wait for nothing, and end as they would have.
const PROMPT: [i64; 8] = [
    c::SYS_mmap,
    c::SYS_mprotect,
    c::SYS_munmap,
    c::SYS_madvise,
    c::SYS_brk,
    c::SYS_prlimit64,
    c::SYS_rt_sigaction,
    c::SYS_rt_sigprocmask,
];

/// How soon it is looked at; later, after a sixteenth of what it has taken so far.
const FIRST_LOOK: Duration = Duration::from_micros(100);

/// How far `ld.so` has come, as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It maps objects.
    Mapping,
    /// It seems to have mapped all of them.
    Mapped,
    /// It is done, and the program runs.
    Done,
    /// The same, and it sleeps for long in a call that a stop would disturb.
    Missed,
}

/// A program on its way from the exec stop.
#[derive(Debug)]
pub struct LinkWatch {
    pid: Pid,
    memory: Memory,
    gadgets: Gadgets,
    /// `ld.so`'s text.
    linker: AddrRange,
    /// The beginning of the program's RELRO.
    relro: Option<RemoteAddr>,
}

/// The event that TiExec waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// `ld.so` seems to have mapped everything; the program runs freely until then.
    Mapping,
    /// The end of its last call: it stops at each.
    Calls,
    /// The same, and it is in that call.
    LastCall,
    /// The stop in which it can be worked on.
    Stop,
}

impl LinkWatch {
    /// Watches for it in a program that will go home from `session`; `linker` is where `ld.so` is
    /// mapped, `relro` the first page of the program's own RELRO.
    pub fn new(session: &Session, linker: AddrRange, relro: Option<RemoteAddr>) -> Self {
        let memory = session.memory().clone();
        Self { pid: session.pid(), memory, gadgets: session.gadgets(), linker, relro }
    }

    /// Has the program go home and waits until it stops, as long as `ld.so` takes. `None` if the moment
    /// did not come: it is to be left alone then. `look` says how far it seems to have come; without it, it
    /// stops at each call from the beginning, and never later than behind the last one.
    ///
    /// # Errors
    /// [`TraceError::Gone`] if it ends before, [`TraceError::LetGo`] if it execs before (it is
    /// detached then), [`TraceError::LostSight`] if another thread of it does.
    pub fn wait(
        self,
        session: Session,
        mut look: Option<impl FnMut() -> Progress>,
    ) -> Result<(Counts, Option<Stopped>), TraceError> {
        let pid = self.pid;
        let begun = Instant::now();
        let mut phase = if look.is_some() { Phase::Mapping } else { Phase::Calls };
        let counts = session.go_home_traced(how(phase))?;
        let (mut calls, mut asleep_in) = (0, None);
        loop {
            let stop = match phase {
                Phase::Mapping => process::wait_for(pid, FIRST_LOOK.max(begun.elapsed() / 16)),
                _ => process::wait_attentively(pid, None),
            };
            let stop = stop.map_err(|error| match error.errno {
                Errno::CHILD => TraceError::LostSight,
                _ => error.into(),
            })?;
            let Some(stop) = stop else {
                match look.as_mut().map(|look| look()) {
                    Some(Progress::Mapped | Progress::Done) => {
                        asleep_in = running::sleeps_in(pid);
                        ptrace::interrupt(pid)?;
                    }
                    // It cannot be stopped to be detached: the end of this process does that.
                    Some(Progress::Missed) => return Ok((counts, None)),
                    Some(Progress::Mapping) | None => {}
                }
                continue;
            };
            fault::at(fault::Point::Stop);
            let mut signal = 0;
            match stop {
                Wait::Interrupted if phase == Phase::Stop => {
                    return Ok((counts, Some(running::look(pid, &self.memory, false, None)?)));
                }
                Wait::Interrupted if phase == Phase::Mapping => {
                    match look.as_mut().map_or(Progress::Mapped, |look| look()) {
                        Progress::Done => {
                            return Ok((
                                counts,
                                Some(running::look(pid, &self.memory, false, asleep_in)?),
                            ));
                        }
                        Progress::Mapped => phase = Phase::Calls,
                        Progress::Mapping | Progress::Missed => {}
                    }
                }
                Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
                Wait::ExecEvent => {
                    ptrace::resume(pid, Resume::Detach, 0)?;
                    return Err(TraceError::LetGo);
                }
                Wait::SyscallStop => match ptrace::syscall_stop(pid)? {
                    SyscallStop::Entry { number, args, next } => {
                        let next = RemoteAddr::new(next);
                        let by_other = !self.linker.contains(next);
                        calls += if by_other { MOST_CALLS / MOST_BY_OTHERS } else { 1 };
                        if self.is_last(number, args, next) {
                            phase = Phase::LastCall;
                        } else if calls > MOST_CALLS {
                            ptrace::resume(pid, Resume::Detach, 0)?;
                            return Ok((counts, None));
                        }
                    }
                    _ if phase == Phase::LastCall => phase = Phase::Stop,
                    _ => {}
                },
                Wait::Signal(which) => signal = which,
                Wait::GroupStop(_) => {
                    ptrace::resume(pid, Resume::Listen, 0)?;
                    continue;
                }
                Wait::Interrupted | Wait::Event(_) => {}
            }
            if phase == Phase::Stop {
                // Each stop uses an interruption up.
                ptrace::interrupt(pid)?;
            }
            ptrace::resume(pid, how(phase), signal)?;
        }
    }

    /// Returns whether `ld.so` is done when this call has ended, which returns to `next`.
    fn is_last(&self, number: u64, args: [u64; 6], next: RemoteAddr) -> bool {
        let number = i64::try_from(number).unwrap_or(-1);
        let relro = self.relro.map(RemoteAddr::get);
        let is_ours = next == arch::after_call(self.gadgets);
        number == c::SYS_mprotect && Some(args[0]) == relro
            || PROMPT.contains(&number) && !is_ours && !self.linker.contains(next)
    }
}

/// How the program goes on.
const fn how(phase: Phase) -> Resume {
    match phase {
        Phase::Mapping | Phase::Stop => Resume::Run,
        Phase::Calls | Phase::LastCall => Resume::ToSyscall,
    }
}
