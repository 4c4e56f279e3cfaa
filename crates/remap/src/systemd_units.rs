//! Finds the systemd units to which a process belongs.

use tiexec_core::proc::cgroup::{self, Units};
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

/// Returns the units of the process; `None` if it belongs to no unit of the manager that is PID 1 here.
pub fn of(process: &ProcDir) -> Option<Units> {
    let init = ProcDir::of(Pid::INIT).and_then(|init| init.read("cgroup")).unwrap_or_default();
    cgroup::units(&process.read("cgroup").ok()?, &init)
}

/// Returns these units as text.
pub fn shown(process: &ProcDir) -> Option<String> {
    of(process).map(|units| units.to_string())
}

/// Appends the kind `.service` to a unit's name, or to a pattern of names, that has no kind (systemd:
/// `unit_name_mangle`).
pub fn with_kind(unit: &str) -> String {
    const KINDS: [&str; 11] = [
        "automount",
        "device",
        "mount",
        "path",
        "scope",
        "service",
        "slice",
        "socket",
        "swap",
        "target",
        "timer",
    ];
    match unit.rsplit_once('.') {
        Some((_, kind)) if KINDS.contains(&kind) => unit.to_owned(),
        _ => format!("{unit}.service"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_without_a_kind_is_a_service() {
        for (name, full) in [
            ("redis-server", "redis-server.service"),
            ("redis-server.service", "redis-server.service"),
            ("session-3.scope", "session-3.scope"),
            ("pg@16.1", "pg@16.1.service"),
            ("postgresql@*", "postgresql@*.service"),
        ] {
            assert_eq!(with_kind(name), full);
        }
    }
}
