//! The JSON of the commands is as `docs/interfaces/json` says. Each other test checks the JSON that it makes; these check
//! that the comparison finds a difference.

use std::panic::catch_unwind;

use serde_json::Value;
use support::attaching::{ctl, json};
use support::schema;

/// The object that a command prints, after the comparison.
fn printed(args: &[&str]) -> Value {
    let done = ctl(args);
    assert_eq!(schema::check(&done.stdout, "here"), 1, "{done}");
    json(&done)
}

/// Returns whether the comparison refuses the object.
fn is_refused(object: &Value) -> bool {
    let line = object.to_string();
    catch_unwind(|| schema::check(line.as_bytes(), "a changed object")).is_err()
}

#[test]
fn a_changed_object_is_refused() {
    let whole = printed(&["rules", "check", "--json"]);
    assert!(!is_refused(&whole));
    for field in ["rules", "processes", "unmatched", "defects"] {
        let mut less = whole.clone();
        less.as_object_mut().expect("an object").remove(field).expect("the field is there");
        assert!(is_refused(&less), "without {field}");
    }
    let changed: [(&str, Value); 4] =
        [("rules", "2".into()), ("schema", 1.into()), ("kind", "rulez".into()), ("new", 1.into())];
    for (field, value) in changed {
        let mut other: Value = whole.clone();
        other[field] = value;
        assert!(is_refused(&other), "{other}");
    }
    let mut inner = whole;
    inner["defects"] =
        serde_json::json!([{ "file": "a", "defect": "b", "fix": null, "ignored": true }]);
    assert!(!is_refused(&inner));
    inner["defects"][0]["line"] = 7.into();
    assert!(is_refused(&inner), "{inner}");
}

#[test]
fn commands_about_the_machine() {
    for command in [
        &["status", "--json"][..],
        &["doctor", "--json"],
        &["quarantine", "--json"],
        &["store", "list", "--json"],
        &["store", "verify", "--json"],
        &["canary", "export"],
    ] {
        printed(command);
    }
}
