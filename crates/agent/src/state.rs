//! The state that the agent keeps over its restarts: the builds of programs that crashed after a switch.
//!
//! The state is one JSON file, written whole and renamed (`kept`).

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tiexec_core::escape::AsShown;

use crate::fair::surplus;
use crate::kept::{Directory, Locked, Stamp};

/// The directory of the state.
pub const DIRECTORY: &str = "/var/lib/tiexec";
const NAME: &str = "state.json";
/// The lock file that the agent holds as long as it runs.
const AGENT: &str = ".agent";
/// The version of the file's form.
const VERSION: u32 = 1;
/// In the place of a signal: records of faults were missing.
pub(crate) const UNSEEN: i32 = 0;
/// Most entries in the state from the crashes of one user.
const MOST_OF_A_USER: usize = 64;
/// Most entries from the crashes of all users together.
const MOST_OF_USERS: usize = 512;
/// Most entries that count for all. The agent attaches to nothing long before there are so many.
const MOST_FOR_ALL: usize = 512;
/// Most bytes of a path in an entry. The owner of a process decides how long its path is.
const LONGEST_PATH: usize = 256;
/// The number of crashed builds of one rule that switches the rule off.
const BUILDS_OF_A_RULE: usize = 2;
/// The number of crashed builds on the machine after which the agent only observes.
const BUILDS_OF_THE_MACHINE: usize = 3;

/// A program's build: its build ID, and the digest of its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Build {
    /// In hexadecimal digits; `none` for a file without one.
    pub build_id: String,
    /// In hexadecimal digits.
    pub text: String,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.build_id, self.text)
    }
}

impl FromStr for Build {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (build_id, text) = text.split_once('/').ok_or("a build is BUILD-ID/DIGEST")?;
        Ok(Self { build_id: build_id.to_owned(), text: text.to_owned() })
    }
}

/// The owner of a process. The same user ID in pods of two namespaces of Kubernetes is two users.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Whose {
    /// The user id.
    pub uid: u32,
    /// The namespace of its pod, empty while the agent does not know the pod; `None` outside of pods.
    pub namespace: Option<String>,
}

impl Whose {
    /// Stands for the namespace of a pod that the agent does not know. No namespace has this name.
    pub(crate) const UNKNOWN: &str = "";

    /// Returns whether both may be the same owner: one is in a pod that the agent does not know, or did not know then.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        let is_same = match (&self.namespace, &other.namespace) {
            (Some(one), Some(two)) => {
                one == two || [one, two].iter().any(|it| *it == Self::UNKNOWN)
            }
            (one, two) => one == two,
        };
        self.uid == other.uid && is_same
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)?;
        match self.namespace.as_deref() {
            None => Ok(()),
            Some(Self::UNKNOWN) => write!(f, " of an unknown pod"),
            Some(name) => write!(f, " of namespace {}", name.shown()),
        }
    }
}

/// A build that crashed after a switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quarantined {
    /// See [`Build`].
    #[serde(flatten)]
    pub build: Build,
    /// The user to whose processes this entry is limited; `None` if it counts for all users.
    pub uid: Option<u32>,
    /// The namespace of Kubernetes to whose pods this entry is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The rule by which the agent attached to the process.
    pub rule: String,
    /// The signal.
    pub signal: i32,
    /// The program's path at that time.
    pub exe: String,
    /// When, in seconds since 1970.
    pub when: u64,
}

impl Quarantined {
    /// Returns the owner to whose processes this entry is limited; `None` if it counts for all.
    pub fn whose(&self) -> Option<Whose> {
        self.uid.map(|uid| Whose { uid, namespace: self.namespace.clone() })
    }
}

/// The state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The builds that the agent does not attach to.
    pub quarantine: Vec<Quarantined>,
}

impl Default for State {
    fn default() -> Self {
        Self { version: VERSION, quarantine: Vec::new() }
    }
}

