//! The image store uses no file that another user could have planted, and shows no user a file that the user may not
//! read.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::store::{self, IMAGES, add, ctl, names, own_run, set_up, tmpfs};
use support::warm::run;
use support::{Done, Kind, Public, Run, chmod, is_root, program, require};

const NOBODY: u32 = 65534;

/// A private `/run` for the test, and a program that all users may run.
fn place() -> (Public, PathBuf) {
    own_run();
    let public = Public::new();
    let original = public.add(&program("hold", Kind::DynamicPie), "original", 0o755);
    (public, original)
}

fn try_add(file: &Path) -> Done {
    ctl(["add".as_ref(), file.as_os_str()])
}

fn assert_refused(done: &Done, reason: &str, what: &str) {
    done.assert_code(1);
    assert!(done.stdout.is_empty(), "{done}");
    assert!(done.err().contains(reason) && done.err().contains(what), "{reason}, {what}: {done}");
}

fn chown(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), None).expect("root may");
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, original) = place();
    set_up("64M");
    let image = add(&original);
    for directory in [IMAGES, "/run/tiexec", "/run"] {
        let directory = Path::new(directory);
        for mode in [0o777, 0o775, 0o1777] {
            chmod(directory, mode);
            assert_refused(&try_add(&original), "store_refused", &format!("mode {mode:04o}"));
            chmod(directory, 0o755);
        }
        chown(directory, NOBODY);
        let done = try_add(&original);
        assert_refused(&done, "store_refused", "belongs to user 65534");
        assert!(done.err().contains(&format!("{} belongs", directory.display())), "{done}");
        // Every command refuses, not only those that build.
        for command in ["list", "verify", "prune", "setup", "path"] {
            ctl([command]).assert_code(1);
        }
        chown(directory, 0);
    }
    assert_eq!(add(&original), image);
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, original) = place();
    let elsewhere = Path::new("/run/elsewhere");
    std::fs::create_dir_all(elsewhere.join("images")).expect("directories");
    symlink(elsewhere, "/run/tiexec").expect("a link");
    assert_refused(&try_add(&original), "store_refused", "/run/tiexec is a symbolic link");
    std::fs::remove_file("/run/tiexec").expect("a link");
    std::fs::create_dir("/run/tiexec").expect("a directory");
    symlink(elsewhere, IMAGES).expect("a link");
    assert_refused(&try_add(&original), "store_refused", "is a symbolic link");
    let setup = ctl(["setup"]);
    setup.assert_code(1);
    assert!(setup.err().contains("is a symbolic link"), "{setup}");
    assert_eq!(names(elsewhere.join("images")), [""; 0]);
    // Setup also refuses to mount where another user could move the mount point.
    std::fs::remove_file(IMAGES).expect("a link");
    chown(Path::new("/run/tiexec"), NOBODY);
    let setup = ctl(["setup"]);
    setup.assert_code(1);
    assert!(setup.err().contains("belongs to user 65534"), "{setup}");
}

#[test]
fn a_store_that_is_no_tmpfs_or_not_executable_is_none() {
    require!(is_root(), "a mount namespace needs root");
    let (public, original) = place();
    std::fs::create_dir_all(IMAGES).expect("directories");
    let is_none = || {
        assert_refused(&try_add(&original), "no_store", "not set up");
        assert_eq!(names(IMAGES).iter().filter(|name| name.contains("tiexec")).count(), 0);
    };
    // /run is a tmpfs too, but images must not fill it.
    is_none();
    store::mount("none", IMAGES, Some("tmpfs"), libc::MS_NOEXEC, "mode=0755");
    is_none();
    // `store setup` mends that.
    set_up("64M");
    let image = add(&original);
    std::fs::remove_file(image).expect("an image");
    let directory = public.path().to_string_lossy().into_owned();
    store::mount(&directory, IMAGES, None, libc::MS_BIND, "");
    assert_refused(&try_add(&original), "no_store", "not set up");
}

