//! The table of cases. `xtask/tools/cases.sh` has a function with the name of each.

/// One tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// The name, of the script's function as well.
    pub(super) name: &'static str,
    /// The tool, as the guide names it.
    pub(super) tool: &'static str,
    /// The thing that each line of the script stands for, in the plural.
    pub(super) unit: &'static str,
    /// Whether the case also attaches to a running program.
    pub(super) attach: bool,
    /// Why the tool says something else of a copy, and what to use instead; empty if no copy may differ.
    pub(super) why: &'static str,
    /// Whether what the tool says of a copy differs from start to start.
    pub(super) varies: bool,
}

/// A case about names of functions, at a launch and at an attach.
const fn names(name: &'static str, tool: &'static str, why: &'static str) -> Case {
    Case { name, tool, unit: "names", attach: true, why, varies: false }
}

const ELFUTILS: &str = "elfutils takes neighbouring mappings of one file for a module, and a copy stands between two parts of the program's \
    file. Use gdb.";
const PERF: &str = "A perf that begins later reads `/proc/PID/maps`, finds the copy there, and reads its symbols by that path; a memfd has none. \
    Begin the recording before the start or the attach.";
const SAMPLES: &str = "The profile holds `/proc/self/maps`, and pprof looks for the address in the mappings of the program's file. Use the page \
    cache, or run `tiexecctl revert PID` first.";
const JHSDB: &str = "jhsdb looks for the address in the files that `/proc/PID/maps` names, and the image of a store has no symbols. Use gdb.";
const ASYNC_PROFILER: &str = "async-profiler looks for the JVM's symbols in the first file that it finds mapped around the JVM's code. It finds none in a copy, \
    and whether the copy comes first differs from start to start. Use the page cache.";
const UPROBE: &str = "The kernel sets a uprobe in mappings of the probed file, and a copy is another file. Use the page cache, or run `tiexecctl \
    revert PID` first.";
const BCC: &str = "bcc and bpftrace open the file that `/proc/PID/maps` has at the address, and a memfd cannot be opened by that name. Use a \
    store.";
const RBSPY: &str = "rbspy takes the first executable mapping with libruby's name for the start of libruby's text. A copy divides the text, and has \
    the name, too. Run `tiexecctl revert PID` first.";
const MODULE: &str = "The minidump has the copy as a module with a name of its own, for which a symbol server has no symbols. Look the address up in the \
    program's file.";
const OWN_PATH: &str = "The library opens the file that `/proc/self/maps` has at the address, and a memfd cannot be opened by that name. Use gdb, or \
    a store.";
const SEGMENT: &str = "libunwind looks for the segment of the file that begins where the mapping at the address begins. A copy divides the \
    mapping of the text. Use the page cache, or run `tiexecctl revert PID` first.";

pub(super) const CASES: &[Case] = &[
    names("gdb_live", "gdb, backtrace of a running program", ""),
    names("gdb_deleted", "gdb with `/proc/PID/exe`, the file deleted", ""),
    names("gdb_upgraded", "gdb with `/proc/PID/exe`, another program at its path", ""),
    names("gdb_beside", "gdb, two processes of one file, one of them plain", ""),
    names("gdb_container", "gdb, a program in another mount namespace", ""),
    names("gdb_in_container", "gdb, in the program's mount namespace", ""),
    names("gdb_breakpoint", "gdb, breakpoint in a running program", ""),
    names("gdb_core", "gdb, core dump by the kernel", ""),
    names("gdb_gcore", "gdb, core dump by `gcore`", ""),
    names("lldb_live", "lldb, backtrace of a running program", ""),
    names("lldb_core", "lldb, core dump by the kernel", ""),
    names("eu_stack_live", "`eu-stack -p`", ELFUTILS),
    names("eu_stack_core", "`eu-stack --core`, core dump by the kernel", ELFUTILS),
    names("eu_stack_gcore", "`eu-stack --core`, core dump by `gcore`", ELFUTILS),
    names("eu_stack_program_core", "`eu-stack -e PROGRAM --core`, core dump by the kernel", ""),
    names("systemd_coredump", "systemd-coredump, trace in the journal", ""),
    names("perf_before", "`perf record`, begun before", PERF),
    names("perf_after", "`perf record`, begun after", PERF),
    names("perf_container", "`perf record`, a program in another mount namespace", PERF),
    Case { unit: "build ID", ..names("perf_build_ids", "`perf buildid-list`, begun after", PERF) },
    names("bpftrace_uprobe", "bpftrace, uprobe", UPROBE),
    names("bpftrace_stack", "bpftrace, user stack", BCC),
    names("bcc_uprobe", "bcc's `funclatency` (libbpf-tools), uprobe", UPROBE),
    names("bcc_stack", "bcc's `offcputime` (libbpf-tools), user stack", BCC),
    names("gperftools", "gperftools' CPU profiler, `google-pprof`", SAMPLES),
    names("tcmalloc", "tcmalloc's heap profiler, `google-pprof`", SAMPLES),
    names("jemalloc", "jemalloc's heap profiler, `jeprof`", SAMPLES),
    names("glibc", "glibc, `backtrace_symbols_fd`", ""),
    names("libunwind", "libunwind, in the program", SEGMENT),
    names("boost", "Boost.Stacktrace by `addr2line`", ""),
    names("libbacktrace", "libbacktrace, by Boost.Stacktrace", ""),
    names("glog", "glog's handler of fatal signals", OWN_PATH),
    names("asan", "AddressSanitizer", ""),
    names("rust", "Rust's `std::backtrace` (the crate `backtrace`), of a panic", ""),
    names("go_panic", "Go, traceback of a panic", ""),
    names("go_pprof", "Go, `pprof` of the CPU", ""),
    Case { attach: false, ..names("jstack", "`jstack`", "") },
    Case { attach: false, ..names("jhsdb", "`jhsdb jstack --mixed`", JHSDB) },
    Case {
        attach: false,
        varies: true,
        ..names("async_profiler", "async-profiler, wall clock", ASYNC_PROFILER)
    },
    Case { attach: false, ..names("hs_err", "the JVM's `hs_err` file", "") },
    names("node_report", "node, `process.report`", ""),
    Case { unit: "frames", ..names("py_spy", "`py-spy dump`", OWN_PATH) },
    Case { unit: "frames", attach: false, ..names("rb_spy", "`rbspy snapshot`", RBSPY) },
    Case { unit: "frames", ..names("faulthandler", "Python's `faulthandler`", "") },
    Case {
        unit: "modules",
        ..names("minidump_module", "minidump-writer, the module of an address", MODULE)
    },
    names("minidump_walk", "minidump-processor, stack of a minidump by symbol files", MODULE),
    Case { unit: "answer", ..names("checkrestart_of", "`checkrestart`", "") },
    Case { unit: "answer", ..names("needrestart_of", "`needrestart`", "") },
    Case { unit: "files", ..names("pmap_of", "`pmap`", "It shows the copy's own path.") },
    Case { unit: "files", ..names("lsof_of", "`lsof`", "It shows the copy's own path.") },
    names(
        "addr2line_by_maps",
        "`addr2line -e` with the path in the maps",
        "The path is the copy's. Use the program's file.",
    ),
];
