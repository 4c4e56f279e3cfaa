//! The report of a process that TiExec only inspects.

use tiexec_core::addr::Pages;
use tiexec_core::config::EdgePolicy;
use tiexec_core::coverage::{Note, coverage, is_ours, left_alone};
use tiexec_core::proc::maps::Vma;
use tiexec_core::report::{Kind, Report};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, areas};

use crate::attach::look_at_jit;
use crate::mapped::originals;
use crate::restart;
use crate::workers::Workers;
use crate::{numa_placement, store, systemd_units};

/// Reports how much of a process's text the kernel says is huge.
///
/// # Errors
/// Its files under `/proc` cannot be read.
pub fn report(pid: Pid, process: &ProcDir, pages: Pages) -> Result<Report, SysError> {
    let status = process.status()?;
    let seen = areas::look(process, pages)?;
    let mut entries = seen.areas;
    numa_placement::tell(pid, &mut entries, pages);
    store::memory::tell(&mut entries);
    let comm = String::from_utf8_lossy(&status.name).into_owned();
    let left = |vma: &Vma| {
        let reason = left_alone(vma).filter(|_| vma.is_text() && !is_ours(vma))?;
        Some(Note { range: vma.range, reason: reason.into() })
    };
    let notes: Vec<Note> = entries.iter().filter_map(|entry| left(&entry.vma)).collect();
    let originals = originals(process, &Workers::none(), &entries, pages);
    let files = coverage(&entries, pages, &notes, &originals);
    let mut report =
        Report::new(Kind::Inspect, pid.as_raw_nonzero().get().unsigned_abs(), comm, files);
    report.jit = look_at_jit(process, &entries, pages).unwrap_or_default();
    report.smaps_for = seen.smaps_for;
    report.unit = systemd_units::shown(process);
    report.restart = restart::gain(process, &report.files, EdgePolicy::default(), pages);
    Ok(report)
}
