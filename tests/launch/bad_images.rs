//! For every file, the status and the kind of error equal those of a plain execvp, without a panic.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use support::attaching::{Before, assert_untouched, ctl, switched};
use support::extent::shared;
use support::smaps::vmas;
use support::{Done, Kind, Run, is_root, pmd_size, program, program_big, require, write_program};

/// Returns the kind of the message, without the name of the printing program.
fn class(done: &Done) -> Option<&'static str> {
    let err = done.err();
    let classes = [
        "No such file or directory",
        "Permission denied",
        "Exec format error",
        "Is a directory",
        "Not a directory",
        "Too many levels of symbolic links",
        "File name too long",
        "Accessing a corrupted shared library",
        "Argument list too long",
        "Text file busy",
        "Invalid argument",
    ];
    classes.into_iter().find(|c| err.to_lowercase().contains(&c.to_lowercase()))
}

/// Asserts the same end, output and kind of error as through env(1), in every mode.
fn assert_same(what: &str, run: &Run) -> Done {
    let env = run.through_env().output();
    for options in [&[][..], &["--report=/dev/null"], &["-v", "--json", "--report=/dev/null"]] {
        let done = run.clone().options(options).output();
        assert_eq!(done.end(), env.end(), "{what} {options:?}: {done}\nplain: {env}");
        assert_eq!(done.out(), env.out(), "{what}: {done}");
        assert!(!done.err().contains("panicked"), "{what}: {done}");
        if matches!(env.status.code(), Some(126 | 127)) && env.err().contains("env:") {
            assert_eq!(class(&done), class(&env), "{what}: {done}\nplain: {env}");
            assert!(
                done.err().starts_with("tiexec: ") && done.err().lines().count() <= 2,
                "{what}: {done}"
            );
        }
    }
    env
}

struct Files {
    dir: tempfile::TempDir,
    count: std::cell::Cell<u32>,
}

impl Files {
    fn new() -> Files {
        Files { dir: tempfile::tempdir().expect("a directory"), count: 0.into() }
    }

    fn make(&self, content: &[u8]) -> PathBuf {
        self.count.set(self.count.get() + 1);
        let path = self.dir.path().join(format!("image{}", self.count.get()));
        write_program(&path, content, 0o755);
        path
    }

    fn check(&self, what: &str, content: &[u8]) -> Done {
        // The shell to which execvp falls back prints the path in its errors, so standard error is not compared.
        let path = self.make(content);
        // The shell might find a redirection in the garbage, so it runs in the test's own directory.
        let done = assert_same(what, &Run::new(&path, ["argument"]).cwd(self.dir.path()));
        std::fs::remove_file(path).expect("an own file");
        done
    }
}

#[test]
fn names_that_cannot_be_executed() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    write_program(&at("plain"), b"text", 0o644);
    write_program(&at("empty"), b"", 0o755);
    write_program(&at("nothing-to-read"), b"", 0o000);
    std::os::unix::fs::symlink("loop", at("loop")).expect("a link");
    std::os::unix::fs::symlink("nowhere", at("dangling")).expect("a link");
    write_program(&at("no-interpreter"), b"#!/nonexistent/interpreter\n", 0o755);
    write_program(&at("directory-interpreter"), b"#!/tmp\n", 0o755);
    write_program(&at("empty-interpreter"), b"#!\n", 0o755);
    write_program(&at("blank-interpreter"), b"#!   \t\n", 0o755);
    write_program(
        &at("loop-interpreter"),
        format!("#!{}\n", at("loop-interpreter").display()).as_bytes(),
        0o755,
    );
    write_program(&at("long-interpreter"), format!("#!/{}\n", "x".repeat(5000)).as_bytes(), 0o755);
    write_program(
        &at("long-argument"),
        format!("#!/bin/echo {}\n", "x".repeat(5000)).as_bytes(),
        0o755,
    );
    write_program(&at("crlf-interpreter"), b"#!/bin/sh\r\necho hello\r\n", 0o755);
    write_program(&at("nul-interpreter"), b"#!/bin/echo\0 hidden\n", 0o755);
    write_program(&at("relative-interpreter"), b"#!bin/sh\n", 0o755);
    let done = Run::new(at("no-interpreter"), ["argument"]).output();
    done.assert_code(127);
    let says = ": its interpreter /nonexistent/interpreter is not there: no such file or directory (ENOENT)\n";
    assert!(done.err().ends_with(says), "{done}");
    let fifo = at("fifo");
    assert!(
        support::child::tool(&["mkfifo", "-m", "755", &fifo.to_string_lossy()]).status.success()
    );
    for name in [
        "plain",
        "empty",
        "nothing-to-read",
        "loop",
        "dangling",
        "missing",
        "plain/below",
        "no-interpreter",
        "directory-interpreter",
        "empty-interpreter",
        "blank-interpreter",
        "loop-interpreter",
        "long-interpreter",
        "long-argument",
        "crlf-interpreter",
        "nul-interpreter",
        "relative-interpreter",
        "fifo",
        ".",
    ] {
        assert_same(name, &Run::new(at(name), ["argument"]));
    }
    let long = "x".repeat(5000);
    for name in [
        "/",
        "/dev/null",
        "/proc/self/mem",
        "no-such-command-anywhere",
        "",
        ".",
        "..",
        long.as_str(),
    ] {
        let done = assert_same(name, &Run::new(name, ["argument"]));
        assert!(matches!(done.status.code(), Some(126 | 127)), "{name}: {done}");
    }
}

