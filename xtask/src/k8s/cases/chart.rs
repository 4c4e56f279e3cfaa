//! The objects of the installation, and the requests that they allow the agent.

use std::fs;

use anyhow::{Result, ensure};

use super::{AGENT, agent_is_ready};
use crate::chart::{CHART, MANIFEST};
use crate::k8s::node::Cluster;
use crate::vm::build::repository;

/// The values: the image that was imported, and programs that need not be old. The machine is busy with the cluster itself.
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
"#;

fn helm(cluster: &Cluster, words: &[&str]) -> Result<String> {
    Cluster::output(cluster.command("helm").current_dir(repository()?).args(words))
}

/// Installs the agent by the chart, in a namespace as the plain manifest has it.
pub(super) fn install(cluster: &mut Cluster) -> Result<()> {
    let values = cluster.at("values.yaml");
    fs::write(&values, VALUES)?;
    cluster.kubectl(&["create", "namespace", AGENT])?;
    let level = "pod-security.kubernetes.io/enforce=privileged";
    cluster.kubectl(&["label", "namespace", AGENT, level])?;
    helm(cluster, &["install", "tiexec", CHART, "-n", AGENT, "-f", &values.to_string_lossy()])?;
    agent_is_ready(cluster)
}

/// The API server knows every field of the plain manifest; helm finds no fault with the chart, and its schema refuses a CPU limit.
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

/// The agent may look at pods, and do nothing else.
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
        // Its exit status is 1 where the answer is no.
        let words = ["auth", "can-i", verb, "--as", &user, "-A"];
        let what_words: Vec<&str> = what.split(' ').collect();
        let can = cluster.kubectl(&[&words[..], &what_words].concat());
        ensure!(can.is_ok() == may, "may {verb} {what}: {}, not {may}", !may);
    }
    Ok(format!("{} questions", asked.len()))
}
