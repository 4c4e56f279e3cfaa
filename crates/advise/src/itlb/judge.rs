//! A verdict in words, with its reasons.

use std::fmt;

use serde::{Deserialize, Serialize};
use tiexec_core::budget::{ENOUGH_SAMPLES, Misses};
use tiexec_core::tlb_sweep::Sweeps;

use super::MODEL_FACTORS;
use super::tlb::Itlb;

/// The answer: is huge text worth it?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At least a hundredth of the time is expected to be saved.
    WorthIt,
    /// Less is expected, or the saving is uncertain.
    Maybe,
    /// Less than three thousandths.
    NotWorthIt,
    /// Less than three thousandths more: huge pages save that much already.
    Done,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorthIt => "worth it",
            Self::Maybe => "maybe",
            Self::NotWorthIt => "not worth it",
            Self::Done => "done",
        })
    }
}

/// The least saving, as a share of the time, that is worth it.
const WORTH_IT: f64 = 0.01;
/// The saving, as a share of the time, below which it is not worth it.
pub const NOT_WORTH_IT: f64 = 0.003;
/// Instructions per nanosecond: large programs run about one instruction per cycle.
const INSTRUCTIONS_PER_NS: f64 = 2.5;

/// Misses per thousand instructions below which the text fits.
const FITS: f64 = 0.05;

/// The cost of a miss, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MissTime {
    /// The cost if the second level has the translation.
    pub second_ns: f64,
    /// The cost if the processor walks the page tables.
    pub walk_ns: f64,
    /// The least and the greatest measured cost of a walk.
    pub walk_range_ns: [f64; 2],
    /// True if `walk_ns` and `walk_range_ns` were measured on this machine.
    pub measured: bool,
    /// True if the host of this machine splits huge pages. The TLB then has an entry for each base page, so huge pages
    /// shorten walks but save no misses, and `second_ns` is 0.
    pub split: bool,
    /// The cost of a hit of the second level, if a walk costs more.
    #[serde(skip)]
    hit_ns: f64,
}

impl MissTime {
    /// The second level answers in 7 to 9 cycles on most processors; a walk whose tables are in the
    /// caches takes about 30, and twice that in a virtual machine.
    pub const USUAL: Self = Self {
        second_ns: 3.0,
        walk_ns: 12.0,
        walk_range_ns: [12.0; 2],
        measured: false,
        split: false,
        hit_ns: 3.0,
    };

    /// Computes the cost from measured jumps, on this TLB. A walk costs what jumps take longer on base pages than on huge pages, among
    /// four times as many pages as both levels have entries. Without jumps, the result is [`USUAL`](Self::USUAL).
    pub fn of_jumps(times: &Sweeps, itlb: &Itlb) -> Self {
        let entries = itlb.second.unwrap_or(itlb.first).entries().0;
        let walks = times.beyond(entries).map(|point| {
            let missed = (1.0 - f64::from(entries) / f64::from(point.places)).max(0.5);
            (point.base_ns - point.huge_ns).max(0.0) / missed
        });
        let mut walks: Vec<f64> = walks.collect();
        walks.sort_unstable_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (walks.first(), walks.last()) else { return Self::USUAL };
        let hit_ns = itlb.measured.base.second_ns.unwrap_or(Self::USUAL.hit_ns);
        let of_one = Self { hit_ns, ..Self::USUAL }.of_walk(walks[walks.len() / 2]);
        Self { walk_range_ns: [least, most], measured: true, ..of_one }
    }

    /// Returns the cost for a machine whose host splits huge pages, or does not split them.
    #[must_use]
    pub fn on_host(self, split: bool) -> Self {
        let second_ns = if split { 0.0 } else { self.second_ns };
        Self { second_ns, split, ..self }
    }

    /// Returns the cost with another time of a walk.
    fn of_walk(self, walk_ns: f64) -> Self {
        let second_ns = walk_ns.min(self.hit_ns);
        let walk_range_ns = [walk_ns; 2];
        Self { second_ns, walk_ns, walk_range_ns, measured: false, ..self }.on_host(self.split)
    }

    /// Returns the share of the time that text loses on huge pages which the host splits. Observation: after a system
    /// call, the second level of one processor served such text more slowly than text on base pages, as slowly as if it
    /// missed.
    fn lost_by_split(&self, misses: &Misses) -> f64 {
        let hits = Misses { first: misses.first - misses.walks, walks: 0.0 };
        if self.split { Self::USUAL.share_lost(&hits) } else { 0.0 }
    }

