//! Patterns of paths and names, as the shell's: `*`, `?`, `[a-z]`, `[!a-z]`, and `**` for any number of directories.
//!
//! Other users choose the texts that are compared, so no text may take long. The matcher keeps the set of all places
//! in the pattern to which the text so far can lead, as the bits of a number, and looks at each character once. It never
//! goes back.

use std::fmt;

/// Longest pattern in bytes. It bounds the time for one character.
const LONGEST: usize = 1024;

/// The first character that is not ASCII.
const OTHER: char = '\u{80}';

/// Whether `*`, `?` and `[...]` match a slash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slashes {
    /// Only `**` and a slash itself match slashes, as in the shell.
    Apart,
    /// They are characters like all others.
    Matched,
}

/// One pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: String,
    tokens: Vec<Token>,
    slashes: Slashes,
    /// The steps of the ASCII characters, one behind the other. If the pattern has no other characters, the step of all
    /// other characters follows.
    steps: Vec<u64>,
    /// The tokens that also match nothing.
    stars: Vec<u64>,
    /// The tokens that also match nothing where the text gets to them, but not later.
    directories: Vec<u64>,
}

/// Why a text is not a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPattern(&'static str);

impl fmt::Display for NoPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NoPattern {}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Char(char),
    /// `?`
    One,
    /// `[...]`, or `[!...]` if it is negated.
    Of {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// `*`
    Star,
    /// `**/`: any number of directories, each with its slash.
    Directories,
    /// `**` at the end.
    Rest,
}

