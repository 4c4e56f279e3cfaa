//! `cargo xtask docs-test`: builds and runs the tests that run the command blocks of the pages, `tests/docs`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::repository;

/// Runs each command block of README.md and of the guide, and compares the form of its output
#[derive(Args, Debug)]
pub(crate) struct DocsTest {
    /// Run the programs in this directory, and not those that cargo builds
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Only these pages, such as README or systemd (default: all)
    pages: Vec<String>,
}

impl DocsTest {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--features", "tiexec/fault-injection", "--package", "tiexec"]);
        cargo.args(["--test", "docs", "--", "every_page_is_true", "--ignored", "--nocapture"]);
        cargo.env("TIEXEC_TEST_PAGES", self.pages.join(" "));
        if let Some(programs) = &self.programs {
            let programs = programs
                .canonicalize()
                .with_context(|| format!("cannot find {}", programs.display()))?;
            cargo.env("TIEXEC_TEST_PROGRAMS", programs);
        }
        let status = cargo.current_dir(repository()?).status().context("cannot run cargo")?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
