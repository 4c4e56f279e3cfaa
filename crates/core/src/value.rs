//! Values of options and keys, as people write them: sizes and durations; and the error for an invalid
//! value.

use std::time::Duration;

use thiserror::Error;

use crate::addr::PageSize;

/// The longest duration.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A value that a key cannot take.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{found:?} is not {expected}")]
pub struct ValueError {
    expected: &'static str,
    found: String,
}

impl ValueError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.to_owned() }
    }
}

/// Gives each value of an enum its word: for settings, messages and reports. The text lists the words.
macro_rules! words {
    ($type:ident, $expected:literal: $($value:ident = $word:literal),+) => {
        impl $type {
            /// The words of all values.
            pub const WORDS: &[&str] = &[$($word),+];
        }

        impl std::str::FromStr for $type {
            type Err = $crate::value::ValueError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$value),)+
                    _ => Err($crate::value::ValueError::new($expected, text)),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$value => $word),+ })
            }
        }
    };
}
pub(crate) use words;

impl From<ValueError> for String {
    fn from(error: ValueError) -> Self {
        error.to_string()
    }
}

/// Parses a number of bytes as numactl(8) and systemd write it: with nothing, or with `K`, `M`, `G` or
/// `T`, each 1024 of the one before, also as `KiB` and so on.
///
/// # Errors
/// Any other text, and a number that 64 bits cannot hold.
pub fn parse_bytes(text: &str) -> Result<u64, ValueError> {
    let bad = || ValueError::new("a size such as 65536, 64K or 1MiB", text);
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let shift = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| ValueError::new("less than 16777216T", text))
}

/// Parses the size of a page, as [`parse_bytes`].
///
/// # Errors
/// As [`parse_bytes`]; also a size that is not a power of two.
pub fn parse_page_size(text: &str) -> Result<PageSize, ValueError> {
    let size = PageSize::new(parse_bytes(text)?);
    size.ok_or_else(|| ValueError::new("the size of a page such as 64K, 2M or 1G", text))
}

/// Parses a duration as `timeout(1)` and systemd write it: a number, perhaps with a fraction, and
/// `us`, `ms`, `s` (the default), `m` or `h`.
///
/// # Errors
/// Any other text, and more than a day.
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::new("a duration such as 250ms or 1.5s", text);
    let unit_at =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let seconds_per_unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let Ok(count) = digits.parse::<f64>() else { return Err(bad()) };
    match Duration::try_from_secs_f64(count * seconds_per_unit) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(ValueError::new("at most a day (24h)", text)),
    }
}

/// Parses a duration that must not be zero: see [`parse_duration`].
///
/// # Errors
/// Those of [`parse_duration`], and zero.
pub fn parse_positive_duration(text: &str) -> Result<Duration, ValueError> {
    match parse_duration(text)? {
        Duration::ZERO => Err(ValueError::new("longer than nothing", text)),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_large_is_not_called_malformed() {
        for text in ["86401", "25h", "1441m", "99999999999999999999999"] {
            let why = parse_duration(text).expect_err(text).to_string();
            assert_eq!(why, format!("{text:?} is not at most a day (24h)"));
        }
        for text in ["99999999999T", "16777216T", "99999999999999999999999"] {
            let why = parse_bytes(text).expect_err(text).to_string();
            assert_eq!(why, format!("{text:?} is not less than 16777216T"));
        }
        assert!(parse_duration("soon").is_err_and(|why| why.to_string().contains("a duration")));
        assert!(parse_bytes("much").is_err_and(|why| why.to_string().contains("a size")));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("1M", 1 << 20),
            ("1MiB", 1 << 20),
            ("2G", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "K", "iB", "4iB", "1KB", "1kb", "1 K", "-1", "1.5M", "99999999999T", "0x10"]
        {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("4h"), Ok(Duration::from_secs(4 * 3600)));
        for bad in ["", "ms", "-1s", "1d", "25h", "1e9", "nan", "inf", "9999999999", "1.2.3s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
