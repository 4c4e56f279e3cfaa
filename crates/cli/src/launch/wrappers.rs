//! Programs that start another program in a process of its own, such as timeout(1). A launch of the wrapper does not reach
//! that program. The word `tiexec` belongs before that program, and a line says so.
//!
//! Wrappers that exec the program in their own process (env, nice, setpriv, chrt, taskset, stdbuf) are not concerned: the
//! companion follows them. The name is not enough: a user's own program named `timeout`, and a link of that name to
//! `busybox`, may work in another way. So the wrapper is a file of that name in a directory of the system, behind all links.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tiexec_core::escape::AsShown;
use tiexec_engine::launch::image_file::{is_executable, search};

use super::Launcher;

/// The directories of the system's own programs, where only root can put a file.
const OF_SYSTEM: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// The longest command that the line shows, in bytes. A longer one is not for a person to type.
const LONGEST: usize = 2000;

/// A wrapper and its options, as its manual has them. An option that is not here, such as an abbreviated one, means that it
/// is not known where the command begins.
struct Wrapper {
    name: &'static str,
    /// Short options without a value, and those whose value can only be in the same word.
    flags: &'static str,
    /// Short options with a value, in the same word or the next one.
    values: &'static str,
    long_flags: &'static [&'static str],
    long_values: &'static [&'static str],
    /// Options with which the wrapper starts no program, or execs in its place.
    starts_nothing: &'static [&'static str],
    /// How many words follow the options before the command.
    words: usize,
    /// The command of a shell.
    shell: Shell,
}

/// Where a wrapper takes a command for a shell, in the word after `-c` or `--command`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shell {
    Nowhere,
    /// After the other words.
    AfterWords,
    /// Among the options, which may also follow the words, unless this option is given.
    Unless(&'static str),
    /// Among the options.
    Always,
}

const WRAPPERS: [Wrapper; 8] = [
    // coreutils 9
    Wrapper {
        name: "timeout",
        flags: "fpv",
        values: "ks",
        long_flags: &["foreground", "preserve-status", "verbose"],
        long_values: &["kill-after", "signal"],
        starts_nothing: &["--help", "--version"],
        words: 1,
        shell: Shell::Nowhere,
    },
    // util-linux 2.38
    Wrapper {
        name: "flock",
        flags: "sxeno",
        values: "wE",
        long_flags: &["shared", "exclusive", "nonblock", "close", "verbose"],
        long_values: &["timeout", "wait", "conflict-exit-code"],
        starts_nothing: &["-F", "--no-fork", "-u", "--unlock", "-h", "--help", "-V", "--version"],
        words: 1,
        shell: Shell::AfterWords,
    },
    // findutils 4.9
    Wrapper {
        name: "xargs",
        flags: "0oprtxeil",
        values: "adEILnPs",
        long_flags: &[
            "null",
            "eof",
            "replace",
            "max-lines",
            "open-tty",
            "interactive",
            "no-run-if-empty",
            "verbose",
            "exit",
            "show-limits",
        ],
        long_values: &[
            "arg-file",
            "delimiter",
            "max-args",
            "max-procs",
            "max-chars",
            "process-slot-var",
        ],
        starts_nothing: &["--help", "--version"],
        words: 0,
        shell: Shell::Nowhere,
    },
    // time 1.9
    Wrapper {
        name: "time",
        flags: "apqv",
        values: "fo",
        long_flags: &["append", "portability", "quiet", "verbose"],
        long_values: &["format", "output"],
        starts_nothing: &["-V", "--version", "-h", "--help"],
        words: 0,
        shell: Shell::Nowhere,
    },
    // sudo 1.9
    Wrapper {
        name: "sudo",
        flags: "AbBEHknNPS",
        values: "CDghpRrtTuU",
        long_flags: &[
            "askpass",
            "background",
            "bell",
            "preserve-env",
            "set-home",
            "reset-timestamp",
            "non-interactive",
            "no-update",
            "preserve-groups",
            "stdin",
        ],
        long_values: &[
            "close-from",
            "chdir",
            "group",
            "host",
            "prompt",
            "chroot",
            "role",
            "type",
            "command-timeout",
            "user",
            "other-user",
        ],
        starts_nothing: &[
            "-e",
            "--edit",
            "-l",
            "--list",
            "-v",
            "--validate",
            "-V",
            "--version",
            "-K",
            "--remove-timestamp",
            "--help",
        ],
        words: 0,
        shell: Shell::Nowhere,
    },
    // util-linux 2.38
    Wrapper {
        name: "su",
        flags: "mpflPT",
        values: "gGws",
        long_flags: &["preserve-environment", "login", "fast", "pty", "no-pty"],
        long_values: &["group", "supp-group", "whitelist-environment", "shell"],
        starts_nothing: &["-h", "--help", "-V", "--version"],
        words: 0,
        shell: Shell::Always,
    },
    Wrapper {
        name: "runuser",
        flags: "mpflPT",
        values: "ugGws",
        long_flags: &["preserve-environment", "login", "fast", "pty", "no-pty"],
        long_values: &["user", "group", "supp-group", "whitelist-environment", "shell"],
        starts_nothing: &["-h", "--help", "-V", "--version"],
        words: 0,
        shell: Shell::Unless("u"),
    },
    // systemd 252: its manager starts the command
    Wrapper {
        name: "systemd-run",
        flags: "dGPqrt",
        values: "EHMpu",
        long_flags: &[
            "collect",
            "no-ask-password",
            "no-block",
            "on-clock-change",
            "on-timezone-change",
            "pipe",
            "pty",
            "quiet",
            "remain-after-exit",
            "same-dir",
            "send-sighup",
            "slice-inherit",
            "system",
            "user",
            "wait",
        ],
        long_values: &[
            "description",
            "gid",
            "host",
            "machine",
            "nice",
            "on-active",
            "on-boot",
            "on-calendar",
            "on-startup",
            "on-unit-active",
            "on-unit-inactive",
            "path-property",
            "property",
            "service-type",
            "setenv",
            "slice",
            "socket-property",
            "timer-property",
            "uid",
            "unit",
            "working-directory",
        ],
        starts_nothing: &["--scope", "-S", "--shell", "-h", "--help", "--version"],
        words: 0,
        shell: Shell::Nowhere,
    },
];

