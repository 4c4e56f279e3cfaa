//! `tiexec -p`, `tiexecctl attach` and `tiexecctl revert` treat running programs exactly as the manual says.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use support::attaching::{
    Before, assert_switched, assert_untouched, attach, collapses, ctl, ctl_behind,
    eventually_untouched, held, joined, json, revert, small, started, switched,
};
use support::child::eventually;
use support::machine::Groups;
use support::smaps::vmas;
use support::{Done, Held, Kind, Public, Run, installed, is_root, pmd_size, program, require};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
const PRIVATELY: [&str; 3] = ["unshare", "--mount", "--"];

fn text(pid: i32) -> String {
    pid.to_string()
}

/// A process ID that was in use a moment ago.
fn gone() -> i32 {
    let held = Run::new("/bin/true", [""; 0]).plain().start();
    let pid = held.pid();
    held.finish();
    pid
}

fn assert_ends_well(held: Held) {
    held.finish().assert_code(7);
}

#[test]
fn attach_makes_text_huge_and_revert_leaves_no_trace() {
    for kind in [
        Kind::DynamicPie,
        Kind::DynamicNoPie,
        Kind::StaticPie,
        Kind::StaticNoPie,
        Kind::OneSegmentNoPie,
    ] {
        let copy = small("hold", kind);
        let held = held(&copy);
        let pid = held.pid();
        let before = Before::of(pid);
        let done = attach(pid);
        done.assert_code(0).assert_silent();
        assert_switched(pid);
        let report = json(&done);
        assert_eq!(report["kind"], "attach", "{report}");
        assert_eq!(report["outcome"], "switched", "{report}");
        assert_eq!(report["pid"], pid, "{report}");
        assert_eq!(report["attach"]["backing"], "image", "{report}");
        assert_eq!(report["attach"]["thread"], pid, "{report}");
        assert_eq!(report["attach"]["interrupted"], false, "{report}");
        assert_eq!(report["attach"]["bytes_copied"], switched(pid), "{report}");
        assert!(report["attach"]["stop_us"].as_u64().is_some_and(|us| us > 0), "{report}");
        assert!(report["attach"]["remote_syscalls"].as_u64().is_some_and(|n| n > 0), "{report}");

        let done = revert(pid);
        done.assert_code(0).assert_silent();
        assert_eq!(json(&done)["reverted_bytes"], json(&done)["found_bytes"], "{done}");
        assert_untouched(pid, &before);
        assert_ends_well(held);
    }
}

#[test]
fn the_second_time_nothing_is_done() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = ctl(["revert", &text(pid)]);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), format!("hold-dynamicnop {pid}: nothing to revert\n"));
    assert_untouched(pid, &before);

    attach(pid).assert_code(0);
    let after = joined(pid);
    let inodes = |pid| vmas(pid).into_iter().map(|vma| vma.path).collect::<Vec<_>>();
    let images = inodes(pid);
    let again = attach(pid);
    again.assert_code(0).assert_silent();
    let report = json(&again);
    assert_eq!(report["attach"], serde_json::Value::Null, "no thread is stopped: {report}");
    assert_eq!((joined(pid), inodes(pid)), (after, images));
    revert(pid).assert_code(0);
    let again = revert(pid);
    again.assert_code(0);
    assert_eq!(json(&again)["stop_us"], serde_json::Value::Null, "{again}");
    assert_untouched(pid, &before);
    assert_ends_well(held);
}

#[test]
fn lists_of_processes_as_other_tools_print_them() {
    let copy = small("hold", Kind::DynamicNoPie);
    let all: Vec<Held> = (0..4).map(|_| held(&copy)).collect();
    let pids: Vec<i32> = all.iter().map(Held::pid).collect();
    let list = format!("{},{} {}\n{}", pids[0], pids[1], pids[2], pids[3]);
    started(&[], support::tiexec(), ["--backing=image", "-p", &list]).finish().assert_code(0);
    pids.iter().for_each(|&pid| assert_switched(pid));
    let words: Vec<String> = pids.iter().map(|&pid| text(pid)).collect();
    let mut args = vec!["revert".to_owned()];
    args.extend(words);
    ctl(args).assert_code(0);
    assert!(pids.iter().all(|&pid| switched(pid) == 0));
    all.into_iter().for_each(assert_ends_well);
}

