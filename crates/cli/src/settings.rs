//! The settings of a launch or an attach: from the command line, the environment, the configuration file and the kill switch.

use tiexec_core::config::Settings;
use tiexec_engine::settings::Surroundings;

use crate::memory_options;
use crate::options::LaunchSettings;
use crate::stdio::warn;

/// Decides by the options, the environment, the configuration file and the kill switch.
///
/// # Errors
/// An option that this machine cannot follow, in words.
pub(crate) fn settings(options: LaunchSettings) -> Result<Settings, String> {
    let surroundings = Surroundings::read();
    let mut settings = surroundings.settings.clone();
    let (page_size, numa) = (options.text.page_size, options.text.numa);
    options.put_into(&mut settings);
    for complaint in surroundings.complaints().filter(|_| !settings.quiet) {
        warn(complaint);
    }
    memory_options::check(page_size, numa, &settings)?;
    Ok(settings)
}
