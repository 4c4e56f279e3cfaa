//! The build that a canary is about: processes may have the path of a program in common and run another build, such as after
//! an upgrade or in another container.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tiexec_agent::decide::build_of;
use tiexec_agent::state::Build;
use tiexec_core::escape::AsShown;
use tiexec_engine::locked_target::LOOKING;
use tiexec_remap::file_state::FileState;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::PathFile;

use crate::exit;
use crate::stdio::warn;

/// Most files that are remembered. A user decides how many programs run.
const MOST: usize = 1024;

/// One build, and the files that are known to have it or not.
#[derive(Debug)]
pub(super) struct OneBuild {
    pub(super) build: Build,
    files: HashMap<FileState, bool>,
    /// The time that looks at files may still take: a file's server may let each look wait.
    left: Duration,
}

impl OneBuild {
    pub(super) fn new(build: Build) -> Self {
        Self { build, files: HashMap::new(), left: LOOKING }
    }

    /// Returns the build of a process.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn of(pid: Pid, exe: &[u8]) -> Result<Self, u8> {
        let build = ProcDir::of(pid).map_err(|error| error.to_string());
        let build = build.and_then(|process| build_of(&process)).map_err(|why| {
            warn(format_args!("cannot tell the build of {}: {why}", exe.shown()));
            exit::FAILED
        })?;
        let (file, build) = build;
        Ok(Self { files: HashMap::from([(file, true)]), ..Self::new(build) })
    }

    /// Selects the build of a process of this program among these: the wanted build, or that of the process which used the
    /// most processor time. Keeps the processes that run it.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn select(
        wanted: Option<Build>,
        pids: &mut Vec<Pid>,
        busiest: impl Fn(&[Pid]) -> Option<(Pid, Vec<u8>)>,
    ) -> Result<Self, u8> {
        let ended = || {
            warn("cannot begin a canary: the processes have ended, or run another build by now");
            exit::GONE
        };
        let mut one = match wanted {
            Some(build) => Self::new(build),
            None => busiest(pids).ok_or_else(ended).and_then(|(pid, exe)| Self::of(pid, &exe))?,
        };
        let all = pids.len();
        pids.retain(|&pid| one.is_run_by(pid));
        let (_, exe) = busiest(pids).ok_or_else(ended)?;
        let others = all - pids.len();
        if others > 0 {
            warn(format_args!(
                "processes that run another build of {} stay as they are: {others}; fix: systemctl restart their service",
                exe.shown()
            ));
        }
        Ok(one)
    }

    /// Returns whether the process runs this build; false if that cannot be told.
    pub(super) fn is_run_by(&mut self, pid: Pid) -> bool {
        let Ok(process) = ProcDir::of(pid) else { return false };
        let now = PathFile::of_process(&process, "exe").ok();
        let now = now.and_then(|file| FileState::of(&file));
        if let Some(&known) = now.as_ref().and_then(|file| self.files.get(file)) {
            return known;
        }
        if self.left.is_zero() {
            return false;
        }
        let begun = Instant::now();
        let build = build_of(&process);
        self.left = self.left.saturating_sub(begun.elapsed());
        // A look that failed says nothing about the file: the process may have ended.
        let Ok((file, build)) = build else { return false };
        let is_it = build == self.build;
        // The process may have executed another program since the first look.
        if self.files.len() < MOST {
            self.files.insert(file, is_it);
        }
        is_it
    }
}
