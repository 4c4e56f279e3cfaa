//! Root attaches to each kind of other users' processes. The attach works or is refused for the right reason, the
//! process is unharmed, and the report is true.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use support::attaching::{Before, assert_untouched, ctl, json, ok, switched};
use support::child::{eventually, state};
use support::machine::{Groups, freezer, memory_controller};
use support::smaps::status_field;
use support::{
    Done, Held, Kind, Public, Run, installed, is_root, program, require, require_of_machine,
};

use super::ATTACKER;

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

const NEEDS: &str = "another user needs root and setpriv";

/// A program with 6 MiB of text at a fixed address, which all users may run, and a `tiexecctl` beside it.
fn place(name: &str) -> (Public, PathBuf, PathBuf) {
    let public = Public::new();
    let base = name.rsplit('/').next().expect("a name");
    let copy = public.add(&program(name, Kind::DynamicNoPie), base, 0o755);
    let tool = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    (public, copy, tool)
}

/// Runs a command of the tool behind this front.
fn by(front: &[&str], tool: &Path, args: &[&str]) -> Done {
    Run::new(tool, args).plain().behind(front).output()
}

/// Returns the huge bytes of text, from `inspect`.
fn inspected(pid: i32) -> u64 {
    let done = ctl(["inspect", "--json", &pid.to_string()]);
    done.assert_code(0);
    json(&done)["huge_bytes"].as_u64().expect("a number")
}

/// Attaches and reverts. Asserts that the text is huge in between, also by `inspect` and `doctor`, and that everything
/// is as before afterwards.
fn there_and_back(pid: i32, attach: impl Fn() -> Done, revert: impl Fn() -> Done) {
    let before = Before::of(pid);
    assert_eq!(inspected(pid), 0);
    ok(&attach());
    assert!(switched(pid) > 0);
    assert_eq!(inspected(pid), switched(pid));
    let said = ctl(["doctor", &pid.to_string()]);
    said.assert_code(0);
    assert!(said.out().contains("nothing to add"), "{said}");
    ok(&revert());
    assert_eq!(inspected(pid), 0);
    assert_untouched(pid, &before);
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
}

fn there_and_back_by_root(pid: i32) {
    let attach = || ctl(["attach", "--backing=image", "-q", &pid.to_string()]);
    there_and_back(pid, attach, || ctl(["revert", "-q", &pid.to_string()]));
}

/// Asserts that its user's attach and revert do nothing and report the reason. Examining it is refused, or harmless.
fn refused_to(user: &[&str], tool: &Path, pid: i32, reason: &str, code: i32) {
    let before = Before::of(pid);
    for command in ["attach", "revert"] {
        let done = by(user, tool, &[command, &pid.to_string()]);
        done.assert_code(code);
        assert!(done.err().contains(&format!(": {reason}: ")), "{command}: {done}");
    }
    for command in ["inspect", "doctor"] {
        let done = by(user, tool, &[command, &pid.to_string()]);
        assert!(done.status.code().is_some(), "{command}: {done}");
    }
    assert_untouched(pid, &before);
    assert_ne!(state(pid), Some('t'));
}

#[test]
fn a_process_that_is_not_dumpable() {
    require!(needs(), "{NEEDS}");
    let (_public, copy, tool) = place("hostile/undumpable");
    let held = Run::new(&copy, [""; 0]).plain().behind(ATTACKER).hold();
    there_and_back_by_root(held.pid());
    refused_to(&ATTACKER, &tool, held.pid(), "ptrace_denied", 5);
    held.finish().assert_code(7);
}

#[test]
fn a_program_with_file_capabilities() {
    require!(needs(), "{NEEDS}");
    let (_public, copy, tool) = place("hold");
    require!(support::give_capability(&copy), "the temporary directory takes no file capabilities");
    let held = Run::new(&copy, ["7"]).plain().behind(ATTACKER).hold();
    let pid = held.pid();
    assert_eq!(status_field(pid, "CapEff").as_deref(), Some("0000000000000400"));
    there_and_back_by_root(pid);
    assert_eq!(status_field(pid, "CapEff").as_deref(), Some("0000000000000400"));
    refused_to(&ATTACKER, &tool, pid, "ptrace_denied", 5);
    held.finish().assert_code(7);
}

/// The mapped images of the process, by device and inode.
fn images(pid: i32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process");
    let of_ours = maps.lines().filter(|line| line.contains("/memfd:tiexec:"));
    of_ours
        .map(|line| line.split_ascii_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" "))
        .collect()
}

/// Attaches to both with one command. Returns the images of each.
fn images_of_both(one: &Held, other: &Held) -> [BTreeSet<String>; 2] {
    let pids = [one, other].map(|held| held.pid().to_string());
    ok(&ctl(["attach", "--backing=image", "-q", &pids[0], &pids[1]]));
    let found = [one, other].map(|held| images(held.pid()));
    assert!(found.iter().all(|images| images.len() == 1), "{found:?}");
    ok(&ctl(["revert", "-q", &pids[0], &pids[1]]));
    found
}

