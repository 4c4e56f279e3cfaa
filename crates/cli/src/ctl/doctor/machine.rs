//! The findings about the machine, from the view of this process: its user, its limits, its cgroup.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, MemfdFlags, memfd_create};
use tiexec_core::addr::{Pages, mib};
use tiexec_core::config::Settings;
use tiexec_core::escape::AsShown;
use tiexec_core::proc::status::CAP_SYS_PTRACE;
use tiexec_core::rebase::MAX_ALIGNMENT;
use tiexec_core::tlb_sweep::{Levels, Measured, Point, Sweeps};
use tiexec_engine::settings::{CONFIG_FILE, config_file};
use tiexec_engine::switched_off;
use tiexec_remap::jumps::{self, Jumps};
use tiexec_remap::pagecache::{self, Prepared, Small};
use tiexec_remap::store::directory::{Directory, is_on_tmpfs};
use tiexec_remap::{headroom, host_pages};
use tiexec_sys::memory::FillMapping;
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::seccomp_trial::mm_map_size;
use tiexec_sys::split_pages::{HostPages, StepTimes};
use tiexec_sys::{Errno, SysError, areas, hugetlb, process, ptrace, thp};
use tiexec_tracee::{Failure, handshake};

use super::super::limit;
use super::super::permission::Rights;
use super::{Finding, Level};

/// The least speedup from which jumps on huge pages count as faster.
const WORTH_IT: f64 = 1.05;

/// Makes the findings. With `measure`, times jumps anew, and records the times.
pub(super) fn examine(measure: bool) -> Vec<Finding> {
    let mut findings = vec![kernel()];
    findings.extend(switches());
    let Some(pages) = thp::pages() else {
        findings.push(
            Finding::new(Level::Fail, "pages", "the kernel has no transparent huge pages")
                .fix("boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
        );
        findings.push(automatic(&findings));
        return findings;
    };
    findings.push(Finding::new(
        Level::Ok,
        "pages",
        format_args!(
            "base page {} KiB, huge page {} MiB",
            pages.base.bytes() >> 10,
            mib(pages.pmd.bytes())
        ),
    ));
    findings.push(thp_settings());
    findings.push(page_cache(pages));
    findings.push(khugepaged(pages));
    findings.push(rebase(pages));
    findings.push(image(pages));
    findings.push(store());
    findings.push(pool(pages));
    findings.push(automatic(&findings));
    findings.push(looking(pages));
    findings.push(tracing());
    findings.push(attaching());
    findings.push(seccomp());
    findings.push(memory());
    let host = host(pages);
    let is_split = matches!(host.level, Level::Warn);
    findings.push(host);
    let jumps = if measure {
        jumps::measured(pages)
    } else {
        jumps::known(pages).map_or_else(|| jumps::measure(pages), Ok)
    };
    match jumps {
        Ok(Jumps { times, levels }) => {
            findings.extend([gain(&times, pages, is_split), tlb(&levels)])
        }
        Err(error) => findings
            .extend(["gain", "tlb"].map(|thing| {
                Finding::new(Level::No, thing, format_args!("not measured: {error}"))
            })),
    }
    findings
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let text = format!("{} {}", name.release().to_string_lossy(), std::env::consts::ARCH);
    Finding::new(Level::Ok, "kernel", text)
}

/// Makes the finding whether this process can examine another one without blocking it.
fn looking(pages: Pages) -> Finding {
    if procfs::is_of_another_namespace() {
        let text = "/proc is that of another PID namespace: a PID means one process here, and another one there";
        return Finding::new(Level::Fail, "look", text).fix("mount -t proc proc /proc");
    }
    match ProcDir::this_process().and_then(|this| areas::look(&this, pages)) {
        Err(error) => unread("look", error),
        Ok(seen) if seen.smaps_for.is_some() => Finding::new(
            Level::Warn,
            "look",
            "no PAGEMAP_SCAN: while a process is looked at, it can map no memory, for 20 ms per GiB that it has",
        )
        .fix("boot Linux 6.7 or newer"),
        Ok(_) => Finding::new(Level::Ok, "look", "PAGEMAP_SCAN: a process need not wait to be looked at"),
    }
}

/// Makes the finding that this process cannot read its own files in `/proc`.
fn unread(thing: &'static str, error: SysError) -> Finding {
    let finding = Finding::new(Level::Fail, thing, error);
    match error.errno {
        Errno::NOENT => {
            Finding::new(Level::Fail, thing, "/proc is not mounted, or not this PID namespace's")
                .fix("mount -t proc proc /proc")
        }
        errno => Finding { fix: limit(errno).map(str::to_owned), ..finding },
    }
}

fn switches() -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((why, fix)) = switched_off::why() {
        let finding = format!("{why}: every launch is a plain exec");
        findings.push(Finding::new(Level::Off, "switch", finding).fix(fix));
    }
    let environment = std::env::var("TIEXEC").unwrap_or_default();
    let file = config_file().unwrap_or_else(|why| {
        let (why, fix) = why.split_once("; fix: ").unwrap_or((&why, ""));
        let finding = format!("{why}, so every launch is a plain exec");
        findings.push(Finding::new(Level::Warn, "switch", finding).fix(fix));
        Vec::new()
    });
    let file = String::from_utf8_lossy(&file);
    let (mut by_environment, mut by_file) = (Settings::default(), Settings::default());
    let (bad, bad_in_file) =
        (by_environment.take_environment(&environment), by_file.take_file(&file));
    for (source, settings, malformed) in
        [("TIEXEC", by_environment, bad), (CONFIG_FILE, by_file, bad_in_file)]
    {
        if settings.off {
            findings.push(Finding::new(Level::Off, "switch", format_args!("{source} says off")));
        }
        for bad in malformed {
            findings.push(Finding::new(Level::Warn, "switch", format_args!("{source}: {bad}")));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new(Level::Ok, "switch", "on"));
    }
    findings
}

