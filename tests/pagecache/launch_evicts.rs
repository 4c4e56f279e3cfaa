//! A launch takes text that is cached in small folios out of the page cache and reads it back in huge ones, once, if no
//! process uses the file. After that the file stays huge, and later launches copy nothing.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::fresh::{assert_pagecache, collapses_files, huge_folios};
use support::machine::{Groups, inside, memory_controller};
use support::store::own_run;
use support::warm::{
    cache_small, directory, evict, has_large_folios, huge, reclaimed_pages, run, small, watched,
    with_private_mounts,
};
use support::{
    Kind, Pinned, Report, Run, installed, is_root, pmd_size, program, require, require_of_machine,
};

fn needs() -> bool {
    huge_folios() && installed("strace").is_some()
}

const NEEDS: &str = "no large folios on this file system, or no strace";

/// A launch of the program that ends at once, for [`watched`].
fn launch(options: &[&str], program: &Path) -> Command {
    own_run();
    let mut command = Command::new(support::tiexec());
    command.args(["--deadline=2m", "--settle=0"]).args(options).arg(program).arg("7");
    command.env_remove("TIEXEC").stdin(Stdio::null());
    if !is_root() {
        // An ordinary user's records lie in the user's runtime directory.
        let runtime = program.with_file_name("runtime");
        std::fs::create_dir_all(&runtime).expect("an own directory");
        support::chmod(&runtime, 0o700);
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    command
}

/// Runs the launch. Returns the number of huge pages that it evicted.
fn evicted(command: &Command) -> usize {
    let (done, calls) = watched(command);
    assert_eq!(done.code, 7, "{}{}", done.out, done.err);
    assert!(calls.evicted.iter().all(|len| *len == pmd_size()), "{:?}", calls.evicted);
    eprintln!("{:?} {}", calls.evicted, done.err);
    calls.evicted.len()
}

/// Asserts that the launch evicts nothing. Returns what it prints.
fn refusal(command: &Command) -> String {
    let (done, calls) = watched(command);
    assert_eq!((done.code, calls.evicted), (7, vec![]), "{}{}", done.out, done.err);
    eprintln!("{}", done.err);
    done.err
}

/// Asserts that the launch evicts nothing. Returns whether `-v` says why.
fn evicts_nothing(command: &Command, why: &str) -> bool {
    refusal(command).contains(why)
}

/// Asserts that the check succeeds. The kernel may reclaim pages of an unused file before the launch looks at them (DAMON).
/// The launch then finds less in small folios than the check expects, so the check is tried again, and begins by bringing
/// the file into small folios.
fn tried(check: impl FnMut() -> bool) {
    let mut tries = std::iter::repeat_with(check).take(5);
    assert!(tries.any(|succeeded| succeeded), "none of 5 tries; the lines above are their output");
}

/// Brings a file that is not in use into small folios of the page cache.
fn make_small(file: &Path) {
    evict(file);
    cache_small(file);
}

/// A program in small folios of the page cache that no process uses.
fn unused(kind: Kind, dir: &Path) -> PathBuf {
    small(&program("hold", kind), dir)
}

#[test]
fn after_one_launch_the_file_stays_huge() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
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
    require!(needs(), "{NEEDS}");
    tried(|| {
        let copy = unused(Kind::DynamicNoPie, dir.path());
        let parts = evicted(&launch(&[], &copy)) as u64;
        let huge = huge(&copy);
        let reclaimed = (4096 * reclaimed_pages(&copy)).next_multiple_of(pmd_size());
        assert!(huge + reclaimed >= parts * pmd_size(), "{parts} parts, {huge} are huge");
        parts > 0 && huge <= parts * pmd_size()
    });
}

#[test]
fn a_shared_library() {
    require!(needs(), "{NEEDS}");
    let mut with = support::objects::WithObject::new(support::objects::Made::Gnu);
    with.uncache_object();
    let (program, object) = (&with.program, &with.object);
    tried(|| {
        make_small(object);
        evicted(&launch(&[], program)) > 0
    });
    // A process that uses a page of the library keeps all of it.
    let name = object.file_name().expect("a name").to_string_lossy();
    tried(|| {
        make_small(object);
        let held = Run::new(program, ["7"]).plain().hold();
        let said = refusal(&launch(&["-v"], program));
        held.finish().assert_code(7);
        // The fix names the library, not the program.
        said.contains("in_use: a process has it mapped; fix: ") && said.matches(&*name).count() > 1
    });
    // The kernel executes no program that is open for writing, but it maps such a library. However often a launch is
    // refused, the next one may evict.
    let writer = File::options().append(true).open(object).expect("an own file");
    let why = "open_for_writing: a process has the file open for writing";
    for _ in 0..9 {
        tried(|| {
            make_small(object);
            evicts_nothing(&launch(&["-v"], program), why)
        });
    }
    drop(writer);
    tried(|| {
        make_small(object);
        evicted(&launch(&["-v"], program)) > 0
    });
}

