//! The settings of a launch or an attach: from the command line, the environment, the configuration file and the kill switch.

use tiexec_core::config::{BackingChoice, Settings};
use tiexec_engine::settings::MachineSettings;

use crate::memory_options;
use crate::setting_options::SettingOptions;
use crate::stdio::warn;

/// Combines the options, the environment, the configuration file and the kill switch.
///
/// # Errors
/// An option that this machine does not support, in words.
pub(crate) fn settings<P>(options: &SettingOptions<P>) -> Result<Settings, String> {
    let machine = MachineSettings::read();
    let mut settings = machine.settings.clone();
    options.put_into(&mut settings);
    for complaint in machine.complaints().filter(|_| !settings.quiet) {
        warn(complaint);
    }
    let Settings { page_size, numa, .. } = options.alone();
    memory_options::check(page_size, numa, &settings)?;
    Ok(settings)
}

/// Returns which source has switched TiExec off, and the fix. `option` is the backing that the command line names.
pub(crate) fn switched_off_by(option: Option<BackingChoice>) -> &'static str {
    if option == Some(BackingChoice::Off) {
        return "by --backing off; fix: leave out --backing off";
    }
    let mut environment = Settings::default();
    let _malformed = environment.take_environment(&std::env::var("TIEXEC").unwrap_or_default());
    // An option overrides the backing of a source, but not its `off`.
    if environment.off || environment.backing == BackingChoice::Off && option.is_none() {
        return "by TIEXEC in the environment; fix: unset TIEXEC";
    }
    "by /etc/tiexec/config; fix: remove off from /etc/tiexec/config"
}
