//! The switch in the stop: puts each staged part over its text, one after the other.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use tiexec_core::addr::AddrRange;
use tiexec_core::file_ranges::{Parts, covered};
use tiexec_core::plan::Span;
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::areas;
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::executor::Executor;

use super::file_passing::Received;
use super::passing::{Handed, Passing};
use super::texts::Texts;
use super::written::Written;
use super::{AttachOrder, probe};
use crate::image::Staged;
use crate::images::Image;
use crate::protection;
use crate::switch::{OpenFile, Surroundings, Switch, switch_all};
use crate::target_file::TargetFile;

/// The spans of one text, and the image that holds them.
#[derive(Debug)]
pub(super) struct Staging {
    /// The text VMA.
    pub vma: Vma,
    /// The spans of the text that the copy holds.
    pub spans: Vec<Span>,
    /// The copy.
    pub image: Arc<Image>,
}

/// The parameters of the switch in one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switching<'a> {
    /// The order.
    pub order: &'a AttachOrder<'a>,
    /// The address space of the process.
    pub around: Surroundings<'a>,
    /// The texts of the process.
    pub texts: &'a Texts,
    /// The pages of the process that have been written to.
    pub written: &'a Written,
    /// True if the process has locked some of its memory.
    pub locks: bool,
    /// True if the text may have protection keys.
    pub keys: bool,
    /// Collects the text that must be left alone, and why.
    pub alone: &'a Mutex<Vec<(AddrRange, SkipReason)>>,
}