#[test]
fn every_process_of_a_program_and_of_a_unit() {
    let copy = small("hold", Kind::DynamicNoPie);
    // The name is unique, because other tests run copies with the usual names.
    let own = copy.path().with_file_name("hold-in-many-processes");
    std::fs::rename(copy.path(), &own).expect("a name of its own");
    let path = own.to_string_lossy().into_owned();
    let all: Vec<Held> = (0..3).map(|_| Run::new(&own, ["7"]).plain().hold()).collect();
    let other = held(&small("hold", Kind::DynamicPie));
    ctl(["attach", "-q", "--backing=image", "--exe", &path]).assert_code(0).assert_silent();
    all.iter().for_each(|held| assert_switched(held.pid()));
    assert_eq!(switched(other.pid()), 0, "another program");
    // All processes of one attach share one image.
    let inodes: Vec<String> = all.iter().flat_map(|held| image_inodes(held.pid())).collect();
    assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
    ctl(["revert", "--exe", &path]).assert_code(0);
    assert!(all.iter().all(|held| switched(held.pid()) == 0));
    // Without a match, the message names the number of searched processes, and near names.
    let name = "hold-in-many-processes";
    let fails = |args: [&str; 3], says: &[&str]| {
        let done = ctl(args);
        done.assert_code(4);
        let searched = [" searched", "; fix: "];
        let told = says.iter().chain(&searched).all(|what| done.err().contains(what));
        assert!(told, "{done}");
    };
    fails(["attach", "--exe", name], &[&format!("fix: use --exe {path}")]);
    fails(["revert", "--exe", &format!("/nonexistent/{name}")], &[&format!("use --exe {path}")]);
    fails(["attach", "--exe", "/nonexistent/no"], &["/nonexistent/no: there is no such file ("]);
    fails(["attach", "--exe", "tiexec-none"], &["--exe takes a path", "by its path"]);
    let idle = small("hold", Kind::DynamicPie);
    let idle = idle.path().to_string_lossy().into_owned();
    fails(["attach", "--exe", &idle], &[&format!("fix: start it as `tiexec {idle}`")]);
    fails(["attach", "--unit", "tiexec-none"], &["of unit tiexec-none.service: "]);
    fails(["attach", "--user", "tiexec-none.scope"], &["of unit tiexec-none.scope: "]);
    all.into_iter().for_each(assert_ends_well);
    assert_ends_well(other);
}

/// As with systemd, the unit is in the name of the cgroup or of an ancestor.
#[test]
fn every_process_of_a_unit() {
    require!(is_root(), "cgroups need root");
    let mut cgroups = Groups::new();
    let slice = cgroups.slice_of_units();
    require!(slice.is_some(), "no cgroup can be made where the names of units are taken from");
    let slice = slice.expect("just looked");
    let unit = "tiexec-test@a:b.service";
    let groups = [slice.join(unit).join("inner"), slice.join("tiexec-other.service")];
    groups.iter().for_each(|group| std::fs::create_dir_all(group).expect("a cgroup"));
    let copy = small("brood", Kind::DynamicNoPie);
    let run = Run::new(copy.path(), ["3"]).plain();
    let [ours, other] = groups.each_ref().map(|group| {
        run.clone()
            .behind_sh(&format!("echo $$ >'{}'/cgroup.procs; exec \"$@\"", group.display()))
            .hold()
    });
    let done = ctl(["attach", "--backing=image", "--json", "--unit", unit]);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out().matches(&format!("\"unit\":\"{unit}\"")).count(), 4, "{done}");
    let mut all = children(&ours);
    all.push(ours.pid());
    assert_eq!(all.len(), 4);
    all.iter().for_each(|&pid| assert_switched(pid));
    assert_eq!(switched(other.pid()), 0, "another unit");
    // The suffix of a service may be omitted. For half of a name, the message shows the full name.
    ctl(["attach", "-q", "--unit", "tiexec-test@a:b"]).assert_code(0).assert_silent();
    let done = ctl(["attach", "--unit", "tiexec-test"]);
    done.assert_code(4);
    assert!(done.err().contains(&format!("fix: use --unit {unit}")), "{done}");
    ctl(["revert", "--unit", unit]).assert_code(0);
    assert!(all.iter().all(|&pid| switched(pid) == 0));
    assert_ends_well(ours);
    assert_ends_well(other);
    for group in [&groups[0], &slice.join(unit), &groups[1]] {
        eventually("it is empty", || std::fs::remove_dir(group).is_ok());
    }
}

