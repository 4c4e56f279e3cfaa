//! In a container of podman, with its seccomp profile and without CAP_SYS_PTRACE, the start is followed too: across `sh
//! -c`, to another user, and into a library that is loaded later.

use std::ffi::OsStr;
use std::path::Path;

use support::podman::{Container, NEEDS, is_there};
use support::smaps::status_field;
use support::{Kind, busy_java, program, require, tiexec};

use crate::{NODE, becomes_huge};

/// Starts a container whose first process is `tiexec COMMAND…`. `mounts` are directories that it sees at the same paths.
fn start(mounts: &[&Path], command: &[&str]) -> Container {
    let binaries = tiexec().parent().expect("a directory");
    let programs = program("hold", Kind::DynamicPie);
    let programs = programs.parent().expect("a directory");
    let mounts: Vec<&Path> = [binaries, programs].iter().chain(mounts).copied().collect();
    let words: Vec<&OsStr> =
        [tiexec().as_os_str()].into_iter().chain(command.iter().map(OsStr::new)).collect();
    Container::start(&mounts, &[], &words)
}

fn user(container: &Container) -> Option<String> {
    let ids = status_field(container.pid, "Uid")?;
    ids.split_whitespace().next().map(str::to_owned)
}

#[test]
fn node_behind_a_shell() {
    require!(is_there(), "{NEEDS}");
    let container = start(&[], &["sh", "-c", &format!("exec node -e '{NODE}'")]);
    becomes_huge(&container, "node", 8 << 20);
    assert_eq!(user(&container).as_deref(), Some("0"));
}

/// Like the entry script of a database's image, the script runs first as root and then executes itself as the user.
#[test]
fn an_entry_script_that_changes_its_user() {
    require!(is_there(), "{NEEDS}");
    let dir = tempfile::tempdir().expect("a directory");
    let entry = dir.path().join("entry");
    let script = "#!/bin/bash\n[ $(id -u) != 0 ] || exec gosu nobody \"$0\" \"$@\"\nexec \"$@\"\n";
    std::fs::write(&entry, script).expect("a script");
    for path in [dir.path(), &entry] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let entry = entry.to_string_lossy().into_owned();
    let container = start(&[dir.path()], &[&entry, "node", "-e", NODE]);
    becomes_huge(&container, "node", 8 << 20);
    assert_eq!(user(&container).as_deref(), Some("65534"));
}

/// The process that works on another user's program runs as that user, but the user's processes cannot read anything
/// from it.
#[test]
fn the_user_learns_nothing_from_who_works_on_it() {
    require!(is_there(), "{NEEDS}");
    let look = r#"
        const fs = require("fs");
        let seen = 0;
        const end = Date.now() + 8000;
        while (Date.now() < end) {
            for (const pid of fs.readdirSync("/proc").filter(name => /^\d+$/.test(name))) {
                try {
                    if (!fs.readFileSync(`/proc/${pid}/comm`, "utf8").startsWith("tiexec")) continue;
                    seen++;
                } catch { continue; }
                // A process that is about to end has files to open, with nothing in them.
                for (const file of ["mem", "environ", "maps", "auxv"]) {
                    try { if (fs.readFileSync(`/proc/${pid}/${file}`).length > 0) process.exit(3); } catch {}
                }
                try { if (fs.readdirSync(`/proc/${pid}/fd`).length > 0) process.exit(4); } catch {}
            }
        }
        process.exit(seen > 0 ? 7 : 5);"#;
    let mut container = start(&[], &["gosu", "nobody", "node", "-e", look]);
    let ended = container.podman.wait().expect("podman");
    assert_eq!(ended.code(), Some(7), "3: its memory, 4: its descriptors, 5: nobody was there");
}

#[test]
fn a_library_that_java_loads() {
    require!(is_there(), "{NEEDS}");
    let java = busy_java();
    require!(java.is_some(), "no java with a compiler");
    let (java, classes) = java.expect("just looked");
    let (java, class_path) = (java.to_string_lossy(), classes.path().to_string_lossy());
    let container = start(&[classes.path()], &[&java, "-cp", &class_path, "Busy"]);
    becomes_huge(&container, "libjvm.so", 8 << 20);
}