#[test]
fn a_file_in_use_is_not_evicted() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    tried(|| {
        let copy = unused(Kind::DynamicNoPie, dir.path());
        let held = Run::new(&copy, ["7"]).plain().hold();
        let why = "in_use: a process has it mapped; fix: ";
        let refused = evicts_nothing(&launch(&["-v"], &copy), why);
        held.finish().assert_code(7);
        refused && evicted(&launch(&[], &copy)) > 0
    });
}

#[test]
fn a_file_with_dirty_pages_is_not_evicted() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    // Another process may sync the whole machine in between, so the test tries more than once.
    tried(|| {
        let pinned = Pinned::new(&copy);
        let len = copy.metadata().expect("a file").len();
        let writer = File::options().write(true).open(&copy).expect("an own file");
        writer.write_all_at(&[0; 4096], len).expect("room");
        drop((writer, pinned));
        let (done, calls) = watched(&launch(&["-v"], &copy));
        calls.evicted.is_empty() && done.err.contains("dirty_file: ")
    });
}

/// The same file is evicted without the option.
#[test]
fn the_user_may_forbid_it() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    let ways: [(&[&str], &str, i32); 4] = [
        (&["--evict=never", "-v"], "", 7),
        (&[], "evict=never", 7),
        (&["--backing=image"], "", 7),
        (&["--dry-run"], "", 0),
    ];
    for (options, variable, code) in ways {
        tried(|| {
            let copy = unused(Kind::DynamicNoPie, dir.path());
            assert_eq!(huge(&copy), 0);
            let mut forbidden = launch(options, &copy);
            forbidden.env("TIEXEC", variable);
            let (done, calls) = watched(&forbidden);
            assert_eq!((done.code, calls.evicted), (code, vec![]), "{}", done.err);
            // Without --backing=pagecache, no fix tells the user to leave that out.
            assert!(!done.err.contains("leave out"), "{}", done.err);
            let is_told = !options.contains(&"-v") || done.err.contains("small_folios: ");
            is_told && evicted(&launch(&["--backing=pagecache"], &copy)) > 0
        });
    }
}

/// A process that has mapped a file and not touched it loses its pages, and reads the same bytes again.
#[test]
fn a_mapping_that_was_never_used_has_the_same_bytes() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    tried(|| {
        let copy = unused(Kind::DynamicNoPie, dir.path());
        let content = std::fs::read(&copy).expect("an own file");
        let file = File::open(&copy).expect("an own file");
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), content.len(), protection, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        let parts = evicted(&launch(&[], &copy));
        // SAFETY: the mapping just made has this length, and nobody changes or truncates the file.
        let mapped = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), content.len()) };
        assert!(mapped == content, "another content");
        // SAFETY: no reference to the mapping is used after this.
        unsafe { libc::munmap(at, content.len()) };
        parts > 0
    });
}

/// The first huge page is timed.
#[test]
fn a_slow_device_ends_it() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    tried(|| {
        let copy = unused(Kind::DynamicNoPie, dir.path());
        let mut slow = launch(&["-v"], &copy);
        slow.env("TIEXEC_TEST_DISK", "1000000");
        let (done, calls) = watched(&slow);
        assert!(done.code == 7 && calls.evicted.len() <= 1, "{:?} {}", calls.evicted, done.err);
        eprintln!("{}", done.err);
        done.err.contains("deadline: it lies on a slow device, which took ")
    });
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
        let in_vain = "an earlier launch evicted it in vain";
        assert!(evicts_nothing(&launch(&["-v"], &copy), in_vain));
        // A day later, a launch tries again.
        let age = "touch -d '2 days ago' /run/tiexec/evicted-in-vain/*";
        run("sh", &["-c".as_ref(), age.as_ref()]);
        assert_eq!(evicted(&launch(&[], &copy)), 1);
        assert!(evicts_nothing(&launch(&["-v"], &copy), in_vain));
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
    require!(needs(), "{NEEDS}");
    own_run();
    with_private_mounts(|| {
        let [lower, upper, work, point] = ["lower", "upper", "work", "point"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("an own directory");
            path
        });
        let below = unused(Kind::DynamicNoPie, &lower);
        let name = |path: &Path| path.display().to_string();
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", name(&lower), name(&upper), name(&work));
        let overlay = ["-t", "overlay", "-o", &layers, "none"].map(Path::new);
        run("mount", &overlay.into_iter().chain([point.as_path()]).collect::<Vec<_>>());
        let above = point.join(program("hold", Kind::DynamicNoPie).file_name().expect("a name"));
        tried(|| {
            make_small(&below);
            evicts_nothing(&launch(&["-v"], &above), "on overlay, a read may wait for a server")
        });
        // A file in memory stays in small folios, unless the kernel collapses it.
        require_of_machine!(!collapses_files(), "the kernel collapses files");
        run(
            "mount",
            &["-t", "ramfs", "-o", "mode=0755", "none"]
                .map(Path::new)
                .into_iter()
                .chain([&*upper])
                .collect::<Vec<_>>(),
        );
        let copy = upper.join("hold");
        support::install(&program("hold", Kind::DynamicNoPie), &copy, 0o755);
        assert!(evicts_nothing(&launch(&["-v"], &copy), "launches evict nothing on ramfs"));
    });
}