#[test]
fn a_family_shares_its_image_and_nobody_else_does() {
    require!(needs(), "{NEEDS}");
    const OTHER: [&str; 4] = ["setpriv", "--reuid=2002", "--regid=2002", "--clear-groups"];
    const GROUP: [&str; 4] = ["setpriv", "--reuid=2001", "--regid=2001", "--groups=2002"];
    let (_public, copy, _tool) = place("hold");
    let start = |front: [&str; 4]| Run::new(&copy, ["7"]).plain().behind(front).hold();
    let [first, second, other, group] = [ATTACKER, ATTACKER, OTHER, GROUP].map(start);
    let [of_first, of_second] = images_of_both(&first, &second);
    assert_eq!(of_first, of_second, "one user, one image");
    for stranger in [&other, &group] {
        let [of_first, of_stranger] = images_of_both(&first, stranger);
        assert!(of_first.is_disjoint(&of_stranger), "{}", stranger.command);
    }
    for held in [first, second, other, group] {
        held.finish().assert_code(7);
    }
}

#[test]
fn processes_of_two_memory_cgroups_share_no_image() {
    require!(needs(), "{NEEDS}");
    let mut cgroups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, _limit) = controller.expect("just looked");
    let (_public, copy, _tool) = place("hold");
    let [one, other] = [(); 2].map(|()| {
        let group = cgroups.group(&parent).expect("a cgroup");
        let script = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display());
        Run::new(&copy, ["7"]).plain().behind_sh(&script).behind(ATTACKER).hold()
    });
    let [of_one, of_other] = images_of_both(&one, &other);
    assert!(of_one.is_disjoint(&of_other), "each pays for its own");
    one.finish().assert_code(7);
    other.finish().assert_code(7);
}

fn frozen(unified: bool) {
    require!(needs(), "{NEEDS}");
    let mut cgroups = Groups::new();
    let found = freezer(&mut cgroups, unified);
    require!(found.is_some(), "no freezer");
    let (group, [switch, state_file], [freeze, thaw, settled]) = found.expect("just looked");
    let (_public, copy, _tool) = place("hold");
    let script = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display());
    let held = Run::new(&copy, ["7"]).plain().behind_sh(&script).behind(ATTACKER).hold();
    let other = Run::new(&copy, ["7"]).plain().behind(ATTACKER).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    std::fs::write(&switch, freeze).expect("it freezes");
    eventually("it is frozen", || {
        std::fs::read_to_string(&state_file).is_ok_and(|now| now.contains(settled))
    });
    // Attach treats the process that is not frozen, and leaves the other related one alone.
    let (one, two) = (pid.to_string(), other.pid().to_string());
    let done = ctl(["attach", "-q", "--backing=image", &one, &two]);
    done.assert_code(3);
    assert!(done.err().contains(&format!("process {one}: no_thread")), "{done}");
    assert!(switched(other.pid()) > 0);
    assert_untouched(pid, &before);
    for command in ["inspect", "doctor", "revert"] {
        ctl([command, &one]).assert_code(0);
    }
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
    std::fs::write(&switch, thaw).expect("it thaws");
    eventually("it waits again", || state(pid) == Some('S'));
    there_and_back_by_root(pid);
    held.finish().assert_code(7);
    other.finish().assert_code(7);
}

#[test]
fn one_that_a_cgroup_has_frozen() {
    frozen(false);
}

#[test]
fn one_that_a_cgroup_v2_has_frozen() {
    frozen(true);
}

/// If the kernel would kill all processes of a full cgroup, TiExec charges nothing to that cgroup.
#[test]
fn one_of_a_cgroup_whose_members_are_killed_together() {
    require!(needs(), "{NEEDS}");
    let mut cgroups = Groups::new();
    let unified = memory_controller().filter(|(_, limit)| *limit == "memory.max");
    require_of_machine!(unified.is_some(), "no memory controller of cgroup v2 (guests have it)");
    let (parent, limit) = unified.expect("just looked");
    let group = cgroups.group(&parent).expect("a cgroup");
    std::fs::write(group.join("memory.oom.group"), "1").expect("Linux 4.19");
    std::fs::write(group.join(limit), (256_u64 << 20).to_string()).expect("a limit");
    let (_public, copy, _tool) = place("hold");
    let script = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display());
    let held = Run::new(&copy, ["7"]).plain().behind_sh(&script).behind(ATTACKER).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    let done = ctl(["attach", "--backing=image", &pid.to_string()]);
    done.assert_code(1);
    assert!(
        done.err().contains("memcg_headroom") && done.err().contains("memory.oom.group"),
        "{done}"
    );
    let fix =
        format!("; fix: write 0 to {}/memory.oom.group (systemd: OOMPolicy=stop)", group.display());
    assert!(done.err().contains(&fix) && !done.err().contains("MemoryMax="), "{done}");
    assert_untouched(pid, &before);
    std::fs::write(group.join("memory.oom.group"), "0").expect("it was just written");
    there_and_back_by_root(pid);
    // A revert needs no memory of the cgroup.
    ok(&ctl(["attach", "--backing=image", "-q", &pid.to_string()]));
    std::fs::write(group.join("memory.oom.group"), "1").expect("it was just written");
    ok(&ctl(["revert", "-q", &pid.to_string()]));
    assert_untouched(pid, &before);
    let events = std::fs::read_to_string(group.join("memory.events")).expect("its events");
    assert!(events.contains("oom_kill 0"), "{events}");
    held.finish().assert_code(7);
}

