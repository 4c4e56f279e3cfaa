//! A user changes a file after its image was made, in a way that the file's times do not show. No image is made of such a
//! file, so nobody executes bytes that the file does not have.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use support::child::eventually;
use support::store::{IMAGES, add, ctl, mount, names, own_run, set_up, started_from, tmpfs};
use support::{Done, Held, Kind, Public, Run, attaching, installed, is_root, program, require};

use super::ATTACKER;
use super::files::of_file;

/// Maps the file shared, makes a page dirty by writing the byte that is there, and writes another byte when a line comes. The
/// file descriptor is closed: only the mapping is left.
const WRITER: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
text = mmap.mmap(fd, 0)
os.close(fd)
at = len(text) // 2
text[at] = text[at]
print('ready', flush=True)
sys.stdin.readline()
text[at] ^= 255
print('written', flush=True)
sys.stdin.readline()
";

fn needs() -> bool {
    is_root() && installed("setpriv").is_some() && installed("python3").is_some()
}

fn writer(file: &Path, front: &[&str]) -> Held {
    let args = ["-c".as_ref(), WRITER.as_ref(), file.as_os_str()];
    let run = Run::new("python3", args).plain().behind(front.iter().copied());
    let mut held = run.start();
    held.wait_line("ready");
    held
}

/// A file system's server says whose a file is, and what it holds. Here it says root.
#[test]
fn a_server_that_says_that_a_file_is_roots() {
    require!(
        needs() && installed("fuse2fs").is_some() && Path::new("/dev/fuse").exists(),
        "FUSE needs root; fuse2fs"
    );
    own_run();
    set_up("256M");
    let public = Public::new();
    let (disk, at) = (public.path().join("disk"), public.path().join("at"));
    std::fs::File::create_new(&disk).and_then(|disk| disk.set_len(32 << 20)).expect("a disk");
    std::fs::create_dir(&at).expect("an own directory");
    Run::new("mkfs.ext4", [&*disk.to_string_lossy(), "-q"]).plain().output().assert_code(0);
    let server =
        Run::new("fuse2fs", [disk.as_os_str(), at.as_os_str(), "-f".as_ref()]).plain().start();
    eventually("it is mounted", || at.join("lost+found").exists());
    let file = at.join("program");
    support::install(&program("hold", Kind::DynamicPie), &file, 0o755);
    assert_refused(&file, "whose server decides what it holds");
    Run::new("umount", [&at]).plain().output().assert_code(0);
    server.finish().assert_code(0);
}

/// Adds a program of the attacker's.
fn theirs(at: &Public) -> PathBuf {
    theirs_in(at.path())
}

fn theirs_in(directory: &Path) -> PathBuf {
    let file = directory.join("theirs");
    support::install(&program("hold", Kind::DynamicPie), &file, 0o755);
    chown(&file, Some(2001), Some(2001)).expect("chown");
    file
}

/// Makes a directory of the attacker's.
fn own_directory(path: PathBuf, mode: u32) -> PathBuf {
    std::fs::create_dir(&path).expect("an own directory");
    support::chmod(&path, mode);
    chown(&path, Some(2001), Some(2001)).expect("chown");
    path
}

/// Writes one byte of the file, which has an image, through a new mapping, and asserts that nobody uses the image under
/// any of these names.
fn assert_outdated_by_a_write(file: &Path, image: &Path, names: [&Path; 2]) {
    let mut writes = writer(file, &ATTACKER);
    write(&mut writes);
    for name in names {
        assert_refused_beside(name, "a process has it open for writing");
    }
    writes.finish();
    for name in names {
        assert_ne!(add(name), image, "{}", name.display());
    }
    ctl(["verify"]).assert_code(0).assert_silent();
}

fn tried(file: &Path) -> Done {
    ctl(["add".as_ref(), file.as_os_str()])
}

fn assert_refused(file: &Path, why: &str) {
    assert_refused_beside(file, why);
    assert_eq!(names(IMAGES), [""; 0]);
}

/// As [`assert_refused`], while the store has other images.
fn assert_refused_beside(file: &Path, why: &str) {
    let done = tried(file);
    done.assert_code(1);
    let said = format!("{}{}", done.out(), done.err());
    assert!(said.contains("store_refused") && said.contains(why), "{done}");
}

fn write(writer: &mut Held) {
    writer.write(b"\n");
    writer.wait_line("written");
}

