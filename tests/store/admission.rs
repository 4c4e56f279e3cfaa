//! The store keeps one image of a file, for all starts that can share it. A copy for one process ends with the process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::attaching;
use support::objects::{Made, WithObject};
use support::smaps::{Vma, vmas};
use support::store::{IMAGES, add, json, names, own_run, set_up};
use support::{Kind, Public, Run, installed, is_root, program, require};

/// The mappings of a process's text that TiExec made.
fn ours(pid: i32) -> Vec<Vma> {
    let is_ours = |vma: &Vma| vma.path.contains("tiexec:") || vma.path.contains(".tiexec");
    vmas(pid).into_iter().filter(is_ours).collect()
}

fn attach(pids: &str) {
    attaching::ctl(["attach", "--backing=image", pids]).assert_code(0);
}

/// The original of each image, and its users; every row is another file's.
fn listed() -> Vec<(String, u64)> {
    let list = json(&["list", "--json"]);
    let images = list["images"].as_array().expect("images").iter();
    let listed: Vec<(String, u64)> = images
        .map(|image| {
            let original = image["original"].as_str().expect("a path").to_owned();
            (original, image["users"].as_u64().expect("root asks"))
        })
        .collect();
    let files: BTreeSet<&String> = listed.iter().map(|(original, _)| original).collect();
    assert_eq!(files.len(), listed.len(), "{list}");
    listed
}

#[test]
fn add_builds_what_a_launch_uses() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    for kind in [Kind::DynamicPie, Kind::StaticPie, Kind::DynamicNoPie] {
        let program = public.add(&program("hold", kind), &format!("{kind:?}"), 0o755);
        let image = add(&program);
        let before = names(IMAGES);
        let held = Run::new(&program, ["7"]).options(["--backing=image", "--deadline=2m"]).hold();
        let mapped = ours(held.pid());
        assert!(!mapped.is_empty(), "{kind:?}: {:?}", vmas(held.pid()));
        assert!(mapped.iter().all(|vma| Path::new(&vma.path) == image), "{kind:?}: {mapped:?}");
        assert_eq!(names(IMAGES), before, "{kind:?}");
        held.finish().assert_code(7);
    }
    assert_eq!(listed().len(), 3);
}

#[test]
fn add_builds_what_a_launch_uses_of_a_library() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let with = WithObject::new(Made::Lld);
    let public = Public::new();
    let [program, object] = [&with.program, &with.object].map(|file| {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        public.add(file, &name, 0o755)
    });
    [&program, &object].into_iter().for_each(|file| support::warm::cache_small(file));
    let image = add(&object);
    let options = ["--backing=image", "--deadline=2m"];
    let held = Run::new(&program, ["7"]).options(options).hold();
    // Where the file system has large mappings begin at a multiple of the huge page, as ext4 and xfs do.
    let start = vmas(held.pid()).into_iter().find(|vma| Path::new(&vma.path) == object);
    let aligned = start.expect("it is mapped").start % support::pmd_size() == 0;
    let stored = ours(held.pid()).iter().any(|vma| Path::new(&vma.path) == image);
    assert_eq!(stored, aligned, "{:?}", vmas(held.pid()));
    held.finish().assert_code(7);
    assert_eq!(listed().iter().filter(|(file, _)| Path::new(file) == object).count(), 1);
}

/// A start of a PIE that lies elsewhere than a launch would put it: one in 512 does not.
fn moved(program: &Path) -> support::Held {
    loop {
        let held = Run::new(program, ["7"]).plain().hold();
        attach(&held.pid().to_string());
        if ours(held.pid()).iter().all(|vma| vma.path.contains("memfd:")) {
            return held;
        }
        held.finish().assert_code(7);
        support::store::ctl(["prune", "--all-unused"]).assert_code(0);
    }
}

#[test]
fn an_attach_to_a_pie_leaves_nothing() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let program = public.add(&program("hold", Kind::DynamicPie), "pie", 0o755);
    support::warm::cache_small(&program);
    for _ in 0..3 {
        let held = moved(&program);
        attaching::assert_switched(held.pid());
        assert_eq!(names(IMAGES), [""; 0]);
        held.finish().assert_code(7);
        assert_eq!(names(IMAGES), [""; 0]);
    }
    // The image that launches share is not for a process in another place, and stays.
    let image = add(&program);
    let held = moved(&program);
    assert!(ours(held.pid()).iter().all(|vma| Path::new(&vma.path) != image));
    assert_eq!(listed(), [(program.to_string_lossy().into_owned(), 0)]);
    held.finish().assert_code(7);
}

/// Programs of this machine, which are position-independent or not.
fn real_programs() -> Vec<PathBuf> {
    let names = ["mariadbd", "postgres", "gdb", "prometheus", "perl", "sqlite3"];
    let all = names.into_iter().filter_map(installed);
    all.filter_map(|file| file.canonicalize().ok()).collect()
}

#[test]
fn after_many_programs_it_holds_those_that_starts_share() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("1G");
    let public = Public::new();
    let real = real_programs();
    require!(!real.is_empty(), "no large program here");
    let mut launched = BTreeSet::new();
    for (index, file) in real.iter().cycle().take(12).enumerate() {
        let copy = public.add(file, &format!("launched{index}"), 0o755);
        let run = Run::new(&copy, ["--version"]);
        run.options(["--backing=image", "--deadline=2m"]).limit(120).output().assert_code(0);
        launched.insert(copy.to_string_lossy().into_owned());
    }
    // Each start has another place.
    let attached: Vec<PathBuf> = (0..12)
        .map(|index| {
            let file = program("hold", [Kind::DynamicPie, Kind::StaticPie][index % 2]);
            let copy = public.add(&file, &format!("attached{index}"), 0o755);
            support::warm::cache_small(&copy);
            copy
        })
        .collect();
    for copy in &attached {
        for _ in 0..2 {
            moved(copy).finish().assert_code(7);
        }
    }
    let left = listed();
    assert!(left.iter().all(|(file, users)| *users == 0 && launched.contains(file)), "{left:?}");
}

#[test]
fn inspect_tells_the_memory_of_the_whole_image() {
    require!(is_root(), "a mount namespace needs root");
    use std::os::unix::fs::MetadataExt;
    own_run();
    set_up("256M");
    let public = Public::new();
    let program = public.add(&program("hold", Kind::DynamicNoPie), "program", 0o755);
    support::warm::cache_small(&program);
    let image = add(&program);
    let memory = image.metadata().expect("an image").blocks() * 512;
    let held = Run::new(&program, ["7"]).options(["--backing=image", "--deadline=2m"]).hold();
    let pid = held.pid().to_string();
    let done = attaching::ctl(["inspect", "--json", &pid]);
    let said = attaching::json(&done);
    let costs = said["files"].as_array().expect("files").iter().map(|file| &file["cost_bytes"]);
    let cost: u64 = costs.filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(cost, memory, "{said}");
    let shown = attaching::ctl(["inspect", &pid]).out();
    let mib = format!("cost  {:.1} MiB shmem, shared", memory as f64 / f64::from(1 << 20));
    assert!(shown.contains(&mib), "{mib}: {shown}");
    held.finish().assert_code(7);
}
