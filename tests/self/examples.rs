//! The examples in several languages. The test builds each by the command in its first line, and runs it.

use std::path::Path;
use std::process::Command;

use support::attaching::collapses;
use support::child::tool;
use support::{Run, installed, require};

use super::library::{describe, directory, root};

fn examples() -> std::path::PathBuf {
    root().join("crates/self/examples")
}

/// Builds in a directory with the library's description for pkg-config.
fn build(command: &str, at: &Path) {
    describe(at);
    let built = Command::new("sh")
        .args(["-ec", command])
        .current_dir(at)
        .env("PKG_CONFIG_PATH", at)
        .env("GOFLAGS", "-mod=mod")
        .env("HOME", at)
        .output()
        .expect("a shell");
    assert!(built.status.success(), "{command}: {}", String::from_utf8_lossy(&built.stderr));
}

/// Asserts that the example reports how much of its text is huge.
fn runs(run: &Run) {
    let done = run.plain().env("LD_LIBRARY_PATH", directory()).output();
    done.assert_code(0).assert_silent();
    let out = done.out();
    let mut words = out.split(' ');
    let mut number = || words.find_map(|word| word.parse::<u64>().ok()).expect("a number");
    let (huge, text) = (number(), number());
    assert!(huge <= text && text > 500, "{out}");
}

/// `flags` are for the compiler, and for pkg-config.
fn compiled(compiler: &str, source: &str, flags: [&str; 2]) {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(installed(compiler).is_some(), "no {compiler}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(examples().join(source), dir.path().join(source)).expect("it is there");
    // The commands are those in the first line of the example.
    let [own, described] = flags;
    build(
        &format!(
            "{compiler} {own} -Wall -Wextra -Werror {source} $(pkg-config {described} --cflags --libs tiexec)"
        ),
        dir.path(),
    );
    let program = dir.path().join("a.out");
    let needed = tool(&["readelf", "-d", program.to_str().expect("UTF-8")]);
    let is_dynamic = String::from_utf8_lossy(&needed.stdout).contains("[libtiexec.so.1]");
    assert_eq!(is_dynamic, own.is_empty());
    runs(&Run::new(program, [""; 0]));
}

#[test]
fn c() {
    compiled("cc", "huge.c", ["", ""]);
}

#[test]
fn c_static() {
    compiled("cc", "huge.c", ["-static", "--static"]);
}

#[test]
fn cxx() {
    compiled("c++", "huge.cc", ["", ""]);
}

#[test]
fn go() {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(installed("go").is_some(), "no go");
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["go.mod", "main.go"] {
        std::fs::copy(examples().join("go").join(name), dir.path().join(name)).expect("there");
    }
    let go = installed("go").expect("just looked");
    let cache = support::files().canonicalize().expect("it is there").join("go-cache");
    build(&format!("GOCACHE='{}' '{}' build -o huge .", cache.display(), go.display()), dir.path());
    runs(&Run::new(dir.path().join("huge"), [""; 0]));
}

#[test]
fn python() {
    require!(
        collapses() && Path::new("/usr/bin/python3").exists(),
        "no MADV_COLLAPSE or no python3"
    );
    runs(&Run::new("/usr/bin/python3", [examples().join("huge.py")]));
}

/// An addon, built with node's own headers.
#[test]
fn node() {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(installed("node").is_some(), "no node");
    let headers = ["/usr/include/node", "/usr/local/include/node", "/usr/include/nodejs/src"];
    let headers = headers.into_iter().find(|dir| Path::new(dir).join("node_api.h").exists());
    require!(headers.is_some(), "no headers of node");
    let headers = headers.expect("just looked");
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["huge.c", "huge.js"] {
        std::fs::copy(examples().join("node").join(name), dir.path().join(name)).expect("there");
    }
    build(
        &format!(
            "cc -Wall -Wextra -Werror -shared -fPIC -o huge.node huge.c -I{headers} $(pkg-config --cflags --libs tiexec)"
        ),
        dir.path(),
    );
    runs(&Run::new(installed("node").expect("just looked"), [dir.path().join("huge.js")]));
}
