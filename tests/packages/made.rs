//! Both packages come from one description and contain the same files. lintian accepts the Debian package.

use std::collections::BTreeSet;
use std::path::Path;

use support::child::tool;
use support::require;

use crate::{NEEDS, VERSIONS, Version, made, make, packages, rpm_tool};

/// Returns the files that a tool lists, without directories.
fn files(argv: &[&str]) -> BTreeSet<String> {
    let output = if argv[0] == "rpm" { rpm_tool(argv) } else { tool(argv) };
    assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    // `dpkg-deb -c` shows each as `ls -l` does; `rpm -qlp` its path.
    let paths = text.lines().filter(|line| !line.ends_with('/'));
    let paths =
        paths.filter_map(|line| Some(line.rsplit_once(' ')?.1.strip_prefix('.')?.to_owned()));
    match argv[0] {
        "rpm" => text.lines().map(str::to_owned).collect(),
        _ => paths.collect(),
    }
}

#[test]
fn both_carry_the_same() {
    require!(packages().is_some(), "{NEEDS}");
    let made = packages().expect("packages");
    let deb = files(&["dpkg-deb", "-c", made.newer.deb.to_str().expect("UTF-8")]);
    let rpm = files(&["rpm", "-qlp", made.newer.rpm.to_str().expect("UTF-8")]);
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
        one.difference(other).cloned().collect::<Vec<String>>()
    };
    assert_eq!(
        only(&deb, &rpm),
        [
            "/etc/apt/apt.conf.d/80tiexec",
            "/etc/needrestart/conf.d/tiexec.conf",
            "/usr/share/doc/tiexec/changelog.Debian.gz",
            "/usr/share/doc/tiexec/copyright",
            "/usr/share/lintian/overrides/tiexec",
            "/usr/share/zsh/vendor-completions/_tiexec",
            "/usr/share/zsh/vendor-completions/_tiexecctl",
            "/usr/share/zsh/vendor-completions/_tiexecd",
        ]
    );
    assert_eq!(
        only(&rpm, &deb),
        [
            "/etc/dnf/libdnf5-plugins/actions.d/tiexec.actions",
            "/etc/dnf/plugins/post-transaction-actions.d/tiexec.action",
            "/etc/tiexec/conf.d",
            "/usr/share/licenses/tiexec/LICENSE",
            "/usr/share/zsh/site-functions/_tiexec",
            "/usr/share/zsh/site-functions/_tiexecctl",
            "/usr/share/zsh/site-functions/_tiexecd",
        ]
    );
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wanted = vec![
        "/usr/lib/systemd/system/tiexecd.service".to_owned(),
        "/usr/lib/systemd/system/tiexec@.service".to_owned(),
        "/usr/lib/systemd/user/tiexec@.service".to_owned(),
        "/usr/lib/systemd/system-preset/80-tiexec.preset".to_owned(),
        "/usr/share/doc/tiexec/apparmor.md".to_owned(),
        // The pages of `tiexecctl report` link to it.
        "/usr/share/doc/tiexec/measuring.md".to_owned(),
        "/usr/share/doc/tiexec/third-party.gz".to_owned(),
        "/usr/share/tiexec/after-upgrade".to_owned(),
    ];
    for program in ["tiexec", "tiexecctl", "tiexecd"] {
        wanted.push(format!("/usr/bin/{program}"));
        wanted.push(format!("/usr/share/bash-completion/completions/{program}"));
        wanted.push(format!("/usr/share/fish/vendor_completions.d/{program}.fish"));
    }
    // These directories also contain files of other packages.
    let names = |directory: &str| {
        let entries = std::fs::read_dir(repository.join(directory)).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
    };
    for page in names("docs/man") {
        let page = page.strip_suffix(".in").expect("a source of a page");
        let section = page.rsplit_once('.').expect("a section").1;
        // libtiexec-dev has the manual pages of functions, with the library's header.
        if section == "3" {
            continue;
        }
        wanted.push(format!("/usr/share/man/man{section}/{page}.gz"));
    }
    wanted.extend(names("monitoring").map(|name| format!("/usr/share/tiexec/{name}")));
    let missing: Vec<_> = wanted.iter().filter(|path| !deb.contains(*path)).collect();
    assert!(missing.is_empty(), "{missing:?} in {deb:?}");
}

/// Runs lintian, which also shows what it is not sure of. It may find only these tags.
pub(crate) fn assert_lintian_finds_only(tags: &[&str], packages: &[&str]) {
    let all = ["lintian", "--allow-root", "--display-info", "--pedantic", "--fail-on=none"];
    let done = tool(&[&all[..], packages].concat());
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    // A line is `I: PACKAGE: TAG …`. lintian takes some machine code for misspelt words. The lintian of Debian 13 calls an exception
    // alien whose tag only that of Debian 12 has.
    let everywhere = ["spelling-error-in-binary", "alien-tag"];
    let allowed = |line: &&str| {
        let tag = line.split(' ').nth(2).unwrap_or_default();
        line.starts_with("N: ") || everywhere.contains(&tag) || tags.contains(&tag)
    };
    let found: Vec<&str> = said.lines().filter(|line| !allowed(line)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn lintian_finds_no_fault() {
    require!(packages().is_some(), "{NEEDS}");
    let deb = packages().expect("packages").newer.deb.to_str().expect("UTF-8");
    // The programs under test are dynamic and have no symbols. Those of a release are static and have symbols. `cargo xtask
    // dist --check` runs lintian on a release, without these exceptions.
    let of_programs = [
        "undeclared-elf-prerequisites",
        "binary-has-unneeded-section",
        "hardening-no-fortify-functions",
        "unused-override",
    ];
    assert_lintian_finds_only(&of_programs, &[deb]);
}

/// A reason stands above each exception, or above the exceptions that have it in common.
#[test]
fn each_exception_has_its_reason() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/deb");
    let entries = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path());
    let files = entries.filter(|path| path.to_string_lossy().contains("/lintian-overrides"));
    let texts = files.map(|path| std::fs::read_to_string(path).expect("the exceptions"));
    let texts: Vec<String> = texts.collect();
    assert_eq!(texts.len(), 2);
    for text in texts {
        assert!(text.starts_with("# ") && !text.contains("\n\n"), "{text}");
    }
}

/// Two builds of the packages from the same programs give the same bytes.
#[test]
fn two_builds_have_one_digest() {
    require!(packages().is_some(), "{NEEDS}");
    let Version { deb, rpm, library } = &packages().expect("packages").newer;
    let again = tempfile::tempdir().expect("a directory");
    let programs = deb.with_file_name("programs");
    std::os::unix::fs::symlink(programs, again.path().join("programs")).expect("a link");
    make(VERSIONS[1], again.path());
    assert!(made(VERSIONS[1], again.path()).is_some(), "a package is missing");
    let tarball =
        deb.with_file_name(format!("tiexec-{}-{}.tar.gz", VERSIONS[1], std::env::consts::ARCH));
    for first in [deb, rpm, &tarball].into_iter().chain(library) {
        let second = again.path().join(first.file_name().expect("a name"));
        let read = |path: &Path| std::fs::read(path).expect("a package");
        assert!(read(first) == read(&second), "differs: {}", first.display());
    }
}
