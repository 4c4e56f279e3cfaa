//! The packages: their content, and the effect of installation, upgrade and removal on a machine. The tests run a real
//! systemd in its own namespaces, with Debian's dpkg, apt, rpm, dnf and needrestart.

mod debian;
mod library;
mod made;
mod needrestart;
mod rpm;
mod spec;
mod upgrades;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use support::child::{Done, eventually};
use support::systemd::Systemd;
use support::{Kind, installed, program_big};

/// The message of `require!` if [`packages`] returns none.
const NEEDS: &str = "packages: cargo build -p xtask, and what scripts/setup test installs";

/// Runs a tool of RPM. Its database is a directory of this call: else it would make one in this machine's `/var/lib/rpm`, which is
/// part of the root of each systemd.
fn rpm_tool(argv: &[&str]) -> Output {
    let database = tempfile::tempdir().expect("a directory");
    let define = format!("_dbpath {}", database.path().display());
    let (tool, rest) = argv.split_first().expect("a tool");
    support::child::tool(&[&[*tool, "--define", &define], rest].concat())
}

/// One version of both packages.
struct Version {
    deb: PathBuf,
    rpm: PathBuf,
    /// libtiexec1 and libtiexec-dev.
    library: [PathBuf; 2],
}

/// The packages of the programs under test.
struct Packages {
    older: Version,
    newer: Version,
}

/// Makes the packages, once per run; `None` if a tool is missing.
fn packages() -> Option<&'static Packages> {
    static MADE: OnceLock<Option<Packages>> = OnceLock::new();
    support::tiexecctl();
    let made = MADE.get_or_init(|| {
        let needed = ["dpkg", "apt-get", "rpm", "dnf", "lintian", "needrestart"];
        if needed.iter().any(|tool| installed(tool).is_none()) {
            return None;
        }
        let place = support::once("packages", |place| {
            let programs = place.join("programs");
            std::fs::create_dir(&programs).expect("a directory");
            for from in [support::tiexec(), support::tiexecctl(), support::tiexecd()] {
                let to = programs.join(from.file_name().expect("a name"));
                std::fs::copy(from, to).expect("a copy");
            }
            library::lay_out(&programs.join("lib"));
            VERSIONS.iter().for_each(|version| make(version, place));
        });
        // `make upgrade-test` names packages that were made from an earlier commit.
        let earlier = std::env::var_os("TIEXEC_TEST_OLDER").map(PathBuf::from);
        if earlier.is_some() {
            support::schema::run_another_version();
        }
        let older = made(VERSIONS[0], earlier.as_deref().unwrap_or(&place));
        let newer = made(VERSIONS[1], &place);
        Some(Packages { older: older?, newer: newer? })
    });
    made.as_ref()
}

/// The versions of [`Packages`].
const VERSIONS: [&str; 2] = ["0.0.1", "0.0.2-rc.1"];

/// The architecture's name, and Debian's.
fn architecture() -> (&'static str, &'static str) {
    match std::env::consts::ARCH {
        "aarch64" => ("aarch64", "arm64"),
        _ => ("x86_64", "amd64"),
    }
}

