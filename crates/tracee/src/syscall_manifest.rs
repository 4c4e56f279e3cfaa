//! The lists of the calls that a session will make, known before it begins.
//!
//! A seccomp filter may answer a call with an error in the middle of a session, or end the process for it. Code
//! that makes calls therefore has a list of them, with the arguments that are known beforehand. A session begins
//! only if the filters allow all calls that are needed. In builds with debug assertions, a session refuses to make
//! a call that is in no list.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tiexec_core::seccomp::{self, CallData, Filter, Value};
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Errno, Pid, SysError, c, ptrace, seccomp_trial};

use crate::arch::{self, Call, Gadgets};

/// A call that may be made, with the arguments that are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManifestEntry {
    /// Its name for messages, with the argument that matters.
    pub name: &'static str,
    number: i64,
    args: [Value; 6],
    optional: bool,
}

impl ManifestEntry {
    /// A call without which no session begins. Arguments that are not given are 0.
    pub const fn needed<const N: usize>(name: &'static str, number: i64, args: [Value; N]) -> Self {
        const { assert!(N <= 6, "a system call takes at most six arguments") };
        let mut all = [Value::Is(0); 6];
        let mut index = 0;
        while index < N {
            all[index] = args[index];
            index += 1;
        }
        Self { name, number, args: all, optional: false }
    }

    /// Marks the call as optional: it is not made if it is not allowed, as [`Permission::has`] says.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Encodes the call, with `given` as the arguments that are not fixed, in their order.
    pub(crate) fn with<const N: usize>(&self, given: [u64; N]) -> SystemCall {
        let mut given = given.into_iter();
        let mut next = || given.next().unwrap_or_default();
        let args = self.args.map(|arg| match arg {
            Value::Is(value) => value,
            Value::Small | Value::Any => next(),
        });
        debug_assert!(given.next().is_none(), "{} takes fewer arguments", self.name);
        SystemCall::new(self.name, Call { number: self.number, args })
    }

    /// This very call, without which no session begins.
    pub(crate) fn exactly(name: &'static str, call: &Call) -> Self {
        Self::needed(name, call.number, call.args.map(Value::Is))
    }

    /// Returns arguments with which the call does nothing. An argument that is not fixed is not a valid
    /// address, length or descriptor.
    fn harmless(&self) -> [u64; 6] {
        const NO_DESCRIPTOR: u64 = 0x7fff_ffff;
        self.args.map(|arg| match arg {
            Value::Is(value) => value,
            Value::Small => NO_DESCRIPTOR,
            Value::Any => 0,
        })
    }

    fn covers(&self, call: &Call) -> bool {
        let mut args = self.args.iter().zip(call.args);
        self.number == call.number && args.all(|(known, arg)| known.covers(arg))
    }
}

/// A system call with all its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemCall {
    /// Its name for errors, with the argument that matters.
    pub name: &'static str,
    pub(crate) call: Call,
}

impl SystemCall {
    pub(crate) const fn new(name: &'static str, call: Call) -> Self {
        Self { name, call }
    }

    /// Returns its number.
    pub const fn number(&self) -> i64 {
        self.call.number
    }

    /// Returns its arguments, raw.
    pub const fn args(&self) -> [u64; 6] {
        self.call.args
    }
}

/// Returns a flag or another constant of the C headers as an argument.
pub const fn constant(value: i32) -> Value {
    Value::Is(value.unsigned_abs() as u64)
}

/// `rt_sigreturn`, which enters each frame of the chain, with any values in the registers.
const SIGNAL_RETURN: ManifestEntry =
    ManifestEntry::needed("rt_sigreturn", c::SYS_rt_sigreturn, [Value::Any; 6]);

/// The last call, if the registers do not show calls: see [`arch::before_the_last_stop`]. It does nothing.
pub(crate) const LAST: ManifestEntry =
    ManifestEntry::needed("getpid", c::SYS_getpid, [Value::Any; 6]).optional();

