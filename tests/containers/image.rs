//! Each build of the project's image gives the same digest, and an init container of the image installs its programs
//! for another container.

use std::path::Path;
use std::process::{Command, Stdio};

use support::podman::{Container, NEEDS, Podman, is_there};
use support::{require, tiexec, tiexecctl, tiexecd};

use crate::{NODE, becomes_huge};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/container/Containerfile");

/// Builds the image as `make image` does, from the programs under test.
#[test]
fn two_builds_have_one_digest() {
    require!(is_there(), "{NEEDS}");
    let context = tempfile::tempdir().expect("a directory");
    for program in [tiexec(), tiexecctl(), tiexecd()] {
        let to = context.path().join(program.file_name().expect("a name"));
        std::fs::copy(program, to).expect("a copy");
    }
    // `cargo xtask context` puts a list of crates there.
    std::fs::write(context.path().join("tiexec.cdx.json"), "{}\n").expect("a list");
    let ids = [0, 1].map(|_| {
        let podman = Podman::new();
        let mut build = podman.command();
        build.args(["build", "--quiet", "--timestamp=0", "--isolation=chroot", "--file", FILE]);
        let built = build.arg(context.path()).stderr(Stdio::inherit()).output().expect("podman");
        assert!(built.status.success(), "{built:?}");
        String::from_utf8(built.stdout).expect("UTF-8").trim().to_owned()
    });
    assert_eq!(ids[0].len(), 64, "{ids:?}");
    assert_eq!(ids[0], ids[1]);
}

/// An init container copies the programs to a volume of the pod.
#[test]
fn an_init_container_hands_the_programs_over() {
    require!(is_there(), "{NEEDS}");
    let volume = tempfile::tempdir().expect("a directory");
    let binaries = tiexec().parent().expect("a directory");
    let place = volume.path().join("tools");
    let podman = Podman::new();
    let mut run = podman.run(
        &[binaries, volume.path()],
        &["--read-only", "--read-only-tmpfs=false", "--cap-drop=all"],
    );
    let done = run.arg(tiexecctl()).arg("install-to").arg(&place).output().expect("podman");
    assert!(done.status.success(), "{done:?}");
    for name in ["tiexec", "tiexecctl"] {
        assert!(place.join(name).exists(), "{name}");
    }
    let program = place.join("tiexec");
    let words = [program.as_os_str(), "node".as_ref(), "-e".as_ref(), NODE.as_ref()];
    let container = Container::start(&[volume.path()], &["--user=nobody"], &words);
    becomes_huge(&container, "node", 8 << 20);
}

/// A program that runs from the volume continues, and the next start runs the new file.
#[test]
fn a_program_that_runs_is_replaced() {
    let volume = tempfile::tempdir().expect("a directory");
    let install = |from: &Path| {
        let done = Command::new(from).arg("install-to").arg(volume.path()).status();
        assert!(done.expect("it starts").success());
    };
    install(tiexecctl());
    let first = volume.path().join("tiexec");
    let held = support::Run::new(&first, ["sleep", "1000"]).plain().start();
    support::child::eventually("it has become its program", || {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", held.pid()));
        comm.is_ok_and(|comm| comm == "sleep\n")
    });
    // An installed copy can also install, even over its own files.
    install(&volume.path().join("tiexecctl"));
    assert_eq!(std::fs::read_dir(volume.path()).expect("a directory").count(), 2);
    let missing = Command::new(tiexecctl()).args(["install-to", "/proc/tiexec-none"]).output();
    let missing = missing.expect("it starts");
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.starts_with("tiexecctl: cannot create /proc/tiexec-none: "), "{said}");
}
