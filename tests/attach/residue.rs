//! TiExec dies at any moment of an attach or a revert, with every kind of copy and of edges. The next revert restores
//! the program's mappings exactly and leaves no mapping of TiExec's, and the next attach works. This also holds in
//! address spaces with little free room. It also holds if TiExec and the thread that it had stopped are killed together
//! while another process uses the same address space.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::attaching::{ctl, descriptors, files_joined, small, staged};
use support::child::{Done, Held, eventually, soon, state};
use support::edges::{ask, finish, hold};
use support::extent::{Share, is_whole, met, rounds, shared};
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::smaps::{Vma, pmd_size, status_field};
use support::store::{own_run, set_up};
use support::{Fresh, Kind, Public, Random, Run, installed, is_root, program, require};
use tiexec_core::addr::{AddrRange, PageSize, Pages};
use tiexec_core::marks::Marks;
use tiexec_core::proc::{auxv, maps};

const NONE: [&str; 0] = [];
const POINTS: [&str; 3] = ["die-after-setregs", "die-after-stop", "die-after-write"];

/// The place of a program's file. Drop removes it.
enum Place {
    Fresh(Fresh),
    Public { _dir: Public, path: PathBuf },
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Place::Fresh(fresh) => fresh.path(),
            Place::Public { path, .. } => path,
        }
    }
}

/// A program for many attaches, and the outcomes so far.
struct Target {
    place: Place,
    backing: &'static str,
    edges: &'static str,
    /// The commands through which the program starts.
    front: &'static [&'static str],
    held: Held,
    /// The distance in GiB of pages that occupy its address space (0: another distance), and whether staged mappings of
    /// a revert may stay then.
    crowd: Option<(u32, bool)>,
    maps: Vec<String>,
    fds: Vec<String>,
    trials: usize,
    failures: Vec<String>,
}

impl Target {
    /// Starts `own_image` for this backing and these edges.
    fn new(kind: Kind, backing: &'static str, edges: &'static str) -> Target {
        Target::crowded(kind, backing, edges, None)
    }

    /// Starts it in an address space with a page at each multiple of a number of GiB.
    fn crowded(
        kind: Kind,
        backing: &'static str,
        edges: &'static str,
        crowd: Option<(u32, bool)>,
    ) -> Target {
        let place = match backing {
            "image" | "hugetlb" => Place::Fresh(small("own_image", kind)),
            "pagecache" => Place::Fresh(Fresh::copy(&program("own_image", kind))),
            _ => {
                own_run();
                set_up("128M");
                let public = Public::new();
                let path = public.add(&program("own_image", kind), "own_image", 0o755);
                support::warm::cache_small(&path);
                Place::Public { _dir: public, path }
            }
        };
        Self::at(place, backing, edges, &[], crowd)
    }

