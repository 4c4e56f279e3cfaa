//! `tiexecctl quarantine`: the builds that crashed soon after a switch.

use tiexec_agent::guard::signal_name;
use tiexec_agent::state::{Quarantined, State, Store};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::SCHEMA;

use super::{date, print};
use crate::exit;
use crate::options::Quarantine;
use crate::stdio::{and_as_root, warn};

pub(super) fn run(options: &Quarantine) -> u8 {
    if !options.state_dir.exists() {
        return nothing(options);
    }
    let store = match Store::open(&options.state_dir) {
        Ok(store) => store,
        Err(why) => {
            warn(format_args!("cannot open the agent's state: {why}"));
            return exit::FAILED;
        }
    };
    let Some(id) = &options.release else {
        return match store.look() {
            Ok(State { quarantine, .. }) if options.json => print(&json(&quarantine, "builds")),
            Ok(state) if state.quarantine.is_empty() => nothing(options),
            Ok(state) => print(&state.quarantine.iter().map(line).collect::<String>()),
            Err(why) => {
                let fix = and_as_root(&why);
                warn(format_args!("cannot read the agent's state: {why}{fix}"));
                exit::FAILED
            }
        };
    };
    let mut released = Vec::new();
    let updated = store.update(|state| released = state.release(id));
    if let Some(problem) = updated.map_or_else(Some, |(_, problem)| problem) {
        warn(problem);
        return exit::FAILED;
    }
    if released.is_empty() {
        return nothing(options);
    }
    if options.json {
        return print(&json(&released, "released"));
    }
    print(&released.iter().map(|one| format!("released {}", line(one))).collect::<String>())
}

fn nothing(options: &Quarantine) -> u8 {
    match &options.release {
        None if options.json => print(&json(&[], "builds")),
        None => {
            warn("no build is in quarantine");
            exit::OK
        }
        Some(id) => {
            let id = id.shown();
            warn(format_args!(
                "cannot release {id}: no such build is in quarantine; fix: run `tiexecctl quarantine`, which lists them"
            ));
            exit::GONE
        }
    }
}

/// Makes the object of `--json`, with the builds under `name`.
fn json(builds: &[Quarantined], name: &str) -> String {
    let mut object = serde_json::json!({ "schema": SCHEMA, "kind": "quarantine" });
    object[name] = serde_json::json!(builds);
    escape::json(&object) + "\n"
}

fn line(one: &Quarantined) -> String {
    let Quarantined { build, rule, signal, exe, when, .. } = one;
    let whose = one.whose().map_or_else(|| "everybody".to_owned(), |whose| whose.to_string());
    format!(
        "{} {} {} by {} on {} (rule {}, for {whose})\n",
        build.text.shown(),
        build.build_id.shown(),
        exe.shown(),
        signal_name(*signal),
        date::of(*when),
        rule.shown()
    )
}