/// The calls of every session.
const OF_EVERY_SESSION: &[ManifestEntry] =
    if arch::CALLS_ARE_SEEN { &[SIGNAL_RETURN] } else { &[SIGNAL_RETURN, LAST] };

/// The rights that are needed to read a thread's filters (`seccomp_get_filter`, `kernel/seccomp.c`).
pub const NEEDS: &str =
    "that takes CAP_SYS_ADMIN in the initial user namespace, and no filter on the reader";

/// The filters of one thread, read while it is stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filters {
    /// The thread's filters; empty if it has none.
    Known(Vec<Filter>),
    /// The thread has the same filters as this process. These are the calls that they allow.
    Tried(Arc<Vec<ManifestEntry>>),
    /// The thread has filters that could not be read, for this reason.
    Unknown(String),
}

impl Filters {
    /// Reads the filters of a stopped thread that has some.
    pub fn read(tid: Pid) -> Self {
        let unknown = |why: &dyn fmt::Display| {
            Self::Unknown(format!("its seccomp filters cannot be read: {why}"))
        };
        let filters = match ptrace::seccomp_filters(tid) {
            Ok(filters) => filters,
            Err(error) if error.errno == Errno::ACCES => return unknown(&NEEDS),
            Err(error) => return unknown(&error),
        };
        let checked: Result<_, _> = filters.iter().map(|filter| Filter::new(filter)).collect();
        checked.map_or_else(|error| unknown(&error), Self::Known)
    }

    /// Tries the calls in `lists`, and those of every session, in a child of this process. The result holds for a
    /// thread whose filters this process has inherited. A thread with as many filters as this process is such a
    /// thread, because nobody can remove a filter.
    ///
    /// The filters see the fixed arguments. In place of the others the child uses arguments with which the call
    /// does nothing. A filter that checks an address or the calling instruction therefore goes unnoticed, as at a
    /// launch.
    #[must_use]
    pub fn tried(lists: &[&[ManifestEntry]]) -> Self {
        let all = lists.iter().copied().flatten().chain(OF_EVERY_SESSION);
        // A signal return without a frame would kill the child, so it is not tried.
        let returns = |call: &&ManifestEntry| call.number == c::SYS_rt_sigreturn;
        let (returns, calls): (Vec<&ManifestEntry>, Vec<&ManifestEntry>) = all.partition(returns);
        match tried(calls, || process::fork_single_threaded(Role::Scout)) {
            Ok(answers) => {
                let allowed = answers.into_iter().filter(|(_, errno)| is_kernels(*errno));
                let allowed = allowed.map(|(call, _)| call).chain(returns.into_iter().copied());
                Self::Tried(Arc::new(allowed.collect()))
            }
            Err(why) => Self::Unknown(why),
        }
    }

    /// Returns whether the filters allow a call with these very arguments, made by the instruction before
    /// `instruction_pointer`. Filters that could not be read allow nothing.
    pub(crate) fn allow(&self, call: &Call, instruction_pointer: u64) -> bool {
        // Calls that were tried were tried with other arguments.
        let Self::Known(filters) = self else { return false };
        let args = call.args.map(Value::Is);
        let answer = data(call.number, args, Value::Is(instruction_pointer))
            .map(|data| seccomp::answer(filters, &data));
        filters.is_empty() || answer.is_some_and(seccomp::Answer::is_allowed)
    }
}

/// Has a child that `fork` makes try each call in a form that does nothing. Returns the answers.
///
/// # Errors
/// A text: a filter ended the child, or no child could be made.
fn tried(
    calls: Vec<&ManifestEntry>,
    fork: impl FnOnce() -> Result<Fork, SysError>,
) -> Result<Vec<(ManifestEntry, Option<Errno>)>, String> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let harmless: Vec<_> = calls.iter().map(|call| (call.number, call.harmless())).collect();
    match seccomp_trial::answers(&harmless, PATIENCE, fork) {
        Ok(Some(answers)) => Ok(calls.into_iter().copied().zip(answers).collect()),
        Ok(None) => Err("a filter kills on a call that is needed".to_owned()),
        Err(error) => Err(format!("its seccomp filters cannot be tried: {error}")),
    }
}