    /// Starts it from an existing file.
    fn at(
        place: Place,
        backing: &'static str,
        edges: &'static str,
        front: &'static [&'static str],
        crowd: Option<(u32, bool)>,
    ) -> Target {
        let held = Self::start(&place, front);
        let mut target = Target {
            place,
            backing: if backing == "store" { "image" } else { backing },
            edges,
            front,
            held,
            crowd,
            maps: Vec::new(),
            fds: Vec::new(),
            trials: 0,
            failures: Vec::new(),
        };
        target.look();
        target
    }

    fn start(place: &Place, front: &[&str]) -> Held {
        hold(&Run::new(place.path(), NONE).plain().behind(front).limit(600))
    }

    /// Records the state of the untouched program.
    fn look(&mut self) {
        assert_eq!(ask(&mut self.held, "protect"), "ok");
        if let Some((gib @ 1.., _)) = self.crowd {
            let pages: u32 = ask(&mut self.held, &format!("crowd {gib}")).parse().expect("a count");
            assert!(pages > (1 << 17) / gib / 2, "{pages}");
        }
        (self.maps, self.fds) = (files_joined(self.pid()), descriptors(self.pid()));
    }

    fn pid(&self) -> i32 {
        self.held.pid()
    }

    fn attach(&self) -> Run {
        let (backing, edges) =
            (format!("--backing={}", self.backing), format!("--edges={}", self.edges));
        let args = ["attach", "--json", &backing, &edges, &self.pid().to_string()];
        Run::new(support::tiexecctl(), args).plain()
    }

    fn revert(&self) -> Run {
        Run::new(support::tiexecctl(), ["revert", "--json", &self.pid().to_string()]).plain()
    }

    fn staged(&self) -> Vec<Vma> {
        staged(self.pid(), self.place.path())
    }

    /// Waits until the thread is home, when no staged mapping may be left.
    fn is_home(&self, when: &str) {
        if self.crowd.is_none() {
            eventually(&format!("{when}: nothing staged is left"), || self.staged().is_empty());
        }
    }

    /// Attaches. The attach must work.
    fn attached(&mut self, when: &str) {
        // The kernel may finish the last call of a killed revert after this attach has examined the program.
        self.is_home(when);
        let done = self.attach().output();
        let changed = files_joined(self.pid()) != self.maps;
        if done.end().0 != Some(0) || !changed {
            self.failed(format!("{when}: the attach after it: {done}"));
        }
    }

    /// Reverts and checks that everything is as it was. If not, the next trial has a new program.
    fn reverted(&mut self, when: &str) {
        self.trials += 1;
        let pid = self.pid();
        assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"), "{when}");
        self.is_home(when);
        let mut done = self.revert().output();
        // The kernel may have finished the last call of the killed tracer after this revert examined the program and
        // before its stop.
        if done.out().contains("is mapped otherwise than before") {
            done = self.revert().output();
        }
        let mut maps = files_joined(pid);
        if let Some((_, true)) = self.crowd {
            let own = self.place.path().to_string_lossy();
            let staged: Vec<String> = (self.staged().iter())
                .filter(|vma| vma.path == own)
                .map(|vma| format!("{:x}-{:x} ", vma.start, vma.end))
                .collect();
            maps.retain(|line| !staged.iter().any(|range| line.starts_with(range)));
        }
        let more: Vec<&String> = maps.iter().filter(|line| !self.maps.contains(line)).collect();
        if done.end().0 != Some(0) || maps != self.maps {
            self.failed(format!("{when}: {done}\n{more:#?}"));
        } else {
            assert_eq!(descriptors(pid), self.fds, "{when}");
        }
    }

    fn failed(&mut self, what: String) {
        self.failures.push(what);
        self.held = Self::start(&self.place, self.front);
        self.look();
    }

    /// Ends the program, which must be right to its end. Panics if any revert left something.
    fn end(mut self, name: &str) {
        assert!(ask(&mut self.held, "check").parse::<u64>().is_ok(), "{name}");
        finish(self.held);
        let (trials, count) = (self.trials, self.failures.len());
        println!("{name}: {count} of {trials} trials left something");
        assert!(
            count == 0,
            "{count} of {trials} trials left something; the first: {}",
            self.failures[0]
        );
    }
}

/// Returns whether the command failed. If the target belongs to another user, only the tracing child dies.
fn struck(run: &Run, point: &str, n: u32) -> bool {
    let done = run.clone().env("TIEXEC_FAULT", format!("{point}:{n}")).output();
    done.end() != (Some(0), None)
}

/// Kills TiExec at each place of an attach, of a revert, and of a revert after a killed revert.
fn at_each_place(share: Share, kind: Kind, backing: &'static str, edges: &'static str) {
    let name = format!("{kind:?}, {backing}, {edges}");
    at_each_place_of(share, Target::new(kind, backing, edges), &POINTS, &name);
}

fn at_each_place_of(share: Share, mut target: Target, points: &[&str], name: &str) {
    let mut random = Random::new();
    for point in points {
        let mut last_of_revert = 0;
        for (index, what) in ["attach", "revert", "second revert"].into_iter().enumerate() {
            let least = if index == 2 { 0 } else { 3 };
            let last = share.sweep(least, &format!("{name}: {what}, {point}"), |n| {
                let when = format!("{name}: {what}, {point}:{n}");
                let hit = match index {
                    0 => struck(&target.attach(), point, n),
                    _ => {
                        target.attached(&when);
                        if index == 2 {
                            let first = 1 + random.below(last_of_revert.max(1).into()) as u32;
                            struck(&target.revert(), point, first);
                        }
                        struck(&target.revert(), point, n)
                    }
                };
                // Sometimes an attach precedes the revert.
                if n % 2 == 0 && hit {
                    target.attached(&when);
                }
                target.reverted(&when);
                // The second revert's work depends on where the first one died.
                hit || index == 2 && n < last_of_revert
            });
            if index == 1 {
                last_of_revert = last;
            }
        }
    }
    target.end(name);
}

