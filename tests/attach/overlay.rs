//! A library on overlayfs, as in a container, that somebody writes to after a program has mapped it. The program goes on with
//! the bytes of the lower layer, and every later open shows those of the upper one. So no copy may be made of the file.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use support::attaching::{attach_run, ctl, switched};
use support::objects::{Made, WithObject};
use support::store::{own_run, tmpfs};
use support::{Run, is_root, pmd_size, require};

#[test]
fn a_library_that_was_written_to_since_is_left_alone() {
    require!(is_root(), "overlayfs needs root");
    own_run();
    let (with, own) = (WithObject::new(Made::Gnu), tempfile::tempdir().expect("a directory"));
    tmpfs(own.path(), "mode=0755");
    let [upper, work, merged] = ["upper", "work", "merged"].map(|name| own.path().join(name));
    for directory in [&upper, &work, &merged] {
        std::fs::create_dir(directory).expect("an own directory");
    }
    let [lower, up, by] = [with.dir(), &upper, &work].map(|place| place.display().to_string());
    let options = format!("lowerdir={lower},upperdir={up},workdir={by}");
    support::store::mount("overlay", &merged, Some("overlay"), 0, &options);
    let held = Run::new(merged.join("program"), ["7"]).plain().hold();
    let pid = held.said_pid();
    let attach = || attach_run(pid).output();
    attach().assert_code(0);
    assert!(switched(pid) > 0, "{:?}", held.coverage());
    ctl(["revert", &pid.to_string()]).assert_code(0);
    let object = OpenOptions::new().write(true).open(merged.join("libbig_object.so"));
    let other = vec![0xcc; 3 * pmd_size() as usize / 2];
    object.expect("a file").write_all_at(&other, pmd_size()).expect("a copy-up");
    let done = attach();
    assert_eq!(switched(pid), 0, "{done}");
    assert!(done.out().contains("modified_text"), "{done}");
    // It reads all of its text, and would have ended by now.
    held.finish().assert_code(7);
}
