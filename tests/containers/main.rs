//! Tests in containers of podman, with its seccomp profile, its capabilities, and its mounts.

mod agent;
mod entry_scripts;
mod image;
mod restrictions;
mod start;

use support::child::soon;
use support::podman::Container;
use support::smaps::{Vma, status_field, vmas};

/// A program for node. It works first, because a program that has hardly run is left alone for a minute.
const NODE: &str = "while (process.cpuUsage().user < 200000); setTimeout(() => {}, 100000)";

/// Waits until text of a file of that name is huge in the container's first process, by at least so many bytes.
fn becomes_huge(container: &Container, name: &str, least: u64) {
    becomes_huge_while(container, name, least, || ());
}

/// Does the same, and calls `work` again and again meanwhile.
fn becomes_huge_while(container: &Container, name: &str, least: u64, mut work: impl FnMut()) {
    let is_its = |vma: &Vma| vma.path.contains(name);
    let huge = || vmas(container.pid).iter().filter(|vma| is_its(vma)).map(Vma::huge).sum::<u64>();
    assert!(
        soon(|| {
            work();
            huge() >= least
        }),
        "{} bytes of {name} are huge: {:#?}",
        huge(),
        vmas(container.pid)
    );
    let filters = status_field(container.pid, "Seccomp_filters");
    assert_ne!(filters.as_deref(), Some("0"), "the container has a seccomp profile");
}
