//! MariaDB in a pod of level *restricted*, with clients that query all the time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{PODS, Pod, becomes_huge, delete, huge, mib, pods_of, restarts, tiexecctl, why_not};
use crate::k8s::node::{Cluster, eventually};

pub(super) const SERVER: [&str; 10] = [
    "mariadbd",
    "--no-defaults",
    "--skip-grant-tables",
    "--datadir=/data",
    "--tmpdir=/data",
    "--socket=/data/sock",
    "--pid-file=/data/pid",
    "--bind-address=0.0.0.0",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=32M",
];

/// A client that queries all the time over one connection.
pub(super) struct Client {
    stop: Arc<AtomicBool>,
    worst: Arc<Mutex<(u64, Duration)>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Client {
    pub(super) fn start(address: &str) -> Result<Self> {
        let address = address.to_owned();
        let connect = move || -> Result<Child> {
            let mut client = Command::new("mariadb");
            client.args(["--no-defaults", "-N", "-B", "--unbuffered", "-h", &address]);
            Ok(client
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?)
        };
        let mut child = connect()?;
        let stop = Arc::new(AtomicBool::new(false));
        let worst = Arc::new(Mutex::new((0, Duration::ZERO)));
        let (ends, figures) = (Arc::clone(&stop), Arc::clone(&worst));
        let thread = std::thread::spawn(move || {
            let mut input = child.stdin.take().context("no input")?;
            let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
            // The table of numbers belongs to the current database.
            writeln!(input, "create database if not exists numbers; use numbers;")?;
            let mut number = 0_u64;
            while !ends.load(Relaxed) {
                number += 1;
                let begun = Instant::now();
                writeln!(input, "select sum(seq) + {number} from seq_1_to_1000;")?;
                let line = lines.next().context("the server has gone")??;
                let took = begun.elapsed();
                ensure!(line.trim() == (500_500 + number).to_string(), "wrong: {line}");
                if let Ok(mut figures) = figures.lock() {
                    *figures = (number, figures.1.max(took));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            drop(input);
            child.wait()?;
            Ok(())
        });
        Ok(Self { stop, worst, thread: Some(thread) })
    }

    /// The number of answered queries, and the longest wait for an answer.
    pub(super) fn figures(&self) -> (u64, Duration) {
        self.worst.lock().map(|figures| *figures).unwrap_or_default()
    }

    /// Ends the client. Fails if a query had no answer, or a wrong one.
    pub(super) fn end(mut self) -> Result<(u64, Duration)> {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_panic| anyhow::anyhow!("the client panicked"))??;
        Ok(self.figures())
    }
}

fn deployment(name: &str, labelled: bool, memory: &str) -> String {
    let pod = Pod { name, labelled, args: &SERVER, memory };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": PODS},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": pod.template()},
    })
    .to_string()
}

/// The only pod of the deployment: its name, its process and its address.
fn only_pod(cluster: &Cluster, name: &str) -> Result<(String, i32, String)> {
    let deployment = format!("deployment/{name}");
    cluster.kubectl(&["-n", PODS, "rollout", "status", &deployment, "--timeout=60s"])?;
    let pods = pods_of(cluster, PODS, name)?;
    let pod = pods.first().with_context(|| format!("{name} has no pod"))?.clone();
    let address =
        cluster.kubectl(&["-n", PODS, "get", "pod", &pod, "-o", "jsonpath={.status.podIP}"])?;
    let answers = || {
        let mut once = Command::new("mariadb");
        once.args(["--no-defaults", "-h", &address, "-e", "select 1"]);
        once.stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    eventually("the database answers", 30, answers)?;
    Ok((pod.clone(), cluster.pid(PODS, &pod)?, address))
}

/// The agent treats the pod by its label, and the test inspects and reverts it. Meanwhile each query is answered, and
/// no container restarts.
pub(super) fn treated_and_reverted(cluster: &mut Cluster) -> Result<String> {
    cluster.apply(&deployment("database", true, "512Mi"))?;
    let (pod, pid, address) = only_pod(cluster, "database")?;
    let client = Client::start(&address)?;
    let took = becomes_huge(cluster, pid)?;
    let bytes = huge(pid);
    let inspected = tiexecctl(cluster, &["inspect", "--json", &pid.to_string()])?;
    let inspected: serde_json::Value = serde_json::from_str(&inspected)?;
    ensure!(
        inspected["huge_bytes"].as_u64() == Some(bytes),
        "inspect says {}, smaps {bytes}",
        inspected["huge_bytes"]
    );
    let text = inspected["text_bytes"].as_u64().unwrap_or_default();
    tiexecctl(cluster, &["revert", &pid.to_string()])?;
    ensure!(huge(pid) == 0, "{} are huge after the revert", huge(pid));
    let (before, _) = client.figures();
    eventually("queries go on", 10, || client.figures().0 > before + 50)?;
    let (queries, longest) = client.end()?;
    let count = restarts(cluster, &pod)?;
    ensure!(count == 0, "{count} restarts");
    Ok(format!(
        "{} of {} of text huge {took:.1} s after it answered, then none; {queries} queries, the longest {:.1} ms; 0 restarts",
        mib(bytes),
        mib(text),
        longest.as_secs_f64() * 1e3
    ))
}

/// The replacement of a deleted pod is treated too.
pub(super) fn replaced(cluster: &mut Cluster) -> Result<String> {
    cluster.apply(&deployment("database", true, "512Mi"))?;
    let (pod, first, _) = only_pod(cluster, "database")?;
    delete(cluster, &[&pod])?;
    let (_, second, _) = only_pod(cluster, "database")?;
    ensure!(first != second, "it was not replaced");
    let took = becomes_huge(cluster, second)?;
    Ok(format!("{} huge {took:.1} s after the new pod answered", mib(huge(second))))
}

/// A pod without the label is left alone.
pub(super) fn unlabelled(cluster: &mut Cluster) -> Result<String> {
    cluster.apply(&deployment("other", false, "512Mi"))?;
    let (_, pid, _) = only_pod(cluster, "other")?;
    std::thread::sleep(Duration::from_secs(15));
    ensure!(huge(pid) == 0, "{} are huge: {}", huge(pid), why_not(cluster, pid));
    cluster.kubectl(&["-n", PODS, "delete", "deployment", "other"])?;
    Ok("none of its text is huge after 15 s".to_owned())
}
