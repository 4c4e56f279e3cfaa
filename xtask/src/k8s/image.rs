//! The images: the project's own image as from `make image`, and an image with programs of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::context::lay_out;
use crate::repository;
use crate::vm::{Arch, run};

/// The programs of this machine that pods run.
const PROGRAMS: [&str; 7] = [
    "/usr/sbin/mariadbd",
    "/usr/bin/mariadb",
    "/bin/sh",
    "/usr/bin/sleep",
    "/usr/bin/cat",
    "/usr/bin/ls",
    "/usr/bin/node",
];
/// Programs of `tests/programs` to compile: the source, the megabytes of text, and the name. Programs of different
/// sizes are different builds.
const COMPILED: [(&str, u32, &str); 6] = [
    ("hold", 6, "hold"),
    ("hostile/robs", 6, "robs"),
    ("hostile/spins", 6, "spins"),
    ("crasher", 6, "crasher6"),
    ("crasher", 7, "crasher7"),
    ("crasher", 8, "crasher8"),
];

/// Writes the project's image, with the static programs in a directory.
pub(super) fn own(programs: &Path, work: &Path) -> Result<()> {
    let context = work.join("context");
    lay_out(Arch::of_this_machine(), programs, &context)?;
    let podman = || {
        let mut podman = Command::new("podman");
        for (option, name) in [("--root", "podman/root"), ("--runroot", "podman/run")] {
            podman.arg(option).arg(work.join(name));
        }
        podman.args(["--cgroup-manager=cgroupfs", "--events-backend=none"]).stdout(Stdio::null());
        podman
    };
    let file = repository()?.join("deploy/container/Containerfile");
    let mut build = podman();
    build.args([
        "build",
        "--quiet",
        "--timestamp=0",
        "--isolation=chroot",
        "--tag=local.test/tiexec:1",
    ]);
    run(build.arg("--file").arg(file).arg(&context))?;
    let to = work.join("images/tiexec.tar");
    run(podman().args(["save", "--quiet", "-o"]).arg(to).arg("local.test/tiexec:1"))?;
    for mount in ["podman/root/overlay", "podman/root/overlay-containers"] {
        let _not_mounted =
            Command::new("umount").arg("-lq").arg(work.join(mount)).stderr(Stdio::null()).status();
    }
    fs::remove_dir_all(work.join("podman"))?;
    Ok(())
}

/// Writes an image with programs of this machine and their libraries, in the format of `docker save`.
pub(super) fn of_this_machine(work: &Path) -> Result<()> {
    let root = work.join("programs");
    for directory in ["usr/bin", "usr/sbin", "usr/lib64", "usr/lib", "tmp", "data", "etc", "proc"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    let mut programs: Vec<PathBuf> = PROGRAMS.iter().map(PathBuf::from).collect();
    for (source, mib, name) in COMPILED {
        let source = repository()?.join(format!("tests/programs/{source}.c"));
        let to = root.join("usr/bin").join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-no-pie", "-pthread", "-Wl,--build-id"]);
        run(cc.arg(format!("-DBIG_MIB={mib}")).arg("-o").arg(&to).arg(source))?;
        programs.push(to);
    }
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    for program in &programs {
        files.extend(needed(program)?);
    }
    for file in files {
        let inside = root.join(file.strip_prefix("/")?);
        if inside.exists() || file.starts_with(&root) {
            continue;
        }
        fs::create_dir_all(inside.parent().context("no directory")?)?;
        fs::copy(&file, &inside).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    let share = root.join("usr/share");
    fs::create_dir_all(&share)?;
    run(Command::new("cp").args(["-r", "/usr/share/mysql"]).arg(&share))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nmysql:x:999:999::/data:/bin/sh\n")?;
    pack(work, &root)
}

/// Returns the program and its shared objects.
fn needed(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("not found") {
        bail!("{} lacks a library: {text}", program.display());
    }
    let paths = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(paths.chain([program.to_owned()]).collect())
}

/// Packs one layer. The image's command, which waits, is for the sandbox of a pod.
fn pack(work: &Path, root: &Path) -> Result<()> {
    let out = work.join("layer");
    fs::create_dir_all(&out)?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(root).args(["--owner=0", "--group=0", "--mtime=@0", "--sort=name", "-cf"]);
    run(tar.arg(out.join("layer.tar")).arg("."))?;
    let digest = Command::new("sha256sum").arg(out.join("layer.tar")).output()?;
    let digest = String::from_utf8(digest.stdout)?;
    let digest = digest.split_whitespace().next().context("no digest")?;
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "config": {"Cmd": ["sleep", "infinity"], "Env": ["PATH=/usr/sbin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(out.join("config.json"), config.to_string())?;
    let manifest = serde_json::json!([{
        "Config": "config.json", "RepoTags": ["local.test/programs:1"], "Layers": ["layer.tar"],
    }]);
    fs::write(out.join("manifest.json"), manifest.to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&out).arg("-cf").arg(work.join("images/programs.tar"));
    run(tar.args(["manifest.json", "config.json", "layer.tar"]))?;
    fs::remove_dir_all(&out)?;
    fs::remove_dir_all(root)?;
    Ok(())
}