#[test]
fn path_search_goes_on_where_execvp_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    for (sub, mode) in [("denied", 0o644), ("good", 0o755)] {
        let sub = dir.path().join(sub);
        std::fs::create_dir(&sub).expect("a directory");
        write_program(&sub.join("thing"), b"echo found \"$0\"\n", mode);
    }
    let (d, g) = (dir.path().join("denied"), dir.path().join("good"));
    let (d, g) = (d.display(), g.display());
    for path in [
        format!("{d}:{g}"),
        format!("{g}:{d}"),
        format!("{d}"),
        format!("/etc/passwd:{g}"),
        format!("/nonexistent:{d}:/nonexistent"),
        String::new(),
        ":".to_owned(),
    ] {
        // env itself is found by its full name, so PATH is free.
        assert_same(&path, &Run::new("thing", [""; 0]).env("PATH", &path));
    }
    // A directory with that name is no program.
    std::fs::create_dir(dir.path().join("good/sub")).expect("a directory");
    assert_same("a directory on PATH", &Run::new("sub", [""; 0]).env("PATH", g.to_string()));
}

#[test]
fn garbage() {
    let files = Files::new();
    files.check("one byte", b"\x7f");
    files.check("the magic alone", b"\x7fELF");
    files.check("magic and nothing", &[b"\x7fELF\x02\x01\x01".as_slice(), &[0; 57]].concat());
    files.check("zeros", &[0; 4096]);
    files.check("ones", &[0xff; 4096]);
    files.check("not text", &(0..=255).cycle().take(3000).collect::<Vec<u8>>());
    let mut seed = 1_u64;
    for _ in 0..20 {
        let mut noise = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
        noise.extend((0..2000).map(|_| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        }));
        files.check("noise behind a header", &noise);
    }
}

/// An ELF file as bytes, with its header fields and program headers by name.
#[derive(Clone)]
struct Elf(Vec<u8>);

const PHOFF: usize = 32;
const PHENTSIZE: usize = 54;
const PHNUM: usize = 56;

impl Elf {
    fn read(path: &Path) -> Elf {
        Elf(std::fs::read(path).expect("a built program"))
    }

