//! Runs one guest, from its disks to the results of its tests.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::build::Built;
use super::cache::Cache;
use super::kernel::Kernel;
use super::results::{Doctor, Outcome, Run, UNFINISHED, USERS, outcomes};
use super::root::Root;
use super::{Arch, Lacking, compile, need};
use crate::covered::Covered;
use crate::repository;

/// The shell script that is a guest's first program, and switches to the root disk.
const INIT: &str = include_str!("../../guest/init.sh");
/// The shell script that runs the tests in the guest.
const TESTS: &str = include_str!("../../guest/tests.sh");
/// The words that the guest writes in the place of an exit status for tests that it did not run.
const NOT_RUN: &str = "not run";
/// The shell script that stands for every compiler in the guest.
const COMPILER: &str = include_str!("../../guest/cc.sh");

/// Memory of a guest, in MiB, and of each of its two NUMA nodes.
const MEMORY: [u32; 2] = [4096, 2048];

/// The file system of the disk that programs lie on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Disk {
    Ext4,
    Xfs,
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// Fails if QEMU is not here.
pub(crate) fn look_for_qemu(arch: Arch) -> Result<()> {
    let package = match arch {
        Arch::X86 => "qemu-system-x86",
        Arch::Arm => "qemu-system-arm",
    };
    need(&format!("qemu-system-{arch}"), package)
}

/// The parts of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) arch: Arch,
    pub(crate) kernel: &'a Kernel,
    pub(crate) root: &'a Root,
    pub(crate) disk: Disk,
    pub(crate) cpu: Option<&'a str>,
    /// Minutes for a test file.
    pub(crate) limit: u32,
    /// True if the doctor looks at the guest before the tests. Its timings take half a minute where the processor is
    /// emulated.
    pub(crate) asks_the_doctor: bool,
    /// The command to run after the tests.
    pub(crate) command: &'a str,
}

