//! `cargo xtask context`: puts the input of the image's build into one directory: the static programs, and the list of
//! their components.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::sbom;
use crate::vm::Arch;

const PROGRAMS: [&str; 3] = ["tiexec", "tiexecctl", "tiexecd"];
/// The name of the list, which scanners know by its end.
const LIST: &str = "tiexec.cdx.json";

/// Builds the image's programs, and lays them out with the list of what they consist of
#[derive(Args, Debug)]
pub(crate) struct Context {
    /// For this architecture (default: this machine's)
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Where to
    out: PathBuf,
}

impl Context {
    pub(crate) fn write(&self) -> Result<()> {
        let arch = self.arch.unwrap_or_else(Arch::of_this_machine);
        lay_out(arch, &programs(arch)?, &self.out)
    }
}

/// Builds the programs with the features of the image. Returns their directory.
pub(crate) fn programs(arch: Arch) -> Result<PathBuf> {
    crate::dist::programs(arch, "kubernetes")
}

/// Lays out built programs.
pub(crate) fn lay_out(arch: Arch, programs: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for name in PROGRAMS {
        let from = programs.join(name);
        fs::copy(&from, to.join(name))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let list = to.join(LIST);
    fs::write(&list, sbom::text(arch)?).with_context(|| format!("cannot write {}", list.display()))
}