/// Runs TiExec and kills it at a random moment, either of its whole run or of the time in which it traces the program.
fn killed_at_random(target: &Target, run: &Run, random: &mut Random, lasts: Duration) -> bool {
    let tool = run.start();
    if random.below(4) == 0 {
        random.spin_within(lasts);
    } else {
        let until = Instant::now() + lasts * 3;
        let traced = || status_field(target.pid(), "TracerPid").is_some_and(|tracer| tracer != "0");
        while !traced() && Instant::now() < until {
            std::hint::spin_loop();
        }
        random.spin_within(Duration::from_millis(3));
    }
    tool.signal(libc::SIGKILL);
    tool.finish().end().1 == Some(libc::SIGKILL)
}

fn at_random_moments(kind: Kind, backing: &'static str, edges: &'static str) {
    let mut target = Target::new(kind, backing, edges);
    let mut random = Random::new();
    let timed = |run: &Run| {
        let since = Instant::now();
        let done: Done = run.output();
        done.assert_code(0);
        since.elapsed()
    };
    let lasts = [timed(&target.attach()), timed(&target.revert())];
    let mut killed = 0;
    let rounds = rounds(6);
    for round in 0..rounds {
        let what = ["attach", "revert", "second revert"][round % 3];
        let when = format!("{kind:?}, {backing}, {edges}: {what}, round {round}");
        if round % 3 != 0 {
            target.attached(&when);
        }
        if round % 3 == 2 {
            killed +=
                usize::from(killed_at_random(&target, &target.revert(), &mut random, lasts[1]));
        }
        let (run, lasts) =
            if round % 3 == 0 { (target.attach(), lasts[0]) } else { (target.revert(), lasts[1]) };
        killed += usize::from(killed_at_random(&target, &run, &mut random, lasts));
        target.reverted(&when);
    }
    met(killed, rounds, "killed");
    target.end(&format!("{kind:?}, {backing}, {edges}, at random moments"));
}

/// The number of kinds below.
const COMBINATIONS: u32 = 9;

macro_rules! combinations {
    ($($index:literal $name:ident: $kind:ident, $backing:literal, $edges:literal;)*) => {
        mod each_place {
            use super::*;
            $(#[test]
            fn $name() {
                require!($backing != "pagecache" || huge_folios(), "{NO_HUGE_FOLIOS}");
                require!($backing != "store" || is_root(), "a mount namespace needs root");
                let share = Share { index: $index, of: COMBINATIONS };
                at_each_place(share, Kind::$kind, $backing, $edges);
            })*
        }
        mod random_moments {
            use super::*;
            $(#[test]
            fn $name() {
                require!($backing != "pagecache" || huge_folios(), "{NO_HUGE_FOLIOS}");
                require!($backing != "store" || is_root(), "a mount namespace needs root");
                at_random_moments(Kind::$kind, $backing, $edges);
            })*
        }
    };
}

combinations! {
    0 conservative_image: DynamicPie, "image", "conservative";
    1 pad_image: DynamicNoPie, "image", "pad";
    2 aggressive_image: StaticNoPie, "image", "aggressive";
    3 conservative_store: DynamicNoPie, "store", "conservative";
    4 pad_store: DynamicNoPie, "store", "pad";
    5 aggressive_store: StaticNoPie, "store", "aggressive";
    6 pad_pagecache: StaticNoPie, "pagecache", "pad";
    7 aggressive_pagecache: StaticNoPie, "pagecache", "aggressive";
    8 pad_image_lld: SpreadLldPie, "image", "pad";
}

