//! The API server is down, or its answers are cut off in the middle.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{PODS, Pod, becomes_huge, delete, huge, mib, start_within};
use crate::k8s::node::{Cluster, eventually};

const IDLE: [&str; 3] = ["node", "-e", "setInterval(() => {}, 1000)"];

/// Finds the process of that name in the pod by the cgroups, without the API server.
fn process_of(uid: &str, name: &str) -> Option<i32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let read = |file| fs::read_to_string(entry.path().join(file)).ok();
        (read("comm")?.trim_end() == name && read("cgroup")?.contains(uid)).then_some(pid)
    })
}

/// While the API server is down, the agent continues with the known pods, and limits its requests. Afterwards it learns
/// about new pods.
pub(super) fn away(cluster: &mut Cluster) -> Result<String> {
    let pod = Pod { name: "known", labelled: true, args: &IDLE, memory: "512Mi" };
    let first = pod.start(cluster)?;
    becomes_huge(cluster, first)?;
    let uid =
        cluster.kubectl(&["-n", PODS, "get", "pod", "known", "-o", "jsonpath={.metadata.uid}"])?;
    cluster.stop_apiserver()?;
    cluster.proxy.reset();
    let begun = Instant::now();
    // The kubelet restarts the container without the API server.
    let killed = std::process::Command::new("kill").arg("-9").arg(first.to_string()).status()?;
    ensure!(killed.success(), "cannot kill it");
    let mut second = None;
    let again = || {
        second = process_of(&uid, "node").filter(|pid| *pid != first);
        second.is_some()
    };
    let restarted = eventually("the container is started again", 60, again);
    let treated = restarted.and_then(|()| {
        let pid = second.context("just seen")?;
        eventually(&format!("text of {pid} is huge"), 45, || huge(pid) > 0).map(|()| huge(pid))
    });
    while begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (asked, away) = (cluster.proxy.traffic().connections, begun.elapsed().as_secs_f64());
    cluster.start_apiserver()?;
    let bytes = treated?;
    ensure!(asked as f64 <= 2.0 * away, "{asked} connections in {away:.0} s");
    let ready =
        || cluster.kubectl(&["get", "node", "node1"]).is_ok_and(|text| text.contains(" Ready"));
    eventually("the node is ready again", 60, ready)?;
    // The client of the kubelet and of the scheduler (client-go) pauses for up to 30 s after a failure, and the one may have to wait
    // for the other.
    let new = start_within(cluster, &Pod { name: "new", ..pod }.value(), 120)?;
    let took = becomes_huge(cluster, new)?;
    delete(cluster, &["known", "new"])?;
    Ok(format!(
        "away for {away:.0} s: the known pod's new process has {} huge, {asked} connections; back: a new pod's text huge after {took:.1} s",
        mib(bytes)
    ))
}

/// Each connection of the agent is cut in the middle, several times. Then no connection brings an answer. Afterwards
/// the agent works as before.
pub(super) fn broken(cluster: &mut Cluster) -> Result<String> {
    let pod = Pod { name: "broken-0", labelled: true, args: &IDLE, memory: "512Mi" };
    cluster.proxy.reset();
    cluster.proxy.cut_after(12_000);
    cluster.proxy.cut_all();
    let begun = Instant::now();
    let names = ["broken-0", "broken-1", "broken-2", "broken-3"];
    for name in names {
        Pod { name, ..pod }.start(cluster)?;
    }
    while begun.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (told, cut) = (cluster.proxy.traffic(), begun.elapsed().as_secs_f64());
    cluster.proxy.cut_after(0);
    cluster.proxy.silence(true);
    std::thread::sleep(Duration::from_secs(10));
    cluster.proxy.silence(false);
    for name in names {
        let pid = cluster.pid(PODS, name)?;
        becomes_huge(cluster, pid)?;
    }
    let last = Pod { name: "broken-4", ..pod }.start(cluster)?;
    let took = becomes_huge(cluster, last)?;
    delete(cluster, &[&names[..], &["broken-4"]].concat())?;
    Ok(format!(
        "{} of {} connections cut in {cut:.0} s, then 10 s of silence: all {} pods treated, a new one after {took:.1} s",
        told.cuts,
        told.connections,
        names.len()
    ))
}
