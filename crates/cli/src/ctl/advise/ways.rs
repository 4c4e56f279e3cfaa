//! The commands that put the text of the sampled processes onto huge pages.

use std::collections::HashMap;
use std::ffi::OsString;

use tiexec_advise::advice::{Reach, Way, interiors};
use tiexec_advise::samples::Tally;
use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::config::Edges;
use tiexec_core::escape::{AsShown, in_shell};
use tiexec_remap::restart::Started;

use super::gather::{EDGES, Known};
use crate::options::Advise;

/// Returns the ways: an attach, if processes were named, and a start by `tiexec`. The way that changes least is the
/// first.
pub(super) fn ways(
    options: &Advise,
    program: &str,
    tally: &Tally,
    known: &HashMap<usize, Known>,
    pages: Pages,
) -> Vec<Way> {
    let has_jit = known.values().any(|known| !known.jit.is_empty());
    let is_running = options.command.is_empty();
    let mut ways = Vec::new();
    for start in [false, true] {
        for jit in [false, true] {
            if (start || is_running) && (has_jit || !jit) {
                let of = |index| Wish { start, edges: EDGES[index], index, jit };
                ways.extend(
                    [0, 1].map(|index| of(index).way(options, program, tally, known, pages)),
                );
            }
        }
    }
    ways
}

/// One way.
struct Wish {
    start: bool,
    edges: Edges,
    /// The index of `edges` in [`EDGES`].
    index: usize,
    jit: bool,
}

impl Wish {
    fn way(
        &self,
        options: &Advise,
        program: &str,
        tally: &Tally,
        known: &HashMap<usize, Known>,
        pages: Pages,
    ) -> Way {
        let reach = known.iter().filter_map(|(&space, known)| {
            let whole = || interiors(tally, &tally.spaces()[space], pages);
            Some((space, self.reach(known, whole)?))
        });
        Way {
            command: self.command(options, program),
            starts: self.start,
            edges: self.edges,
            reach: reach.collect(),
        }
    }

    /// Returns the ranges that the way puts on huge pages in an address space; `None` if they are not known.
    fn reach(&self, known: &Known, whole: impl FnOnce() -> Vec<AddrRange>) -> Option<Reach> {
        let attach = known.attach.as_ref().map(|plans| plans[self.index].clone());
        let mut reach = Reach::default();
        if self.start {
            let Started { image, plan, .. } = &known.start.as_ref()?[self.index];
            // Shared objects keep their addresses.
            reach.spans = attach.unwrap_or_else(whole);
            reach.spans.retain(|span| !span.overlaps(*image));
            reach.spans.extend(plan.spans().map(|span| span.range));
            reach.moved = plan.rebase.as_ref().map(|rebase| (rebase.from, rebase.to.start()));
        } else {
            reach.spans = attach?;
        }
        if self.jit {
            reach.spans.extend(&known.jit);
        }
        Some(reach)
    }

    fn command(&self, options: &Advise, program: &str) -> String {
        let mut words: Vec<OsString> = match self.start {
            true => vec!["tiexec".into()],
            false => vec!["tiexecctl".into(), "attach".into()],
        };
        if options.follow {
            words.push("--follow".into());
        }
        if self.edges == Edges::Pad {
            words.push("--edges=pad".into());
        }
        if self.jit {
            words.push("--select=all".into());
        }
        match self.start {
            // `--settle` covers code that the program compiles later.
            true if self.jit => words.push("--settle=1m".into()),
            true => {}
            false => words.extend(options.targets.words()),
        }
        if !self.start {
            return in_shell(&words);
        }
        if options.command.is_empty() {
            return format!("{} {} ...", in_shell(&words), program.word());
        }
        words.extend(options.command.iter().cloned());
        in_shell(&words)
    }
}
