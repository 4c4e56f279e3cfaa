//! The agent ends and starts again. No program notices.

use anyhow::{Result, ensure};

use super::{
    AGENT, Pod, agent_is_ready, becomes_huge, delete, huge, mib, pods_of, restarts, tiexecctl,
};
use crate::k8s::node::{Cluster, eventually};

const BUSY: [&str; 3] =
    ["node", "-e", "setInterval(() => JSON.stringify([...Array(999).keys()]), 1)"];

/// The agent's pod is deleted without grace, and restarts. Treated text is unchanged, and new pods are treated.
pub(super) fn killed(cluster: &mut Cluster) -> Result<String> {
    let before = Pod { name: "before", labelled: true, args: &BUSY, memory: "512Mi" };
    let first = before.start(cluster)?;
    becomes_huge(cluster, first)?;
    let bytes = huge(first);
    let old = pods_of(cluster, AGENT, AGENT)?;
    let name = old.first().map(String::as_str).unwrap_or_default();
    cluster.kubectl(&["-n", AGENT, "delete", "pod", "--force", "--grace-period=0", name])?;
    let replaced = || pods_of(cluster, AGENT, AGENT).is_ok_and(|new| !new.is_empty() && new != old);
    eventually("the agent is replaced", 60, replaced)?;
    agent_is_ready(cluster)?;
    ensure!(huge(first) == bytes, "{} instead of {}", mib(huge(first)), mib(bytes));
    let second = Pod { name: "after", ..before }.start(cluster)?;
    let took = becomes_huge(cluster, second)?;
    ensure!(restarts(cluster, "before")? == 0, "the pod was started again");
    delete(cluster, &["before", "after"])?;
    Ok(format!("{} stayed huge; a new pod's text was huge after {took:.1} s", mib(bytes)))
}

/// A rollout of the DaemonSet changes no program. Then a drain of the agent reverts all text.
pub(super) fn upgraded(cluster: &mut Cluster) -> Result<String> {
    let pod = Pod { name: "upgraded", labelled: true, args: &BUSY, memory: "512Mi" };
    let pid = pod.start(cluster)?;
    becomes_huge(cluster, pid)?;
    let bytes = huge(pid);
    let begun = std::time::Instant::now();
    cluster.kubectl(&["-n", AGENT, "rollout", "restart", "daemonset/tiexec"])?;
    agent_is_ready(cluster)?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(huge(pid) == bytes, "{} instead of {}", mib(huge(pid)), mib(bytes));
    tiexecctl(cluster, &["agent", "drain"])?;
    ensure!(huge(pid) == 0, "{} are huge after the drain", mib(huge(pid)));
    ensure!(restarts(cluster, "upgraded")? == 0, "the pod was started again");
    tiexecctl(cluster, &["agent", "resume"])?;
    becomes_huge(cluster, pid)?;
    delete(cluster, &["upgraded"])?;
    Ok(format!(
        "{} stayed huge over a rollout of {took:.1} s; none after the drain; huge again after its end",
        mib(bytes)
    ))
}
