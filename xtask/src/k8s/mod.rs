//! `cargo xtask k8s-test`: `tiexecd` as a DaemonSet on a Kubernetes node.
//!
//! The node consists of etcd, API server, scheduler, controller manager, kubelet, and Debian's containerd and runc, in
//! [their own namespaces](machine). Its pods run programs of this machine ([`image`]). Each [case](cases) tests one
//! promise.

mod build;
mod cases;
pub(crate) mod chart;
mod image;
mod machine;
mod node;
mod proxy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use self::cases::CASES;
use self::node::Cluster;
use crate::covered;
use crate::vm::{Arch, Lacking, forbids_skips};

/// Runs tiexecd on a Kubernetes node, which is made of namespaces of this machine
#[derive(Args, Debug)]
pub(crate) struct K8sTest {
    /// Make the image of the static programs in this directory, and build none
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Keep the result of a run of all cases in docs/k8s-test.json, which a release needs
    #[arg(long)]
    record: bool,
    /// Only cases whose names begin so (default: all)
    cases: Vec<String>,
    /// The command runs itself again for each
    #[arg(long, value_enum, hide = true)]
    step: Option<Step>,
}

/// A step on the way to the node: see [`machine`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Step {
    Groups,
    Node,
}

impl K8sTest {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let made = match build::look_for_tools() {
            Ok(()) => self.step(),
            Err(lacking) => Err(lacking),
        };
        match made {
            Err(error) if error.is::<Lacking>() && !forbids_skips() => {
                println!("SKIP k8s-test: {error:#}");
                Ok(ExitCode::SUCCESS)
            }
            other => other,
        }
    }

    fn step(&self) -> Result<ExitCode> {
        let cache = build::cache()?;
        let work = cache.dir("run")?;
        let code = |status: std::process::ExitStatus| {
            if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        };
        match self.step {
            Some(Step::Groups) => machine::groups(&work, &self.cases).map(code),
            Some(Step::Node) => self.on_the_node(&work),
            None => {
                let lock = fs::File::create(work.with_file_name("lock"))?;
                lock.try_lock().context("another k8s-test runs")?;
                let record = self.record && self.cases.is_empty();
                let covered =
                    if record { Some(covered::to_record(&covered::BY_K8S)?) } else { None };
                let path = build::path(&cache)?;
                // A killed earlier run may have left this directory.
                fs::remove_dir_all(&work)?;
                fs::create_dir_all(work.join("images"))?;
                let programs = self
                    .programs
                    .clone()
                    .map_or_else(|| crate::context::programs(Arch::of_this_machine()), Ok)?;
                image::own(&programs, &work)?;
                image::of_this_machine(&work)?;
                let status = machine::enter(&path, &self.cases)?;
                keep_logs(&work)?;
                fs::remove_dir_all(&work)
                    .with_context(|| format!("cannot remove {}", work.display()))?;
                if let Some(covered) = covered.filter(|_| status.success()) {
                    covered::record(RECORD, &covered)?;
                }
                Ok(code(status))
            }
        }
    }

    /// Starts the cluster, and runs the cases.
    fn on_the_node(&self, work: &Path) -> Result<ExitCode> {
        machine::furnish(work)?;
        let mut cluster = Cluster::start(work)?;
        println!("the node is ready after {:.1} s", cluster.started.elapsed().as_secs_f64());
        cases::prepare(&mut cluster)?;
        println!("tiexecd runs after {:.1} s", cluster.started.elapsed().as_secs_f64());
        let is_wanted = |name: &str| {
            self.cases.is_empty() || self.cases.iter().any(|part| name.starts_with(part.as_str()))
        };
        let (mut passed, mut failed) = (0, Vec::new());
        for (name, case) in CASES.into_iter().filter(|(name, _)| is_wanted(name)) {
            let begun = Instant::now();
            let result = case(&mut cluster);
            let took = begun.elapsed().as_secs_f64();
            match result {
                Ok(figures) => {
                    println!("PASS {name}: {figures} ({took:.1} s)");
                    passed += 1;
                }
                Err(error) => {
                    println!("FAIL {name}: {error:#} ({took:.1} s)");
                    failed.push(name);
                }
            }
        }
        cases::save(&cluster);
        let took = cluster.started.elapsed().as_secs_f64();
        println!(
            "{passed} passed, {} failed, in {took:.0} s; logs: {}",
            failed.len(),
            logs(work).display()
        );
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The record of the last run of all cases that passed: the sources that it tested.
const RECORD: &str = "docs/k8s-test.json";

/// Checks that the recorded run tested the committed sources.
pub(crate) fn check_recorded() -> Result<String> {
    covered::check_record(RECORD, &covered::BY_K8S, "make k8s-test")
}

/// The directory of the last run's logs.
fn logs(work: &Path) -> PathBuf {
    work.with_file_name("log")
}

fn keep_logs(work: &Path) -> Result<()> {
    let logs = logs(work);
    let _first_time = fs::remove_dir_all(&logs);
    fs::rename(work.join("log"), &logs).context("the node made no logs")
}
