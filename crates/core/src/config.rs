//! The user's settings: by option, by `TIEXEC=key=value,…`, or in the configuration file.
//!
//! [`Settings`] take over one source after the other, the weakest first: default, configuration, environment, options.
//! `off` is a kill switch and beats them all.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::addr::PageSize;
use crate::budget::Budget;
use crate::numa::Numa;
use crate::select::Select;
use crate::skip::Reason;
use crate::value::{ValueError, parse_bytes, parse_duration, parse_page_size};

/// The user's choice of the place for huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackingChoice {
    /// The best backing for which the administrator need not reserve anything.
    #[default]
    Auto,
    /// The file's own page cache, in PMD-sized folios; nothing is copied.
    Pagecache,
    /// An image of the text in THP: in the image store if there is one, else in a memfd.
    Image,
    /// An image in pages of the hugetlb pool. Only the user can choose it, by name: a database may count on those
    /// pages.
    Hugetlb,
    /// No backing: a plain exec.
    Off,
}

impl FromStr for BackingChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            "pagecache" => Ok(Self::Pagecache),
            "image" => Ok(Self::Image),
            "hugetlb" => Ok(Self::Hugetlb),
            "off" => Ok(Self::Off),
            _ => Err(ValueError::new("auto, pagecache, image, hugetlb or off", text)),
        }
    }
}

/// The huge pages at a text's ragged head and tail that are taken: the text shares them with other memory, or does not
/// fill them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edges {
    /// No edges: only huge pages that hold nothing but text.
    #[default]
    Conservative,
    /// Edges with enough text in them, of files that have at least a huge page of text.
    Pad,
    /// All edges, of files that have at least half a huge page of text.
    Aggressive,
}

impl fmt::Display for Edges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conservative => "conservative",
            Self::Pad => "pad",
            Self::Aggressive => "aggressive",
        })
    }
}

impl FromStr for Edges {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "conservative" => Ok(Self::Conservative),
            "pad" => Ok(Self::Pad),
            "aggressive" => Ok(Self::Aggressive),
            _ => Err(ValueError::new("conservative, pad or aggressive", text)),
        }
    }
}

/// The choice of ragged edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdgePolicy {
    /// See [`Edges`].
    pub edges: Edges,
    /// With [`Edges::Pad`], how many bytes of text a huge page must hold.
    pub pad_threshold: u64,
}

impl EdgePolicy {
    /// The value that hugetext's documentation recommends for `hugetext_pad_threshold`: every edge is
    /// taken, if base pages have 4 KiB. Memory is cheaper than a missing iTLB entry; a user who thinks
    /// otherwise sets a larger value.
    pub const DEFAULT_PAD_THRESHOLD: u64 = 4096;

    /// Returns the least text, in bytes, that a file must have for its edges to be taken; `None` if no edges are taken.
    fn least_text(self, huge: PageSize) -> Option<u64> {
        match self.edges {
            Edges::Conservative => None,
            Edges::Pad => Some(huge.bytes()),
            Edges::Aggressive => Some(huge.bytes() / 2),
        }
    }

    /// Returns whether the edges of a file with `text` bytes of text are to be taken.
    pub fn is_for(self, text: u64, huge: PageSize) -> bool {
        self.least_text(huge).is_some_and(|least| text >= least)
    }

    /// Returns the least text, in bytes, that a huge page at an edge must hold.
    pub fn least_in_page(self) -> u64 {
        match self.edges {
            Edges::Pad => self.pad_threshold.max(1),
            Edges::Conservative | Edges::Aggressive => 1,
        }
    }
}

impl Default for EdgePolicy {
    fn default() -> Self {
        Self { edges: Edges::default(), pad_threshold: Self::DEFAULT_PAD_THRESHOLD }
    }
}

/// An invalid part of `TIEXEC` or of the configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{item:?}: {problem}")]
pub struct Malformed {
    /// The part, as written.
    pub item: String,
    /// The reason.
    pub problem: String,
}