impl Switching<'_> {
    /// Switches all that is staged, then the `edges` that the page cache holds.
    ///
    /// # Errors
    /// The first failure. A failure of one part only (`edge_in_use`, `modified_text`) does not keep the others from
    /// being switched.
    pub(super) fn all<P: Passing>(
        &self,
        executor: &mut P::Executor,
        passing: &P,
        staged: &[Staging],
        edges: &[Span],
    ) -> Result<(), Failure> {
        let mut first = Ok(());
        for Staging { vma, spans, image } in staged {
            let ask = self.keys.then_some(vma.range.start());
            let received = passing.pass(executor, Handed::Image(&image.file), ask)?;
            let readable = self.is_readable(executor, vma, received)?;
            let source = OpenFile { fd: received.fd, file: id_of(&image.file) };
            let mut parts = Vec::new();
            for part in &image.filled.staged {
                // The image may have been made for another process, where the text lies elsewhere.
                let Some((span, to)) = place_of(part, &image.spans, spans) else { continue };
                if let Err(failure) = &readable {
                    first = keep_first(first, self.left_alone(to, Err(failure.clone())))?;
                    continue;
                }
                match self.part(executor, vma, span, to, (source, part.image_offset)) {
                    Ok(part) => parts.push(part),
                    Err(failure) => first = keep_first(first, self.left_alone(to, Err(failure)))?,
                }
            }
            first = self.switch(executor, &parts, first)?;
            passing.let_go(executor)?;
        }
        for span in edges {
            let Some((vma, file)) = self.text_at(span.range) else { continue };
            let ask = self.keys.then_some(vma.range.start());
            let received = passing.pass(executor, Handed::Original(file), ask)?;
            let readable = self.is_readable(executor, vma, received)?;
            let source = OpenFile { fd: received.fd, file: vma.file };
            let from = (source, span.file_offset);
            let part = readable.and_then(|()| self.part(executor, vma, span, span.range, from));
            match part {
                Ok(part) => first = self.switch(executor, &[part], first)?,
                Err(failure) => {
                    first = keep_first(first, self.left_alone(span.range, Err(failure)))?;
                }
            }
            passing.let_go(executor)?;
        }
        first
    }

    /// Notes text that TiExec must leave alone, because it is sealed or has a protection key. Returns no failure for
    /// such text, as if the plan had left it out.
    fn left_alone(&self, to: AddrRange, done: Result<(), Failure>) -> Result<(), Failure> {
        match done {
            Err(Failure {
                reason: Reason::Skipped(why @ (SkipReason::Sealed | SkipReason::ProtectionKey)),
                ..
            }) => {
                self.alone.lock().unwrap_or_else(PoisonError::into_inner).push((to, why));
                Ok(())
            }
            done => done,
        }
    }

    /// Switches parts. `first` is the first failure before this.
    fn switch(
        &self,
        executor: &mut impl Executor,
        parts: &[Switch],
        mut first: Result<(), Failure>,
    ) -> Result<Result<(), Failure>, Failure> {
        let unchanged = |part: &Switch| {
            self.texts.is_still_mapped(&self.order.target.space, part.to)?;
            self.written.none(part.to)
        };
        switch_all(executor, &self.around, parts, &unchanged, |part, done| {
            let before = std::mem::replace(&mut first, Ok(()));
            first = keep_first(before, self.left_alone(part.to, done))?;
            Ok(())
        })?;
        Ok(first)
    }

    /// Returns one part of a span, ready to be switched. `from` is the file and the offset in it.
    fn part(
        &self,
        executor: &mut impl Executor,
        vma: &Vma,
        span: &Span,
        to: AddrRange,
        from: (OpenFile, u64),
    ) -> Result<Switch, Failure> {
        if span.edge {
            self.is_unchanged(vma, to)?;
        }
        let locked = self.locks && self.is_locked(executor, vma, span, to)?;
        let (source, offset) = from;
        let backing = Some(span.backing);
        let protection = protection::of_text(std::slice::from_ref(vma), vma.range);
        Ok(Switch { source, offset, to, populated: to, locked, protection, backing })
    }

    /// Makes sure that the thread may read a text as it could read a copy. A mapping has one key, so one check is
    /// enough.
    fn is_readable(
        &self,
        executor: &mut impl Executor,
        vma: &Vma,
        received: Received,
    ) -> Result<Result<(), Failure>, TraceError> {
        if !self.keys || received.has_read {
            return Ok(Ok(()));
        }
        probe::may_read(executor, vma.range, self.order.policy.pages.base)
    }

    /// Returns whether the text at a part of a span is locked in memory.
    fn is_locked(
        &self,
        executor: &mut impl Executor,
        vma: &Vma,
        span: &Span,
        to: AddrRange,
    ) -> Result<bool, Failure> {
        let Some(text) = vma.range.intersection(to) else { return Ok(false) };
        let locked = probe::is_locked(executor, text)?;
        let parts = self.texts.text(vma).and_then(|text| text.parts.as_ref());
        for part in parts.filter(|_| span.edge).into_iter().flat_map(|parts| parts.within(to)) {
            if probe::is_locked(executor, part.range)? != locked {
                let what = format!("{to} is locked in memory, and not all of it");
                return Err(Failure::new(FailureKind::EdgeInUse, what));
            }
        }
        Ok(locked)
    }

    /// Makes sure that the mappings in an edge have not changed: the whole huge page is still mapped as the file's
    /// headers say.
    fn is_unchanged(&self, vma: &Vma, page: AddrRange) -> Result<(), Failure> {
        let changed = || Failure::new(FailureKind::EdgeInUse, format!("{page} has changed"));
        let parts: &Parts =
            self.texts.text(vma).and_then(|text| text.parts.as_ref()).ok_or_else(changed)?;
        let now = areas::vmas(&self.order.target.process).map_err(Failure::unreadable)?;
        let as_described = |now: &Vma| now.file == vma.file && parts.describe(now, page);
        if covered(&now, page, as_described) { Ok(()) } else { Err(changed()) }
    }

    /// Returns the text VMA to which the edge belongs, and its file.
    fn text_at(&self, page: AddrRange) -> Option<(&Vma, &TargetFile)> {
        let vma = self.texts.in_range(page)?;
        Some((vma, self.texts.file(vma)?))
    }
}

/// Returns the identity by which maps shows a file that TiExec made. Such a file is in memory, so stat(2) and maps
/// show the same device.
pub(super) fn id_of(file: &File) -> FileId {
    let Ok(meta) = file.metadata() else { return FileId::default() };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    FileId { major, minor, inode: meta.ino() }
}

/// Continues after a failure that concerns one part only, and keeps the first one.
fn keep_first(
    first: Result<(), Failure>,
    done: Result<(), Failure>,
) -> Result<Result<(), Failure>, Failure> {
    match done {
        Err(failure)
            if failure.reason == FailureKind::EdgeInUse
                || failure.reason == SkipReason::ModifiedText =>
        {
            Ok(first.and(Err(failure)))
        }
        Err(failure) => Err(failure),
        Ok(()) => Ok(first),
    }
}

/// Returns where a part of an image belongs in a process with the spans `here`, and which of them holds it. `there`
/// are the spans of the process for which the image was made, in the same order.
fn place_of<'a>(part: &Staged, there: &[Span], here: &'a [Span]) -> Option<(&'a Span, AddrRange)> {
    let index = there.iter().position(|span| span.range.covers(part.span.range))?;
    let into = part.span.range.start().get() - there[index].range.start().get();
    let span = here.get(index)?;
    let start = span.range.start().checked_add(into)?;
    Some((span, AddrRange::with_len(start, part.span.range.len())?))
}
