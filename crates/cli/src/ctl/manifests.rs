//! `tiexecctl rules check -f`: finds the agent's labels and annotations in manifests of Kubernetes. Reports those on
//! pods, and those that never reach a pod.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tiexec_agent::pods::{PREFIX, Pod};
use tiexec_agent::rules::Rules;
use tiexec_core::config::Settings;
use tiexec_core::escape::AsShown;

use super::{input, print};
use crate::exit;
use crate::stdio::warn;

/// Most bytes of a manifest.
const LONGEST: u64 = 64 << 20;

/// The findings in manifests.
#[derive(Debug, Default)]
struct Findings {
    /// Lines about pods that rules can find.
    good: Vec<String>,
    /// Lines about labels and annotations without effect.
    bad: Vec<String>,
}

/// Checks the manifests; returns the exit status.
pub(super) fn check(paths: &[PathBuf], rules: &Rules) -> u8 {
    let mut status = exit::OK;
    for path in paths {
        let documents = read(path).map_err(|why| (why, "name a manifest that can be read"));
        let documents = documents.and_then(|text| {
            let parsed = serde_saphyr::from_multiple::<Value>(&text);
            parsed.map_err(|error| {
                (error.to_string().lines().next().unwrap_or_default().to_owned(), "edit it")
            })
        });
        let documents = match documents {
            Ok(documents) => documents,
            Err((why, fix)) => {
                let shown = path.shown().to_string();
                let name = if path == Path::new("-") { "standard input" } else { &shown };
                warn(format_args!("cannot read {name}: {}; fix: {fix}", why.shown()));
                status = exit::FAILED;
                continue;
            }
        };
        let findings = of_documents(&documents, rules);
        for bad in &findings.bad {
            warn(format_args!("{}: {bad}", path.shown()));
            status = exit::FAILED;
        }
        let lines = findings.good.iter().map(|line| format!("{}: {line}\n", path.shown()));
        let printed = print(&lines.collect::<String>());
        status = if status == exit::OK { printed } else { status };
    }
    status
}

fn read(path: &Path) -> Result<String, String> {
    if path == Path::new("-") {
        return input::limited(std::io::stdin().lock(), LONGEST);
    }
    input::text_of(path, LONGEST)
}

fn of_documents(documents: &[Value], rules: &Rules) -> Findings {
    let mut findings = Findings::default();
    for document in documents {
        // A list contains further objects.
        let items =
            document["items"].as_array().map_or(std::slice::from_ref(document), Vec::as_slice);
        for object in items {
            let field = |value: &Value| value.as_str().unwrap_or("?").shown().to_string();
            let name = format!("{} {}", field(&object["kind"]), field(&object["metadata"]["name"]));
            look(&name, object, "", rules, &mut findings);
        }
    }
    findings
}

/// Checks a part of an object, and all its parts.
fn look(name: &str, part: &Value, path: &str, rules: &Rules, findings: &mut Findings) {
    if is_pod(part) {
        return look_at_pod(name, part, rules, findings);
    }
    for kind in ["labels", "annotations"] {
        for (key, _) in ours(&part["metadata"][kind]) {
            let template = template(part, path);
            let fix = template.unwrap_or_else(|| "the template of the pods: metadata".to_owned());
            findings.bad.push(format!(
                "cannot use {} of {name}: its {kind} do not reach its pods; fix: move it to {fix}.{kind}",
                key.shown()
            ));
        }
    }
    let parts = part.as_object().into_iter().flatten().filter(|(key, _)| *key != "metadata");
    for (key, value) in parts {
        look(name, value, &format!("{path}{key}."), rules, findings);
    }
}