/// All settings. To add one, add a field here, its key in `set`, and its option in the command line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Switched off: a plain exec. See [`is_off`](Self::is_off).
    pub off: bool,
    /// See [`BackingChoice`].
    pub backing: BackingChoice,
    /// The choice of ragged edges.
    pub edges: EdgePolicy,
    /// The size of the hugetlb pool's pages; by default that of a huge page.
    pub page_size: Option<PageSize>,
    /// The nodes for copies; by default the kernel decides.
    pub numa: Option<Numa>,
    /// Refuse (exit 125) rather than run on base pages.
    pub strict: bool,
    /// How long staging may take, if a source says so; see [`deadline`](Self::deadline). Text that is not staged by then
    /// stays on base pages.
    pub deadline: Option<Duration>,
    /// The file that the report goes to: `Some("")` is stderr.
    pub report: Option<String>,
    /// Reports and plans as JSON.
    pub json: bool,
    /// No warnings.
    pub quiet: bool,
    /// Say why text was left alone even if that is normal.
    pub verbose: bool,
    /// Treat only the program of this name, after any number of execs.
    pub until_exec: Option<String>,
    /// See [`Select`].
    pub select: Select,
    /// Treat the programs that the program starts, too.
    pub follow: bool,
    /// For how long to watch what a program maps later, if a source says so; zero for not at all.
    pub settle: Option<Duration>,
    /// How many huge pages to take, the hottest first; by default all.
    pub max_huge_pages: Option<Budget>,
    /// Selects only programs whose path matches one of these patterns; all programs if there are no patterns.
    pub only: Vec<String>,
    /// Leaves out the programs whose path matches one of these patterns.
    pub except: Vec<String>,
}

impl Settings {
    /// The time that staging gets at launch unless the user says otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

    /// Takes over the value of `TIEXEC`: parts separated by commas, each `key=value`, or a key alone for yes. Returns
    /// the invalid parts.
    pub fn take_environment(&mut self, value: &str) -> Vec<Malformed> {
        self.take(value.split(','))
    }

    /// Takes over the configuration file: one `key=value` a line, `#` begins a comment. Returns the invalid lines.
    pub fn take_file(&mut self, text: &str) -> Vec<Malformed> {
        self.take(text.lines().map(|line| line.split('#').next().unwrap_or_default()))
    }

    /// Takes over one setting of a rule.
    ///
    /// # Errors
    /// The key or the value is invalid.
    pub fn take_setting(&mut self, key: &str, value: &str) -> Result<(), Malformed> {
        let item = format!("{key}={value}");
        self.set(&item).map_err(|problem| Malformed { item, problem })
    }

    fn take<'a>(&mut self, items: impl Iterator<Item = &'a str>) -> Vec<Malformed> {
        // A stronger source must not be able to overrule the kill switch.
        let off = std::mem::take(&mut self.off);
        // A list of this source replaces that of a weaker one.
        let (only, except) = (std::mem::take(&mut self.only), std::mem::take(&mut self.except));
        let mut malformed = Vec::new();
        for item in items.map(str::trim).filter(|item| !item.is_empty()) {
            if let Err(problem) = self.set(item) {
                malformed.push(Malformed { item: item.to_owned(), problem });
            }
        }
        self.off |= off;
        if self.only.is_empty() {
            self.only = only;
        }
        if self.except.is_empty() {
            self.except = except;
        }
        malformed
    }

    fn set(&mut self, item: &str) -> Result<(), String> {
        let (key, value) = match item.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (item, None),
        };
        let lower = value.map(str::to_ascii_lowercase);
        let flag = || match lower.as_deref() {
            None | Some("1" | "yes" | "true" | "on") => Ok(true),
            Some("0" | "no" | "false" | "off") => Ok(false),
            Some(_) => Err(ValueError::new("yes or no", value.unwrap_or_default())),
        };
        let needed = || value.filter(|value| !value.is_empty()).ok_or("a value is missing");
        match key {
            // The kill switch counts in any case of letters, also as OFF.
            _ if key.eq_ignore_ascii_case("off") => self.off = flag()?,
            "backing" => self.backing = needed()?.parse()?,
            "edges" => self.edges.edges = needed()?.parse()?,
            "pad-threshold" => self.edges.pad_threshold = parse_bytes(needed()?)?,
            "page-size" => self.page_size = Some(parse_page_size(needed()?)?),
            "numa" => self.numa = Some(needed()?.parse()?),
            "strict" => self.strict = flag()?,
            "deadline" => self.deadline = Some(parse_duration(needed()?)?),
            "report" => self.report = Some(value.unwrap_or_default().to_owned()),
            "json" => self.json = flag()?,
            "quiet" => self.quiet = flag()?,
            "verbose" => self.verbose = flag()?,
            "until-exec" => self.until_exec = Some(needed()?.to_owned()),
            "select" => self.select = needed()?.parse()?,
            "follow" => self.follow = flag()?,
            "settle" => self.settle = Some(parse_duration(needed()?)?),
            "max-huge-pages" => self.max_huge_pages = Some(needed()?.parse()?),
            "only" => self.only.push(needed()?.to_owned()),
            "except" => self.except.push(needed()?.to_owned()),
            _ => return Err("no such key".to_owned()),
        }
        Ok(())
    }

    /// Returns how long staging may take.
    pub fn deadline(&self) -> Duration {
        self.deadline.unwrap_or(Self::DEFAULT_DEADLINE)
    }

    /// Returns for how long to watch what a program maps later; zero for not at all.
    pub fn settle(&self) -> Duration {
        self.settle.unwrap_or_default()
    }

    /// Returns whether to watch the start of the program. It is watched if no source says what to watch after the
    /// start.
    pub fn watches_start(&self) -> bool {
        self.settle.is_none() && !self.follow && self.max_huge_pages.is_none()
    }

    /// Returns whether text stays on base pages, because of the kill switch or because no backing is wanted.
    pub fn is_off(&self) -> bool {
        self.off || self.backing == BackingChoice::Off
    }

    /// Returns whether `--strict` refuses a program for this reason, rather than let it run on base pages.
    pub fn refuses(&self, reason: Reason) -> bool {
        self.strict && reason.is_failure()
    }

    /// Returns the size of the pool's pages, if huge pages come from the pool and a setting names a size.
    pub fn pool_page(&self) -> Option<PageSize> {
        self.page_size.filter(|_| self.backing == BackingChoice::Hugetlb)
    }
}