/// No place is far from all mappings. The next revert unmaps what the thread cannot unmap.
#[test]
fn where_no_place_is_far() {
    for (share, (kind, edges, gib)) in shared([
        (Kind::DynamicNoPie, "pad", 1024),
        (Kind::SpreadPie, "conservative", 512),
        (Kind::DynamicPie, "pad", 64),
    ]) {
        let target = Target::crowded(kind, "image", edges, Some((gib, false)));
        let name = format!("{kind:?}, {edges}, a page in each {gib} GiB");
        at_each_place_of(share, target, &POINTS[1..2], &name);
    }
}

/// A sanitizer has reserved nearly all of the address space.
#[test]
fn under_sanitizers() {
    for (share, kind) in shared([Kind::ThreadSanitizer, Kind::AddressSanitizer]) {
        if !kind.can_build() {
            support::skip(&format!("{kind:?} cannot be built here"));
            continue;
        }
        let mut target = Target::new(kind, "image", "pad");
        // There are no far places, so staged mappings may be left.
        target.crowd = Some((0, false));
        at_each_place_of(share, target, &POINTS[1..2], &format!("{kind:?}"));
    }
}

/// No gap is wide enough for a mark. The mappings that a revert has staged belong to the file, and may stay.
#[test]
fn where_no_gap_is_wide() {
    let mut target = Target::crowded(Kind::DynamicNoPie, "image", "pad", Some((8, true)));
    // The kernel needs a long time to list so many mappings.
    for n in (3..14).filter(|n| is_whole() || n % 4 == 3) {
        let when = format!("a page in each 8 GiB: revert, stop {n}");
        target.attached(&when);
        assert!(struck(&target.revert(), POINTS[1], n), "{when}");
        target.reverted(&when);
    }
    target.end("a page in each 8 GiB");
}

/// The process belongs to another user, so a child of TiExec traces it, and only that child dies.
#[test]
fn of_another_user() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    const FRONT: [&str; 4] = ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups"];
    let public = Public::new();
    let path = public.add(&program("own_image", Kind::DynamicNoPie), "own_image", 0o755);
    support::warm::cache_small(&path);
    let place = Place::Public { _dir: public, path };
    let target = Target::at(place, "image", "pad", &FRONT, None);
    // The kinds of copies above share all places. This is one more way to die, at every third place.
    let share = Share { index: 0, of: 3 };
    at_each_place_of(share, target, &POINTS, "another user's, image, pad");
}

/// Pages of the hugetlb pool cannot be returned in part.
#[test]
fn pages_of_the_pool() {
    let mut machine = support::machine::Machine::lock();
    require!(machine.pool(16), "16 huge pages cannot be reserved");
    for (share, (kind, edges)) in
        shared([(Kind::SeedNoPie, "aggressive"), (Kind::DynamicPie, "pad")])
    {
        let target = Target::new(kind, "hugetlb", edges);
        at_each_place_of(share, target, &POINTS[1..2], &format!("{kind:?}, hugetlb, {edges}"));
    }
}

