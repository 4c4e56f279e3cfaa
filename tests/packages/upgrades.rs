//! After an upgrade of programs that rules name, the hooks of apt and dnf bring them into huge pages again. A hook
//! never makes a package manager fail, and does nothing in a chroot.

use std::path::Path;

use support::require;
use support::systemd::{self, Systemd, can_boot};

use crate::{NEEDS, app, bring, dpkg, packages, write};

const PROGRAM: &str = "/opt/app/hold";

fn rule(systemd: &Systemd) {
    let text = "[[rule]]\nname = \"app\"\nexe = \"/opt/app/*\"\naction = \"warm\"\n";
    write(systemd, "/etc/tiexec/conf.d/app.toml", text);
}

/// Makes a package of the program with `dpkg-deb`.
fn deb(systemd: &Systemd, version: &str) -> String {
    let root = format!("/srv/app-{version}");
    write(
        systemd,
        &format!("{root}/DEBIAN/control"),
        &format!(
            "Package: app\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@localhost>\nDescription: a program\n"
        ),
    );
    let program = systemd.path(&format!("{root}{PROGRAM}"));
    std::fs::create_dir_all(program.parent().expect("a file")).expect("a directory");
    support::install(&app(), &program, 0o755);
    let package = format!("{root}.deb");
    systemd
        .run(["dpkg-deb", "--root-owner-group", "--build", "-Znone", &root, &package])
        .assert_code(0);
    package
}

fn apt_install(systemd: &Systemd, package: &str) {
    crate::apt(systemd, &["install", package]);
}

/// Returns how many bytes of the program's text are in huge pages of the page cache.
fn huge(systemd: &Systemd) -> u64 {
    let done = systemd.ctl(["warm", "--check", "--json", PROGRAM]);
    let table: serde_json::Value =
        serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{e}: {done}"));
    table["files"][0]["huge_bytes"].as_u64().unwrap_or_else(|| panic!("{done}"))
}

/// The number of journal lines about the program.
fn told(systemd: &Systemd) -> usize {
    let notes = systemd.notes();
    notes.lines().filter(|line| line.starts_with(&format!("{PROGRAM}: "))).count()
}