#[test]
fn an_image_that_is_not_as_it_was_built_is_refused() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, original) = place();
    set_up("64M");
    let image = add(&original);
    let spoil: [(&str, &dyn Fn()); 6] = [
        ("belongs to user 65534", &|| chown(&image, NOBODY)),
        ("has mode 0644", &|| chmod(&image, 0o644)),
        ("has mode 0446", &|| chmod(&image, 0o446)),
        ("has mode 4444", &|| chmod(&image, 0o4444)),
        ("has 2 names", &|| {
            std::fs::hard_link(&image, "/run/tiexec/images/other").expect("a link")
        }),
        ("bytes, not", &|| {
            chmod(&image, 0o644);
            let file = std::fs::File::options().write(true).open(&image).expect("open");
            file.set_len(4096).expect("truncate");
            chmod(&image, 0o444);
        }),
    ];
    for (what, spoil) in spoil {
        spoil();
        assert_refused(&try_add(&original), "store_refused", what);
        let verified = ctl(["verify"]);
        verified.assert_code(1);
        assert!(
            verified.out().contains("FAIL") && verified.out().contains(what),
            "{what}: {verified}"
        );
        // `prune` removes the image as damaged, unless only its content is wrong, which only reading would show.
        ctl(["prune"]).assert_code(0);
        let _there_or_not = std::fs::remove_file("/run/tiexec/images/other");
        let _there_or_not = std::fs::remove_file(&image);
        assert_eq!(add(&original), image);
    }
}

#[test]
fn links_in_the_place_of_files_are_not_followed() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, original) = place();
    set_up("64M");
    let image = add(&original);
    let name = image.file_name().expect("a name").to_string_lossy().into_owned();
    let temporary = Path::new(IMAGES).join(format!(".{name}.new"));
    let sidecar = Path::new(IMAGES).join(format!("{name}.json"));
    let target = Path::new("/run/target");
    std::fs::copy(&image, target).expect("a copy");
    let before = std::fs::read(target).expect("a file");
    // The image itself is a link.
    std::fs::remove_file(&image).expect("an image");
    symlink(target, &image).expect("a link");
    assert_refused(&try_add(&original), "store_refused", "is a symbolic link");
    assert!(ctl(["verify"]).out().contains("is not a regular file"));
    std::fs::remove_file(&image).expect("a link");
    // The temporary file of the build is a link.
    symlink(target, &temporary).expect("a link");
    assert_refused(&try_add(&original), "store_refused", "ELOOP");
    std::fs::remove_file(&temporary).expect("a link");
    std::fs::hard_link(target, &temporary).unwrap_err();
    std::fs::write("/run/tiexec/images/x", b"x").expect("a file");
    std::fs::hard_link("/run/tiexec/images/x", &temporary).expect("a link");
    assert_refused(&try_add(&original), "store_refused", "not what a builder leaves");
    assert_eq!(std::fs::read("/run/tiexec/images/x").expect("a file"), b"x");
    std::fs::remove_file(&temporary).expect("a link");
    // `add` replaces the sidecar, and does not write through the link.
    std::fs::remove_file(&sidecar).expect("a sidecar");
    symlink(target, &sidecar).expect("a link");
    symlink(target, Path::new(IMAGES).join(format!(".{name}.json.new"))).expect("a link");
    assert_eq!(add(&original), image);
    assert!(sidecar.symlink_metadata().expect("a sidecar").is_file());
    assert!(std::fs::read(target).expect("a file") == before, "written through a link");
    ctl(["verify"]).assert_code(0);
}