/// An earlier version of TiExec claimed the gaps at the edges of a text, and was killed. The next attach or revert
/// unmaps its claims, and no other mapping of that form.
#[test]
fn claims_of_an_earlier_version_go() {
    let copy = small("own_image", Kind::SeedNoPie);
    let mut held = hold(&Run::new(copy.path(), NONE).plain());
    let pid = held.pid();
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).expect("an own child");
    let page = rustix::param::page_size() as u64;
    let [base, pmd] = [page, pmd_size()].map(|size| PageSize::new(size).expect("a power of two"));
    let pages = Pages { base, pmd };
    let at_random = auxv::get(&read("auxv"), auxv::AT_RANDOM).expect("in every auxv");
    let marks = Marks::of(at_random, pages).expect("a usual stack");
    let vmas = maps::parse(&read("maps")).expect("lines");
    let text = vmas.into_iter().find(maps::Vma::is_text).expect("its text");
    let end = text.range.end();
    let gap = AddrRange::new(end, end.align_up(pmd).expect("far below the top")).expect("upwards");
    let offset = marks.claim_offset(text.file, gap);
    let claim = |start: u64, end: u64| format!("claim {start:x} {end:x} {offset:x}");
    for (index, words) in
        [["attach", "--backing=image"], ["revert", "--json"]].into_iter().enumerate()
    {
        // The program's own mapping, whose offset is not that of its addresses.
        let above = gap.end().get() + index as u64 * 2 * page;
        assert_eq!(ask(&mut held, &claim(above, above + page)), "ok");
        let before = files_joined(pid);
        assert_eq!(ask(&mut held, &claim(gap.start().get(), gap.end().get())), "ok");
        assert_ne!(files_joined(pid), before);
        ctl(words.into_iter().chain([pid.to_string().as_str()])).assert_code(0).assert_silent();
        let range = format!("{:x}-", end.get());
        let is_there = files_joined(pid).iter().any(|line| line.starts_with(&range));
        assert!(!is_there, "{words:?}: {:#?}", files_joined(pid));
        ctl(["revert", &pid.to_string()]).assert_code(0).assert_silent();
        assert_eq!(files_joined(pid), before, "{words:?}");
    }
    assert!(ask(&mut held, "check").parse::<u64>().is_ok());
    finish(held);
}

/// Two processes share one address space. TiExec stops the first, which is then killed.
fn killed_while_it_stands(index: u32, backing: &str, edges: &str, kind: Kind) {
    // There are three kinds of text below.
    let share = Share { index, of: 3 };
    let path = match backing {
        "pagecache" => Fresh::copy(&program("twin", kind)),
        _ => small("twin", kind),
    };
    let options = [format!("--backing={backing}"), format!("--edges={edges}")];
    let attach = |pid: i32| {
        let [backing, edges] = &options;
        Run::new(support::tiexecctl(), ["attach", "--json", backing, edges, &pid.to_string()])
            .plain()
    };
    let revert =
        |pid: i32| Run::new(support::tiexecctl(), ["revert", "--json", &pid.to_string()]).plain();
    let mut left = 0;
    for what in ["attach", "revert"] {
        share.sweep(5, &format!("{backing}, {edges}: {what}"), |n| {
            let when = format!("{backing}, {edges}: {what}, stop {n}");
            let mut held = Run::new(path.path(), NONE).plain().start();
            held.wait_line("ready");
            let (first, second) =
                (held.pid(), held.said("twin").expect("its pid").parse().expect("a number"));
            let before = files_joined(first);
            let run = if what == "attach" {
                attach(first)
            } else {
                attach(first).output().assert_code(0);
                revert(first)
            };
            let tool = run.env("TIEXEC_FAULT", format!("stand-after-stop:{n}")).start();
            let _or_it_ends = soon(|| matches!(state(tool.pid()), Some('T' | 'Z')));
            let stood = state(tool.pid()) == Some('T');
            if stood {
                held.signal(libc::SIGKILL);
                eventually(&when, || state(first) == Some('Z'));
                tool.signal(libc::SIGCONT);
            }
            let done = tool.finish();
            assert_eq!(done.end().0 == Some(0), !stood, "{when}: {done}");
            left += usize::from(files_joined(second).iter().any(|line| !before.contains(line)));
            revert(second).output().assert_code(0);
            assert_eq!(files_joined(second), before, "{when}: {done}");
            if n % 2 == 0 {
                attach(second).output().assert_code(0);
                assert_ne!(files_joined(second), before, "{when}");
            }
            held.write(b"\n");
            held.wait_line("right");
            held.write(b"\n");
            if !stood {
                held.signal(libc::SIGKILL);
            }
            held.finish().assert_signal(libc::SIGKILL);
            stood
        });
    }
    assert!(left > 0, "nothing was ever left");
}

#[test]
fn the_stopped_thread_is_killed_too() {
    killed_while_it_stands(0, "image", "pad", Kind::DynamicNoPie);
    killed_while_it_stands(1, "image", "conservative", Kind::DynamicPie);
}

#[test]
fn the_stopped_thread_is_killed_too_with_edges_of_the_page_cache() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    killed_while_it_stands(2, "pagecache", "pad", Kind::StaticNoPie);
}
