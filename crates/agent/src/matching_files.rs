//! Lists the files whose paths match a pattern.

use std::path::{Path, PathBuf};

use tiexec_core::pattern::{Pattern, Slashes};

/// Most names that one pattern may lead past. Other users make names too, such as below `/home`.
const MOST: usize = 1 << 20;

/// Returns the files that exist, in the order of their paths. A pattern that does not begin with a slash matches no path
/// of a program. The names of `**` lead through no link; otherwise they could go in a circle.
pub(crate) fn matching_files(pattern: &Pattern) -> Vec<PathBuf> {
    let Some(below) = pattern.as_str().strip_prefix('/') else { return Vec::new() };
    let parts: Option<Vec<Part>> = below.split('/').map(Part::of).collect();
    let mut search = Search { found: Vec::new(), left: MOST };
    search.go(Path::new("/"), &parts.unwrap_or_default());
    search.found.sort();
    search.found.dedup();
    search.found
}

/// A component of a pattern.
enum Part {
    Name(String),
    Any(Pattern),
    Directories,
}

impl Part {
    fn of(text: &str) -> Option<Self> {
        if text == "**" {
            return Some(Self::Directories);
        }
        if !text.contains(['*', '?', '[']) {
            return Some(Self::Name(text.to_owned()));
        }
        Pattern::new(text, Slashes::Apart).ok().map(Self::Any)
    }
}

struct Search {
    found: Vec<PathBuf>,
    left: usize,
}

impl Search {
    fn go(&mut self, at: &Path, parts: &[Part]) {
        let Some((first, rest)) = parts.split_first() else {
            if at.is_file() {
                self.found.push(at.to_owned());
            }
            return;
        };
        match first {
            Part::Name(name) => self.go(&at.join(name), rest),
            Part::Any(pattern) => {
                for (path, _) in self.names(at, |name| pattern.matches(name)) {
                    self.go(&path, rest);
                }
            }
            Part::Directories => {
                self.go(at, rest);
                for (path, is_directory) in self.names(at, |_| true) {
                    if is_directory {
                        self.go(&path, parts);
                    } else if rest.is_empty() {
                        self.go(&path, rest);
                    }
                }
            }
        }
    }

    /// Lists the names in a directory that fit, and whether each is a directory itself.
    fn names(&mut self, at: &Path, fits: impl Fn(&str) -> bool) -> Vec<(PathBuf, bool)> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
            let Some(left) = self.left.checked_sub(1) else { break };
            self.left = left;
            if entry.file_name().to_str().is_some_and(&fits) {
                names.push((entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir())));
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_that_the_pattern_matches() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        std::fs::create_dir_all(at.join("a/b/c")).unwrap();
        for file in ["a/x1", "a/b/x2", "a/b/c/x3", "a/b/c/y"] {
            std::fs::write(at.join(file), b"").unwrap();
        }
        std::os::unix::fs::symlink(at, at.join("a/b/round")).unwrap();
        for (pattern, files) in [
            ("a/x1", &["a/x1"][..]),
            ("a/*", &["a/x1"]),
            ("a/**/x?", &["a/b/c/x3", "a/b/x2", "a/x1"]),
            ("a/b/**", &["a/b/c/x3", "a/b/c/y", "a/b/x2"]),
            ("**/[y-z]", &["a/b/c/y"]),
            ("*/none", &[]),
        ] {
            let whole = format!("{}/{pattern}", at.to_str().unwrap());
            let whole = Pattern::new(&whole, Slashes::Apart).unwrap();
            let found = matching_files(&whole);
            let expected: Vec<PathBuf> = files.iter().map(|file| at.join(file)).collect();
            assert_eq!(found, expected, "{pattern}");
            assert!(found.iter().all(|path| whole.matches(path.to_str().unwrap())), "{pattern}");
        }
    }
}
