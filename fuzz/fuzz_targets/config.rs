//! Any text as `TIEXEC`, as the configuration file and as a duration.
#![no_main]

use std::time::Duration;

use tiexec_core::config::{Layer, Settings};
use tiexec_core::value::parse_duration;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(duration) = parse_duration(text) {
        assert!(duration <= Duration::from_secs(86_400));
    }
    let (environment, malformed) = Layer::from_environment(text);
    for bad in malformed {
        assert!(text.contains(&bad.item) && !bad.problem.is_empty());
    }
    let (file, malformed) = Layer::from_file(text);
    for bad in malformed {
        assert!(text.contains(&bad.item) && !bad.problem.is_empty());
    }
    let alone = Settings::from_layers([environment.clone()]);
    assert_eq!(Settings::from_layers([environment.clone(), Layer::default()]), alone);
    let both = Settings::from_layers([environment.clone(), file]);
    assert_eq!(environment.strict.unwrap_or(both.strict), both.strict);
    assert_eq!(environment.deadline.unwrap_or(both.deadline), both.deadline);
});
