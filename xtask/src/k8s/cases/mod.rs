//! The cases. Each tests one promise, and returns its figures on success.

mod agent;
mod api;
mod attackers;
mod chart;
mod database;
mod memory;
mod scale;

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::node::{Cluster, eventually};

/// A case.
type Case = fn(&mut Cluster) -> Result<String>;

/// The cases, in their order. Later cases leave more behind.
pub(super) const CASES: [(&str, Case); 15] = [
    ("chart", chart::chart),
    ("rights", chart::rights),
    ("database", database::treated_and_reverted),
    ("replaced", database::replaced),
    ("unlabelled", database::unlabelled),
    ("charged", memory::charged),
    ("limit", memory::near_its_limit),
    ("agent-killed", agent::killed),
    ("agent-upgraded", agent::upgraded),
    ("share", chart::share),
    ("api-away", api::away),
    ("watch-broken", api::broken),
    ("attackers", attackers::same_user),
    ("crashes", attackers::crashes),
    ("scale", scale::scale),
];

/// The agent's own namespace.
const AGENT: &str = "tiexec";
/// The namespace of the pods, with Pod Security Standards, level *restricted*.
const PODS: &str = "pods";
/// The label by which a pod opts in.
const LABEL: &str = "tiexec.io/enable";

/// Makes the pods' namespace, and installs the agent.
pub(super) fn prepare(cluster: &mut Cluster) -> Result<()> {
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": PODS, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
        .to_string(),
    )?;
    let account = || cluster.kubectl(&["-n", PODS, "get", "serviceaccount", "default"]).is_ok();
    eventually("the namespace has a service account", 30, account)?;
    chart::install(cluster)
}

/// Saves the final logs and states of the agent and the cluster.
pub(super) fn save(cluster: &Cluster) {
    let commands: [(&str, &[&str]); 3] = [
        (
            "tiexecd.log",
            &["-n", AGENT, "logs", "daemonset/tiexec", "--all-containers", "--tail=-1"],
        ),
        ("pods.txt", &["get", "pods", "-A", "-o", "wide"]),
        ("events.txt", &["get", "events", "-A"]),
    ];
    for (name, args) in commands {
        let text = cluster.kubectl(args).unwrap_or_else(|error| format!("{error:#}"));
        let _best_effort = fs::write(cluster.at("log").join(name), text);
    }
}

/// A pod that level *restricted* admits.
struct Pod<'a> {
    name: &'a str,
    /// True if it opts in.
    labelled: bool,
    args: &'a [&'a str],
    memory: &'a str,
}

impl Pod<'_> {
    /// The pod's metadata and specification, as a template has them.
    fn template(&self) -> Value {
        let mut labels = json!({"app": self.name});
        if self.labelled {
            labels[LABEL] = json!("true");
        }
        json!({
            "metadata": {"labels": labels},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 999, "runAsGroup": 999, "fsGroup": 999,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "main",
                    "image": "local.test/programs:1",
                    "imagePullPolicy": "Never",
                    "command": self.args,
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "resources": {"limits": {"memory": self.memory}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "stdin": true,
                }],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        })
    }

    fn value(&self) -> Value {
        let mut pod = self.template();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(self.name);
        pod["metadata"]["namespace"] = json!(PODS);
        pod
    }

    /// Starts the pod. Returns its process once it runs.
    fn start(&self, cluster: &Cluster) -> Result<i32> {
        start(cluster, &self.value())
    }
}

/// Starts a pod. Returns its process once it runs.
fn start(cluster: &Cluster, pod: &Value) -> Result<i32> {
    start_within(cluster, pod, 60)
}

/// As [`start`]. The pod must be ready within this many seconds.
fn start_within(cluster: &Cluster, pod: &Value, seconds: u64) -> Result<i32> {
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    let namespace = pod["metadata"]["namespace"].as_str().context("a pod without a namespace")?;
    cluster.apply(&pod.to_string())?;
    let timeout = format!("--timeout={seconds}s");
    let wait = ["-n", namespace, "wait", "--for=condition=Ready", &timeout, "pod", name];
    cluster.kubectl(&wait)?;
    cluster.pid(namespace, name)
}

