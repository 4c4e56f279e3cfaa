//! `tiexecctl store list`: the images, their users, and whether they still match their original files.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};
use tiexec_core::addr::mib;
use tiexec_core::escape::{self, AsShown};
use tiexec_remap::store::directory::Directory;
use tiexec_remap::store::state::{Entry, State, entries};
use tiexec_remap::store::users::Users;

use super::{all, cannot, print};
use crate::ctl::date::ago;

/// One image, as JSON shows it.
#[derive(Serialize)]
struct Listed<'a> {
    store: &'a Path,
    name: &'a str,
    original: Option<&'a str>,
    bytes: u64,
    /// `None` unless this user is root, because other users see only their own processes.
    users: Option<u64>,
    last_used: i64,
    built: Option<u64>,
    state: State,
}

pub(super) fn run(json: bool) -> u8 {
    let doing = "list the image store";
    let directories = match all(doing) {
        Ok(directories) => directories,
        Err(status) => return status,
    };
    let users = Users::scan();
    let root = rustix::process::geteuid().is_root();
    let mut found: Vec<(&Directory, Entry)> = Vec::new();
    for directory in &directories {
        match entries(directory, &users) {
            Ok(entries) => found.extend(entries.into_iter().map(|entry| (directory, entry))),
            Err(failure) => return cannot(doing, &failure),
        }
    }
    let listed: Vec<Listed<'_>> = found
        .iter()
        .map(|(directory, entry)| Listed {
            store: &directory.path,
            name: &entry.name,
            original: entry.sidecar.as_ref().map(|sidecar| sidecar.original.as_str()),
            bytes: entry.bytes,
            users: root.then_some(entry.users),
            last_used: entry.last_used.0,
            built: entry.sidecar.as_ref().map(|sidecar| sidecar.built),
            state: entry.state,
        })
        .collect();
    if json {
        return print(&as_json("store_list", &[("images", &listed)]));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    print(&as_text(&listed, i64::try_from(now.as_secs()).unwrap_or(i64::MAX)))
}

fn as_text(listed: &[Listed<'_>], now: i64) -> String {
    let original = |image: &Listed<'_>| image.original.unwrap_or(image.name).shown().to_string();
    let width = listed.iter().map(|image| original(image).chars().count()).max().unwrap_or(0);
    let width = width.max("ORIGINAL".len());
    let mut text = format!(
        "{:<width$}  {:>7}  {:>5}  {:>9}  STATE\n",
        "ORIGINAL", "SIZE", "USERS", "LAST USED"
    );
    for image in listed {
        let users = image.users.map_or("-".to_owned(), |users| users.to_string());
        let _infallible = writeln!(
            text,
            "{:<width$}  {:>7}  {users:>5}  {:>9}  {}",
            original(image),
            mib(image.bytes),
            ago(now.saturating_sub(image.last_used)),
            image.state
        );
    }
    text
}

/// One JSON object on one line: schema, kind, and these members.
pub(super) fn as_json<T: Serialize>(kind: &str, members: &[(&str, &Vec<T>)]) -> String {
    let mut object = Map::new();
    object.insert("schema".into(), tiexec_core::report::SCHEMA.into());
    object.insert("kind".into(), kind.into());
    for (name, member) in members {
        let value = serde_json::to_value(member).unwrap_or(Value::Null);
        object.insert((*name).into(), value);
    }
    escape::json(&Value::Object(object)) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_says_what_is_not_known() {
        let image = |original, users, state| Listed {
            store: Path::new("/run/tiexec/images"),
            name: "node-0.tiexec",
            original,
            bytes: 52 << 20,
            users,
            last_used: 1000,
            built: None,
            state,
        };
        let text = as_text(
            &[image(Some("/usr/bin/node"), Some(3), State::Ok), image(None, None, State::Damaged)],
            1000 + 7200,
        );
        assert_eq!(
            text,
            "ORIGINAL          SIZE  USERS  LAST USED  STATE\n\
             /usr/bin/node     52.0      3        2 h  ok\n\
             node-0.tiexec     52.0      -        2 h  damaged\n"
        );
    }
}
