//! `tiexecctl warm` makes text huge on file systems with large folios, and prints one clear line on the others.

use std::path::Path;

use support::warm::{
    assert_warmed, assert_warms, cached_pages, cold, directory, evict, has_large_folios, huge,
    mount_new, reclaimed_pages, rest, run, small, warm, with_private_mounts,
};
use support::{Kind, Pinned, Run, installed, is_root, program, require};

fn hold() -> std::path::PathBuf {
    program("hold", Kind::DynamicNoPie)
}

#[test]
fn xfs() {
    require!(is_root(), "root is needed to mount");
    require!(installed("mkfs.xfs").is_some(), "no mkfs.xfs");
    let dir = directory();
    with_private_mounts(|| {
        let point = mount_new("xfs", dir.path());
        let copy = cold(&hold(), &point);
        // The loop device's read_ahead_kb is the usual 128 KiB, so normal read-ahead does not suffice.
        let bytes = assert_warms(&copy);
        evict(&copy);
        support::warm::cache_small(&copy);
        assert_eq!(huge(&copy), 0);
        assert_eq!(assert_warms(&copy), bytes);
        // This reads the pages again that the kernel has reclaimed since.
        let _pinned = Pinned::huge(&copy);
        let held = Run::new(&copy, ["0"]).plain().hold();
        assert!(held.coverage().is_full());
        held.finish().assert_code(0);
    });
}

#[test]
fn btrfs_has_no_large_folios_or_makes_them_huge() {
    require!(is_root(), "root is needed to mount");
    require!(installed("mkfs.btrfs").is_some(), "no mkfs.btrfs");
    let dir = directory();
    with_private_mounts(|| {
        let point = mount_new("btrfs", dir.path());
        let copy = small(&hold(), &point);
        let cached = cached_pages(&copy);
        let done = warm(&["--json"], &[&copy]);
        if rest(&done.file(), "no_large_folios") > 0 {
            assert_eq!(done.code, 1, "{}", done.out);
            assert!(done.err.contains("btrfs read it in small folios"), "{}", done.err);
            assert_eq!(huge(&copy), 0);
            // The pages may be reclaimed at any moment, so those that were are counted last.
            let back = cached_pages(&copy);
            assert!(back + reclaimed_pages(&copy) >= cached, "{back} of {cached} are back");
        } else {
            // A later kernel.
            assert_warmed(&done, &copy);
        }
    });
}

#[test]
fn tmpfs_is_collapsed() {
    require!(is_root(), "root is needed to mount");
    let dir = directory();
    with_private_mounts(|| {
        run(
            "mount",
            &["-t", "tmpfs", "none"]
                .map(Path::new)
                .iter()
                .copied()
                .chain([dir.path()])
                .collect::<Vec<_>>(),
        );
        let copy = dir.path().join("hold");
        support::install(&hold(), &copy, 0o755);
        assert_eq!(huge(&copy), 0);
        let done = warm(&["--json"], &[&copy]);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{}", done.out);
        assert_eq!(huge(&copy), done.file()["huge_bytes"]);
        // `warm` also works while the program runs, and does not evict it.
        let held = Run::new(&copy, ["0"]).plain().hold();
        assert!(held.coverage().is_full());
        held.finish().assert_code(0);
    });
}

#[test]
fn overlayfs_has_the_page_cache_of_what_is_below() {
    require!(is_root(), "root is needed to mount");
    let dir = directory();
    require!(has_large_folios(dir.path()), "no large folios on this file system");
    with_private_mounts(|| {
        let [lower, upper, work, point] = ["lower", "upper", "work", "point"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("an own directory");
            path
        });
        let below = small(&hold(), &lower);
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let overlay = ["-t", "overlay", "-o", &layers, "none"].map(Path::new);
        run("mount", &overlay.iter().copied().chain([point.as_path()]).collect::<Vec<_>>());
        let above = point.join("hold-dynamicnopie-6");
        assert_eq!(huge(&above), 0);
        assert_warmed(&warm(&["--json"], &[&above]), &below);
        // This reads the pages again that the kernel has reclaimed since.
        let _pinned = Pinned::huge(&below);
        assert!(huge(&above) > 0);
        assert_eq!(huge(&below), huge(&above));
        let held = Run::new(&above, ["0"]).plain().hold();
        assert!(held.coverage().is_full());
        held.finish().assert_code(0);
    });
}

#[test]
fn a_read_only_noexec_mount() {
    require!(is_root(), "root is needed to mount");
    let dir = directory();
    require!(has_large_folios(dir.path()), "no large folios on this file system");
    let copy = small(&hold(), dir.path());
    with_private_mounts(|| {
        run("mount", &["--bind".as_ref(), dir.path(), dir.path()]);
        run("mount", &["-o".as_ref(), "remount,bind,ro,noexec".as_ref(), dir.path()]);
        assert!(std::fs::write(dir.path().join("x"), "").is_err(), "read-only");
        assert_warms(&copy);
    });
}