/// Where a wrapper's command is among its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// It begins with this argument.
    At(usize),
    /// This argument is a command for a shell.
    ForShell(usize),
    /// There is none.
    Nowhere,
    Unknown,
}

impl Wrapper {
    /// Finds the wrapper that `path` is.
    fn at(path: &Path) -> Option<&'static Wrapper> {
        let path = path.canonicalize().ok()?;
        let directory = path.parent()?.to_str()?;
        let is_its = |wrapper: &&Wrapper| path.file_name() == Some(OsStr::new(wrapper.name));
        OF_SYSTEM.contains(&directory).then(|| WRAPPERS.iter().find(is_its)).flatten()
    }

    /// Finds the command in the wrapper's arguments, as getopt_long(3) reads them.
    fn place(&self, arguments: &[OsString]) -> Place {
        let mut at = 0;
        let mut words = self.words;
        let mut in_shell = matches!(self.shell, Shell::Always | Shell::Unless(_));
        let is_end = |at: usize| at >= arguments.len();
        let mut options = true;
        while let Some(argument) = arguments.get(at).and_then(|argument| argument.to_str()) {
            let is_option = options && argument.len() > 1 && argument.starts_with('-');
            let takes_shell = in_shell || (self.shell == Shell::AfterWords && words == 0);
            if takes_shell && matches!(argument, "-c" | "--command") {
                return if is_end(at + 1) { Place::Unknown } else { Place::ForShell(at + 1) };
            }
            if options && argument == "--" {
                options = false;
                at += 1;
            } else if is_option {
                if self.starts_nothing(argument) {
                    return Place::Nowhere;
                }
                let Some(next) = self.after(argument) else { return Place::Unknown };
                if let Shell::Unless(option) = self.shell {
                    in_shell &= !argument.trim_start_matches('-').starts_with(option);
                }
                at += next;
            } else if in_shell {
                // The name of the user, or `-`.
                at += 1;
            } else if words > 0 {
                words -= 1;
                at += 1;
                // The words end the options.
                options = false;
            } else if self.name == "sudo" && argument.contains('=') {
                at += 1;
            } else {
                return Place::At(at);
            }
        }
        // Without `-c` a shell runs; an argument that is not UTF-8 ends the loop, too.
        if is_end(at) && !in_shell { Place::Nowhere } else { Place::Unknown }
    }

    /// Returns whether the wrapper starts no program in another process because of these options of one word.
    fn starts_nothing(&self, options: &str) -> bool {
        let is_listed = |option: &str| self.starts_nothing.contains(&option);
        let letters = options.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let mut letters =
            letters.unwrap_or("").chars().take_while(|one| !self.values.contains(*one));
        is_listed(options) || letters.any(|letter| is_listed(&format!("-{letter}")))
    }

    /// Returns how many arguments an option takes, its own word included; `None` if it is not known.
    fn after(&self, option: &str) -> Option<usize> {
        if let Some(long) = option.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
            if self.long_values.contains(&name) {
                return Some(if value.is_some() { 1 } else { 2 });
            }
            return self.long_flags.contains(&name).then_some(1);
        }
        let mut letters = option[1..].chars();
        while let Some(letter) = letters.next() {
            if self.values.contains(letter) {
                return Some(if letters.as_str().is_empty() { 2 } else { 1 });
            }
            if self.name == "xargs" && "eil".contains(letter) {
                return Some(1);
            }
            if !self.flags.contains(letter) {
                return None;
            }
        }
        Some(1)
    }
}

