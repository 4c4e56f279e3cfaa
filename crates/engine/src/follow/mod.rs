//! `--follow` and `--settle`: programs that are started later, and text that is mapped later.
//!
//! A process beside the program receives records from the kernel ([`tiexec_sys::perf_watch`]) of each exec and
//! of each executable mapping. The records stop no process. If a mapping is too small to hold a huge page, its
//! record alone decides to skip it. Otherwise the process examines the program a little later, when the
//! program has stopped mapping, and treats it as a running one ([`crate::locked_target`]). Without records it
//! polls `/proc`.

pub mod companion;
mod patterns;
mod reverted;
pub mod start;
pub mod tree;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tiexec_core::addr::AddrRange;
use tiexec_core::config::Settings;
use tiexec_core::perf::records::Record;
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::FileId;
use tiexec_core::proc::stat;
use tiexec_core::proc::status::CAP_SYS_PTRACE;
use tiexec_core::skip::Reason;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::workers;
use tiexec_sys::perf_watch::{Watch, Woken, wait_for_end};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, areas, process, ptrace};

use crate::locked_target::{LONGEST, LockedTarget, Treated, look_for_text_of_ours, start_time};
use crate::policy::policy;
use crate::retry::may_pass;
use crate::switched_off::is_switched_off;
pub use patterns::Patterns;
use reverted::Copies;
use tree::Tree;

/// The age at which a program is first examined: most programs end earlier, and a stop would only delay them.
const AGE: Duration = Duration::from_millis(100);
/// How long a program must have run by that age; otherwise it is examined once it is as old as [`BEGINNING`].
/// On a busy machine age alone says little.
const WORK: Duration = Duration::from_millis(50);
/// How long a program must have mapped nothing: a dynamic linker maps in a burst.
const QUIET: Duration = Duration::from_millis(10);
/// The shortest time after a program's start during which a follower examines its mappings.
const BEGINNING: Duration = Duration::from_secs(1);
/// The pause after records were read, in which the next ones gather.
const PAUSE: Duration = Duration::from_millis(10);
/// The first pause between two looks where there are no records; each pause is twice the one before. The
/// search for a thread that takes a stop well is as long: if there are more threads than processors, a thread
/// may wait for its turn.
const FIRST_GAP: Duration = Duration::from_millis(100);
/// The longest pause between two walks through `/proc`, and before a retry of a program that could not be
/// treated; also the longest search for a thread.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// For how long the follower remembers that a file's mapping had nothing to gain.
const MEMORY: Duration = Duration::from_secs(10);

/// Returns, in words, the cause and the consequence of having no watch.
pub fn without_watch(why: &str, follow: bool) -> String {
    let (what, lost) = if follow {
        ("programs that are started", " and misses short programs")
    } else {
        ("text that is mapped later", "")
    };
    let knob = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let knob = knob.trim();
    let fix = match knob.parse::<i32>() {
        Ok(level) if level > 2 => {
            format!("; fix: sysctl kernel.perf_event_paranoid=2 (now {level})")
        }
        _ => String::new(),
    };
    format!("cannot watch for {what}: {why}; the companion polls /proc{lost}{fix}")
}

/// Returns why programs that are started could not be treated, where that is known beforehand.
pub fn obstacle(capabilities: u64) -> Option<String> {
    let scope = ptrace::yama_scope()?;
    (scope > 0 && capabilities & CAP_SYS_PTRACE == 0).then(|| {
        format!(
            "cannot attach to programs that are started: kernel.yama.ptrace_scope is {scope}; \
             fix: sysctl kernel.yama.ptrace_scope=0, or run it with CAP_SYS_PTRACE"
        )
    })
}

/// The properties of a mapping that decide whether it has something to gain: not its address, but its position
/// relative to the huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mapping {
    file: FileId,
    file_offset: u64,
    len: u64,
    into_huge_page: u64,
}

/// A program that is in its beginning.
#[derive(Debug)]
struct Program {
    /// When it was seen to begin.
    seen: Instant,
    /// The same in clock ticks since boot. A process that began later is another process with the same id.
    seen_ticks: u64,
    /// The end of the time in which its mappings are examined.
    until: Instant,
    /// When to examine it next.
    due: Option<Instant>,
    /// The pause after the next look, if there is another look.
    gap: Duration,
    /// The mappings that it has made since the last look and that could be huge.
    mapped: Vec<Mapping>,
    copies: Copies,
}