/// The inode numbers of TiExec's images, one for each mapping.
fn image_inodes(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process");
    let ours = maps.lines().filter(|line| line.contains("/memfd:tiexec:"));
    ours.map(|line| line.split_ascii_whitespace().nth(4).expect("an inode").to_owned()).collect()
}

#[test]
fn a_family_shares_one_image_and_its_new_children_have_it() {
    let copy = small("brood", Kind::DynamicNoPie);
    let mut parent = Run::new(copy.path(), ["3"]).plain().hold();
    let path = copy.path().to_string_lossy().into_owned();
    let done = ctl(["attach", "--backing=image", "--json", "--exe", &path]);
    done.assert_code(0);
    let copied = |report: &str| {
        let report: serde_json::Value = serde_json::from_str(report).expect("a report a line");
        report["attach"]["bytes_copied"].as_u64().expect("a number")
    };
    let out = done.out();
    let reports = out.lines().filter(|line| !line.contains("attach_sum"));
    let copied: Vec<u64> = reports.map(copied).collect();
    assert_eq!(copied, [switched(parent.pid()), 0, 0, 0], "the first one's copy is all of theirs");
    parent.write(b"\n");
    while children(&parent).len() < 4 {
        parent.wait_more();
    }
    let mut all = children(&parent);
    all.push(parent.pid());
    let inodes: Vec<String> = all.iter().flat_map(|&pid| image_inodes(pid)).collect();
    assert!(inodes.len() >= 5 && inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
    let born = children(&parent)[3];
    for &pid in all.iter().filter(|&&pid| pid != born) {
        assert_switched(pid);
    }
    let words: Vec<String> = all.iter().map(|&pid| text(pid)).collect();
    ctl(["revert", &words.join(",")]).assert_code(0);
    assert!(all.iter().all(|&pid| switched(pid) == 0));
    assert_ends_well(parent);
}

fn children(parent: &Held) -> Vec<i32> {
    let said = parent.out_text();
    said.lines().filter_map(|line| line.strip_prefix("child ")?.parse().ok()).collect()
}

#[test]
fn a_dry_run_changes_nothing() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = ctl(["attach", "--dry-run", "--json", "--backing=image", &text(pid)]);
    done.assert_code(0).assert_silent();
    let plan = json(&done);
    assert_eq!(plan["kind"], "plan", "{plan}");
    assert_eq!(plan["huge_bytes"], 2 * pmd_size(), "{plan}");
    assert_untouched(pid, &before);
    attach(pid).assert_code(0);
    let again = json(&ctl(["attach", "--dry-run", "--json", "--backing=image", &text(pid)]));
    assert_eq!(again["huge_bytes"], 0, "{again}");
    let huge = serde_json::json!({"reason": "already_pmd_mapped", "bytes": 2 * pmd_size()});
    let texts = again["texts"].as_array().expect("texts");
    assert!(texts.iter().any(|text| text["rest"][0] == huge), "{again}");
    let during = joined(pid);
    ctl(["revert", "--dry-run", &text(pid)]).assert_code(0);
    assert_eq!(joined(pid), during);
    assert_switched(pid);
    assert_ends_well(held);
}

