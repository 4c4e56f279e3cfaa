//! Which processes are meant.

use std::path::{Path, PathBuf};

use tiexec_core::proc::cgroup;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

/// Splits a list of process ids at commas and blanks, as `pidof` and `pgrep -d,` print them.
///
/// # Errors
/// The first word that is no process id.
pub(crate) fn parse(words: &[String]) -> Result<Vec<Pid>, String> {
    let mut pids: Vec<Pid> = Vec::new();
    let all = words.iter().flat_map(|word| word.split([',', ' ', '\t', '\n']));
    for word in all.filter(|word| !word.is_empty()) {
        let pid = word.parse::<i32>().ok().filter(|&pid| pid > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| format!("{word:?} is not a process id"))?;
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    if pids.is_empty() { Err("no process id".to_owned()) } else { Ok(pids) }
}

/// Lists the processes that `wanted` accepts, this one left out.
pub(crate) fn every(wanted: impl Fn(&ProcDir) -> bool) -> Vec<Pid> {
    let this = tiexec_sys::process::this();
    let others = ProcDir::every().filter(|(pid, _)| *pid != this);
    others.filter(|(_, process)| wanted(process)).map(|(pid, _)| pid).collect()
}

/// Whether the process runs the program at `path`, replaced meanwhile or not.
pub(crate) fn runs(process: &ProcDir, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    process.exe_path().is_ok_and(|exe| {
        let exe = exe.strip_suffix(b" (deleted)").unwrap_or(&exe);
        exe == path.as_os_str().as_bytes()
    })
}

/// Whether the process belongs to the systemd unit.
pub(crate) fn is_of_unit(process: &ProcDir, unit: &str) -> bool {
    process.read("cgroup").ok().and_then(|text| cgroup::unit(&text)).is_some_and(|of| of == unit)
}

/// Returns the path as `/proc/PID/exe` shows it.
pub(crate) fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_pidof_and_pgrep_print_them() {
        let parse = |text: &str| parse(&[text.to_owned()]).map(|pids| pids.len());
        assert_eq!(parse("1"), Ok(1));
        assert_eq!(parse("12 7,7\n3"), Ok(3));
        for odd in ["", " , ", "x", "-1", "0", "99999999999", "1 two"] {
            assert!(parse(odd).is_err(), "{odd:?}");
        }
    }
}
