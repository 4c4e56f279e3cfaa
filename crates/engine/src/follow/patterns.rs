//! `--only` and `--except`: which programs, by path.

use tiexec_core::pattern::{Pattern, Slashes};

/// Selects programs by shell patterns. A pattern with a slash is compared with the whole path, any
/// other with the file's name. `*` also matches slashes.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    only: Vec<Pattern>,
    except: Vec<Pattern>,
}

impl Patterns {
    /// Reads the patterns.
    ///
    /// # Errors
    /// The first invalid pattern, and why it is invalid.
    pub fn new(only: &[String], except: &[String]) -> Result<Self, String> {
        let read = |patterns: &[String]| {
            let each = patterns.iter().map(|text| {
                let read = Pattern::new(text, Slashes::Matched);
                read.map_err(|error| format!("{text:?} is not a pattern: {error}"))
            });
            each.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { only: read(only)?, except: read(except)? })
    }

    /// Returns whether the patterns select the program at `path`.
    pub fn accept(&self, path: &[u8]) -> bool {
        let path = String::from_utf8_lossy(path);
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        let name = path.rsplit('/').next().unwrap_or(path);
        let fits = |pattern: &Pattern| {
            let what = if pattern.as_str().contains('/') { path } else { name };
            pattern.matches(what)
        };
        (self.only.is_empty() || self.only.iter().any(fits)) && !self.except.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(only: &[&str], except: &[&str], path: &str) -> bool {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Patterns::new(&owned(only), &owned(except)).unwrap().accept(path.as_bytes())
    }

    #[test]
    fn by_name_or_by_path() {
        assert!(accepts(&[], &[], "/usr/bin/node"));
        assert!(accepts(&["cc1*"], &[], "/usr/lib/gcc/cc1plus"));
        assert!(!accepts(&["cc1"], &[], "/usr/lib/gcc/cc1plus"));
        assert!(accepts(&["/usr/*"], &[], "/usr/lib/gcc/cc1plus"));
        assert!(!accepts(&["/usr/*"], &["*/gcc/*"], "/usr/lib/gcc/cc1plus"));
        assert!(!accepts(&[], &["node"], "/usr/bin/node (deleted)"));
        assert!(Patterns::new(&["[".to_owned()], &[]).is_err());
    }
}