/// On a tmpfs the kernel collapses text without stopping the process.
#[test]
fn where_the_kernel_can_nobody_is_stopped() {
    require!(is_root(), "a mount needs root");
    require!(collapses(), "no MADV_COLLAPSE here");
    support::store::own_run();
    let place = tempfile::tempdir_in("/run").expect("a directory");
    let copy = place.path().join("hold");
    support::install(&program("hold", Kind::DynamicNoPie), &copy, 0o755);
    let held = Run::new(&copy, ["7"]).plain().hold();
    let pid = held.pid();
    let done = ctl(["attach", "--backing=pagecache", "--json", &text(pid)]);
    done.assert_code(0).assert_silent();
    let report = json(&done);
    assert_eq!(report["outcome"], "switched", "{report}");
    assert_eq!(report["attach"], serde_json::Value::Null, "{report}");
    assert!(support::coverage(pid).is_full(), "{report}");
    let done = ctl(["attach", "--backing=pagecache", &text(pid)]);
    assert!(done.out().contains("nothing to do"), "{done}");
    assert_ends_well(held);
}

#[test]
fn after_a_while_by_itself() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = Before::of(pid);
    ctl(["attach", "--backing=image", "--for", "1s", &text(pid)]).assert_code(0);
    assert_switched(pid);
    eventually_untouched(pid, &before);
    // The process of the scheduled revert may not have ended yet.
    eventually("another attach", || attach(pid).status.code() == Some(0));
    // A PID with another start time belongs to another process.
    ctl(["revert", "--started-at", "1", &text(pid)]).assert_code(4);
    assert_switched(pid);
    assert_ends_well(held);
}

#[test]
fn treated_text_goes_back_by_itself_too() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = Before::of(pid);
    attach(pid).assert_code(0);
    assert_switched(pid);
    let done = ctl(["attach", "--backing=image", "--for", "1s", &text(pid)]);
    done.assert_code(0).assert_silent();
    assert!(done.out().contains("nothing to do"), "{done}");
    assert!(done.out().ends_with(&format!(" {pid}: its own text comes back in 1s\n")), "{done}");
    eventually_untouched(pid, &before);
    assert_ends_well(held);
}

/// The shell and `sleep` belong to root, so the user `nobody` may not examine them.
#[test]
fn revert_of_all_counts_those_that_it_cannot_look_at() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    let public = Public::new();
    let binary = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let script = "sleep 60 & \"$@\"; code=$?; kill $!; exit $code";
    let alone = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh"];
    let done = started(&[&alone[..], &NOBODY].concat(), &binary, ["revert", "--all"]).finish();
    done.assert_code(5);
    assert!(done.err().contains("cannot look at 2 processes"), "{done}");
    assert!(done.err().contains("fix: run it as root"), "{done}");
    let done = started(&alone, support::tiexecctl(), ["revert", "--all"]).finish();
    done.assert_code(0).assert_silent();
}

#[test]
fn exit_statuses() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = text(held.pid());
    let before = Before::of(held.pid());
    let gone = text(gone());
    let tiexec = |args: &[&str]| started(&[], support::tiexec(), args).finish();
    for args in [
        &["attach"][..],
        &["revert"],
        &["attach", "x"],
        &["attach", "-1"],
        &["attach", "0"],
        &["attach", ","],
        &["attach", "--for", "1s", "--dry-run", &pid],
        &["attach", "--for", "soon", &pid],
        &["attach", "--exe", "/bin/true", &pid],
        &["attach", "--backing", "nonsense", &pid],
    ] {
        let done = ctl(args);
        done.assert_code(2);
        assert!(done.stdout.is_empty() && !done.stderr.is_empty(), "{done}");
    }
    if is_root() {
        // The command runs in an empty PID namespace, so that no other process is reverted by mistake.
        let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
        ctl_behind(&alone, ["revert", "--all", "1"]).assert_code(2);
    }
    for args in [&["-p", &pid, "true"][..], &["-p", "x"], &["-p", ""], &["-p", &pid, "--strict"]] {
        tiexec(args).assert_code(2);
    }
    ctl(["attach", &gone]).assert_code(4);
    ctl(["revert", &gone]).assert_code(4);
    tiexec(&["-p", &gone]).assert_code(4);
    assert_untouched(held.pid(), &before);
    ctl(["attach", "--backing=image", &pid, &gone]).assert_code(3);
    assert_switched(held.pid());
    ctl(["revert", &pid, &gone]).assert_code(3);
    assert_untouched(held.pid(), &before);
    assert_ends_well(held);
}

