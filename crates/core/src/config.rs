//! The user's settings: by option, by `TIEXEC=key=value,…`, or in the configuration file.
//!
//! Each source gives a [`Layer`], which holds only the settings that the source names.
//! [`Settings::from_layers`] merges the layers: options beat environment beats configuration beats
//! default. `off` is a kill switch and beats them all.

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

/// Where the user wants the huge page to live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackingChoice {
    /// The best one that needs nothing reserved by the administrator.
    #[default]
    Auto,
    /// The file's own page cache, in PMD-sized folios; nothing is copied.
    Pagecache,
    /// An image of the text in THP: in the image store if there is one, else in a memfd.
    Image,
    /// The same from the hugetlb pool. Only ever by name: a database may count on those pages.
    Hugetlb,
    /// None: a plain exec.
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

/// How much of a text's ragged head and tail becomes huge: of the huge pages that it shares with other
/// things, or with nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edges {
    /// None: only huge pages that hold nothing but text.
    #[default]
    Conservative,
    /// Those with enough text in them, of files that have at least a huge page of text.
    Pad,
    /// All, of files that have at least half a huge page of text.
    Aggressive,
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

/// Which ragged edges are taken.
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

    /// Returns the least text, in bytes, that a file must have for its edges to be taken; `None` where
    /// none are.
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

/// The settings of one source; `None` if the source does not name the setting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layer {
    /// Switches TiExec off altogether.
    pub off: Option<bool>,
    /// See [`BackingChoice`].
    pub backing: Option<BackingChoice>,
    /// See [`Edges`].
    pub edges: Option<Edges>,
    /// See [`EdgePolicy::pad_threshold`].
    pub pad_threshold: Option<u64>,
    /// The size of the hugetlb pool's pages.
    pub page_size: Option<PageSize>,
    /// See [`Numa`].
    pub numa: Option<Numa>,
    /// Refuse rather than run on base pages.
    pub strict: Option<bool>,
    /// How long staging may take.
    pub deadline: Option<Duration>,
    /// Write a report: to this file, or to stderr where it is empty.
    pub report: Option<String>,
    /// Reports and plans as JSON.
    pub json: Option<bool>,
    /// No warnings.
    pub quiet: Option<bool>,
    /// Say why text was left alone also where that is normal.
    pub verbose: Option<bool>,
    /// Wait for the exec of this program.
    pub until_exec: Option<String>,
    /// See [`Select`].
    pub select: Option<Select>,
    /// Look after the programs that the program starts, too.
    pub follow: Option<bool>,
    /// For how long to look again for what a program maps later.
    pub settle: Option<Duration>,
    /// See [`Budget`].
    pub max_huge_pages: Option<Budget>,
    /// Only programs whose path one of these patterns fits.
    pub only: Option<Vec<String>>,
    /// Leaves out the programs whose path one of these patterns fits.
    pub except: Option<Vec<String>>,
}

/// A part of `TIEXEC` or of the configuration file that means nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{item:?}: {problem}")]
pub struct Malformed {
    /// The part, as written.
    pub item: String,
    /// The reason.
    pub problem: String,
}

impl Layer {
    /// Parses the value of `TIEXEC`: parts separated by commas, each `key=value`, or a key alone
    /// for yes. Parts that mean nothing are returned beside the layer of all that do.
    pub fn from_environment(value: &str) -> (Self, Vec<Malformed>) {
        Self::from_items(value.split(','))
    }

    /// Parses the configuration file: one `key=value` a line, `#` begins a comment.
    pub fn from_file(text: &str) -> (Self, Vec<Malformed>) {
        Self::from_items(text.lines().map(|line| line.split('#').next().unwrap_or_default()))
    }