fn insert(set: &mut [u64], place: usize) {
    set[place / 64] |= 1 << (place % 64);
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A class has no end, `**` is only a part of a component, or the pattern is too long.
    pub fn new(text: &str, slashes: Slashes) -> Result<Self, NoPattern> {
        if text.len() > LONGEST {
            return Err(NoPattern("it is longer than 1024 bytes"));
        }
        let tokens = tokens(text)?;
        let of = |wanted: &[Token]| {
            let mut set = vec![0; tokens.len() / 64 + 1];
            let places = tokens.iter().enumerate().filter(|(_, token)| wanted.contains(token));
            places.for_each(|(place, _)| insert(&mut set, place));
            set
        };
        let stars = of(&[Token::Star, Token::Rest]);
        let directories = of(&[Token::Directories]);
        let text = text.to_owned();
        let mut pattern = Self { text, tokens, slashes, steps: Vec::new(), stars, directories };
        let other = pattern.text.is_ascii().then_some(OTHER);
        let letters = ('\0'..OTHER).chain(other);
        pattern.steps = letters.flat_map(|letter| pattern.step(letter)).collect();
        Ok(pattern)
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches the whole text. Takes time in proportion to the length of the text.
    pub fn matches(&self, text: &str) -> bool {
        let words = self.stars.len();
        // Bit i: the text so far can lead to the place before token i.
        let mut now = vec![0_u64; words];
        now[0] = 1;
        now[0] |= (now[0] & self.directories[0]) << 1;
        now[0] |= (now[0] & self.stars[0]) << 1;
        for letter in text.chars() {
            let rare;
            let step = match self.steps.get(letter.min(OTHER) as usize * 2 * words..) {
                Some(rest @ [_, ..]) => &rest[..2 * words],
                _ => {
                    rare = self.step(letter);
                    &rare[..]
                }
            };
            let (on, stay) = step.split_at(words);
            let mut carried = [0; 3];
            for word in 0..words {
                let leave = now[word] & on[word];
                let entered = leave << 1 | carried[0];
                let skipped = entered & self.directories[word];
                let mut next = now[word] & stay[word] | entered | skipped << 1 | carried[1];
                // No star follows another, so one step is enough.
                let stars = next & self.stars[word];
                next |= stars << 1 | carried[2];
                now[word] = next;
                carried = [leave, skipped, stars].map(|bits| bits >> 63);
            }
        }
        let end = self.tokens.len();
        now[end / 64] & 1 << (end % 64) != 0
    }

    /// Returns two sets: the tokens that match the character and lead to the next token, and those that match it and
    /// stay.
    fn step(&self, letter: char) -> Vec<u64> {
        let words = self.stars.len();
        let mut step = vec![0; 2 * words];
        let (on, stay) = step.split_at_mut(words);
        let is_apart = letter == '/' && self.slashes == Slashes::Apart;
        for (place, token) in self.tokens.iter().enumerate() {
            let (leads, stays) = match token {
                Token::Char(own) => (*own == letter, false),
                Token::One => (!is_apart, false),
                Token::Of { ranges, negated } => {
                    let is_of = ranges.iter().any(|(from, to)| (*from..=*to).contains(&letter));
                    (!is_apart && is_of != *negated, false)
                }
                Token::Star => (false, !is_apart),
                Token::Directories => (letter == '/', true),
                Token::Rest => (false, true),
            };
            if leads {
                insert(on, place);
            }
            if stays {
                insert(stay, place);
            }
        }
        step
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, NoPattern> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut before = '/';
    while let Some(letter) = rest.chars().next() {
        let at = rest;
        rest = &rest[letter.len_utf8()..];
        match letter {
            '?' => tokens.push(Token::One),
            '*' if rest.starts_with('*') => {
                rest = &rest[1..];
                let token = match rest.strip_prefix('/') {
                    Some(behind) => {
                        rest = behind;
                        Token::Directories
                    }
                    None if rest.is_empty() => Token::Rest,
                    None => return Err(NoPattern("`**` stands only for whole directories")),
                };
                if before != '/' {
                    return Err(NoPattern("`**` stands only for whole directories"));
                }
                if tokens.last() != Some(&Token::Directories) || token == Token::Rest {
                    tokens.push(token);
                }
            }
            '*' => tokens.push(Token::Star),
            '[' => {
                let (token, behind) = class(rest).ok_or(NoPattern("a `[` has no `]`"))?;
                tokens.push(token);
                rest = behind;
            }
            letter => tokens.push(Token::Char(letter)),
        }
        before = at[..at.len() - rest.len()].chars().next_back().unwrap_or('/');
    }
    Ok(tokens)
}

/// Reads a class from behind its `[`. A `]` as the first character does not end it, so `[]]` is a class.
fn class(text: &str) -> Option<(Token, &str)> {
    let negated = text.starts_with('!');
    let inner = text.strip_prefix('!').unwrap_or(text);
    let first = inner.chars().next()?.len_utf8();
    let end = first + inner[first..].find(']')?;
    let letters: Vec<char> = inner[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(&from) = letters.get(at) {
        match letters.get(at + 1..at + 3) {
            Some(&['-', to]) => {
                ranges.push((from, to));
                at += 3;
            }
            _ => {
                ranges.push((from, from));
                at += 1;
            }
        }
    }
    Some((Token::Of { ranges, negated }, &inner[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern, Slashes::Apart).unwrap().matches(text)
    }

    #[test]
    fn patterns_mean_what_they_mean_in_a_shell() {
        for (pattern, fitting, other) in [
            ("", &[""][..], &["a"][..]),
            ("node", &["node"], &["nodes", "anode", ""]),
            ("*", &["", "a", "node"], &["a/b", "/"]),
            ("a*c", &["ac", "abc", "acc"], &["a/c", "ab"]),
            ("/usr/*/x", &["/usr/a/x", "/usr//x"], &["/usr/a/b/x", "/usr/x"]),
            ("/usr/**/x", &["/usr/x", "/usr/a/x", "/usr/a/b/x"], &["/usr/ax", "/usrx", "x"]),
            ("**/x", &["x", "a/x", "/a/x"], &["ax", "x/"]),
            ("/a/**", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab"]),
            ("**", &["", "/", "a/b"], &[]),
            ("**/**/x", &["x", "a/b/x"], &["ax"]),
            ("**/*.so", &["a.so", "x/y/a.so", ".so"], &["a.so/b"]),
            ("?", &["a", "ä"], &["", "/", "ab"]),
            ("[a-c]", &["a", "b", "c"], &["d", "", "/"]),
            ("[!a-c]", &["d", "ä"], &["a", "/", ""]),
            ("[]-]", &["]", "-"], &["a"]),
            ("[ä-ü]x", &["öx"], &["ax", "x"]),
            ("a.b", &["a.b"], &["axb"]),
        ] {
            for text in fitting {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in other {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        }
        let name = Pattern::new("/usr/*", Slashes::Matched).unwrap();
        assert!(name.matches("/usr/lib/gcc/cc1plus"));
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for text in ["[", "[a", "[]", "[!]", "***", "a**", "**a", "a/**b", &"a".repeat(1025)] {
            assert!(Pattern::new(text, Slashes::Apart).is_err(), "{text}");
        }
    }

    /// As the definition says, without regard to time.
    fn slow(tokens: &[Token], text: &[char]) -> bool {
        let Some((first, rest)) = tokens.split_first() else { return text.is_empty() };
        let behind = |count: usize| slow(rest, &text[count..]);
        let is = |ranges: &[(char, char)]| {
            ranges.iter().any(|&(from, to)| from <= text[0] && text[0] <= to)
        };
        match first {
            Token::Char(own) => text.first() == Some(own) && behind(1),
            Token::One => text.first().is_some_and(|&own| own != '/') && behind(1),
            Token::Of { ranges, negated } => {
                text.first().is_some_and(|&own| own != '/') && is(ranges) != *negated && behind(1)
            }
            Token::Star => {
                let name = text.iter().position(|&own| own == '/').unwrap_or(text.len());
                (0..=name).any(behind)
            }
            Token::Directories => {
                let ends = (1..=text.len()).filter(|&end| text[end - 1] == '/');
                std::iter::once(0).chain(ends).any(behind)
            }
            Token::Rest => true,
        }
    }

    proptest::proptest! {
        #[test]
        fn it_matches_as_the_definition_says(
            pattern in "([ab/?*]|\\*\\*/|\\[!?a\\]){0,90}",
            text in "[ab/ä]{0,12}",
        ) {
            let Ok(pattern) = Pattern::new(&pattern, Slashes::Apart) else { return Ok(()) };
            let letters: Vec<char> = text.chars().collect();
            // Much longer patterns match no such text, but cross the words of the sets.
            proptest::prop_assert_eq!(pattern.matches(&text), slow(&pattern.tokens, &letters));
        }
    }

    /// The matcher that this one replaced took longer than the age of the universe for this.
    #[test]
    fn no_text_takes_long() {
        let text = "a/".repeat(2048);
        for unit in ["**/a", "*a/*", "*a", "[!b]*", "?*"] {
            let units = 900 / (unit.len() + 1);
            let pattern = vec![unit; units].join("/") + "b";
            assert!(!matches(&pattern, &text), "{unit}");
            assert!(!Pattern::new(&pattern, Slashes::Matched).unwrap().matches(&text), "{unit}");
        }
    }
}
