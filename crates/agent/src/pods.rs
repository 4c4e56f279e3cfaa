//! Pods of Kubernetes on this node: the keys that rules match, and the options that a pod sets for itself.
//!
//! A child process of the agent watches the pods (`pod_watch`) and reports them one by one. The agent keeps the
//! namespace and the name of each pod, and its labels and annotations that begin with [`PREFIX`]. It keeps no pod that
//! has no such label or annotation.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use tiexec_core::config::Settings;
use tiexec_core::setting::{At, Setting};

/// The prefix of the labels and annotations that the agent reads.
pub const PREFIX: &str = "tiexec.io/";
/// Most bytes of a key, and of a value. A longer one counts as empty, so that every pod fits into one packet.
const LONGEST: usize = 128;
/// Most keys of a pod.
const MOST: usize = 16;

/// A pod.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels and annotations that begin with [`PREFIX`]. A label wins over an annotation of the same name.
    pub keys: BTreeMap<String, String>,
}

impl Pod {
    /// Returns a pod with these labels and annotations.
    pub fn new<'a>(
        (namespace, name): (&str, &str),
        annotations: impl Iterator<Item = (&'a String, &'a String)>,
        labels: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Self {
        let ours = annotations.chain(labels).filter(|(key, _)| key.starts_with(PREFIX));
        let ours = ours.filter(|(key, _)| key.len() <= LONGEST);
        let short =
            |value: &String| if value.len() <= LONGEST { value.clone() } else { String::new() };
        let all: BTreeMap<String, String> =
            ours.map(|(key, value)| (key.clone(), short(value))).collect();
        let keys = all.into_iter().take(MOST).collect();
        Self { namespace: namespace.to_owned(), name: name.to_owned(), keys }
    }

    /// Returns the settings for this pod: the rule's settings, reduced as the pod's annotations ask. A pod never gets
    /// more than its rule allows.
    ///
    /// # Errors
    /// The annotation cannot be parsed, so it is unknown how much less the pod's owner wants.
    pub fn settings(&self, rule: &Settings) -> Result<Settings, String> {
        let mut wanted = rule.clone();
        for setting in Setting::at(At::Pod) {
            let key = format!("{PREFIX}{}", setting.key);
            if let Some(value) = self.keys.get(&key) {
                let taken = wanted.take_setting(setting.key, value);
                taken.map_err(|malformed| format!("{key}: {}", malformed.problem))?;
            }
        }
        Ok(rule.narrowed_by(&wanted))
    }
}

/// A report of the watch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum News {
    /// A list of all pods begins.
    Begin,
    /// The list has ended.
    End,
    /// A pod was added or changed: its UID and its data.
    There(String, Pod),
    /// The pod with this UID is gone.
    Gone(String),
    /// The API server cannot be asked, for this reason; the watch tries again.
    Trouble(String),
}

/// The pods by their UIDs, as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pods {
    known: HashMap<String, Pod>,
    /// The list that has begun. It counts only once it has ended: an interrupted list does not show which pods are
    /// gone.
    begun: Option<HashMap<String, Pod>>,
    /// True once a list has ended.
    pub is_complete: bool,
}

impl Pods {
    /// Applies a report. Returns the UIDs of the pods whose known data changed.
    pub fn take(&mut self, news: News) -> Vec<String> {
        let changed = match news {
            News::Begin => {
                self.begun = Some(HashMap::new());
                None
            }
            News::End => return self.take_list(),
            News::There(uid, pod) => {
                let pods = self.begun.as_mut().unwrap_or(&mut self.known);
                let pod = Some(pod).filter(|pod| !pod.keys.is_empty());
                let is_same = pods.get(&uid) == pod.as_ref();
                match pod {
                    Some(pod) => pods.insert(uid.clone(), pod),
                    None => pods.remove(&uid),
                };
                (!is_same).then_some(uid)
            }
            News::Gone(uid) => {
                let pods = self.begun.as_mut().unwrap_or(&mut self.known);
                pods.remove(&uid).map(|_pod| uid)
            }
            News::Trouble(_) => None,
        };
        // A list that has begun changes `known` only at its end.
        changed.filter(|_| self.begun.is_none()).into_iter().collect()
    }

    fn take_list(&mut self) -> Vec<String> {
        let Some(now) = self.begun.take() else { return Vec::new() };
        self.is_complete = true;
        let was = std::mem::replace(&mut self.known, now);
        let uids = was.keys().chain(self.known.keys().filter(|uid| !was.contains_key(*uid)));
        uids.filter(|uid| was.get(*uid) != self.known.get(*uid)).cloned().collect()
    }

    /// Discards a list that has begun, because its sender is gone.
    pub fn break_off(&mut self) {
        self.begun = None;
    }

    /// Returns the pod with this UID, if it has labels or annotations that the agent reads.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.known.get(uid)
    }
}

