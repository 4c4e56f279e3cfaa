//! A launch takes text that is cached in small folios out of the page cache and reads it back in huge ones, once, if no
//! process uses the file. After that the file stays huge, and later launches copy nothing.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::fresh::assert_pagecache;
use support::machine::{Groups, inside, memory_controller};
use support::store::own_run;
use support::warm::{
    cache_small, directory, evict, has_large_folios, huge, reclaimed_pages, run, small, watched,
    with_private_mounts,
};
use support::{Kind, Pinned, Report, Run, installed, is_root, pmd_size, program, require};

fn needs(dir: &Path) -> bool {
    has_large_folios(dir) && installed("strace").is_some()
}

const NEEDS: &str = "no large folios on this file system, or no strace";

/// A launch of the program that ends at once, for [`watched`].
fn launch(options: &[&str], program: &Path) -> Command {
    own_run();
    let mut command = Command::new(support::tiexec());
    command.args(["--deadline=2m", "--settle=0"]).args(options).arg(program).arg("7");
    command.env_remove("TIEXEC").stdin(Stdio::null());
    command
}

/// Runs the launch. Returns the number of huge pages that it evicted.
fn evicted(command: &Command) -> usize {
    let (done, calls) = watched(command);
    assert_eq!(done.code, 7, "{}{}", done.out, done.err);
    assert!(calls.evicted.iter().all(|len| *len == pmd_size()), "{:?}", calls.evicted);
    calls.evicted.len()
}

/// Asserts that the launch evicts nothing, and that `-v` says why.
fn evicts_nothing(command: &Command, why: &str) {
    let (done, calls) = watched(command);
    assert_eq!((done.code, calls.evicted), (7, vec![]), "{}{}", done.out, done.err);
    assert!(done.err.contains(why), "{why}: {}", done.err);
}

/// A program in small folios of the page cache that no process uses.
fn unused(kind: Kind, dir: &Path) -> PathBuf {
    small(&program("hold", kind), dir)
}

#[test]
fn after_one_launch_the_file_stays_huge() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    for kind in [Kind::StaticNoPie, Kind::DynamicPie] {
        let copy = unused(kind, dir.path());
        let report = Report::new();
        let run = report.of(&Run::new(&copy, ["7"]).options(["--deadline=2m", "--settle=0"]));
        let held = run.hold();
        assert_pagecache(&report.read(), kind == Kind::DynamicPie);
        assert!(held.coverage().is_full(), "{:?}", held.coverage());
        // The program is mapped, so the kernel keeps the pages for the second launch.
        assert_eq!(evicted(&launch(&[], &copy)), 0);
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn the_text_alone_is_evicted_and_each_part_once() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let parts = evicted(&launch(&[], &copy)) as u64;
    let huge = huge(&copy);
    let reclaimed = (4096 * reclaimed_pages(&copy)).next_multiple_of(pmd_size());
    assert!(parts > 0 && huge <= parts * pmd_size(), "{parts} parts, {huge} are huge");
    assert!(huge + reclaimed >= parts * pmd_size(), "{parts} parts, {huge} are huge");
}

#[test]
fn a_shared_library() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let mut with = support::objects::WithObject::new(support::objects::Made::Gnu);
    with.uncache_object();
    cache_small(&with.object);
    assert!(evicted(&launch(&[], &with.program)) > 0);
    // A process that uses a page of the library keeps all of it.
    evict(&with.object);
    cache_small(&with.object);
    let held = Run::new(&with.program, ["7"]).plain().hold();
    evicts_nothing(&launch(&["-v"], &with.program), "in_use: a process has it mapped");
    held.finish().assert_code(7);
    // The kernel executes no program that is open for writing, but it maps such a library.
    let writer = File::options().append(true).open(&with.object).expect("an own file");
    let why = "open_for_writing: a process has the file open for writing";
    evicts_nothing(&launch(&["-v"], &with.program), why);
    drop(writer);
}

#[test]
fn a_file_in_use_is_not_evicted() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let held = Run::new(&copy, ["7"]).plain().hold();
    evicts_nothing(&launch(&["-v"], &copy), "in_use: a process has it mapped; fix: ");
    held.finish().assert_code(7);
    assert!(evicted(&launch(&[], &copy)) > 0);
}

#[test]
fn a_file_with_dirty_pages_is_not_evicted() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    // Another process may sync the whole machine in between, so the test tries more than once.
    let refused = (0..5).any(|_| {
        let pinned = Pinned::new(&copy);
        let len = copy.metadata().expect("a file").len();
        let writer = File::options().write(true).open(&copy).expect("an own file");
        writer.write_all_at(&[0; 4096], len).expect("room");
        drop((writer, pinned));
        let (done, calls) = watched(&launch(&["-v"], &copy));
        calls.evicted.is_empty() && done.err.contains("dirty_file: ")
    });
    assert!(refused);
}

#[test]
fn the_user_may_forbid_it() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    evicts_nothing(&launch(&["--evict=never", "-v"], &copy), "small_folios: ");
    let mut by_variable = launch(&[], &copy);
    by_variable.env("TIEXEC", "evict=never");
    assert_eq!(evicted(&by_variable), 0);
    assert_eq!(evicted(&launch(&["--backing=image"], &copy)), 0);
    let (plan, calls) = watched(&launch(&["--dry-run"], &copy));
    assert_eq!((plan.code, calls.evicted), (0, vec![]), "{}", plan.err);
    assert!(evicted(&launch(&["--backing=pagecache"], &copy)) > 0);
}

