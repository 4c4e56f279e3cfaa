//! `LD_PRELOAD=libtiexec.so PROGRAM`: what the constructor does.
//!
//! The library acts by itself only where `LD_PRELOAD` names it. A program that is linked with it decides by itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tiexec_core::addr::mib;
use tiexec_core::config::Settings;
use tiexec_core::escape::AsShown;
use tiexec_core::report::{Kind, Report};
use tiexec_engine::follow::Patterns;
use tiexec_engine::output::{Output, Refusal, write_briefly};
use tiexec_engine::settings::MachineSettings;
use tiexec_remap::Failure;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{process, startup};

use crate::{settle, texts, treat};

/// The file names of this library begin with this.
const NAME: &[u8] = b"libtiexec.so";

/// Puts the program's text onto huge pages, if the library was preloaded and nobody has switched it off. The program
/// runs in any case, and gets no message.
pub(crate) fn begin() {
    // The dynamic linker preloads no file by a path into a program with more privilege than its user. Such a program
    // must not obey its user's environment either.
    if startup::is_secure() || !std::env::var_os("LD_PRELOAD").is_some_and(|list| names_us(&list)) {
        return;
    }
    let machine = MachineSettings::read();
    let settings = &machine.settings;
    if settings.is_off() || !is_meant(settings) {
        return;
    }
    if settings.verbose {
        machine.complaints().for_each(|complaint| warn(&complaint));
    }
    if texts::could_gain(settings) {
        let is_read = settings.verbose || settings.report.is_some();
        if let Some(treated) = treat::at_start(settings, is_read).transpose() {
            tell(settings, treated);
        }
    }
    settle::begin(settings);
}

/// Returns whether a list for the dynamic linker (ld.so(8)) names this library.
fn names_us(list: &OsStr) -> bool {
    let mut paths = list.as_bytes().split(|&byte| byte == b' ' || byte == b':');
    let name = |path: &[u8]| path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
    paths.any(|path| {
        let rest = name(path).and_then(|name| name.strip_prefix(NAME).map(<[u8]>::to_vec));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
    })
}

/// Returns whether `only` and `except` select this program.
fn is_meant(settings: &Settings) -> bool {
    let exe = || ProcDir::this_process().and_then(|this| this.exe_path()).unwrap_or_default();
    let all = settings.only.is_empty() && settings.except.is_empty();
    all || Patterns::new(&settings.only, &settings.except).is_ok_and(|meant| meant.accept(&exe()))
}

/// Writes the report to the place that the settings name. Children inherit the settings, so only a program that had
/// something to gain gets a report.
fn tell(settings: &Settings, treated: Result<Report, Failure>) {
    let report = treated.unwrap_or_else(|failure| {
        let pid = process::this().as_raw_nonzero().get().unsigned_abs();
        let mut report = Report::new(Kind::Attach, pid, String::new(), Vec::new());
        report.reason = Some(failure.reason);
        report.detail = Some(failure.detail);
        report
    });
    if report.huge_bytes == 0 && report.reason.is_none() {
        return;
    }
    if settings.verbose {
        warn(&line(&report));
    }
    let Some(file) = &settings.report else { return };
    let text = if settings.json { report.to_json() + "\n" } else { report.to_string() };
    if file.is_empty() {
        let _nobody_reads = write_briefly(std::io::stderr(), &text);
        return;
    }
    let path = Path::new(file);
    if let Err(why) = Output::at(path).and_then(|output| write(&output, &text))
        && !settings.quiet
    {
        warn(&format!("cannot write {}: {why}", path.shown()));
    }
}

/// Writes without a signal to the program, whose handlers and dispositions are not set up yet, and does not wait for a reader.
fn write(output: &Output, text: &str) -> Result<(), Refusal> {
    if output.is_replaced() {
        return process::without_write_signals(|| output.write(text.as_bytes()));
    }
    Ok(write_briefly(output.open()?, text)?)
}

fn line(report: &Report) -> String {
    let Report { pid, text_bytes, huge_bytes, reason, detail, .. } = report;
    let why = reason.map_or_else(String::new, |reason| {
        let detail = detail.as_deref().unwrap_or_default();
        format!("; the rest stays on base pages: {reason}: {}", detail.shown())
    });
    let (huge, text) = (mib(*huge_bytes), mib(*text_bytes));
    format!("process {pid}: {huge} of {text} MiB text on huge pages{why}")
}

fn warn(message: &str) {
    let _nobody_reads = write_briefly(std::io::stderr(), &format!("tiexec: {message}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_that_names_the_library_means_it() {
        for list in
            ["libtiexec.so", "/opt/libtiexec.so.1", "a.so:libtiexec.so", "a.so libtiexec.so.1"]
        {
            assert!(names_us(OsStr::new(list)), "{list}");
        }
        for list in ["", "libtiexec", "libtiexec.soap", "/libtiexec.so/other.so", "my-libtiexec.so"]
        {
            assert!(!names_us(OsStr::new(list)), "{list}");
        }
    }
}