/// Returns the words as a command to type; `None` if a person could not type it.
fn command<'a>(words: impl Iterator<Item = &'a OsStr>) -> Option<String> {
    let mut command = String::new();
    for word in words {
        // A word with characters that are shown escaped would be another word.
        if word.shown().to_string().as_bytes() != word.as_bytes() || command.len() > LONGEST {
            return None;
        }
        let blank = if command.is_empty() { "" } else { " " };
        command += &format!("{blank}{}", word.word());
    }
    (command.len() <= LONGEST).then_some(command)
}

/// Returns what to type instead: the whole command if that is certain. `front` is `tiexec` and its options, `words` the wrapper
/// and its arguments. `None` if the wrapper starts nothing, or `tiexec` stands in its place already.
fn instead(wrapper: &Wrapper, front: &[OsString], words: &[OsString]) -> Option<String> {
    let arguments = words.get(1..)?;
    let is_tiexec = |word: &OsStr| Path::new(word).file_name() == Some(OsStr::new("tiexec"));
    let whole = match wrapper.place(arguments) {
        Place::Nowhere => return None,
        Place::At(at) if is_tiexec(&arguments[at]) => return None,
        Place::At(at) => {
            let (before, rest) = words.split_at(at + 1);
            command(before.iter().chain(front).chain(rest).map(OsString::as_os_str))
        }
        Place::ForShell(at) => {
            let text = arguments.get(at)?.to_str()?;
            let mut parts = text.split(' ');
            let first = OsStr::new(parts.next()?);
            if is_tiexec(first) {
                return None;
            }
            // A text with more than plain words may be more than one command.
            let is_plain =
                |letter: char| letter.is_ascii_alphanumeric() || " -_./=:,+@%".contains(letter);
            let is_one = text.chars().all(is_plain)
                && search(first).is_some_and(|path| is_executable(&path));
            let front = command(front.iter().map(OsString::as_os_str)).filter(|_| is_one);
            front.and_then(|front| {
                let mut words = words.to_vec();
                words[at + 1] = format!("{front} {text}").into();
                command(words.iter().map(OsString::as_os_str))
            })
        }
        Place::Unknown => None,
    };
    Some(
        whole.unwrap_or_else(|| {
            format!("write tiexec before the program that {} starts", wrapper.name)
        }),
    )
}

