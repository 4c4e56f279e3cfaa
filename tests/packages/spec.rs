//! Fedora's source package (`packaging/rpm/tiexec.spec`) has the files of the packages that nfpm makes, and their hooks.

use std::collections::BTreeSet;

use support::{installed, require};

use crate::{NEEDS, library, packages, rpm_tool};

/// Macros of Fedora that Debian's rpm lacks, and their values.
const MACROS: [(&str, &str); 7] = [
    ("_libdir", "/usr/lib64"),
    ("_presetdir", "/usr/lib/systemd/system-preset"),
    ("_unitdir", "/usr/lib/systemd/system"),
    ("_userunitdir", "/usr/lib/systemd/user"),
    ("bash_completions_dir", "/usr/share/bash-completion/completions"),
    ("fish_completions_dir", "/usr/share/fish/vendor_completions.d"),
    ("zsh_completions_dir", "/usr/share/zsh/site-functions"),
];

/// The source package, with its macros expanded.
fn spec() -> String {
    let defined = MACROS.map(|(name, value)| format!("{name} {value}"));
    let mut argv = vec!["rpmspec", "--parse"];
    argv.extend(defined.iter().flat_map(|one| ["--define", one]));
    let file = library::root().join("packaging/rpm/tiexec.spec");
    argv.push(file.to_str().expect("UTF-8"));
    let done = rpm_tool(&argv);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("UTF-8")
}

/// The files of one of its packages. Directories count only if the package owns them.
fn files(spec: &str, package: &str) -> BTreeSet<String> {
    let head =
        if package == "tiexec" { "%files".to_owned() } else { format!("%files -n {package}") };
    let below = spec.lines().skip_while(|line| *line != head).skip(1);
    let lines = below.take_while(|line| !line.starts_with("%files") && *line != "%changelog");
    let mut files = BTreeSet::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (directive, rest) = line.split_once(' ').unwrap_or(("", line));
        let below = |directory: &str| {
            let names = rest.split(' ').map(|path| path.rsplit('/').next().expect("a name"));
            names.map(|name| format!("/usr/share/{directory}/{package}/{name}")).collect()
        };
        let here: Vec<String> = match directive {
            "%license" => below("licenses"),
            "%doc" => below("doc"),
            "" | "%dir" | "%config(noreplace)" => vec![rest.to_owned()],
            _ => panic!("{line}"),
        };
        // rpm compresses manual pages, by gzip unless a distribution chooses something else.
        files.extend(
            here.iter().map(|path| {
                path.strip_suffix('*').map_or(path.clone(), |page| format!("{page}.gz"))
            }),
        );
    }
    assert!(!files.is_empty() && files.iter().all(|path| path.starts_with('/')), "{files:?}");
    files
}

fn only(one: &BTreeSet<String>, other: &BTreeSet<String>) -> Vec<String> {
    one.difference(other).cloned().collect()
}

#[test]
fn it_has_the_files_of_the_rpm() {
    require!(packages().is_some(), "{NEEDS}");
    require!(installed("rpmspec").is_some(), "no rpmspec");
    let here = files(&spec(), "tiexec");
    let rpm = packages().expect("packages").newer.rpm.to_str().expect("UTF-8");
    let made = rpm_tool(&["rpm", "-qlp", rpm]);
    let made = String::from_utf8(made.stdout).expect("UTF-8").lines().map(str::to_owned).collect();
    assert_eq!(
        only(&here, &made),
        [
            // A package of Fedora owns its directories.
            "/etc/dnf/libdnf5-plugins",
            "/etc/dnf/libdnf5-plugins/actions.d",
            "/etc/dnf/plugins",
            "/etc/dnf/plugins/post-transaction-actions.d",
            "/etc/tiexec",
            "/usr/share/doc/tiexec/CHANGELOG.md",
            "/usr/share/licenses/tiexec/LICENSE.dependencies",
            "/usr/share/licenses/tiexec/cargo-vendor.txt",
            "/usr/share/tiexec",
        ]
    );
    assert_eq!(
        only(&made, &here),
        [
            // Fedora's presets disable services that they do not name.
            "/usr/lib/systemd/system-preset/80-tiexec.preset",
            // These have other names above.
            "/usr/share/doc/tiexec/changelog.gz",
            "/usr/share/doc/tiexec/third-party.gz",
        ]
    );
}

#[test]
fn it_has_the_files_of_the_library() {
    require!(packages().is_some(), "{NEEDS}");
    require!(installed("rpmspec").is_some(), "no rpmspec");
    let spec = spec();
    let names = ["libtiexec", "libtiexec-devel", "libtiexec-static"];
    let here = names.into_iter().flat_map(|name| files(&spec, name)).collect();
    // Each distribution has its own places for these.
    let apart = ["/usr/share/doc/", "/usr/share/licenses/", "/usr/share/lintian/"];
    let multiarch = format!("/usr/lib/{}-linux-gnu/", std::env::consts::ARCH);
    let debian = library::files().into_iter().map(|path| path.replace(&multiarch, "/usr/lib64/"));
    let [here, debian] = [here, debian.collect()].map(|files: Vec<String>| {
        let shared = |path: &String| !apart.iter().any(|directory| path.starts_with(directory));
        files.into_iter().filter(shared).collect::<BTreeSet<_>>()
    });
    assert_eq!(here, debian);
}

/// The lines by which the hooks run TiExec are those of the RPM.
#[test]
fn it_has_the_hooks_of_the_rpm() {
    require!(installed("rpmspec").is_some(), "no rpmspec");
    let spec = spec();
    for hook in ["post", "preun"] {
        let path = library::root().join("packaging/rpm").join(hook);
        let text = std::fs::read_to_string(path).expect("a hook");
        let head = format!("%{hook}");
        let ours = spec.lines().skip_while(|line| *line != head).skip(1);
        let ours: Vec<&str> =
            ours.take_while(|line| !line.starts_with("%p")).map(str::trim).collect();
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| line.starts_with("tiexec")).collect();
        assert!(!lines.is_empty(), "{text}");
        for line in lines {
            assert!(ours.contains(&line), "%{hook} has no `{line}`: {ours:?}");
        }
    }
}