impl Program {
    /// Returns when to examine the program if it maps nothing more after `now`.
    fn quiet_from(&self, now: Instant) -> Instant {
        (now + QUIET).max(self.seen + AGE)
    }
}

/// The callback that hears what was done to a process.
pub type Tell<'a> = &'a mut dyn FnMut(&LockedTarget, &Treated);

/// Follows programs that are started, and treats what they map.
pub struct Follower<'a> {
    settings: &'a Settings,
    patterns: Patterns,
    policy: Policy,
    images: Images,
    watch: Option<Watch>,
    tree: Tree,
    /// The start time and the image file of each process in the tree, where there is no watch.
    running: HashMap<Pid, (u64, Vec<u8>)>,
    programs: HashMap<Pid, Program>,
    nothing_to_gain: HashMap<Mapping, Instant>,
    /// Mappings that only copies made huge.
    copied: HashSet<Mapping>,
    tell: Tell<'a>,
}

impl<'a> Follower<'a> {
    /// Makes a follower for the trees of `roots`; `None` where nothing can be huge. `images` are the images
    /// that exist already.
    pub fn new(
        settings: &'a Settings,
        roots: &[Pid],
        watch: Option<Watch>,
        images: Images,
        tell: Tell<'a>,
    ) -> Option<Self> {
        let patterns = Patterns::new(&settings.only, &settings.except).ok()?;
        let mut follower = Self {
            settings,
            patterns,
            policy: policy(settings, false).ok()?,
            images,
            watch,
            tree: Tree::of(roots),
            running: HashMap::new(),
            programs: HashMap::new(),
            nothing_to_gain: HashMap::new(),
            copied: HashSet::new(),
            tell,
        };
        for &root in roots {
            follower.begin(root);
        }
        Some(follower)
    }