fn thp_settings() -> Finding {
    let knob = |name| thp::knob(name).unwrap_or_else(|| "unknown".to_owned());
    let settings = format!("enabled={} shmem_enabled={}", knob("enabled"), knob("shmem_enabled"));
    if process::thp_disabled() {
        return Finding::new(
            Level::Fail,
            "thp",
            format_args!(
                "{settings}, but PR_SET_THP_DISABLE is in force for this process and its children"
            ),
        )
        .fix("start from a session or unit without it (prctl(2); systemd: MemoryTHP=)");
    }
    Finding::new(Level::Ok, "thp", format_args!("{settings}; images need neither"))
}

/// The largest huge page, in bytes, that is written to a disk only as a test.
const LARGEST_TRY: u64 = 32 << 20;

/// Writes a file of one huge page into the directory for temporary files, and brings it into huge pages of the page cache. If
/// `small`, the file is cached in base pages before, which the kernel must collapse.
fn bring(pages: Pages, small: bool) -> std::io::Result<Result<Prepared, Failure>> {
    let written = tempfile::tempfile_in(std::env::temp_dir())?;
    std::io::copy(&mut std::io::repeat(0).take(pages.pmd.bytes()), &mut &written)?;
    written.sync_all()?;
    let _stays = rustix::fs::fadvise(&written, 0, None, Advice::DontNeed);
    // The kernel collapses only files that nobody has open for writing.
    let file = File::open(format!("/proc/self/fd/{}", written.as_raw_fd()))?;
    drop(written);
    if small {
        rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
        let mut page = vec![0; usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX)];
        while (&file).read(&mut page)? > 0 {}
    }
    let patience = Instant::now() + Duration::from_secs(10);
    let whole = 0..pages.pmd.bytes();
    Ok(pagecache::prepare(&file, &[whole], pages, Small::Collapse, patience))
}