impl State {
    /// Returns the entry that forbids an attach to this build in a process of this owner.
    pub fn quarantined(&self, build: &Build, user: &Whose) -> Option<&Quarantined> {
        let mut of_build = self.quarantine.iter().filter(|one| one.build == *build);
        of_build.find(|one| one.whose().is_none_or(|whose| whose.may_be(user)))
    }

    /// Returns whether a rule is off, because at least two of its builds crashed.
    pub fn is_off(&self, rule: &str) -> bool {
        self.builds(|one| one.rule == rule) >= BUILDS_OF_A_RULE
    }

    /// Returns whether the agent attaches to nothing any more, because at least three builds crashed.
    pub fn only_observes(&self) -> bool {
        self.builds(|_| true) >= BUILDS_OF_THE_MACHINE
    }

    /// Counts the builds whose crashes count for all users. Two files with the same build ID count as one build here. What
    /// only may have been a crash keeps its build away, and does not count.
    fn builds(&self, wanted: impl Fn(&Quarantined) -> bool) -> usize {
        let counts = |one: &&Quarantined| one.uid.is_none() && one.signal != UNSEEN && wanted(one);
        let of_all = self.quarantine.iter().filter(counts);
        let of_all = of_all.map(|one| match one.build.build_id.as_str() {
            "none" => &one.build.text,
            build_id => build_id,
        });
        of_all.collect::<BTreeSet<_>>().len()
    }

    /// Adds a build.
    pub fn add(&mut self, new: Quarantined) {
        if self.quarantine.iter().any(|one| one.build == new.build && one.whose() == new.whose()) {
            return;
        }
        self.quarantine.push(new);
        self.bound();
    }

    /// Drops what exceeds the limits, and shortens paths, so that the file never grows beyond what is read back. The
    /// entries that count for all stay: the oldest entry goes of those users who have the most. A new entry for all goes
    /// if there are too many.
    fn bound(&mut self) {
        for one in &mut self.quarantine {
            shorten(&mut one.exe);
        }
        let mut for_all = 0;
        self.quarantine.retain(|one| {
            for_all += usize::from(one.uid.is_none());
            one.uid.is_some() || for_all <= MOST_FOR_ALL
        });
        let mut of_users = self.quarantine.iter().filter(|one| one.uid.is_some()).count();
        while let Some((oldest, most)) = surplus(self.quarantine.iter().map(Quarantined::whose))
            && (most > MOST_OF_A_USER || of_users > MOST_OF_USERS)
        {
            self.quarantine.remove(oldest);
            of_users -= 1;
        }
    }

    /// Removes the builds with this build ID or this digest, and returns them.
    pub fn release(&mut self, id: &str) -> Vec<Quarantined> {
        let is_it = |one: &Quarantined| {
            id == one.build.text
                || id == one.build.to_string()
                || (id == one.build.build_id && id != "none")
        };
        let (out, kept) = std::mem::take(&mut self.quarantine).into_iter().partition(is_it);
        self.quarantine = kept;
        out
    }
}

/// Keeps the end of a path, which names the program.
fn shorten(path: &mut String) {
    if path.len() <= LONGEST_PATH {
        return;
    }
    const CUT: &str = "...";
    let mut from = path.len() - (LONGEST_PATH - CUT.len());
    while !path.is_char_boundary(from) {
        from += 1;
    }
    *path = format!("{CUT}{}", &path[from..]);
}

/// The time now, in seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The directory of the state.
#[derive(Debug)]
pub struct Store(Directory);

impl Store {
    /// Opens the directory, and makes it if it is missing.
    ///
    /// # Errors
    /// Another user could have replaced the directory, or it cannot be made.
    pub fn open(path: &Path) -> Result<Self, String> {
        Directory::open(path).map(Self)
    }

