//! The text becomes huge under each restriction of containers, and under all together. The table of docs/CONTAINERS.md
//! has a row for each.

use support::podman::{Container, NEEDS, is_there};
use support::{Public, require};

use crate::{NODE, becomes_huge};

/// A read-only root as in Kubernetes, without the tmpfs that podman mounts on such a root.
const READ_ONLY: [&str; 2] = ["--read-only", "--read-only-tmpfs=false"];

/// Starts node behind a shell under these options, and waits until its text is huge.
fn is_huge_under(options: &[&str]) {
    require!(is_there(), "{NEEDS}");
    let public = Public::new();
    let tiexec = public.tiexec();
    let code = format!("exec node -e '{NODE}'");
    let words = [tiexec.as_os_str(), "sh".as_ref(), "-c".as_ref(), code.as_ref()];
    let container = Container::start(&[public.path()], options, &words);
    becomes_huge(&container, "node", 8 << 20);
}

#[test]
fn no_capabilities() {
    is_huge_under(&["--cap-drop=all"]);
}

#[test]
fn no_new_privileges() {
    is_huge_under(&["--security-opt=no-new-privileges"]);
}

#[test]
fn a_root_that_is_read_only() {
    is_huge_under(&READ_ONLY);
}

#[test]
fn not_root() {
    is_huge_under(&["--user=1000:1000"]);
}

/// Pod Security Standards, level *restricted*, with a root that is read-only.
#[test]
fn all_together() {
    is_huge_under(&[
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        READ_ONLY[0],
        READ_ONLY[1],
        "--user=1000:1000",
    ]);
}
