//! The processes of a canary, which all switch together and are all reverted at the end.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use tiexec_agent::canary::{Member, Runner, Turn};
use tiexec_agent::processes::Examiner;
use tiexec_agent::state::{self, Build};
use tiexec_core::config::Settings;
use tiexec_core::escape::AsShown;
use tiexec_core::proc::cgroup::Units;
use tiexec_core::proc::maps;
use tiexec_engine::identity::Identity;
use tiexec_engine::locked_target::{LONGEST, LOOKING, Lasts, look_for_text_of_ours, start_time};
use tiexec_remap::{systemd_units, workers};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas, process, thp};

use super::super::alternate::{self, Arm, must_be_as_switched, must_be_plain};
use super::super::has_text;
use super::super::targets::failed;
use super::builds::OneBuild;
use super::cpu::{CpuTime, OfProcesses, Used};
use super::selection::{Selection, used};
use super::{End, attach};
use crate::exit;
use crate::stdio::warn;

/// Most scans for new processes in one switch.
const LOOKS: usize = 3;

/// The processes.
pub(super) struct Live<'a> {
    selection: Selection,
    /// The settings of the attach that makes copies.
    settings: &'a Settings,
    pub(super) turn: Turn<'a>,
    /// All processes that the canary has switched.
    members: BTreeSet<Member>,
    /// The programs of which the journal has an attach.
    told: HashSet<(i32, Identity)>,
    /// The build, if the processes are selected by their program.
    one_build: Option<RefCell<OneBuild>>,
    /// The processes that the user named by their IDs.
    named: Option<BTreeSet<Member>>,
    /// The process that used the most processor time, of those that live.
    main: (Pid, Member),
    /// The text of that process which the copies hold, in bytes; `None` before [`Live::must_be_possible`].
    copied: Option<u64>,
    /// The oldest process, which is the parent in a service with several processes.
    eldest: Member,
    exe: Vec<u8>,
    cpu: CpuTime,
    arm: Arm,
    switches: usize,
    /// The time of all switches, and of the longest one.
    switching: Duration,
    longest_switch: Duration,
    /// The longest switch except the first, for which the kernel has to find memory.
    longest_later: Option<Duration>,
}