/// A cgroup reaches its memory limit repeatedly while copies are made and charged to it. Other processes may be killed,
/// but not the program, which is never left half-switched.
#[test]
fn one_of_a_cgroup_that_is_at_its_limit() {
    require!(needs(), "{NEEDS}");
    let mut cgroups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, limit) = controller.expect("just looked");
    let group = cgroups.group(&parent).expect("a cgroup");
    std::fs::write(group.join(limit), (160_u64 << 20).to_string()).expect("a limit");
    let (_public, copy, _tool) = place("hold");
    let script = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display());
    let member = |run: Run| run.plain().behind_sh(&script).behind(ATTACKER);
    let held = member(Run::new(&copy, ["7"])).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    let fill = "while :; do head -c 170m /dev/zero | tail -c 170m >/dev/null; done";
    let filler = member(Run::new("sh", ["-c", fill])).start();
    let unified = limit == "memory.max";
    let events = group.join(if unified { "memory.events" } else { "memory.oom_control" });
    eventually("somebody is killed", || {
        let text = std::fs::read_to_string(&events).expect("its events");
        text.lines().any(|line| line.starts_with("oom_kill ") && line != "oom_kill 0")
    });
    for _ in 0..5 {
        for command in [&["attach", "-q", "--backing=image"][..], &["revert", "-q"]] {
            let done = ctl(command.iter().copied().chain([&*pid.to_string()]));
            assert!(matches!(done.status.code(), Some(0 | 1 | 3)), "{done}");
            assert_ne!(state(pid), Some('t'));
        }
    }
    drop(filler);
    ok(&ctl(["revert", "-q", &pid.to_string()]));
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

/// A script that makes a root file system from `$2/layer`, on a tmpfs or as an overlay without or with an upper layer
/// (`$1`), and becomes the program as its first process.
const CONTAINER: &str = r#"
kind=$1 place=$2; shift 2
cd "$place/root"
case $kind in
tmpfs) mount -t tmpfs -o mode=755 none .; cp -R ../layer/. "$place/root" ;;
lower) mount -t overlay -o "lowerdir=$place/layer:$place/second" none . ;;
upper) mount -t overlay -o "lowerdir=$place/layer,upperdir=$place/upper,workdir=$place/work" none . ;;
esac
cd "$place/root"
for dir in bin sbin lib lib64 usr; do
    [ ! -e /$dir ] || mount --rbind "$(readlink -f /$dir)" $dir
done
mount -t proc proc proc
pivot_root . .
umount -l .
exec "$@"
"#;

/// A script that runs the rest as root of a user namespace which the attacker owns. Root maps more IDs into the
/// namespace, like newuidmap(1).
const ROOTLESS: &str = r#"
place=$1; shift
mkfifo -m 666 "$place/asked" "$place/mapped"
( {
    read -r pid <"$place/asked"
    for map in uid_map gid_map; do printf '0 2001 1\n1 100000 2000\n' >/proc/$pid/$map; done
    echo >"$place/mapped"
} >/dev/null 2>&1 & )
exec setpriv --reuid=2001 --regid=2001 --clear-groups unshare --user \
    sh -ec 'echo $$ >"$0/asked"; read -r _ <"$0/mapped"; exec "$@"' "$place" "$@"
"#;

/// A part of the capabilities that Docker gives to root of a container.
const FEW_RIGHTS: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+kill,+setgid,+setuid,+net_bind_service,+sys_chroot";

/// The namespaces of a container.
const SPACES: [&str; 8] =
    ["unshare", "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--fork", "--kill-child"];

struct Container {
    held: Held,
    public: Public,
    rootless: bool,
}

