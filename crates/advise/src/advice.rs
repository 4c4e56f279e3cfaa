//! `tiexecctl advise`: makes findings from samples. The findings are one value, which is printed as a table or as JSON.
//!
//! There are several [ways](Way) to get text onto huge pages, and each is modelled. The findings are about the first
//! way that gains nearly as much as the best one.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::budget::{ENOUGH_SAMPLES, Misses};
use tiexec_core::config::Edges;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::pmu_counts::Counted;
use tiexec_core::report::SCHEMA;
use tiexec_core::tlb_sweep::Measured;

use crate::itlb::{
    Evidence, Footprint, Itlb, Judgement, Level, MissTime, Model, Popularity, Shares, Source,
    Verdict, footprint,
};
use crate::samples::{SampledPage, Space, Tally};

/// The facts beside the samples.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// The page sizes.
    pub pages: Pages,
    /// The ranges that are PMD-mapped now, by space of the tally; not every space has an entry.
    pub huge: HashMap<usize, Vec<AddrRange>>,
    /// The ways to get text onto huge pages, the way that changes least first. If the list is empty, one way is
    /// assumed, which takes the whole huge pages of each file's text.
    pub ways: Vec<Way>,
    /// The processor's instruction TLB.
    pub itlb: Itlb,
    /// The cost of a miss.
    pub time: MissTime,
}

/// A way to get text onto huge pages.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The command.
    pub command: String,
    /// True if the command starts the program anew.
    pub starts: bool,
    /// The setting of edges with which the command runs.
    pub edges: Edges,
    /// The ranges that it puts on huge pages, by space of the tally. In a space without an entry, these are the whole
    /// huge pages of each file's text.
    pub reach: HashMap<usize, Reach>,
}

/// The ranges of one address space that come to lie on huge pages.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// The ranges, at their new addresses.
    pub spans: Vec<AddrRange>,
    /// The range that is moved first, and its new address: a launch may move the program.
    pub moved: Option<(AddrRange, RemoteAddr)>,
}

impl Reach {
    /// Returns where the byte at `at` will lie.
    fn place(&self, at: RemoteAddr) -> RemoteAddr {
        let moved = self.moved.filter(|(from, _)| from.contains(at));
        moved.map_or(at, |(from, to)| {
            RemoteAddr::new(to.get().wrapping_add(at.get() - from.start().get()))
        })
    }
}

/// The expected effect of a way.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WayAdvice {
    /// The command.
    pub command: String,
    /// The share of the samples that would lie on huge pages.
    pub on_huge: f64,
    /// The share of its processor time that the program is expected to save.
    pub saving: f64,
}

/// How the samples were taken.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sampling {
    /// `cycles` or `cpu_clock`.
    pub clock: &'static str,
    /// Samples per second of a thread's time.
    pub frequency: u32,
    /// The length of the sampling, in milliseconds.
    pub duration_ms: u64,
    /// Samples taken in user mode.
    pub samples: u64,
    /// Records that were lost, samples or others.
    pub lost: u64,
    /// Processes that were seen executing.
    pub processes: usize,
}

/// The model's figures for some text: as the text is now, and with every possible huge page.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Modelled {
    /// The shares of references by the place that has their translation.
    pub now: Shares,
    /// The same on huge pages.
    pub then: Shares,
    /// Misses per thousand instructions.
    pub misses_now: Misses,
    /// The same on huge pages.
    pub misses_then: Misses,
}

/// One file's text, or all of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TextAdvice {
    /// The path as maps shows it, lossy UTF-8; `(anonymous)` for code that is in no file.
    pub path: String,
    /// Samples in it.
    pub samples: u64,
    /// Its share of all samples.
    pub share: f64,
    /// Base pages that hold the samples.
    pub base_pages: Footprint,
    /// Huge pages that would hold the samples.
    pub huge_pages: Footprint,
    /// The share of the samples that lies on huge pages now.
    pub on_huge_now: f64,
    /// The share of the samples that would lie on huge pages.
    pub on_huge_then: f64,
    /// The figures of the model.
    pub model: Modelled,
}