    fn put<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Elf {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    fn u16(&self, at: usize) -> usize {
        u16::from_le_bytes([self.0[at], self.0[at + 1]]).into()
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Returns the offset of the n-th program header of that type.
    fn header(&self, kind: u32, n: usize) -> usize {
        let at = |i: usize| self.u64(PHOFF) as usize + i * 56;
        (0..self.u16(PHNUM))
            .map(at)
            .filter(|&at| self.0[at..at + 4] == kind.to_le_bytes())
            .nth(n)
            .expect("a program header")
    }

    /// Returns the offset of the executable LOAD segment's header.
    fn text(&self) -> usize {
        (0..)
            .map(|n| self.header(1, n))
            .find(|&at| self.0[at + 4] & 1 != 0)
            .expect("a text segment")
    }
}

/// `hold` with text that is `more` bytes longer, in a file of `len` bytes or of its own length.
fn with_longer_text(files: &Files, more: u64, len: Option<u64>) -> PathBuf {
    let elf = Elf::read(&program("hold", Kind::DynamicPie));
    let text = elf.text();
    let longer = |at| (elf.u64(at) + more).to_le_bytes();
    let path = files
        .make(&elf.clone().put(text + 32, longer(text + 32)).put(text + 40, longer(text + 40)).0);
    if let Some(len) = len {
        let file = std::fs::File::options().write(true).open(&path).expect("an own file");
        file.set_len(len).expect("a file system with sparse files");
    }
    path
}

/// Panics unless the copies of a process's text take exactly the memory that is mapped of them.
fn assert_no_more_than_is_mapped(pid: i32) {
    let switched: Vec<_> = vmas(pid).into_iter().filter(|vma| vma.is_switched()).collect();
    assert!(!switched.is_empty());
    for vma in switched {
        let image = format!("/proc/{pid}/map_files/{:x}-{:x}", vma.start, vma.end);
        let held = std::fs::metadata(image).expect("root").blocks() * 512;
        assert_eq!(held, vma.end - vma.start, "{vma:?}");
    }
}

#[test]
fn text_beyond_the_end_of_its_file_takes_no_memory() {
    require!(is_root(), "/proc/PID/map_files");
    let files = Files::new();
    let path = with_longer_text(&files, 64 << 20, None);
    let launched = Run::new(&path, ["7"]).options(["--backing=image"]).hold();
    assert_no_more_than_is_mapped(launched.pid());
    launched.finish().assert_code(7);
    let attached = Run::new(&path, ["7"]).plain().hold();
    let before = Before::of(attached.pid());
    let pid = attached.pid().to_string();
    let done = ctl(["attach", "--backing=image", &pid]);
    assert!(done.err().contains("read_failed"), "{done}");
    assert_no_more_than_is_mapped(attached.pid());
    ctl(["revert", &pid]).assert_code(0);
    assert_untouched(attached.pid(), &before);
    attached.finish().assert_code(7);
}

#[test]
fn more_text_than_memory() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("/proc");
    let total: u64 =
        meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("MemTotal");
    let text = total * 1024 * 2 / pmd_size() * pmd_size();
    let files = Files::new();
    let path = with_longer_text(&files, text, Some(text + (64 << 20)));
    let run = Run::new(&path, ["7"]).options(["--backing=image"]);
    let done = run.output();
    done.assert_code(7);
    assert!(done.err().contains("memory_headroom"), "{done}");
    let held = run.plain().hold();
    let before = Before::of(held.pid());
    let pid = held.pid().to_string();
    // An attach skips the holes of the file, which are nearly the whole file.
    ctl(["attach", "--backing=image", &pid]).assert_code(0);
    let held_huge = switched(held.pid());
    assert!(held_huge < 64 << 20, "{} MiB", held_huge >> 20);
    ctl(["revert", &pid]).assert_code(0);
    assert_untouched(held.pid(), &before);
    held.finish().assert_code(7);
}

#[test]
fn truncated_programs() {
    let files = Files::new();
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let whole = Elf::read(&program("exits", kind));
        let text = whole.text();
        let (offset, size) = (whole.u64(text + 8) as usize, whole.u64(text + 32) as usize);
        for len in [
            5,
            16,
            63,
            64,
            65,
            100,
            200,
            500,
            1000,
            4096,
            offset,
            offset + 1,
            offset + size / 2,
            offset + size - 1,
            whole.0.len() - 1,
        ] {
            files.check(&format!("{kind:?} cut to {len}"), &whole.0[..len]);
        }
    }
}