#[test]
fn another_users_process_is_refused() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let before = Before::of(held.pid());
    let public = Public::new();
    let binary = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    for command in ["attach", "revert"] {
        let done = started(&NOBODY, &binary, [command, &text(held.pid())]).finish();
        done.assert_code(5);
        assert!(done.err().contains("ptrace_denied"), "{done}");
        assert!(done.err().contains("; fix: run it as root"), "{done}");
        assert!(!done.err().contains("PID"), "{done}");
    }
    assert_untouched(held.pid(), &before);
    assert_ends_well(held);
}

#[test]
fn an_own_process_needs_no_privilege() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    require!(matches!(scope.trim(), "" | "0"), "Yama lets nobody trace what is not a child");
    let public = Public::new();
    let binary = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let program = public.add(&support::program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let held = Run::new(&program, ["7"]).plain().behind(NOBODY).hold();
    let before = Before::of(held.pid());
    let pid = text(held.pid());
    started(&NOBODY, &binary, ["attach", "--backing=image", &pid]).finish().assert_code(0);
    assert_switched(held.pid());
    started(&NOBODY, &binary, ["revert", &pid]).finish().assert_code(0);
    assert_untouched(held.pid(), &before);
    assert_ends_well(held);
}

#[test]
fn two_at_once_do_not_meet_in_one_process() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = text(held.pid());
    let before = Before::of(held.pid());
    let args = ["attach", "--backing=image", "-q", &pid];
    let all: Vec<Held> = (0..8).map(|_| started(&[], support::tiexecctl(), args)).collect();
    let all: Vec<Done> = all.into_iter().map(Held::finish).collect();
    assert!(all.iter().any(|done| done.status.success()), "{all:?}");
    for done in all.iter().filter(|done| !done.status.success()) {
        done.assert_code(1);
        assert!(done.err().contains("busy"), "{done}");
    }
    assert_switched(held.pid());
    revert(held.pid()).assert_code(0);
    assert_untouched(held.pid(), &before);
    assert_ends_well(held);
}

#[test]
fn switched_off_it_touches_nothing() {
    require!(is_root() && installed("unshare").is_some(), "another /etc needs root");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = text(held.pid());
    let before = Before::of(held.pid());
    let script =
        "mount -t tmpfs none /etc; mkdir /etc/tiexec; : >/etc/tiexec/disabled; exec \"$@\"";
    let mut front = PRIVATELY.to_vec();
    front.extend(["sh", "-ec", script, "sh"]);
    for binary in [support::tiexec(), support::tiexecctl()] {
        let is_ctl = binary == support::tiexecctl();
        let args: &[&str] = if is_ctl { &["attach", &pid] } else { &["-p", &pid] };
        let done = started(&front, binary, args).finish();
        done.assert_code(1);
        let says = "disabled: /etc/tiexec/disabled is there; fix: rm /etc/tiexec/disabled";
        assert!(done.err().contains(says), "{done}");
        // Each source has its own fix.
        for off in ["TIEXEC=off", "TIEXEC=OFF", "TIEXEC=backing=off"] {
            let done = started(&["env", off], binary, args).finish();
            done.assert_code(1);
            let says = "disabled: by TIEXEC in the environment; fix: unset TIEXEC\n";
            assert!(done.err().ends_with(says), "{done}");
        }
        let option = [args, &["--backing=off"]].concat();
        let done = started(&[], binary, &option).finish();
        done.assert_code(1);
        let says = "disabled: by --backing off; fix: leave out --backing off\n";
        assert!(done.err().ends_with(says), "{done}");
        let script = "mount -t tmpfs none /etc; mkdir /etc/tiexec; echo off >/etc/tiexec/config; \
            exec \"$@\"";
        let mut configured = PRIVATELY.to_vec();
        configured.extend(["sh", "-ec", script, "sh"]);
        let done = started(&configured, binary, args).finish();
        done.assert_code(1);
        let says = "by /etc/tiexec/config; fix: remove off from /etc/tiexec/config\n";
        assert!(done.err().ends_with(says), "{done}");
    }
    assert_untouched(held.pid(), &before);
    // Off forbids new attaches, but reverts still work.
    attach(held.pid()).assert_code(0);
    started(&front, support::tiexecctl(), ["revert", &pid]).finish().assert_code(0);
    assert_untouched(held.pid(), &before);
    assert_ends_well(held);
}