/// The advice, as a value.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `advise`.
    pub kind: &'static str,
    /// The process, or the first of the command's.
    pub pid: u32,
    /// The command name of the process, or the command.
    pub comm: String,
    /// How the samples were taken.
    pub sampling: Sampling,
    /// The processor's instruction TLB.
    pub itlb: Itlb,
    /// The cost of a miss.
    pub miss_time: MissTime,
    /// All text together.
    pub text: TextAdvice,
    /// Each file, the one with the most samples first.
    pub files: Vec<TextAdvice>,
    /// The counts of the processor.
    pub counted: Counted,
    /// The useful ways. Each reaches more samples than the ways before it.
    pub ways: Vec<WayAdvice>,
    /// The index in [`Circumstances::ways`] of the recommended way.
    #[serde(skip)]
    pub way: usize,
    /// The judgement about the recommended way.
    pub judgement: Judgement,
    /// The command to run next; `None` if there is nothing to do.
    pub next: Option<String>,
}

impl Advice {
    /// Returns whether there are too few samples for a figure.
    pub fn has_few_samples(&self) -> bool {
        self.judgement.verdict == Verdict::Maybe && self.sampling.samples < ENOUGH_SAMPLES
    }

    /// Makes the advice; `None` without any sample.
    pub fn new(
        pid: u32,
        comm: String,
        tally: &Tally,
        circumstances: &Circumstances,
        sampling: Sampling,
        counted: Counted,
    ) -> Option<Self> {
        let Circumstances { itlb, time, ways, .. } = circumstances;
        let whole = Way::default();
        let ways = if ways.is_empty() { std::slice::from_ref(&whole) } else { ways };
        let possible = ways.iter().any(|way| reaches_more(tally, circumstances, way));
        let (mut told, mut outcomes) = (Vec::new(), Vec::new());
        for (index, way) in ways.iter().enumerate() {
            let text = TextModel::new(tally, circumstances, way);
            let evidence = text.evidence(possible, counted.walk_share());
            let reached = told.last().map_or(-1.0, |last: &WayAdvice| last.on_huge);
            if text.samples > 0 && evidence.reachable > reached + FURTHER {
                let judgement = evidence.judge();
                told.push(WayAdvice {
                    command: way.command.clone(),
                    on_huge: evidence.reachable,
                    saving: judgement.saving,
                });
                outcomes.push((index, text, judgement));
            }
        }
        let chosen = recommended(&told, time.split)?;
        let (way, text, judgement) = outcomes.swap_remove(chosen);
        let next = Some(told[chosen].command.clone()).filter(|command| {
            !command.is_empty() && matches!(judgement.verdict, Verdict::WorthIt | Verdict::Maybe)
        });
        Some(Self {
            schema: SCHEMA,
            kind: "advise",
            pid,
            comm,
            sampling,
            itlb: itlb.clone(),
            miss_time: *time,
            text: text.advise("all".to_owned(), &text.placed),
            files: text.files(tally),
            counted,
            ways: told,
            way,
            judgement,
            next,
        })
    }

    /// Returns the advice as one line of JSON.
    ///
    /// # Panics
    /// Never: every value in it can be written as JSON.
    pub fn to_json(&self) -> String {
        escape::json(self)
    }
}

/// The sampled text and its models, now and after a way.
struct TextModel<'a> {
    circumstances: &'a Circumstances,
    placed: Vec<Placed>,
    samples: u64,
    now: (Popularity, Model),
    then: (Popularity, Model),
}

impl<'a> TextModel<'a> {
    fn new(tally: &Tally, circumstances: &'a Circumstances, way: &Way) -> Self {
        let placed = Placed::all(tally, circumstances, way);
        let samples = placed.iter().map(|placed| placed.page.samples).sum();
        let [now, then] = [On::Now, On::Then].map(|on| model(&placed, circumstances, on));
        Self { circumstances, placed, samples, now, then }
    }

