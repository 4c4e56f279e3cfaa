//! Programs of other projects with our patches from contrib: the test patches, builds and runs Debian's source.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::attaching::{collapses, switched};
use support::child::eventually;
use support::{Held, Run, installed, require};

use super::library::{describe, directory, root};

/// The source that `scripts/setup test` has fetched.
fn source() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = of("TIEXEC_VM_CACHE")
        .or_else(|| Some(of("XDG_CACHE_HOME")?.join("tiexec-vm")))
        .or_else(|| Some(of("HOME")?.join(".cache/tiexec-vm")))?;
    Some(cache.join("redis-bookworm")).filter(|dir| dir.join("src/server.c").exists())
}

fn sh(command: &str, at: &Path) {
    let done = Command::new("sh").args(["-ec", command]).current_dir(at).output().expect("a shell");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command}: {said}");
}

/// Builds a copy of the source with the patch. Returns the directory with the programs, which is kept until the patch
/// changes.
fn built(source: &Path) -> PathBuf {
    let place = support::files().canonicalize().expect("it is there").join("redis");
    let patch = root().join("contrib/redis/huge-text.patch");
    let text = std::fs::read_to_string(&patch).expect("it is there");
    let marker = place.join("patch");
    if std::fs::read_to_string(&marker).ok().as_ref() != Some(&text) {
        let _from_before = std::fs::remove_dir_all(&place);
        sh(&format!("cp -a '{}' '{}'", source.display(), place.display()), Path::new("/"));
        sh(&format!("patch --fuzz=0 -p1 <'{}'", patch.display()), &place);
        std::fs::write(&marker, text).expect("a file");
    }
    describe(&place);
    // The build is not optimised and has no debug information, because the test is only about the place of the text.
    let make = "PKG_CONFIG_PATH=$PWD make -C src -j2 MALLOC=libc USE_SYSTEMD=no USE_TIEXEC=yes OPTIMIZATION=-O0 DEBUG= redis-server redis-cli";
    sh(make, &place);
    place.join("src")
}

/// Starts the server on a socket in this directory, and waits until it accepts connections.
fn server(programs: &Path, dir: &Path, settings: &str) -> Held {
    let args = ["--port", "0", "--unixsocket", "socket", "--save", "", "--logfile", "", "--dir"];
    let run = Run::new(programs.join("redis-server"), args).with_arg(dir).plain();
    let mut server = run.env("LD_LIBRARY_PATH", directory()).env("TIEXEC", settings).start();
    while !server.out_text().contains("eady to accept connections") {
        server.wait_more();
    }
    server
}

fn ask(programs: &Path, dir: &Path, words: &[&str]) -> String {
    let socket = dir.join("socket");
    let args = ["-s", socket.to_str().expect("UTF-8")];
    Run::new(programs.join("redis-cli"), args.iter().chain(words)).plain().output().out()
}

#[test]
fn redis() {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(source().is_some(), "no source of redis (scripts/setup test)");
    let programs = built(&source().expect("just looked"));
    for (settings, is_huge) in [("", true), ("off", false)] {
        let dir = tempfile::tempdir().expect("a directory");
        let server = server(&programs, dir.path(), settings);
        let said =
            if is_huge { "Text on huge pages: " } else { "Text stays on base pages: disabled" };
        assert!(server.out_text().contains(said), "{}", server.out_text());
        assert_eq!(switched(server.pid()) > 0, is_huge);
        // The server works, also in a child that it forks afterwards.
        let ask = |words: &[&str]| ask(&programs, dir.path(), words);
        let script = "for i = 1, 1000 do redis.call('set', i, string.rep('x', i)) end return redis.call('dbsize')";
        assert_eq!(ask(&["eval", script, "0"]).trim(), "1000");
        assert!(ask(&["bgsave"]).contains("started"));
        eventually("the child has saved", || {
            ask(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0")
        });
        assert!(ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
        assert!(dir.path().join("dump.rdb").exists());
        ask(&["shutdown", "nosave"]);
        server.finish().assert_code(0);
    }
}
