//! Upgrades cannot harm a program whose text lies in the page cache: a new file does not change its text, and no
//! process can write to or truncate the old file. A program that is not a plain file on a writable file system is
//! treated too.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::process::Command;

use support::fresh::{
    NO_HUGE_FOLIOS, assert_file_pmd_mapped, assert_pagecache, huge_folios, uncache,
};
use support::smaps::vmas;
use support::{Fresh, Kind, Pinned, Report, Run, install, is_root, pmd_size, program, require};

#[test]
fn replaced_by_rename_while_it_runs() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("hold", Kind::DynamicPie));
    let old = Run::new(copy.path(), ["7"]).hold();
    assert_file_pmd_mapped(old.pid(), copy.path());
    // The new version is an entirely different program.
    let new = copy.dir().join("new");
    install(&program("traced", Kind::OneSegmentPie), &new, 0o755);
    uncache(&new);
    let _pinned = Pinned::huge(&new);
    std::fs::rename(&new, copy.path()).expect("a rename");

    let gone = format!("{} (deleted)", copy.path().display());
    let text: Vec<_> =
        vmas(old.pid()).into_iter().filter(|vma| vma.is_text() && vma.path == gone).collect();
    assert!(text.iter().any(|vma| vma.counter("FilePmdMapped") >= pmd_size()), "{text:?}");
    let launched = Run::new(copy.path(), [""; 0]).hold();
    assert!(launched.said("probed").is_some(), "the new program: {}", launched.out_text());
    assert_file_pmd_mapped(launched.pid(), copy.path());
    launched.finish().assert_code(7).assert_silent();
    // The old program checks all of its text again before it ends.
    old.finish().assert_code(7).assert_silent();
}

#[test]
fn nobody_can_write_to_its_file_or_cut_it() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let copy = Fresh::copy(&program("hold", kind));
        let held = Run::new(copy.path(), ["7"]).hold();
        assert_file_pmd_mapped(held.pid(), copy.path());
        let len = std::fs::metadata(copy.path()).expect("stat").len();
        let busy = std::fs::File::options().write(true).open(copy.path()).expect_err("in place");
        assert_eq!(busy.kind(), ErrorKind::ExecutableFileBusy, "{busy}");
        let path =
            std::ffi::CString::new(copy.path().as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the path is a live string.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 4096) }, -1);
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY), "{error}");
        assert_eq!(std::fs::metadata(copy.path()).expect("stat").len(), len);
        held.finish().assert_code(7).assert_silent();
        // After its end, the file can be written again.
        std::fs::File::options().write(true).open(copy.path()).expect("no longer busy");
    }
}

#[test]
fn linked_under_a_second_name_and_unlinked() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("hold", Kind::DynamicPie));
    let second = copy.dir().join("second");
    std::fs::hard_link(copy.path(), &second).expect("a link");
    let held = Run::new(copy.path(), ["7"]).hold();
    std::fs::remove_file(copy.path()).expect("unlink");
    let other = Run::new(&second, ["7"]).hold();
    assert_file_pmd_mapped(other.pid(), &second);
    for held in [held, other] {
        held.finish().assert_code(7).assert_silent();
    }
}

/// Punches a hole of one huge page into the text's filler. Returns the offset of the hole.
fn punch(copy: &Fresh) -> u64 {
    let pmd = pmd_size();
    let file = std::fs::File::options().read(true).write(true).open(copy.path()).expect("own");
    let hole = pmd as libc::off_t;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open descriptor and numbers.
    let punched = unsafe {
        libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), mode, hole, pmd as libc::off_t)
    };
    assert_eq!(punched, 0, "{}", std::io::Error::last_os_error());
    let mut byte = [1];
    file.read_exact_at(&mut byte, pmd + pmd / 2).expect("within the file");
    assert_eq!(byte, [0], "a hole reads as zeroes");
    pmd
}

#[test]
fn a_hole_in_the_text() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    // The text in the hole is zeroes, which the program neither runs nor reads.
    let copy = Fresh::cold(&program("unread", Kind::DynamicPie));
    let hole = punch(&copy);
    uncache(copy.path());
    let _pinned = Pinned::huge(copy.path());
    let run = Run::new(copy.path(), ["7"]);
    let plain = run.plain().output();
    plain.assert_code(7);
    let report = Report::new();
    let done = report.of(&run).output();
    // A hole holds no text and does not become a huge page. The rest of the text is huge.
    done.assert_code(7).assert_failed_open(&["read_failed"]);
    assert_eq!(done.out(), plain.out());
    let said = report.read();
    assert_eq!(said["outcome"], "partial", "{said}");
    assert_eq!(said["huge_bytes"], pmd_size(), "{said}");
    // Executing a program does not fill the hole.
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(copy.path()).expect("stat");
    assert!(file.blocks() * 512 <= file.len() - hole + (1 << 20), "{} blocks", file.blocks());
}

#[test]
fn a_read_only_mount() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(is_root(), "mounts need root");
    let copy = Fresh::copy(&program("hold", Kind::DynamicPie));
    let at = copy.dir().join("mounted");
    std::fs::create_dir(&at).expect("a directory");
    let name = copy.path().file_name().expect("a name");
    let script = format!(
        "mount --make-rprivate / && mount --bind '{0}' '{1}' && mount -o remount,bind,ro '{1}' && \
         ! touch '{1}/x' 2>/dev/null && exec \"$@\"",
        copy.dir().display(),
        at.display()
    );
    // The mount namespace ends with the program.
    let report = Report::new();
    let run = Run::new(at.join(name), ["7"]).behind(["unshare", "-m"]).behind_sh(&script);
    let held = report.of(&run).hold();
    assert_pagecache(&report.read(), true);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn tiexec_leaves_the_file_as_it_was() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let mut copy = Fresh::copy(&program("hold", Kind::DynamicPie));
    let path = copy.path().to_owned();
    let sum = || Command::new("sha256sum").arg(&path).output().expect("sha256sum").stdout;
    let before = sum();
    for _ in 0..3 {
        Run::new(&path, ["7"]).hold().finish().assert_code(7).assert_silent();
    }
    copy.let_go();
    uncache(&path);
    assert_eq!(sum(), before);
}
