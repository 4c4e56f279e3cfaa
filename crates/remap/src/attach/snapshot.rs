//! Reads a process whose text is to be changed: its mappings, which of them are huge, and the properties of its
//! text beside the permissions.

use tiexec_core::area::{Area, SmapsFor};
use tiexec_core::coverage::is_ours;
use tiexec_core::elf::{asks_for_guards, properties_part};
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::SkipReason;
use tiexec_sys::areas::{self, Seen};
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;
use tiexec_tracee::arch;
use tiexec_tracee::target::Target;

use crate::elf_file::elf_headers;
use crate::open_mapped::open_mapped;
use crate::target_file::ReadAt;
use crate::workers::Workers;

use super::AttachOrder;

/// Looks at a process. If its text may be guarded or tagged, reads smaps too, because no other file shows that.
///
/// # Errors
/// `target_gone`, `ptrace_denied`, `proc_unavailable`.
pub(crate) fn look(order: &AttachOrder<'_>) -> Result<Seen, Failure> {
    let AttachOrder { target, workers, policy, .. } = *order;
    let Target { space, process, .. } = target;
    let mut seen = areas::look_at(space, process, policy.pages).map_err(Failure::unreadable)?;
    if seen.smaps_for.is_none() && may_be_guarded(target, workers, &seen.areas) {
        let told = areas::by_smaps(process).map_err(Failure::unreadable)?;
        for area in &mut seen.areas {
            // A mapping that changed between the two reads counts as unguarded here; the switch detects the change.
            let same = told.iter().find(|told| told.vma.range == area.vma.range);
            area.vma.guarded = same.is_some_and(|same| same.vma.guarded);
            area.keyed = same.is_some_and(|same| same.keyed);
        }
        seen.smaps_for = Some(SmapsFor::Guards);
    }
    Ok(seen)
}

/// Returns whether text may be guarded or tagged. It may be guarded if the processor has guards and a file of the
/// process requests them. It may be tagged if the processor has memory tags, which a program can give to mappings
/// of a tmpfs. (TiExec's copies are guarded if the text before them was.)
fn may_be_guarded(target: &Target, workers: &Workers, areas: &[Area]) -> bool {
    if !arch::GUARDS_TEXT {
        return false;
    }
    let Ok(auxv) = target.space.auxv() else { return false };
    let has = auxv::get(&auxv, auxv::AT_HWCAP2).unwrap_or(0);
    let texts = areas.iter().map(|area| &area.vma).filter(|vma| vma.is_text());
    if arch::has_tags(has) {
        // A tmpfs, or another file system without a device, has the major number 0.
        let taggable = |vma: &Vma| vma.file.major == 0 && !vma.name.starts_with(b"/memfd:");
        if { texts.clone() }.any(taggable) {
            return true;
        }
    }
    let mut known = Vec::new();
    arch::has_guards(has) && { texts }.any(|vma| {
        let first = !known.contains(&vma.file);
        known.push(vma.file);
        first && (is_ours(vma) || asks(&target.process, workers, vma).unwrap_or(true))
    })
}

/// Returns whether the file that a VMA maps requests guards; `None` if it cannot be read.
fn asks(process: &ProcDir, workers: &Workers, vma: &Vma) -> Option<bool> {
    /// Real properties have a few words.
    const MOST: u64 = 4096;
    let file = open_mapped(process, workers, vma).ok()?;
    let (header, table) = match elf_headers(&file) {
        Err(failure) if failure.reason == SkipReason::ForeignImage => return Some(false),
        read => read.ok()?,
    };
    let Some(part) = properties_part(&header, &table) else { return Some(false) };
    let len = (part.end - part.start).min(MOST);
    let mut properties = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut properties, part.start).ok()?;
    Some(asks_for_guards(&properties))
}
