//! Follows a program from the exec stop until `ld.so` is done: until `ld.so` has mapped and relocated all shared
//! objects, and before any of their code runs.
//!
//! `ld.so` relocates the program last (`dl_main` in glibc's `elf/rtld.c`, `__dls3` in musl's `ldso/dynlink.c`), so
//! it is done when it has made the program's own RELRO read-only. The program is stopped behind that system call. A
//! program without RELRO is stopped behind a call that other code makes.
//!
//! Each stop costs from 8 µs to 100 µs, if a processor must be woken, and `ld.so` makes hundreds of calls before it
//! relocates. The program therefore runs without stops at first. TiExec polls it from outside until `ld.so` seems
//! to have mapped everything. From then on the program stops at each call.
//!
//! (A breakpoint at the entry point by perf_event_open(2) would need only one stop. But the first perf event of a
//! machine makes the kernel wait for an RCU grace period, 10 to 30 ms: `account_event` in `kernel/events/core.c`.)
//!
//! In the final stop, the system call has ended. If this process dies before, the program does not stop.

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
/// TiExec also stops waiting if other code makes more calls than this, and the program cannot be stopped behind any
/// of them.
const MOST_BY_OTHERS: u32 = 100;

/// Calls behind which a thread can be stopped, because they wait for nothing and are not interrupted.
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

/// The first poll comes after this time; each later one after a sixteenth of the time so far.
const FIRST_LOOK: Duration = Duration::from_micros(100);

/// The progress of `ld.so`, as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// `ld.so` maps objects.
    Mapping,
    /// `ld.so` seems to have mapped all of them.
    Mapped,
    /// `ld.so` is done, and the program runs.
    Done,
    /// As `Done`, but the program sleeps for long in a call that a stop would disturb.
    Missed,
}

/// Follows one program from its exec stop.
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
    /// `ld.so` seems to have mapped everything. The program runs freely until then.
    Mapping,
    /// The end of `ld.so`'s last call. The program stops at each call.
    Calls,
    /// As `Calls`, while the program is in that last call.
    LastCall,
    /// The stop in which TiExec works on the program.
    Stop,
}

impl LinkWatch {
    /// Prepares to follow a program that will go home from `session`. `linker` is the range where `ld.so` is
    /// mapped, `relro` the first page of the program's own RELRO.
    pub fn new(session: &Session, linker: AddrRange, relro: Option<RemoteAddr>) -> Self {
        let memory = session.memory().clone();
        Self { pid: session.pid(), memory, gadgets: session.gadgets(), linker, relro }
    }

    /// Lets the program go home, and waits until it stops, for as long as `ld.so` takes. Returns `None` instead of
    /// the stop if no safe moment came; the caller must then leave the program alone. `look` returns the progress
    /// of `ld.so`. Without `look`, the program stops at each call from the beginning, and at the latest behind the
    /// last one.
    ///
    /// # Errors
    /// [`TraceError::Gone`] if the program ends first, [`TraceError::LetGo`] if it execs first (it is detached
    /// then), [`TraceError::LostSight`] if another thread of it execs.
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
                    // Only a stopped program can be detached. The end of this process detaches this one.
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
                // The last stop used the interruption up, so request another.
                ptrace::interrupt(pid)?;
            }
            ptrace::resume(pid, how(phase), signal)?;
        }
    }

    /// Returns whether `ld.so` is done once this call, which returns to `next`, has ended.
    fn is_last(&self, number: u64, args: [u64; 6], next: RemoteAddr) -> bool {
        let number = i64::try_from(number).unwrap_or(-1);
        let relro = self.relro.map(RemoteAddr::get);
        let is_ours = next == arch::after_call(self.gadgets);
        number == c::SYS_mprotect && Some(args[0]) == relro
            || PROMPT.contains(&number) && !is_ours && !self.linker.contains(next)
    }
}

/// Returns how to resume the program.
const fn how(phase: Phase) -> Resume {
    match phase {
        Phase::Mapping | Phase::Stop => Resume::Run,
        Phase::Calls | Phase::LastCall => Resume::ToSyscall,
    }
}