/// Returns the optional calls in `lists` that the filters of the calling thread refuse. Other threads may run,
/// because a child of this process makes the calls and does nothing else.
///
/// # Errors
/// A text: a filter kills the process for one of the calls, or they cannot be tried.
pub(crate) fn refused(lists: &[&[ManifestEntry]]) -> Result<Vec<ManifestEntry>, String> {
    let answers = tried(lists.iter().copied().flatten().collect(), process::fork_to_call)?;
    let refused = answers.into_iter().filter(|(call, errno)| call.optional && !is_kernels(*errno));
    Ok(refused.map(|(call, _)| call).collect())
}

fn data(number: i64, args: [Value; 6], instruction_pointer: Value) -> Option<CallData> {
    let number = u32::try_from(number).ok()?;
    Some(CallData { number, architecture: arch::AUDIT_ARCH, instruction_pointer, args })
}

/// Returns whether the kernel gives this answer to a call that does nothing. Any other answer comes from a filter.
fn is_kernels(answer: Option<Errno>) -> bool {
    const KERNELS: [Errno; 4] = [Errno::INVAL, Errno::FAULT, Errno::BADF, Errno::SRCH];
    answer.is_none_or(|errno| KERNELS.contains(&errno))
}

/// The calls that a session may make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permission {
    /// The allowed calls; `None` for all.
    allowed: Option<Vec<ManifestEntry>>,
}

impl Permission {
    /// Permits all calls: for a launch, which has tried them.
    pub(crate) fn all() -> Self {
        Self { allowed: None }
    }

    /// Checks the calls in `lists`, and those of every session, against `filters`.
    ///
    /// # Errors
    /// The first needed call that may be refused, and how. No call has been made.
    pub fn ask(
        filters: &Filters,
        gadgets: Gadgets,
        lists: &[&[ManifestEntry]],
    ) -> Result<Self, String> {
        let filters = match filters {
            Filters::Known(filters) => filters,
            Filters::Tried(allowed) => return Self::tried(allowed, lists),
            Filters::Unknown(why) => return Err(why.clone()),
        };
        let mut allowed = Vec::new();
        let all = lists.iter().copied().flatten().chain(OF_EVERY_SESSION);
        for call in all {
            let pointer = match call.number {
                c::SYS_rt_sigreturn => Value::Any,
                _ => Value::Is(arch::after_call(gadgets).get()),
            };
            let Some(data) = data(call.number, call.args, pointer) else { continue };
            let answer = seccomp::answer(filters, &data);
            if answer.is_allowed() {
                allowed.push(*call);
            } else if !call.optional {
                return Err(format!("{} may be {answer}", call.name));
            }
        }
        Ok(Self { allowed: Some(allowed) })
    }

    fn tried(allowed: &[ManifestEntry], lists: &[&[ManifestEntry]]) -> Result<Self, String> {
        let refused = |call: &&ManifestEntry| !call.optional && !allowed.contains(call);
        match lists.iter().copied().flatten().chain(OF_EVERY_SESSION).find(refused) {
            Some(call) => Err(format!("{} may be refused: a trial of it was", call.name)),
            None => Ok(Self { allowed: Some(allowed.to_vec()) }),
        }
    }

    /// Returns whether `call` was checked and is allowed.
    pub fn has(&self, call: &ManifestEntry) -> bool {
        self.allowed.as_ref().is_none_or(|all| all.contains(call))
    }

    /// Returns whether an allowed entry covers this call.
    pub(crate) fn covers(&self, call: &Call) -> bool {
        self.allowed.as_ref().is_none_or(|all| all.iter().any(|known| known.covers(call)))
    }
}
