//! The store keeps one image of a file for all starts that can share it. A copy for a single process ends with the
//! process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::attaching;
use support::child::eventually;
use support::objects::{Made, WithObject};
use support::smaps::{Vma, vmas};
use support::store::{IMAGES, add, json, mount, names, own_run, set_up};
use support::{Kind, Pinned, Public, Report, Run, installed, is_root, libraries, program, require};

/// The mappings of a process's text that TiExec made.
fn ours(pid: i32) -> Vec<Vma> {
    let is_ours = |vma: &Vma| vma.path.contains("tiexec:") || vma.path.contains(".tiexec");
    vmas(pid).into_iter().filter(is_ours).collect()
}

fn attach(pids: &str) {
    attaching::ctl(["attach", "--backing=image", pids]).assert_code(0);
}

/// The original of each image, and its number of users. Every row belongs to another file.
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
    // Some file systems, such as ext4 and xfs, place large mappings at a multiple of the huge page.
    let start = vmas(held.pid()).into_iter().find(|vma| Path::new(&vma.path) == object);
    let aligned = start.expect("it is mapped").start % support::pmd_size() == 0;
    let stored = ours(held.pid()).iter().any(|vma| Path::new(&vma.path) == image);
    assert_eq!(stored, aligned, "{:?}", vmas(held.pid()));
    held.finish().assert_code(7);
    assert_eq!(listed().iter().filter(|(file, _)| Path::new(file) == object).count(), 1);
}

/// Starts a PIE that does not lie where a launch would put it. One start in 512 does, and is repeated.
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
    // The image that launches share does not fit a process at another address, and stays.
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
        run.options(["--backing=image", "--deadline=2m"]).output().assert_code(0);
        launched.insert(copy.to_string_lossy().into_owned());
        launched.extend(libraries(&copy).iter().map(|file| file.to_string_lossy().into_owned()));
    }
    // Each start has another address.
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

/// The report of a program whose library cannot be shared, and TiExec's message about it.
fn report(program: &Path, options: &[&str]) -> (serde_json::Value, String) {
    let report = Report::new();
    let run = Run::new(program, ["7"]).options(["--deadline=2m", "-v"]).options(options);
    let done = report.of(&run).hold().finish();
    done.assert_code(7);
    (report.read(), done.err())
}

#[test]
fn a_library_that_not_all_may_read_is_not_shareable() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let with = WithObject::new(Made::Lld);
    let public = Public::new();
    let home = public.path().join("home");
    std::fs::create_dir(&home).expect("a directory");
    let copies = [&with.program, &with.object].map(|file| {
        let copy = home.join(file.file_name().expect("a name"));
        support::install(file, &copy, 0o755);
        copy
    });
    // Text in huge folios needs no image.
    let _pinned = copies.each_ref().map(|copy| Pinned::small(copy));
    let [program, _] = copies;
    support::chmod(&home, 0o700);
    let (said, told) = report(&program, &["--backing=auto"]);
    assert_eq!(said["reason"], "not_shareable", "{said}");
    assert!(said["detail"].as_str().is_some_and(|why| why.contains("home: it has mode 0700")));
    assert!(told.contains("not_shareable") && told.contains("--backing=image"), "{told}");
    assert!(!told.contains("store setup") && !told.contains("no_store"), "{told}");
    assert_eq!(names(IMAGES), [""; 0]);
    // If there is no store, the fix is to set one up.
    support::store::ctl(["unset"]).assert_code(0);
    let (said, told) = report(&program, &["--backing=auto"]);
    assert_eq!(said["reason"], "no_store", "{said}");
    assert!(told.contains("tiexecctl store setup"), "{told}");
}

/// The large library of a rustc that has it beside itself, as rustup's has; Debian's has it among the system's.
fn rustc_driver(root: &Path) -> Option<PathBuf> {
    let libraries = std::fs::read_dir(root.join("lib")).ok()?.flatten();
    let is_its = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("librustc_driver");
    let library = libraries.map(|entry| entry.file_name()).find(is_its)?;
    Some(Path::new("lib").join(library))
}

/// A rustc in that directory, whose large library is a private copy and stays in small folios. What is in huge folios
/// needs no image. All else that it reads is the machine's.
fn small_rustc(root: &Path, library: PathBuf, own: &Path) -> (PathBuf, Pinned) {
    support::warm::run("cp", &["-rs".as_ref(), &root.join("lib"), own]);
    std::fs::remove_file(own.join(&library)).expect("a symbolic link of our own");
    std::fs::create_dir(own.join("bin")).expect("a directory");
    for file in [Path::new("bin/rustc"), &library] {
        support::install(&root.join(file), &own.join(file), 0o755);
        support::fresh::uncache(&own.join(file));
    }
    (own.join("bin/rustc"), Pinned::small(&own.join(library)))
}

/// The files of rustc may lie below a home directory that is closed to other users.
#[test]
fn rustc_below_a_closed_home_is_not_shareable() {
    require!(is_root(), "a mount namespace needs root");
    let asked = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    let root = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let root = PathBuf::from(root.unwrap_or_default());
    let library = rustc_driver(&root);
    require!(library.is_some(), "no rustc with its library beside it (rustup has one)");
    own_run();
    set_up("1G");
    let work = tempfile::tempdir_in(support::files()).expect("a directory");
    support::chmod(work.path(), 0o700);
    let library = library.expect("just looked");
    let (rustc, _pinned) = small_rustc(&root, library, work.path());
    let report = Report::new();
    // It waits for its source until the report is there.
    let run = Run::new(&rustc, ["--crate-type=lib", "--emit=obj", "-"]).cwd(work.path());
    let held = report.of(&run.options(["-v", "--deadline=2m"])).start();
    eventually("the report is written", || !report.text().is_empty());
    let done = held.finish();
    done.assert_code(0);
    assert_eq!(report.read()["reason"], "not_shareable", "{}", report.read());
    assert!(!done.err().contains("store setup"), "{done}");
    // Its other libraries are the machine's, and may be shareable.
    assert!(!names(IMAGES).iter().any(|name| name.starts_with("librustc_driver")));
}

#[test]
fn a_library_in_a_place_of_chance_is_misplaced() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let with = WithObject::new(Made::Lld);
    // The kernel maps files of a tmpfs without huge pages at any address.
    let small = Path::new("/run/small");
    std::fs::create_dir(small).expect("a directory");
    mount("none", small, Some("tmpfs"), 0, "mode=0755,huge=never");
    let [program, object] = [&with.program, &with.object].map(|file| {
        let copy = small.join(file.file_name().expect("a name"));
        support::install(file, &copy, 0o755);
        copy
    });
    let mut said = serde_json::Value::Null;
    for _ in 0..3 {
        said = report(&program, &["--backing=auto"]).0;
        if said["reason"] == "misplaced" {
            break;
        }
    }
    assert_eq!(said["reason"], "misplaced", "{said}");
    let object = object.to_string_lossy().into_owned();
    assert!(listed().iter().all(|(file, _)| *file != object), "{:?}", listed());
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