fn look_at_pod(name: &str, pod: &Value, rules: &Rules, findings: &mut Findings) {
    let mut keys: [BTreeMap<String, String>; 2] = Default::default();
    for (kind, keys) in ["annotations", "labels"].into_iter().zip(&mut keys) {
        for (key, value) in ours(&pod["metadata"][kind]) {
            match value.as_str() {
                Some(value) => {
                    keys.insert(key.clone(), value.to_owned());
                }
                None => findings.bad.push(format!(
                    "cannot use {} of {name}: its value {value} is not text; fix: put it in quotes",
                    key.shown()
                )),
            }
        }
    }
    let [annotations, labels] = keys;
    let pod = Pod::new(("", ""), annotations.iter(), labels.iter());
    if let Err(why) = pod.settings(&Settings::default()) {
        findings
            .bad
            .push(format!("cannot use an annotation of {name}: {}; fix: edit it", why.shown()));
    }
    if pod.keys.is_empty() {
        return;
    }
    let keys = pod.keys.iter().map(|(key, value)| format!("{}={}", key.shown(), value.shown()));
    let keys = keys.collect::<Vec<_>>().join(", ");
    let rule = rules.rules.iter().find(|rule| rule.asks_for(&pod));
    let rule = rule.map_or("no rule asks for that".to_owned(), |rule| {
        format!("rule {}: {}", rule.name, rule.action.as_str())
    });
    findings.good.push(format!("pods of {name} have {keys}; {rule}"));
}

/// Returns whether this is a pod, or a template of pods.
fn is_pod(part: &Value) -> bool {
    part["spec"]["containers"].is_array()
}

/// Returns the labels or annotations that the agent reads.
fn ours(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
    map.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX))
}

/// Finds the first template of pods in a part of an object; returns the path of its metadata.
fn template(part: &Value, path: &str) -> Option<String> {
    if is_pod(part) {
        return Some(format!("{path}metadata"));
    }
    part.as_object()?.iter().find_map(|(key, value)| template(value, &format!("{path}{key}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Findings {
        let documents = serde_saphyr::from_multiple::<Value>(text).unwrap();
        of_documents(&documents, &Rules::default())
    }

    const POD: &str = "spec: {containers: [{name: a}]}";

    #[test]
    fn labels_count_on_pods_alone() {
        let label = "labels: {tiexec.io/enable: \"true\", app: db}";
        let deployment = |own: &str, pods: &str| {
            of(&format!(
                "kind: Deployment\nmetadata: {{name: db, {own}}}\nspec:\n  template:\n    metadata: {{{pods}}}\n    {POD}\n"
            ))
        };
        let right = deployment("labels: {app: db}", label);
        assert!(right.bad.is_empty());
        let [line] = &right.good[..] else { panic!("{right:?}") };
        assert!(line.starts_with("pods of Deployment db have tiexec.io/enable=true; "), "{line}");
        let wrong = deployment(label, "");
        let [line] = &wrong.bad[..] else { panic!("{wrong:?}") };
        assert!(line.ends_with("fix: move it to spec.template.metadata.labels"), "{line}");
        assert!(wrong.good.is_empty());
        let bare = of(&format!("---\nkind: Pod\nmetadata: {{name: a, {label}}}\n{POD}\n---\n"));
        assert_eq!((bare.good.len(), bare.bad.len()), (1, 0));
        let namespace = of(&format!("kind: Namespace\nmetadata: {{name: a, {label}}}\n"));
        assert_eq!((namespace.good.len(), namespace.bad.len()), (0, 1));
    }

    #[test]
    fn a_cron_job_has_three_places() {
        let text = |job: &str, pods: &str| {
            format!(
                "kind: List\nitems:\n- kind: CronJob\n  metadata: {{name: a}}\n  spec:\n    jobTemplate:\n      metadata: {{{job}}}\n      \
                 spec:\n        template:\n          metadata: {{{pods}}}\n          {POD}\n"
            )
        };
        let annotation = "annotations: {tiexec.io/edges: pad}";
        let wrong = of(&text(annotation, ""));
        let fix = "fix: move it to spec.jobTemplate.spec.template.metadata.annotations";
        assert!(wrong.bad.len() == 1 && wrong.bad[0].ends_with(fix), "{wrong:?}");
        let right = of(&text("", annotation));
        assert_eq!((right.good.len(), right.bad.len()), (1, 0));
    }

    #[test]
    fn values_are_texts_that_the_agent_reads() {
        for (keys, says) in [
            ("labels: {tiexec.io/enable: true}", "is not text"),
            ("annotations: {tiexec.io/edges: wide}", "tiexec.io/edges: "),
        ] {
            let found = of(&format!("kind: Pod\nmetadata: {{name: a, {keys}}}\n{POD}\n"));
            assert!(found.bad.len() == 1 && found.bad[0].contains(says), "{found:?}");
        }
    }
}