    /// Returns the share of the time that is lost to misses.
    pub fn share_lost(&self, misses: &Misses) -> f64 {
        let per_kilo_instruction =
            (misses.first - misses.walks) * self.second_ns + misses.walks * self.walk_ns;
        let lost = per_kilo_instruction * INSTRUCTIONS_PER_NS / 1000.0;
        // The total time includes the lost time.
        lost / (1.0 + lost)
    }
}

impl fmt::Display for MissTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { walk_ns, walk_range_ns: [least, most], measured, .. } = self;
        if *measured {
            write!(f, "{walk_ns:.0} ns (measured: {least:.0} to {most:.0})")
        } else {
            write!(f, "{walk_ns:.0} ns (assumed)")
        }
    }
}

/// The evidence for a judgement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evidence {
    /// Samples in the program's text.
    pub samples: u64,
    /// The share of the samples that lies on huge pages now.
    pub huge_now: f64,
    /// The share of the samples that would lie on huge pages.
    pub reachable: f64,
    /// True if text that is not on huge pages could be, with or without samples in it.
    pub possible: bool,
    /// The first-level entries that huge pages may use.
    pub huge_entries: u32,
    /// The modelled misses with all of the text on base pages.
    pub before: Misses,
    /// The modelled misses with the text as it is now.
    pub now: Misses,
    /// The modelled misses with every possible huge page.
    pub then: Misses,
    /// The share of its cycles that the processor counted as walks for instructions.
    pub walk_share: Option<f64>,
    /// The cost of a miss.
    pub time: MissTime,
}

/// A verdict and its reasons.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The share of its processor time that the program is expected to save.
    pub saving: f64,
    /// The least and the greatest saving, by the measured range of a walk and by the error of the model
    /// ([`MODEL_FACTORS`]).
    pub saving_range: [f64; 2],
    /// The share of processor time that the program's present huge pages are expected to save.
    pub saved: f64,
    /// The reasons, a sentence each.
    pub reasons: Vec<String>,
}

impl Evidence {
    /// Judges the evidence.
    pub fn judge(&self) -> Judgement {
        let lost = self.lost(&self.time, 1.0);
        let saving = lost.0 - lost.1;
        let saving_range = self.saving_range(saving);
        let saved = self.time.share_lost(&self.before) - self.time.share_lost(&self.now);
        let verdict = match saving_range {
            [least, _] if saving >= WORTH_IT && least >= NOT_WORTH_IT => Verdict::WorthIt,
            [_, most] if saving < NOT_WORTH_IT && most < WORTH_IT => {
                if saved >= NOT_WORTH_IT {
                    Verdict::Done
                } else {
                    Verdict::NotWorthIt
                }
            }
            _ => Verdict::Maybe,
        };
        let reasons = self.reasons(verdict, lost);
        let verdict = if self.has_few_samples() { Verdict::Maybe } else { verdict };
        Judgement { verdict, saving, saving_range, saved, reasons }
    }

    /// Returns the shares of the time that are lost to misses now and on huge pages. `factor` changes the modelled misses.
    fn lost(&self, time: &MissTime, factor: f64) -> (f64, f64) {
        let of = |misses: &Misses| {
            let Misses { first, walks } = *misses;
            time.share_lost(&Misses { first: first * factor, walks: walks * factor })
        };
        // The processor's count is better than the model, but the count excludes hits of the second level.
        (self.walk_share.unwrap_or(0.0).max(of(&self.now)), of(&self.then))
    }

    /// Returns the least and the greatest saving.
    fn saving_range(&self, saving: f64) -> [f64; 2] {
        let factors = if self.walk_share.is_some() { [1.0; 2] } else { MODEL_FACTORS };
        let ends = self.time.walk_range_ns.into_iter().flat_map(|walk_ns| {
            factors.map(|factor| {
                let (now, then) = self.lost(&self.time.of_walk(walk_ns), factor);
                now - then
            })
        });
        let [least, most] =
            ends.fold([saving, saving], |[least, most], end| [least.min(end), most.max(end)]);
        let more = (self.reachable - self.huge_now).max(0.0);
        [least - more * self.time.lost_by_split(&self.now), most]
    }

    fn has_few_samples(&self) -> bool {
        self.possible && self.samples < ENOUGH_SAMPLES
    }

