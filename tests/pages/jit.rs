//! `--select jit`: code that programs generate becomes huge in its place.

use support::attaching::{ctl, ctl_behind, json};
use support::child::eventually;
use support::smaps::{pmd_size, vmas};
use support::{Held, Kind, Run, busy_java, installed, is_root, program, require};

fn jit(how: &str) -> Held {
    Run::new(program("jit", Kind::DynamicPie), [how]).plain().hold()
}

/// Bytes of its code that PMD entries map.
fn huge(held: &Held) -> u64 {
    let area = u64::from_str_radix(&held.said("area").expect("an area line"), 16).expect("hex");
    let within = area..area + 4 * pmd_size();
    let of_it = vmas(held.pid()).into_iter().filter(|vma| within.contains(&vma.start));
    of_it.map(|vma| vma.counter("AnonHugePages")).sum()
}

fn end(mut held: Held) {
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

/// Areas that are populated completely or to six tenths become huge. Areas with four tenths or nothing do not.
#[test]
fn what_is_populated_to_a_half() {
    for front in [&[][..], &["setpriv", "--bounding-set=-sys_nice"][..]] {
        require!(front.is_empty() || is_root(), "capabilities are root's");
        let held = jit("plain");
        assert_eq!(huge(&held), 0);
        let pid = held.pid().to_string();
        let done = ctl_behind(front, ["attach", "--select=jit", "--json", &pid]);
        done.assert_code(0);
        assert_eq!(huge(&held), 2 * pmd_size(), "{done}");
        let said = &json(&done)["jit"][0];
        assert_eq!(said["huge_bytes"], 2 * pmd_size(), "{done}");
        assert_eq!(said["populated_bytes"], 2 * pmd_size(), "{done}");
        assert!(said["refused"].is_null(), "{done}");
        let seen = json(&ctl(["inspect", "--json", &pid]));
        assert_eq!(seen["jit"][0]["huge_bytes"], 2 * pmd_size(), "{seen}");
        end(held);
    }
}

/// The test checks the words before and after an attach.
#[test]
fn inspect_and_doctor_tell_of_it() {
    let held = jit("plain");
    let pid = held.pid().to_string();
    let all = pmd_size() >> 19;
    let line = |command: &str, of: &str| {
        let done = ctl([command, &pid]);
        let out = done.out();
        out.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{done}")).to_owned()
    };
    assert!(line("inspect", "jit ").contains(&format!("huge 0.0 of {all}.0 MiB")));
    let advice = line("doctor", "jit ");
    let fix = advice.split_once("fix: tiexecctl ").unwrap_or_else(|| panic!("{advice}")).1;
    ctl(fix.split_ascii_whitespace()).assert_code(0);
    assert_eq!(huge(&held), 2 * pmd_size());
    assert!(line("inspect", "jit ").contains(&format!("huge {all}.0 of {all}.0 MiB (100")));
    assert!(line("doctor", "jit ").starts_with("ok "));
    end(held);
}

#[test]
fn what_the_kernel_refuses_is_reported() {
    let held = jit("nohuge");
    let done = ctl(["attach", "--select=jit", "--json", &held.pid().to_string()]);
    assert_eq!(huge(&held), 0, "{done}");
    let refused = json(&done)["jit"][0]["refused"].to_string();
    assert!(refused.contains("invalid argument (EINVAL)"), "{done}");
    end(held);
}

/// If a process has turned THP off for itself, TiExec turns it on for a moment, also for the text.
#[test]
fn a_process_without_thp() {
    let held = jit("nothp");
    let done = ctl(["attach", "--select=jit", "--json", &held.pid().to_string()]);
    assert_eq!(huge(&held), 2 * pmd_size(), "{done}");
    let status = support::smaps::status_field(held.pid(), "THP_enabled");
    assert_eq!(status.as_deref(), Some("0"), "{done}");
    end(held);
}

#[test]
fn code_that_is_written_meanwhile_stays_right() {
    let held = jit("toggle");
    let pid = held.pid().to_string();
    for _ in 0..25 {
        ctl(["attach", "--select=jit", "--json", &pid]).assert_code(0);
    }
    end(held);
}

#[test]
fn it_is_not_touched_unless_selected() {
    let held = jit("plain");
    ctl(["attach", "--json", &held.pid().to_string()]).assert_code(0);
    assert_eq!(huge(&held), 0);
    end(held);
}

#[test]
fn settling_makes_what_is_compiled_later_huge() {
    let java = busy_java();
    require!(java.is_some(), "no JDK");
    let (java, dir) = java.expect("just looked");
    // With these options any program generates enough code in one place.
    let args = ["-Xcomp", "-XX:+SegmentedCodeCache", "-cp", &dir.path().to_string_lossy(), "Busy"];
    let options = ["--select=main,dso,jit", "--settle=30s", "--backing=image"];
    let held = Run::new(java, args).options(options).hold();
    let pid = held.pid();
    let code = |vma: &support::smaps::Vma| {
        vma.path.is_empty() && vma.is_text() && vma.counter("AnonHugePages") > 0
    };
    eventually("the code cache is huge", || vmas(pid).iter().any(code));
    held.finish().assert_code(7).assert_silent();
}

/// Without `--settle`, TiExec has ended when the program makes code. One line says what helps.
#[test]
fn a_launch_that_does_not_stay_says_so() {
    let launch = |select: &'static str| {
        Run::new(program("exits", Kind::DynamicPie), ["code", "7"]).options([select])
    };
    for select in ["--select=jit", "--select=main,jit"] {
        let done = launch(select).output();
        done.assert_code(7);
        let err = done.err();
        assert!(err.contains("; fix: add --settle=1m, or ") && err.lines().count() == 1, "{done}");
        for silent in ["-q", "--settle=1s", "--follow"] {
            launch(select).options([silent]).output().assert_code(7).assert_silent();
        }
    }
    launch("--select=all").output().assert_code(7).assert_silent();
}

/// V8's code lies in pieces smaller than a huge page, so there is no gain, and no damage.
#[test]
fn node_runs_as_before() {
    let node = installed("node");
    require!(node.is_some(), "no node");
    let script = "const fs = []; for (let i = 0; i < 500; i++) fs.push(new Function('a', `let s=${i}; for (let k=0;k<50;k++) s=(s*31+a*k)|0; return s`));
                  let x = 0; const end = Date.now() + 1500; while (Date.now() < end) for (const f of fs) x = (x + f(x)) | 0; console.log('ok')";
    let run = Run::new(node.expect("just looked"), ["-e", script]);
    let done = run.options(["--select=all", "--settle=10s", "--deadline=30s"]).output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "ok\n");
}
