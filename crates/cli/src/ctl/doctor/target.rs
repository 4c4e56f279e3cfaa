//! The findings about one process: its properties, and the obstacles for a launch of its program.

use tiexec_core::addr::mib;
use tiexec_core::elf::{ElfError, ElfHeader};
use tiexec_core::escape::AsShown;
use tiexec_core::report::{JitArea, Report, percent};
use tiexec_core::skip::SkipReason;
use tiexec_remap::{headroom, verify};
use tiexec_sys::address_space::Memory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, ptrace, thp};

use super::super::permission::Rights;
use super::super::{failed, has_text, thread_with_text};
use super::{Finding, Level};

pub(super) fn examine(pid: i32) -> Result<Vec<Finding>, u8> {
    let gone = SysError { call: "open(/proc/PID)", errno: Errno::NOENT };
    let refuse = |error| failed("examine", pid, error);
    let found = Pid::from_raw(pid).ok_or(gone).and_then(|pid| Ok((pid, thread_with_text(pid)?)));
    let (number, process) = found.map_err(refuse)?;
    let status = process.status().map_err(refuse)?;
    let name = status.name.shown().to_string();
    has_text("examine", pid)?;
    let threads = status.threads;
    let s = if threads == 1 { "" } else { "s" };
    let mut findings = vec![
        Finding::new(Level::Ok, "process", format_args!("{name} {pid}, {threads} thread{s}")),
        image(&process),
    ];
    let may_trace = Memory::open(&process);
    findings.push(match (status.tracer_pid, &may_trace) {
        (0, Err(error)) if matches!(error.errno, Errno::PERM | Errno::ACCES) => denied(*error),
        (0, _) => Finding::new(Level::Ok, "ptrace", "nobody traces it"),
        (tracer, _) => {
            Finding::new(Level::Warn, "ptrace", format_args!("process {tracer} traces it"))
        }
    });
    findings.push(match status.seccomp {
        0 => Finding::new(Level::Ok, "seccomp", "no filter"),
        1 => Finding::new(Level::Warn, "seccomp", "strict mode: no call but read, write and exit"),
        _ => Finding::new(
            Level::Warn,
            "seccomp",
            "filters are in force; attach reads them first, a launch rehearses its calls under them",
        ),
    });
    findings.push(match status.thp_enabled {
        Some(false) => Finding::new(
            Level::Warn,
            "thp",
            "PR_SET_THP_DISABLE is in force for it; attach lifts it while it maps the text; a launch helps only if the program \
             itself sets it, as mariadbd does",
        ),
        _ => Finding::new(Level::Ok, "thp", "not disabled for it"),
    });
    let Some(pages) = thp::pages() else {
        findings.push(Finding::new(
            Level::Fail,
            "pages",
            "the kernel has no transparent huge pages",
        ));
        return Ok(findings);
    };
    let launches = status.thp_enabled != Some(false);
    let ways = Ways { attach: may_trace.is_ok(), launch: launches.then_some(&name) };
    let report = verify::inspect(number, &process, pages).map_err(refuse)?;
    findings.extend(text(&process, &report, ways));
    Ok(findings)
}

/// The possible ways to huge text for a process.
#[derive(Clone, Copy)]
struct Ways<'a> {
    /// True if this process may attach to it.
    attach: bool,
    /// The name of the program, if a launch would help.
    launch: Option<&'a str>,
}

impl Ways<'_> {
    fn fix(self, pid: u32) -> Option<String> {
        Some(match self {
            Self { attach: true, launch: Some(name) } => {
                format!("tiexecctl attach {pid}, or start it as `tiexec {name} …`")
            }
            Self { attach: true, launch: None } => format!("tiexecctl attach {pid}"),
            Self { attach: false, launch: Some(name) } => format!("start it as `tiexec {name} …`"),
            Self { attach: false, launch: None } => return None,
        })
    }
}