    fn reasons(&self, verdict: Verdict, (lost_now, lost_then): (f64, f64)) -> Vec<String> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let [least, most] = self.time.walk_range_ns;
        let mut reasons = Vec::new();
        if self.time.split {
            reasons.push(
                "the host of this machine splits huge pages: they make misses of the TLB shorter, and not fewer"
                    .to_owned(),
            );
        } else if self.time.measured && most < 1.0 {
            reasons.push(
                "on this machine a jump over much text is no faster on huge pages".to_owned(),
            );
        }
        if self.now.first < FITS {
            reasons.push("the pages in use fit the instruction TLB as they are".to_owned());
        } else {
            reasons.push(format!(
                "misses are estimated to take {} of its time now, {} on huge pages",
                percent(lost_now),
                percent(lost_then)
            ));
        }
        if self.then.first > self.now.first * 1.05 + FITS {
            reasons.push(format!(
                "there are more hot huge pages than the {0} first-level entries for them: fewer huge pages may be \
                 better than all (--max-huge-pages {0})",
                self.huge_entries
            ));
        }
        if let Some(share) = self.walk_share {
            reasons.push(format!(
                "the processor counts {} of its cycles as walks for instructions",
                percent(share)
            ));
        }
        if self.huge_now >= 0.0005 {
            reasons.push(format!(
                "{} of what it executes is on huge pages already",
                percent(self.huge_now)
            ));
        }
        if self.reachable < 0.0005 {
            reasons
                .push("nothing of what it executes lies in a whole huge page of text".to_owned());
        } else if self.reachable < 0.5 {
            reasons.push(format!(
                "only {} of what it executes comes to lie on huge pages",
                percent(self.reachable)
            ));
        }
        if verdict == Verdict::Maybe
            && (least * 2.0 < self.time.walk_ns || self.time.walk_ns * 2.0 < most)
        {
            reasons.push(format!(
                "what a walk takes on this machine came out between {least:.0} and {most:.0} ns: look again when \
                 it is quieter"
            ));
        }
        if !self.possible {
            reasons.push("no other text of it could lie on huge pages".to_owned());
        } else if self.has_few_samples() {
            reasons.push(format!(
                "{} samples are few: sample for longer, or while it is busy",
                self.samples
            ));
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itlb::{Level, Source};
    use tiexec_core::tlb_sweep::{Levels, Measured, Point};

    /// Returns the cost by one jump of each copy, on base pages and on huge pages, of which a TLB of `USUAL` misses three quarters.
    fn of_jumps<const N: usize>(times: [(f64, f64); N]) -> MissTime {
        let point = |(base_ns, huge_ns): (f64, f64)| Point {
            places: 4096,
            near_ns: 1.0,
            base_ns: base_ns * 0.75,
            huge_ns: huge_ns * 0.75,
            far_ns: None,
        };
        MissTime::of_jumps(&Sweeps(times.map(|times| vec![point(times)]).to_vec()), &Itlb::USUAL)
    }

    const fn misses(first: f64, walks: f64) -> Misses {
        Misses { first, walks }
    }

    fn evidence(now: Misses, then: Misses) -> Evidence {
        let time = MissTime::USUAL;
        let (before, walk_share, huge_entries) = (now, None, 8);
        Evidence {
            samples: 5000,
            huge_now: 0.0,
            reachable: 1.0,
            possible: true,
            huge_entries,
            before,
            now,
            then,
            walk_share,
            time,
        }
    }

    #[test]
    fn verdicts() {
        let of = |now, then| evidence(now, then).judge().verdict;
        assert_eq!(of(misses(1.5, 0.6), misses(0.02, 0.0)), Verdict::WorthIt);
        assert_eq!(of(misses(0.01, 0.0), misses(0.0, 0.0)), Verdict::NotWorthIt);
        assert_eq!(of(misses(0.8, 0.0), misses(0.0, 0.0)), Verdict::Maybe);
        // Huge pages make it worse.
        let worse = evidence(misses(0.2, 0.0), misses(1.0, 0.0)).judge();
        assert_eq!(worse.verdict, Verdict::NotWorthIt);
        assert!(worse.saving < 0.0);
        assert!(worse.reasons.iter().any(|reason| reason.ends_with("(--max-huge-pages 8)")));
    }

    #[test]
    fn few_samples_are_not_certain() {
        let few = Evidence { samples: 10, ..evidence(misses(1.5, 0.6), misses(0.0, 0.0)) };
        assert_eq!(few.judge().verdict, Verdict::Maybe);
        // Without text to put on huge pages, more samples change nothing.
        let now = few.now;
        let nothing = Evidence { possible: false, reachable: 0.0, then: now, ..few }.judge();
        assert_eq!((nothing.verdict, nothing.saving), (Verdict::NotWorthIt, 0.0));
        assert!(!nothing.reasons.iter().any(|reason| reason.contains("few")), "{nothing:?}");
    }

    #[test]
    fn measured_levels_take_the_place_of_others() {
        let of = |first, second| Levels { first, second, second_ns: Some(2.0), walk_ns: None };
        let measured = Measured { base: of(Some(70), Some(256)), huge: of(Some(9), Some(250)) };
        let on = |split| Itlb::USUAL.measured(measured, split);
        let whole = on(false);
        assert_eq!(whole.first, Level::Split { base: 70, huge: 9 });
        assert_eq!((whole.second, whole.source), (Some(Level::Shared(256)), Source::Assumed));
        // There an entry is one for a base page.
        assert_eq!(on(true).first, Level::Split { base: 70, huge: 8 });
        let partly = Measured { base: of(None, Some(256)), huge: Levels::UNCLEAR };
        let partly = Itlb::USUAL.measured(partly, false);
        assert_eq!((partly.first, partly.second), (Itlb::USUAL.first, Some(Level::Shared(256))));
        let none = Itlb { second: None, ..Itlb::USUAL };
        assert_eq!(none.clone().measured(measured, false).second, Some(Level::Shared(256)));
        assert_eq!(none.measured(Measured::UNCLEAR, false).second, None);
        // A hit of the second level costs what was measured, and not more than a walk.
        let sweeps = |base_ns| {
            let point = Point { places: 1024, near_ns: 1.0, base_ns, huge_ns: 1.0, far_ns: None };
            Sweeps(vec![vec![point]])
        };
        let times = [13.0, 1.75].map(|ns| MissTime::of_jumps(&sweeps(ns), &whole));
        assert_eq!(times.map(|time| (time.second_ns, time.walk_ns)), [(2.0, 16.0), (1.0, 1.0)]);
    }

    #[test]
    fn where_huge_pages_gain_nothing() {
        let time = of_jumps([(4.0, 4.5), (4.2, 4.1), (4.0, 4.0)]);
        let judgement = Evidence { time, ..evidence(misses(1.5, 0.6), misses(0.0, 0.0)) }.judge();
        assert_eq!(judgement.verdict, Verdict::NotWorthIt);
        assert!(judgement.reasons[0].contains("no faster"), "{:?}", judgement.reasons);
    }

    #[test]
    fn where_the_host_splits_huge_pages() {
        let time = of_jumps([(36.0, 30.0), (35.0, 30.0), (37.0, 30.0)]).on_host(true);
        let judge = |now| Evidence { time, ..evidence(now, misses(0.0, 0.0)) }.judge();
        let hits_alone = judge(misses(3.0, 0.0));
        assert_eq!(hits_alone.verdict, Verdict::NotWorthIt);
        assert!(hits_alone.saving == 0.0 && hits_alone.saving_range[0] < -0.01, "{hits_alone:?}");
        assert!(hits_alone.reasons[0].contains("splits huge pages"), "{hits_alone:?}");
        // Shorter walks are a gain, but not all of the time of walks on base pages is saved.
        let walks = judge(misses(3.0, 1.0));
        assert_eq!(walks.verdict, Verdict::Maybe);
        assert!(walks.saving > 0.01 && walks.saving_range[0] < 0.003, "{walks:?}");
    }

    #[test]
    fn a_walk_that_cannot_be_told() {
        let judge = |times: [(f64, f64); 3]| {
            let time = of_jumps(times);
            Evidence { time, ..evidence(misses(1.5, 0.6), misses(0.0, 0.0)) }.judge()
        };
        let told = judge([(30.0, 10.0), (28.0, 10.0), (33.0, 10.0)]);
        assert_eq!(told.verdict, Verdict::WorthIt);
        let [least, most] = told.saving_range;
        assert!(0.0 < least && least < told.saving && told.saving < most, "{told:?}");
        let untold = judge([(30.0, 10.0), (10.0, 10.0), (160.0, 10.0)]);
        assert_eq!((untold.verdict, untold.saving), (Verdict::Maybe, told.saving));
        assert!(!untold.reasons.iter().any(|reason| reason.contains("splits")), "{untold:?}");
        assert!(untold.reasons.iter().any(|reason| reason.contains("0 and 150 ns")), "{untold:?}");
    }
}