    fn evidence(&self, possible: bool, walk_share: Option<f64>) -> Evidence {
        let Circumstances { itlb, time, .. } = self.circumstances;
        let on_huge = |which: fn(&Placed) -> bool| {
            let on = self.placed.iter().filter(|placed| which(placed));
            on.map(|placed| placed.page.samples).sum::<u64>() as f64 / self.samples as f64
        };
        let misses = |of: &(Popularity, Model)| of.1.shares(&of.0).per_kilo_instruction(itlb);
        Evidence {
            samples: self.samples,
            huge_now: on_huge(|placed| placed.huge_now),
            reachable: on_huge(|placed| placed.huge_then),
            possible,
            huge_entries: itlb.first.entries().1,
            before: misses(&model(&self.placed, self.circumstances, On::Base)),
            now: misses(&self.now),
            then: misses(&self.then),
            walk_share,
            time: *time,
        }
    }

    fn advise(&self, path: String, part: &[Placed]) -> TextAdvice {
        let Circumstances { pages, itlb, .. } = self.circumstances;
        let shares = |of: &(Popularity, Model), on: On| {
            let (base, huge) = units(part, pages.pmd, on);
            of.1.shares(&of.0.part(base, huge))
        };
        let (now, then) = (shares(&self.now, On::Now), shares(&self.then, On::Then));
        let [misses_now, misses_then] = [now, then].map(|of| of.per_kilo_instruction(itlb));
        let model = Modelled { now, then, misses_now, misses_then };
        TextAdvice::new(path, part, self.samples, *pages, model)
    }

    /// Returns the advice about each file, the one with the most samples first.
    fn files(&self, tally: &Tally) -> Vec<TextAdvice> {
        let mut by_name: HashMap<usize, Vec<Placed>> = HashMap::new();
        for placed in &self.placed {
            by_name.entry(placed.page.name).or_default().push(*placed);
        }
        let name = |name: usize| String::from_utf8_lossy(&tally.names()[name]).into_owned();
        let files = by_name.into_iter().map(|(of, part)| self.advise(name(of), &part));
        let mut files: Vec<TextAdvice> = files.collect();
        files.sort_by(|one, other| {
            other.samples.cmp(&one.samples).then_with(|| one.path.cmp(&other.path))
        });
        files
    }
}

fn model(placed: &[Placed], circumstances: &Circumstances, on: On) -> (Popularity, Model) {
    let (base, huge) = units(placed, circumstances.pages.pmd, on);
    let popularity = Popularity::of_samples(base, huge);
    let model = Model::new(&popularity, &circumstances.itlb);
    (popularity, model)
}

/// The least additional share of the samples that a way must reach over the ways before it; otherwise it is not
/// reported.
const FURTHER: f64 = 0.005;
/// A way that changes less is recommended if its gain is at least this share of the best way's gain.
const NEARLY: f64 = 0.9;

/// Returns the index of the way to recommend: the first with nearly the best gain or, if the model sees no difference,
/// the way that reaches most. If the host splits huge pages, more of them are no gain, and the first is recommended. `None`
/// if there are no ways.
fn recommended(ways: &[WayAdvice], host_splits: bool) -> Option<usize> {
    let most = ways.iter().map(|way| way.saving).fold(f64::NEG_INFINITY, f64::max);
    if most == 0.0 && !host_splits {
        return ways.len().checked_sub(1);
    }
    ways.iter().position(|way| way.saving >= most * if most > 0.0 { NEARLY } else { 1.0 })
}

/// A page with samples, and whether it lies on a huge page now and afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) page: SampledPage,
    /// Its new address.
    pub(crate) then_at: RemoteAddr,
    pub(crate) huge_now: bool,
    pub(crate) huge_then: bool,
}