#[test]
fn a_flipped_bit_is_found() {
    require!(is_root(), "a mount namespace needs root");
    let (public, original) = place();
    set_up("128M");
    let other = public.add(&program("exits", Kind::DynamicPie), "other", 0o755);
    let (image, other) = (add(&original), add(&other));
    ctl(["verify"]).assert_code(0);
    let file = std::fs::File::options().read(true).write(true).open(&image).expect("root may");
    let len = file.metadata().expect("fstat").len();
    use std::os::unix::fs::FileExt;
    // The places cover headers, holes, text, symbols, and the last byte.
    for at in [0, 64, 4096, len / 3, len / 2, len - 1] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("write");
        let done = ctl(["verify"]);
        done.assert_code(1);
        let line = |path: &Path| {
            let out = done.out();
            out.lines().find(|line| line.contains(&*path.to_string_lossy())).map(str::to_owned)
        };
        assert!(
            line(&image).is_some_and(|line| line.starts_with("FAIL") && line.contains("BLAKE3")),
            "{at}: {done}"
        );
        assert!(line(&other).is_some_and(|line| line.starts_with("ok")), "{done}");
        let report = store::json(&["verify", "--json"]);
        let bad = report["images"].as_array().expect("images").iter();
        assert_eq!(bad.filter(|image| image["problems"] != serde_json::json!([])).count(), 1);
        file.write_all_at(&byte, at).expect("write");
    }
    ctl(["verify"]).assert_code(0);
}

/// Sets an access list with one more user: the version, then tag, permissions and ID of each entry (acl(5)).
fn access_list(file: &Path) -> bool {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 5, NOBODY),
        (0x04, 5, u32::MAX),
        (0x10, 5, u32::MAX),
        (0x20, 5, u32::MAX),
    ];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let path = std::ffi::CString::new(file.to_string_lossy().as_bytes()).expect("no zero bytes");
    let name = c"system.posix_acl_access";
    // SAFETY: the strings and the value live through the call.
    unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) == 0
    }
}

#[test]
fn what_not_everybody_may_read_has_no_shared_image() {
    require!(is_root(), "a mount namespace needs root");
    let (public, original) = place();
    set_up("64M");
    let closed = public.path().join("closed");
    std::fs::create_dir(&closed).expect("a directory");
    let inside = closed.join("inside");
    support::install(&original, &inside, 0o755);
    for mode in [0o711, 0o750, 0o704, 0o740] {
        chmod(&original, mode);
        assert_refused(&try_add(&original), "not_shareable", &format!("mode {mode:04o}"));
    }
    chmod(&original, 0o644);
    add(&original);
    ctl(["prune", "--all-unused"]).assert_code(0);
    for mode in [0o700, 0o750, 0o754] {
        chmod(&closed, mode);
        assert_refused(&try_add(&inside), "not_shareable", &format!("mode {mode:04o}"));
    }
    chmod(&closed, 0o711);
    add(&inside);
    ctl(["prune", "--all-unused"]).assert_code(0);
    require!(access_list(&original), "this file system has no access lists");
    assert_eq!(original.metadata().expect("stat").mode() & 0o777, 0o755);
    assert_refused(&try_add(&original), "not_shareable", "access list");
    assert!(access_list(&closed));
    assert_refused(&try_add(&inside), "not_shareable", "closed: it has an access list");
    assert_eq!(names(IMAGES), [""; 0]);
}

/// Runs `tiexecctl store` as nobody, with a runtime directory.
fn as_nobody(public: &Public, args: &[&str], runtime: &str) -> Done {
    let copy = public.path().join("tiexecctl");
    if !copy.exists() {
        public.add(support::tiexecctl(), "tiexecctl", 0o755);
    }
    let runtime = format!("XDG_RUNTIME_DIR={runtime}");
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", &runtime];
    {
        let args: Vec<&std::ffi::OsStr> = args.iter().map(AsRef::as_ref).collect();
        store::started_from(&copy, &front, &args).finish()
    }
}