#[test]
fn a_mapping_that_is_written_to_later() {
    require!(needs(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let file = theirs(&public);
    // The same file by another name, and by another mount.
    let link = public.path().join("link");
    std::fs::hard_link(&file, &link).expect("a link");
    let bound = public.path().join("bound");
    std::fs::write(&bound, b"").expect("an own file");
    mount(&file.to_string_lossy(), &bound, None, libc::MS_BIND, "");
    let mut writes = writer(&file, &ATTACKER);
    for name in [&file, &link, &bound] {
        assert_refused(name, "a process has it open for writing");
    }
    write(&mut writes);
    assert_refused(&file, "a process has it open for writing");
    writes.finish();
    // Without a writer it has an image. A writer that comes later shows in the file's times, so that nobody uses it.
    let image = add(&file);
    ctl(["verify"]).assert_code(0).assert_silent();
    assert_outdated_by_a_write(&file, &image, [&file, &file]);
}

#[test]
fn a_file_system_that_shows_no_change() {
    require!(needs(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let at = public.path().join("at");
    std::fs::create_dir(&at).expect("an own directory");
    tmpfs(&at, "mode=0755");
    let file = theirs_in(&at);
    assert_refused(&file, "it belongs to user 2001");
    chown(&file, Some(0), Some(0)).expect("chown");
    support::chmod(&file, 0o757);
    assert_refused(&file, "others may write to it");
    // A mapping from the time when it was the attacker's.
    let mut writes = writer(&file, &ATTACKER);
    support::chmod(&file, 0o755);
    assert_refused(&file, "a process has it open for writing");
    write(&mut writes);
    writes.finish();
    // Root's own file has an image. `verify` finds what root itself then writes without a sign.
    add(&file);
    ctl(["verify"]).assert_code(0).assert_silent();
    let mut writes = writer(&file, &[]);
    write(&mut writes);
    writes.finish();
    let done = ctl(["verify"]);
    done.assert_code(1);
    assert!(format!("{}{}", done.out(), done.err()).contains("has other bytes than "), "{done}");
}

/// Through the overlay the kernel does not see who writes to the layer.
#[test]
fn a_layer_of_an_overlay_that_is_written_to() {
    require!(needs(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let all = public.path().join("all");
    std::fs::create_dir(&all).expect("an own directory");
    tmpfs(&all, "mode=0755");
    let [lower, upper, work, merged] =
        ["lower", "upper", "work", "merged"].map(|name| all.join(name));
    for directory in [&lower, &upper, &work, &merged] {
        std::fs::create_dir(directory).expect("an own directory");
    }
    let file = theirs_in(&lower);
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount("overlay", &merged, Some("overlay"), 0, &options);
    let mut writes = writer(&file, &ATTACKER);
    assert_refused(&merged.join("theirs"), "it belongs to user 2001");
    write(&mut writes);
    assert_refused(&merged.join("theirs"), "it belongs to user 2001");
    writes.finish();
}

/// The attacker keeps a name of the file in a directory that nobody else may enter.
#[test]
fn a_hidden_link_to_the_file() {
    require!(needs() && installed("ln").is_some(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let memory = public.path().join("memory");
    std::fs::create_dir(&memory).expect("an own directory");
    tmpfs(&memory, "mode=0755");
    // The first file system shows changes, the second does not.
    let [linked, silent] = [public.path(), &memory].map(|parent| {
        let hidden = theirs_in(&own_directory(parent.join("hidden"), 0o700));
        let shown = own_directory(parent.join("shown"), 0o755).join("tool");
        let link = Run::new("ln", [&hidden, &shown]).plain().behind(ATTACKER).output();
        link.assert_code(0);
        (hidden, shown)
    });
    // The mapping comes from the hidden name, and the file is root's by now.
    let (hidden, shown) = &silent;
    let mut writes = writer(hidden, &ATTACKER);
    assert_refused(shown, "a process has it open for writing");
    chown(shown, Some(0), Some(0)).expect("chown");
    assert_refused(shown, "a process has it open for writing");
    write(&mut writes);
    writes.finish();
    add(shown);
    ctl(["verify"]).assert_code(0).assert_silent();
    let open = Run::new("dd", ["if=/dev/null", "conv=notrunc"]).plain().behind(ATTACKER);
    open.with_arg(format!("of={}", hidden.display())).output().assert_code(1);
    ctl(["prune", "--all-unused"]).assert_code(0);
    // The file is still the attacker's.
    let (hidden, shown) = &linked;
    let mut writes = writer(hidden, &ATTACKER);
    assert_refused(shown, "a process has it open for writing");
    write(&mut writes);
    writes.finish();
    let image = add(shown);
    assert_outdated_by_a_write(hidden, &image, [shown, shown]);
}

/// The mount at root's path is read-only. The file system is not, and the attacker has another mount of it.
#[test]
fn a_read_only_mount_of_a_directory_that_is_written_to() {
    require!(needs(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let read_only = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
    let [disk, memory] = ["disk", "memory"].map(|name| {
        let own = own_directory(public.path().join(name), 0o755);
        if name == "memory" {
            tmpfs(&own, "mode=0755,uid=2001,gid=2001");
        }
        let file = theirs_in(&own);
        let shown = public.path().join(format!("{name}.shown"));
        std::fs::create_dir(&shown).expect("an own directory");
        mount(&own.to_string_lossy(), &shown, None, libc::MS_BIND, "");
        mount("none", &shown, None, read_only, "");
        let shown = shown.join("theirs");
        let refused = std::fs::File::options().write(true).open(&shown).expect_err("read-only");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        (file, shown)
    });
    for (file, shown) in [&disk, &memory] {
        let mut writes = writer(file, &ATTACKER);
        assert_refused(shown, "a process has it open for writing");
        write(&mut writes);
        assert_refused(shown, "a process has it open for writing");
        writes.finish();
    }
    let (file, shown) = &memory;
    assert_refused(shown, "it belongs to user 2001");
    // Even a file system that is read-only now may be writable later.
    let own = file.parent().expect("its directory");
    mount("none", own, None, libc::MS_REMOUNT | libc::MS_RDONLY, "");
    assert_refused(shown, "it belongs to user 2001");
    let (file, shown) = &disk;
    let image = add(shown);
    assert_eq!(add(file), image);
    assert_outdated_by_a_write(file, &image, [shown, file]);
}

/// Mounts directory `argv[1]` at `argv[2]`, with the files of user 2001 as root's.
const MOUNT_AS_ROOTS: &str = "
import atexit, ctypes, os, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    returned = libc.syscall(number, *arguments)
    if returned < 0:
        sys.exit(f'system call {number}: {os.strerror(ctypes.get_errno())}')
    return returned
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE, AT_EMPTY_PATH, MOUNT_ATTR_IDMAP, MOVE_MOUNT_F_EMPTY_PATH = 1, 0x1000, 0x100000, 4
users = subprocess.Popen(['unshare', '--user', 'sh', '-c', 'echo; exec sleep 600'], stdout=subprocess.PIPE)
atexit.register(users.kill)
users.stdout.readline()
for name in ['uid_map', 'gid_map']:
    open(f'/proc/{users.pid}/{name}', 'w').write('2001 0 1')
namespace = os.open(f'/proc/{users.pid}/ns/user', os.O_RDONLY)
tree = call(OPEN_TREE, -100, sys.argv[1].encode(), OPEN_TREE_CLONE)
attributes = struct.pack('QQQQ', MOUNT_ATTR_IDMAP, 0, 0, namespace)
call(MOUNT_SETATTR, tree, b'', AT_EMPTY_PATH, attributes, len(attributes))
call(MOVE_MOUNT, tree, b'', -100, sys.argv[2].encode(), MOVE_MOUNT_F_EMPTY_PATH)
";

/// A mount shows the attacker's file as root's. The attacker has another mount of it.
#[test]
fn a_mount_that_shows_a_file_as_roots() {
    require!(needs(), "another user needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let own = own_directory(public.path().join("memory"), 0o755);
    tmpfs(&own, "mode=0755,uid=2001,gid=2001");
    let file = theirs_in(&own);
    let shown = public.path().join("shown");
    std::fs::create_dir(&shown).expect("an own directory");
    let words = ["-c".as_ref(), MOUNT_AS_ROOTS.as_ref(), own.as_os_str(), shown.as_os_str()];
    let mounted = Run::new("python3", words).plain().output();
    require!(mounted.status.success(), "no idmapped mounts of a tmpfs before Linux 6.3");
    let shown = shown.join("theirs");
    assert_eq!(std::fs::metadata(&shown).expect("mounted").uid(), 0);
    assert_refused(&shown, "its mount shows other owners than its file system has");
    assert_refused(&file, "it belongs to user 2001");
}

/// Mounts a file system at directory $1, with a changed copy of `theirs` in it, and executes the copy. The size, the
/// modification time and the build ID of the copy are the original's.
const OTHER_BYTES: &str = r#"
    mount -t tmpfs -o mode=755 tmpfs /mnt
    mkdir /mnt/upper /mnt/work
    copy=/mnt/upper/theirs
    cp "$1/theirs" "$copy"
    printf '\377' | dd "of=$copy" bs=1 "seek=$(($(stat -c %s "$copy") - 1))" conv=notrunc status=none
    touch -r "$1/theirs" "$copy"
    case $2 in
    bind) mount --bind /mnt/upper "$1" ;;
    overlay) mount -t overlay -o "userxattr,lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" overlay "$1" ;;
    esac
    exec "$1/theirs" 7"#;

/// In the attacker's own mounts, another file is at the path of one that has an image.
#[test]
fn another_file_at_the_path_in_a_user_namespace() {
    require!(needs() && installed("nsenter").is_some(), "another user needs root");
    let own = ATTACKER.into_iter().chain(["unshare", "--user", "--map-root-user", "--mount"]);
    let own: Vec<&str> = own.collect();
    let can = Run::new("true", [""; 0]).plain().behind(&own).output();
    require!(can.status.success(), "users may not make user namespaces here");
    own_run();
    set_up("256M");
    let public = Public::new();
    let at = public.path().join("at");
    std::fs::create_dir(&at).expect("an own directory");
    let file = theirs_in(&at);
    chown(&file, Some(0), Some(0)).expect("chown");
    let image = add(&file);
    for (how, why) in [("bind", "not_shareable"), ("overlay", "foreign_filesystem")] {
        let words = ["-ec".as_ref(), OTHER_BYTES.as_ref(), "sh".as_ref(), at.as_os_str()];
        let held = Run::new("sh", words).plain().with_arg(how).behind(&own).hold();
        let pid = held.said_pid();
        let done = attaching::ctl(["attach", "--backing=image", "--json", &pid.to_string()]);
        let report = attaching::json(&done);
        let rest = &of_file(&report, &file.to_string_lossy())["rest"];
        let said = format!("{rest} {}", report["attach"]["setback"]);
        assert!(said.contains(why), "{how}: {done}");
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
        assert!(!maps.contains(IMAGES), "{how}: {done}\n{maps}");
        // Root in the same mounts.
        let front = ["nsenter", "--mount", "--target", &pid.to_string()];
        let done = started_from(support::tiexecctl(), &front, &["add".as_ref(), file.as_os_str()]);
        let done = done.finish();
        done.assert_code(1);
        assert!(done.err().contains("store_refused"), "{how}: {done}");
        assert!(done.err().contains("it belongs to user 2001"), "{how}: {done}");
        held.finish().assert_code(7);
    }
    assert_eq!(add(&file), image);
    ctl(["verify"]).assert_code(0).assert_silent();
}

/// In a user namespace without IDs, the files of all users show one ID. The attacker's file looks like the user's own.
#[test]
fn a_user_namespace_that_shows_one_id_for_all_users() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let copy = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let (runtime, memory) = (Path::new("/run/user/2002"), public.path().join("memory"));
    for (directory, user) in [(runtime, 2002), (&memory, 2001)] {
        std::fs::create_dir_all(directory).expect("an own directory");
        tmpfs(directory, &format!("mode=0755,uid={user},gid={user}"));
    }
    let file = theirs_in(&memory);
    let variable = format!("XDG_RUNTIME_DIR={}", runtime.display());
    let user = ["setpriv", "--reuid=2002", "--regid=2002", "--clear-groups", "env", &variable];
    let alone = [&user[..], &["unshare", "--user"]].concat();
    let can = Run::new("true", [""; 0]).plain().behind(&alone).output();
    require!(can.status.success(), "users may not make user namespaces here");
    let mut writes = writer(&file, &ATTACKER);
    for (front, why) in [(&user[..], "it belongs to user 2001"), (&alone, "belongs to user 65534")]
    {
        let done = started_from(&copy, front, &["add".as_ref(), file.as_os_str()]).finish();
        done.assert_code(1);
        assert!(done.err().contains("store_refused") && done.err().contains(why), "{done}");
    }
    write(&mut writes);
    writes.finish();
}
