//! Attach, revert and report, of the calling process.

use tiexec_core::config::{BackingChoice, Settings};
use tiexec_core::report::Report;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_engine::locked_target::{Done, LockedTarget, this_process};
use tiexec_engine::policy::policy;
use tiexec_engine::settings::MachineSettings;
use tiexec_remap::attach::{AttachOrder, PrivateCopies, Reverted};
use tiexec_remap::images::Images;
use tiexec_remap::{Failure, verify};
use tiexec_sys::{Errno, SysError, local};
use tiexec_tracee::executor::Local;

use crate::calls;
use crate::turn::Turn;

/// Puts the text of this process onto huge pages, as far as it is not: the text of the program and of all objects
/// mapped by now. The report says what the kernel shows afterwards; `reason` says why text that was to become huge did
/// not.
///
/// The settings about text and memory count (`backing`, `edges`, `pad_threshold`, `page_size`, `numa`, `select`), and `deadline`,
/// which is 30 s unless it is given. Signals to this thread wait until this returns.
///
/// # Errors
/// The work could not begin; the process is as it was. `disabled` where the administrator or the user (`TIEXEC=off`)
/// has switched TiExec off; `busy` while another thread, or another TiExec, is at work on this process; `seccomp`
/// where a filter would end the process.
pub fn attach(settings: &Settings) -> Result<Report, Failure> {
    alone(|local| {
        if settings.is_off() || MachineSettings::read().settings.is_off() {
            return Err(Failure::new(SkipReason::Disabled, ""));
        }
        treat(settings, PrivateCopies::All, local, |order, done| done.reported(order).report)
    })
}

/// Does the same without a check of the switches; `copies` says what may be copied for this process alone, and `told`
/// makes the result.
fn treat<T>(
    settings: &Settings,
    copies: PrivateCopies,
    local: Local,
    told: impl FnOnce(&AttachOrder<'_>, Done) -> T,
) -> Result<T, Failure> {
    let locked = LockedTarget::this()?;
    let mut policy = policy(settings, false)?;
    // Images of the store are for launches, which move a program to where its image fits.
    policy.sources.store = false;
    let mut order = locked.order(policy);
    order.policy.deadline = settings.deadline.unwrap_or(order.policy.deadline);
    order.private_copies = copies;
    let done = locked.treat_here(&order, &mut Images::default(), local)?;
    Ok(told(&order, done))
}

/// Returns which text is copied at the start: that of the program, and that of libraries only if the user asked for copies.
pub(crate) const fn copies_at_start(settings: &Settings) -> PrivateCopies {
    match settings.backing {
        BackingChoice::Image | BackingChoice::Hugetlb => PrivateCopies::All,
        _ => PrivateCopies::UpTo(0),
    }
}

/// Puts text onto huge pages as a launch does, within the time of a launch. Makes a report only if `wants_report`: the report
/// needs a second look at the process.
pub(crate) fn at_start(settings: &Settings, wants_report: bool) -> Result<Option<Report>, Failure> {
    let copies = copies_at_start(settings);
    let settings = Settings { deadline: Some(settings.deadline()), ..settings.clone() };
    let told =
        |order: &AttachOrder<'_>, done: Done| wants_report.then(|| done.reported(order).report);
    alone(|local| treat(&settings, copies, local, told))
}

/// Puts the files' own text back, after comparing its bytes.
///
/// # Errors
/// The work could not begin; the process is as it was. Reasons as those of [`attach`], but never `disabled`.
pub fn revert() -> Result<Reverted, Failure> {
    alone(|local| LockedTarget::this()?.revert_here(local))
}

/// Reports how much of the text of this process is huge, according to the kernel. Changes nothing.
///
/// # Errors
/// The process cannot read about itself; `seccomp` where a filter would end the process.
pub fn report() -> Result<Report, Failure> {
    let _this_thread_may_call = local::while_signals_wait(calls::local)?;
    apart(|| {
        let target = this_process()?;
        let pages = policy(&Settings::default(), true)?.pages;
        verify::inspect(target.pid, &target.process, pages).map_err(Failure::unreadable)
    })
}

/// Does `work` on this process while no other thread works on it.
fn alone<T: Send>(work: impl FnOnce(Local) -> Result<T, Failure> + Send) -> Result<T, Failure> {
    let busy =
        || Failure::new(FailureKind::Busy, "another thread of this process is at work on it");
    let _turn = Turn::take().ok_or_else(busy)?;
    let local = local::while_signals_wait(calls::local)?;
    apart(|| work(local))
}

/// Checks that this process can allocate what the work needs. A Rust program that cannot allocate ends at once.
///
/// # Errors
/// `address_space`
pub(crate) fn has_memory() -> Result<(), Failure> {
    /// The work holds the mappings of the process, the pages of its text, and two buffers.
    const NEEDED: usize = 2 << 20;
    let none = || Failure::new(FailureKind::AddressSpace, "the process can map no 2 MiB more");
    local::can_map(NEEDED).then_some(()).ok_or_else(none)
}

/// Does `work` with signals blocked, and keeps the descriptors that it opens from other threads.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    has_memory()?;
    let refused = |error: SysError| {
        let no_thread = error.errno == Errno::AGAIN || error.errno == Errno::NOMEM;
        let reason = if no_thread { FailureKind::ForkFailed } else { FailureKind::Seccomp };
        Failure::of(reason)(error)
    };
    local::while_signals_wait(|| local::apart(work)).map_err(refused)?
}