#[test]
fn a_user_has_a_store_of_their_own() {
    require!(is_root(), "becoming another user needs root");
    require!(support::installed("setpriv").is_some(), "no setpriv (util-linux)");
    let (public, original) = place();
    let file = original.to_string_lossy().into_owned();
    std::fs::create_dir_all("/run/user/65534").expect("directories");
    let runtime = "/run/user/65534";
    tmpfs(Path::new(runtime), "mode=0700,uid=65534");
    let path = as_nobody(&public, &["path"], runtime);
    path.assert_code(0);
    assert_eq!(path.out(), "/run/user/65534/tiexec/images\n");
    let done = as_nobody(&public, &["add", &file], runtime);
    done.assert_code(0).assert_silent();
    let image = PathBuf::from(done.out().trim_end());
    let meta = image.metadata().expect("an image");
    assert_eq!((meta.permissions().mode() & 0o7777, meta.uid()), (0o400, NOBODY));
    assert_eq!(Path::new(runtime).join("tiexec").metadata().expect("stat").mode() & 0o7777, 0o700);
    // A use updates the access time with every mount option, because pruning depends on it.
    let used = |image: &Path| image.metadata().expect("an image").accessed().expect("a time");
    let before = used(&image);
    std::thread::sleep(std::time::Duration::from_millis(20));
    as_nobody(&public, &["add", &file], runtime).assert_code(0);
    assert!(used(&image) > before);
    // A file that the user may not read stays unread.
    chmod(&original, 0o711);
    let done = as_nobody(&public, &["add", &file], runtime);
    done.assert_code(5);
    assert!(done.err().contains("unreadable_image"), "{done}");
    // Since the chmod the first original counts as another file. A prune by the user nobody does not affect root's
    // store.
    let pruned = as_nobody(&public, &["prune"], runtime);
    pruned.assert_code(0);
    assert!(pruned.out().contains("outdated"), "{pruned}");
    assert!(!image.exists());
    // The runtime directory is no tmpfs, is missing, or forbids execution.
    chmod(&original, 0o755);
    let noexec = Path::new("/run/noexec");
    std::fs::create_dir(noexec).expect("a directory");
    store::mount("none", noexec, Some("tmpfs"), libc::MS_NOEXEC, "mode=0700,uid=65534");
    for runtime in
        [&public.path().to_string_lossy(), "/run/no/such", "relative", &noexec.to_string_lossy()]
    {
        let done = as_nobody(&public, &["add", &file], runtime);
        done.assert_code(1);
        assert!(done.err().contains("no_store"), "{done}");
    }
    // The runtime directory lies below a world-writable directory with or without the sticky bit.
    let below = Path::new("/run/all");
    std::fs::create_dir_all(below.join("mine")).expect("directories");
    chown(&below.join("mine"), NOBODY);
    chmod(below, 0o1777);
    as_nobody(&public, &["add", &file], "/run/all/mine").assert_code(0);
    chmod(below, 0o777);
    let done = as_nobody(&public, &["add", &file], "/run/all/mine");
    assert_refused(&done, "store_refused", "/run/all is writable by others");
    // The runtime directory belongs to another user.
    std::os::unix::fs::chown(runtime, Some(1), None).expect("root may");
    let done = as_nobody(&public, &["add", &file], runtime);
    done.assert_code(1);
    assert!(
        done.err().contains("store_refused") && done.err().contains("belongs to user 1"),
        "{done}"
    );
}

/// The two stores are independent: a defect of one does not affect the other.
#[test]
fn one_that_is_refused_takes_nothing_from_the_other() {
    require!(is_root(), "becoming another user needs root");
    require!(support::installed("setpriv").is_some(), "no setpriv (util-linux)");
    let (public, original) = place();
    let file = original.to_string_lossy().into_owned();
    set_up("64M");
    let image = add(&original);
    let path = image.to_string_lossy().into_owned();
    // Another user's runtime directory, as sudo and su leave it in the environment.
    let theirs = "/run/user/65534";
    std::fs::create_dir_all(theirs).expect("directories");
    tmpfs(Path::new(theirs), "mode=0700,uid=65534");
    let as_root = |front: &[&str], args: &[&str]| {
        let runtime = format!("XDG_RUNTIME_DIR={theirs}");
        let front: Vec<&str> = ["env", &runtime].iter().chain(front).copied().collect();
        let args: Vec<&std::ffi::OsStr> = args.iter().map(AsRef::as_ref).collect();
        store::started(&front, &args).finish()
    };
    let why = "store_refused: /run/user/65534 belongs to user 65534";
    for command in [&["add", &file][..], &["list"], &["verify"], &["prune"], &["path"]] {
        let done = as_root(&[], command);
        done.assert_code(0);
        assert!(done.err().lines().count() == 1 && done.err().contains(why), "{done}");
    }
    assert_eq!(as_root(&[], &["add", &file]).out().trim_end(), path);
    // A launch uses the store without a message.
    let run = Run::new(&original, ["7"]).options(["--backing=image", "--report", "--json"]);
    let held = run.env("XDG_RUNTIME_DIR", theirs).hold();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("it lives");
    assert!(maps.contains(&path), "{maps}");
    let done = held.finish();
    done.assert_code(7);
    assert!(!done.err().contains("store_refused"), "{done}");

    // In the opposite case, the user's own store works while the system's store is not trusted.
    chmod(Path::new(IMAGES), 0o777);
    let done = as_nobody(&public, &["add", &file], theirs);
    done.assert_code(0);
    assert!(done.out().starts_with(theirs) && done.err().contains("mode 0777"), "{done}");
    let used = as_nobody(&public, &["list"], theirs);
    used.assert_code(0);
    assert!(used.err().contains("mode 0777"), "{used}");
}

