//! The table of all settings, each with its name, the places that may say it, and its effect.
//!
//! A setting comes from four sources, the weakest first: its default, the configuration file, `TIEXEC=key=value,…`, and
//! an option. Rules of the agent have settings, too. A value replaces that of a weaker source; a flag stays set; a list
//! replaces the list of a weaker source. `off` is a kill switch and beats them all.
//!
//! To add a setting, add its field to [`Settings`] and its row here. The command lines, the keys of rules, manuals and
//! completions come from the table.

use thiserror::Error;

use crate::config::{BackingChoice, Edges, Evict, Settings};
use crate::value::{ValueError, parse_bytes, parse_duration, parse_page_size};

/// One setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name in `TIEXEC=`, in the configuration file and in rules. Its option has two dashes before it.
    pub key: &'static str,
    /// The letter of its short option.
    pub short: Option<char>,
    /// The value that it takes.
    pub takes: Takes,
    /// The words that its value may be, for completions; there may be others.
    pub words: &'static [&'static str],
    /// The places that may say it, besides `TIEXEC=` and the configuration file.
    pub at: &'static [At],
    /// The group of its option in the help.
    pub group: Group,
    /// The help for a launch.
    pub help: &'static str,
    /// The help for an attach, where it is another one.
    pub help_for_attach: Option<&'static str>,
    /// The options beside which it has no meaning.
    pub not_with: &'static [&'static str],
    /// The option without which it has no meaning.
    pub only_with: Option<&'static str>,
}

/// The value that a setting takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Yes or no; as an option nothing.
    Flag,
    /// A value, by the name that the help has for it.
    Value(&'static str),
    /// A value, which an option must have after `=`.
    ValueAfterEquals(&'static str),
    /// A value or nothing.
    MaybeValue(&'static str),
    /// A value; said again, another one.
    List(&'static str),
}

/// A place where a setting may be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// An option of `tiexec PROGRAM`.
    Launch,
    /// An option of `tiexecctl attach`, and so of `tiexec -p`.
    Attach,
    /// A key of the agent's rules.
    Rule,
    /// An annotation of a pod, which [narrows](Settings::narrowed_by) what its rule allows.
    Pod,
}

/// A group of options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Options for the text and its huge pages.
    Memory,
    /// Options for the time after the start.
    AfterStart,
    /// Options for failures.
    Failures,
    /// Options for the output.
    Output,
}

impl Setting {
    /// The rows begin with this one.
    const NONE: Self = Self {
        key: "",
        short: None,
        takes: Takes::Flag,
        words: &[],
        at: &[At::Launch],
        group: Group::Memory,
        help: "",
        help_for_attach: None,
        not_with: &[],
        only_with: None,
    };

    /// Returns the setting of this name.
    pub fn of(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// Returns whether there is a setting of this name that may be said there.
    pub fn is_at(place: At, key: &str) -> bool {
        Self::of(key).is_some_and(|setting| setting.at.contains(&place))
    }

    /// Returns the settings that may be said there.
    pub fn at(place: At) -> impl Iterator<Item = &'static Self> {
        SETTINGS.iter().filter(move |setting| setting.at.contains(&place))
    }
}

/// The value that a source gives to a key; `None` for a key alone.
#[derive(Clone, Copy, Debug)]
struct Said<'a>(Option<&'a str>);

impl<'a> Said<'a> {
    fn flag(self) -> Result<bool, ValueError> {
        let value = self.0.unwrap_or("yes");
        match value.to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => Ok(true),
            "0" | "no" | "false" | "off" => Ok(false),
            _ => Err(ValueError::new("yes or no", value)),
        }
    }

    fn value(self) -> Result<&'a str, &'static str> {
        self.0.filter(|value| !value.is_empty()).ok_or("a value is missing")
    }
}

