//! `cargo xtask vm-test`: the project's own tests as root on other kernels, and on aarch64, in guests
//! that QEMU emulates.
//!
//! A guest has a Debian kernel, a root file system of packages that are unpacked but not installed, and the repository
//! with the test programs at the same paths as on this machine. This machine compiles for the guest. All fetched and
//! built files lie in the [cache].

pub(crate) mod apt;
pub(crate) mod build;
pub(crate) mod cache;
mod compile;
mod guest;
mod kernel;
mod own;
mod results;
pub(crate) mod root;
mod table;

use std::fmt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::cache::Cache;
use self::guest::{Disk, Guest};
use self::kernel::Kernel;
use self::results::Run;
use crate::covered::{self, Covered};
use crate::repository;

/// A processor architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Arch {
    #[value(name = "x86_64")]
    X86,
    #[value(name = "aarch64")]
    Arm,
}

impl Arch {
    fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    /// Returns Debian's name of the architecture.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }

    /// Returns the architecture of this machine.
    pub(crate) fn of_this_machine() -> Self {
        if Self::X86.is_here() { Self::X86 } else { Self::Arm }
    }

    /// Returns whether this machine has the architecture.
    pub(crate) fn is_here(self) -> bool {
        self.name() == std::env::consts::ARCH
    }

    /// The kernels of the whole matrix.
    fn kernels(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["5.10", "5.15", "6.1", "6.8", "6.12", "6.12-nothp", "6.12-rothp", "7.2"],
            Self::Arm => &["6.1", "6.12", "6.12-16k", "6.12-64k", "7.2"],
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs the tests in guests with other kernels.
#[derive(Args, Debug)]
pub(crate) struct VmTest {
    /// Guests of this architecture only
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Guests with this kernel of Debian's or Ubuntu's only, such as 6.1 or 6.12-16k; the newest that fits is taken. With
    /// -rothp or -64k, one that is built from Debian's source; with -nothp, on x86-64, on a processor without huge pages
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// File system of the disk that the programs lie on
    #[arg(long, value_enum, default_value = "ext4")]
    disk: Disk,
    /// A root of Debian's newest packages (sid, with the C library of experimental), which also has the programs that
    /// bench/kernel measures
    #[arg(long)]
    newest: bool,
    /// QEMU's model of the processor
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// Minutes that one test file may take
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    limit: u32,
    /// A shell command to run in the guest after the tests, as root; its output is shown
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Keep what is found for docs/KERNELS.md
    #[arg(long)]
    record: bool,
    /// Tests: a directory of them, a file, or a file and a part of the names of its tests: attach, attach::odd,
    /// layout::rebase::static (default: those that the features in docs/KERNELS.md are told by)
    tests: Vec<String>,
}

/// The obstacle to all guests, and the fix.
#[derive(Debug)]
pub(crate) struct Lacking(pub(crate) String);

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacking {}

/// Fails with the name of the package if a tool is missing.
pub(crate) fn need(tool: &str, package: &str) -> Result<()> {
    match Command::new(tool).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => bail!(Lacking(format!("no {tool} (apt-get install {package})"))),
    }
}

/// Runs a command, which must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| shown.clone())?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Returns whether a skip because of a missing requirement is a failure.
pub(crate) fn forbids_skips() -> bool {
    std::env::var_os("TIEXEC_TEST_NO_SKIP").is_some_and(|value| value == "1")
}

impl VmTest {
    /// Describes a guest that only runs a command.
    pub(crate) fn of_command(arch: Arch, kernel: &str, command: String) -> Self {
        Self {
            arch: vec![arch],
            kernel: vec![kernel.to_owned()],
            disk: Disk::Ext4,
            newest: false,
            cpu: None,
            limit: 15,
            command: Some(command),
            record: false,
            // The list must have at least one test.
            tests: vec!["launch::becomes_exit::exit_codes".to_owned()],
        }
    }

    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (runs, skipped) = self.runs()?;
        let good = runs.iter().all(Run::is_good) && !(skipped && forbids_skips());
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the guests. Also returns whether some were skipped because of a missing requirement.
    pub(crate) fn runs(&self) -> Result<(Vec<Run>, bool)> {
        let cache = Cache::open()?;
        let mut runs = Vec::new();
        let mut skipped = false;
        let arches =
            if self.arch.is_empty() { vec![Arch::X86, Arch::Arm] } else { self.arch.clone() };
        for arch in arches {
            match self.run_on(&cache, arch, &mut runs) {
                Err(error) if error.is::<Lacking>() => {
                    println!("SKIP vm-test {arch}: {error:#}");
                    skipped = true;
                }
                other => other?,
            }
        }
        print!("{}", table::tests(&runs));
        Ok((runs, skipped))
    }

    fn run_on(&self, cache: &Cache, arch: Arch, runs: &mut Vec<Run>) -> Result<()> {
        guest::look_for_qemu(arch)?;
        let root = root::image(cache, arch, self.newest)?;
        let wanted = match &self.tests[..] {
            [] => table::tests_of_features().into_iter().collect(),
            some => some.iter().map(|test| (test.as_str(), "")).collect::<Vec<_>>(),
        };
        let built = build::tests(cache, arch, &wanted)?;
        let whole = self.record && self.tests.is_empty();
        let covered =
            if whole { covered::to_record(&covered::BY_KERNELS)? } else { Covered::new() };
        let versions: Vec<&str> = match &self.kernel[..] {
            [] => arch.kernels().to_vec(),
            some => some.iter().map(String::as_str).collect(),
        };
        for version in versions {
            // On a processor without PSE the kernel has neither transparent huge pages nor hugetlb pages.
            let (version, without) = match version.strip_suffix("-nothp") {
                Some(version) if arch == Arch::X86 => (version, Some("max,-pse")),
                _ => (version, None),
            };
            let kernel = Kernel::fetch(cache, arch, version)?;
            eprintln!("== Linux {} {arch}, {}", kernel.release, self.disk);
            let guest = Guest {
                arch,
                kernel: &kernel,
                root: &root,
                disk: self.disk,
                cpu: without.or(self.cpu.as_deref()),
                limit: self.limit,
                asks_the_doctor: self.tests.is_empty(),
                command: self.command.as_deref().unwrap_or_default(),
            };
            let mut run = guest
                .run(cache, &built)
                .with_context(|| format!("a guest with Linux {}", kernel.release))?;
            run.covered.clone_from(&covered);
            results::store(&results::place(cache, self.record)?, &run)?;
            print!("{}", table::failures(&run));
            runs.push(run);
        }
        Ok(())
    }
}

/// Checks that the recorded runs of all kernels tested the committed sources.
pub(crate) fn check_recorded() -> Result<String> {
    let now = covered::committed(&covered::BY_KERNELS)?;
    let runs = results::stored(&repository()?.join("docs/kernels"))?;
    for run in &runs {
        covered::check(&run.covered, &now, "make vm-test").with_context(|| run.column())?;
    }
    Ok(format!("{} kernels and disks", runs.len()))
}

/// Regenerates the tables of `docs/KERNELS.md`, from the last run of each kernel, architecture and disk.
pub(crate) fn write_tables() -> Result<()> {
    let runs = results::stored(&results::place(&Cache::open()?, true)?)?;
    table::write(&runs)
}