impl Placed {
    pub(crate) fn all(tally: &Tally, circumstances: &Circumstances, way: &Way) -> Vec<Self> {
        let huge = &circumstances.huge;
        let covers =
            |ranges: &[AddrRange], at: RemoteAddr| ranges.iter().any(|range| range.contains(at));
        let reaches = reaches(tally, circumstances, way);
        tally
            .pages()
            .map(|page| {
                let reach = &reaches[page.space];
                let huge_now = huge.get(&page.space).is_some_and(|huge| covers(huge, page.at));
                let then_at = reach.place(page.at);
                let huge_then = huge_now || covers(&reach.spans, then_at);
                Self { page, then_at, huge_now, huge_then }
            })
            .collect()
    }
}

/// Returns what the way reaches in each address space; what it does not say about a space is all whole huge pages of text there.
fn reaches(tally: &Tally, circumstances: &Circumstances, way: &Way) -> Vec<Reach> {
    let whole =
        |space| Reach { spans: interiors(tally, space, circumstances.pages), ..Reach::default() };
    let spaces = tally.spaces().iter().enumerate();
    spaces
        .map(|(index, space)| way.reach.get(&index).cloned().unwrap_or_else(|| whole(space)))
        .collect()
}

/// Returns whether the way reaches text that is not huge.
fn reaches_more(tally: &Tally, circumstances: &Circumstances, way: &Way) -> bool {
    reaches(tally, circumstances, way).iter().enumerate().any(|(space, reach)| {
        let huge = circumstances.huge.get(&space);
        let is_huge = |span: &AddrRange| huge.iter().copied().flatten().any(|it| it.covers(*span));
        reach.spans.iter().any(|span| !is_huge(span))
    })
}

/// Returns the whole huge pages of the text of files in an address space.
pub fn interiors(tally: &Tally, space: &Space, pages: Pages) -> Vec<AddrRange> {
    let files = space.mappings().filter(|&(_, name)| is_file(tally, name));
    files.filter_map(|(range, _)| range.align_inward(pages.pmd)).collect()
}

fn is_file(tally: &Tally, name: usize) -> bool {
    tally.names()[name].starts_with(b"/")
}

/// A state of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    /// All of it on base pages.
    Base,
    /// The text as it is now.
    Now,
    /// The text as it will be.
    Then,
}

/// Sums the samples per TLB entry. Returns the sums of base pages and those of huge pages.
fn units(part: &[Placed], pmd: PageSize, on: On) -> (Vec<u64>, Vec<u64>) {
    let on_huge = |placed: &&Placed| match on {
        On::Base => false,
        On::Now => placed.huge_now,
        On::Then => placed.huge_then,
    };
    let base = part.iter().filter(|placed| !on_huge(placed)).map(|placed| placed.page.samples);
    (base.collect(), by_huge_page(part.iter().filter(on_huge), pmd, on == On::Then))
}

fn by_huge_page<'a>(part: impl Iterator<Item = &'a Placed>, pmd: PageSize, then: bool) -> Vec<u64> {
    let mut huge: HashMap<(usize, RemoteAddr), u64> = HashMap::new();
    for Placed { page, then_at, .. } in part {
        let at = if then { *then_at } else { page.at };
        *huge.entry((page.space, at.align_down(pmd))).or_default() += page.samples;
    }
    huge.into_values().collect()
}

impl TextAdvice {
    fn new(path: String, part: &[Placed], all: u64, pages: Pages, model: Modelled) -> Self {
        let sum = |which: fn(&Placed) -> bool| -> u64 {
            part.iter().filter(|placed| which(placed)).map(|placed| placed.page.samples).sum()
        };
        let samples = sum(|_| true);
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        Self {
            path,
            samples,
            share: share(samples, all),
            base_pages: footprint(part.iter().map(|placed| placed.page.samples)),
            huge_pages: footprint(by_huge_page(part.iter(), pages.pmd, true)),
            on_huge_now: share(sum(|placed| placed.huge_now), samples),
            on_huge_then: share(sum(|placed| placed.huge_then), samples),
            model,
        }
    }
}

