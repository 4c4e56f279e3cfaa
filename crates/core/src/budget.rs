//! `--max-huge-pages`: how many huge pages of a process's text to take, if not all, and which ones
//! were taken.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::addr::RemoteAddr;
use crate::value::ValueError;

/// The fewest samples that make a result certain.
pub const ENOUGH_SAMPLES: u64 = 200;

/// How many huge pages to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// At most this number.
    Pages(u64),
    /// The pages from which the model expects a gain.
    Auto,
    /// The same, but at most this number. Two budgets together are one of this kind; no text is parsed as it.
    AutoUpTo(u64),
}

impl Budget {
    /// Returns the budget that allows only what both allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        use Budget::{Auto, AutoUpTo, Pages};
        match (self, other) {
            (Pages(one), Pages(other)) => Pages(one.min(other)),
            (Auto, Auto) => Auto,
            (Auto, Pages(most) | AutoUpTo(most)) | (Pages(most) | AutoUpTo(most), Auto) => {
                AutoUpTo(most)
            }
            (AutoUpTo(one), Pages(other) | AutoUpTo(other)) | (Pages(one), AutoUpTo(other)) => {
                AutoUpTo(one.min(other))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let expected = if is_number { "less than 2^64" } else { "a number or auto" };
        text.parse().map(Self::Pages).map_err(|_no_number| ValueError::new(expected, text))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(most) => write!(f, "{most}"),
            Self::Auto => f.write_str("auto"),
            Self::AutoUpTo(most) => write!(f, "auto, at most {most}"),
        }
    }
}

/// Misses in a thousand instructions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Misses {
    /// Misses of the first level.
    pub first: f64,
    /// The misses among them that miss the second level too, and take a walk of the page tables.
    pub walks: f64,
}

/// A huge page that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HotPage {
    /// Its first address.
    pub start: RemoteAddr,
    /// How many samples fell into it.
    pub samples: u64,
}

/// The choice, and its expected effect.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// The budget as the user gave it: a number, or `auto`.
    pub budget: String,
    /// The pages that are taken, the hottest first.
    pub pages: Vec<HotPage>,
    /// How many huge pages of text the process had before; a budget that is a number counts them,
    /// too.
    pub already: u64,
    /// How many huge pages could have been taken.
    pub candidates: usize,
    /// The number of samples that decided.
    pub samples: u64,
    /// The share of these samples that lies on huge pages after the choice.
    pub share: f64,
    /// The modelled misses before.
    pub misses_now: Misses,
    /// The modelled misses with the chosen pages.
    pub misses_then: Misses,
    /// The share of its processor time that the process is expected to save.
    pub saving: f64,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, already, candidates, samples, share, .. } = self;
        write!(f, "{} of {candidates} huge pages", pages.len())?;
        if *already > 0 {
            write!(f, " beside {already} that it had")?;
        }
        if *samples == 0 {
            let which = if pages.is_empty() { "" } else { ", the first" };
            return write!(f, "{which}: it was not seen executing");
        }
        if self.budget.starts_with("auto") && *samples < ENOUGH_SAMPLES {
            return write!(f, ": {samples} samples are too few to tell");
        }
        write!(
            f,
            ", {:.0} % of {samples} samples; misses in 1000 instructions expected {:.2} before, {:.2} then",
            share * 100.0,
            self.misses_now.first,
            self.misses_then.first
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said() {
        assert_eq!("auto".parse(), Ok(Budget::Auto));
        assert_eq!("64".parse(), Ok(Budget::Pages(64)));
        for bad in ["", "-1", "many", "1.5", "99999999999999999999"] {
            assert!(bad.parse::<Budget>().is_err(), "{bad}");
        }
        let large = "99999999999999999999".parse::<Budget>().unwrap_err().to_string();
        assert_eq!(large, "\"99999999999999999999\" is not less than 2^64");
    }
}