    /// Takes the lock of the one agent that may use this state. `None` if there can be no lock, for example because
    /// this user may not write there.
    ///
    /// # Errors
    /// Another agent has the lock; the message says how to end it.
    pub(crate) fn begin(&self) -> Result<Option<Locked>, String> {
        match self.0.lock_alone(AGENT) {
            Ok(Ok(lock)) => Ok(Some(lock)),
            Ok(Err(holder)) => {
                let (process, or_kill) = holder.map_or_else(Default::default, |pid| {
                    let pid = pid.as_raw_nonzero();
                    (format!(" (process {pid})"), format!(", or kill {pid}"))
                });
                Err(format!(
                    "another tiexecd{process} has its state in {}; fix: systemctl stop tiexecd{or_kill}",
                    self.0.path().shown()
                ))
            }
            Err(_no_lock) => Ok(None),
        }
    }

    /// Returns the state, and the reason if the file was set aside.
    ///
    /// # Errors
    /// The file could not be read at the moment. It stays as it is.
    pub fn load(&self) -> Result<(State, Option<String>), String> {
        self.0.load(NAME, VERSION)
    }

    /// Reads the state, and changes nothing.
    ///
    /// # Errors
    /// The file cannot be read, or its owner or mode is not safe.
    pub fn look(&self) -> Result<State, String> {
        self.0.read(NAME, VERSION)
    }

    /// Changes the state that is in the file now, and writes it. Returns the state, and the reason if it could not be
    /// written.
    ///
    /// # Errors
    /// The file could not be read at the moment. It stays as it is.
    pub fn update(
        &self,
        change: impl FnOnce(&mut State),
    ) -> Result<(State, Option<String>), String> {
        self.0.update(NAME, VERSION, |state: &mut State| {
            change(state);
            state.bound();
        })
    }

