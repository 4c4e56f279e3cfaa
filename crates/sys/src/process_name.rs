//! The name and the command line of a process, which `ps` shows and `pgrep` searches.

use std::ffi::{CStr, CString};

use tiexec_core::proc::stat::{self, Layout};

use crate::procfs::ProcDir;

/// The names of TiExec's own processes: at most 15 bytes, because the kernel cuts longer names (`TASK_COMM_LEN`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Works on a launch until the program runs.
    Helper,
    /// Tries the calls of a launch where a seccomp filter may kill for one.
    Scout,
    /// Waits to be traced, to test whether it can be.
    Probe,
    /// Lives beside a program, for text and programs after the program's start.
    Follower,
    /// Works on processes of other users.
    Tracer,
    /// Reads the files of a process of another user.
    Reader,
    /// Copies a descriptor out of a process of another user.
    Fetcher,
    /// Watches the pods of this node.
    Pods,
}

impl Role {
    const fn name(self) -> &'static CStr {
        match self {
            Self::Helper => c"tiexec-helper",
            Self::Scout => c"tiexec-scout",
            Self::Probe => c"tiexec-probe",
            Self::Follower => c"tiexec-follower",
            Self::Tracer => c"tiexec-tracer",
            Self::Reader => c"tiexec-reader",
            Self::Fetcher => c"tiexec-fetcher",
            Self::Pods => c"tiexec-pods",
        }
    }
}

/// Makes this process show its role as its name and as its whole command line, instead of its parent's. The process
/// must be just forked and have one thread. After that the arguments of `main` hold nothing of use.
///
/// The command line is overwritten in place, because `PR_SET_MM_ARG_START` needs CAP_SYS_RESOURCE. If `/proc` does not
/// give the place, only the name changes.
pub(crate) fn call_this(role: Role) {
    let name = role.name();
    let _only_a_name = rustix::thread::set_name(name);
    if let Some(title) = Title::of_this() {
        if title.reaches_environment(name) {
            copy_environment();
        }
        title.write(name);
    }
}

/// A role that this process shows for a moment, so that a process which it forks meanwhile shows the role from its first
/// moment on. This process must have one thread. Before the end nothing may read its arguments or its environment.
pub(crate) struct Lent {
    name: Option<CString>,
    title: Option<(Title, Vec<u8>)>,
}

impl Lent {
    pub(crate) fn begin(role: Role) -> Self {
        let name = rustix::thread::name().ok();
        let title = Title::of_this().map(|title| (title, title.get(title.reach(role.name()))));
        let _only_a_name = rustix::thread::set_name(role.name());
        if let Some((title, _)) = &title {
            title.write(role.name());
        }
        Self { name, title }
    }

    /// Keeps the role, in a process that was forked meanwhile.
    pub(crate) fn keep(self, role: Role) {
        let into_environment = |(title, _): &(Title, _)| title.reaches_environment(role.name());
        if self.title.as_ref().is_some_and(into_environment) {
            // The environment must be whole again before it gets a place of its own.
            self.end();
            call_this(role);
        }
    }

    /// Shows again what this process had shown before.
    pub(crate) fn end(self) {
        if let Some(name) = self.name {
            let _only_a_name = rustix::thread::set_name(&name);
        }
        if let Some((title, bytes)) = self.title {
            title.put(0, &bytes);
        }
    }
}

/// The place of a command line. While the last byte of the arguments is zero, the kernel shows them whole. Otherwise it
/// shows one string, which may reach into the environment behind them (setproctitle(3); `get_mm_cmdline` in
/// `fs/proc/base.c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Title {
    start: u64,
    arguments: usize,
    environment: usize,
}

impl Title {
    fn of(layout: &Layout) -> Option<Self> {
        let Layout { arg_start, arg_end, env_start, env_end, .. } = *layout;
        let len = |start: u64, end: u64| usize::try_from(end.checked_sub(start)?).ok();
        let arguments = len(arg_start, arg_end).filter(|&len| arg_start > 0 && len > 0)?;
        let behind = if env_start == arg_end { len(env_start, env_end) } else { None };
        Some(Self { start: arg_start, arguments, environment: behind.unwrap_or(0) })
    }

    fn of_this() -> Option<Self> {
        let stat = ProcDir::this_process().and_then(|this| this.read("stat")).ok()?;
        Self::of(&stat::layout(&stat).ok()?)
    }

    /// Returns the length of what `write` may change.
    fn reach(self, name: &CStr) -> usize {
        name.to_bytes_with_nul().len().min(self.arguments + self.environment).max(self.arguments)
    }

    /// Returns whether `write` changes the environment, too.
    fn reaches_environment(self, name: &CStr) -> bool {
        self.reach(name) > self.arguments
    }

    fn write(self, name: &CStr) {
        let name = name.to_bytes();
        // The last byte of both stays zero.
        let len = name.len().min(self.arguments + self.environment - 1);
        self.put(0, &name[..len]);
        self.put(len, b"\0");
        if len + 1 < self.arguments {
            self.put(self.arguments - 1, b"\x01");
        }
    }

    /// Returns this many bytes of the arguments and of the environment behind them.
    fn get(self, len: usize) -> Vec<u8> {
        assert!(len <= self.arguments + self.environment, "behind the environment");
        // SAFETY: the bytes are mapped, as in `put`, and no thread writes to them meanwhile.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, len) }.to_vec()
    }

    /// Writes into the arguments, or into the environment.
    fn put(self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.arguments + self.environment, "behind the environment");
        let to = (self.start as *mut u8).wrapping_add(at);
        // SAFETY: the kernel has put the arguments onto the stack of this process, and the environment right behind
        // them, so the bytes inside, as just checked, are mapped and writable. No thread reads them meanwhile, because
        // this one is the only thread, and no reference points there: `Argv` and `std::env` give copies. Strings there
        // still end in a zero byte: the last byte of the environment, or behind it that of the program's path.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

/// Gives each variable of the environment a new place of its own.
fn copy_environment() {
    for (key, value) in std::env::vars_os().collect::<Vec<_>>() {
        // SAFETY: this process has no other thread.
        unsafe { std::env::set_var(key, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_not_cut_by_the_kernel() {
        use Role::{Fetcher, Follower, Helper, Probe, Reader, Scout, Tracer};
        for role in [Helper, Scout, Probe, Follower, Tracer, Reader, Fetcher] {
            assert!(role.name().to_bytes().len() <= 15, "{role:?}");
        }
    }

    #[test]
    fn a_place_is_what_the_kernel_says_in_one_piece() {
        let layout = |arg_end, env_start, env_end| Layout {
            arg_start: 100,
            arg_end,
            env_start,
            env_end,
            ..Layout::default()
        };
        let of = |arg_end, env_start, env_end| Title::of(&layout(arg_end, env_start, env_end));
        let title = |arguments, environment| Some(Title { start: 100, arguments, environment });
        assert_eq!(of(110, 110, 150), title(10, 40));
        assert_eq!(of(110, 120, 150), title(10, 0));
        assert_eq!(of(110, 110, 90), title(10, 0));
        assert_eq!(of(100, 100, 150), None);
        assert_eq!(of(90, 90, 150), None);
        assert_eq!(Title::of(&Layout::default()), None);
    }
}
