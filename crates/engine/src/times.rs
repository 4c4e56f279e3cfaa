//! All times of the watchers.
//!
//! | watcher | pauses between looks | until |
//! |---|---|---|
//! | the companion, in a program's start | [`PROGRAM`] | [`settled`] after text appeared, at most [`longest_start`] |
//! | `--settle`, `--follow`, with records | a look [`QUIET`] after the program maps something | the time of `--settle`, at least [`BEGINNING`] with `--follow` |
//! | the same, without records | [`POLLED`]; between walks through `/proc` [`PROGRAM`] | the same |
//! | `--wait-exec` | [`MAIN_PROCESS`], before that [`SEARCH`] | the program is up |
//! | the agent, at a program that a launch handed over | [`BEGINNING`], [`settled`] | [`longest_start`] |
//! | the agent, after an obstacle that may pass | [`SOON`] | the process ends |
//! | the agent, after any other obstacle | [`LATER`] | the process ends |
//! | the agent, at huge page cache | [`KEEP`] | the process ends |
//! | libtiexec, `TIEXEC=settle=TIME` | [`LIBRARY`] | that time |
//! | an operator's attach or revert, while another TiExec is at work | [`TURN`] | [`OTHERS_WORK`] |
//!
//! A watch begins its pauses again when the program has executed another one, or has mapped more. An obstacle
//! [may pass](crate::watch::may_pass) or not.

use std::time::Duration;

use tiexec_tracee::clock;

use crate::pauses::Pauses;

/// Between two looks at a program. The search for a thread that takes a stop well is as long as the pause: if there are
/// more threads than processors, a thread may wait for its turn.
pub const PROGRAM: Pauses =
    Pauses { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// Between two looks at a program of which no record says that it maps something. After an obstacle that may pass, the
/// pause is at most the longest one of [`PROGRAM`], as is the search for a thread.
pub const POLLED: Pauses =
    Pauses { first: Duration::from_millis(100), longest: Duration::from_secs(3600) };
/// Between two looks of libtiexec at its own process. It is a thread of the program, so it wakes rarely.
pub const LIBRARY: Pauses =
    Pauses { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
/// Between two tries to be the only TiExec at work on a process, for at most [`OTHERS_WORK`].
pub const TURN: Pauses =
    Pauses { first: Duration::from_millis(5), longest: Duration::from_millis(50) };
/// How long an operator's attach or revert waits for another TiExec that is at work on the process.
pub const OTHERS_WORK: Duration = Duration::from_secs(2);
/// Between two looks at a service's main process.
pub const MAIN_PROCESS: Duration = Duration::from_millis(20);
/// Between two searches of `/proc` for it.
pub const SEARCH: Duration = Duration::from_millis(100);
/// Between two tries of the agent, if the obstacle may pass.
pub const SOON: Pauses =
    Pauses { first: Duration::from_secs(1), longest: Duration::from_secs(3600) };
/// Between two tries of the agent, if it may not.
pub const LATER: Pauses =
    Pauses { first: Duration::from_secs(60), longest: Duration::from_secs(3600) };
/// Between two looks of the agent at text that it made huge in the page cache: the kernel may have reclaimed it.
pub const KEEP: Duration = Duration::from_secs(600);

/// The age at which a program is first looked at: most programs end earlier, and a stop would only delay them.
pub const AGE: Duration = Duration::from_millis(100);
/// The processor time that a program must have used by then. TiExec first looks at a program that has used less
/// when that program is as old as [`BEGINNING`]: on a busy machine, age alone says little.
pub const WORK: Duration = Duration::from_millis(50);
/// The age at which TiExec assumes that a program's `ld.so` has finished. `--follow` watches a program's mappings at
/// least until this age.
pub const BEGINNING: Duration = Duration::from_secs(1);
/// How long a program must sleep before TiExec assumes that its `ld.so` has finished: `ld.so` works without a pause.
pub const ASLEEP: Duration = Duration::from_millis(100);
/// For how long a program must have mapped nothing: a dynamic linker maps in a burst.
pub const QUIET: Duration = Duration::from_millis(10);
/// The pause after records were read, in which the next ones gather.
pub const GATHER: Duration = Duration::from_millis(10);

/// How long after a program began, or after new text appeared, a start is over.
pub fn settled() -> Duration {
    clock::limit(SETTLED)
}

/// How long a start takes at most: an entry script may first set up a database.
pub fn longest_start() -> Duration {
    clock::limit(LONGEST_START)
}

/// See [`settled`]. The tests shorten it.
pub const SETTLED: Duration = Duration::from_secs(10);
/// See [`longest_start`]. The tests shorten it.
pub const LONGEST_START: Duration = Duration::from_secs(60);
/// For how long the follower remembers that a file's mapping had nothing to gain.
pub const MEMORY: Duration = Duration::from_secs(10);
