//! `--follow` and `--settle`: programs that are started later, and text that is mapped later.
//!
//! A process beside the program receives records from the kernel ([`tiexec_sys::perf_watch`]) of each exec and
//! of each executable mapping. The records stop no process. If a mapping is too small to hold a huge page, its
//! record alone decides to skip it. Otherwise the process examines the program a little later, when the
//! program has stopped mapping, and treats it as a running one ([`crate::locked_target`]). Without records it
//! polls `/proc`.

pub mod companion;
pub mod counted;
pub mod hand_over;
mod patterns;
pub mod start;
pub mod tree;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tiexec_core::addr::AddrRange;
use tiexec_core::config::Settings;
use tiexec_core::perf::records::Record;
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::FileId;
use tiexec_core::proc::status::CAP_SYS_PTRACE;
use tiexec_remap::attach::AttachOrder;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_sys::perf_watch::{Watch, Woken, wait_for_end};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, areas, process, ptrace};

use crate::locked_target::{Treated, start_time};
use crate::pauses::Growing;
use crate::policy::policy;
use crate::switched_off::is_switched_off;
use crate::times;
use crate::watch::{self, Copies, Outcome, Tell, has_worked};
pub use patterns::Patterns;
use tree::Tree;

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
struct Followed {
    /// When it was seen to begin.
    seen: Instant,
    /// The same in clock ticks since boot. A process that began later is another process with the same id.
    seen_ticks: u64,
    /// The end of the time in which its mappings are examined.
    until: Instant,
    /// When to examine it next.
    due: Option<Instant>,
    /// The pauses between looks.
    pauses: Growing,
    /// The mappings that it has made since the last look and that could be huge.
    mapped: Vec<Mapping>,
    copies: Copies,
}

impl Followed {
    /// Returns when to examine the program if it maps nothing more after `now`.
    fn quiet_from(&self, now: Instant) -> Instant {
        (now + times::QUIET).max(self.seen + times::AGE)
    }
}

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
    programs: HashMap<Pid, Followed>,
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
        let mut walks = times::PROGRAM.begin();
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
            let copies = self.images.has_copies().then(|| now + times::MEMORY);
            let next = due.chain(window).chain(end).chain(copies).min();
            let time = next.map(|next| next.saturating_duration_since(Instant::now()));
            let Some(watch) = &mut self.watch else {
                let Some(found) = self.look_around() else { return };
                if found {
                    walks.restart();
                }
                let pause = walks.take();
                let time = time.map_or(pause, |time| time.min(pause));
                match wait_for_end(None, Some(time)) {
                    Err(error) if error.errno != Errno::INTR => return,
                    _ => continue,
                }
            };
            match watch.wait(time) {
                Ok(Woken::Records) => {
                    self.read_records();
                    let _interrupted = wait_for_end(None, Some(times::GATHER));
                }
                Ok(Woken::End) => return,
                Ok(Woken::Time) => {}
                // A signal has arrived. The sleep keeps any other error from repeating at once.
                Err(_) => std::thread::sleep(times::GATHER),
            }
        }
    }

    /// Notes that a program begins.
    fn begin(&mut self, pid: Pid) {
        let now = Instant::now();
        let least = if self.settings.follow { times::BEGINNING } else { Duration::ZERO };
        let until = now + self.settings.settle().max(least);
        let program = self.programs.entry(pid).or_insert_with(|| Followed {
            seen: now,
            seen_ticks: 0,
            until,
            due: None,
            pauses: times::POLLED.begin(),
            mapped: Vec::new(),
            copies: Copies::default(),
        });
        // The records of two processors come in no order, so mappings that were noted already are kept.
        (program.seen, program.until) = (now, until);
        program.pauses.restart();
        program.seen_ticks = process::ticks_since_boot();
        if self.policy.select.jit || self.watch.is_none() {
            program.due.get_or_insert(now + times::AGE);
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
                // This watch does not ask for them.
                Record::Forked { .. } | Record::Ended { .. } => {}
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
                    program.due.get_or_insert(program.seen + times::AGE);
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
            let due = |program: &Followed| program.due.is_some_and(|due| due <= now);
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
                program.due = Some((now + program.pauses.take()).min(program.until));
                if again {
                    program.pauses.shorten(times::PROGRAM.longest);
                }
            }
        }
    }

    /// Examines a program, and treats it if that makes text huge; returns whether to try again.
    fn look_at(&mut self, pid: Pid) -> bool {
        let Some(program) = self.programs.get(&pid) else { return false };
        let now = Instant::now();
        self.nothing_to_gain.retain(|_, since| now.duration_since(*since) < times::MEMORY);
        let known = |mapping| self.nothing_to_gain.contains_key(mapping);
        let told = !program.mapped.is_empty();
        if told && !self.policy.select.jit && program.mapped.iter().all(known) {
            return false;
        }
        if now < program.seen + times::BEGINNING && !has_worked(pid) {
            return true;
        }
        let Followed { seen_ticks, mut copies, pauses, .. } = *program;
        let mapped = program.mapped.clone();
        let by_copy = told && mapped.iter().all(|mapping| self.copied.contains(mapping));
        let patterns = &self.patterns;
        let policy = self.policy;
        let is_meant = |process: &ProcDir| is_meant(process, seen_ticks, patterns, policy);
        let change = |order: &mut AttachOrder<'_>| {
            order.patience = pauses.next().min(times::PROGRAM.longest);
            order.policy.sources.pagecache &= !by_copy;
        };
        let treat = |_: &ProcDir, has_copies: &mut bool| {
            let treated =
                watch::treat(pid, policy, &mut self.images, change, self.tell, has_copies);
            treated.map_or_else(Outcome::of_failure, |treated| outcome(&treated))
        };
        let outcome = watch::look(pid, &mut copies, is_meant, treat);
        if let Some(program) = self.programs.get_mut(&pid) {
            program.copies = copies;
            if outcome == Outcome::Reverted {
                program.until = now;
            }
        }
        match outcome {
            Outcome::Nothing => {
                self.nothing_to_gain.extend(mapped.into_iter().map(|mapping| (mapping, now)));
            }
            Outcome::Copied => self.copied.extend(mapped),
            Outcome::Unseen | Outcome::Text | Outcome::MayPass | Outcome::Reverted => {}
        }
        outcome == Outcome::MayPass
    }
}

/// Returns whether the process is the one that was seen, runs a program that the user selected, and has text that could be
/// huge.
fn is_meant(process: &ProcDir, seen_ticks: u64, patterns: &Patterns, policy: Policy) -> bool {
    if is_switched_off() {
        return false;
    }
    if start_time(process).is_none_or(|begun| begun > seen_ticks) {
        return false;
    }
    if !process.exe_path().is_ok_and(|path| patterns.accept(&path)) {
        return false;
    }
    // A program that maps all the time is tried again.
    let Ok(vmas) = areas::vmas(process) else { return true };
    vmas.iter().any(|vma| {
        let select = policy.select;
        let wanted = if vma.is_file_backed() { select.text() } else { select.jit };
        vma.perms.exec && wanted && vma.range.align_inward(policy.pages.pmd).is_some()
    })
}

/// Returns the outcome of a look at a process that was treated.
fn outcome(treated: &Treated) -> Outcome {
    let attached = &treated.attached;
    let is_copied = attached.plan.spans_by(Backing::Pagecache).next().is_none();
    match (&attached.failure, treated.changed_it()) {
        (Some(failure), _) => Outcome::of_failure(failure.reason),
        (None, false) => Outcome::Nothing,
        (None, true) if is_copied => Outcome::Copied,
        (None, true) => Outcome::Text,
    }
}