/// The addresses of the copied text as maps prints them; none without a copy.
fn switched_range(pid: i32) -> Option<String> {
    let all = support::smaps::vmas(pid);
    let mut ours = all.iter().filter(|vma| vma.is_switched());
    let first = ours.next()?;
    let end = ours.map(|vma| vma.end).next_back().unwrap_or(first.end);
    Some(format!("{:08x}-{end:08x}", first.start))
}

#[test]
fn each_switch_is_recorded_once() {
    require!(is_root() && installed("unshare").is_some(), "another /dev/log needs root");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = text(held.pid());
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let log = UnixDatagram::bind(&path).expect("a socket");
    log.set_read_timeout(Some(support::child::patience(Duration::from_secs(10))))
        .expect("a time limit");
    let read = || {
        let mut buffer = [0; 4096];
        let len = log.recv(&mut buffer).expect("a record");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let at = path.display();
    let syslog = format!(
        "mount -t tmpfs none /run; mount -t tmpfs none /dev; ln -s {at} /dev/log; exec \"$@\""
    );
    let journal = format!(
        "mount -t tmpfs none /run; mkdir -p /run/systemd/journal; ln -s {at} /run/systemd/journal/socket; exec \"$@\""
    );
    for (script, begin) in [(syslog, "<30>tiexec["), (journal, "MESSAGE=")] {
        let mut front = PRIVATELY.to_vec();
        front.extend(["sh", "-ec", &script, "sh"]);
        for (action, args) in
            [("attach", &["attach", "--backing=image", &pid][..]), ("revert", &["revert", &pid])]
        {
            // The command runs twice, because a skipped action must not be recorded.
            let mut text = None;
            for _ in 0..2 {
                ctl_behind(&front, args).assert_code(0);
                text = text.or_else(|| switched_range(held.pid()));
            }
            let record = read();
            assert!(record.starts_with(begin), "{record:?}");
            let bytes = 2 * pmd_size();
            for part in [
                format!("{action} by uid 0: pid {pid} {} ", copy.path().display()),
                format!("{bytes} bytes, ok"),
                "build-id ".to_owned(),
            ] {
                assert!(record.contains(&part), "{part:?}: {record:?}");
            }
            if begin == "MESSAGE=" {
                assert!(record.contains(&format!("\nTIEXEC_PID={pid}\n")), "{record:?}");
                assert!(record.contains(&format!("\nTIEXEC_ACTION={action}\n")), "{record:?}");
                // The addresses tell whether a later crash was in this text.
                let wanted = text.map(|text| format!("\nTIEXEC_TEXT={text}\n"));
                let has = wanted.map(|wanted| record.contains(&wanted));
                assert_eq!(has, (action == "attach").then_some(true), "{record:?}");
            }
        }
    }
    log.set_nonblocking(true).expect("fcntl");
    assert!(log.recv(&mut [0]).is_err(), "one record more");
    assert_ends_well(held);
}

#[test]
fn text_that_is_huge_in_the_page_cache_is_only_mapped_anew() {
    require!(support::fresh::huge_folios(), "{}", support::fresh::NO_HUGE_FOLIOS);
    let copy = small("hold", Kind::OneSegmentNoPie);
    let held_small = held(&copy);
    let copy = support::Fresh::copy(&support::program("hold", Kind::OneSegmentNoPie));
    let held = held(&copy);
    let done = ctl(["attach", "--json", &text(held.pid())]);
    done.assert_code(0).assert_silent();
    assert_eq!(json(&done)["outcome"], "switched", "{done}");
    support::fresh::assert_file_pmd_mapped(held.pid(), copy.path());
    let done = ctl(["attach", "--backing=pagecache", "--json", &text(held_small.pid())]);
    done.assert_code(0);
    assert_eq!(switched(held_small.pid()), 0, "no copy when only the page cache is asked for");
    assert_ends_well(held);
    assert_ends_well(held_small);
}
