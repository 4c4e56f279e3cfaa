//! The command line of `tiexec`: a program to launch, or a process to attach to.

use std::ffi::OsString;

use clap::Parser;
use tiexec_core::escape::AsShown;
use tiexec_sys::process::occupy_standard_descriptors;
use tiexec_sys::startup::{Argv, note_closed_output};

use crate::ctl::attach;
use crate::exit;
use crate::launch;
use crate::options::{Attach, Launch, LaunchSettings};
use crate::stdio::{answer, warn};

/// The task that a command line names.
enum Invocation {
    /// Launch a program: the index of its argument, the options before it, and whether to plan only.
    Launch { program: usize, options: LaunchSettings, dry_run: bool },
    /// Attach to a process.
    Attach(Attach),
    /// No task: clap has printed help or the mistake, and this is the exit status.
    Answered(u8),
}

/// Runs `tiexec`; returns an exit status unless it becomes the program.
pub fn run(argv: Argv) -> u8 {
    match parse(argv) {
        Invocation::Launch { program, options, dry_run } => {
            launch::run(argv, program, options, dry_run)
        }
        Invocation::Attach(options) => attach::run(&options),
        Invocation::Answered(status) => status,
    }
}

fn parse(argv: Argv) -> Invocation {
    // The usual command line has no option, so it starts the program without the cost of a parser.
    let first = argv.get(1).unwrap_or_default();
    if first.as_encoded_bytes().first().is_some_and(|&byte| byte != b'-') {
        return Invocation::Launch {
            program: 1,
            options: LaunchSettings::default(),
            dry_run: false,
        };
    }
    note_closed_output();
    match Launch::try_parse_from(argv.collect_from(0)) {
        Ok(Launch { pid: Some(pid), settings, dry_run, .. }) => {
            // No program inherits them.
            occupy_standard_descriptors();
            Invocation::Attach(Attach::from_launch(pid, &settings, dry_run))
        }
        Ok(Launch { settings, program, .. }) if settings.say("max-huge-pages") => {
            let budget = settings.alone().max_huge_pages.map(|budget| budget.to_string());
            let budget = budget.unwrap_or_default();
            let program = program.first().map(OsString::as_os_str).unwrap_or_default();
            warn(format_args!(
                "cannot start {} with --max-huge-pages: only a running program can be sampled; fix: leave out \
                 --max-huge-pages, then tiexecctl attach --max-huge-pages={budget} PID",
                program.shown()
            ));
            Invocation::Answered(exit::LAUNCH_FAILED)
        }
        Ok(parsed) => Invocation::Launch {
            program: argv.len() - parsed.program.len(),
            options: parsed.settings,
            dry_run: parsed.dry_run,
        },
        Err(error) => {
            // A malformed attach must end with an exit status of an attach.
            let attach = argv.collect_from(1).iter().any(|arg| arg == "-p" || arg == "--pid");
            let (usage, failed) = if attach {
                (exit::USAGE, exit::FAILED)
            } else {
                (exit::LAUNCH_FAILED, exit::LAUNCH_FAILED)
            };
            Invocation::Answered(answer(error, usage, failed))
        }
    }
}
