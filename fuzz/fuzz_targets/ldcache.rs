//! Any bytes as glibc's cache of libraries, with a search for a name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let (name, cache) = input.split_at(input.len().min(8));
    if let Some(path) = tiexec_core::ldcache::find(cache, name) {
        assert!(cache.windows(path.len().max(1)).any(|window| window == path) || path.is_empty());
    }
});
