//! The way home: the chain of releases, and the ends of a session.

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::c;
use tiexec_sys::process::Wait;
use tiexec_sys::ptrace::{self, Registers, Resume, SyscallStop};

use super::{Counts, MAX_RELEASES, Session, next_stop};
use crate::arch::{self, Call, Gadgets};
use crate::error::TraceError;
use crate::fault;
use crate::remote::{self, SystemCall};
use crate::stopped::Stopped;
use crate::syscall_manifest::LAST;
use crate::temporary_mask;

impl Session {
    /// Passes the program counter of home, and the addresses of the gadgets, through `moved`: for a program whose
    /// text is mapped elsewhere too. Takes effect with the next call, or with [`Session::install_chain`].
    pub fn move_home(&mut self, moved: impl Fn(RemoteAddr) -> RemoteAddr) {
        let home = moved(arch::program_counter(&self.home));
        arch::set_program_counter(&mut self.home, home);
        let Gadgets { call, sigreturn } = self.gadgets;
        self.gadgets = Gadgets { call: moved(call), sigreturn: moved(sigreturn) };
        self.chain = None;
    }

    /// Installs the present releases and the present home, so that the tracee follows them if this process dies
    /// now. Otherwise they take effect with the next call.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn install_chain(&mut self) -> Result<(), TraceError> {
        let chain = self.lay_chain()?;
        self.install(arch::aim_at_chain(&self.home, self.gadgets, chain))
    }

    /// Registers `release` for the way home, before those registered earlier.
    pub fn release_on_the_way_home(&mut self, release: SystemCall) {
        let release = release.call;
        debug_assert!(self.permission.covers(&release), "{release:?} is not in the manifest");
        debug_assert!(self.releases.len() < MAX_RELEASES, "a chain holds {MAX_RELEASES} steps");
        self.releases.push(release);
        self.chain = None;
    }

    /// Removes the release registered last, because the thing that it would release is gone.
    pub fn released(&mut self) {
        self.releases.pop();
        self.chain = None;
    }

    /// Removes one release, at any position in the chain.
    pub fn withdraw(&mut self, release: SystemCall) {
        self.releases.retain(|known| *known != release.call);
        self.chain = None;
    }

    /// Adds a step after all releases that ends the program with `status`. The program never reaches its first
    /// instruction.
    pub fn exit_instead(&mut self, status: u8) {
        self.releases.insert(0, remote::exit_group(status).call);
        self.chain = None;
    }

    /// Lets the tracee go home and detaches from it.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn go_home(self) -> Result<Counts, TraceError> {
        self.walk_home(Resume::Detach)
    }

    /// Lets the tracee go home and run on, and stays its tracer. The `last_release` of [`Session::begin`] is not
    /// made; a later session makes it.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn go_home_traced(mut self, how: Resume) -> Result<Counts, TraceError> {
        self.releases.remove(0);
        self.chain = None;
        self.chain_mask = !0;
        self.walk_home(how)
    }

    fn walk_home(mut self, how: Resume) -> Result<Counts, TraceError> {
        self.stands()?;
        if self.chain.is_none() || !self.masked {
            self.install_chain()?;
        }
        ptrace::resume(self.pid, how, 0)?;
        Ok(self.counts())
    }

    /// Makes the release registered last now.
    ///
    /// # Errors
    /// The tracee is gone. The result of the release does not matter.
    pub fn release_now(&mut self) -> Result<(), TraceError> {
        // Remove the release from the way home before the call. If this process died right after the call, the
        // released number or range could by then be another thread's.
        if let Some(release) = self.releases.pop() {
            self.chain = None;
            let _whatever = self.make(release)?;
        }
        Ok(())
    }

    /// Makes the remaining releases, lets the tracee go on exactly as if it had never been `stopped`, and detaches.
    /// The kernel restarts an interrupted system call with its remaining time. (By the chain it would return
    /// EINTR.) A tracee that [waits again](Stopped::waits_again) is not detached, so that
    /// [`watch_wait`](crate::running::watch_wait) can watch it.
    ///
    /// With `at_last`, the tracee does not make the release registered first. This process calls `at_last` instead,
    /// while the tracee is stopped for the last time.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn leave(
        mut self,
        stopped: &Stopped,
        at_last: Option<&dyn Fn()>,
    ) -> Result<Counts, TraceError> {
        self.stands()?;
        self.release_down_to(usize::from(at_last.is_some()))?;
        if let Some((refused, own)) = stopped.refused_call().zip(stopped.call())
            && temporary_mask::mask(&own, &self.memory) != Some(self.home_mask)
        {
            return self.leave_at_entry(stopped, &refused.1, at_last);
        }
        let registers = &stopped.registers;
        let early = arch::before_the_last_stop(registers, stopped.interruption);
        let early = early.filter(|_| self.may(&LAST));
        if let Some(early) = &early {
            let _whatever =
                self.make(Call { number: c::SYS_getpid, args: arch::call_arguments(registers) })?;
            // From here on the kernel would continue the interrupted call by itself.
            ptrace::interrupt(self.pid)?;
            self.set_home(early)?;
        }
        // The kernel checks for a call to restart only where a signal would be taken.
        if !self.takes_signals {
            self.go_to_signals()?;
        }
        if let Some(at_last) = at_last {
            at_last();
        }
        if early.is_none() {
            self.set_home(registers)?;
        }
        match stopped.watched() {
            Some(call) => self.go_to_entry(call)?,
            None => ptrace::resume(self.pid, Resume::Detach, 0)?,
        }
        Ok(self.counts)
    }

    /// Lets the tracee go on to the entry of the call that the kernel makes again, and into it. If anything else comes
    /// first, such as a signal, detaches from the tracee there.
    fn go_to_entry(&self, call: i64) -> Result<(), TraceError> {
        ptrace::resume(self.pid, Resume::ToSyscall, 0)?;
        let stop = match next_stop(self.pid, self.until) {
            // The kernel detaches the tracee when the calling thread ends.
            Err(TraceError::Late) => return Ok(()),
            stop => stop?,
        };
        fault::at(fault::Point::Stop);
        let (how, signal) = match stop {
            Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
            Wait::SyscallStop if is_entry(ptrace::syscall_stop(self.pid)?, call) => {
                (Resume::ToSyscall, 0)
            }
            Wait::Signal(signal) => (Resume::Detach, signal),
            _ => (Resume::Detach, 0),
        };
        Ok(ptrace::resume(self.pid, how, signal)?)
    }

    /// Moves the tracee to the point where it would take a signal.
    fn go_to_signals(&self) -> Result<(), TraceError> {
        let (mut how, mut signal) = (Resume::Run, 0);
        loop {
            // Request an interruption after each other stop too, because that stop uses it up.
            ptrace::interrupt(self.pid)?;
            ptrace::resume(self.pid, how, signal)?;
            let stop = next_stop(self.pid, self.until)?;
            fault::at(fault::Point::Stop);
            (how, signal) = match stop {
                Wait::Interrupted | Wait::GroupStop(_) => return Ok(()),
                Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
                Wait::Signal(signal) => (Resume::Run, signal),
                Wait::ExecEvent => {
                    ptrace::resume(self.pid, Resume::Detach, 0)?;
                    return Err(TraceError::Changed);
                }
                Wait::Event(_) | Wait::SyscallStop => (Resume::Run, 0),
            };
        }
    }

    /// Lets the tracee go at the entry of the call that it was `stopped` in, which waits under a signal mask of its
    /// own. That mask differs from the thread's: with an equal mask, the kernel would not clear the flag that the
    /// detaching sets in the thread (`__set_current_blocked`, `kernel/signal.c`), and the call would return EINTR. The kernel then makes the call, saves the present mask, and puts the call's mask in force, as it did at
    /// first. `refused` is the same call with arguments that the kernel refuses.
    ///
    /// No signal can be taken between the entry and the waiting. The last step sets all registers at once. If this
    /// process dies at any step before that, the kernel refuses the call, and the tracee follows the chain. At its
    /// end the tracee makes the call again with the mask of home, as after SIGSTOP and SIGCONT.
    fn leave_at_entry(
        mut self,
        stopped: &Stopped,
        refused: &Call,
        at_last: Option<&dyn Fn()>,
    ) -> Result<Counts, TraceError> {
        debug_assert!(self.permission.covers(refused), "{refused:?} is not in the manifest");
        let chain = self.lay_chain()?;
        self.install(arch::aim_at_call(&self.home, self.gadgets, refused, chain))?;
        self.run_to(self.entry_of(refused))?;
        if let Some(at_last) = at_last {
            at_last();
        }
        self.set_home(&arch::at_entry(&stopped.registers))?;
        let how = if stopped.watched().is_some() { Resume::ToSyscall } else { Resume::Detach };
        ptrace::resume(self.pid, how, 0)?;
        self.counts.calls += 1;
        Ok(self.counts)
    }

    /// Sets the signal mask and all registers to those of home, but the general registers to `registers`.
    fn set_home(&self, registers: &Registers) -> Result<(), TraceError> {
        if self.masked {
            ptrace::set_signal_mask(self.pid, self.home_mask)?;
            fault::at(fault::Point::SetMask);
        }
        if arch::LOST_OVER_CALLS {
            ptrace::set_extended_registers(self.pid, &self.extended)?;
        }
        ptrace::set_registers(self.pid, registers)?;
        fault::at(fault::Point::SetRegisters);
        Ok(())
    }

    /// Lays the chain for the present releases in the other slot, if they have changed.
    pub(super) fn lay_chain(&mut self) -> Result<RemoteAddr, TraceError> {
        match self.chain {
            Some(chain) => Ok(chain),
            None => self.lay_behind(&[]),
        }
    }

    /// Lays the frames of `batch` and the chain behind them. Returns the address of the first frame. Behind the
    /// batch, all signals of the tracee are blocked except those in `open`.
    pub(super) fn lay_batch(
        &mut self,
        batch: &[Call],
        open: u64,
    ) -> Result<RemoteAddr, TraceError> {
        let base = self.slots[1 - self.current_slot].get();
        let frame_at = |index: usize| RemoteAddr::new(base + arch::FRAME_LEN * index as u64);
        let mut frames = Vec::new();
        for (index, call) in batch.iter().enumerate() {
            frames.extend(self.frame(call, frame_at(index + 1)));
        }
        let chain = frame_at(batch.len() + 1);
        frames.extend(arch::chain_frame(&self.home, self.gadgets, chain, self.apart, !open));
        self.lay_behind(&frames)
    }

    /// Lays the frames `before`, and behind them the chain for the present releases, in the slot that is not in
    /// use.
    fn lay_behind(&mut self, before: &[u8]) -> Result<RemoteAddr, TraceError> {
        let slot = 1 - self.current_slot;
        let base = self.slots[slot].get();
        let chain = base + before.len() as u64;
        let mut bytes = before.to_vec();
        for (index, release) in self.releases.iter().rev().enumerate() {
            // The home frame follows the last release.
            let next = RemoteAddr::new(chain + arch::FRAME_LEN * (index as u64 + 1));
            bytes.extend(self.frame(release, next));
        }
        let at = RemoteAddr::new(base + bytes.len() as u64);
        bytes.extend(arch::home_frame(
            &self.home,
            self.gadgets,
            &self.state,
            self.apart,
            at,
            self.home_mask,
        ));
        self.write(self.slots[slot], &bytes)?;
        self.current_slot = slot;
        self.chain = Some(RemoteAddr::new(chain));
        Ok(self.slots[slot])
    }

    /// Builds the frame that makes `call` and goes on to the frame at `next`.
    fn frame(&self, call: &Call, next: RemoteAddr) -> Vec<u8> {
        arch::call_frame(&self.home, self.gadgets, call, next, self.apart, self.chain_mask)
    }
}

/// Returns whether a tracee stands at the entry of this call.
fn is_entry(stop: SyscallStop, call: i64) -> bool {
    matches!(stop, SyscallStop::Entry { number, .. } if i64::try_from(number) == Ok(call))
}