impl<'a> Live<'a> {
    /// Finds the processes of the selection, and makes sure that they can alternate.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn find(
        selection: Selection,
        settings: &'a Settings,
        turn: Turn<'a>,
        wanted: Option<Build>,
    ) -> Result<Self, u8> {
        let mut pids = selection.first()?;
        let mut status = exit::GONE;
        pids.retain(|pid| {
            // Unless the user named them, processes of a selection may end at any time.
            if !selection.is_by_id() {
                return true;
            }
            let has_text = has_text("alternate", pid.as_raw_nonzero().get());
            has_text.map_err(|why| status = why).is_ok()
        });
        if pids.is_empty() {
            return Err(status);
        }
        let busiest_and_exe = |pids: &[Pid]| {
            let (main, _) = busiest(pids)?;
            let exe = ProcDir::of(main).and_then(|process| process.exe_path());
            Some((main, exe.unwrap_or_default()))
        };
        let one_build = match selection.is_by_program() {
            true => Some(OneBuild::select(wanted, &mut pids, busiest_and_exe)?.into()),
            false => None,
        };
        let members: BTreeSet<Member> = pids.iter().filter_map(member).collect();
        let eldest = members.iter().copied().min_by_key(|&(pid, begun)| (begun, pid));
        let main = busiest(&pids).zip(busiest_and_exe(&pids));
        let Some(((main, (_, exe)), eldest)) = main.zip(eldest) else {
            warn("cannot begin a canary: the processes have ended");
            return Err(exit::GONE);
        };
        let mut seen = BTreeSet::new();
        for &pid in &pids {
            let Ok(process) = ProcDir::of(pid) else { continue };
            can_alternate(pid, &process, seen.insert(process.exe_path().unwrap_or_default()))?;
        }
        let cpu = CpuTime::of(&pids, selection.unit().as_deref());
        Ok(Self {
            named: selection.is_by_id().then_some(members),
            selection,
            settings,
            turn,
            members: BTreeSet::new(),
            told: HashSet::new(),
            one_build,
            main,
            copied: None,
            eldest,
            exe,
            cpu,
            arm: Arm::Plain,
            switches: 0,
            switching: Duration::ZERO,
            longest_switch: Duration::ZERO,
            longest_later: None,
        })
    }

    /// Writes down what this canary works on, for others that want to begin one.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn announce(&mut self, max: Duration) -> Result<(), u8> {
        let since = state::now();
        let Some((own, begun)) = member(&process::this()) else {
            warn(
                "cannot begin a canary: /proc does not show this process; fix: mount -t proc proc /proc",
            );
            return Err(exit::FAILED);
        };
        let runner = Runner {
            pid: own,
            begun,
            subject: self.subject(),
            since,
            until: since.saturating_add(max.as_secs().saturating_add(1)),
        };
        self.turn.announce(runner).map_err(|why| {
            warn(format_args!("cannot begin a canary: {why}"));
            exit::FAILED
        })
    }

    /// Returns the main process in words.
    fn subject(&self) -> String {
        let unit = self.unit().map(|units| units.user.map_or(units.system, |user| user.name));
        let unit = unit.map_or(String::new(), |unit| format!(", unit {}", unit.shown()));
        format!("process {} ({}{unit})", self.main().as_raw_nonzero(), self.exe.shown())
    }

    /// Writes into the journal what happens to the processes.
    pub(super) fn note(&self, what: &str) {
        alternate::note("canary", &self.subject(), self.main(), what);
    }

    /// Checks, without a change, that this process may attach to the processes, and that text of the main one can be
    /// copied.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn must_be_possible(&mut self) -> Result<(), u8> {
        let named = self.named.iter().flatten().filter_map(|&(pid, _)| Pid::from_raw(pid));
        let main = self.main();
        let named: Vec<Pid> = named.filter(|pid| *pid != main).collect();
        for pid in named.into_iter().chain([main]) {
            match attach::rehearse(pid, self.settings, LONGEST) {
                Err(failure) => return Err(failed("alternate", pid, &failure)),
                Ok(rehearsed) if pid == main && rehearsed.planned == 0 => {
                    let pid = pid.as_raw_nonzero();
                    warn(format_args!(
                        "cannot alternate process {pid}: none of its text can be copied to huge pages{}; \
                         fix: tiexecctl inspect {pid} says more",
                        rehearsed.because()
                    ));
                    return Err(exit::FAILED);
                }
                Ok(rehearsed) if pid == main => self.copied = Some(rehearsed.planned),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn main(&self) -> Pid {
        self.main.0
    }

    /// Returns the user of the main process, unless it is one of the machine's own.
    pub(super) fn owner(&self) -> Option<u32> {
        let facts = ProcDir::of(self.main()).ok().and_then(|it| Examiner::look().process(&it));
        facts.filter(|facts| !facts.counts_for_all()).map(|facts| facts.uid())
    }

    pub(super) fn copied(&self) -> Option<u64> {
        self.copied
    }

    /// Returns the unit of the main process.
    pub(super) fn unit(&self) -> Option<Units> {
        ProcDir::of(self.main()).ok().and_then(|process| systemd_units::of(&process))
    }

    /// Returns whether the processes are a whole unit, which the user named.
    pub(super) fn is_of_unit(&self) -> bool {
        self.selection.unit().is_some()
    }

    pub(super) fn exe(&self) -> &[u8] {
        &self.exe
    }

    pub(super) fn cpu(&self) -> &CpuTime {
        &self.cpu
    }

    pub(super) fn arm(&self) -> Arm {
        self.arm
    }

    pub(super) fn switches(&self) -> usize {
        self.switches
    }

    pub(super) fn switching(&self) -> Duration {
        self.switching
    }

    pub(super) fn longest_switch(&self) -> Duration {
        self.longest_switch
    }

    /// Returns how long the next switch may take.
    pub(super) fn switch_takes(&self) -> Duration {
        self.longest_later.unwrap_or(self.longest_switch)
    }

    /// Returns the arguments that select the same processes.
    pub(super) fn words(&self) -> String {
        self.selection.words()
    }

    /// Returns the processor time so far, for a comparison with that at `before`; `None` if it cannot be read.
    pub(super) fn used(&self, before: Option<&Used>) -> Result<Option<Used>, End> {
        match &self.cpu {
            cpu @ CpuTime::Cgroup { .. } => Ok(cpu.of_cgroup().map(Used::Cgroup)),
            CpuTime::Processes => {
                let read = || {
                    let at = process::ticks_since_boot();
                    Ok(Used::Processes(OfProcesses::read(&self.pids()?, at, before)))
                };
                let used: Used = read()?;
                // A process may have ended between the reading of its parent and its own.
                let is_torn = before.is_some_and(|before| used.since(before).is_err());
                Ok(Some(if is_torn { read()? } else { used }))
            }
        }
    }

    /// Returns the build that the canary is about.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn build(&self) -> Result<Build, u8> {
        match &self.one_build {
            Some(one) => Ok(one.borrow().build.clone()),
            None => Ok(OneBuild::of(self.main(), &self.exe)?.build),
        }
    }

    /// Checks that the oldest process lives. If it has ended, the service has crashed or was restarted, and the canary
    /// does not switch it again.
    pub(super) fn must_live(&self) -> Result<(), End> {
        lives(&self.eldest).map(drop).ok_or(End::Gone)
    }

    /// Lists the present processes.
    fn pids(&self) -> Result<Vec<Pid>, End> {
        self.must_live()?;
        let mut pids = self.selection.now().map_err(End::Failed)?;
        pids.retain(|pid| {
            let member = member(pid);
            let named = |named: &BTreeSet<Member>| member.is_some_and(|it| named.contains(&it));
            let of_build = |one: &RefCell<OneBuild>| one.borrow_mut().is_run_by(*pid);
            member.is_some()
                && self.named.as_ref().is_none_or(named)
                && self.one_build.as_ref().is_none_or(of_build)
        });
        if pids.is_empty() { Err(End::Gone) } else { Ok(pids) }
    }

    /// Switches all processes, including those that start meanwhile. After `until` it begins with no other process.
    /// Returns whether all had their turn.
    pub(super) fn switch(&mut self, arm: Arm, until: Option<Instant>) -> Result<bool, End> {
        let begun = Instant::now();
        let switched = self.switch_until(arm, until);
        let took = begun.elapsed();
        self.switching += took;
        self.longest_switch = self.longest_switch.max(took);
        if self.switches > 1 {
            self.longest_later = self.longest_later.max(Some(took));
        }
        switched
    }

    fn switch_until(&mut self, arm: Arm, until: Option<Instant>) -> Result<bool, End> {
        let mut done = BTreeSet::new();
        self.arm = arm;
        self.switches += 1;
        for _ in 0..LOOKS {
            let mut pids = self.pids()?;
            pids.retain(|pid| member(pid).is_some_and(|member| done.insert(member)));
            if pids.is_empty() {
                break;
            }
            // A worker may have ended.
            if member(&self.main()) != Some(self.main.1) {
                self.main = busiest(&pids).unwrap_or(self.main);
            }
            // The journal has the first attach to each program, whose addresses the later ones repeat.
            let is_known = |pid: &Pid| {
                arm == Arm::Plain || program(pid).is_some_and(|it| self.told.contains(&it))
            };
            let (known, new): (Vec<Pid>, Vec<Pid>) = pids.iter().partition(|pid| is_known(pid));
            if arm == Arm::Tiexec {
                self.members.retain(|member| lives(member).is_some());
                self.members.extend(pids.iter().filter_map(member));
                let members = &self.members;
                self.told.retain(|&(pid, _)| members.range((pid, 0)..).any(|one| one.0 == pid));
                self.turn.note(&self.members).map_err(|why| {
                    warn(format_args!("cannot write down what is switched: {why}"));
                    End::Failed(exit::FAILED)
                })?;
            }
            let settings = (arm == Arm::Tiexec).then_some(self.settings);
            for (pids, lasts) in [(new, Lasts::UntilUndone), (known, Lasts::OneSlice)] {
                let status = attach::switch(&pids, settings, lasts, until);
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(false);
                }
                if status == exit::OK {
                    self.told.extend(pids.iter().filter_map(program));
                }
                match status {
                    exit::OK | exit::GONE => {}
                    // Without the main process the slice would not count, and the canary would blame somebody else.
                    exit::PARTIAL if self.state() == Some(arm != Arm::Tiexec) => {
                        return Err(End::Failed(status));
                    }
                    exit::PARTIAL => {}
                    // A process that ends during its switch may fail in another way.
                    status => return Err(self.must_live().err().unwrap_or(End::Failed(status))),
                }
            }
        }
        self.pids().map(|_| true)
    }

    /// Puts all processes onto copies for good. Returns the exit status, also that of an attach that worked for some.
    pub(super) fn keep(&mut self) -> Result<u8, End> {
        self.switch(Arm::Tiexec, None)?;
        match attach::switch(&self.pids()?, Some(self.settings), Lasts::Always, None) {
            exit::OK | exit::GONE => Ok(exit::OK),
            exit::PARTIAL if self.state() == Some(true) => Ok(exit::PARTIAL),
            status => Err(End::Failed(status)),
        }
    }

    /// Checks that the attach made copies.
    pub(super) fn must_be_on_copies(&mut self) -> Result<(), End> {
        if self.state() == Some(false) {
            let pid = self.main().as_raw_nonzero();
            warn(format_args!(
                "cannot alternate process {pid}: none of its text can be copied to huge pages; \
                 fix: tiexecctl inspect {pid} says why"
            ));
            return Err(End::Failed(exit::FAILED));
        }
        Ok(())
    }

    /// Checks that nobody else has switched the main process meanwhile.
    pub(super) fn must_be_as_switched(&self) -> Result<(), End> {
        let has = self.state();
        must_be_as_switched(self.main(), has, self.arm == Arm::Tiexec).map_err(End::Failed)
    }

    /// Returns whether the main process has copies; `None` if it has ended or cannot be examined.
    fn state(&self) -> Option<bool> {
        let (pid, main) = self.main;
        let has = look_for_text_of_ours(&ProcDir::of(pid).ok()?)?;
        // A process that ends loses its mappings first, copies too.
        (member(&pid) == Some(main)).then_some(has)
    }

    /// Reverts all processes, and removes the record.
    ///
    /// # Errors
    /// The processes that are still on copies, in words.
    pub(super) fn go_back(&mut self) -> Result<(), String> {
        if self.members.is_empty() {
            self.turn.clear();
            return Ok(());
        }
        let _said = self.switch(Arm::Plain, None);
        // The selection no longer contains some members, such as a process that left the unit.
        // The members' children may belong to no selection.
        let left = || {
            let mut left =
                alternate::on_copies(&self.members.iter().filter_map(lives).collect::<Vec<_>>());
            // A process that ends loses its mappings first, copies too.
            left.retain(|pid| member(pid).is_some());
            left
        };
        for _ in 0..LOOKS {
            let others = left();
            if others.is_empty() {
                break;
            }
            let _said = attach::switch(&others, None, Lasts::UntilUndone, None);
        }
        match left().first() {
            None => {
                self.turn.clear();
                Ok(())
            }
            Some(pid) => {
                let pid = pid.as_raw_nonzero();
                Err(format!(
                    "process {pid} is left with text on huge pages; fix: tiexecctl revert {pid}"
                ))
            }
        }
    }
}