/// Makes the finding that the kernel forbids this process to trace another one.
fn denied(error: SysError) -> Finding {
    let told = match ptrace::yama_scope() {
        Some(scope @ 3..) => {
            format!("; kernel.yama.ptrace_scope is {scope}; fix: set 1 in sysctl.d, and boot")
        }
        _ => Rights::own().cause_and_fix().to_owned(),
    };
    let told = format!("an attach is forbidden: {error}{told}");
    match told.split_once("; fix: ") {
        Some((what, fix)) => Finding::new(Level::No, "ptrace", what).fix(fix),
        None => Finding::new(Level::No, "ptrace", told),
    }
}

fn image(process: &ProcDir) -> Finding {
    use std::os::unix::fs::FileExt;
    let mut header = [0; ElfHeader::LEN];
    let read = tiexec_remap::open_exe(process).map(|exe| exe.read_exact_at(&mut header, 0));
    match read {
        Err(error) => Finding::new(Level::Warn, "image", error),
        Ok(Err(error)) => Finding::new(Level::Warn, "image", error),
        Ok(Ok(())) => match ElfHeader::parse(&header) {
            Ok(header) if header.position_independent => {
                Finding::new(Level::Ok, "image", "64-bit, position-independent")
            }
            Ok(_) => Finding::new(Level::Ok, "image", "64-bit, at fixed addresses"),
            Err(ElfError::Foreign) => {
                Finding::new(Level::Fail, "image", "32-bit, or of another machine: it runs plainly")
            }
            Err(error) => Finding::new(Level::Fail, "image", error),
        },
    }
}

/// Makes the finding about the amount of huge text, and about the amount that the possible ways could add.
fn text(process: &ProcDir, report: &Report, ways: Ways<'_>) -> Vec<Finding> {
    let Report { pid, text_bytes: text, huge_bytes: huge, .. } = *report;
    let figures =
        format!("{} MiB, {} MiB of it huge ({} %)", mib(text), mib(huge), percent(huge, text));
    let on_base_pages: u64 = report
        .files
        .iter()
        .flat_map(|file| &file.rest)
        .filter(|rest| rest.reason == SkipReason::BasePages)
        .map(|rest| rest.bytes)
        .sum();
    let mut findings = Vec::new();
    findings.push(if on_base_pages == 0 {
        Finding::new(
            if huge > 0 { Level::Ok } else { Level::No },
            "text",
            format_args!("{figures}; nothing to add"),
        )
    } else {
        let what = format_args!("{figures}; {} MiB more could be", mib(on_base_pages));
        Finding { fix: ways.fix(pid), ..Finding::new(Level::Warn, "text", what) }
    });
    if let Some(restart) = &report.restart {
        let [here, launch] = [restart.here_bytes, restart.launch_bytes].map(mib);
        let (path, command) = (restart.path.shown(), &restart.command);
        findings.push(Finding::new(
            Level::No,
            "start",
            format_args!(
                "{here} MiB of {path} can be huge where it lies; a start by {command} gives {launch} MiB"
            ),
        ));
    }
    if let Some((huge, populated)) = JitArea::sums(&report.jit) {
        let figures = format!(
            "{} MiB of code that it makes itself, {} MiB of it huge",
            mib(populated),
            mib(huge)
        );
        findings.push(if huge >= populated {
            Finding::new(Level::Ok, "jit", figures)
        } else {
            let fix = format!("tiexecctl attach --select jit {pid}");
            Finding::new(Level::No, "jit", figures).fix(fix)
        });
    }
    let copied = report.files.iter().map(|file| file.copied_bytes).sum::<u64>();
    findings.push(if copied == 0 {
        Finding::new(Level::Ok, "maps", "its maps name the files that its text is of")
    } else {
        let mib = mib(copied);
        Finding::new(
            Level::Warn,
            "maps",
            format_args!(
                "{mib} MiB of its text are copies: in its maps they have a name and offsets of their own, which misleads a \
                 program that looks for its own file there"
            ),
        )
        .fix(format_args!(
            "tiexecctl revert {pid}; `tiexecctl warm` of the file, and --backing pagecache from then on"
        ))
    });
    findings.push(match headroom::check(process, on_base_pages) {
        Ok(()) => Finding::new(Level::Ok, "memory", "its memory cgroup has room for an image"),
        Err(failure) => Finding::new(Level::Warn, "memory", failure.detail)
            .fix("raise memory.max (systemd: MemoryMax=)"),
    });
    findings
}