/// Files with fewer of the samples are summed up in one line of the table.
const SMALL_SHARE: f64 = 0.01;

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sampling { clock, frequency, duration_ms, samples, lost, processes } = &self.sampling;
        let (seconds, tenths) = (duration_ms / 1000, duration_ms % 1000 / 100);
        write!(
            f,
            "{} {}   {samples} samples in {seconds}.{tenths} s",
            self.comm.shown(),
            self.pid
        )?;
        write!(f, " ({clock}, {frequency} Hz)")?;
        if *processes > 1 {
            write!(f, "   {processes} processes")?;
        }
        writeln!(f)?;
        if *lost > 0 {
            writeln!(f, "lost  {lost} records: the shares may be off")?;
        }
        let shown = self.files.iter().filter(|file| file.share >= SMALL_SHARE);
        let width = shown.clone().map(|file| file.path.shown().to_string().chars().count()).max();
        let width = width.unwrap_or(0).max(16);
        writeln!(
            f,
            "{:<width$}      BASE PAGES THAT HOLD     HUGE PAGES      ON HUGE PAGES     MISS RATIO",
            ""
        )?;
        writeln!(
            f,
            "{:<width$} TIME   50 %   90 %   99 %   50  90  99 %    NOW  POSSIBLE    NOW    HUGE",
            "FILE"
        )?;
        for file in shown {
            line(f, width, file)?;
        }
        let small = self.files.iter().filter(|file| file.share < SMALL_SHARE);
        let (count, rest) =
            small.fold((0, 0.0), |(count, sum), file| (count + 1, sum + file.share));
        if count > 0 {
            writeln!(f, "{:<width$} {:>3.0}%", format!("({count} more)"), rest * 100.0)?;
        }
        if self.files.len() > 1 {
            line(f, width, &self.text)?;
        }
        writeln!(f, "iTLB  {}", describe(&self.itlb))?;
        let Modelled { misses_now, misses_then, .. } = self.text.model;
        writeln!(
            f,
            "model {:.2} misses and {:.2} walks in 1000 instructions now, {:.2} and {:.2} on huge pages; a walk \
             takes {}",
            misses_now.first,
            misses_now.walks,
            misses_then.first,
            misses_then.walks,
            self.miss_time
        )?;
        if let Some(line) = counted(&self.counted) {
            writeln!(f, "PMU   {line}")?;
        }
        if self.ways.len() > 1 {
            let width = self.ways.iter().map(|way| way.command.chars().count()).max().unwrap_or(0);
            writeln!(f, "{:<width$}  ON HUGE PAGES  SAVES", "WAY")?;
            for WayAdvice { command, on_huge, saving } in &self.ways {
                let (on_huge, saving) = (on_huge * 100.0, in_tenths(*saving));
                writeln!(f, "{command:<width$}  {on_huge:>11.0} %  {saving:>3.1} %")?;
            }
        }
        let Judgement { verdict, saving, saving_range: [least, most], saved, reasons } =
            &self.judgement;
        let percent = |share: f64| format!("{:.1}", in_tenths(share));
        if *verdict == Verdict::Done {
            writeln!(
                f,
                "{verdict}: huge pages save about {} % of its time in user mode",
                percent(*saved)
            )?;
        } else if self.has_few_samples() {
            writeln!(f, "{verdict}: too few samples to tell")?;
        } else {
            let (saving, least, most) = (percent(*saving), percent(*least), percent(*most));
            write!(f, "{verdict}: about {saving} % of its time in user mode")?;
            if least != most {
                write!(f, " ({least} to {most} %, as far as the model can be off)")?;
            }
            writeln!(f)?;
        }
        reasons.iter().try_for_each(|reason| writeln!(f, "  - {reason}"))?;
        match &self.next {
            Some(command) => writeln!(f, "next  {command}"),
            None => writeln!(f, "next  nothing: leave it as it is"),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, width: usize, text: &TextAdvice) -> fmt::Result {
    let TextAdvice { path, base_pages: base, huge_pages: huge, model, .. } = text;
    let percent = |share: f64| share * 100.0;
    writeln!(
        f,
        "{:<width$} {:>3.0}% {:>6} {:>6} {:>6} {:>4}{:>4}{:>4}    {:>4.0}%     {:>4.0}% {:>6.4} {:>6.4}",
        path.shown(),
        percent(text.share),
        base.p50,
        base.p90,
        base.p99,
        huge.p50,
        huge.p90,
        huge.p99,
        percent(text.on_huge_now),
        percent(text.on_huge_then),
        model.now.misses(),
        model.then.misses()
    )
}

