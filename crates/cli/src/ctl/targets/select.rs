//! Selects processes by id, file or unit.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tiexec_core::proc::mountinfo;
use tiexec_remap::systemd_units;
pub(crate) use tiexec_remap::systemd_units::with_kind;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{self, Holding, Identity, PathFile};

/// Splits a list of process IDs at commas and blanks, as `pidof` and `pgrep -d,` print it.
///
/// # Errors
/// The first word that is not a process ID.
pub(crate) fn parse(words: &[String]) -> Result<Vec<Pid>, String> {
    let mut pids: Vec<Pid> = Vec::new();
    let all = words.iter().flat_map(|word| word.split([',', ' ', '\t', '\n']));
    for word in all.filter(|word| !word.is_empty()) {
        let pid = word.parse::<i32>().ok().filter(|&pid| pid > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| {
            format!("cannot use {word:?} as a process ID: it is not a number from 1 to 2147483647; fix: name a PID")
        })?;
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    if pids.is_empty() {
        return Err("cannot find a process ID: the list is empty; fix: name a PID".to_owned());
    }
    Ok(pids)
}

/// Lists the processes that `wanted` accepts, except this one.
pub(crate) fn every(mut wanted: impl FnMut(Pid, &ProcDir) -> bool) -> Vec<Pid> {
    let this = tiexec_sys::process::this();
    let others = ProcDir::every().filter(|(pid, _)| *pid != this);
    others.filter(|(pid, process)| wanted(*pid, process)).map(|(pid, _)| pid).collect()
}

/// A program, identified by its file in this mount namespace. Another mount namespace can have another file at the same
/// path.
pub(crate) struct Executable {
    /// Its path, without links.
    path: PathBuf,
    /// Its identity and its owner; `None` if there is no such file.
    file: Option<(Identity, u32)>,
    /// The mounts of this process's own mount namespace.
    mounts: Vec<u64>,
}

impl Executable {
    pub(crate) fn at(path: &Path) -> Self {
        let file =
            PathFile::at(path).and_then(|file| Ok((file.identity()?, file.holding()?.owner)));
        let mounts = ProcDir::this_process().and_then(|this| this.read("mountinfo"));
        let mounts = mounts.unwrap_or_default();
        Self {
            path: real(path),
            file: file.ok(),
            mounts: mountinfo::parse(&mounts).iter().map(|mount| mount.id).collect(),
        }
    }

    /// Returns whether the process runs this file, or a file that was at the path before it was replaced or removed.
    pub(crate) fn is_run_by(&self, process: &ProcDir) -> bool {
        let Ok(exe) = PathFile::of_process(process, "exe") else { return false };
        let Ok(identity) = exe.identity() else { return false };
        self.file.is_some_and(|(file, _)| file == identity) || self.was(process, &exe)
    }

    /// Returns whether `exe` was at the path earlier and has no name any more. Only root, this user, or the owner of
    /// the present file can have put it there. It must lie on a mount of this mount namespace, because paths on other
    /// mounts prove nothing.
    fn was(&self, process: &ProcDir, exe: &PathFile) -> bool {
        let Ok(Holding { owner, links: 0 }) = exe.holding() else { return false };
        let own = rustix::process::geteuid().as_raw();
        let trusted = [Some(0), Some(own), self.file.map(|(_, owner)| owner)];
        trusted.contains(&Some(owner))
            && reopen::mount_id(exe).is_some_and(|id| self.mounts.contains(&id))
            && process.exe_path().is_ok_and(|path| {
                path.strip_suffix(b" (deleted)") == Some(self.path.as_os_str().as_bytes())
            })
    }
}

/// Returns the path without links, as `/proc/PID/exe` shows it. The file itself may be missing.
fn real(path: &Path) -> PathBuf {
    let of_directory = || {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(directory.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(of_directory).unwrap_or_else(|| path.to_owned())
}

/// Returns whether the process belongs to this unit of the system's manager.
pub(crate) fn is_of_unit(process: &ProcDir, unit: &str) -> bool {
    systemd_units::of(process).is_some_and(|units| units.system == unit)
}

/// Returns whether the process belongs to this unit of a user's own manager. Root may name a unit of any user, others
/// only their own.
pub(crate) fn is_of_user_unit(process: &ProcDir, unit: &str) -> bool {
    let own = rustix::process::geteuid();
    let of_user = systemd_units::of(process).and_then(|units| units.user);
    of_user.is_some_and(|of| of.name == unit && (own.is_root() || of.uid == own.as_raw()))
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
            let why = parse(odd).expect_err(odd);
            assert!(why.starts_with("cannot ") && why.ends_with("; fix: name a PID"), "{why}");
        }
    }
}