#[test]
fn apt() {
    require!(packages().is_some() && can_boot(), "{NEEDS}; {}", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    // Without a rule nothing is warmed.
    apt_install(&systemd, &deb(&systemd, "1"));
    assert_eq!((huge(&systemd), told(&systemd)), (0, 0));
    rule(&systemd);
    apt_install(&systemd, &deb(&systemd, "2"));
    assert!(huge(&systemd) > 0, "{}", systemd.notes());
    assert_eq!(told(&systemd), 1, "{}", systemd.notes());
    // In a chroot the hook does nothing, although the chroot has the machine's /run.
    let chroot = "cd /mnt && mkdir usr etc run proc opt && for d in *; do mount --rbind /$d $d; done && \
        for l in bin lib lib64; do [ ! -L /$l ] || cp -P /$l .; done && chroot . /usr/share/tiexec/after-upgrade";
    systemd.run(["unshare", "--mount", "sh", "-c", chroot]).assert_code(0).assert_silent();
    assert_eq!(told(&systemd), 1, "{}", systemd.notes());
    // apt succeeds with the kill switch, with a mistake in a rule file, and after a removal that leaves the
    // configuration.
    write(&systemd, "/etc/tiexec/disabled", "");
    apt_install(&systemd, &deb(&systemd, "3"));
    assert_eq!(huge(&systemd), 0);
    std::fs::remove_file(systemd.path("/etc/tiexec/disabled")).expect("the switch");
    write(&systemd, "/etc/tiexec/conf.d/app.toml", "[[rule");
    apt_install(&systemd, &deb(&systemd, "4"));
    dpkg(&systemd, "--remove", "tiexec");
    assert!(systemd.path("/etc/apt/apt.conf.d/80tiexec").exists());
    apt_install(&systemd, &deb(&systemd, "5"));
    assert_eq!(told(&systemd), 1, "{}", systemd.notes());
}

/// Makes a package of the program with `rpmbuild`.
fn rpm(systemd: &Systemd, version: &str) -> String {
    let program = systemd.path("/srv/hold");
    support::install(&app(), &program, 0o755);
    let spec = format!(
        "Name: app\nVersion: {version}\nRelease: 1\nSummary: a program\nLicense: none\nBuildArch: noarch\nAutoReqProv: no\n\
         %description\nA program.\n%install\nmkdir -p %{{buildroot}}/opt/app\ncp -p /srv/hold %{{buildroot}}{PROGRAM}\n\
         %files\n%attr(755,root,root) {PROGRAM}\n"
    );
    write(systemd, "/srv/app.spec", &spec);
    let mut argv = vec!["rpmbuild", "-bb", "--quiet"];
    for define in [
        "_topdir /srv/rpm",
        "_rpmdir /srv",
        "_build_name_fmt app-%{VERSION}.rpm",
        "__os_install_post %{nil}",
        "_binary_payload w.ufdio",
        "_binaries_in_noarch_packages_terminate_build 0",
    ] {
        argv.extend(["--define", define]);
    }
    argv.push("/srv/app.spec");
    systemd.run(&argv).assert_code(0);
    format!("/srv/app-{version}.rpm")
}

#[test]
fn dnf() {
    require!(packages().is_some() && can_boot(), "{NEEDS}; {}", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    // The plugin of Debian 12 uses a name that SWIG 4.1, with which Debian has built libdnf, does not generate any
    // more.
    let mend = "import libdnf.conf\nlibdnf.conf.ConfigParser_substitute = libdnf.conf.ConfigParser.substitute\n";
    write(&systemd, "/srv/python/sitecustomize.py", mend);
    let dnf_install = |package: &str| {
        let argv = ["env", "PYTHONPATH=/srv/python", "dnf", "--assumeyes", "--disablerepo=*"];
        let more = ["--disableplugin=local", "--nogpgcheck", "install", package];
        let done = systemd.run(argv.iter().chain(&more));
        done.assert_code(0);
        assert!(!done.err().contains("Traceback"), "{done}");
    };
    dnf_install(&bring(&systemd, &packages().expect("packages").newer.rpm));
    rule(&systemd);
    for (count, version) in [(1, "1"), (2, "2")] {
        dnf_install(&rpm(&systemd, version));
        assert!(huge(&systemd) > 0, "{}", systemd.notes());
        assert_eq!(told(&systemd), count, "{}", systemd.notes());
    }
}

/// dnf5 is not in Debian 12. dnf5 splits the command at spaces without a backslash (libdnf5-actions(8)), and interprets
/// each line of output as a setting.
#[test]
fn the_command_of_dnf5() {
    require!(packages().is_some() && can_boot(), "{NEEDS}; {}", systemd::NEEDS);
    let systemd = Systemd::boot_for_packages();
    dpkg(&systemd, "--install", &bring(&systemd, &packages().expect("packages").newer.deb));
    rule(&systemd);
    let program = systemd.path(PROGRAM);
    std::fs::create_dir_all(program.parent().expect("a file")).expect("a directory");
    support::install(&app(), &program, 0o755);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/dnf5.actions");
    let text = std::fs::read_to_string(path).expect("the actions");
    let line = text.lines().find(|line| !line.starts_with('#')).expect("an action");
    let fields: Vec<&str> = line.splitn(5, ':').collect();
    assert_eq!(fields[..4], ["post_transaction", "", "", "enabled=host-only"]);
    let command = fields[4].replace("\\ ", "\0");
    let words = command.split(' ').map(|word| word.replace('\0', " "));
    let done = systemd.run(words);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "");
    assert!(huge(&systemd) > 0, "{}", systemd.notes());
}
