//! The invariants of every edge that a plan takes, whatever lies around the text.

use proptest::prelude::*;
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::config::{EdgePolicy, Edges};
use tiexec_core::elf::LoadSegment;
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::edges::{Around, Reserved};
use tiexec_core::plan::{Backing, Means, Plan, RunningText, plan, plan_running};
use tiexec_core::proc::maps::{FileId, Perms, Vma};
use tiexec_core::rebase::MainImage;
use tiexec_core::snapshot::Snapshot;

const BASE: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;
const FILE: FileId = FileId { major: 8, minor: 1, inode: 42 };
/// The lowest address.
const FLOOR: u64 = 16 * HUGE;

fn pages() -> Pages {
    Pages { base: PageSize::new(BASE).unwrap(), pmd: PageSize::new(HUGE).unwrap() }
}

fn range(start: u64, end: u64) -> AddrRange {
    AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
}

/// The content of some addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Nothing,
    Text,
    Rodata,
    /// A segment that is written to, perhaps read-only by now.
    Data {
        relro: bool,
    },
    /// Read-only data of the file that the program has unmapped.
    Unmapped,
    /// Read-only data of the file that the program has made writable or executable.
    Changed {
        write: bool,
    },
    Foreign(Perms),
    Heap,
    Stack,
}

#[derive(Clone, Debug)]
struct World {
    pieces: Vec<(AddrRange, What)>,
    loads: Vec<LoadSegment>,
    vmas: Vec<Vma>,
    brk: u64,
}

fn what() -> impl Strategy<Value = What> {
    let perms = any::<[bool; 4]>().prop_map(|[read, write, exec, shared]| Perms {
        read,
        write,
        exec,
        shared,
    });
    prop_oneof![
        6 => Just(What::Nothing),
        8 => Just(What::Text),
        6 => Just(What::Rodata),
        3 => any::<bool>().prop_map(|relro| What::Data { relro }),
        1 => Just(What::Unmapped),
        1 => any::<bool>().prop_map(|write| What::Changed { write }),
        1 => perms.prop_map(What::Foreign),
        1 => Just(What::Heap),
        1 => Just(What::Stack),
    ]
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![1..40u64, 1..2 * HUGE / BASE, Just(HUGE / BASE)].prop_map(|pages| pages * BASE)
}

fn world() -> impl Strategy<Value = World> {
    let piece = (what(), len(), 0..3u64);
    let brk = prop_oneof![Just(1u64 << 45), FLOOR..FLOOR + 24 * HUGE];
    (prop::collection::vec(piece, 1..12), brk).prop_map(|(pieces, brk)| {
        let mut world = World { pieces: vec![], loads: vec![], vmas: vec![], brk };
        let (mut at, mut ahead) = (FLOOR, 0);
        for (what, len, further) in pieces {
            // lld and mold let vaddrs run ahead of file offsets.
            ahead += further * BASE;
            let place = range(at, at + len);
            let file_offset = at - FLOOR + ahead;
            world.pieces.push((place, what));
            let load = |exec, write| LoadSegment {
                file_offset,
                vaddr: at,
                file_size: len,
                mem_size: len,
                exec,
                write,
            };
            let perms = |text: &str| Perms {
                read: text.contains('r'),
                write: text.contains('w'),
                exec: text.contains('x'),
                shared: false,
            };
            let mine = |perms| Vma {
                range: place,
                perms,
                file_offset,
                file: FILE,
                name: b"/m"[..].into(),
                ..Vma::default()
            };
            let other = |perms, name: &str| Vma {
                range: place,
                perms,
                name: name.as_bytes().into(),
                ..Vma::default()
            };
            match what {
                What::Nothing => {}
                What::Text => {
                    world.loads.push(load(true, false));
                    world.vmas.push(mine(perms("rx")));
                }
                What::Rodata => {
                    world.loads.push(load(false, false));
                    world.vmas.push(mine(perms("r")));
                }
                What::Data { relro } => {
                    world.loads.push(load(false, true));
                    world.vmas.push(mine(perms(if relro { "r" } else { "rw" })));
                }
                What::Unmapped => world.loads.push(load(false, false)),
                What::Changed { write } => {
                    world.loads.push(load(false, false));
                    world.vmas.push(mine(perms(if write { "rw" } else { "rx" })));
                }
                What::Foreign(perms) => {
                    let file = FileId { inode: 7, ..FILE };
                    world.vmas.push(Vma { file, ..other(perms, "/other") });
                }
                What::Heap => world.vmas.push(other(perms("rw"), "[heap]")),
                What::Stack => world.vmas.push(other(perms("rw"), "[stack]")),
            }
            at += len;
        }
        let top = range(1 << 46, (1 << 46) + BASE);
        world.vmas.push(Vma { range: top, ..Vma::default() });
        world
    })
}

fn policy() -> impl Strategy<Value = EdgePolicy> {
    let edges = prop_oneof![Just(Edges::Pad), Just(Edges::Aggressive)];
    let threshold = prop_oneof![Just(0), Just(4096), 0..HUGE];
    (edges, threshold).prop_map(|(edges, pad_threshold)| EdgePolicy { edges, pad_threshold })
}

impl World {
    fn snapshot(&self) -> Snapshot {
        let is_text = |(_, what): &&(AddrRange, What)| *what == What::Text;
        let entry =
            self.pieces.iter().find(is_text).map_or(RemoteAddr::new(0), |(at, _)| at.start());
        Snapshot { pages: pages(), vmas: self.vmas.clone(), entry }
    }