#[test]
fn only_root_changes_the_systems_store_and_all_may_use_it() {
    require!(is_root(), "becoming another user needs root");
    require!(support::installed("setpriv").is_some(), "no setpriv (util-linux)");
    let (public, original) = place();
    let refused = as_nobody(&public, &["setup"], "");
    refused.assert_code(5);
    assert!(refused.err().contains("only root"), "{refused}");
    set_up("64M");
    let image = add(&original);
    let refused = as_nobody(&public, &["prune", "--all-unused"], "");
    refused.assert_code(5);
    assert!(refused.err().contains("only root") && image.exists(), "{refused}");
    // Another user's request gets root's image.
    let used = as_nobody(&public, &["add", &original.to_string_lossy()], "");
    used.assert_code(0).assert_silent();
    assert_eq!(used.out().trim_end(), image.to_string_lossy());
    let list = as_nobody(&public, &["list"], "");
    list.assert_code(0);
    let line = list.out().lines().nth(1).expect("an image").to_owned();
    assert!(line.contains("original") && line.contains("  -  "), "{list}");
    as_nobody(&public, &["verify"], "").assert_code(0);
    let other = public.add(&program("exits", Kind::DynamicPie), "other", 0o755);
    let none = as_nobody(&public, &["add", &other.to_string_lossy()], "");
    none.assert_code(1);
    assert!(none.err().contains("not_stored") && none.err().contains("as root"), "{none}");
}

/// The next version of a squashfs may have the same device, inode and times for another program. Only a build ID tells
/// the two apart.
#[test]
fn what_has_no_build_id_gets_no_image_from_a_file_system_that_was_made_whole() {
    require!(is_root(), "a mount needs root");
    require!(support::installed("mksquashfs").is_some(), "no mksquashfs (squashfs-tools)");
    own_run();
    set_up("64M");
    let public = Public::new();
    let tree = public.path().join("tree");
    let (image, point) = (public.path().join("squashfs"), public.path().join("mnt"));
    std::fs::create_dir_all(&tree).expect("a directory");
    std::fs::create_dir(&point).expect("a mount point");
    let (with, without) = (tree.join("with"), tree.join("without"));
    std::fs::copy(program("hold", Kind::DynamicPie), &with).expect("a copy");
    let section = "--remove-section=.note.gnu.build-id";
    run("objcopy", &[section.as_ref(), &with, &without]);
    run("mksquashfs", &[&tree, &image, "-quiet".as_ref(), "-all-time".as_ref(), "0".as_ref()]);
    run("mount", &["-o".as_ref(), "loop,ro".as_ref(), &image, &point]);
    assert_refused(&try_add(&point.join("without")), "store_refused", "build ID");
    add(&point.join("with"));
    // The program without a build ID gets a copy of its own.
    let launch =
        Run::new(point.join("without"), ["7"]).options(["--backing=image", "--deadline=2m"]);
    let held = launch.hold();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("it lives");
    assert!(maps.contains("/memfd:tiexec:without"), "{maps}");
    held.finish().assert_code(7);
    run("umount", &[&point]);
}
