//! What a test program inherits from the shell that starts it. Before the first test runs, it is set to what a login
//! shell of a usual machine has, so that the tests pass or fail alike in all environments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The environment variables that stay, each with all names that begin so. The tools that the tests run find their
/// programs and their caches by these. The language, the time zone, what a CI system sets, and `TIEXEC` itself go.
const KEPT: [&str; 14] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "CARGO",
    "RUST",
    "NEXTEST",
    "GO",
    "TIEXEC_",
    "SSL_CERT_",
    "http",
    "HTTP",
    "no_proxy",
];

/// The signals that a shell ignores in a program in its background, or that `nohup` does.
const HEARD: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1];

/// The soft limits of a usual shell, where the hard ones allow them.
const LIMITS: [(libc::__rlimit_resource_t, u64); 6] = [
    (libc::RLIMIT_NOFILE, 1024),
    (libc::RLIMIT_STACK, 8 << 20),
    (libc::RLIMIT_CPU, libc::RLIM_INFINITY),
    (libc::RLIMIT_FSIZE, libc::RLIM_INFINITY),
    (libc::RLIMIT_DATA, libc::RLIM_INFINITY),
    (libc::RLIMIT_AS, libc::RLIM_INFINITY),
];

/// Called before `main`, while the program has one thread.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = make_usual;

/// Returns whether all users may enter a directory.
fn is_public(directory: &Path) -> bool {
    let may_enter = |directory: &Path| {
        std::fs::metadata(directory).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
    };
    directory.is_absolute() && directory.ancestors().all(may_enter)
}

extern "C" fn make_usual() {
    // SAFETY: umask cannot fail and has no memory conditions.
    unsafe { libc::umask(0o022) };
    for (name, _value) in std::env::vars_os() {
        if !KEPT.iter().any(|kept| name.as_bytes().starts_with(kept.as_bytes())) {
            // SAFETY: no other thread exists yet.
            unsafe { std::env::remove_var(&name) };
        }
    }
    // SAFETY: as above.
    unsafe { std::env::set_var("LANG", OsStr::new("C.UTF-8")) };
    if !is_public(&std::env::temp_dir()) {
        // SAFETY: as above.
        unsafe { std::env::remove_var("TMPDIR") };
    }
    for signal in HEARD {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for (resource, usual) in LIMITS {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is live through the call.
        if unsafe { libc::getrlimit(resource, &mut limit) } == 0 {
            limit.rlim_cur = usual.min(limit.rlim_max);
            // SAFETY: as above. A limit that cannot be set stays as it is.
            unsafe { libc::setrlimit(resource, &limit) };
        }
    }
}
