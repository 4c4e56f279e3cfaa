//! The settings of a launch or an attach: from the command line, the environment, the configuration file and the kill switch.

use tiexec_core::config::Settings;
use tiexec_engine::switched_off::is_switched_off;
use tiexec_sys::startup::is_secure;

use crate::memory_options;
use crate::options::LaunchSettings;
use crate::stdio::warn;

/// Settings for the machine, one `key=value` a line.
pub(crate) const CONFIG_FILE: &str = "/etc/tiexec/config";

/// Decides by the options, the environment, the configuration file and the kill switch.
///
/// # Errors
/// An option that this machine cannot follow, in words.
pub(crate) fn settings(options: LaunchSettings) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let file = std::fs::read(CONFIG_FILE).unwrap_or_default();
    let of_file = settings.take_file(&String::from_utf8_lossy(&file));
    // A program that runs with more privilege than its user must not obey its user's environment.
    let environment = std::env::var_os("TIEXEC").filter(|_| !is_secure()).unwrap_or_default();
    let of_environment = settings.take_environment(&environment.to_string_lossy());
    let (page_size, numa) = (options.text.page_size, options.text.numa);
    options.put_into(&mut settings);
    // The administrator's kill switch: nothing overrules it.
    settings.off |= is_switched_off();
    for (source, malformed) in [("TIEXEC", of_environment), (CONFIG_FILE, of_file)] {
        if !settings.quiet && !malformed.is_empty() {
            let list: Vec<String> = malformed.iter().map(ToString::to_string).collect();
            warn(format_args!("{source} ignored in part: {}", list.join("; ")));
        }
    }
    memory_options::check(page_size, numa, &settings)?;
    Ok(settings)
}
