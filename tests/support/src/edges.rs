//! Programs that check their own image, and the huge and executable ranges of the image, seen from outside.

use super::child::Held;
use super::launch::Run;
use super::smaps::{Vma, pmd_size, vmas};

/// Sends a question to `own_image`. Returns the rest of its answer line.
pub fn ask(held: &mut Held, line: &str) -> String {
    let word = line.split(' ').next().expect("a word").to_owned();
    let answers = |text: &str| text.lines().filter(|l| l.starts_with(&word)).count();
    let before = answers(&held.out_text());
    held.write(format!("{line}\n").as_bytes());
    while answers(&held.out_text()) == before {
        held.wait_more();
    }
    let text = held.out_text();
    let last = text.lines().rfind(|l| l.starts_with(&word)).expect("it has answered");
    last[word.len()..].trim().to_owned()
}

/// Starts `own_image`, or another program that prints "ready".
pub fn hold(run: &Run) -> Held {
    let mut held = run.start();
    held.wait_line("ready");
    held
}

/// Makes the program compare its whole image with its file, and use the neighbouring memory: the heap and its read-only
/// data.
pub fn assert_unharmed(held: &mut Held) {
    let compared: u64 =
        ask(held, "check").parse().unwrap_or_else(|e| panic!("{e}: {}", held.out_text()));
    assert!(compared > 6 << 20, "{compared}");
    assert_eq!(ask(held, "protect"), "ok");
    assert_eq!(ask(held, "grow"), "1024");
    assert_eq!(ask(held, "check"), compared.to_string());
}

/// Makes the program end by itself.
pub fn finish(mut held: Held) {
    held.write(b"end\n");
    held.finish().assert_code(7).assert_silent();
}

/// The executable ranges at the main executable's place that huge pages map completely, joined.
pub fn huge_ranges(pid: i32) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("an own child");
    let exe = exe.to_string_lossy().into_owned();
    let huge = |vma: &Vma| {
        let ours = vma.is_switched() || vma.path.ends_with(".tiexec");
        (ours || vma.path == exe) && vma.is_text() && vma.huge() == vma.end - vma.start
    };
    for vma in vmas(pid).iter().filter(|vma| huge(vma)) {
        assert_eq!(vma.perms, "r-xp", "{vma:?}");
        assert!(vma.start % pmd_size() == 0 && vma.end % pmd_size() == 0, "{vma:?}");
        match joined.last_mut() {
            Some(last) if last.1 == vma.start => last.1 = vma.end,
            _ => joined.push((vma.start, vma.end)),
        }
    }
    joined
}

/// Bytes of the main executable's segments that are executable by its headers, in whole base pages.
pub fn text_bytes(program: &std::path::Path) -> u64 {
    super::store::loads(program)
        .iter()
        .filter(|load| load.text)
        .map(|load| (load.vaddr + load.size).next_multiple_of(4096) - load.vaddr / 4096 * 4096)
        .sum()
}
