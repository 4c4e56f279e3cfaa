//! Oversized data of a program about itself does not cost its observer much memory or time.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::attaching::started;
use support::extent::is_whole;
use support::store::{own_run, tmpfs};
use support::{Done, Held, Kind, Public, Run, installed, is_root, program, require};

use super::ATTACKER;

/// The commands that examine a process.
const COMMANDS: [&[&str]; 5] =
    [&["inspect"], &["doctor"], &["attach", "--dry-run"], &["attach", "-q"], &["revert", "-q"]];

fn can() -> bool {
    is_root() && ["setpriv", "prlimit", "unshare"].iter().all(|tool| installed(tool).is_some())
}

const CANNOT: &str = "another user needs root, setpriv, prlimit, unshare";

/// Runs a command with a limit on its memory, in MiB.
fn within(mib: u64, command: &[&str], pid: i32) -> Done {
    let limit = format!("--data={}", mib << 20);
    let pid = pid.to_string();
    let words = command.iter().copied().chain([pid.as_str()]);
    let run = Run::new(support::tiexecctl(), words).plain().behind(["prlimit", &limit]);
    run.output()
}

/// The attacker's program.
fn attacker(public: &Public, args: &[&str]) -> Held {
    let path = public.add(&program("hostile/large", Kind::DynamicNoPie), "large", 0o755);
    Run::new(&path, args).plain().behind(ATTACKER).hold()
}

/// A directory of the attacker's.
fn own_directory(public: &Public) -> String {
    let path = public.path().join("own");
    std::fs::create_dir(&path).expect("a directory");
    std::os::unix::fs::chown(&path, Some(2001), Some(2001)).expect("chown");
    path.to_str().expect("UTF-8").to_owned()
}

/// TiExec reads at most 64 KiB of a file's note, with any claimed length.
#[test]
fn a_note_of_3_gib() {
    require!(can(), "{CANNOT}");
    const SIZE: u64 = 3 << 30;
    let public = Public::new();
    let path = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("an own file");
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("a header");
        u64::from_le_bytes(bytes)
    };
    let len = file.metadata().expect("an own file").len();
    let (table, count) = (word(32), word(56) & 0xffff);
    let headers = (0..count).map(|index| table + 56 * index);
    let notes = headers.filter(|&at| word(at) as u32 == 4).inspect(|&at| {
        // The offset and the length of the note in the file.
        file.write_all_at(&len.to_le_bytes(), at + 8).expect("an own file");
        file.write_all_at(&SIZE.to_le_bytes(), at + 32).expect("an own file");
    });
    assert!(notes.count() > 0, "it has no notes");
    // The section headers are removed, because they could show another length.
    file.write_all_at(&[0; 8], 40).expect("an own file");
    file.write_all_at(&[0; 4], 60).expect("an own file");
    file.set_len(len + SIZE).expect("a file system with holes");
    drop(file);
    let held = Run::new(&path, ["7"]).plain().behind(ATTACKER).hold();
    // The journal's record of each command contains the build ID.
    for command in [&["attach", "--backing=image", "-q"][..], &["revert", "-q"]] {
        let done = within(64, command, held.pid());
        done.assert_code(0).assert_silent();
    }
    held.finish().assert_code(7);
}

/// The process has 65,000 mappings with paths of 4 KiB.
#[test]
fn mappings_with_long_names() {
    require!(can(), "{CANNOT}");
    let public = Public::new();
    let own = own_directory(&public);
    let held = attacker(&public, &["names", &own]);
    let mappings: u32 = held.said("mappings").and_then(|n| n.parse().ok()).expect("a number");
    require!(mappings > 60_000, "vm.max_map_count is small");
    for command in COMMANDS {
        let done = within(256, command, held.pid());
        done.assert_code(1);
        assert!(done.err().contains("file too large (EFBIG)"), "{done}");
    }
    held.finish().assert_code(7);
}

/// This is no attack: TiExec must not refuse a process with as many mappings as the kernel allows.
#[test]
fn as_many_mappings_as_there_may_be() {
    require!(can(), "{CANNOT}");
    let public = Public::new();
    let held = attacker(&public, &["maps"]);
    for command in COMMANDS {
        within(256, command, held.pid()).assert_code(0);
    }
    held.finish().assert_code(7);
}

/// The process has text of 8 TiB, in a file without data: four bytes for each huge page would exceed the limit of TiExec's
/// memory here. `make soak` has 100 TiB.
#[test]
fn text_longer_than_any_memory() {
    require!(can(), "{CANNOT}");
    own_run();
    let public = Public::new();
    let own = own_directory(&public);
    tmpfs(Path::new(&own), "mode=1777,size=64m");
    let tib = if is_whole() { "100" } else { "8" };
    let held = attacker(&public, &["text", &format!("{own}/text"), tib]);
    let hottest: &[&str] = &["attach", "--dry-run", "--max-huge-pages=1"];
    for command in COMMANDS.into_iter().chain([hottest]) {
        let done = within(16, command, held.pid());
        assert!(matches!(done.status.code(), Some(0 | 1)), "{done}");
        assert!(!done.err().contains("helper_died"), "{done}");
    }
    let used = support::child::tool(&["du", "-sk", &own]);
    let used = String::from_utf8_lossy(&used.stdout).into_owned();
    assert!(used.starts_with("0\t"), "the file grew by being looked at: {used}");
    held.finish().assert_code(7);
}

/// TiExec does not read cgroups at the paths in the process's mounts, which the process can choose.
#[test]
fn a_mount_that_is_a_fifo_elsewhere() {
    require!(can(), "{CANNOT}");
    let public = Public::new();
    let own = own_directory(&public);
    let path = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    // In the attacker's own root the path is a cgroup's directory. In the root of others it is the attacker's own
    // directory.
    let script = format!(
        r#"memory=$(awk '$0 ~ / - cgroup /' /proc/self/mountinfo | awk '/memory/ {{ print $5; exit }}')
           [ -n "$memory" ] || memory=$(awk '$0 ~ / - cgroup2 / {{ print $5; exit }}' /proc/self/mountinfo)
           [ -n "$memory" ] || exit 77
           for name in memory.max memory.limit_in_bytes memory.current memory.usage_in_bytes; do mkfifo {own}/$name; done
           root={own}/root; mkdir -p $root{own}; mount -t tmpfs none $root
           mkdir -p $root{own} $root/proc; mount --rbind "$memory" $root{own}
           for dir in /lib /lib64 /usr /bin /proc; do [ -e $dir ] || continue; mkdir -p $root$dir; mount --rbind $dir $root$dir; done
           cp {program} $root/hold; exec chroot $root /hold 7"#,
        program = path.display()
    );
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let front: Vec<&str> = ATTACKER.iter().chain(&unshare).copied().collect();
    let held = Run::new(front[0], &front[1..]).plain().hold();
    let mounts =
        std::fs::read_to_string(format!("/proc/{}/mountinfo", held.pid())).expect("mounts");
    require!(mounts.contains(&format!(" {own} ")), "no memory cgroup is mounted: {mounts}");
    let mut done = started(&[], support::tiexecctl(), ["doctor", &held.pid().to_string()]);
    let ended = support::child::soon(|| done.has_ended());
    // A reader of a FIFO without a writer would wait for ever.
    assert!(ended, "it waits for the attacker");
    assert!(done.finish().out().contains("memory"));
    let mut nothing = held;
    nothing.write(b"\n");
    nothing.finish().assert_code(7);
    let _flushed = std::io::stdout().flush();
}