impl Container {
    /// Starts a container. `rights` is the front of its program's command line.
    fn start(kind: &str, rootless: bool, rights: &[&str]) -> Self {
        let public = Public::new();
        let place = public.path().to_str().expect("UTF-8").to_owned();
        for name in ["root", "layer", "second", "upper", "work"] {
            let dir = public.path().join(name);
            std::fs::create_dir(&dir).expect("a directory");
            if rootless {
                std::os::unix::fs::chown(&dir, Some(2001), Some(2001)).expect("root may");
            }
        }
        for name in ["bin", "sbin", "lib", "lib64", "usr", "proc"] {
            std::fs::create_dir(public.path().join("layer").join(name)).expect("a directory");
        }
        public.add(&program("hold", Kind::DynamicNoPie), "layer/hold", 0o755);
        public.add(support::tiexecctl(), "layer/tiexecctl", 0o755);
        let front: &[&str] = if rootless { &["sh", "-ec", ROOTLESS, "sh", &place] } else { &[] };
        let make = ["sh", "-ec", CONTAINER, "sh", kind, &place];
        let words = [front, &SPACES, &make, rights].concat();
        let held = Run::new("/hold", ["7"]).plain().behind(words).hold();
        Self { held, public, rootless }
    }

    /// The program's PID on the machine.
    fn pid(&self) -> i32 {
        let [only] = support::smaps::children(self.held.pid())[..] else {
            panic!("{} has not one child", self.held.command)
        };
        only
    }

    /// Runs a command of the tool as root of the container, where the program has PID 1.
    fn inside(&self, rights: &[&str], args: &[&str]) -> Done {
        let target = self.pid().to_string();
        let enter = ["nsenter", "--target", &target, "--mount", "--pid", "--root", "--wd"];
        let user: &[&str] = if self.rootless { &["--user"] } else { &[] };
        let words = [&enter, user, rights].concat();
        Run::new("/tiexecctl", args).plain().behind(words).output()
    }

    /// Root of the container attaches and reverts.
    fn there_and_back_inside(&self, rights: &[&str]) {
        let attach = || self.inside(rights, &["attach", "--backing=image", "-q", "1"]);
        there_and_back(self.pid(), attach, || self.inside(rights, &["revert", "-q", "1"]));
    }

    fn end(self) {
        self.held.finish().assert_code(7);
        drop(self.public);
    }
}

fn can_contain() -> bool {
    needs() && ["unshare", "nsenter", "pivot_root"].iter().all(|tool| installed(tool).is_some())
}

const CONTAINS: &str = "containers need root, setpriv, unshare, nsenter and pivot_root";

#[test]
fn root_of_a_container_without_a_user_namespace() {
    require!(can_contain(), "{CONTAINS}");
    let rights = ["setpriv", FEW_RIGHTS];
    for kind in ["upper", "lower", "tmpfs"] {
        let container = Container::start(kind, false, &rights);
        // For root of the machine the program has fewer rights, and for root of the container equal rights. The paths
        // of an overlay's layers are valid only in the namespace where it was mounted, which is here the container's.
        if kind == "tmpfs" {
            there_and_back_by_root(container.pid());
        } else {
            let done = ctl(["attach", "--backing=image", &container.pid().to_string()]);
            assert!(done.out().ends_with("; nothing to do: foreign_filesystem\n"), "{done}");
        }
        container.there_and_back_inside(&rights);
        container.end();
    }
}

#[test]
fn a_rootless_container() {
    require!(can_contain(), "{CONTAINS}");
    const USER: [&str; 4] = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"];
    for (rights, code, reason) in [(&[][..], 0, "file_gone"), (&USER, 5, "ptrace_denied")] {
        let container = Container::start("tmpfs", true, rights);
        there_and_back_by_root(container.pid());
        container.there_and_back_inside(&[]);
        // The owner of the user namespace may trace all its processes, also from outside, but may not open files
        // through their mappings.
        let before = Before::of(container.pid());
        let tool = container.public.path().join("layer/tiexecctl");
        let done = by(&ATTACKER, &tool, &["attach", &container.pid().to_string()]);
        done.assert_code(code);
        assert!(format!("{}{}", done.out(), done.err()).contains(reason), "{done}");
        assert_untouched(container.pid(), &before);
        container.end();
    }
}

/// An overlay that a user mounted may lie on that user's own file systems, so only that user may read from it.
#[test]
fn a_rootless_container_on_an_overlay() {
    require!(can_contain(), "{CONTAINS}");
    for kind in ["lower", "upper"] {
        let container = Container::start(kind, true, &[]);
        let before = Before::of(container.pid());
        let done = ctl(["attach", "--backing=image", &container.pid().to_string()]);
        done.assert_code(0);
        assert!(done.out().ends_with("; nothing to do: foreign_filesystem\n"), "{done}");
        assert_untouched(container.pid(), &before);
        container.there_and_back_inside(&[]);
        container.end();
    }
}