impl fmt::Display for BackingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Pagecache => "pagecache",
            Self::Image => "image",
            Self::Hugetlb => "hugetlb",
            Self::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(environment: &str) -> Settings {
        let mut settings = Settings::default();
        assert_eq!(settings.take_environment(environment), []);
        settings
    }

    fn malformed(environment: &str) -> usize {
        Settings::default().take_environment(environment).len()
    }

    #[test]
    fn a_stronger_source_wins_key_by_key() {
        let mut settings = Settings::default();
        let file = "# ours\nstrict=no\nquiet = yes # hush\nonly=a\nonly=b\nexcept=c\n\n";
        assert_eq!(settings.take_file(file), []);
        let environment = "backing=hugetlb,strict,deadline=1.5s,report,only=d";
        assert_eq!(settings.take_environment(environment), []);
        assert_eq!(settings.backing, BackingChoice::Hugetlb);
        assert!(settings.strict && settings.quiet && !settings.is_off());
        assert_eq!(settings.deadline, Some(Duration::from_millis(1500)));
        assert_eq!(settings.report.as_deref(), Some(""));
        assert_eq!((settings.only, settings.except), (vec!["d".to_owned()], vec!["c".to_owned()]));
    }

    #[test]
    fn both_ways_of_saying_off() {
        for value in ["off", "backing=off", "off=1", "OFF", "Off=Yes"] {
            assert!(of(value).is_off(), "{value}");
        }
        assert!(!of("off=0").is_off());
        let mut settings = of("off");
        settings.take_environment("off=0,backing=image");
        assert!(settings.is_off(), "a kill switch beats a stronger source");
        let mut settings = of("backing=off");
        settings.take_environment("backing=image");
        assert!(!settings.is_off(), "a backing is a mere setting");
    }

    #[test]
    fn malformed_parts_are_named_and_the_rest_kept() {
        let mut settings = Settings::default();
        let text = "stict,deadline=soon,backing=,strict=maybe,quiet,,json=1";
        let malformed = settings.take_environment(text);
        assert!(settings.quiet && settings.json);
        let items: Vec<_> = malformed.iter().map(|bad| bad.item.as_str()).collect();
        assert_eq!(items, ["stict", "deadline=soon", "backing=", "strict=maybe"]);
    }

    #[test]
    fn edges_are_set_like_everything_else() {
        let wanted = EdgePolicy { edges: Edges::Pad, pad_threshold: 64 << 10 };
        assert_eq!(of("edges=pad,pad-threshold=64K").edges, wanted);
        assert_eq!(malformed("edges=all,pad-threshold=much"), 2);
    }

    #[test]
    fn a_node_is_set_like_everything_else() {
        assert_eq!(of("numa=node=1").numa, Some(Numa::Node(1)));
        assert_eq!(malformed("numa=1,numa"), 2);
    }

    #[test]
    fn a_size_is_for_the_pool_only() {
        let of = |text: &str| of(text).pool_page();
        assert_eq!(of("page-size=64K,backing=hugetlb"), PageSize::new(64 << 10));
        assert_eq!((of("page-size=64K"), of("backing=hugetlb")), (None, None));
        assert_eq!(malformed("page-size=65000,page-size=big"), 2);
    }
}