/// Returns the process and the program that it runs, if it is alive.
fn program(pid: &Pid) -> Option<(i32, Identity)> {
    let process = ProcDir::of(*pid).ok()?;
    Some((pid.as_raw_nonzero().get(), Identity::of(&process)?))
}

/// Returns the process that used the most processor time.
fn busiest(pids: &[Pid]) -> Option<(Pid, Member)> {
    let living = pids.iter().filter_map(|&pid| Some((pid, member(&pid)?)));
    living.max_by_key(|(pid, _)| used(pid))
}

/// Returns the process of a member, if it lives.
fn lives(member_of: &Member) -> Option<Pid> {
    Pid::from_raw(member_of.0).filter(|pid| member(pid) == Some(*member_of))
}

/// Returns the process and its start time, if it is alive and runs a program.
fn member(pid: &Pid) -> Option<Member> {
    let process = ProcDir::of(*pid).ok()?;
    process.status().ok()?.has_mm.then_some(())?;
    Some((pid.as_raw_nonzero().get(), start_time(&process)?))
}

/// Checks that a process has no text of TiExec's. With `first`, also checks that the page cache of its program has no
/// huge pages.
fn can_alternate(pid: Pid, process: &ProcDir, first: bool) -> Result<(), u8> {
    let number = pid.as_raw_nonzero();
    must_be_plain("alternate", pid, process)?;
    let huge = if first { huge_of_program(process).unwrap_or(0) } else { 0 };
    if huge > 0 {
        let exe = process.exe_path().unwrap_or_default();
        warn(format_args!(
            "cannot alternate process {number}: {} MiB of its text are on huge pages of the page cache, \
             which cannot be taken back; fix: stop it, dd if={} iflag=nocache count=0, start it",
            tiexec_core::addr::mib(huge),
            exe.word()
        ));
        return Err(exit::FAILED);
    }
    Ok(())
}

/// Returns how much of the program's own text is huge, by its file's page cache.
fn huge_of_program(process: &ProcDir) -> Option<u64> {
    let huge = || {
        let exe = process.exe_path().ok()?;
        let vmas = maps::parse(&process.read("maps").ok()?).ok()?;
        let huge = areas::huge_text(process, thp::pages()?).ok()?;
        let own = |start| {
            let mut own = vmas.iter().filter(|vma| vma.is_text() && vma.path() == exe);
            own.any(|vma| vma.range.contains(start))
        };
        Some(huge.iter().filter(|range| own(range.start())).map(|range| range.len()).sum::<u64>())
    };
    if !workers::is_of_others(process) {
        return huge();
    }
    workers::apart(LOOKING, huge).ok().flatten()
}
