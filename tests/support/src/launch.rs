//! A launch: the program, the options of `tiexec`, the command in front of it, and the initial state. The same launch
//! can be made without `tiexec`, for comparison.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::child::{Done, Held, LONGEST};

/// One step that the child takes before its exec.
#[derive(Debug, Clone, Copy)]
pub enum Prep {
    /// Sets both limits of a resource.
    Rlimit(u32, u64),
    /// Ignores a signal.
    Ignore(i32),
    /// Blocks a signal.
    Block(i32),
    /// prctl(2) with two arguments.
    Prctl(i32, u64, u64),
    /// personality(2).
    Personality(u64),
    /// Closes a descriptor.
    CloseFd(i32),
    /// dup2 of the first descriptor onto the second, which the program inherits.
    Fd(i32, i32),
    /// umask(2).
    Umask(u32),
    /// alarm(2), in seconds.
    Alarm(u32),
    /// nice(2).
    Nice(i32),
    /// Starts its own session.
    Setsid,
    /// Starts its own session, with the terminal on fd 0.
    Terminal,
}

fn check(ret: i64) -> std::io::Result<()> {
    if ret == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks and ignores no signal. Whoever started the tests may do so: nohup(1) ignores SIGHUP, perf blocks SIGWINCH.
fn usual_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the call is async-signal-safe. It fails for the signals that nobody can change.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero set is a valid object for sigemptyset to overwrite.
    let mut none = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through both calls.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: as above.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

impl Prep {
    fn apply(self) -> std::io::Result<()> {
        #[allow(
            clippy::multiple_unsafe_ops_per_block,
            reason = "one table of calls, one argument for all"
        )]
        // SAFETY: every call gets numbers, or pointers to locals that live through it; all are async-signal-safe.
        unsafe {
            match self {
                Prep::Rlimit(resource, limit) => {
                    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                    check(libc::setrlimit(resource, &limit).into())
                }
                Prep::Ignore(signal) => {
                    libc::signal(signal, libc::SIG_IGN);
                    Ok(())
                }
                Prep::Block(signal) => {
                    let mut set = std::mem::zeroed();
                    libc::sigemptyset(&mut set);
                    libc::sigaddset(&mut set, signal);
                    check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()).into())
                }
                Prep::Prctl(op, a, b) => check(libc::prctl(op, a, b, 0, 0).into()),
                Prep::Personality(bits) => check(libc::personality(bits).into()),
                Prep::CloseFd(fd) => {
                    libc::close(fd);
                    Ok(())
                }
                Prep::Fd(from, to) => check(libc::dup2(from, to).into()),
                Prep::Umask(mask) => {
                    libc::umask(mask as libc::mode_t);
                    Ok(())
                }
                Prep::Alarm(seconds) => {
                    libc::alarm(seconds);
                    Ok(())
                }
                Prep::Nice(by) => {
                    libc::nice(by);
                    Ok(())
                }
                Prep::Setsid => check(libc::setsid().into()),
                Prep::Terminal => {
                    check(libc::setsid().into())?;
                    check(libc::ioctl(0, libc::TIOCSCTTY, 0).into())
                }
            }
        }
    }
}

/// The part of a launch that concerns `tiexec`.
#[derive(Debug, Clone)]
struct Launcher {
    binary: PathBuf,
    options: Vec<OsString>,
}

/// A launch that has not been started.
#[derive(Debug, Clone)]
pub struct Run {
    front: Vec<OsString>,
    launcher: Option<Launcher>,
    program: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    preps: Vec<Prep>,
    cwd: Option<PathBuf>,
    stdio: Option<[i32; 3]>,
    group: bool,
    limit: Duration,
}

impl Run {
    /// The program and its arguments, through `tiexec`.
    pub fn new<S: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Run {
        let mut argv = vec![program.as_ref().to_owned()];
        argv.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        Run {
            front: Vec::new(),
            launcher: Some(Launcher { binary: super::tiexec().to_owned(), options: Vec::new() }),
            program: argv,
            env: Vec::new(),
            preps: Vec::new(),
            cwd: None,
            stdio: None,
            group: true,
            limit: LONGEST,
        }
    }

    /// Adds an argument.
    pub fn with_arg(mut self, arg: impl Into<OsString>) -> Run {
        self.program.push(arg.into());
        self
    }

    /// The same launch without `tiexec`.
    pub fn plain(&self) -> Run {
        Run { launcher: None, ..self.clone() }
    }

    /// The same launch through `env(1)`, which only calls execvp.
    pub fn through_env(&self) -> Run {
        Run {
            launcher: Some(Launcher { binary: "/usr/bin/env".into(), options: Vec::new() }),
            ..self.clone()
        }
    }

