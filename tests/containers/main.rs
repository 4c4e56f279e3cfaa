//! In containers of podman's: its seccomp profile, its capabilities, its mounts.

mod agent;
mod entry_scripts;
mod image;
mod restrictions;
mod start;

use support::child::eventually;
use support::podman::Container;
use support::smaps::{Vma, status_field, vmas};

/// Waits until text of a file of that name is huge in the container's first process, by at least so many bytes.
fn becomes_huge(container: &Container, name: &str, least: u64) {
    let is_its = |vma: &Vma| vma.path.contains(name);
    let huge = || vmas(container.pid).iter().filter(|vma| is_its(vma)).map(Vma::huge).sum::<u64>();
    eventually("its text is huge", || huge() >= least);
    let filters = status_field(container.pid, "Seccomp_filters");
    assert_ne!(filters.as_deref(), Some("0"), "the container has a seccomp profile");
}