#[test]
fn hostile_headers() {
    let files = Files::new();
    for (share, kind) in shared([Kind::DynamicPie, Kind::StaticNoPie]) {
        let elf = Elf::read(&program("exits", kind));
        let text = elf.text();
        let max = u64::MAX.to_le_bytes();
        let cases: Vec<(&str, Elf)> = vec![
            ("no program headers", elf.clone().put(PHNUM, [0, 0])),
            ("65535 program headers", elf.clone().put(PHNUM, [255, 255])),
            ("1170 program headers", elf.clone().put(PHNUM, 1170_u16.to_le_bytes())),
            ("1171 program headers", elf.clone().put(PHNUM, 1171_u16.to_le_bytes())),
            ("program headers of size 0", elf.clone().put(PHENTSIZE, [0, 0])),
            ("program headers of size 57", elf.clone().put(PHENTSIZE, [57, 0])),
            (
                "program headers past the end",
                elf.clone().put(PHOFF, (elf.0.len() as u64 - 10).to_le_bytes()),
            ),
            ("program headers at the end of the world", elf.clone().put(PHOFF, max)),
            ("program headers at an odd place", elf.clone().put(PHOFF, 65_u64.to_le_bytes())),
            ("another machine", elf.clone().put(18, [0xb7, 0])),
            ("big endian", elf.clone().put(5, [2])),
            ("class 32", elf.clone().put(4, [1])),
            ("class 0", elf.clone().put(4, [0])),
            ("a relocatable file", elf.clone().put(16, [1, 0])),
            ("a core file", elf.clone().put(16, [4, 0])),
            ("version 0", elf.clone().put(20, [0, 0, 0, 0])),
            ("entry point nowhere", elf.clone().put(24, 0x10_u64.to_le_bytes())),
            ("entry point at the end of the world", elf.clone().put(24, max)),
            (
                "text offset past the end",
                elf.clone().put(text + 8, (elf.0.len() as u64 * 4096).to_le_bytes()),
            ),
            ("text offset at the end of the world", elf.clone().put(text + 8, max)),
            (
                "text offset not congruent",
                elf.clone().put(text + 8, (elf.u64(text + 8) + 1).to_le_bytes()),
            ),
            ("text at address max", elf.clone().put(text + 16, max)),
            (
                "text in the kernel",
                elf.clone().put(text + 16, 0xffff_8000_0000_0000_u64.to_le_bytes()),
            ),
            ("text size in file max", elf.clone().put(text + 32, max)),
            ("text size in memory max", elf.clone().put(text + 40, max)),
            (
                "text size in file beyond memory",
                elf.clone().put(text + 40, 0x1000_u64.to_le_bytes()),
            ),
            (
                "text size in file 1 TiB",
                elf.clone()
                    .put(text + 32, (1_u64 << 40).to_le_bytes())
                    .put(text + 40, (1_u64 << 40).to_le_bytes()),
            ),
            ("text size in memory 1 TiB", elf.clone().put(text + 40, (1_u64 << 40).to_le_bytes())),
            ("text of no size", elf.clone().put(text + 32, [0; 8]).put(text + 40, [0; 8])),
            ("text that is writable", elf.clone().put(text + 4, [7, 0, 0, 0])),
            ("text that is not executable", elf.clone().put(text + 4, [4, 0, 0, 0])),
            ("text of alignment 3", elf.clone().put(text + 48, 3_u64.to_le_bytes())),
            ("text of alignment 2^63", elf.clone().put(text + 48, (1_u64 << 63).to_le_bytes())),
            ("text of alignment 0", elf.clone().put(text + 48, [0; 8])),
            (
                "text over all other segments",
                elf.clone().put(text + 16, elf.u64(elf.header(1, 0) + 16).to_le_bytes()),
            ),
        ];
        for (_, (what, case)) in (0..).zip(cases).filter(|(place, _)| share.has(*place)) {
            files.check(&format!("{kind:?}, {what}"), &case.0);
        }
    }
    let elf = Elf::read(&program("exits", Kind::DynamicPie));
    let interp = elf.header(3, 0);
    let path = elf.u64(interp + 8) as usize;
    for (what, case) in [
        ("interpreter size max", elf.clone().put(interp + 32, u64::MAX.to_le_bytes())),
        ("interpreter size 0", elf.clone().put(interp + 32, [0; 8])),
        ("interpreter past the end", elf.clone().put(interp + 8, (1_u64 << 50).to_le_bytes())),
        ("interpreter that does not exist", elf.clone().put(path, *b"/nob64/")),
        ("interpreter without an end", elf.clone().put(interp + 32, 5_u64.to_le_bytes())),
        ("interpreter that is a directory", elf.clone().put(path, *b"/tmp\0")),
        ("interpreter that is no program", elf.clone().put(path, *b"/etc/passwd\0")),
    ] {
        files.check(what, &case.0);
    }
}

#[test]
fn a_program_that_is_being_written() {
    let files = Files::new();
    let path = files
        .make(&std::fs::read(program_big("exits", Kind::StaticNoPie, 6)).expect("a built program"));
    let _writer = std::fs::File::options().append(true).open(&path).expect("an own file");
    let done = assert_same("a busy text file", &Run::new(&path, ["code", "7"]));
    assert_eq!(done.status.code(), Some(126), "{done}");
}

#[test]
fn text_that_may_only_be_executed() {
    let files = Files::new();
    let elf = Elf::read(&program_big("unread", Kind::StaticNoPie, 6));
    let text = elf.text();
    let path = files.make(&elf.put(text + 4, [1, 0, 0, 0]).0);
    let maps = |run: &Run| {
        let held = run.hold();
        let found = support::smaps::vmas(held.pid());
        let own = found.into_iter().filter(|vma| vma.path.contains(path.to_str().expect("ASCII")));
        let lines: Vec<_> = own.map(|vma| (vma.start, vma.end, vma.perms)).collect();
        held.finish().assert_code(7);
        lines
    };
    let report = support::Report::new();
    let run = Run::new(&path, ["7", "wait"]).options(["--backing=image"]);
    assert_eq!(maps(&report.of(&run)), maps(&run.plain()));
    assert!(report.read().to_string().contains("protection_key"), "{}", report.read());
}