    /// Follows until all processes have ended, or, without `--follow`, the time of all programs is over; at
    /// most until `end`. Signals reach this process only while it works on no program.
    pub fn run(mut self, end: Option<Instant>) {
        let mut walk_gap = FIRST_GAP;
        loop {
            let now = Instant::now();
            self.programs.retain(|_, program| now < program.until || program.due.is_some());
            let over = !self.settings.follow && self.programs.is_empty();
            if over || end.is_some_and(|end| now >= end) {
                return;
            }
            self.look_at_due();
            self.images.forget_unused();
            let due = self.programs.values().filter_map(|program| program.due);
            let window = self.programs.values().map(|program| program.until);
            let window = if self.settings.follow { None } else { window.max() };
            // No record reports that the users of a copy have ended.
            let copies = self.images.has_copies().then(|| now + MEMORY);
            let next = due.chain(window).chain(end).chain(copies).min();
            let time = next.map(|next| next.saturating_duration_since(Instant::now()));
            let Some(watch) = &mut self.watch else {
                let Some(found) = self.look_around() else { return };
                walk_gap = if found { FIRST_GAP } else { (walk_gap * 2).min(LONGEST_GAP) };
                let time = time.map_or(walk_gap, |time| time.min(walk_gap));
                match wait_for_end(None, Some(time)) {
                    Err(error) if error.errno != Errno::INTR => return,
                    _ => continue,
                }
            };
            match watch.wait(time) {
                Ok(Woken::Records) => {
                    self.read_records();
                    let _interrupted = wait_for_end(None, Some(PAUSE));
                }
                Ok(Woken::End) => return,
                Ok(Woken::Time) => {}
                // A signal has arrived. The sleep keeps any other error from repeating at once.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Notes that a program begins.
    fn begin(&mut self, pid: Pid) {
        let now = Instant::now();
        let least = if self.settings.follow { BEGINNING } else { Duration::ZERO };
        let until = now + self.settings.settle().max(least);
        let program = self.programs.entry(pid).or_insert_with(|| Program {
            seen: now,
            seen_ticks: 0,
            until,
            due: None,
            gap: FIRST_GAP,
            mapped: Vec::new(),
            copies: Copies::default(),
        });
        // The records of two processors come in no order, so mappings that were noted already are kept.
        (program.seen, program.until, program.gap) = (now, until, FIRST_GAP);
        program.seen_ticks = process::ticks_since_boot();
        if self.policy.select.jit || self.watch.is_none() {
            program.due.get_or_insert(now + AGE);
        }
    }

    fn read_records(&mut self) {
        let mut records = Vec::new();
        if let Some(watch) = &mut self.watch {
            watch.read(|record| records.push(record));
        }
        let pid = |raw: u32| i32::try_from(raw).ok().and_then(Pid::from_raw);
        let mut lost = false;
        for record in records {
            match record {
                Record::Exec { pid: raw } => {
                    let Some(pid) = pid(raw) else { continue };
                    if self.settings.follow || self.programs.contains_key(&pid) {
                        self.begin(pid);
                    }
                }
                Record::Mapped { pid: raw, range, file, file_offset } => {
                    let Some(pid) = pid(raw) else { continue };
                    self.mapped(pid, range, file, file_offset);
                }
                Record::Lost => lost = true,
            }
        }
        if lost {
            // The mappings in the lost records are not known, so examine every program in its beginning,
            // whatever is known of it.
            let now = Instant::now();
            for program in self.programs.values_mut().filter(|program| now < program.until) {
                program.mapped.clear();
                program.due.get_or_insert(program.quiet_from(now));
            }
            if self.settings.follow {
                self.tree.take_in(self.programs.keys().copied());
                self.look_around();
            }
        }
    }

    /// Notes that a program maps something executable.
    fn mapped(&mut self, pid: Pid, range: AddrRange, file: FileId, file_offset: u64) {
        let huge = self.policy.pages.pmd;
        if file.inode == 0 || range.align_inward(huge).is_none() {
            return;
        }
        let now = Instant::now();
        let Some(program) = self.programs.get_mut(&pid).filter(|program| now < program.until)
        else {
            return;
        };
        let into_huge_page = range.start().get() & (huge.bytes() - 1);
        program.mapped.push(Mapping { file, file_offset, len: range.len(), into_huge_page });
        program.due = Some(program.quiet_from(now));
    }

    /// Searches `/proc` for programs not seen yet. Returns whether there were any; `None` if no process is
    /// left.
    fn look_around(&mut self) -> Option<bool> {
        let members = self.tree.walk(self.settings.follow);
        if members.is_empty() {
            return None;
        }
        let mut found = false;
        let mut running = HashMap::new();
        for pid in members {
            let Ok(process) = ProcDir::of(pid) else { continue };
            let (Some(begun), Ok(exe)) = (start_time(&process), process.exe_path()) else {
                continue;
            };
            let now = (begun, exe);
            if self.running.get(&pid) != Some(&now) && !self.programs.contains_key(&pid) {
                self.begin(pid);
                if let Some(program) = self.programs.get_mut(&pid) {
                    program.due.get_or_insert(program.seen + AGE);
                }
                found = true;
            }
            running.insert(pid, now);
        }
        self.running = running;
        Some(found)
    }

    fn look_at_due(&mut self) {
        loop {
            let now = Instant::now();
            let due = |program: &Program| program.due.is_some_and(|due| due <= now);
            let next = self.programs.iter().find(|(_, program)| due(program));
            let Some((&pid, _)) = next else { return };
            let again = self.look_at(pid);
            let polled = self.policy.select.jit || self.watch.is_none();
            let Some(program) = self.programs.get_mut(&pid) else { continue };
            program.due = None;
            if !again {
                program.mapped.clear();
            }
            let now = Instant::now();
            if (again || polled) && now < program.until {
                // The last look is at the end of the program's time.
                program.due = Some((now + program.gap).min(program.until));
                program.gap *= 2;
                if again {
                    // The obstacle may be gone at any moment.
                    program.gap = program.gap.min(LONGEST_GAP);
                }
            }
        }
    }

    /// Examines a program, and treats it if that makes text huge; returns whether to try again.
    fn look_at(&mut self, pid: Pid) -> bool {
        let Some(program) = self.programs.get(&pid) else { return false };
        let now = Instant::now();
        self.nothing_to_gain.retain(|_, since| now.duration_since(*since) < MEMORY);
        let known = |mapping| self.nothing_to_gain.contains_key(mapping);
        let told = !program.mapped.is_empty();
        if told && !self.policy.select.jit && program.mapped.iter().all(known) {
            return false;
        }
        if now < program.seen + BEGINNING && !has_worked(pid) {
            return true;
        }
        let (mapped, patience) = (program.mapped.clone(), program.gap.min(LONGEST_GAP));
        let seen_ticks = program.seen_ticks;
        let by_copy = told && mapped.iter().all(|mapping| self.copied.contains(mapping));
        let had_copies = program.copies.were_seen(pid);
        let unknown = (LookOutcome::Otherwise, had_copies);
        let mut one = || {
            if !self.is_meant(pid, seen_ticks) {
                return unknown;
            }
            let has = ProcDir::of(pid).ok().and_then(|process| look_for_text_of_ours(&process));
            if had_copies && has == Some(false) {
                return (LookOutcome::Reverted, false);
            }
            let mut has_copies = has.unwrap_or(had_copies);
            let outcome = match self.treat(pid, by_copy, patience, &mut has_copies) {
                Ok(outcome) => outcome,
                Err(reason) if may_pass(reason) => LookOutcome::MayPass,
                Err(_) => LookOutcome::Otherwise,
            };
            (outcome, has_copies)
        };
        let (outcome, has_copies) = if workers::is_foreign(pid) {
            workers::apart_as_its_user(pid, LONGEST, one).unwrap_or(unknown)
        } else {
            one()
        };
        if let Some(program) = self.programs.get_mut(&pid) {
            program.copies.note(pid, has_copies);
            if outcome == LookOutcome::Reverted {
                program.until = now;
            }
        }
        match outcome {
            LookOutcome::NothingToGain => {
                self.nothing_to_gain.extend(mapped.into_iter().map(|mapping| (mapping, now)));
            }
            LookOutcome::Copied => self.copied.extend(mapped),
            LookOutcome::Otherwise | LookOutcome::MayPass | LookOutcome::Reverted => {}
        }
        outcome == LookOutcome::MayPass
    }

    /// Returns whether the process is the one that was seen, runs a program that the user selected, and has
    /// text that could be huge.
    fn is_meant(&self, pid: Pid, seen_ticks: u64) -> bool {
        if is_switched_off() {
            return false;
        }
        let Ok(process) = ProcDir::of(pid) else { return false };
        if start_time(&process).is_none_or(|begun| begun > seen_ticks) {
            return false;
        }
        if !process.exe_path().is_ok_and(|path| self.patterns.accept(&path)) {
            return false;
        }
        // A program that maps all the time is tried again.
        let Ok(vmas) = areas::vmas(&process) else { return true };
        let select = self.policy.select;
        vmas.iter().any(|vma| {
            let wanted = if vma.is_file_backed() { select.text() } else { select.jit };
            vma.perms.exec && wanted && vma.range.align_inward(self.policy.pages.pmd).is_some()
        })
    }

    /// Treats a process. `by_copy` leaves the page cache out, because the files were not in huge folios
    /// before. `has_copies` is set once it is known whether the process has copies now.
    fn treat(
        &mut self,
        pid: Pid,
        by_copy: bool,
        patience: Duration,
        has_copies: &mut bool,
    ) -> Result<LookOutcome, Reason> {
        let locked = LockedTarget::open(pid).map_err(|failure| failure.reason)?;
        let mut order = locked.order(self.policy);
        order.patience = patience;
        order.policy.sources.pagecache &= !by_copy;
        let treated = locked.treat_once(&order, &mut self.images);
        let treated = treated.map_err(|failure| failure.reason)?;
        // The lock keeps other TiExec processes from a revert here.
        *has_copies = locked.has_text_of_ours().unwrap_or(*has_copies);
        let done = treated.changed_it();
        if done {
            (self.tell)(&locked, &treated);
        }
        let attached = &treated.attached;
        let copied = attached.plan.spans_by(Backing::Pagecache).next().is_none();
        Ok(match (&attached.failure, done) {
            (Some(failure), _) if may_pass(failure.reason) => return Err(failure.reason),
            (Some(_), _) => LookOutcome::Otherwise,
            (None, false) => LookOutcome::NothingToGain,
            (None, true) if copied => LookOutcome::Copied,
            (None, true) => LookOutcome::Otherwise,
        })
    }
}

/// The result of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum LookOutcome {
    /// No text could become huge, or it was huge already.
    NothingToGain,
    /// All that could be huge is in copies now.
    Copied,
    /// Anything else.
    Otherwise,
    /// The obstacle may be gone a moment later.
    MayPass,
    /// Somebody has reverted the program.
    Reverted,
}

/// Returns whether the process has run long enough to be worth a look.
fn has_worked(pid: Pid) -> bool {
    let text = ProcDir::of(pid).and_then(|process| process.read("stat"));
    let time = text.ok().and_then(|text| stat::run_time(&text).ok());
    time.is_none_or(|time| time >= process::ticks(WORK))
}