    fn launched(&self, policy: EdgePolicy) -> Plan {
        let loads = self.loads.clone();
        let image = MainImage { loads, load_bias: 0, position_independent: false };
        let means = Means {
            image: Some(&image),
            copies: &[Backing::Image],
            edges: policy,
            start_brk: Some(self.brk),
            ..Means::default()
        };
        plan(&self.snapshot(), &means)
    }

    fn attached(&self, policy: EdgePolicy) -> Plan {
        let base = pages().base;
        let images = Parts::find(&self.loads, base, &self.vmas, FILE, |_| false);
        let is_text = |vma: &&Vma| vma.is_text() && vma.file == FILE;
        let texts: Vec<RunningText> = { self.vmas.iter() }
            .filter(is_text)
            .map(|vma| RunningText {
                vma: vma.clone(),
                folios: Vec::new(),
                copy: Some(Backing::Image),
                uncopied: None,
                kept: Vec::new(),
                leave: None,
                parts: images
                    .iter()
                    .find(|parts| parts.is_certain() && parts.describe(vma, vma.range))
                    .cloned(),
            })
            .collect();
        let reserved = Reserved::everything();
        let around = Around { pages: pages(), policy, vmas: &self.vmas, reserved: &reserved };
        plan_running(&around, &texts)
    }

    /// Checks a plan against the true content of the addresses, which the plan did not know.
    fn check(&self, plan: &Plan, policy: EdgePolicy) -> Result<(), TestCaseError> {
        let mut before = RemoteAddr::new(0);
        for span in plan.spans() {
            prop_assert!(span.range.start() >= before, "{:?} overlaps or is out of order", span);
            before = span.range.end();
            prop_assert!(span.range.start().is_aligned(pages().pmd));
            prop_assert!(span.range.end().is_aligned(pages().pmd) && !span.range.is_empty());
            if !span.edge {
                prop_assert_eq!(span.widened_bytes, 0);
            } else {
                prop_assert_eq!(span.range.len(), HUGE);
            }
            let mut text = 0;
            for (place, what) in &self.pieces {
                let Some(shared) = place.intersection(span.range) else { continue };
                match what {
                    What::Text => text += shared.len(),
                    What::Nothing | What::Rodata if span.edge => {}
                    // A segment that the program has made executable is text by its mapping.
                    What::Changed { write: false } if !span.edge => text += shared.len(),
                    _ => prop_assert!(false, "{:?} lies over {:?} {}", span, what, place),
                }
            }
            prop_assert_eq!(span.text_bytes(), text, "{:?}", span);
            if span.edge {
                prop_assert!(text >= policy.least_in_page(), "{:?}", span);
                self.check_free(span.range)?;
            }
        }
        for text in &plan.texts {
            let vma = text.vma.range;
            let taken = plan.spans().filter_map(|span| span.range.intersection(vma));
            let taken: u64 = taken.map(AddrRange::len).sum();
            let rest: u64 = text.rest.iter().map(|&(_, bytes)| bytes).sum();
            prop_assert_eq!(taken + rest, vma.len(), "{:?}", text);
        }
        Ok(())
    }

    /// Checks that neither the heap nor a stack will grow into the empty parts of an edge.
    fn check_free(&self, page: AddrRange) -> Result<(), TestCaseError> {
        let mut at = page.start().get();
        while at < page.end().get() {
            let here = range(at, at + BASE);
            if self.vmas.iter().any(|vma| vma.range.overlaps(here)) {
                at += BASE;
                continue;
            }
            // The kernel extends the heap as far as nothing is in its way.
            let above = self.vmas.iter().find(|vma| vma.range.start().get() >= at).unwrap();
            prop_assert!(above.name != b"[stack]", "{:?} is a stack's room", here);
            if at + BASE > self.brk {
                let between = self.vmas.iter().any(|vma| {
                    vma.range.start().get() >= self.brk
                        && vma.range.end().get() <= at
                        && vma.name != b"[heap]"
                });
                prop_assert!(between, "{:?} is the heap's room from {:#x}", here, self.brk);
            }
            at += BASE;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_launchs_edges_cover_text_its_files_read_only_data_and_nothing(
        world in world(),
        policy in policy(),
    ) {
        world.check(&world.launched(policy), policy)?;
    }

    #[test]
    fn a_running_programs_edges_cover_no_gap(world in world(), policy in policy()) {
        let plan = world.attached(policy);
        world.check(&plan, policy)?;
        for span in plan.spans() {
            let nothing = world.pieces.iter().filter(|(_, what)| *what == What::Nothing);
            let mut gaps = nothing.filter(|(gap, _)| gap.overlaps(span.range));
            prop_assert!(gaps.next().is_none(), "{:?} covers a gap", span);
        }
    }

    #[test]
    fn conservative_plans_leave_the_edges(world in world()) {
        let plan = world.launched(EdgePolicy::default());
        prop_assert!(plan.spans().all(|span| !span.edge));
        prop_assert_eq!(plan.widened_bytes(), 0);
    }

    #[test]
    fn more_is_never_less(world in world(), threshold in 0..HUGE) {
        // Some mapping of the file must stay: to take all of it would be too much.
        let mut world = world;
        let far = range(1 << 45, (1 << 45) + BASE);
        let perms = Perms { read: true, write: true, ..Perms::default() };
        let place = world.vmas.len() - 1;
        world.vmas.insert(place, Vma { range: far, perms, file: FILE, ..Vma::default() });
        let of = |edges| world.launched(EdgePolicy { edges, pad_threshold: threshold }).huge_bytes();
        let all = [Edges::Conservative, Edges::Pad, Edges::Aggressive].map(of);
        prop_assert!(all.is_sorted(), "{all:?}");
    }
}
