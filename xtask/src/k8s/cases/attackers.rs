//! Hostile processes in pods.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{PODS, Pod, becomes_huge, delete, huge, mib, restarts, start, tiexecctl};
use crate::k8s::node::{Cluster, eventually};

/// A namespace whose pods may have every privilege.
const TENANT: &str = "tenant";

fn tenant(cluster: &Cluster) -> Result<()> {
    let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT, "labels": labels}});
    cluster.apply(&namespace.to_string())?;
    let account = || cluster.kubectl(&["-n", TENANT, "get", "serviceaccount", "default"]).is_ok();
    eventually("the namespace has a service account", 30, account)
}

/// A pod of the tenant, with that user.
fn of_tenant(pod: &Pod<'_>, uid: u32) -> Value {
    let mut value = pod.value();
    value["metadata"]["namespace"] = json!(TENANT);
    value["spec"]["securityContext"] = json!({"fsGroup": uid});
    // Only the container gets this user. With the pod's user, the sandbox would be another process of the user that
    // could be robbed.
    let security = &mut value["spec"]["containers"][0]["securityContext"];
    (security["runAsUser"], security["runAsGroup"]) = (json!(uid), json!(uid));
    value
}

fn delete_tenants(cluster: &Cluster) -> Result<()> {
    let words = ["-n", TENANT, "delete", "pod", "--all", "--grace-period=1"];
    cluster.kubectl(&words).map(drop)
}

/// A pod in the node's PID namespace, with the target's user, can take nothing from the processes that work on the
/// target. A pod that damages its own code while it is stopped delays no other pod.
pub(super) fn same_user(cluster: &mut Cluster) -> Result<String> {
    const USER: u32 = 2003;
    tenant(cluster)?;
    let idle = ["node", "-e", "setInterval(() => {}, 1000)"];
    let target = Pod { name: "robbed", labelled: true, args: &idle, memory: "512Mi" };
    let pid = start(cluster, &of_tenant(&target, USER))?;
    becomes_huge(cluster, pid)?;
    let spared = pid.to_string();
    let robber =
        Pod { name: "robber", labelled: false, args: &["robs", "robs", &spared], memory: "64Mi" };
    let mut robber = of_tenant(&robber, USER);
    robber["spec"]["hostPID"] = json!(true);
    start(cluster, &robber)?;
    let rounds = 10;
    for _ in 0..rounds {
        tiexecctl(cluster, &["revert", "-q", &spared])?;
        tiexecctl(cluster, &["attach", "-q", &spared])?;
    }
    ensure!(huge(pid) > 0, "none of it is huge");
    let said = cluster.kubectl(&["-n", TENANT, "logs", "robber"])?;
    let robbed: Vec<&str> = said.lines().filter(|line| line.starts_with("robbed")).collect();
    ensure!(
        said.contains("ready") && robbed.is_empty(),
        "{} robbed: {:?}",
        robbed.len(),
        robbed.first()
    );

    let spins = Pod { name: "spins", labelled: true, args: &["spins"], memory: "128Mi" };
    start(cluster, &of_tenant(&spins, 2004))?;
    let other =
        Pod { name: "beside", labelled: true, args: &idle, memory: "512Mi" }.start(cluster)?;
    let took = becomes_huge(cluster, other)?;
    delete(cluster, &["beside"])?;
    delete_tenants(cluster)?;
    Ok(format!(
        "{rounds} rounds beside a robber that got nothing; {took:.1} s beside one that spins"
    ))
}

/// The agent leaves a pod alone after its processes have crashed after a switch. Such a pod cannot switch the agent off
/// for others, not even as root in its container with many builds.
pub(super) fn crashes(cluster: &mut Cluster) -> Result<String> {
    tenant(cluster)?;
    for name in ["crasher6", "crasher7", "crasher8"] {
        let mut pod = of_tenant(&Pod { name, labelled: true, args: &[name], memory: "128Mi" }, 0);
        pod["spec"]["containers"][0]["securityContext"] = json!({});
        // It may have crashed before anybody could ask for its process.
        cluster.apply(&pod.to_string())?;
    }
    let count = |name: &str| {
        let path = "jsonpath={.status.containerStatuses[0].restartCount}";
        let count = cluster.kubectl(&["-n", TENANT, "get", "pod", name, "-o", path]);
        count.ok().and_then(|count| count.trim().parse::<u32>().ok()).unwrap_or(0)
    };
    let names = ["crasher6", "crasher7", "crasher8"];
    eventually("each of them has crashed", 60, || names.iter().all(|name| count(name) > 0))?;
    std::thread::sleep(Duration::from_secs(15));
    let counts: Vec<u32> = names.iter().map(|name| count(name)).collect();
    ensure!(counts.iter().all(|count| *count == 1), "they crashed {counts:?} times");
    let idle = ["node", "-e", "setInterval(() => {}, 1000)"];
    let other = Pod { name: "unharmed", labelled: true, args: &idle, memory: "512Mi" };
    let pid = other.start(cluster)?;
    let treated = becomes_huge(cluster, pid).map(|took| (took, huge(pid)));
    let list = tiexecctl(cluster, &["quarantine"])?;
    let builds = list.lines().filter(|line| line.contains("crasher")).count();
    let ended = restarts(cluster, "unharmed");
    let _clean = cluster.kubectl(&["-n", PODS, "delete", "pod", "unharmed", "--grace-period=1"]);
    delete_tenants(cluster)?;
    let (took, bytes) =
        treated.map_err(|error| error.context(format!("after these crashes:\n{list}")))?;
    ensure!(ended? == 0, "the other pod was started again");
    Ok(format!(
        "{builds} builds of root's in a pod crashed once each; {} of another pod huge after {took:.1} s",
        mib(bytes)
    ))
}
