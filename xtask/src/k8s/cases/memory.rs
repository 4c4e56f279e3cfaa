//! Copies count as memory of the pod.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::database::SERVER;
use super::{AGENT, Pod, becomes_huge, delete, huge, memory_group, memory_stat, mib, restarts};
use crate::k8s::node::Cluster;

/// The pod's cgroup is charged for the copy of its text.
pub(super) fn charged(cluster: &mut Cluster) -> Result<String> {
    let pod = Pod { name: "charged", labelled: true, args: &SERVER, memory: "512Mi" };
    let pid = pod.start(cluster)?;
    let before = memory_stat(pid, "shmem")?;
    becomes_huge(cluster, pid)?;
    let (bytes, after) = (huge(pid), memory_stat(pid, "shmem")?);
    delete(cluster, &["charged"])?;
    ensure!(
        after >= before + bytes,
        "{} are huge, and the pod's shared memory grew from {} to {}",
        mib(bytes),
        mib(before),
        mib(after)
    );
    Ok(format!("{} huge; the pod's shared memory grew by {}", mib(bytes), mib(after - before)))
}

/// The agent leaves a pod alone that is near its memory limit. The pod is not killed, and does not restart.
pub(super) fn near_its_limit(cluster: &mut Cluster) -> Result<String> {
    // Node's text is larger than the memory left.
    let code = "const b = Buffer.alloc(90 << 20, 1); setInterval(() => b.fill(2), 100)";
    let pod = Pod { name: "limit", labelled: true, args: &["node", "-e", code], memory: "160Mi" };
    let pid = pod.start(cluster)?;
    std::thread::sleep(Duration::from_secs(15));
    let group = memory_group(pid)?;
    let used = fs::read_to_string(group.join("memory.usage_in_bytes"))?.trim().parse::<u64>()?;
    let control = fs::read_to_string(group.join("memory.oom_control"))?;
    let kills = control.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap_or("?");
    ensure!(kills == "0", "{kills} OOM kills");
    let count = restarts(cluster, "limit")?;
    ensure!(count == 0, "{count} restarts");
    ensure!(huge(pid) == 0, "{} are huge", mib(huge(pid)));
    let log = cluster.kubectl(&["-n", AGENT, "logs", "daemonset/tiexec", "--tail=-1"])?;
    let mut of_pod = log.lines().filter(|line| line.contains(&format!(" node {pid} ")));
    let says = of_pod.any(|line| line.contains("memcg_headroom"));
    ensure!(says, "the agent gives another reason:\n{log}");
    delete(cluster, &["limit"])?;
    Ok(format!(
        "{} of 160.0 MiB used: left alone (memcg_headroom), 0 OOM kills, 0 restarts",
        mib(used)
    ))
}
