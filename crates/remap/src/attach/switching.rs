//! In the stop: each staged part over its text, one after the other.

use std::fs::File;
use std::sync::Arc;

use tiexec_core::addr::AddrRange;
use tiexec_core::parts::{Parts, covered, in_range};
use tiexec_core::plan::Span;
use tiexec_core::proc::maps::{self, Vma};
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_tracee::session::Session;

use super::AttachOrder;
use super::images::Image;
use super::pass::Passage;
use super::place::{self, Place};
use super::texts::Texts;
use super::written::Written;
use crate::failure::Failure;
use crate::image::Staged;
use crate::protection;

/// The spans of one text, and the image that holds them.
#[derive(Debug)]
pub(super) struct Staging {
    /// The text VMA.
    pub vma: Vma,
    /// Its spans that are held by a copy.
    pub spans: Vec<Span>,
    /// The copy.
    pub image: Arc<Image>,
}

/// What is known of the process whose text is switched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switching<'a> {
    /// What is to be done.
    pub order: &'a AttachOrder<'a>,
    /// Its address space, as it was looked at.
    pub snapshot: &'a Snapshot,
    /// Its texts.
    pub texts: &'a Texts,
    /// Its smaps.
    pub entries: &'a [SmapsEntry],
    /// Which of its pages have been written to.
    pub written: &'a Written,
}

impl Switching<'_> {
    /// Switches all that is staged, then the `edges` that the page cache holds.
    ///
    /// # Errors
    /// The first one. What concerns one part only (`edge_in_use`, `modified_text`) does not keep the
    /// others.
    pub(super) fn all(
        &self,
        session: &mut Session,
        staged: &[Staging],
        edges: &[Span],
    ) -> Result<(), Failure> {
        let mut passage = None;
        let mut first = Ok(());
        for Staging { vma, spans, image } in staged {
            let passage = self.passage(&mut passage, session)?;
            let fd = passage.hand_over(session, &image.file)?;
            for part in &image.filled.staged {
                // The image may have been made for another process, where the text lies elsewhere.
                let Some((span, to)) = place_of(part, &image.spans, spans) else { continue };
                let done = self.one(session, vma, span, to, (fd, part.image_offset));
                first = keep_first(first, done)?;
            }
            session.release_now()?;
        }
        for span in edges {
            let Some((vma, file)) = self.text_at(span.range) else { continue };
            let passage = self.passage(&mut passage, session)?;
            let fd = passage.hand_over(session, file)?;
            let done = self.one(session, vma, span, span.range, (fd, span.file_offset));
            first = keep_first(first, done)?;
            session.release_now()?;
        }
        first
    }

    fn passage<'p>(
        &self,
        passage: &'p mut Option<Passage>,
        session: &mut Session,
    ) -> Result<&'p Passage, Failure> {
        match passage {
            Some(passage) => Ok(passage),
            None => {
                Ok(passage.insert(Passage::open(session, self.order.task, self.order.process)?))
            }
        }
    }

    /// Switches one part of one span: `source` is the descriptor and the offset in it.
    fn one(
        &self,
        session: &mut Session,
        vma: &Vma,
        span: &Span,
        to: AddrRange,
        source: (u64, u64),
    ) -> Result<(), Failure> {
        let locked = |entry: &&SmapsEntry| entry.vma == *vma && entry.has_flag(*b"lo");
        let locked = self.entries.iter().any(|entry| locked(&entry));
        let gaps = if span.edge { self.gaps_now(vma, to)? } else { Vec::new() };
        let (fd, offset) = source;
        let backing = Some(span.backing);
        let protection = protection::of_text(std::slice::from_ref(vma), vma.range);
        let place = Place { fd, offset, to, locked, protection, gaps, backing };
        let unchanged = || self.written.none(to);
        place::switch(session, self.order.process, self.snapshot, &place, unchanged)
    }

    /// Returns the gaps in an edge, once it is seen that what is mapped there is still what it was.
    fn gaps_now(&self, vma: &Vma, page: AddrRange) -> Result<Vec<AddrRange>, Failure> {
        let changed = || Failure::new(SkipReason::EdgeInUse, format!("{page} has changed"));
        let parts: &Parts =
            self.texts.text(vma).and_then(|text| text.parts.as_ref()).ok_or_else(changed)?;
        let maps = self.order.process.read("maps").map_err(Failure::unreadable)?;
        let now = maps::parse(&maps).map_err(|_torn| changed())?;
        let as_described =
            in_range(&now, page).all(|now| now.file == vma.file && parts.describe(now, page));
        let whole = parts.within(page).all(|part| covered(&now, part.range, |_| true));
        if as_described && whole { Ok(parts.gaps(page)) } else { Err(changed()) }
    }

    /// Returns the text VMA that the edge is of, and its file.
    fn text_at(&self, page: AddrRange) -> Option<(&Vma, &File)> {
        let text = self.texts.texts.iter().find(|text| text.vma.range.overlaps(page))?;
        Some((&text.vma, self.texts.file(&text.vma)?))
    }
}

/// Goes on after what concerns one part only.
fn keep_first(
    first: Result<(), Failure>,
    done: Result<(), Failure>,
) -> Result<Result<(), Failure>, Failure> {
    match done {
        Err(failure)
            if matches!(failure.reason, SkipReason::EdgeInUse | SkipReason::ModifiedText) =>
        {
            Ok(first.and(Err(failure)))
        }
        Err(failure) => Err(failure),
        Ok(()) => Ok(first),
    }
}

/// Returns where a part of an image goes in a process whose spans are `here`, and in which of them it
/// is; `there` are those of the process that the image was made for, one by one the same.
fn place_of<'a>(part: &Staged, there: &[Span], here: &'a [Span]) -> Option<(&'a Span, AddrRange)> {
    let index = there.iter().position(|span| span.range.covers(part.span.range))?;
    let into = part.span.range.start().get() - there[index].range.start().get();
    let span = here.get(index)?;
    let start = span.range.start().checked_add(into)?;
    Some((span, AddrRange::with_len(start, part.span.range.len())?))
}
