//! Many pods that kwok simulates. Their nodes exist only in the API.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    AGENT, Pod, agent_is_ready, agent_pid, becomes_huge, delete, memory_stat, mib, processor_time,
};
use crate::k8s::node::{Cluster, eventually};

const NODES: usize = 20;
const PODS: usize = 2000;

/// The agent's requests since the beginning of the audit log, by verb.
fn requests(cluster: &Cluster) -> Result<Vec<String>> {
    let user = format!("system:serviceaccount:{AGENT}:tiexec");
    let log = fs::read_to_string(cluster.at("log/audit.log"))?;
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let own = events.filter(|event| event["user"]["username"] == user.as_str());
    let started =
        own.filter(|event| event["stage"] != "ResponseComplete" || event["verb"] != "watch");
    Ok(started.map(|event| event["verb"].as_str().unwrap_or("?").to_owned()).collect())
}

fn kib(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}

/// The agent receives only the pods of its own node.
pub(super) fn scale(cluster: &mut Cluster) -> Result<String> {
    let mut kwok = cluster.kwok()?;
    let done = with_kwok(cluster);
    kwok.kill()?;
    kwok.wait()?;
    done
}

fn with_kwok(cluster: &mut Cluster) -> Result<String> {
    let nodes: Vec<Value> = (0..NODES)
        .map(|number| {
            let name = format!("kwok-{number}");
            let room = json!({"cpu": 64, "memory": "256Gi", "pods": 250});
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"type": "kwok", "kubernetes.io/hostname": name},
                    "annotations": {"kwok.x-k8s.io/node": "fake"}},
                "spec": {"taints": [{"key": "kwok", "value": "fake", "effect": "NoSchedule"}]},
                "status": {"allocatable": room, "capacity": room},
            })
        })
        .collect();
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string())?;
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "node",
        "-l",
        "type=kwok",
        "--timeout=60s",
    ])?;
    // Agents on simulated nodes would never be ready, so the agent runs only on the real node.
    let selector = json!({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node1"}}}}});
    cluster.kubectl(&["-n", AGENT, "patch", "daemonset", "tiexec", "-p", &selector.to_string()])?;
    agent_is_ready(cluster)?;
    std::thread::sleep(Duration::from_secs(5));
    cluster.proxy.reset();
    let before = requests(cluster)?.len();
    let agent = agent_pid(cluster)?;
    let processor = processor_time(agent)?;
    let begun = Instant::now();
    let fake = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fake"},
        "spec": {
            "replicas": PODS, "selector": {"matchLabels": {"app": "fake"}},
            "template": {
                "metadata": {"labels": {"app": "fake", "tiexec.io/enable": "true"}},
                "spec": {"nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok", "operator": "Exists"}],
                    "containers": [{"name": "main", "image": "fake"}]},
            },
        },
    });
    cluster.apply(&fake.to_string())?;
    cluster.kubectl(&["rollout", "status", "deployment/fake", "--timeout=300s"])?;
    let took = begun.elapsed().as_secs_f64();
    let (while_made, asked) = (cluster.proxy.traffic(), requests(cluster)?.len() - before);
    let processor = processor_time(agent)? - processor;
    let memory = memory_stat(agent, "rss")?;
    // The agent restarts while all pods exist.
    let (before, counted) = (requests(cluster)?.len(), cluster.proxy.traffic());
    cluster.kubectl(&["-n", AGENT, "rollout", "restart", "daemonset/tiexec"])?;
    agent_is_ready(cluster)?;
    std::thread::sleep(Duration::from_secs(5));
    let begins = requests(cluster)?.split_off(before);
    let bytes = cluster.proxy.traffic().received - counted.received;
    // One pod starts on the real node, is treated, and is deleted.
    let counted = cluster.proxy.traffic();
    let pod = Pod {
        name: "among-many",
        labelled: true,
        args: &["node", "-e", "setInterval(() => {}, 1000)"],
        memory: "512Mi",
    };
    let pid = pod.start(cluster)?;
    let treated = becomes_huge(cluster, pid)?;
    delete(cluster, &["among-many"])?;
    let of_one = cluster.proxy.traffic().received - counted.received;
    cluster.kubectl(&["delete", "deployment", "fake", "--wait=false"])?;
    let gone = || {
        cluster
            .kubectl(&["get", "pods", "-l", "app=fake", "-o", "name"])
            .is_ok_and(|text| text.is_empty())
    };
    eventually("the pods have gone", 120, gone)?;
    Ok(format!(
        "{PODS} pods on {NODES} other nodes in {took:.0} s: {} received by the agent in {asked} requests, {:.0} ms of processor time, {} of \
         memory; a new agent: {} in {} requests ({}); one pod of its own from start to end: {}, huge after {treated:.1} s",
        kib(while_made.received),
        processor * 1e3,
        mib(memory),
        kib(bytes),
        begins.len(),
        begins.join(" "),
        kib(of_one)
    ))
}
