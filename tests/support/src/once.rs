//! What all tests of one run share, and what takes long to make. Under nextest each test is a process of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A word that no other run of the tests has: nextest's, or else this process's own.
fn run() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.expect("the clock is past 1970").as_nanos();
            format!("{}-{now}", std::process::id())
        })
    })
}

/// Returns a directory below the tests' files, which `make` has filled once in this run. The first test to ask for it
/// makes it anew, so that nothing in it is older than the programs under test. The other tests wait for a file lock;
/// `make` must not wait for them in turn, and so starts no [`Held`](super::Held).
pub fn once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let place = super::files().canonicalize().expect("it is there").join(name);
    let lock = File::create(place.with_extension("lock")).expect("the lock file");
    lock.lock().expect("flock");
    let stamp = place.with_extension("run");
    if std::fs::read_to_string(&stamp).is_ok_and(|made_by| made_by == run()) {
        return place;
    }
    let _from_before = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).expect("a directory");
    make(&place);
    std::fs::write(&stamp, run()).expect("a file");
    place
}
