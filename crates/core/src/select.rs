//! `--select`: the kinds of executable memory to treat.

use std::fmt;
use std::str::FromStr;

use crate::value::ValueError;

/// A set of kinds of executable memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Select {
    /// The text of the main executable.
    pub main: bool,
    /// The text of shared objects.
    pub dso: bool,
    /// Code that the program makes itself: anonymous executable memory.
    pub jit: bool,
}

impl Select {
    /// Nothing at all.
    pub const NONE: Self = Self { main: false, dso: false, jit: false };
    /// Everything.
    pub const ALL: Self = Self { main: true, dso: true, jit: true };

    /// Returns whether the text of any file is selected.
    pub const fn text(self) -> bool {
        self.main || self.dso
    }
}

impl Default for Select {
    fn default() -> Self {
        Self { main: true, dso: true, jit: false }
    }
}

impl FromStr for Select {
    type Err = ValueError;

    /// Parses `main`, `dso` and `jit`, separated by commas (by `+` in `TIEXEC`, which itself is a list),
    /// or `all`, or `none`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let mut select = Self::NONE;
        for word in text.split([',', '+']) {
            match word {
                "main" => select.main = true,
                "dso" => select.dso = true,
                "jit" => select.jit = true,
                _ => {
                    return Err(ValueError::new(
                        "a list of main, dso and jit, or all or none",
                        text,
                    ));
                }
            }
        }
        Ok(select)
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [(self.main, "main"), (self.dso, "dso"), (self.jit, "jit")];
        let words: Vec<&str> = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
        f.write_str(&if words.is_empty() { "none".to_owned() } else { words.join(",") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_or_all_or_none() {
        assert_eq!("main,jit".parse(), Ok(Select { main: true, dso: false, jit: true }));
        assert_eq!("dso+jit".parse(), Ok(Select { main: false, dso: true, jit: true }));
        assert_eq!("all".parse(), Ok(Select::ALL));
        assert_eq!("none".parse(), Ok(Select::NONE));
        for bad in ["", "main,", "text", "all,main", "MAIN"] {
            assert!(bad.parse::<Select>().is_err(), "{bad}");
        }
        for select in [Select::ALL, Select::NONE, Select::default()] {
            assert_eq!(select.to_string().parse(), Ok(select));
        }
    }
}