    /// Uses another copy of `tiexec`.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Run {
        self.launcher.as_mut().expect("a launch through tiexec").binary = binary.into();
        self
    }

    /// Adds options for `tiexec`.
    pub fn options<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Run {
        let launcher = self.launcher.as_mut().expect("a launch through tiexec");
        launcher.options.extend(options.into_iter().map(|o| o.as_ref().to_owned()));
        self
    }

    /// Puts a command that execs or runs the rest in front of everything, `tiexec` included.
    pub fn behind<S: AsRef<OsStr>>(mut self, front: impl IntoIterator<Item = S>) -> Run {
        self.front.extend(front.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Puts a shell script in front. The script must end with `exec "$@"` or the like.
    pub fn behind_sh(self, script: &str) -> Run {
        self.behind(["sh", "-ec", script, "sh"])
    }

    /// Adds a variable to the few that every child has.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Run {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Launches without address randomisation. With it, one program in 512 lies at a congruent address by chance, so
    /// that a launch has nothing to move.
    pub fn fixed_addresses(self) -> Run {
        self.prep(Prep::Personality(libc::ADDR_NO_RANDOMIZE as u64))
    }

    /// Adds a step before the exec.
    pub fn prep(mut self, prep: Prep) -> Run {
        if matches!(prep, Prep::Setsid | Prep::Terminal) {
            // The leader of a process group cannot start a session. A new session has its own process group in any
            // case.
            self.group = false;
        }
        self.preps.push(prep);
        self
    }

    /// Sets the working directory.
    pub fn cwd(mut self, dir: &Path) -> Run {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Sets the standard streams to descriptors of this process (-1: a null device).
    pub fn stdio(mut self, fds: [i32; 3]) -> Run {
        self.stdio = Some(fds);
        self
    }

    /// Keeps the child in the process group of the test.
    pub fn same_group(mut self) -> Run {
        self.group = false;
        self
    }

    /// Sets the time limit of the child in seconds, which [`patience`](super::child::patience) may raise.
    pub fn limit(mut self, seconds: u64) -> Run {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// The whole command line.
    pub fn argv(&self) -> Vec<OsString> {
        let mut argv = self.front.clone();
        if let Some(launcher) = &self.launcher {
            argv.push(launcher.binary.clone().into());
            if self.is_hurried(launcher) {
                argv.push("--deadline=1m".into());
            }
            if self.is_of_the_machine(launcher) {
                argv.push("--evict=never".into());
            }
            argv.extend(launcher.options.iter().cloned());
        }
        argv.extend(self.program.iter().cloned());
        argv
    }

    /// Returns whether the launch would have the default deadline of `tiexec`, which a shared machine may miss.
    fn is_hurried(&self, launcher: &Launcher) -> bool {
        self.may_add(launcher, "deadline")
    }

    /// Returns whether the program is one of the machine's. Others use its page cache, so a test evicts nothing of it.
    fn is_of_the_machine(&self, launcher: &Launcher) -> bool {
        let program = Path::new(&self.program[0]);
        let is_searched = program.components().count() == 1;
        let is_installed = ["/usr", "/bin", "/sbin"].iter().any(|dir| program.starts_with(dir));
        (is_searched || is_installed) && self.may_add(launcher, "evict")
    }

    /// Returns whether the launcher is `tiexec`, and the test says nothing about this setting.
    fn may_add(&self, launcher: &Launcher, setting: &str) -> bool {
        let mut said = launcher.options.iter().chain(self.env.iter().map(|(_, value)| value));
        !launcher.binary.ends_with("env")
            && !said.any(|text| text.to_string_lossy().contains(setting))
    }

    fn command(&self) -> Command {
        let argv = self.argv();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        command.env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin",
        );
        command.env("HOME", "/nonexistent").env("LANG", "C.UTF-8");
        // What is said of the host of this machine is the same everywhere.
        command.env("TIEXEC_TEST_HOST", "whole");
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        match self.stdio {
            None => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Some(fds) => {
                let stdio = |fd: i32| {
                    if fd < 0 {
                        return Stdio::null();
                    }
                    // SAFETY: the test passes descriptors that it keeps open through the spawn.
                    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                    fd.try_clone_to_owned().expect("a descriptor to spare").into()
                };
                command.stdin(stdio(fds[0])).stdout(stdio(fds[1])).stderr(stdio(fds[2]));
            }
        }
        if self.group {
            command.process_group(0);
        }
        let preps = self.preps.clone();
        let prepare = move || {
            usual_signals();
            preps.iter().try_for_each(|prep| prep.apply())
        };
        // SAFETY: the closure makes async-signal-safe calls only and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        command
    }

    /// Starts the launch.
    pub fn start(&self) -> Held {
        let shown = self
            .argv()
            .iter()
            .map(|a| a.to_string_lossy().chars().take(200).collect::<String>())
            .collect::<Vec<_>>()
            .join(" ");
        let leads =
            self.group || self.preps.iter().any(|p| matches!(p, Prep::Setsid | Prep::Terminal));
        Held::spawn(self.command(), shown, self.limit, leads)
    }

    /// Starts the launch and waits until the program prints "ready".
    pub fn hold(&self) -> Held {
        let mut held = self.start();
        held.wait_line("ready");
        held
    }

    /// Measures the shortest time here until the program prints "ready". Several starts are timed, because the first
    /// start of a new file may read it from the disk. The program must end with that exit status.
    pub fn usual_start(&self, code: i32) -> Duration {
        let start = |_| {
            let begun = Instant::now();
            let held = self.hold();
            let usual = begun.elapsed();
            held.finish().assert_code(code);
            usual
        };
        (0..5).map(start).min().unwrap_or_default()
    }

    /// Runs the launch to its end.
    pub fn output(&self) -> Done {
        self.start().finish()
    }
}
