//! The protection of the mappings that replace text: that of the text, with its guards against indirect branches.

use tiexec_core::addr::AddrRange;
use tiexec_core::proc::maps::Vma;
use tiexec_sys::c;

/// The protection of plain text.
pub(crate) const TEXT: i32 = c::PROT_READ | c::PROT_EXEC;
/// The protection of [guarded](Vma::guarded) text.
pub(crate) const GUARDED: i32 = TEXT | c::PROT_BTI;

/// Returns the protection of the text in `range`, or of the text whose edge `range` is.
pub(crate) fn of_text(vmas: &[Vma], range: AddrRange) -> i32 {
    let guarded = |vma: &Vma| vma.guarded && vma.is_text() && vma.range.overlaps(range);
    if vmas.iter().any(guarded) { GUARDED } else { TEXT }
}

/// Returns the protection of any mapping.
pub(crate) const fn of(vma: &Vma) -> i32 {
    (if vma.perms.read { c::PROT_READ } else { 0 })
        | (if vma.perms.write { c::PROT_WRITE } else { 0 })
        | (if vma.perms.exec { c::PROT_EXEC } else { 0 })
        | (if vma.guarded { c::PROT_BTI } else { 0 })
}
