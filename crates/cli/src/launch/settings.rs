//! The settings of a launch: from the command line, the environment, the configuration file and the kill
//! switch.

use clap::Parser;
use tiexec_core::config::{Layer, Malformed, Settings};
use tiexec_sys::entry::{Argv, is_secure};

use crate::ctl::attach;
use crate::exit;
use crate::options::{Attach, Launch};
use crate::say::warn;

/// The kill switch: where this file exists, every launch is a plain exec.
pub const DISABLED_FILE: &str = "/etc/tiexec/disabled";
/// Settings for the machine, one `key=value` a line.
pub const CONFIG_FILE: &str = "/etc/tiexec/config";

/// Decides by the options, the environment, the configuration file and the kill switch.
pub(crate) fn settings(options: Layer) -> Settings {
    let mut settings = Settings::from_layers([options, environment(), configuration()]);
    // The administrator's kill switch: nothing overrules it.
    settings.off |= is_disabled();
    settings
}

/// Returns whether the kill switch is there, or cannot be ruled out.
pub(crate) fn is_disabled() -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::symlink_metadata(DISABLED_FILE) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    }
}

/// Splits the command line; an error is the exit status, for what clap has already printed or for an
/// attach.
pub(super) fn parse(argv: Argv) -> Result<(usize, Layer, bool), u8> {
    // The everyday case has no option at all: do not build a parser before every program.
    let first = argv.get(1).unwrap_or_default();
    if first.as_encoded_bytes().first().is_some_and(|&byte| byte != b'-') {
        return Ok((1, Layer::default(), false));
    }
    match Launch::try_parse_from(argv.collect_from(0)) {
        Ok(Launch { pid: Some(pid), settings, dry_run, .. }) => {
            Err(attach::run(&Attach::from_launch(pid, &settings, dry_run)))
        }
        Ok(parsed) => {
            let program = argv.len() - parsed.program.len();
            Ok((program, parsed.settings.layer(), parsed.dry_run))
        }
        Err(error) => {
            let failed = error.use_stderr();
            crate::say::say_usage(error);
            // As an attach it would have been one for its own statuses.
            let attach = argv.collect_from(1).iter().any(|arg| arg == "-p" || arg == "--pid");
            let usage = if attach { exit::USAGE } else { exit::LAUNCH_FAILED };
            Err(if failed { usage } else { exit::OK })
        }
    }
}

fn environment() -> Layer {
    // A program that runs with more privilege than its user must not obey its user's environment.
    let Some(value) = std::env::var_os("TIEXEC").filter(|_| !is_secure()) else {
        return Layer::default();
    };
    layer_from("TIEXEC", Layer::from_environment(&value.to_string_lossy()))
}

fn configuration() -> Layer {
    match std::fs::read(CONFIG_FILE) {
        Ok(text) => layer_from(CONFIG_FILE, Layer::from_file(&String::from_utf8_lossy(&text))),
        Err(_) => Layer::default(),
    }
}

fn layer_from(source: &str, (layer, malformed): (Layer, Vec<Malformed>)) -> Layer {
    if layer.quiet != Some(true) && !malformed.is_empty() {
        let list: Vec<String> = malformed.iter().map(ToString::to_string).collect();
        warn(format_args!("{source} ignored in part: {}", list.join("; ")));
    }
    layer
}