impl Launcher {
    /// Says where the word `tiexec` belongs, if the program is a wrapper that starts another one in a process of its own.
    pub(super) fn say_wrapper(&self) {
        let settings = &self.settings;
        if settings.quiet || settings.follow || settings.until_exec.is_some() {
            return;
        }
        let name = Path::new(self.name()).file_name();
        if !WRAPPERS.iter().any(|wrapper| name == Some(OsStr::new(wrapper.name))) {
            return;
        }
        let Some(wrapper) = search(self.name()).and_then(|path| Wrapper::at(&path)) else { return };
        let words = self.argv.collect_from(0);
        let (front, words) = words.split_at(self.program.min(words.len()));
        if let Some(instead) = instead(wrapper, front, words) {
            self.unless_quiet(format_args!(
                "{}: it starts the program in another process, which this launch does not reach; fix: {instead}",
                wrapper.name
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapper(name: &str) -> &'static Wrapper {
        WRAPPERS.iter().find(|wrapper| wrapper.name == name).unwrap()
    }

    fn of(line: &str) -> Place {
        let mut words = line.split_whitespace().map(OsString::from);
        let name = words.next().unwrap();
        wrapper(name.to_str().unwrap()).place(&words.collect::<Vec<_>>())
    }

    #[test]
    fn options_are_skipped() {
        for (line, place) in [
            ("timeout 5 prog -k", Place::At(1)),
            ("timeout -k 1 -s KILL 5 prog", Place::At(5)),
            ("timeout -k1 --signal=KILL -v -- 5 prog", Place::At(5)),
            ("timeout --foreground --kill-after 3 5 prog", Place::At(4)),
            ("timeout --help", Place::Nowhere),
            ("timeout 5", Place::Nowhere),
            ("timeout --new-option 5 prog", Place::Unknown),
            ("timeout --sig=9 5 prog", Place::Unknown),
            ("flock -w 5 /lock prog -c", Place::At(3)),
            ("flock -n /lock -c prog", Place::ForShell(3)),
            ("flock -F /lock prog", Place::Nowhere),
            ("flock -nF /lock prog", Place::Nowhere),
            ("flock 9", Place::Nowhere),
            ("xargs -0 -n1 -P 4 prog -x", Place::At(4)),
            ("xargs -I{} prog {}", Place::At(1)),
            ("xargs -i prog {}", Place::At(1)),
            ("xargs", Place::Nowhere),
            ("time -f %e prog", Place::At(2)),
            ("sudo -u postgres A=1 prog", Place::At(3)),
            ("sudo -nu postgres prog", Place::At(2)),
            ("sudo -l", Place::Nowhere),
            ("sudo -s", Place::Unknown),
            ("su postgres -c prog", Place::ForShell(2)),
            ("su - postgres -s /bin/sh -c prog", Place::ForShell(5)),
            ("su postgres", Place::Unknown),
            ("runuser -u nobody -- prog", Place::At(3)),
            ("runuser -u nobody prog -c", Place::At(2)),
            ("runuser --user=nobody prog", Place::At(1)),
            ("runuser nobody -c prog", Place::ForShell(2)),
            ("systemd-run --wait -p MemoryMax=1G --unit x prog", Place::At(5)),
            ("systemd-run --scope prog", Place::Nowhere),
        ] {
            assert_eq!(of(line), place, "{line}");
        }
    }

    fn said(front: &str, words: &[&str]) -> Option<String> {
        let front: Vec<_> = front.split(' ').map(OsString::from).collect();
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        instead(wrapper(words[0].to_str().unwrap()), &front, &words)
    }

    #[test]
    fn the_command_is_whole_and_quoted() {
        let whole = |front, words: &[&str]| said(front, words).unwrap();
        assert_eq!(
            whole("tiexec -v", &["timeout", "5", "/my prog", "it's"]),
            "timeout 5 tiexec -v '/my prog' 'it'\\''s'"
        );
        assert_eq!(
            whole("tiexec", &["su", "nobody", "-c", "cat /dev/null"]),
            "su nobody -c 'tiexec cat /dev/null'"
        );
        assert_eq!(
            whole("tiexec", &["flock", "/lock", "-c", "cat x"]),
            "flock /lock -c 'tiexec cat x'"
        );
    }

    #[test]
    fn a_command_that_is_not_certain_is_not_claimed() {
        let place = |name| Some(format!("write tiexec before the program that {name} starts"));
        for text in ["cd /tmp; cat x", "A=1 cat x", "cat $x", "cd /tmp", "'cat' x", "cat >x"] {
            assert_eq!(said("tiexec", &["su", "-c", text]), place("su"), "{text}");
        }
        assert_eq!(said("tiexec", &["timeout", "--odd", "5", "cat"]), place("timeout"));
        assert_eq!(said("tiexec", &["timeout", "5", "cat", "\u{1b}[2J"]), place("timeout"));
        let long = "x".repeat(LONGEST);
        assert_eq!(said("tiexec", &["timeout", "5", "cat", &long]), place("timeout"));
    }

    #[test]
    fn nothing_is_said_where_the_word_is_in_its_place() {
        assert_eq!(said("tiexec", &["timeout", "5", "tiexec", "cat"]), None);
        assert_eq!(said("tiexec", &["su", "-c", "/usr/bin/tiexec cat"]), None);
        assert_eq!(said("tiexec", &["timeout", "--version"]), None);
    }

    #[test]
    fn the_file_decides() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("timeout");
        std::fs::write(&own, "").unwrap();
        assert!(Wrapper::at(&own).is_none());
        assert!(Wrapper::at(Path::new("/nonexistent/timeout")).is_none());
    }
}
