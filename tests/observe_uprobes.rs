//! Uprobes fire in text on the page cache, set before the launch or after; in a copy of the text they are lost, and `inspect` says so.

mod support;

use std::path::{Path, PathBuf};

use support::traced::{ALL, By, Traced};
use support::{Held, is_root, require};

const TRACING: &str = "/sys/kernel/tracing";

/// A uprobe on the program's function `probed`; gone with this value.
struct Uprobe {
    name: String,
    instance: PathBuf,
}

impl Uprobe {
    /// Sets it. None where the kernel has none.
    fn set(traced: &Traced, offset: u64) -> Option<Uprobe> {
        let name = format!("tiexec_test_{}_{:?}", std::process::id(), traced.by);
        let instance = Path::new(TRACING).join("instances").join(&name);
        let file = traced.copy.path().display();
        write(&events(), &format!("p:{name}/probed {file}:{offset:#x}")).ok()?;
        let probe = Uprobe { name, instance };
        // Recorded into a buffer of its own: nobody else's tracing is disturbed.
        std::fs::create_dir(&probe.instance).ok()?;
        write(&probe.switch(), "1").ok()?;
        Some(probe)
    }

    fn switch(&self) -> PathBuf {
        self.instance.join("events").join(&self.name).join("probed/enable")
    }

    /// How often it fired in this process.
    fn hits(&self, pid: i32) -> usize {
        let trace = std::fs::read_to_string(self.instance.join("trace")).expect("its buffer");
        let who = format!("-{pid} ");
        trace.lines().filter(|line| line.contains(&who) && line.contains("probed:")).count()
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        let _off = write(&self.switch(), "0");
        let _gone = std::fs::remove_dir(&self.instance);
        let _removed = write(&events(), &format!("-:{}/probed", self.name));
    }
}

fn events() -> PathBuf {
    Path::new(TRACING).join("uprobe_events")
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::File::options().append(true).open(path)?.write_all(text.as_bytes())
}

/// Has the program call its function so often.
fn call(held: &mut Held, times: usize) {
    for _ in 0..times {
        held.write(b"call\n");
    }
    held.write(b"x\n");
    let done = |held: &Held| held.out_text().lines().filter(|l| *l == "done").count();
    let before = done(held);
    while done(held) < before + times + 1 {
        held.wait_more();
    }
}

fn fires(by: By) {
    require!(is_root(), "uprobes need root");
    require!(
        events().exists(),
        "no uprobe_events: tracefs is not mounted, or the kernel has no uprobes"
    );
    let traced = by.traced();
    require!(traced.is_some(), "no {by:?} on this machine");
    let traced = traced.expect("just looked");
    let expected = |calls: usize| if by.is_the_file() { calls } else { 0 };

    let mut earlier = traced.hold();
    let offset = earlier.said("offset").and_then(|o| u64::from_str_radix(&o, 16).ok());
    let probe = Uprobe::set(&traced, offset.expect("where its function is"));
    require!(probe.is_some(), "the kernel takes no uprobe here");
    let probe = probe.expect("just looked");
    call(&mut earlier, 3);
    assert_eq!(probe.hits(earlier.pid()), expected(3), "{by:?}: set after the launch");

    // Not looked at for huge text: the page with the probe is the process's own, and splits it.
    let mut later = traced.run().hold();
    call(&mut later, 2);
    assert_eq!(probe.hits(later.pid()), expected(2), "{by:?}: set before the launch");
    let mut plain = traced.run().plain().hold();
    call(&mut plain, 4);
    assert_eq!(probe.hits(plain.pid()), 4, "a plain one");

    drop(probe);
    for held in [earlier, later, plain] {
        // The text is as it was: the program checks all of it.
        held.finish().assert_code(7);
    }
}

#[test]
fn in_text_on_each_backing() {
    for by in ALL {
        fires(by);
    }
}
