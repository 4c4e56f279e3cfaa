//! `tiexecd`: the command line of the agent, and its log.

use std::path::Path;

use clap::Parser;
use rustix::fs::Mode;
use tiexec_agent::reconcile::{Agent, Level};
use tiexec_agent::rules::{self, Rules};
use tiexec_core::escape::AsShown;
use tiexec_engine::output::{Output, write_briefly};
use tiexec_sys::process::occupy_standard_descriptors;

use crate::ctl::rules::{How, show};
use crate::exit;
use crate::options::Daemon;
use crate::stdio::{answer, speak_as, warn};

/// Runs `tiexecd`; returns its exit status.
pub fn run() -> u8 {
    speak_as("tiexecd");
    occupy_standard_descriptors();
    let options = match Daemon::try_parse() {
        Ok(options) => options,
        Err(error) => return answer(error, exit::USAGE, exit::FAILED),
    };
    if options.once {
        return show(&options.files, None, How::default());
    }
    if let Some(defect) = Rules::read(&options.files.conf_dir).unread(&options.files.conf_dir)
        && options.files.conf_dir != Path::new(rules::DIRECTORY)
    {
        warn(defect);
        return exit::FAILED;
    }
    // systemd sets JOURNAL_STREAM if stderr is the journal. The journal parses a priority prefix of each line
    // (sd-daemon(3)).
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let log = move |level: Level, text: &str| {
        if !journal {
            return warn(text);
        }
        let priority = match level {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Info => 6,
        };
        let _nobody_listens = write_briefly(std::io::stderr(), &format!("<{priority}>{text}\n"));
    };
    let agent = Agent::new(&options.files.conf_dir, &options.files.state_dir, Box::new(log));
    let agent = match agent {
        Ok(agent) => agent,
        Err(why) => {
            log(Level::Error, &why);
            return exit::FAILED;
        }
    };
    let agent = match options.textfile {
        None => agent,
        Some(path) => agent.publishing(Box::new(move |text| publish(&path, text))),
    };
    let agent = match options.metrics_address {
        None => agent,
        Some(address) => agent.answering_at(address),
    };
    agent.run();
    exit::OK
}

/// Writes the figures to a file that all users may read, because the collector is another user. Without figures, removes
/// the file.
fn publish(path: &Path, text: Option<&str>) -> Result<(), String> {
    let Some(text) = text else {
        let removed = Output::at(path).and_then(|output| output.take_back());
        return removed.map_err(|why| {
            let path = path.shown();
            format!(
                "cannot remove {path}, whose figures are old from now on: {why}; fix: rm {path}"
            )
        });
    };
    let before = rustix::process::umask(Mode::from_raw_mode(0o022));
    let written = Output::at(path).and_then(|output| output.write(text.as_bytes()));
    rustix::process::umask(before);
    written.map_err(|why| format!("cannot write {}: {why}", path.shown()))
}