/// Makes [`SETTINGS`], and `set` with one arm for each row. (libtiexec needs `set` and no help.)
macro_rules! settings {
    ($(
        $key:literal: |$to:ident, $said:ident| $set:expr,
        $($field:ident: $value:expr),+;
    )+) => {
        /// All settings, in the order of the help.
        pub const SETTINGS: &[Setting] =
            &[$(Setting { key: $key, $($field: $value,)+ ..Setting::NONE }),+];

        fn set(to: &mut Settings, key: &str, said: Said<'_>) -> Result<(), String> {
            match key {
                $($key => {
                    let ($to, $said) = (&mut *to, said);
                    $set;
                })+
                // The kill switch counts in any case of letters, also as OFF. It has no option.
                _ if key.eq_ignore_ascii_case("off") => to.off = said.flag()?,
                _ => return Err("no such key".to_owned()),
            }
            Ok(())
        }
    };
}

const EVERYWHERE: &[At] = &[At::Launch, At::Attach, At::Rule];
const PODS_TOO: &[At] = &[At::Launch, At::Attach, At::Rule, At::Pod];
const PROGRAMS: &[At] = &[At::Launch, At::Attach];

settings! {
    "backing": |to, said| to.backing = said.value()?.parse()?,
        takes: Takes::Value("BACKING"),
        words: BackingChoice::WORDS,
        at: EVERYWHERE,
        help: "Take the huge pages from: auto (the first that works), pagecache (the file's own page cache; nothing is \
            copied), image (a copy in the image store or in a memfd), hugetlb (a copy in the reserved pool; only if \
            named), or off",
        help_for_attach: Some(
            "Take the huge pages from: auto (the first that works), pagecache, image, or hugetlb"
        );
    "evict": |to, said| to.evict = said.value()?.parse()?,
        takes: Takes::Value("WHEN"),
        words: Evict::WORDS,
        help: "Take a file that is cached in small pages out of the page cache and read it back in huge ones: unused (if no \
            process uses it), or never [default: unused]";
    "page-size": |to, said| to.page_size = Some(parse_page_size(said.value()?)?),
        takes: Takes::Value("BYTES"),
        at: EVERYWHERE,
        help: "With --backing hugetlb, use the pool with pages of this size, such as 64K or 2M; see \
            /sys/kernel/mm/hugepages [default: the size of a huge page]";
    "numa": |to, said| to.numa = Some(said.value()?.parse()?),
        takes: Takes::Value("NODES"),
        words: &["interleave", "local"],
        at: EVERYWHERE,
        help: "Place the copy of the text on NUMA nodes: interleave (one huge page on each node by turns), local (where \
            the program's first thread runs) or node=N. Each program then has a copy of its own [default: the kernel \
            chooses the nodes]";
    "edges": |to, said| to.edges.edges = said.value()?.parse()?,
        takes: Takes::Value("EDGES"),
        words: Edges::WORDS,
        at: PODS_TOO,
        help: "Whether the first and last part of the text, which fill no huge page, become huge: conservative (no), pad \
            (if they hold enough text, and the rest of the huge page is free or read-only data of the same file, which \
            becomes executable), or aggressive (also where they hold little text) [default: conservative]";
    "pad-threshold": |to, said| to.edges.pad_threshold = parse_bytes(said.value()?)?,
        takes: Takes::Value("BYTES"),
        at: EVERYWHERE,
        help: "With --edges pad, how much text a huge page must hold to be taken, such as 64K or 1MiB [default: 4K]";
    "select": |to, said| to.select = said.value()?.parse()?,
        takes: Takes::Value("LIST"),
        words: &["main", "dso", "jit", "all", "none"],
        at: EVERYWHERE,
        help: "Select executable memory: a list of main (the program's own text), dso (that of its shared libraries) and \
            jit (code it makes itself; needs --settle), or all, or none [default: main,dso]",
        help_for_attach: Some(
            "Select executable memory: a list of main, dso and jit, or all, or none [default: main,dso]"
        );
    "strict": |to, said| to.strict = said.flag()?,
        group: Group::Failures,
        help: "Refuse to start (exit status 125) if the text cannot be put onto huge pages";
    "deadline": |to, said| to.deadline = Some(parse_duration(said.value()?)?),
        takes: Takes::Value("DURATION"),
        group: Group::Failures,
        help: "Stop preparing huge pages after this time, such as 250ms or 1s; the rest stays on base pages [default: \
            250ms]";
    "report": |to, said| to.report = Some(said.0.unwrap_or_default().to_owned()),
        takes: Takes::MaybeValue("FILE"),
        group: Group::Output,
        help: "Write a table of the text to FILE or standard error before the program starts; reports of later text are \
            added to FILE";
    "json": |to, said| to.json = said.flag()?,
        group: Group::Output,
        help: "Write reports and plans as JSON";
    "until-exec": |to, said| to.until_exec = Some(said.value()?.to_owned()),
        takes: Takes::ValueAfterEquals("NAME"),
        group: Group::AfterStart,
        help: "Follow the process through its execs until it executes NAME, and treat that program";
    "follow": |to, said| to.follow = said.flag()?,
        short: Some('f'),
        at: PROGRAMS,
        group: Group::AfterStart,
        help: "Also treat the programs that the program and its children start, as long as any of them lives",
        help_for_attach: Some(
            "Stay, and also treat the programs that the processes and their children start, as long as any of them \
            lives"
        );
    "settle": |to, said| to.settle = Some(parse_duration(said.value()?)?),
        takes: Takes::Value("DURATION"),
        at: EVERYWHERE,
        group: Group::AfterStart,
        help: "Treat text that the program maps up to this time after its start, such as 30s; 0 turns this off \
            [default: until its start is over, 10s to 60s]",
        help_for_attach: Some(
            "Stay for this time, such as 30s, and treat text that the processes map meanwhile [default: return at \
            once]"
        );
    "max-huge-pages": |to, said| to.max_huge_pages = Some(said.value()?.parse()?),
        takes: Takes::Value("NUM|auto"),
        at: PODS_TOO,
        group: Group::AfterStart,
        help: "Take at most this number of huge pages, the hottest first (only with -p; a start refuses it); auto takes as many as \
            pay off by a model of the instruction TLB. The processes are sampled first, for the time of --settle [default: 5s]",
        help_for_attach: Some(
            "Take at most this number of huge pages, the hottest first; auto takes as many as pay off by a model of \
            the instruction TLB. The processes are sampled first, for the time of --settle [default: 5s]"
        ),
        not_with: &["follow"];
    "only": |to, said| to.only.push(said.value()?.to_owned()),
        takes: Takes::List("GLOB"),
        at: PROGRAMS,
        group: Group::AfterStart,
        help: "With --follow, treat only programs, PROGRAM included, whose path matches GLOB, such as '*/cc1plus'; a \
            GLOB without a slash is compared with the file name",
        help_for_attach: Some(
            "With --follow, of the further programs treat only those whose path matches GLOB, such as '*/cc1plus'; a \
            GLOB without a slash is compared with the file name"
        ),
        only_with: Some("follow");
    "except": |to, said| to.except.push(said.value()?.to_owned()),
        takes: Takes::List("GLOB"),
        at: PROGRAMS,
        group: Group::AfterStart,
        help: "With --follow, treat no program whose path, or file name, matches GLOB",
        help_for_attach: Some(
            "With --follow, treat no further program whose path, or file name, matches GLOB"
        ),
        only_with: Some("follow");
    "quiet": |to, said| to.quiet = said.flag()?,
        short: Some('q'),
        group: Group::Output,
        help: "Print no warnings";
    "verbose": |to, said| to.verbose = said.flag()?,
        short: Some('v'),
        group: Group::Output,
        help: "Also print the reason where it is normal that text stays on base pages",
        not_with: &["quiet"];
}

