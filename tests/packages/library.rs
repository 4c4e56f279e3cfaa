//! Debian's packages of libtiexec: programs can be built with them, dynamic and static, the library can be preloaded,
//! and nothing is left after a purge.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::attaching::collapses;
use support::child::tool;
use support::systemd::{self, Systemd, can_boot};
use support::{Kind, installed, program_big, require};

use crate::{NEEDS, bring, dpkg, made, packages, write};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

/// Installs the library under test into a directory as `cargo xtask dist` does.
pub(crate) fn lay_out(at: &Path) {
    let own = std::env::current_exe().expect("/proc is mounted");
    let made = Command::new(root().join("scripts/libtiexec"))
        .env("STRIP", "yes")
        .env("LIBDIR", format!("${{prefix}}/lib/{}-linux-gnu", std::env::consts::ARCH))
        .args([&own.with_file_name(""), at])
        .arg("/usr")
        .output()
        .expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The files of both packages.
pub(crate) fn files() -> Vec<String> {
    let library = &packages().expect("packages").newer.library;
    let lists = library.each_ref().map(|package| {
        let done = tool(&["dpkg-deb", "-c", package.to_str().expect("UTF-8")]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("names")
    });
    let lines = lists.iter().flat_map(|list| list.lines()).filter(|line| !line.ends_with('/'));
    // The lines are like those of `ls -l`, where the target of a symbolic link comes last.
    let paths = lines.filter_map(|line| line.split_once(" ./")?.1.split(" -> ").next());
    paths.map(|path| format!("/{path}")).collect()
}

#[test]
fn they_carry_what_programs_need() {
    require!(packages().is_some(), "{NEEDS}");
    let lib = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let files = files();
    for wanted in [
        format!("{lib}/libtiexec.so.1"),
        format!("{lib}/libtiexec.so"),
        format!("{lib}/libtiexec.a"),
        format!("{lib}/pkgconfig/tiexec.pc"),
        "/usr/include/tiexec.h".to_owned(),
        "/usr/share/man/man3/tiexec_self.3.gz".to_owned(),
        "/usr/share/doc/libtiexec1/third-party.gz".to_owned(),
    ] {
        assert!(files.contains(&wanted), "{wanted}: {files:?}");
    }
    // This file gives packages of programs with the library their dependency on it.
    let package = packages().expect("packages").newer.library[0].to_str().expect("UTF-8");
    let shlibs = tool(&["dpkg-deb", "-I", package, "shlibs"]);
    assert_eq!(String::from_utf8_lossy(&shlibs.stdout), "libtiexec 1 libtiexec1 (>= 0.0.2~rc.1)\n");
}

#[test]
fn lintian_finds_no_fault() {
    require!(packages().is_some(), "{NEEDS}");
    let both = &packages().expect("packages").newer.library;
    let [library, development] = both.each_ref().map(|package| package.to_str().expect("UTF-8"));
    // Rust calls none of the functions that glibc could check. The file `shlibs` says which version a program needs.
    let tags = ["hardening-no-fortify-functions", "no-symbols-control-file"];
    made::assert_lintian_finds_only(&tags, &[library, development]);
}

#[test]
fn installed_used_and_purged() {
    require!(packages().is_some() && can_boot(), "{NEEDS}; {}", systemd::NEEDS);
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    require!(installed("pkg-config").is_some(), "no pkg-config");
    let systemd = Systemd::boot_for_packages();
    let [library, development] = &packages().expect("packages").newer.library;
    let (library, development) = (bring(&systemd, library), bring(&systemd, development));
    // The other directories that these packages write to.
    let over = "for d in usr/include usr/lib/*-linux-gnu; do mkdir -p /run/upper/$d /run/work/$d; \
        mount -t overlay -o lowerdir=/$d,upperdir=/run/upper/$d,workdir=/run/work/$d none /$d; done";
    systemd.run(["sh", "-ec", over]).assert_code(0);
    systemd.run(["dpkg", "--no-triggers", "--install", &library, &development]).assert_code(0);
    let libdir = systemd.run(["pkg-config", "--variable=libdir", "tiexec"]);
    let wanted = format!("/usr/lib/{}-linux-gnu\n", std::env::consts::ARCH);
    assert_eq!(libdir.assert_code(0).out(), wanted);
    let source = std::fs::read_to_string(root().join("crates/self/examples/huge.c"));
    write(&systemd, "/srv/huge.c", &source.expect("an example"));
    for (name, compile) in [
        ("dynamic", "cc -o dynamic huge.c $(pkg-config --cflags --libs tiexec)"),
        ("static", "cc -static -o static huge.c $(pkg-config --static --cflags --libs tiexec)"),
    ] {
        systemd.run(["sh", "-ec", &format!("cd /srv; {compile}")]).assert_code(0).assert_silent();
        let done = systemd.run([format!("/srv/{name}")]);
        assert!(done.assert_code(0).assert_silent().out().ends_with("text are on huge pages\n"));
    }
    let hold = program_big("hold", Kind::DynamicPie, 6);
    support::install(&hold, &systemd.path("/srv/hold"), 0o755);
    let settings = "TIEXEC=verbose,deadline=1m,backing=image";
    let done = systemd.run(["env", "LD_PRELOAD=libtiexec.so.1", settings, "/srv/hold", "7"]);
    assert!(done.assert_code(7).err().contains("text on huge pages"), "{done}");
    dpkg(&systemd, "--purge", "libtiexec-dev");
    // The program runs without the development files. Without the library it does not start.
    systemd.run(["/srv/dynamic"]).assert_code(0);
    dpkg(&systemd, "--purge", "libtiexec1");
    systemd.run(["/srv/dynamic"]).assert_code(127);
    systemd.run(["/srv/static"]).assert_code(0);
    for file in files() {
        assert!(systemd.path(&file).symlink_metadata().is_err(), "{file}");
    }
}