/// The kernel does not tell an ordinary user what is cached of another user's file, and root evicts nothing that another
/// user chose.
#[test]
fn another_users_file_is_not_evicted() {
    require!(is_root(), "root is needed to become somebody else");
    let public = support::Public::new();
    require!(needs() && has_large_folios(public.path()), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, public.path());
    let as_nobody = |copy: &Path| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        setpriv.arg(public.tiexec()).args(["--deadline=2m", "--settle=0", "-v"]).arg(copy).arg("7");
        setpriv.env_remove("TIEXEC").stdin(Stdio::null());
        setpriv
    };
    let theirs = "not_owner: nothing was evicted: mincore serves only the file's owner";
    tried(|| {
        make_small(&copy);
        evicts_nothing(&as_nobody(&copy), theirs)
    });
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).expect("root may");
    File::open(&copy).and_then(|file| file.sync_all()).expect("fsync");
    let theirs = "not_owner: nothing was evicted: root's launches evict only root's files";
    tried(|| {
        make_small(&copy);
        evicts_nothing(&launch(&["-v"], &copy), theirs)
    });
}

/// The page cache is charged to the program's cgroup, which must have room for it.
#[test]
fn a_cgroup_without_room_for_the_text() {
    require!(is_root(), "a cgroup needs root");
    let dir = directory();
    require!(needs(), "{NEEDS}");
    let mut groups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, limit) = controller.expect("just looked");
    let group = groups.group(&parent).expect("a cgroup");
    std::fs::write(group.join(limit), (48_u64 << 20).to_string()).expect("a limit");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    tried(|| {
        make_small(&copy);
        let run = Run::new(&copy, ["7"]).options(["--deadline=2m", "--settle=0", "-v"]);
        let done = inside(&group, run).hold().finish();
        done.assert_code(7);
        eprintln!("{done}");
        huge(&copy) == 0 && done.err().contains("in small pages: memcg_headroom: memory cgroup ")
    });
}

/// A user who may read the file can take its unmapped pages out of the page cache at any time, and read them back in small
/// folios. So the launches of others evict it a few times in an hour at most.
#[test]
fn a_user_who_makes_the_file_small_again_and_again() {
    let dir = directory();
    require!(needs(), "{NEEDS}");
    let copy = unused(Kind::DynamicNoPie, dir.path());
    for _ in 0..8 {
        tried(|| {
            make_small(&copy);
            evicted(&launch(&["-v"], &copy)) > 0
        });
    }
    tried(|| {
        make_small(&copy);
        evicts_nothing(&launch(&["-v"], &copy), "launches evicted it 8 times within an hour")
    });
}

/// A launch that cannot record the eviction evicts nothing. Records that no longer count make room.
#[test]
fn records_of_too_many_files() {
    require!(is_root(), "the records of an ordinary user lie elsewhere");
    let dir = directory();
    require!(needs(), "{NEEDS}");
    own_run();
    let copy = unused(Kind::DynamicNoPie, dir.path());
    let records = Path::new("/run/tiexec/evicted");
    std::fs::create_dir_all(records).expect("a directory in a /run of its own");
    support::chmod(records, 0o700);
    for number in 0..4096 {
        File::create(records.join(number.to_string())).expect("a file there");
    }
    tried(|| {
        make_small(&copy);
        evicts_nothing(&launch(&["-v"], &copy), "it could not be recorded: there are too many")
    });
    let age = "touch -d '2 hours ago' /run/tiexec/evicted/*";
    run("sh", &["-c".as_ref(), age.as_ref()]);
    tried(|| {
        make_small(&copy);
        evicted(&launch(&["-v"], &copy)) > 0
    });
    assert_eq!(std::fs::read_dir(records).expect("a directory").count(), 1);
}