    fn from_items<'a>(items: impl Iterator<Item = &'a str>) -> (Self, Vec<Malformed>) {
        let mut layer = Self::default();
        let mut malformed = Vec::new();
        for item in items.map(str::trim).filter(|item| !item.is_empty()) {
            if let Err(problem) = layer.set(item) {
                malformed.push(Malformed { item: item.to_owned(), problem });
            }
        }
        (layer, malformed)
    }

    fn set(&mut self, item: &str) -> Result<(), String> {
        let (key, value) = match item.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (item, None),
        };
        let flag = || match value {
            None | Some("1" | "yes" | "true" | "on") => Ok(Some(true)),
            Some("0" | "no" | "false" | "off") => Ok(Some(false)),
            Some(other) => Err(ValueError::new("yes or no", other)),
        };
        let needed = || value.filter(|value| !value.is_empty()).ok_or("a value is missing");
        match key {
            "off" => self.off = flag()?,
            "backing" => self.backing = Some(needed()?.parse()?),
            "edges" => self.edges = Some(needed()?.parse()?),
            "pad-threshold" => self.pad_threshold = Some(parse_bytes(needed()?)?),
            "page-size" => self.page_size = Some(parse_page_size(needed()?)?),
            "numa" => self.numa = Some(needed()?.parse()?),
            "strict" => self.strict = flag()?,
            "deadline" => self.deadline = Some(parse_duration(needed()?)?),
            "report" => self.report = Some(value.unwrap_or_default().to_owned()),
            "json" => self.json = flag()?,
            "quiet" => self.quiet = flag()?,
            "verbose" => self.verbose = flag()?,
            "until-exec" => self.until_exec = Some(needed()?.to_owned()),
            "select" => self.select = Some(needed()?.parse()?),
            "follow" => self.follow = flag()?,
            "settle" => self.settle = Some(parse_duration(needed()?)?),
            "max-huge-pages" => self.max_huge_pages = Some(needed()?.parse()?),
            "only" => self.only.get_or_insert_default().push(needed()?.to_owned()),
            "except" => self.except.get_or_insert_default().push(needed()?.to_owned()),
            _ => return Err("no such key".to_owned()),
        }
        Ok(())
    }

    /// Returns this layer with its silences filled from `lower`.
    #[must_use]
    pub fn over(self, lower: Self) -> Self {
        Self {
            off: self.off.or(lower.off),
            backing: self.backing.or(lower.backing),
            edges: self.edges.or(lower.edges),
            pad_threshold: self.pad_threshold.or(lower.pad_threshold),
            page_size: self.page_size.or(lower.page_size),
            numa: self.numa.or(lower.numa),
            strict: self.strict.or(lower.strict),
            deadline: self.deadline.or(lower.deadline),
            report: self.report.or(lower.report),
            json: self.json.or(lower.json),
            quiet: self.quiet.or(lower.quiet),
            verbose: self.verbose.or(lower.verbose),
            until_exec: self.until_exec.or(lower.until_exec),
            select: self.select.or(lower.select),
            follow: self.follow.or(lower.follow),
            settle: self.settle.or(lower.settle),
            max_huge_pages: self.max_huge_pages.or(lower.max_huge_pages),
            only: self.only.or(lower.only),
            except: self.except.or(lower.except),
        }
    }
}

/// All settings, decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Switched off: a plain exec.
    pub off: bool,
    /// See [`BackingChoice`].
    pub backing: BackingChoice,
    /// Which ragged edges are taken.
    pub edges: EdgePolicy,
    /// The size of the hugetlb pool's pages; by default that of a huge page.
    pub page_size: Option<PageSize>,
    /// On which nodes copies lie; by default the kernel decides.
    pub numa: Option<Numa>,
    /// Refuse (exit 125) rather than run on base pages.
    pub strict: bool,
    /// How long staging may take; what is not staged by then stays on base pages.
    pub deadline: Duration,
    /// Where the report goes: `Some("")` is stderr.
    pub report: Option<String>,
    /// Reports and plans as JSON.
    pub json: bool,
    /// No warnings.
    pub quiet: bool,
    /// Say why text was left alone also where that is normal.
    pub verbose: bool,
    /// Treat only the program of this name, after any number of execs.
    pub until_exec: Option<String>,
    /// See [`Select`].
    pub select: Select,
    /// Look after the programs that the program starts, too.
    pub follow: bool,
    /// For how long to look again for what a program maps later; zero for not at all.
    pub settle: Duration,
    /// Watch the start of the program: neither `settle` nor `follow` nor a budget says what is looked at after it began.
    pub watch_start: bool,
    /// How many huge pages to take, the hottest first; by default all.
    pub max_huge_pages: Option<Budget>,
    /// Only programs whose path one of these patterns fits; all, if there are none.
    pub only: Vec<String>,
    /// Leaves out the programs whose path one of these patterns fits.
    pub except: Vec<String>,
}

impl Settings {
    /// The time that staging gets at launch unless the user says otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

