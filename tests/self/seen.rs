//! What others see of the library's work: in the program's `/proc` directory, its cgroup, the journal and `/run`.

use support::attaching::{collapses, switched};
use support::child::eventually;
use support::journal;
use support::machine::{Groups, inside, memory_controller, shared_memory};
use support::smaps::{children, status_field};
use support::store::names;
use support::{Kind, is_root, require};

use super::library::{calls_itself, situation};

#[test]
fn a_copy_is_shared_memory_of_the_program_and_of_its_cgroup() {
    require!(is_root() && collapses(), "cgroups need root, and a copy needs MADV_COLLAPSE");
    let mut cgroups = Groups::new();
    let group = memory_controller().and_then(|(parent, _)| cgroups.group(&parent));
    require!(group.is_some(), "no memory controller");
    let group = group.expect("just looked");
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let held = inside(&group, situation(&copy, &["call", "backing=image"])).hold();
    let pid = held.pid();
    let bytes = switched(pid);
    assert!(bytes > 0);
    assert_eq!(status_field(pid, "RssShmem"), Some(format!("{} kB", bytes >> 10)));
    assert_eq!(shared_memory(&group), bytes);
    held.finish().assert_code(7).assert_silent();
    eventually("the memory is given back", || shared_memory(&group) == 0);
}

#[test]
fn no_record_and_no_process() {
    require!(is_root() && collapses(), "another /run needs root, and a copy MADV_COLLAPSE");
    let journal = journal::listen();
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let held = situation(&copy, &["call", "backing=image"]).hold();
    let pid = held.pid();
    assert!(switched(pid) > 0);
    journal::assert_empty(&journal);
    assert_eq!(children(pid), [0; 0]);
    assert_eq!(status_field(pid, "Threads").as_deref(), Some("1"));
    assert_eq!(names("/run/tiexec"), ["lock"]);
    assert_eq!(names("/run/tiexec/lock"), [".swept"]);
    held.finish().assert_code(7).assert_silent();
}
