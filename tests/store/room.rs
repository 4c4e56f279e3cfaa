//! A full image store reports it, leaves nothing behind, and takes room only from unused images.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use support::child::eventually;
use support::machine::{Groups, memory_controller};
use support::store::{self, IMAGES, Mapped, add, ctl, json, names, own_run, set_up, text_pages};
use support::{Kind, Public, is_root, pmd_size, program, require};

/// Copies of one program. Each is a separate file with its own image.
fn copies(public: &Public, count: usize) -> Vec<PathBuf> {
    let file = program("hold", Kind::DynamicPie);
    (0..count).map(|index| public.add(&file, &format!("copy{index}"), 0o755)).collect()
}

/// Memory that one image takes.
fn memory_of_one(public: &Public) -> u64 {
    set_up("256M");
    let image = add(&copies(public, 1)[0]);
    let bytes = image.metadata().expect("an image").blocks() * 512;
    ctl(["prune", "--all-unused"]).assert_code(0);
    bytes
}

fn free() -> u64 {
    let path = c"/run/tiexec/images";
    // SAFETY: statvfs is plain old data, and is written by the call.
    let mut fs: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are live.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &mut fs) }, 0);
    fs.f_bfree * fs.f_frsize
}

#[test]
fn a_store_that_is_too_small_stays_empty() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    let public = Public::new();
    let one = memory_of_one(&public);
    let copy = &copies(&public, 1)[0];
    // The store is full at once, in the first huge page, half way, or at the very end.
    for size in [64 << 10, pmd_size(), one / 2, one - (16 << 10)] {
        set_up(&size.to_string());
        let before = free();
        let done = ctl(["add".as_ref(), copy.as_os_str()]);
        done.assert_code(1);
        assert!(
            done.err().contains("store_full") && done.err().contains("--size"),
            "{size}: {done}"
        );
        assert_eq!(names(IMAGES), [""; 0], "{size}");
        assert_eq!(free(), before, "{size}");
    }
    set_up(&(one + (64 << 10)).to_string());
    add(copy);
    ctl(["verify"]).assert_code(0);
}

#[test]
fn the_image_used_longest_ago_makes_room_and_one_in_use_never_does() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    let public = Public::new();
    let one = memory_of_one(&public);
    let copies = copies(&public, 4);
    set_up(&(2 * one + one / 2).to_string());
    let first = add(&copies[0]);
    let second = add(&copies[1]);
    // The first image is mapped, and was used longest ago.
    let held = Mapped::page(&first, text_pages(&first)[0]);
    std::fs::read(&second).expect("an image");
    let list = json(&["list", "--json"]);
    let users = |image: &Path| {
        let name = image.file_name().expect("a name").to_string_lossy().into_owned();
        let all = list["images"].as_array().expect("images");
        all.iter().find(|entry| entry["name"] == *name).expect("listed")["users"].clone()
    };
    // A child that another test is just forking may map the image too.
    assert!(users(&first).as_u64() >= Some(1) && users(&second) == 0, "{list}");
    let third = add(&copies[2]);
    assert!(first.exists() && !second.exists() && third.exists(), "{:?}", names(IMAGES));
    // Two images are unused, and the room of one is enough. The one that was used longest ago is removed.
    drop(held);
    // Access times have the resolution of the kernel's ticks. The sleep makes this time differ.
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::read(&first).expect("an image");
    let fourth = add(&copies[3]);
    assert!(first.exists() && !third.exists() && fourth.exists(), "{:?}", names(IMAGES));
    // If all images are in use, there is no room.
    let _held = [&first, &fourth].map(|image| Mapped::page(image, text_pages(image)[0]));
    let done = ctl(["add".as_ref(), copies[1].as_os_str()]);
    done.assert_code(1);
    assert!(done.err().contains("store_full"), "{done}");
    ctl(["prune", "--all-unused"]).assert_code(0);
    assert!(first.exists() && fourth.exists(), "{:?}", names(IMAGES));
    assert_eq!(names(IMAGES).len(), 4, "{:?}", names(IMAGES));
    ctl(["verify"]).assert_code(0);
}

#[test]
fn what_a_dead_builder_left_makes_room() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    let public = Public::new();
    let one = memory_of_one(&public);
    set_up(&(one + one / 2).to_string());
    let left = Path::new(IMAGES).join(".gone-0123456789abcdef0123456789abcdef.tiexec.new");
    std::fs::write(&left, vec![1; one as usize]).expect("a file");
    support::chmod(&left, 0o600);
    std::fs::write(Path::new(IMAGES).join("gone-0.tiexec.json"), b"{}").expect("a file");
    let image = add(&copies(&public, 1)[0]);
    assert_eq!(names(IMAGES).len(), 2, "{:?}", names(IMAGES));
    assert!(image.exists());
}

#[test]
fn prune_leaves_a_live_builder_alone() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("64M");
    let directory = Path::new(IMAGES);
    let path = directory.join(".live-0123456789abcdef0123456789abcdef.tiexec.new");
    let live = std::fs::File::create(&path).expect("a file");
    live.lock().expect("flock");
    std::fs::write(directory.join(".dead-0.tiexec.new"), b"x").expect("a file");
    let report = json(&["prune", "--all-unused", "--json"]);
    assert_eq!(report["removed"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["removed"][0]["why"], "left_over", "{report}");
    assert!(path.exists());
    drop(live);
    // A child that another test has just forked may hold the lock until its exec.
    eventually("nothing is left", || {
        ctl(["prune"]).assert_code(0);
        names(IMAGES).is_empty()
    });
}

#[test]
fn a_memory_cgroup_at_its_limit_gets_no_image() {
    require!(is_root(), "a cgroup needs root");
    let mut cgroups = Groups::new();
    let Some((parent, limit)) = memory_controller() else {
        return support::skip("no memory controller");
    };
    let Some(group) = cgroups.group(&parent) else { return support::skip("no cgroup can be made") };
    own_run();
    set_up("256M");
    let public = Public::new();
    let copy = copies(&public, 1)[0].to_string_lossy().into_owned();
    // The limit is more than the image, but less than the image plus the 64 MiB of reserve.
    std::fs::write(group.join(limit), (60u64 << 20).to_string()).expect("a limit");
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.display());
    let inside =
        || store::started(&["sh", "-c", &enter], &["add".as_ref(), copy.as_ref()]).finish();
    let done = inside();
    done.assert_code(1);
    assert!(done.err().contains("memcg_headroom"), "{done}");
    assert!(done.err().contains(&*group.to_string_lossy()), "{done}");
    assert_eq!(names(IMAGES), [""; 0]);
    std::fs::write(group.join(limit), (512u64 << 20).to_string()).expect("a limit");
    inside().assert_code(0).assert_silent();
    // Memory that was charged to the group must not outlive the group.
    ctl(["prune", "--all-unused"]).assert_code(0);
}