    /// Puts the layers together, the strongest first.
    pub fn from_layers(layers: impl IntoIterator<Item = Layer>) -> Self {
        let layers: Vec<Layer> = layers.into_iter().collect();
        // A kill switch that an option in some unit file could overrule would be none.
        let killed = layers.iter().any(|layer| layer.off == Some(true));
        let all = layers.into_iter().reduce(Layer::over).unwrap_or_default();
        let backing = all.backing.unwrap_or_default();
        Self {
            off: killed || backing == BackingChoice::Off,
            backing,
            edges: EdgePolicy {
                edges: all.edges.unwrap_or_default(),
                pad_threshold: all.pad_threshold.unwrap_or(EdgePolicy::DEFAULT_PAD_THRESHOLD),
            },
            page_size: all.page_size,
            numa: all.numa,
            strict: all.strict.unwrap_or(false),
            deadline: all.deadline.unwrap_or(Self::DEFAULT_DEADLINE),
            report: all.report,
            json: all.json.unwrap_or(false),
            quiet: all.quiet.unwrap_or(false),
            verbose: all.verbose.unwrap_or(false),
            until_exec: all.until_exec,
            select: all.select.unwrap_or_default(),
            follow: all.follow.unwrap_or(false),
            watch_start: all.settle.is_none()
                && all.follow != Some(true)
                && all.max_huge_pages.is_none(),
            settle: all.settle.unwrap_or_default(),
            max_huge_pages: all.max_huge_pages,
            only: all.only.unwrap_or_default(),
            except: all.except.unwrap_or_default(),
        }
    }
}

impl Settings {
    /// Returns whether a program is refused rather than run on base pages for this reason.
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

    #[test]
    fn a_stronger_layer_wins_key_by_key() {
        let (environment, none) =
            Layer::from_environment("backing=hugetlb,strict,deadline=1.5s,report");
        assert_eq!(none, []);
        let (file, none) = Layer::from_file("# ours\nstrict=no\nquiet = yes # hush\n\n");
        assert_eq!(none, []);
        let options = Layer { backing: Some(BackingChoice::Image), ..Layer::default() };
        let settings = Settings::from_layers([options, environment, file]);
        assert_eq!(settings.backing, BackingChoice::Image);
        assert!(settings.strict && settings.quiet && !settings.off);
        assert_eq!(settings.deadline, Duration::from_millis(1500));
        assert_eq!(settings.report.as_deref(), Some(""));
    }

    #[test]
    fn both_ways_of_saying_off() {
        for value in ["off", "backing=off", "off=1"] {
            assert!(Settings::from_layers([Layer::from_environment(value).0]).off, "{value}");
        }
        assert!(!Settings::from_layers([Layer::from_environment("off=0").0]).off);
        let named = Layer { backing: Some(BackingChoice::Image), ..Layer::default() };
        let off = Layer::from_environment("off").0;
        assert!(Settings::from_layers([named.clone(), off]).off, "a kill switch beats an option");
        let no_backing = Layer::from_environment("backing=off").0;
        assert!(!Settings::from_layers([named, no_backing]).off, "a backing is a mere setting");
    }

    #[test]
    fn malformed_parts_are_named_and_the_rest_kept() {
        let (layer, malformed) =
            Layer::from_environment("stict,deadline=soon,backing=,strict=maybe,quiet,,json=1");
        assert_eq!((layer.quiet, layer.json), (Some(true), Some(true)));
        let items: Vec<_> = malformed.iter().map(|bad| bad.item.as_str()).collect();
        assert_eq!(items, ["stict", "deadline=soon", "backing=", "strict=maybe"]);
    }

    #[test]
    fn edges_are_set_like_everything_else() {
        let (layer, none) = Layer::from_environment("edges=pad,pad-threshold=64K");
        assert_eq!(none, []);
        let settings = Settings::from_layers([layer]);
        let wanted = EdgePolicy { edges: Edges::Pad, pad_threshold: 64 << 10 };
        assert_eq!(settings.edges, wanted);
        assert_eq!(Settings::from_layers([Layer::default()]).edges, EdgePolicy::default());
        let (_, malformed) = Layer::from_environment("edges=all,pad-threshold=much");
        assert_eq!(malformed.len(), 2);
    }

    #[test]
    fn a_node_is_set_like_everything_else() {
        let (layer, none) = Layer::from_environment("numa=node=1");
        assert_eq!((none, Settings::from_layers([layer]).numa), (vec![], Some(Numa::Node(1))));
        assert_eq!(Layer::from_environment("numa=1,numa").1.len(), 2);
    }

    #[test]
    fn a_size_is_for_the_pool_only() {
        let of = |text: &str| Settings::from_layers([Layer::from_environment(text).0]).pool_page();
        assert_eq!(of("page-size=64K,backing=hugetlb"), PageSize::new(64 << 10));
        assert_eq!((of("page-size=64K"), of("backing=hugetlb")), (None, None));
        assert_eq!(Layer::from_environment("page-size=65000,page-size=big").1.len(), 2);
    }
}
