//! The JSON of the programs under test, compared with the schema of its kind in `docs/interfaces/json`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use jsonschema::Validator;
use serde_json::Value;

/// Reads the schemas of these kinds.
macro_rules! schemas {
    ($($kind:literal),+ $(,)?) => {
        [$(($kind, include_str!(concat!("../../../docs/interfaces/json/", $kind, ".json")))),+]
    };
}

/// Made when an object of its kind is seen first: most test programs see few kinds.
type Lazy = LazyLock<Validator, Box<dyn FnOnce() -> Validator + Send>>;

static SCHEMAS: LazyLock<BTreeMap<&str, Lazy>> = LazyLock::new(|| {
    let schemas = schemas![
        "advise",
        "agent",
        "attach",
        "attach_sum",
        "bench",
        "canary",
        "canary_verdicts",
        "doctor",
        "enable",
        "inspect",
        "inspect_sum",
        "launch",
        "plan",
        "quarantine",
        "revert",
        "revert_sum",
        "rules",
        "scan",
        "status",
        "store_add",
        "store_list",
        "store_prune",
        "store_remove",
        "store_verify",
        "warm",
    ];
    let lazy = |(kind, text)| (kind, Lazy::new(Box::new(move || validator(kind, text))));
    schemas.into_iter().map(lazy).collect()
});

fn validator(kind: &str, text: &str) -> Validator {
    let mut schema = serde_json::from_str(text).unwrap_or_else(|e| panic!("{kind}.json: {e}"));
    close(&mut schema);
    jsonschema::validator_for(&schema).unwrap_or_else(|e| panic!("{kind}.json: {e}"))
}

/// Allows no fields besides those that a schema names. Readers of our JSON must accept new fields, but a new field belongs
/// into the schema.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(false.into());
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// True in a test that runs another version, which has other schemas.
static OTHER_VERSION: AtomicBool = AtomicBool::new(false);

/// From here on, [`check`] compares nothing: the programs under test are of another version.
pub fn run_another_version() {
    OTHER_VERSION.store(true, Relaxed);
}

/// Compares each object of TiExec in an output with the schema of its kind, and returns their number. Such an object is a
/// line of JSON with `schema` and `kind`.
///
/// # Panics
/// A line is not as the schema of its kind says, or its kind has no schema.
pub fn check(output: &[u8], whose: &str) -> usize {
    if OTHER_VERSION.load(Relaxed) {
        return 0;
    }
    let lines = output.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{"));
    let objects = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let ours = objects.filter(|object| object["schema"].is_u64() && object["kind"].is_string());
    ours.inspect(|object| assert_valid(object, whose)).count()
}

fn assert_valid(object: &Value, whose: &str) {
    let kind = object["kind"].as_str().unwrap_or_default();
    let file = format!("docs/interfaces/json/{kind}.json");
    let schema =
        SCHEMAS.get(kind).unwrap_or_else(|| panic!("there is no {file}: {whose}: {object}"));
    let errors = schema.iter_errors(object);
    let errors = errors.map(|error| format!("{}: {error}", error.instance_path()));
    let errors: Vec<String> = errors.collect();
    assert!(errors.is_empty(), "{file}: {}\n{whose}: {object}", errors.join("\n"));
}
