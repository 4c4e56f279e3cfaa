//! `tiexecctl store setup` mounts a private tmpfs, once. The other commands print its state.

use std::path::Path;

use support::store::{IMAGES, add, ctl, json, own_run, set_up, started};
use support::{Kind, Public, Run, installed, is_root, program, require};

/// The options of the store's mount, or none without a mount. The last mount on the path counts.
fn mounted() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
    let lines: Vec<&str> = mounts.lines().filter(|l| l.split(' ').nth(1) == Some(IMAGES)).collect();
    assert!(lines.len() < 2, "mounted over itself: {lines:?}");
    lines.first().map(|line| line.split(' ').nth(3).expect("options").to_owned())
}

#[test]
fn setup_mounts_once() {
    require!(is_root(), "mounting needs root");
    own_run();
    assert_eq!(mounted(), None);
    let first = ctl(["setup"]);
    first.assert_code(0).assert_silent();
    assert!(first.out().contains("/run/tiexec/images: set up"), "{first}");
    let options = mounted().expect("mounted");
    let has = |option: &str| options.split(',').any(|o| o == option);
    assert!(has("nosuid") && has("nodev") && has("mode=755") && has("huge=advise"), "{options}");
    assert!(!has("noexec") && !has("relatime") && !has("noatime"), "{options}");
    // The default size is a tenth of the memory.
    let memory = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let total = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")).expect("MemTotal");
    let total: u64 = total.trim().trim_end_matches(" kB").parse().expect("KiB");
    let size = |options: &str| {
        let size = options.split(',').find_map(|o| o.strip_prefix("size=")).expect("size");
        size.trim_end_matches('k').parse::<u64>().expect("KiB")
    };
    assert!((total / 10).abs_diff(size(&options)) <= 64, "{options} of {total}");
    // A second setup changes nothing, and images stay.
    let public = Public::new();
    let image = add(&public.add(&program("hold", Kind::DynamicPie), "program", 0o755));
    let again = ctl(["setup"]);
    again.assert_code(0).assert_silent();
    assert!(again.out().contains("already set up"), "{again}");
    assert_eq!(mounted(), Some(options));
    // A setup with another size changes the mount in place.
    let resized = ctl(["setup", "--size=200M"]);
    resized.assert_code(0).assert_silent();
    assert_eq!(size(&mounted().expect("mounted")), 200 << 10);
    assert!(ctl(["setup", "--size=200M"]).out().contains("already set up"));
    assert!(ctl(["setup"]).out().contains("already set up"), "any size will do");
    assert!(image.exists());
    // The new size is smaller than the content.
    let refused = ctl(["setup", "--size=1M"]);
    refused.assert_code(1);
    assert!(refused.err().contains("there is more in it"), "{refused}");
    assert_eq!(size(&mounted().expect("mounted")), 200 << 10);
    // The new size is larger than the machine's memory.
    let refused = ctl(["setup", "--size=99999T"]);
    refused.assert_code(1);
    assert!(refused.err().contains(" MiB of memory; fix: leave out --size"), "{refused}");
    assert_eq!(size(&mounted().expect("mounted")), 200 << 10);
    let options = mounted().expect("mounted");
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
}

/// Processes keep the images that they map, although the file system is gone from the path.
#[test]
fn unset_removes_the_store_also_in_use() {
    require!(is_root(), "mounting needs root");
    own_run();
    set_up("200M");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "program", 0o755);
    let image = add(&copy);
    let held = Run::new(&copy, ["7"]).options(["--backing=image"]).hold();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("maps");
    let name = image.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(maps().contains(&name), "{}", maps());
    let done = ctl(["unset"]);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "/run/tiexec/images: unmounted\n");
    assert_eq!((mounted(), image.exists()), (None, false));
    assert!(maps().contains(&name), "{}", maps());
    held.finish().assert_code(7);
    let again = ctl(["unset"]);
    again.assert_code(0).assert_silent();
    assert_eq!(again.out(), "/run/tiexec/images: is not set up\n");
    // A new store can be set up.
    set_up("200M");
    assert!(add(&copy).exists());
}

#[test]
fn remove_takes_the_images_of_the_files_it_is_given() {
    require!(is_root(), "mounting needs root");
    own_run();
    set_up("200M");
    let public = Public::new();
    let one = public.add(&program("hold", Kind::DynamicPie), "one", 0o755);
    let other = public.add(&program("hold", Kind::StaticPie), "other", 0o755);
    let (image, others) = (add(&one), add(&other));
    let again = json(&["add", one.to_str().expect("UTF-8"), "--json"]);
    assert_eq!(again["images"][0]["image"], image.to_str().expect("UTF-8"), "{again}");
    let done = ctl(["remove".as_ref(), one.as_os_str(), "/no/such/file".as_ref()]);
    done.assert_code(3);
    assert!(
        done.out().contains("as asked")
            && done
                .err()
                .contains("cannot remove the image of /no/such/file: there is none; fix: "),
        "{done}"
    );
    assert!(!image.exists() && others.exists());
    // `remove` also works if the original is gone.
    std::fs::remove_file(&other).expect("removed");
    let removed = json(&["remove", other.to_str().expect("UTF-8"), "--json"]);
    assert_eq!(removed["removed"][0]["why"], "asked", "{removed}");
    assert!(!others.exists());
    let none = ctl(["remove".as_ref(), other.as_os_str()]);
    none.assert_code(1);
    assert!(none.err().contains("tiexecctl store list"), "{none}");
}

