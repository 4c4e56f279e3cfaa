//! The objects of the installation, and the permissions of the agent.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{AGENT, Pod, agent_is_ready, becomes_huge, delete, huge, mib, restarts, why_not};
use crate::k8s::chart::{CHART, MANIFEST};
use crate::k8s::node::{Cluster, eventually};
use crate::repository;

/// The values of the chart: the imported image, and a minimum age of 1 s. Memory pressure is not limited, because the
/// machine is busy with the cluster itself.
const VALUES: &str = r#"
image: {repository: local.test/tiexec, tag: "1", pullPolicy: Never}
rules: |
  [agent]
  max-memory-pressure = 100
  [[rule]]
  name = "pods"
  pod = { "tiexec.io/enable" = "true" }
  min-text = "4MiB"
  min-age = "1s"
  action = "attach"
  canary = "off"
  nodes = "SHARE"
"#;

fn helm(cluster: &Cluster, words: &[&str]) -> Result<String> {
    Cluster::output(cluster.command("helm").current_dir(repository()?).args(words))
}

/// Installs the agent by the chart, in the namespace of the plain manifest.
pub(super) fn install(cluster: &mut Cluster) -> Result<()> {
    cluster.kubectl(&["create", "namespace", AGENT])?;
    let level = "pod-security.kubernetes.io/enforce=privileged";
    cluster.kubectl(&["label", "namespace", AGENT, level])?;
    helm_with(cluster, "install", "100%")
}

/// Installs or upgrades the chart, with a rule that acts on a share of the nodes. Waits for the agents.
fn helm_with(cluster: &Cluster, verb: &str, share: &str) -> Result<()> {
    let values = cluster.at("values.yaml");
    fs::write(&values, VALUES.replace("SHARE", share))?;
    helm(cluster, &[verb, "tiexec", CHART, "-n", AGENT, "-f", &values.to_string_lossy()])?;
    agent_is_ready(cluster)
}

/// `helm upgrade` puts new rules into force. A held-out node treats nothing, and says why.
pub(super) fn share(cluster: &mut Cluster) -> Result<String> {
    helm_with(cluster, "upgrade", "0%")?;
    let idle = ["node", "-e", "setInterval(() => {}, 1000)"];
    let pod = Pod { name: "held-out", labelled: true, args: &idle, memory: "512Mi" };
    let pid = pod.start(cluster)?;
    let says = || why_not(cluster, pid);
    eventually("the agent knows the pod", 30, || says().contains("held_out"))?;
    std::thread::sleep(Duration::from_secs(5));
    ensure!(huge(pid) == 0, "{} are huge: {}", mib(huge(pid)), says());
    helm_with(cluster, "upgrade", "100%")?;
    let took = becomes_huge(cluster, pid)?;
    ensure!(restarts(cluster, "held-out")? == 0, "the pod was started again");
    delete(cluster, &["held-out"])?;
    Ok(format!("0 % of the nodes: none huge; 100 %: huge after {took:.1} s"))
}

/// The API server knows every field of the plain manifest. helm accepts the chart, and the chart's schema refuses a CPU
/// limit.
pub(super) fn chart(cluster: &mut Cluster) -> Result<String> {
    let manifest = repository()?.join(MANIFEST);
    let words = ["apply", "--dry-run=server", "--validate=strict", "-f"];
    let said = cluster.kubectl(&[&words[..], &[&manifest.to_string_lossy()]].concat())?;
    helm(cluster, &["lint", "--strict", CHART])?;
    let metrics = ["--set", "metrics.enabled=true,metrics.podMonitor=true"];
    let all = helm(
        cluster,
        &[&["template", "tiexec", CHART, "--kube-version=1.34.0"], &metrics[..]].concat(),
    )?;
    ensure!(all.contains("kind: PodMonitor") && all.contains("--metrics-address="), "{all}");
    let limit =
        ["template", "tiexec", CHART, "--kube-version=1.34.0", "--set", "resources.limits.cpu=1"];
    let refused = helm(cluster, &limit).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("'cpu' not allowed"), "a CPU limit is taken: {refused}");
    Ok(format!("{} objects admitted; helm lint finds nothing", said.lines().count()))
}

/// The agent may only read pods.
pub(super) fn rights(cluster: &mut Cluster) -> Result<String> {
    let user = format!("system:serviceaccount:{AGENT}:tiexec");
    let asked = [
        ("get", "pods", true),
        ("list", "pods", true),
        ("watch", "pods", true),
        ("get", "secrets", false),
        ("list", "secrets", false),
        ("list", "configmaps", false),
        ("list", "nodes", false),
        ("create", "pods", false),
        ("create", "pods --subresource=exec", false),
        ("get", "pods --subresource=log", false),
        ("patch", "pods", false),
        ("delete", "pods", false),
    ];
    for (verb, what, may) in asked {
        // The exit status is 1 if the answer is no.
        let words = ["auth", "can-i", verb, "--as", &user, "-A"];
        let what_words: Vec<&str> = what.split(' ').collect();
        let can = cluster.kubectl(&[&words[..], &what_words].concat());
        ensure!(can.is_ok() == may, "may {verb} {what}: {}, not {may}", !may);
    }
    Ok(format!("{} questions", asked.len()))
}
