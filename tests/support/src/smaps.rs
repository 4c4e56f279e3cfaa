//! A parser of `/proc/PID/smaps` that is independent of the project's crates.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One mapping and its counters, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Vma {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// As maps prints them: `r-xp`.
    pub perms: String,
    /// Its offset in the file.
    pub offset: u64,
    /// The file, or a name in brackets; empty for anonymous memory.
    pub path: String,
    counters: HashMap<String, u64>,
    /// The words of `VmFlags`.
    pub flags: Vec<String>,
}

impl Vma {
    /// Returns a counter of smaps, in bytes; 0 if it is missing.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns whether the mapping is executable, and is not the kernel's vdso or vsyscall page.
    pub fn is_text(&self) -> bool {
        self.perms.as_bytes()[2] == b'x' && self.path != "[vdso]" && self.path != "[vsyscall]"
    }

    /// Bytes that PMD entries map.
    pub fn huge(&self) -> u64 {
        let pages =
            ["ShmemPmdMapped", "FilePmdMapped"].iter().map(|c| self.counter(c)).sum::<u64>();
        let pool = if self.counter("KernelPageSize") == pmd_size() {
            self.counter("Shared_Hugetlb") + self.counter("Private_Hugetlb")
        } else {
            0
        };
        pages + pool
    }

    /// Returns whether the mapping is an image of TiExec's.
    pub fn is_switched(&self) -> bool {
        self.path.starts_with("/memfd:tiexec:")
    }

    /// Returns whether the name of the memfd stands for that file.
    pub fn is_image_of(&self, file: &str) -> bool {
        let name = self.path.trim_start_matches("/memfd:tiexec:").trim_end_matches(" (deleted)");
        let file = file.trim_end_matches(" (deleted)");
        file.rsplit('/').next().is_some_and(|file| file.starts_with(name))
    }
}

/// The message of `require!` if huge pages are larger than the text of most test programs.
pub const NO_TEXT_FOR_LARGE: &str =
    "the programs of this test have no text for huge pages of this size";

/// Bytes one PMD entry maps on this machine: as many base pages as a page of eight-byte entries names, also on a kernel without
/// huge pages.
pub fn pmd_size() -> u64 {
    let base = rustix::param::page_size() as u64;
    base * base / 8
}

/// All mappings of a process.
pub fn vmas(pid: i32) -> Vec<Vma> {
    read(pid, "smaps")
}

/// All mappings of a process; none if the process has ended.
pub fn vmas_unless_ended(pid: i32) -> Vec<Vma> {
    let text = std::fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
    parse(&String::from_utf8_lossy(&text))
}

/// Touches all text of a process, as if its program used it: the kernel maps huge folios of the page cache by PMD entries when they
/// are used.
pub fn touch_text(pid: i32) {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("an own child");
    for vma in vmas(pid).iter().filter(|vma| vma.is_text()) {
        for at in (vma.start..vma.end).step_by(4096) {
            let _mapped = memory.read_at(&mut [0], at);
        }
    }
}

/// All mappings of a process, without counters and flags.
pub fn mappings(pid: i32) -> Vec<Vma> {
    read(pid, "maps")
}

fn read(pid: i32, file: &str) -> Vec<Vma> {
    let file = format!("/proc/{pid}/{file}");
    let text = std::fs::read(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    parse(&String::from_utf8_lossy(&text))
}

fn parse(text: &str) -> Vec<Vma> {
    let mut vmas: Vec<Vma> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(key) = first.strip_suffix(':') {
            let vma = vmas.last_mut().expect("a counter follows a mapping");
            if key == "VmFlags" {
                vma.flags = words.map(str::to_owned).collect();
            } else if let Some(kib) = words.next().and_then(|w| w.parse::<u64>().ok())
                && kib > 0
            {
                vma.counters.insert(key.to_owned(), kib * 1024);
            }
        } else if let Some((start, end)) = first.split_once('-') {
            let number = |s| u64::from_str_radix(s, 16).expect("an address");
            let perms = words.next().expect("permissions").to_owned();
            let offset = number(words.next().expect("an offset"));
            // The path follows device and inode, and may contain blanks.
            let path = words.skip(2).collect::<Vec<_>>().join(" ");
            vmas.push(Vma {
                start: number(start),
                end: number(end),
                perms,
                offset,
                path,
                counters: HashMap::new(),
                flags: Vec::new(),
            });
        }
    }
    vmas
}

/// How much of the main executable's text is huge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// All executable bytes of the main executable.
    pub text: u64,
    /// Bytes of whole huge pages inside it.
    pub whole: u64,
    /// Bytes that PMD entries map.
    pub huge: u64,
}

impl Coverage {
    /// Returns whether every whole huge page inside the text is PMD-mapped, and there is at least one.
    pub fn is_full(&self) -> bool {
        self.whole > 0 && self.huge >= self.whole
    }
}

/// Returns the coverage of the main executable's text: its own r-x mappings and those of TiExec in their place, joined
/// where they touch.
pub fn coverage(pid: i32) -> Coverage {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"))
        .unwrap_or_else(|e| panic!("/proc/{pid}/exe: {e}"));
    coverage_of(&vmas(pid), &exe)
}

/// Returns the same for any file.
pub fn coverage_of(vmas: &[Vma], exe: &Path) -> Coverage {
    let exe = exe.to_string_lossy();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let mut huge = 0;
    for vma in vmas
        .iter()
        .filter(|v| v.is_text() && (v.path == exe || v.is_switched() && v.is_image_of(&exe)))
    {
        assert!(!vma.perms.contains('w'), "text is writable: {vma:?}");
        huge += vma.huge();
        match spans.last_mut() {
            Some(last) if last.1 == vma.start => last.1 = vma.end,
            _ => spans.push((vma.start, vma.end)),
        }
    }
    let pmd = pmd_size();
    let whole =
        |(start, end): &(u64, u64)| (end / pmd * pmd).saturating_sub(start.next_multiple_of(pmd));
    Coverage {
        text: spans.iter().map(|(s, e)| e - s).sum(),
        whole: spans.iter().map(whole).sum(),
        huge,
    }
}

/// One field of `/proc/PID/status`.
pub fn status_field(pid: i32, key: &str) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':').map(|v| v.trim().to_owned()))
}

/// One number of `/proc/PID/stat`, by its place in proc_pid_stat(5), which counts from 1.
pub fn stat_field(pid: i32, place: usize) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let after_name = stat.rsplit_once(") ").expect("a name in brackets").1;
    let field = after_name.split(' ').nth(place - 3).expect("a field");
    field.parse().unwrap_or_else(|error| panic!("{error}: field {place} of {stat}"))
}

/// Returns the first child that a process has within that time. For a launch this is the helper, if the program starts
/// no child.
pub fn first_child(pid: i32, within: std::time::Duration) -> Option<i32> {
    let until = std::time::Instant::now() + within;
    loop {
        let first = children(pid).first().copied();
        if first.is_some() || std::time::Instant::now() > until {
            return first;
        }
    }
}

/// Returns the children of all threads of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .flat_map(|s| s.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The PID of the child whose first argument is this word.
pub fn child_with(pid: i32, argument: &str) -> Option<i32> {
    children(pid).into_iter().find(|child| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(argument.as_bytes())
    })
}