    /// Returns the stamp of the file; `None` if there is no file.
    pub fn stamp(&self) -> Option<Stamp> {
        self.0.stamp(NAME)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn crash(build_id: &str, rule: &str, uid: Option<u32>) -> Quarantined {
        let build = Build { build_id: build_id.to_owned(), text: format!("t{build_id}") };
        let (rule, exe) = (rule.to_owned(), "/x".to_owned());
        Quarantined { build, uid, namespace: None, rule, signal: 11, exe, when: 1 }
    }

    #[test]
    fn builds_switch_rules_off_and_then_all() {
        let mut state = State::default();
        state.add(crash("a", "r", None));
        state.add(crash("a", "r", None));
        assert!(!state.is_off("r") && state.quarantine.len() == 1);
        state.add(crash("b", "r", None));
        assert!(state.is_off("r") && !state.is_off("s") && !state.only_observes());
        state.add(crash("c", "s", None));
        assert!(!state.is_off("s") && state.only_observes());
        assert_eq!(state.release("b").len(), 1);
        assert!(!state.is_off("r") && !state.only_observes());
        assert!(state.release("none").is_empty());
    }

    /// An attacker chooses the owner, one of many, and the build and the path.
    fn hostile() -> impl Strategy<Value = Quarantined> {
        let letter = "[ -~\u{80}-\u{ffff}]";
        let path = (proptest::string::string_regex(letter).unwrap(), 0..4096_usize);
        let whose = (0..20_u32, proptest::option::of("[ab]{1,63}"));
        (path, whose, 0..10_000_u32, 1..32_i32).prop_map(
            |((letter, count), (uid, namespace), build, signal)| Quarantined {
                exe: letter.repeat(count),
                namespace,
                signal,
                ..crash(&build.to_string(), "r", Some(uid))
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn a_storm_of_crashes_of_many_users_pushes_nothing_of_roots_out(
            storm in proptest::collection::vec(hostile(), 700),
            roots in proptest::collection::vec(0..700_usize, 3),
        ) {
            let place = tempfile::tempdir().unwrap();
            let store = Store::open(place.path()).unwrap();
            let mut expected = BTreeSet::new();
            for (chunk, entries) in storm.chunks(175).enumerate() {
                let updated = store.update(|state| {
                    for (index, entry) in entries.iter().enumerate() {
                        state.add(entry.clone());
                        if roots.contains(&(chunk * 175 + index)) {
                            let id = format!("root{index}");
                            expected.insert(id.clone());
                            state.add(crash(&id, "r", None));
                        }
                    }
                });
                prop_assert_eq!(updated.unwrap().1, None);
                let (state, problem) = store.load().unwrap();
                prop_assert_eq!(problem, None);
                let for_all = state.quarantine.iter().filter(|one| one.uid.is_none());
                let for_all: BTreeSet<_> = for_all.map(|one| one.build.build_id.clone()).collect();
                prop_assert_eq!(&for_all, &expected);
                prop_assert!(state.quarantine.len() <= MOST_OF_USERS + expected.len());
                // The last crash counts at once, whoever has how many entries.
                let last = &entries[entries.len() - 1];
                prop_assert!(state.quarantined(&last.build, &last.whose().unwrap()).is_some());
            }
            let written = std::fs::metadata(place.path().join(NAME)).unwrap().len();
            prop_assert!(written < crate::kept::LONGEST, "{}", written);
        }
    }

    #[test]
    fn the_largest_state_can_be_read_back() {
        let mut state = State::default();
        // JSON escapes each of these, and the namespace and the rule are as long as they may be.
        let path = "\\\"".repeat(2048);
        for entry in 0..2 * (MOST_FOR_ALL + MOST_OF_USERS) {
            let uid = (entry % 2 == 0).then(|| u32::MAX - u32::try_from(entry).unwrap());
            let crash = crash(&format!("{entry:0128}"), &"r".repeat(64), uid);
            let namespace = uid.map(|_| "n".repeat(63));
            state.add(Quarantined { exe: path.clone(), namespace, ..crash });
        }
        assert_eq!(state.quarantine.len(), MOST_FOR_ALL + MOST_OF_USERS);
        let written = serde_json::to_vec_pretty(&state).unwrap().len() as u64;
        assert!(written < crate::kept::LONGEST / 2, "{written}");
    }

    #[test]
    fn a_user_cannot_fill_it_or_switch_anything_off() {
        let mut state = State::default();
        for build in 0..200 {
            state.add(crash(&build.to_string(), "r", Some(1000)));
        }
        assert_eq!(state.quarantine.len(), MOST_OF_A_USER);
        assert!(!state.is_off("r") && !state.only_observes());
        let last = crash("199", "r", None).build;
        let of =
            |uid, namespace: Option<&str>| Whose { uid, namespace: namespace.map(str::to_owned) };
        assert!(state.quarantined(&last, &of(1000, None)).is_some());
        assert!(state.quarantined(&last, &of(1001, None)).is_none());
        // The same user ID in a pod is another owner, and in a pod of another namespace a third one.
        assert!(state.quarantined(&last, &of(1000, Some("shop"))).is_none());
        state.add(Quarantined { namespace: Some("shop".to_owned()), ..crash("a", "r", Some(999)) });
        let build = crash("a", "r", None).build;
        assert!(state.quarantined(&build, &of(999, Some("shop"))).is_some());
        assert!(state.quarantined(&build, &of(999, Some("bank"))).is_none());
        assert!(state.quarantined(&build, &of(999, None)).is_none());
        assert!(!state.is_off("r"));
        // While the pod is not known, it may be one of that namespace.
        assert!(state.quarantined(&build, &of(999, Some(""))).is_some());
        assert!(state.quarantined(&build, &of(998, Some(""))).is_none());
        state.add(Quarantined { namespace: Some(String::new()), ..crash("b", "r", Some(999)) });
        let build = crash("b", "r", None).build;
        assert!(state.quarantined(&build, &of(999, Some("shop"))).is_some());
        assert!(state.quarantined(&build, &of(999, None)).is_none());
    }
}
