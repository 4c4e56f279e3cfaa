//! The settings of a launch or an attach: from the command line, the environment, the configuration file and the kill switch.

use tiexec_core::config::{Layer, Malformed, Settings};
use tiexec_engine::switched_off::is_switched_off;
use tiexec_sys::startup::is_secure;

use crate::memory_options;
use crate::stdio::warn;

/// Settings for the machine, one `key=value` a line.
pub(crate) const CONFIG_FILE: &str = "/etc/tiexec/config";

/// Decides by the options, the environment, the configuration file and the kill switch.
///
/// # Errors
/// An option that this machine cannot follow, in words.
pub(crate) fn settings(options: Layer) -> Result<Settings, String> {
    let (page_size, numa) = (options.page_size, options.numa);
    let mut settings = Settings::from_layers([options, environment(), configuration()]);
    // The administrator's kill switch: nothing overrules it.
    settings.off |= is_switched_off();
    memory_options::check(page_size, numa, &settings)?;
    Ok(settings)
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