/// A container may have the machine's store, and no right to write there.
#[test]
fn an_image_that_cannot_be_removed_is_named() {
    require!(is_root(), "root sets the store up");
    own_run();
    set_up("64M");
    let public = Public::new();
    let one = public.add(&program("hold", Kind::DynamicPie), "one", 0o755);
    let image = add(&one);
    let read_only = "mount -o remount,bind,ro /run/tiexec/images; exec \"$@\"";
    let front = ["unshare", "-m", "sh", "-ec", read_only, "sh"];
    for args in [["remove".as_ref(), one.as_os_str()], ["prune", "--all-unused"].map(AsRef::as_ref)]
    {
        let done = started(&front, &args).finish();
        done.assert_code(1);
        assert!(done.err().contains("(EROFS)") && !done.err().contains("there is none"), "{done}");
        assert!(image.exists());
    }
    ctl(["remove".as_ref(), one.as_os_str()]).assert_code(0);
}

#[test]
fn setup_does_not_depend_on_the_umask() {
    require!(is_root(), "mounting needs root");
    own_run();
    let ctl_path = support::tiexecctl().to_string_lossy().into_owned();
    let setup = format!("umask 077; exec '{ctl_path}' store setup");
    assert!(support::child::tool(&["sh", "-c", &setup]).status.success());
    for directory in ["/run/tiexec", IMAGES] {
        use std::os::unix::fs::MetadataExt;
        let mode = Path::new(directory).metadata().expect("a directory").mode();
        assert_eq!(mode & 0o7777, 0o755, "{directory}");
    }
}

#[test]
fn wrong_sizes_are_usage() {
    for size in ["0", "lots", "101%", "1M,mode=777"] {
        ctl(["setup", "--size", size]).assert_code(2);
    }
    ctl(["add"]).assert_code(2);
    ctl([""; 0]).assert_code(2);
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let done = ctl(["setup", "--unit", "--size=25%"]);
    done.assert_code(0).assert_silent();
    assert!(done.out().contains("Where=/run/tiexec/images\n"), "{done}");
    assert!(done.out().contains("size=25%"), "{done}");
    require!(installed("systemd-analyze").is_some(), "no systemd-analyze");
    let directory = tempfile::tempdir().expect("a directory");
    let unit = directory.path().join("run-tiexec-images.mount");
    std::fs::write(&unit, done.stdout).expect("a file");
    let unit = unit.to_string_lossy().into_owned();
    let verified = support::child::tool(&["systemd-analyze", "verify", "--man=no", &unit]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success() && !said.contains("run-tiexec-images"), "{verified:?}");
}

#[test]
fn the_units_options_are_those_of_setup() {
    require!(is_root(), "mounting needs root");
    own_run();
    let unit = ctl(["setup", "--unit", "--size=64M"]).out();
    let options = unit.lines().find_map(|line| line.strip_prefix("Options=")).expect("options");
    std::fs::create_dir_all(IMAGES).expect("directories");
    let mount = support::child::tool(&["mount", "-t", "tmpfs", "-o", options, "tiexec", IMAGES]);
    require!(mount.status.success(), "mount(8): {mount:?}");
    let by_unit = mounted();
    assert!(support::child::tool(&["umount", IMAGES]).status.success());
    set_up("64M");
    assert_eq!(by_unit, mounted());
}

#[test]
fn what_is_printed() {
    require!(is_root(), "mounting needs root");
    own_run();
    let none = ctl(["path"]);
    none.assert_code(1);
    assert!(none.err().contains("tiexecctl store setup"), "{none}");
    ctl(["list"]).assert_code(0).assert_silent();
    ctl(["verify"]).assert_code(0).assert_silent();
    ctl(["prune"]).assert_code(0).assert_silent();
    set_up("64M");
    assert_eq!(ctl(["path"]).out(), "/run/tiexec/images\n");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "program", 0o755);
    let image = add(&copy);
    let list = ctl(["list"]);
    let lines: Vec<String> = list.out().lines().map(str::to_owned).collect();
    let words: Vec<&str> = lines[1].split_ascii_whitespace().collect();
    assert!(lines[0].starts_with("ORIGINAL") && lines[0].ends_with("STATE"), "{list}");
    assert_eq!((words[0], words[2], words.last()), (&*copy.to_string_lossy(), "0", Some(&"ok")));
    let all = json(&["list", "--json"]);
    assert_eq!((&all["schema"], &all["kind"]), (&2.into(), &"store_list".into()), "{all}");
    let one = &all["images"][0];
    assert_eq!(one["original"], *copy.to_string_lossy());
    assert_eq!(one["store"], IMAGES);
    assert_eq!(
        format!("{IMAGES}/{}", one["name"].as_str().expect("a name")),
        image.to_string_lossy()
    );
    assert!(one["bytes"].as_u64().is_some_and(|bytes| bytes > 6 << 20), "{all}");
    std::fs::remove_file(&copy).expect("an own file");
    assert_eq!(json(&["list", "--json"])["images"][0]["state"], "outdated");
    let pruned = json(&["prune", "--json"]);
    assert_eq!(pruned["removed"][0]["why"], "outdated", "{pruned}");
    assert_eq!(json(&["list", "--json"])["images"], serde_json::json!([]));
}