fn page_cache(pages: Pages) -> Finding {
    let place = std::env::temp_dir();
    let shown = place.shown();
    if pages.pmd.bytes() > LARGEST_TRY {
        let finding = "not tried: the huge page is too large for text";
        return Finding::new(Level::No, "pagecache", finding);
    }
    match bring(pages, false) {
        Ok(Ok(prepared)) if !prepared.huge.is_empty() => {
            let finding = format_args!("a file in {shown} gets huge pages of the page cache");
            Finding::new(Level::Ok, "pagecache", finding)
        }
        Ok(prepared) => {
            let failure = prepared.map_or_else(Some, |prepared| prepared.shortfall);
            let why = failure.map_or_else(String::new, |why| format!(": {}", why.detail));
            let finding = format_args!("a file in {shown} gets none in the page cache{why}");
            Finding::new(Level::No, "pagecache", finding)
        }
        Err(error) => Finding::new(
            Level::No,
            "pagecache",
            format_args!("not tried: no file can be written in {shown}: {error}"),
        ),
    }
}

/// Makes the finding whether the kernel makes text huge by itself. Where it collapses the page cache of a file for TiExec, it
/// also does so in khugepaged.
fn khugepaged(pages: Pages) -> Finding {
    let place = std::env::temp_dir();
    // A tmpfs has a setting of its own, and MADV_COLLAPSE ignores that.
    let is_tmpfs = File::open(&place).is_ok_and(is_on_tmpfs);
    let collapses = pages.pmd.bytes() <= LARGEST_TRY
        && !is_tmpfs
        && matches!(bring(pages, true), Ok(Ok(prepared)) if !prepared.huge.is_empty());
    if !collapses {
        let finding = format_args!("the kernel makes no cached text in {} huge", place.shown());
        return Finding::new(Level::No, "khugepaged", finding);
    }
    let whose = match thp::knob("enabled").as_deref() {
        Some("always") => "in time, the kernel by itself makes cached text in",
        Some("madvise") => {
            "where a program asks for it (glibc.elf.thp=1), the kernel by itself makes cached text in"
        }
        _ => return Finding::new(Level::No, "khugepaged", "off (enabled=never)"),
    };
    let finding = format_args!("{whose} {} huge, at suitable addresses", place.shown());
    Finding::new(Level::Ok, "khugepaged", finding)
}

/// Makes the finding whether a program can be moved to an address where the page cache's huge pages fit.
fn rebase(pages: Pages) -> Finding {
    if pages.pmd.bytes() > MAX_ALIGNMENT {
        let finding = "huge pages are so large here that programs stay where the kernel loads them";
        return Finding::new(Level::No, "rebase", finding);
    }
    match mm_map_size() {
        Ok(_) => Finding::new(Level::Ok, "rebase", "a program can be moved (PR_SET_MM_MAP)"),
        Err(error) => {
            let finding = format_args!("programs stay where the kernel loads them: {error}");
            Finding::new(Level::No, "rebase", finding)
        }
    }
}

const IMAGE_NEEDS: &str = "boot Linux 6.1 or later, with CONFIG_TRANSPARENT_HUGEPAGE; before that, use images from \
    `tiexecctl store setup`, or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Collapses one huge page of a memfd, as a launch does.
fn image(pages: Pages) -> Finding {
    let attempt = || -> Result<(), SysError> {
        let fd = memfd_create("tiexec:doctor", MemfdFlags::CLOEXEC)
            .map_err(SysError::of("memfd_create"))?;
        let file = File::from(fd);
        let huge = pages.pmd.bytes();
        rustix::fs::ftruncate(&file, huge).map_err(SysError::of("ftruncate"))?;
        let len = usize::try_from(huge).unwrap_or(usize::MAX);
        let base = usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX);
        let mapping = FillMapping::new(&file, len, pages.pmd)?;
        mapping.advise_huge();
        mapping.make_huge(0, len, len, base)
    };
    match attempt() {
        Ok(()) => Finding::new(Level::Ok, "image", "a memfd becomes a huge page"),
        Err(error) if error.errno == Errno::NOMEM => {
            Finding::new(Level::Fail, "image", format_args!("no free huge page: {error}"))
                .fix("echo 1 > /proc/sys/vm/compact_memory")
        }
        Err(error) => {
            let fix = limit(error.errno).unwrap_or(IMAGE_NEEDS);
            Finding::new(Level::Fail, "image", error).fix(fix)
        }
    }
}