/// The variables of the environment that lead to the API server and to this node's pods.
pub(crate) const VARIABLES: [&str; 3] =
    ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"];

/// Says why this process cannot know any pods.
pub fn unavailable() -> Option<&'static str> {
    if !cfg!(feature = "kubernetes") {
        return Some(
            "this program is built without the feature kubernetes; fix: use the project's image",
        );
    }
    let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !has("KUBERNETES_SERVICE_HOST") {
        return Some(
            "KUBERNETES_SERVICE_HOST is not set; fix: run the agent as a DaemonSet, or match by cgroup",
        );
    }
    (!has("NODE_NAME")).then_some("NODE_NAME is not set; fix: set it from the field spec.nodeName")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tiexec_core::budget::Budget;
    use tiexec_core::config::{EdgePolicy, Edges};
    use tiexec_core::escape::AsShown;
    use tiexec_sys::seqpacket;

    use super::*;

    fn pod(keys: &[(&str, &str)]) -> Pod {
        let keys = keys.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Pod { keys, ..Pod::default() }
    }

    fn there(uid: &str, value: &str) -> News {
        News::There(uid.to_owned(), pod(&[("tiexec.io/enable", value)]))
    }

    #[test]
    fn a_list_that_breaks_off_loses_and_invents_nobody() {
        let mut pods = Pods::default();
        let gone = |uid: &str| News::Gone(uid.to_owned());
        for news in [News::Begin, there("a", "true"), there("b", "true")] {
            assert!(pods.take(news).is_empty());
        }
        assert!(pods.get("a").is_none() && !pods.is_complete);
        let mut listed = pods.take(News::End);
        listed.sort();
        assert_eq!((listed, pods.is_complete), (vec!["a".to_owned(), "b".to_owned()], true));
        assert!(pods.take(there("a", "true")).is_empty(), "the same again");
        assert_eq!(pods.take(there("c", "true")), ["c"]);
        assert_eq!(pods.take(there("c", "false")), ["c"]);
        assert_eq!(pods.take(gone("c")), ["c"]);
        assert!(pods.take(gone("c")).is_empty());
        let before = pods.clone();
        // Two lists break off in the middle: a new list replaces the first, and the sender of the second ends.
        for news in [News::Begin, there("x", "true"), News::Begin, there("a", "true")] {
            assert!(pods.take(news).is_empty());
        }
        pods.break_off();
        assert_eq!(pods, before);
        assert!(pods.take(News::End).is_empty());
        for news in [News::Begin, there("a", "true")] {
            pods.take(news);
        }
        assert_eq!(pods.take(News::End), ["b"]);
        assert!(pods.get("b").is_none() && pods.get("x").is_none());
        // The agent forgets a pod that has lost its last key.
        assert_eq!(pods.take(News::There("a".to_owned(), Pod::default())), ["a"]);
        assert!(pods.get("a").is_none());
        assert!(pods.take(News::There("a".to_owned(), Pod::default())).is_empty());
    }

    #[test]
    fn a_pod_keeps_only_keys_of_ours() {
        let long = "x".repeat(LONGEST + 1);
        let of = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let annotations =
            of(&[("tiexec.io/enable", "no"), ("tiexec.io/edges", &long), ("a/b", "c")]);
        let labels = of(&[("tiexec.io/enable", "true"), ("app", "db")]);
        let made = Pod::new(("ns", "db-0"), annotations.iter(), labels.iter());
        assert_eq!(made.keys, of(&[("tiexec.io/enable", "true"), ("tiexec.io/edges", "")]));
        let many: BTreeMap<String, String> =
            (0..1000).map(|n| (format!("tiexec.io/{n}"), String::new())).collect();
        assert_eq!(Pod::new(("", ""), many.iter(), of(&[]).iter()).keys.len(), MOST);
        // JSON writes six bytes for one such character.
        let worst: BTreeMap<String, String> =
            (0..1000).map(|n| (format!("tiexec.io/{n:0>118}"), "\u{1}".repeat(LONGEST))).collect();
        let pod = Pod::new((&"n".repeat(63), &"p".repeat(253)), worst.iter(), of(&[]).iter());
        let news = News::There("u".repeat(36), pod);
        let packet = serde_json::to_vec(&news).unwrap();
        assert!((14 << 10..seqpacket::LONGEST).contains(&packet.len()), "{}", packet.len());
    }

    /// Text that an attacker would try as a value, or as the name of a key.
    fn hostile() -> impl Strategy<Value = String> {
        let known = [
            "",
            "0",
            "auto",
            "pad",
            "aggressive",
            "conservative",
            "true",
            "edges",
            "max-huge-pages",
            "18446744073709551615",
            "18446744073709551616",
            "-1",
            "+8",
            " 8",
            "8\0",
            "0x8",
            "\u{661}",
            "--backing=pagecache",
            "pad,backing=pagecache",
            "auto\nmax-huge-pages=9",
            "../../etc",
            "\u{1b}]0;x\u{7}",
            "\u{202e}\u{9b}",
            "{\"enable\":true}",
            "backing",
            "only",
            "off",
        ];
        let long = (1_usize..=256 << 10).prop_map(|len| "9".repeat(len));
        prop_oneof![
            8 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned),
            2 => any::<u64>().prop_map(|number| number.to_string()),
            2 => any::<String>(),
            1 => long,
        ]
    }

    fn keys() -> impl Strategy<Value = BTreeMap<String, String>> {
        let prefix = proptest::sample::select(
            &[PREFIX, PREFIX, PREFIX, "", "tiexec.io", "a/tiexec.io/"][..],
        );
        let key = (prefix, hostile()).prop_map(|(prefix, name)| format!("{prefix}{name}"));
        proptest::collection::btree_map(key, hostile(), 0..40)
    }

    proptest! {
        #[test]
        fn hostile_annotations_never_get_more(
            annotations in keys(),
            labels in keys(),
            rule_edges in proptest::sample::select(&[Edges::Conservative, Edges::Pad, Edges::Aggressive][..]),
            rule_budget in proptest::option::of(prop_oneof![Just(Budget::Auto), (0_u64..100).prop_map(Budget::Pages)]),
        ) {
            let edges = EdgePolicy { edges: rule_edges, ..EdgePolicy::default() };
            let rule = Settings { edges, max_huge_pages: rule_budget, ..Settings::default() };
            let pod = Pod::new(("ns", "pod"), annotations.iter(), labels.iter());
            prop_assert!(pod.keys.len() <= MOST);
            for (key, value) in &pod.keys {
                prop_assert!(key.starts_with(PREFIX) && key.len() <= LONGEST && value.len() <= LONGEST);
                let given = labels.get(key).or(annotations.get(key)).unwrap();
                prop_assert!(value.is_empty() || value == given, "a label counts before an annotation");
            }
            let news = News::There("uid".to_owned(), pod.clone());
            let packet = serde_json::to_vec(&news).unwrap();
            prop_assert!(packet.len() < seqpacket::LONGEST);
            prop_assert_eq!(serde_json::from_slice::<News>(&packet).unwrap(), news);
            match pod.settings(&rule) {
                Ok(got) => {
                    let is_no_wider = match rule_edges {
                        Edges::Conservative => got.edges.edges == Edges::Conservative,
                        Edges::Pad => got.edges.edges != Edges::Aggressive,
                        Edges::Aggressive => true,
                    };
                    prop_assert!(is_no_wider);
                    let is_no_more = match (rule_budget, got.max_huge_pages) {
                        (None, _) => true,
                        (Some(Budget::Auto), Some(Budget::Auto | Budget::AutoUpTo(_))) => true,
                        (Some(Budget::Pages(rule)), Some(Budget::Pages(got) | Budget::AutoUpTo(got))) => got <= rule,
                        _ => false,
                    };
                    prop_assert!(is_no_more, "{:?}", got.max_huge_pages);
                    // Everything else is the rule's.
                    let same = Settings { edges: rule.edges, max_huge_pages: rule.max_huge_pages, ..got };
                    prop_assert_eq!(same, rule);
                }
                Err(why) => {
                    let line = why.shown().to_string();
                    prop_assert!(line.len() < 2048, "{}", line.len());
                    prop_assert!(!line.chars().any(char::is_control), "{line}");
                }
            }
        }
    }

    #[test]
    fn a_pod_gets_less_and_never_more() {
        let rule = |edges, max_huge_pages| {
            let edges = EdgePolicy { edges, ..EdgePolicy::default() };
            Settings { edges, max_huge_pages, ..Settings::default() }
        };
        let both = pod(&[("tiexec.io/edges", "pad"), ("tiexec.io/max-huge-pages", "8")]);
        let of = |rule: &Settings| {
            let settings = both.settings(rule).unwrap();
            (settings.edges.edges, settings.max_huge_pages)
        };
        let eight = Some(Budget::Pages(8));
        assert_eq!(of(&rule(Edges::Conservative, None)), (Edges::Conservative, eight));
        assert_eq!(
            of(&rule(Edges::Aggressive, Some(Budget::Auto))),
            (Edges::Pad, Some(Budget::AutoUpTo(8)))
        );
        let four = Some(Budget::Pages(4));
        assert_eq!(of(&rule(Edges::Pad, four)), (Edges::Pad, four));
        let auto = pod(&[("tiexec.io/max-huge-pages", "auto")]);
        let both = auto.settings(&rule(Edges::Pad, four)).unwrap().max_huge_pages;
        assert_eq!(both, Some(Budget::AutoUpTo(4)));
        for (key, value) in [("edges", "wide"), ("edges", ""), ("max-huge-pages", "many")] {
            let odd = pod(&[(&format!("tiexec.io/{key}"), value)]);
            assert!(odd.settings(&Settings::default()).unwrap_err().contains(key));
        }
    }
}