/// Makes the packages of one version below `place`.
fn make(version: &str, place: &Path) {
    let xtask = support::tiexecctl().with_file_name("xtask");
    let made = Command::new(&xtask)
        .args(["dist", "--arch", architecture().0, "--version", version, "--programs"])
        .args([place.join("programs"), place.to_owned()])
        .output();
    match made {
        Ok(made) if made.status.success() => {}
        Ok(made) => eprintln!(
            "{}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        ),
        Err(error) => eprintln!("{}: {error}", xtask.display()),
    }
}

/// The packages of one version below `place`; none if one is missing.
fn made(version: &str, place: &Path) -> Option<Version> {
    let (arch, debian) = architecture();
    // Debian and RPM sort `~rc.1` before the version itself.
    let version = version.replacen('-', "~", 1);
    let deb = place.join(format!("tiexec_{version}-1_{debian}.deb"));
    let rpm = place.join(format!("tiexec-{version}-1.{arch}.rpm"));
    let library = ["libtiexec1", "libtiexec-dev"]
        .map(|name| place.join(format!("{name}_{version}-1_{debian}.deb")));
    let are_here = [&deb, &rpm].into_iter().chain(&library).all(|package| package.is_file());
    are_here.then_some(Version { deb, rpm, library })
}

/// Copies a file into the root of the systemd. Returns its path there.
fn bring(systemd: &Systemd, file: &Path) -> String {
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    let there = format!("/srv/{name}");
    std::fs::copy(file, systemd.path(&there)).expect("a copy");
    there
}

/// Runs `dpkg`, which must succeed. The triggers of other packages, such as man-db's, are deferred.
fn dpkg(systemd: &Systemd, what: &str, package: &str) -> Done {
    let done = systemd.run(["dpkg", "--no-triggers", what, package]);
    done.assert_code(0);
    done
}

/// Runs `apt-get`, which must succeed.
fn apt(systemd: &Systemd, words: &[&str]) {
    std::fs::create_dir_all(systemd.path("/srv/lists/partial")).expect("a directory");
    let argv =
        ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=yes", "apt-get", "-y"];
    // The options exclude the lists of all of Debian, which apt would read each time.
    let options = ["-oDir::State::Lists=/srv/lists", "-oDPkg::Options::=--no-triggers"];
    systemd.run(argv.iter().chain(&options).chain(words)).assert_code(0);
}

fn write(systemd: &Systemd, path: &str, text: &str) {
    let path = systemd.path(path);
    std::fs::create_dir_all(path.parent().expect("a file")).expect("a directory inside");
    std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn read(systemd: &Systemd, path: &str) -> Option<String> {
    std::fs::read_to_string(systemd.path(path)).ok()
}

/// The program of a package that an upgrade replaces. It has 6 MiB of text.
fn app() -> PathBuf {
    program_big("hold", Kind::StaticNoPie, 6)
}

/// An administrator's work with the package. Upgrades must keep all of it.
mod admin {
    use super::*;

    pub(super) const RULE: &str = "/etc/tiexec/conf.d/10-own.toml";
    pub(super) const LINK: &str = "/etc/systemd/system/nginx.service.wants/tiexec@nginx.service";
    pub(super) const OPTIONS: &str = "/etc/systemd/system/tiexec@nginx.service.d/50-tiexec.conf";
    pub(super) const STATE: &str = "/var/lib/tiexec/state.json";
    pub(super) const STORE: &str = "/run/tiexec/images";
    const SETBACK: &str = r#"{"version":1,"quarantine":[{"build_id":"00","text":"11","uid":null,"rule":"own","signal":11,"exe":"/x","when":1}]}"#;

    /// Writes a rule and a quarantine, starts the agent, enables a service and starts it, and sets the store up.
    pub(super) fn works(systemd: &Systemd) {
        write(systemd, RULE, "[[rule]]\nname = \"own\"\nexe = \"/none\"\naction = \"attach\"\n");
        write(systemd, STATE, SETBACK);
        support::chmod(&systemd.path("/var/lib/tiexec"), 0o700);
        support::chmod(&systemd.path(STATE), 0o600);
        systemd.systemctl(["enable", "--now", "tiexecd"]).assert_code(0);
        systemd
            .ctl(["enable", "nginx", "--", "--backing=image", "--edges=aggressive"])
            .assert_code(0);
        systemd.start("nginx.service");
        becomes_huge(systemd);
        systemd.ctl(["store", "setup"]).assert_code(0);
        write(systemd, "/run/tiexec/images/kept", "");
    }

    /// Waits until the enabled service has huge text.
    pub(super) fn becomes_huge(systemd: &Systemd) {
        eventually("nginx is huge", || systemd.huge("nginx.service") > 0);
    }

    /// The present state of everything that [`works`] has made.
    pub(super) fn made(systemd: &Systemd) -> [Option<String>; 5] {
        let link = std::fs::read_link(systemd.path(LINK)).ok();
        let link = link.map(|to| to.to_string_lossy().into_owned());
        let [rule, state, options, kept] =
            [RULE, STATE, OPTIONS, "/run/tiexec/images/kept"].map(|path| read(systemd, path));
        [rule, state, options, kept, link]
    }
}
