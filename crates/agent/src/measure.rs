//! The measurement that a rule requests from its canary. These keys of a rule are options of `tiexecctl canary`.

use std::time::Duration;

use tiexec_core::value::parse_duration;

/// The options of `tiexecctl canary` that a rule may have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Measure {
    /// `--counter`.
    pub counter: Option<String>,
    /// `--prometheus`.
    pub prometheus: Option<String>,
    /// `--query`.
    pub query: Option<String>,
    /// `--guard`.
    pub guard: Option<String>,
    /// `--guard-query`.
    pub guard_query: Option<String>,
    /// `--slice`.
    pub slice: Option<Duration>,
}

impl Measure {
    /// Takes the keys of a rule; `None` if it has none of them.
    ///
    /// # Errors
    /// A key is missing, excludes another one, or has no valid value.
    pub(crate) fn take(
        mut text: impl FnMut(&str) -> Result<Option<String>, String>,
    ) -> Result<Option<Self>, String> {
        let slice = text("canary-slice")?.map(|text| parse_duration(&text)).transpose();
        let slice = slice.map_err(|error| format!("canary-slice: {error}"))?;
        let found = Self {
            counter: text("canary-counter")?,
            prometheus: text("canary-prometheus")?,
            query: text("canary-query")?,
            guard: text("canary-guard")?,
            guard_query: text("canary-guard-query")?,
            slice,
        };
        if found == Self::default() {
            return Ok(None);
        }
        match (&found.counter, &found.prometheus, &found.query) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
            _ => {
                let what =
                    "a canary has either canary-counter, or canary-prometheus and canary-query";
                return Err(what.to_owned());
            }
        }
        if found.guard_query.is_some() && found.prometheus.is_none() {
            return Err("canary-guard-query needs canary-prometheus".to_owned());
        }
        if found.slice.is_some_and(|slice| slice.is_zero()) {
            return Err("canary-slice is longer than 0s".to_owned());
        }
        Ok(Some(found))
    }
}