/// An invalid part of a source.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{item:?}: {problem}")]
pub struct Malformed {
    /// The part, as written.
    pub item: String,
    /// The reason.
    pub problem: String,
}

impl Settings {
    /// Takes over the value of `TIEXEC`: parts separated by commas, each `key=value`, or a key alone for yes. Returns
    /// the invalid parts.
    pub fn take_environment(&mut self, value: &str) -> Vec<Malformed> {
        self.take(value.split(',').filter_map(item))
    }

    /// Takes over the configuration file: one `key=value` a line, `#` begins a comment. Returns the invalid lines.
    pub fn take_file(&mut self, text: &str) -> Vec<Malformed> {
        self.take(text.lines().filter_map(|line| item(line.split('#').next().unwrap_or_default())))
    }

    /// Takes over options: keys, each with its value if it has one. Returns the invalid ones.
    pub fn take_options<'a>(
        &mut self,
        options: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Vec<Malformed> {
        self.take(options)
    }

    /// Takes over one setting of a rule.
    ///
    /// # Errors
    /// The key or the value is invalid.
    pub fn take_setting(&mut self, key: &str, value: &str) -> Result<(), Malformed> {
        set(self, key, Said(Some(value))).map_err(|problem| malformed(key, Some(value), problem))
    }

    fn take<'a>(
        &mut self,
        said: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Vec<Malformed> {
        // A stronger source must not be able to overrule the kill switch.
        let off = std::mem::take(&mut self.off);
        // A list of this source replaces that of a weaker one.
        let (only, except) = (std::mem::take(&mut self.only), std::mem::take(&mut self.except));
        let mut all = Vec::new();
        for (key, value) in said {
            if let Err(problem) = set(self, key, Said(value)) {
                all.push(malformed(key, value, problem));
            }
        }
        self.off |= off;
        if self.only.is_empty() {
            self.only = only;
        }
        if self.except.is_empty() {
            self.except = except;
        }
        all
    }
}