/// Makes the finding about image stores.
fn store() -> Finding {
    match Directory::all() {
        Ok(stores) if stores.usable.is_empty() => {
            Finding::new(Level::No, "store", "no image store: each program gets a copy of its own")
                .fix("tiexecctl store setup")
        }
        Ok(stores) => {
            let paths = stores.usable.iter().map(|store| store.path.shown().to_string());
            let refused = stores.refused.iter().map(|failure| format!("left out: {failure}"));
            let all: Vec<String> = paths.chain(refused).collect();
            let level = if stores.refused.is_empty() { Level::Ok } else { Level::Warn };
            Finding::new(level, "store", all.join("; "))
        }
        Err(failure) => Finding::new(Level::Warn, "store", failure),
    }
}

/// Bytes of text that the pool should have room for: that of most programs.
const POOL: u64 = 128 << 20;

fn pool(pages: Pages) -> Finding {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", pages.pmd.bytes() >> 10);
    let read = |name| {
        let text = std::fs::read_to_string(format!("{directory}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let all = read("nr_hugepages").unwrap_or(0);
    match read("free_hugepages").zip(read("resv_hugepages")) {
        None => Finding::new(Level::No, "hugetlb", "the kernel has no hugetlb pages of this size"),
        Some(_) if hugetlb::can_move(pages.pmd).is_err() => Finding::new(
            Level::No,
            "hugetlb",
            "the kernel moves no pages of the pool (Linux 5.16 does): programs cannot use them",
        ),
        // Other programs may use all pages of the pool, so the fix makes it larger.
        Some((free, reserved)) if free <= reserved => Finding::new(
            Level::No,
            "hugetlb",
            format_args!(
                "the pool has {all} pages, none of them free; only `--backing hugetlb` would use it"
            ),
        )
        .fix(format_args!(
            "echo {} > {directory}/nr_hugepages",
            all + (POOL / pages.pmd.bytes()).max(1)
        )),
        Some((free, reserved)) => {
            let free = free - reserved;
            let debuggers = match hugetlb::takes_breakpoints(pages.pmd) {
                Ok(true) => "; breakpoints there: yes",
                Ok(false) => "; breakpoints there: no, this kernel lets no debugger write to them",
                Err(_) => "",
            };
            let finding =
                format_args!("{free} free pages; used only by `--backing hugetlb`{debuggers}");
            Finding::new(Level::Ok, "hugetlb", finding)
        }
    }
}

/// Describes what `--backing auto` would do, from the findings about each backing: this machine's row of the table in
/// docs/KERNELS.md.
fn automatic(found: &[Finding]) -> Finding {
    let has = |thing: &str| found.iter().any(|one| one.thing == thing && one.level == Level::Ok);
    let copy = match (has("store"), has("image")) {
        (true, _) => Some("a copy in the store"),
        (false, true) => Some("a copy of each program's own"),
        (false, false) => None,
    };
    let (level, comes_to) = match (has("pagecache"), copy) {
        (true, Some(copy)) => (Level::Ok, format!("the page cache, where it fits; else {copy}")),
        (true, None) => (Level::Warn, "the page cache, where it fits; else to nothing".to_owned()),
        (false, Some(copy)) => (Level::Ok, copy.to_owned()),
        (false, None) => (Level::No, "nothing: programs run plain".to_owned()),
    };
    let what = format_args!("on {}, `--backing auto` comes to {comes_to}", distribution());
    Finding::new(level, "auto", what)
}

/// Returns the name of the distribution (os-release(5)), and the kernel's version.
fn distribution() -> String {
    let text = ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map_or("an unnamed system", |name| name.trim_matches(['"', '\'']));
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = release.split(['-', '+']).next().unwrap_or_default();
    format!("{name} with Linux {version}")
}

/// Makes the finding about the processes to which this process may attach.
fn attaching() -> Finding {
    if Rights::own().lacks_capability() {
        let what = "CAP_SYS_PTRACE is missing: to programs of this user that have no capability beyond those of this process";
        return Finding::new(Level::Warn, "attach", what)
            .fix("run it with CAP_SYS_PTRACE, or outside of the container");
    }
    let own = ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default();
    let capable = own.credentials.effective() & CAP_SYS_PTRACE != 0;
    match (ptrace::yama_scope().unwrap_or(0), capable) {
        (0..3, true) if Rights::own().is_enclosed() => Finding::new(
            Level::Warn,
            "attach",
            "to programs of this user namespace only, where the CAP_SYS_PTRACE of this process applies",
        )
        .fix("run it outside of the container, for others"),
        (3.., _) => Finding::new(Level::No, "attach", "kernel.yama.ptrace_scope is 3: to nobody"),
        (_, true) => {
            Finding::new(Level::Ok, "attach", "to programs of every user (CAP_SYS_PTRACE)")
        }
        (0, false) => Finding::new(Level::Ok, "attach", "to programs of this user"),
        (scope, false) => {
            let what =
                format_args!("kernel.yama.ptrace_scope is {scope}: not without CAP_SYS_PTRACE");
            Finding::new(Level::No, "attach", what)
                .fix("run it as root, or sysctl kernel.yama.ptrace_scope=0")
        }
    }
}

/// Seizes a child, as a launch does.
fn tracing() -> Finding {
    let scope = ptrace::yama_scope();
    let this = match ProcDir::this_process().and_then(|this| this.status()) {
        Ok(this) => this,
        Err(error) => return unread("ptrace", error),
    };
    let tracer = this.tracer_pid;
    if tracer != 0 {
        return Finding::new(
            Level::No,
            "ptrace",
            format_args!("process {tracer} traces this one already"),
        );
    }
    match handshake::try_seize() {
        Ok(()) => {
            let yama = scope.map_or("no Yama".to_owned(), |scope| {
                format!("kernel.yama.ptrace_scope is {scope}")
            });
            Finding::new(Level::Ok, "ptrace", format_args!("a child can be seized ({yama})"))
        }
        Err(error) => {
            let finding = Finding::new(Level::Fail, "ptrace", error);
            if let Some(fix) = limit(error.errno) {
                return finding.fix(fix);
            }
            match scope {
                Some(3..) => finding
                    .fix("kernel.yama.ptrace_scope=3 holds until the next boot; set 1 in sysctl.d"),
                Some(2) => {
                    finding.fix("sysctl kernel.yama.ptrace_scope=1, or run it with CAP_SYS_PTRACE")
                }
                _ => finding.fix("allow ptrace in the seccomp profile or security module"),
            }
        }
    }
}

fn seccomp() -> Finding {
    let own = ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default();
    match own.seccomp {
        0 => Finding::new(Level::Ok, "seccomp", "no filter here"),
        _ => Finding::new(
            Level::Warn,
            "seccomp",
            "filters are in force here: launches rehearse their calls first",
        ),
    }
}

fn memory() -> Finding {
    // The size of a large program's image.
    let example = 64 << 20;
    match ProcDir::this_process() {
        Ok(this) => match headroom::check(&this, example) {
            Ok(()) => Finding::new(
                Level::Ok,
                "memory",
                format_args!("the memory cgroup has room for an image of {} MiB", mib(example)),
            ),
            Err(failure) => Finding::new(Level::Warn, "memory", failure.detail)
                .fix("raise memory.max (systemd: MemoryMax=)"),
        },
        Err(error) => unread("memory", error),
    }
}

/// Returns whether the host of this machine splits huge pages.
fn host(pages: Pages) -> Finding {
    let timings = match host_pages::timings(pages) {
        Ok(timings) => timings,
        Err(error) => {
            return Finding::new(Level::No, "host", format_args!("not measured: {error}"));
        }
    };
    let figures = [("load", &timings.loads), ("jump", &timings.jumps)].map(|(step, times)| {
        let mut sorted = times.clone();
        sorted.sort_unstable_by(|one, other| one.huge_ns.total_cmp(&other.huge_ns));
        let StepTimes { near_ns, base_ns, huge_ns } = sorted[sorted.len() / 2];
        format!(
            "a {step} takes {near_ns:.1} ns in few pages, {base_ns:.1} ns in many base pages, {huge_ns:.1} ns in huge pages"
        )
    });
    let figures = figures.join("; ");
    let split = |what: &str| {
        let finding = format_args!("{figures}: {what}; huge text gains little here, and can lose");
        Finding::new(Level::Warn, "host", finding).fix(
            "move to a host that maps its guests by huge pages; or measure by tiexecctl canary",
        )
    };
    match timings.verdict() {
        HostPages::Whole => {
            let finding = format_args!("{figures}: a huge page is one entry of the TLB");
            Finding::new(Level::Ok, "host", finding)
        }
        HostPages::Split => {
            split("the host maps this machine by base pages, which splits huge pages")
        }
        HostPages::CodeSplit => {
            let finding = format_args!(
                "{figures}: the host may split the huge pages that hold code, where huge text gains little"
            );
            Finding::new(Level::No, "host", finding).fix("measure by tiexecctl canary")
        }
        HostPages::Unclear => {
            let finding =
                format_args!("{figures}: too uneven to tell whether it splits huge pages");
            Finding::new(Level::No, "host", finding)
        }
    }
}

/// Returns whether jumps are faster on huge pages. With `is_split` the host splits huge pages, so that other code gains less than these jumps.
fn gain(times: &Sweeps, pages: Pages, is_split: bool) -> Finding {
    let mut points: Vec<Point> = times.beyond(u32::MAX).collect();
    points.sort_unstable_by(|one, other| {
        (one.base_ns / one.huge_ns).total_cmp(&(other.base_ns / other.huge_ns))
    });
    let Some(Point { places, base_ns, huge_ns, .. }) = points.get(points.len() / 2) else {
        return Finding::new(Level::No, "gain", "not measured");
    };
    let ratio = base_ns / huge_ns;
    let figures = format!(
        "a jump over {} MiB of text takes {base_ns:.1} ns on base pages, {huge_ns:.1} ns on huge pages",
        (u64::from(*places) * pages.base.bytes()) >> 20
    );
    if ratio >= WORTH_IT && is_split {
        let what = format_args!(
            "{figures}: {ratio:.1} times as fast, for jumps only; programs gain less on this host"
        );
        Finding::new(Level::Ok, "gain", what)
    } else if ratio >= WORTH_IT {
        Finding::new(Level::Ok, "gain", format_args!("{figures}: {ratio:.1} times as fast"))
    } else {
        Finding::new(Level::Warn, "gain", format_args!("{figures}: no gain"))
    }
}

/// Returns the levels of the instruction TLB that the jumps show.
fn tlb(measured: &Measured) -> Finding {
    let of = |levels: &Levels, kind: &str| {
        let Levels { first, second, second_ns, walk_ns } = *levels;
        let entries =
            |entries: Option<u32>| entries.map_or("unclear".to_owned(), |n| n.to_string());
        let time = |ns: Option<f64>| ns.map_or(String::new(), |ns| format!(" ({ns:.1} ns)"));
        format!(
            "{kind} pages: first level {}, second {}{}, walks{}",
            entries(first),
            entries(second),
            time(second_ns),
            walk_ns.map_or(" unclear".to_owned(), |ns| format!(" {ns:.1} ns"))
        )
    };
    let finding = format!("{}; {}", of(&measured.base, "base"), of(&measured.huge, "huge"));
    if measured.is_clear() {
        return Finding::new(Level::Ok, "tlb", finding);
    }
    Finding::new(Level::No, "tlb", finding)
        .fix("tiexecctl doctor --measure while the machine is quieter")
}