/// A process that has mapped a file and not touched it loses its pages, and reads the same bytes again.
#[test]
fn a_mapping_that_was_never_used_has_the_same_bytes() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let content = std::fs::read(&copy).expect("an own file");
    let file = File::open(&copy).expect("an own file");
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), content.len(), protection, flags, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    assert!(evicted(&launch(&[], &copy)) > 0);
    // SAFETY: the mapping just made has this length, and nobody changes or truncates the file.
    let mapped = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), content.len()) };
    assert!(mapped == content, "another content");
    // SAFETY: no reference to the mapping is used after this.
    unsafe { libc::munmap(at, content.len()) };
}

/// The first huge page is timed.
#[test]
fn a_slow_device_ends_it() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let mut slow = launch(&["-v"], &copy);
    slow.env("TIEXEC_TEST_DISK", "1000000");
    let (done, calls) = watched(&slow);
    assert_eq!((done.code, calls.evicted), (7, vec![pmd_size()]), "{}", done.err);
    assert!(done.err.contains("deadline: it lies on a slow device, which took "), "{}", done.err);
}

/// Without large folios, one huge page's worth is evicted, once: the file is remembered.
#[test]
fn a_file_system_without_large_folios_is_remembered() {
    require!(is_root(), "root is needed to mount");
    require!(installed("mkfs.ext4").is_some(), "no mkfs.ext4");
    require!(installed("strace").is_some(), "no strace");
    let dir = directory();
    own_run();
    with_private_mounts(|| {
        let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
        File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
        run("mkfs.ext4", &["-q".as_ref(), &image]);
        std::fs::create_dir(&point).expect("a mount point");
        // ext4 has no large folios if it writes the data to its journal.
        run("mount", &["-o".as_ref(), "loop,data=journal".as_ref(), &image, &point]);
        let copy = unused(Kind::DynamicNoPie, &point);
        let first = evicted(&launch(&[], &copy));
        require!(huge(&copy) == 0, "this kernel has large folios there");
        assert_eq!(first, 1);
        evicts_nothing(&launch(&["-v"], &copy), "an earlier launch evicted it in vain");
        // Another file is another file, and so is a changed one.
        File::options().append(true).open(&copy).and_then(|file| file.sync_all()).expect("fsync");
        support::chmod(&copy, 0o700);
        File::open(&copy).and_then(|file| file.sync_all()).expect("fsync");
        assert_eq!(evicted(&launch(&[], &copy)), 1);
    });
}

#[test]
fn on_other_file_systems_nothing_is_evicted() {
    require!(is_root(), "root is needed to mount");
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    own_run();
    with_private_mounts(|| {
        let [lower, upper, work, point] = ["lower", "upper", "work", "point"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("an own directory");
            path
        });
        unused(Kind::DynamicNoPie, &lower);
        let name = |path: &Path| path.display().to_string();
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", name(&lower), name(&upper), name(&work));
        let overlay = ["-t", "overlay", "-o", &layers, "none"].map(Path::new);
        run("mount", &overlay.into_iter().chain([point.as_path()]).collect::<Vec<_>>());
        let above = point.join(program("hold", Kind::DynamicNoPie).file_name().expect("a name"));
        evicts_nothing(&launch(&["-v"], &above), "on overlay, a read may wait for a server");
    });
}

/// The kernel does not tell an ordinary user what is cached of another user's file, and root evicts nothing that another
/// user chose.
#[test]
fn another_users_file_is_not_evicted() {
    require!(is_root(), "root is needed to become somebody else");
    let public = support::Public::new();
    require!(needs(public.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, public.path());
    let as_nobody = |copy: &Path| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        setpriv.arg(public.tiexec()).args(["--deadline=2m", "--settle=0", "-v"]).arg(copy).arg("7");
        setpriv.env_remove("TIEXEC").stdin(Stdio::null());
        setpriv
    };
    let theirs = "not_owner: nothing was evicted: mincore serves only the file's owner";
    evicts_nothing(&as_nobody(&copy), theirs);
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).expect("root may");
    File::open(&copy).and_then(|file| file.sync_all()).expect("fsync");
    evicts_nothing(&launch(&["-v"], &copy), theirs);
}

/// The page cache is charged to the program's cgroup, which must have room for it.
#[test]
fn a_cgroup_without_room_for_the_text() {
    require!(is_root(), "a cgroup needs root");
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let mut groups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, limit) = controller.expect("just looked");
    let group = groups.group(&parent).expect("a cgroup");
    std::fs::write(group.join(limit), (48_u64 << 20).to_string()).expect("a limit");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let run = Run::new(&copy, ["7"]).options(["--deadline=2m", "--settle=0", "-v"]);
    let done = inside(&group, run).hold().finish();
    done.assert_code(7);
    let why = "the page cache holds text in small pages: memcg_headroom: memory cgroup ";
    assert!(done.err().contains(why), "{done}");
    assert_eq!(huge(&copy), 0);
}

/// A user who may read the file can take its unmapped pages out of the page cache at any time, and read them back in small
/// folios. So the launches of others evict it a few times in an hour at most.
#[test]
fn a_user_who_makes_the_file_small_again_and_again() {
    let dir = directory();
    require!(needs(dir.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let attempts = (0..10).map(|_| {
        let parts = evicted(&launch(&[], &copy));
        evict(&copy);
        cache_small(&copy);
        parts
    });
    let evicting = attempts.filter(|parts| *parts > 0).count();
    assert_eq!(evicting, 8);
    evicts_nothing(&launch(&["-v"], &copy), "launches evicted it 8 times within an hour");
}
