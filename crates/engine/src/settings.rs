//! The settings that no option gives: the configuration file, `TIEXEC`, and the kill switch.

use tiexec_core::config::{Malformed, Settings};
use tiexec_sys::startup::is_secure;

use crate::switched_off::is_switched_off;

/// Settings for the machine, one `key=value` a line.
pub const CONFIG_FILE: &str = "/etc/tiexec/config";

/// The settings of this machine and this environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Surroundings {
    /// They. `off` holds whatever is taken over later.
    pub settings: Settings,
    /// The sources that have parts which mean nothing, and these parts.
    pub malformed: Vec<(&'static str, Vec<Malformed>)>,
}

impl Surroundings {
    /// Reads them. A file that cannot be read has no settings.
    pub fn read() -> Self {
        let mut settings = Settings::default();
        let file = std::fs::read(CONFIG_FILE).unwrap_or_default();
        let of_file = settings.take_file(&String::from_utf8_lossy(&file));
        // A program that runs with more privilege than its user must not obey its user's environment.
        let environment = std::env::var_os("TIEXEC").filter(|_| !is_secure()).unwrap_or_default();
        let of_environment = settings.take_environment(&environment.to_string_lossy());
        // The administrator's kill switch: nothing overrules it.
        settings.off |= is_switched_off();
        let mut malformed = vec![("TIEXEC", of_environment), (CONFIG_FILE, of_file)];
        malformed.retain(|(_, parts)| !parts.is_empty());
        Self { settings, malformed }
    }

    /// Says which parts mean nothing, a line for each source.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        self.malformed.iter().map(|(source, parts)| {
            let list: Vec<String> = parts.iter().map(ToString::to_string).collect();
            format!("{source} ignored in part: {}", list.join("; "))
        })
    }
}
