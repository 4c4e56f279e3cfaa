//! `cargo xtask roots-test`: installs, upgrades and purges the packages in new roots of Debian and Ubuntu.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::repository;
use crate::vm::cache::Cache;
use crate::vm::{Lacking, forbids_skips, root};

/// Runs the tests of Debian's package in new roots, each with the systemd, apt and services of its release
#[derive(Args, Debug)]
pub(crate) struct RootsTest {
    /// The releases
    #[arg(default_values = ["bookworm", "trixie", "noble"])]
    releases: Vec<String>,
}

impl RootsTest {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        let mut good = true;
        for release in &self.releases {
            let root = match root::installed(&cache, release) {
                Err(error) if error.is::<Lacking>() => {
                    println!("SKIP roots-test {release}: {error:#}");
                    good &= !forbids_skips();
                    continue;
                }
                root => root?,
            };
            println!("== packages in {release}");
            let mut tests = Command::new(repository()?.join("scripts/tests"));
            tests.args(["-E", "binary_id(tiexec::packages) & test(/^debian::/)"]);
            tests.env("TIEXEC_TEST_ROOT", root).env("TIEXEC_TEST_NO_SKIP", "1");
            good &= tests.status().context("scripts/tests")?.success();
        }
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