impl Guest<'_> {
    /// Boots the guest, which runs the tests.
    pub(crate) fn run(&self, cache: &Cache, built: &Built) -> Result<Run> {
        let work = tempfile::tempdir_in(cache.dir("run")?)?;
        let shared = work.path().join("shared");
        for dir in ["out", "compile"] {
            fs::create_dir_all(shared.join(dir))?;
        }
        self.write_orders(&shared, built)?;
        let disk = self.make_disk(work.path())?;
        let initial = work.path().join("initial.cpio");
        self.kernel.write_initial(&self.root.busybox, INIT, &initial)?;
        let mut qemu = self.command(&shared, &disk, &initial, built)?;
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("QEMU")?;
        let kept = cache.dir(&format!("programs/{}", self.arch))?;
        let done = AtomicBool::new(false);
        let console = child.stdout.take().context("a console was asked for")?;
        let log = File::create(cache.dir("logs")?.join(self.name()))?;
        let asked = shared.join("compile");
        std::thread::scope(|scope| -> Result<()> {
            scope.spawn(|| compile::serve(&asked, &kept, built, &done));
            let ended = follow(console, &log).and_then(|()| Ok(child.wait()?));
            done.store(true, Ordering::Relaxed);
            ended.map(drop)
        })?;
        let logs = cache.dir(&format!("logs/{}.d", self.name()))?;
        self.gather(&shared.join("out"), &logs, built)
    }

    /// Reads the results in `out`, and keeps its logs in `logs`.
    fn gather(&self, out: &Path, logs: &Path, built: &Built) -> Result<Run> {
        let mut results = BTreeMap::new();
        for test in &built.tests {
            let log = fs::read(out.join(format!("{}.log", test.file))).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            fs::write(logs.join(format!("{}.log", test.file)), log.as_bytes())?;
            let status = fs::read_to_string(out.join(format!("{}.status", test.file)));
            let mut outcomes = outcomes(&log, &test.file.prefix());
            let failed = outcomes.values().any(|outcome| *outcome == Outcome::Failed);
            if status.as_deref().is_ok_and(|status| status.trim() == NOT_RUN) {
                continue;
            }
            let ended = status.is_ok_and(|status| status.trim() == "0");
            if !ended && !failed {
                outcomes.insert(UNFINISHED.to_owned(), Outcome::Failed);
            }
            results.insert(test.file.to_string(), outcomes);
        }
        let mut doctor = BTreeMap::new();
        for user in USERS {
            let said = fs::read(out.join(format!("doctor.{user}"))).unwrap_or_default();
            if let Ok(Doctor { mut findings }) = serde_json::from_slice(&said) {
                // Times in an emulated guest are meaningless.
                findings.retain(|finding| !["gain", "tlb"].contains(&&*finding.thing));
                doctor.insert(user.to_owned(), findings);
            }
        }
        let messages = fs::read(out.join("dmesg")).unwrap_or_default();
        let messages = String::from_utf8_lossy(&messages);
        fs::write(logs.join("dmesg"), messages.as_bytes())?;
        let bad = ["BUG: ", "WARNING: ", "Oops", "Bad page", "Bad rss", "INFO: task"];
        let mut complaints: Vec<String> = messages
            .lines()
            .filter(|line| bad.iter().any(|bad| line.contains(bad)))
            .map(str::to_owned)
            .collect();
        if !self.command.is_empty() {
            let status = fs::read_to_string(out.join("command.status")).unwrap_or_default();
            if status.trim() != "0" {
                complaints.push(format!("the command ended with status {}", status.trim()));
            }
        }
        Ok(Run {
            arch: self.arch.to_string(),
            release: self.kernel.release.clone(),
            disk: self.disk.to_string(),
            doctor,
            results,
            complaints,
            covered: Covered::new(),
        })
    }

    fn name(&self) -> String {
        format!("{}-{}-{}", self.arch, self.kernel.release, self.disk)
    }

    fn write_orders(&self, shared: &Path, built: &Built) -> Result<()> {
        let mut orders = String::new();
        for test in &built.tests {
            let (needs, only) = (test.chosen.needs, test.chosen.only.join(" "));
            // The shell takes several tabs for one.
            let needs = if needs.is_empty() { "-" } else { needs };
            orders.push_str(&format!(
                "{}\t{}\t{needs}\t{only}\n",
                test.file,
                test.program.display()
            ));
        }
        fs::write(shared.join("tests"), orders)?;
        let compilers: Vec<&str> = built.compilers.iter().map(|(name, _)| *name).collect();
        fs::write(shared.join("compilers"), compilers.join("\n") + "\n")?;
        fs::write(shared.join("cc.sh"), COMPILER)?;
        fs::write(shared.join("command"), self.command)?;
        fs::write(shared.join("tests.sh"), TESTS)?;
        let doctor = if self.asks_the_doctor { "yes" } else { "no" };
        let settings = format!(
            "repository='{}'\ntarget='{}'\nfiles='{}'\nprograms='{}'\nlimit={}m\ndoctor={doctor}\n",
            repository()?.display(),
            built.target.display(),
            built.files()?.display(),
            built.programs()?.display(),
            self.limit
        );
        Ok(fs::write(shared.join("settings"), settings)?)
    }

    /// The disk on which programs are built and run.
    fn make_disk(&self, work: &Path) -> Result<PathBuf> {
        let disk = work.join("disk");
        File::create(&disk)?.set_len(8 << 30)?;
        let (tool, package) = match self.disk {
            Disk::Ext4 => ("mkfs.ext4", "e2fsprogs"),
            Disk::Xfs => ("mkfs.xfs", "xfsprogs"),
        };
        let made = Command::new(tool).arg("-q").arg(&disk).status();
        let made =
            made.map_err(|error| Lacking(format!("{tool}: {error} (apt-get install {package})")))?;
        if !made.success() {
            bail!("{tool} {}", disk.display());
        }
        Ok(disk)
    }

    fn command(
        &self,
        shared: &Path,
        disk: &Path,
        initial: &Path,
        built: &Built,
    ) -> Result<Command> {
        let (machine, cpu, console) = match self.arch {
            // The clock jumps when the host stops the guest. A kernel that detects this patches itself in many places,
            // and some emulators execute half-patched code. The option `tsc=reliable` stops the detection.
            // `no_timer_check` skips the check of the timer at boot (`timer_irq_works`), which fails if the host gives
            // the guest hardly any time. A busy host also spoils the measurement of the TSC at boot: the guest's clock ran ten
            // times too fast, and the time limits of the tests with it. The ACPI timer has a fixed rate.
            Arch::X86 => ("q35", "max", "ttyS0 tsc=reliable no_timer_check clocksource=acpi_pm"),
            // Emulated programs would spend most of their time on real pointer authentication codes.
            Arch::Arm => ("virt", "max,pauth-impdef=on", "ttyAMA0"),
        };
        let cpu = self.cpu.unwrap_or(cpu);
        let mut qemu = Command::new(format!("qemu-system-{}", self.arch));
        qemu.args(["-machine", machine, "-cpu", cpu, "-accel", "tcg,thread=multi"]);
        let [all, of_node] = MEMORY;
        qemu.args(["-m", &all.to_string(), "-smp", "2,sockets=2"]);
        for node in 0..2 {
            qemu.arg("-object").arg(format!("memory-backend-ram,id=node{node},size={of_node}M"));
            qemu.arg("-numa").arg(format!("node,nodeid={node},cpus={node},memdev=node{node}"));
        }
        qemu.args(["-nographic", "-no-reboot", "-nic", "none"]);
        qemu.arg("-kernel").arg(self.kernel.image()?).arg("-initrd").arg(initial);
        qemu.arg("-append").arg(format!("console={console} panic=-1 quiet loglevel=3"));
        for (file, snapshot) in [(&*self.root.image, "on"), (disk, "off")] {
            let drive = format!(
                "file={},format=raw,if=virtio,snapshot={snapshot},cache=unsafe,discard=unmap",
                file.display()
            );
            qemu.arg("-drive").arg(drive);
        }
        let shares = [
            ("shared", shared.to_owned(), ""),
            ("repository", repository()?, ",readonly=on"),
            ("target", built.target.clone(), ",readonly=on"),
            ("modules", self.kernel.modules(), ",readonly=on"),
        ];
        for (tag, path, only) in shares {
            let share = format!(
                "local,path={},mount_tag={tag},security_model=none,multidevs=remap{only}",
                path.display()
            );
            qemu.arg("-virtfs").arg(share);
        }
        Ok(qemu)
    }
}

/// Shows the guest's progress lines. The log has the whole output.
fn follow(console: impl std::io::Read, mut log: &File) -> Result<()> {
    use std::io::Write;
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\r');
        writeln!(log, "{text}")?;
        if let Some(progress) = text.strip_prefix("vm-test: ") {
            eprintln!("   {progress}");
        }
    }
    Ok(())
}
