//! `tiexecctl inspect PID`: how much of a process's text is huge, as the kernel says it.

use tiexec_core::coverage::coverage;
use tiexec_core::report::{Kind, Report};
use tiexec_engine::locked_target::LOOKING;
use tiexec_remap::attach::look_at_jit;
use tiexec_remap::mapped::originals;
use tiexec_remap::{numa_placement, store, systemd_units};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, thp};

use super::attach::looked_at;
use super::{failed, print};
use crate::exit;
use crate::stdio::warn;

pub(super) fn run(pid: i32, json: bool) -> u8 {
    looked_at("inspect", pid, LOOKING, || match report(pid) {
        Ok(report) => print(&if json { report.to_json() + "\n" } else { report.to_string() }),
        Err(status) => status,
    })
}

/// Looks at a process.
///
/// # Errors
/// The exit status for what has been said on stderr.
pub(super) fn report(pid: i32) -> Result<Report, u8> {
    let refuse = |error| failed("inspect", pid, error);
    let gone = SysError { call: "open(/proc/PID)", errno: Errno::NOENT };
    let found = Pid::from_raw(pid).ok_or(gone).and_then(|pid| Ok((pid, ProcDir::of(pid)?)));
    let (number, process) = found.map_err(refuse)?;
    let status = process.status().map_err(refuse)?;
    if !status.has_mm {
        warn(format_args!(
            "cannot inspect process {pid}: it has no address space (a kernel thread, or a process that has ended)"
        ));
        return Err(exit::FAILED);
    }
    let pages = thp::pages().ok_or_else(|| {
        warn("cannot inspect: the kernel has no transparent huge pages");
        exit::FAILED
    })?;
    let seen = areas::look(&process, pages).map_err(refuse)?;
    let mut entries = seen.areas;
    numa_placement::tell(number, &mut entries, pages);
    store::memory::tell(&mut entries);
    let comm = String::from_utf8_lossy(&status.name).into_owned();
    let files = coverage(&entries, pages, &[], &originals(&process, &entries, pages));
    let mut report = Report::new(Kind::Inspect, pid.unsigned_abs(), comm, files);
    report.jit = look_at_jit(&process, &entries, pages).unwrap_or_default();
    report.smaps_for = seen.smaps_for;
    report.unit = systemd_units::shown(&process);
    Ok(report)
}