/// Deletes pods of the pods' namespace.
fn delete(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let words = ["-n", PODS, "delete", "pod", "--grace-period=1", "--ignore-not-found"];
    cluster.kubectl(&[&words, names].concat()).map(drop)
}

/// The pods with a label that are not being deleted.
fn pods_of(cluster: &Cluster, namespace: &str, app: &str) -> Result<Vec<String>> {
    let key = if namespace == AGENT { "app.kubernetes.io/name" } else { "app" };
    let label = format!("{key}={app}");
    let text = cluster.kubectl(&["-n", namespace, "get", "pods", "-l", &label, "-o", "json"])?;
    let list: Value = serde_json::from_str(&text)?;
    let stay = list["items"].as_array().into_iter().flatten();
    let stay = stay.map(|pod| &pod["metadata"]).filter(|pod| pod["deletionTimestamp"].is_null());
    Ok(stay.filter_map(|pod| pod["name"].as_str().map(str::to_owned)).collect())
}

/// The number of restarts of a pod's container.
fn restarts(cluster: &Cluster, pod: &str) -> Result<u32> {
    let path = "jsonpath={.status.containerStatuses[0].restartCount}";
    let count = cluster.kubectl(&["-n", PODS, "get", "pod", pod, "-o", path])?;
    count.trim().parse().with_context(|| format!("{pod} has no restart count: {count:?}"))
}

/// Runs `tiexecctl` in the agent's pod. Returns its output.
fn tiexecctl(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let words = ["-n", AGENT, "exec", "daemonset/tiexec", "--", "/usr/bin/tiexecctl"];
    cluster.kubectl(&[&words, args].concat())
}

/// Waits until the agent runs, and all its pods have the newest revision.
fn agent_is_ready(cluster: &Cluster) -> Result<()> {
    let words = ["-n", AGENT, "rollout", "status", "daemonset/tiexec", "--timeout=120s"];
    cluster.kubectl(&words).map(drop)
}

/// The huge bytes of a process's executable mappings, from smaps.
fn huge(pid: i32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut executable, mut sum) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            executable = words.next().is_some_and(|rights| rights.contains('x'));
        } else if executable && ["FilePmdMapped:", "ShmemPmdMapped:"].contains(&first) {
            sum += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
        }
    }
    sum
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Waits until text of the process is huge. Returns the time that this took, in seconds.
fn becomes_huge(cluster: &Cluster, pid: i32) -> Result<f64> {
    let begun = std::time::Instant::now();
    eventually(&format!("text of {pid} is huge"), 45, || huge(pid) > 0)
        .map_err(|error| error.context(why_not(cluster, pid)))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns the agent's decision about a process.
fn why_not(cluster: &Cluster, pid: i32) -> String {
    tiexecctl(cluster, &["rules", "check", &pid.to_string()])
        .unwrap_or_else(|error| format!("{error:#}"))
}

/// The directory of a process's cgroup in a hierarchy of cgroup v1.
fn group_of(pid: i32, controller: &str) -> Result<std::path::PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.split_once(&format!(":{controller}:")));
    let (_, path) = path.with_context(|| format!("{pid} is in no group of {controller}"))?;
    Ok(format!("/sys/fs/cgroup/{controller}{path}").into())
}

/// The directory of a process's memory cgroup.
fn memory_group(pid: i32) -> Result<std::path::PathBuf> {
    group_of(pid, "memory")
}

/// The processor time of a process's cgroup, in seconds.
fn processor_time(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(group_of(pid, "cpuacct")?.join("cpuacct.usage"))?;
    Ok(text.trim().parse::<f64>()? / 1e9)
}

/// The first process of the agent's pod.
fn agent_pid(cluster: &Cluster) -> Result<i32> {
    let pods = pods_of(cluster, AGENT, AGENT)?;
    cluster.pid(AGENT, pods.first().context("no agent")?)
}

/// A counter of `memory.stat`.
fn memory_stat(pid: i32, name: &str) -> Result<u64> {
    let text = fs::read_to_string(memory_group(pid)?.join("memory.stat"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).with_context(|| format!("no {name}"))
}
