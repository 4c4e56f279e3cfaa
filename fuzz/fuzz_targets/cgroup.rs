//! Any bytes as `/proc/PID/cgroup` and, after the first null byte, `/proc/PID/mountinfo`.
#![no_main]

use tiexec_core::proc::cgroup;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let at = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let (own, mounts) = (&text[..at], text.get(at + 1..).unwrap_or_default());
    if let Some(found) = cgroup::memory_cgroup(own, mounts) {
        assert!(found.mount.len() <= mounts.len());
        assert!(found.below.len() <= own.len());
    }
    for init in [&b""[..], own, mounts] {
        let Some(units) = cgroup::units(own, init) else { continue };
        let user = units.user.map(|user| user.name).unwrap_or_default();
        assert!(!units.system.is_empty() && !units.system.contains('/') && !user.contains('/'));
        assert!(!units.system.ends_with(".slice") && !user.ends_with(".slice"));
    }
});
