//! Any bytes as `/proc/PID/mountinfo`.
#![no_main]

use tiexec_core::proc::mountinfo;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let mounts = mountinfo::parse(text);
    for mount in &mounts {
        if let Some(layers) = mountinfo::overlay_layers(mount.options) {
            assert!(layers.iter().all(|layer| layer.starts_with(b"/")));
        }
    }
    let _ = mountinfo::of_path(&mounts, text);
});
