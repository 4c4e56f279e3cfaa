//! A launch by root that becomes another user's program (`--until-exec`) handles that program as carefully as an attach
//! does.

use std::path::Path;

use support::objects::{Made, WithObject, object_coverage};
use support::smaps::{children, status_field};
use support::{Kind, Public, Report, Run, installed, is_root, program, require};

use super::ATTACKER;
use super::files::fuse;

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

/// Root's launch does not wait for a file server that the program's user runs.
#[test]
fn a_program_on_a_file_system_that_never_answers_root() {
    require!(needs() && Path::new("/dev/fuse").exists(), "FUSE and another user need root");
    let (public, node) = fuse();
    let built = program("hostile/silent_fuse", Kind::DynamicNoPie);
    let copy = public.add(&built, "silent_fuse", 0o755);
    let report = Report::new();
    let run = Run::new(&copy, ["program".as_ref(), node.as_os_str()])
        .options(["--until-exec=file", "--backing=image"]);
    let held = report.of(&run).hold();
    held.finish().assert_code(7);
    let said = report.read();
    assert_eq!(said["reason"], "foreign_filesystem", "{said}");
}

/// The program and its shared objects are treated, by child processes of TiExec with the user's credentials.
#[test]
fn a_program_that_has_given_up_its_rights() {
    require!(needs(), "another user needs root");
    let with = WithObject::sized(Made::Gnu, 6, 8);
    let public = Public::new();
    let copy = public.add(&with.program, "server", 0o755);
    let object = public.add(&with.object, "libbig_object.so", 0o755);
    let args = ATTACKER[1..].iter().map(AsRef::as_ref).chain([copy.as_os_str(), "7".as_ref()]);
    let run = Run::new(ATTACKER[0], args);
    let run = run.options(["--until-exec=server", "--backing=image", "--deadline=2m"]);
    let held = run.hold();
    assert!(held.coverage().is_full(), "{:?}", held.coverage());
    let of_object = object_coverage(held.pid(), &object);
    assert!(of_object.is_full(), "{of_object:?}");
    assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"));
    assert_eq!(children(held.pid()), [0; 0], "no process of ours is left, dead or alive");
    held.finish().assert_code(7).assert_silent();
}