/// Parts `key=value`; `None` if there is nothing.
fn item(text: &str) -> Option<(&str, Option<&str>)> {
    let text = text.trim();
    let parted = text.split_once('=').map(|(key, value)| (key.trim(), Some(value.trim())));
    (!text.is_empty()).then(|| parted.unwrap_or((text, None)))
}

fn malformed(key: &str, value: Option<&str>, problem: String) -> Malformed {
    let item = value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
    Malformed { item, problem }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::addr::PageSize;
    use crate::config::{BackingChoice, EdgePolicy, Edges};
    use crate::numa::Numa;

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
    fn evicting_is_set_like_everything_else() {
        use crate::config::Evict;
        assert_eq!((of("").evict, of("evict=never").evict), (Evict::Unused, Evict::Never));
        assert_eq!((of("evict=unused").evict, malformed("evict=always,evict")), (Evict::Unused, 2));
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

    #[test]
    fn options_are_the_strongest_source_and_beat_no_kill_switch() {
        let mut settings = of("off,backing=image,only=a,only=b,strict");
        let options = [("backing", Some("hugetlb")), ("only", Some("c")), ("quiet", None)];
        assert_eq!(settings.take_options(options.into_iter()), []);
        assert_eq!((settings.backing, settings.only.len()), (BackingChoice::Hugetlb, 1));
        assert!(settings.off && settings.strict && settings.quiet);
    }

    #[test]
    fn each_row_is_whole_and_its_words_are_values() {
        for setting in SETTINGS {
            let key = setting.key;
            assert!(!setting.help.is_empty() && !setting.at.is_empty(), "{key}");
            for other in setting.not_with.iter().chain(&setting.only_with) {
                assert!(Setting::of(other).is_some(), "{key}: no {other}");
            }
            for word in setting.words {
                Settings::default().take_setting(key, word).unwrap();
            }
            let alone = set(&mut Settings::default(), key, Said(None)).is_ok();
            let takes_nothing = matches!(setting.takes, Takes::Flag | Takes::MaybeValue(_));
            assert_eq!(alone, takes_nothing, "{key}");
        }
        let keys: std::collections::BTreeSet<_> = SETTINGS.iter().map(|one| one.key).collect();
        assert_eq!(keys.len(), SETTINGS.len());
    }
}