/// Describes a TLB in words.
fn describe(itlb: &Itlb) -> String {
    let level = |level: &Level| match level {
        Level::Split { base, huge } => format!("{base} base + {huge} huge"),
        Level::Shared(entries) => format!("{entries}"),
    };
    let mut text = format!("{} entries", level(&itlb.first));
    if let Some(second) = &itlb.second {
        text += &format!("; second level {}", level(second));
        if itlb.second_holds_data {
            text += ", data too";
        }
    }
    let source = match itlb.source {
        Source::Cpuid => "as the processor says",
        Source::Table => "by its model",
        Source::Assumed => "assumed",
    };
    let source = itlb.name.map_or_else(|| source.to_owned(), |name| format!("{name}, {source}"));
    text += &match measured(itlb) {
        Some(measured) => format!(" ({measured} measured; {source})"),
        None => format!(" ({source})"),
    };
    if let Some(table) = &itlb.otherwise {
        text += &format!("; by its model the second level has {}", level(table));
    }
    text + &itlb.hidden.map_or(String::new(), |hidden| format!("; {hidden}"))
}

/// Names the figures of the description that were measured; `None` if none was.
fn measured(itlb: &Itlb) -> Option<String> {
    let Measured { base, huge } = itlb.measured;
    let levels = [
        ("first", Some(itlb.first), base.first, huge.first),
        ("second", itlb.second, base.second, huge.second),
    ];
    let name = |(name, level, of_base, of_huge): (_, _, Option<u32>, Option<u32>)| {
        let pages = match level? {
            Level::Split { .. } if of_huge.is_none() => " for base pages",
            Level::Split { .. } if of_base.is_none() => " for huge pages",
            _ => "",
        };
        (of_base.is_some() || !pages.is_empty() && of_huge.is_some())
            .then(|| format!("{name} level{pages}"))
    };
    let names: Vec<String> = levels.into_iter().filter_map(name).collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

fn counted(counted: &Counted) -> Option<String> {
    let per_kilo = |misses: u64| {
        let instructions = counted.instructions.filter(|&count| count > 0)?;
        Some(format!(
            "{:.2} misses in 1000 instructions",
            misses as f64 * 1000.0 / instructions as f64
        ))
    };
    let misses = counted.itlb_misses.and_then(per_kilo);
    let walks =
        counted.walk_share().map(|share| format!("walks take {:.1} % of cycles", share * 100.0));
    let parts: Vec<String> = misses.into_iter().chain(walks).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns a share in percent, rounded to a tenth. A share that rounds to nothing gives 0, not −0.
fn in_tenths(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiexec_core::perf::samples::What;

    const PAGES: Pages =
        Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };

    fn circumstances() -> Circumstances {
        Circumstances {
            pages: PAGES,
            huge: HashMap::new(),
            ways: Vec::new(),
            itlb: Itlb::USUAL,
            time: MissTime::USUAL,
        }
    }

    fn sampling() -> Sampling {
        Sampling {
            clock: "cpu_clock",
            frequency: 997,
            duration_ms: 5000,
            samples: 0,
            lost: 0,
            processes: 1,
        }
    }

    /// Makes the samples of a process that executes all over 8 MiB of a file, and in one page of anonymous memory.
    fn tally(each: u64) -> Tally {
        let mut tally = Tally::new(PAGES.base);
        let at = |offset: u64| RemoteAddr::new(0x40_0000 + offset);
        let range = AddrRange::with_len(at(0), 8 << 20).unwrap();
        tally.add(What::Mapped { pid: 7, range, name: b"/big".to_vec() });
        for offset in (0..8 << 20).step_by(4096) {
            for _ in 0..each {
                tally.add(What::Sample { pid: 7, at: at(offset) });
            }
        }
        tally.add(What::Sample { pid: 7, at: RemoteAddr::new(0x7000_0000) });
        tally
    }

    fn advise(tally: &Tally, circumstances: &Circumstances) -> Advice {
        let none = Counted::default();
        Advice::new(7, "big".to_owned(), tally, circumstances, sampling(), none).unwrap()
    }

    #[test]
    fn next_to_nothing_has_no_sign() {
        assert_eq!(format!("{:.1}", in_tenths(-0.000_04)), "0.0");
        assert_eq!(format!("{:.1}", in_tenths(0.123_45)), "12.3");
    }

    #[test]
    fn text_all_over_8_mib_is_worth_it() {
        let advice = advise(&tally(5), &circumstances());
        let big = &advice.files[0];
        assert_eq!((big.path.as_str(), big.samples), ("/big", 5 * 2048));
        assert_eq!(big.base_pages, Footprint { p50: 1024, p90: 1844, p99: 2028, all: 2048 });
        assert_eq!(big.huge_pages.all, 4);
        assert_eq!((big.on_huge_now, big.on_huge_then), (0.0, 1.0));
        assert!(big.model.now.misses() > 0.9 && big.model.then.misses() < 0.01, "{big:?}");
        assert_eq!(advice.files[1].path, "(anonymous)");
        assert_eq!(advice.files[1].on_huge_then, 0.0);
        assert_eq!(advice.judgement.verdict, Verdict::WorthIt, "{advice}");
    }

    #[test]
    fn what_is_huge_already_is_not_worth_it_again() {
        let mut circumstances = circumstances();
        let range = AddrRange::with_len(RemoteAddr::new(0x40_0000), 8 << 20).unwrap();
        circumstances.huge.insert(0, vec![range]);
        let advice = advise(&tally(5), &circumstances);
        assert_eq!(advice.files[0].on_huge_now, 1.0);
        assert_eq!(advice.text.model.now, advice.text.model.then);
        assert_eq!(advice.judgement.verdict, Verdict::Done, "{advice}");
        assert!(advice.judgement.saved > 0.01 && advice.next.is_none(), "{advice}");
        let text = advice.to_string();
        assert!(text.contains("already") && text.contains("done: huge pages save about"), "{text}");
    }

    #[test]
    fn only_what_is_planned_is_possible() {
        let mut circumstances = circumstances();
        let reach = HashMap::from([(0, Reach::default())]);
        circumstances.ways.push(Way { command: "none".to_owned(), reach, ..Way::default() });
        let advice = advise(&tally(1), &circumstances);
        assert_eq!(advice.text.on_huge_then, 0.0);
        let json: serde_json::Value = serde_json::from_str(&advice.to_json()).unwrap();
        assert_eq!(json["kind"], "advise");
        assert_eq!(json["files"][0]["base_pages"]["all"], 2048);
    }

    /// The ways reach nothing, the lower half, again the lower half, and everything after a move.
    #[test]
    fn the_way_that_gains_nearly_most_is_recommended() {
        let range =
            |start: u64, mib: u64| AddrRange::with_len(RemoteAddr::new(start), mib << 20).unwrap();
        let way = |command: &str, spans: &[AddrRange], moved| Way {
            command: command.to_owned(),
            reach: HashMap::from([(0, Reach { spans: spans.to_vec(), moved })]),
            ..Way::default()
        };
        let to = RemoteAddr::new(0x1000_0000);
        let mut circumstances = circumstances();
        circumstances.ways = vec![
            way("none", &[], None),
            way("half", &[range(0x40_0000, 4)], None),
            way("the same", &[range(0x40_0000, 4)], None),
            way("start", &[range(0x1000_0000, 8)], Some((range(0x40_0000, 8), to))),
        ];
        let made = advise(&tally(5), &circumstances);
        let commands: Vec<&str> = made.ways.iter().map(|way| way.command.as_str()).collect();
        assert_eq!(commands, ["none", "half", "start"], "{made}");
        assert!(made.ways.is_sorted_by(|one, other| one.saving < other.saving), "{made}");
        assert_eq!((made.next.as_deref(), made.way), (Some("start"), 3), "{made}");
        assert_eq!((made.files[0].on_huge_then, made.text.huge_pages.all), (1.0, 5));
        let text = made.to_string();
        assert!(text.ends_with("next  start\n") && text.contains("\nWAY "), "{text}");
        // The first of equal ways changes least, and is recommended where the host splits huge pages.
        let equal: Vec<WayAdvice> =
            made.ways.iter().map(|way| WayAdvice { saving: 0.0, ..way.clone() }).collect();
        assert_eq!((recommended(&equal, false), recommended(&equal, true)), (Some(2), Some(0)));
        // Without the way that moves, the way that reaches half is the best.
        circumstances.ways.pop();
        assert_eq!(advise(&tally(5), &circumstances).next.as_deref(), Some("half"));
    }

    #[test]
    fn too_few_samples_are_told_unless_nothing_can_gain() {
        let mut tally = Tally::new(PAGES.base);
        let range = AddrRange::with_len(RemoteAddr::new(0x40_0000), 8 << 20).unwrap();
        tally.add(What::Mapped { pid: 7, range, name: b"/big".to_vec() });
        tally.add(What::Sample { pid: 7, at: range.start() });
        let few = advise(&tally, &circumstances());
        assert_eq!(few.judgement.verdict, Verdict::Maybe);
        let text = few.to_string();
        assert!(text.contains("\nmaybe: too few samples to tell\n"), "{text}");
        assert!(!text.contains("about 0.0 %"), "{text}");
        let none = Way { reach: HashMap::from([(0, Reach::default())]), ..Way::default() };
        let nothing = advise(&tally, &Circumstances { ways: vec![none], ..circumstances() });
        assert_eq!((nothing.judgement.verdict, nothing.next), (Verdict::NotWorthIt, None));
        let reasons = nothing.judgement.reasons.join("\n");
        assert!(reasons.contains("no other text of it could lie on huge pages"), "{reasons}");
        // All of it is huge already.
        let huge = HashMap::from([(0, vec![range])]);
        let all = advise(&tally, &Circumstances { huge, ..circumstances() });
        assert_eq!(all.judgement.verdict, Verdict::NotWorthIt, "{all}");
    }

    #[test]
    fn what_was_measured_is_named() {
        use tiexec_core::tlb_sweep::Levels;
        let known = Itlb { name: Some("Zen"), source: Source::Cpuid, ..Itlb::USUAL };
        let levels = |first, second| Levels { first, second, second_ns: None, walk_ns: None };
        let of = |base, huge| describe(&known.clone().measured(Measured { base, huge }, false));
        assert_eq!(
            of(levels(Some(70), Some(256)), levels(Some(9), None)),
            "70 base + 9 huge entries; second level 256, data too (first level and second level measured; Zen, as the processor says)"
        );
        let base_only = of(levels(Some(70), None), Levels::UNCLEAR);
        assert!(base_only.contains("(first level for base pages measured; Zen,"), "{base_only}");
        let huge_only = of(Levels::UNCLEAR, levels(Some(9), None));
        assert!(huge_only.contains("(first level for huge pages measured; Zen,"), "{huge_only}");
        let none = of(Levels::UNCLEAR, levels(None, Some(300)));
        assert!(none.ends_with("1024, data too (Zen, as the processor says)"), "{none}");
    }

    #[test]
    fn nothing_sampled_is_nothing_told() {
        let none = Tally::new(PAGES.base);
        let counted = Counted::default();
        let made = Advice::new(1, String::new(), &none, &circumstances(), sampling(), counted);
        assert_eq!(made, None);
    }
}
