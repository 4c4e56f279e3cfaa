//! Uprobes that record into their own buffer, so that they do not disturb other tracing.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::child::Held;

const TRACING: &str = "/sys/kernel/tracing";

/// A uprobe on the program's function `probed`. Drop removes it.
pub struct Uprobe {
    name: String,
    instance: PathBuf,
}

impl Uprobe {
    /// Sets the uprobe; none if the kernel has no uprobes.
    pub fn set(name: &str, file: &Path, offset: u64) -> Option<Uprobe> {
        let name = format!("tiexec_test_{}_{name}", std::process::id());
        let instance = Path::new(TRACING).join("instances").join(&name);
        // A blank in a path would end it here, so the file is named by a descriptor.
        let opened = std::fs::File::open(file).ok()?;
        let file = format!("/proc/self/fd/{}", opened.as_raw_fd());
        write(&events(), &format!("p:{name}/probed {file}:{offset:#x}")).ok()?;
        let probe = Uprobe { name, instance };
        std::fs::create_dir(&probe.instance).ok()?;
        write(&probe.switch(), "1").ok()?;
        Some(probe)
    }

    fn switch(&self) -> PathBuf {
        self.instance.join("events").join(&self.name).join("probed/enable")
    }

    /// Returns how often the uprobe fired since it was set or since the last look, in whatever process. The buffer names
    /// processes by their numbers in the first PID namespace, which the test may not know.
    pub fn new_hits(&self) -> usize {
        let trace = self.instance.join("trace");
        let lines = std::fs::read_to_string(&trace).expect("its buffer");
        // An open(2) with O_TRUNC empties the buffer.
        std::fs::File::create(&trace).expect("the empty buffer");
        lines.lines().filter(|line| line.contains("probed:")).count()
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        let _off = write(&self.switch(), "0");
        let _gone = std::fs::remove_dir(&self.instance);
        let _removed = write(&events(), &format!("-:{}/probed", self.name));
    }
}

/// Returns the file in which uprobes are set.
pub fn events() -> PathBuf {
    Path::new(TRACING).join("uprobe_events")
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::File::options().append(true).open(path)?.write_all(text.as_bytes())
}

/// Makes the program call its function this many times.
pub fn call(held: &mut Held, times: usize) {
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
