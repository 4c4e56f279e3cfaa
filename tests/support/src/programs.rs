//! Compiles `tests/programs/*.c` (and `*.cc`) on demand, once for all concurrent tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{files, installed};

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Dynamic, position-independent.
    DynamicPie,
    /// Dynamic, at a fixed address.
    DynamicNoPie,
    /// Static, position-independent.
    StaticPie,
    /// Static, at a fixed address.
    StaticNoPie,
    /// Static, without libc: the program has its own entry point.
    Bare,
    /// As `Bare`, for 32-bit x86.
    Bare32,
    /// As `Bare`, guarded against indirect branches (aarch64).
    Guarded,
    /// The same, position-independent.
    GuardedPie,
    /// Dynamic, with musl.
    Musl,
    /// Static, with musl.
    MuslStatic,
    /// Static and position-independent, with musl.
    MuslStaticPie,
    /// As `DynamicPie`, with headers, text and read-only data in one segment.
    OneSegmentPie,
    /// As `DynamicNoPie`, with headers, text and read-only data in one segment. The first functions lie in the first
    /// whole huge page.
    OneSegmentNoPie,
    /// As `DynamicPie`, linked by lld: vaddr and file offset of the text differ by base pages.
    LldPie,
    /// Like `LldPie`, with every segment on its own pages of the file.
    LldSeparatePie,
    /// As `StaticPie`, linked by lld.
    LldStaticPie,
    /// As `DynamicPie`, linked by mold.
    MoldPie,
    /// Like `MoldPie`, with every segment on its own pages of the file.
    MoldSeparatePie,
    /// As `DynamicNoPie`, with text alone from 0x5ff000 to 0xc02000, and the data far above.
    SeedNoPie,
    /// As `DynamicPie`, with each segment in its own huge pages.
    SpreadPie,
    /// As `SpreadPie`, linked by lld.
    SpreadLldPie,
    /// As `DynamicPie`, under ThreadSanitizer.
    ThreadSanitizer,
    /// As `DynamicPie`, under AddressSanitizer.
    AddressSanitizer,
    /// C++, as `DynamicPie`.
    CxxPie,
    /// C++, as `StaticPie`.
    CxxStaticPie,
}

/// The kinds every machine with a C compiler can build.
pub const COMMON: [Kind; 4] =
    [Kind::DynamicPie, Kind::DynamicNoPie, Kind::StaticPie, Kind::StaticNoPie];

impl Kind {
    fn compiler(self) -> &'static str {
        match self {
            Kind::Musl | Kind::MuslStatic | Kind::MuslStaticPie => "musl-gcc",
            Kind::CxxPie | Kind::CxxStaticPie => "c++",
            _ => "cc",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Kind::DynamicPie => &["-fPIE", "-pie", "-pthread"],
            Kind::DynamicNoPie => &["-fno-PIE", "-no-pie", "-pthread"],
            Kind::StaticPie => &["-fPIE", "-static-pie", "-pthread"],
            Kind::StaticNoPie => &["-fno-PIE", "-no-pie", "-static", "-pthread"],
            Kind::Bare => &[
                "-nostdlib",
                "-static",
                "-fno-PIE",
                "-no-pie",
                "-fno-stack-protector",
                "-mgeneral-regs-only",
            ],
            Kind::Bare32 => &[
                "-m32",
                "-nostdlib",
                "-static",
                "-fno-PIE",
                "-no-pie",
                "-fno-stack-protector",
                "-ffreestanding",
            ],
            Kind::Guarded => &[
                "-nostdlib",
                "-static",
                "-fno-PIE",
                "-no-pie",
                "-fno-stack-protector",
                "-mgeneral-regs-only",
                "-mbranch-protection=standard",
                "-Wl,-z,force-bti",
            ],
            Kind::GuardedPie => &[
                "-nostdlib",
                "-static-pie",
                "-fPIE",
                "-fno-stack-protector",
                "-mgeneral-regs-only",
                "-mbranch-protection=standard",
                "-Wl,-z,force-bti",
            ],
            Kind::Musl => &["-fPIE", "-pie"],
            Kind::MuslStatic => &["-static"],
            Kind::MuslStaticPie => &["-fPIE", "-static-pie"],
            Kind::OneSegmentPie => &["-fPIE", "-pie", "-pthread", "-Wl,-z,noseparate-code"],
            Kind::OneSegmentNoPie => &["-fno-PIE", "-no-pie", "-pthread", "-Wl,-z,noseparate-code"],
            Kind::LldPie => &["-fPIE", "-pie", "-pthread", "-fuse-ld=lld"],
            Kind::LldSeparatePie => {
                &["-fPIE", "-pie", "-pthread", "-fuse-ld=lld", "-Wl,-z,separate-code"]
            }
            Kind::LldStaticPie => &["-fPIE", "-static-pie", "-pthread", "-fuse-ld=lld"],
            Kind::MoldPie => &["-fPIE", "-pie", "-pthread", "-fuse-ld=mold"],
            Kind::MoldSeparatePie => {
                &["-fPIE", "-pie", "-pthread", "-fuse-ld=mold", "-Wl,-z,separate-code"]
            }
            Kind::SeedNoPie => &[
                "-fno-PIE",
                "-no-pie",
                "-pthread",
                "-Wl,-z,noseparate-code",
                "-Wl,-z,norelro",
                "-Wl,-Ttext-segment=0x5ff000",
                "-Wl,--section-start=.init_array=0x2000000",
            ],
            Kind::SpreadPie => &["-fPIE", "-pie", "-pthread", "-Wl,-z,max-page-size=0x200000"],
            Kind::SpreadLldPie => {
                &["-fPIE", "-pie", "-pthread", "-fuse-ld=lld", "-Wl,-z,max-page-size=0x200000"]
            }
            Kind::ThreadSanitizer => &["-fPIE", "-pie", "-pthread", "-fsanitize=thread"],
            Kind::AddressSanitizer => &["-fPIE", "-pie", "-pthread", "-fsanitize=address"],
            Kind::CxxPie => &["-fPIE", "-pie", "-pthread"],
            Kind::CxxStaticPie => &["-fPIE", "-static-pie", "-pthread"],
        }
    }

    /// The linker that the compiler calls, if it is not the default one.
    fn linker(self) -> Option<&'static str> {
        match self {
            Kind::LldPie | Kind::LldSeparatePie | Kind::LldStaticPie | Kind::SpreadLldPie => {
                Some("ld.lld")
            }
            Kind::MoldPie | Kind::MoldSeparatePie => Some("mold"),
            _ => None,
        }
    }

    fn suffix(self) -> &'static str {
        if matches!(self, Kind::CxxPie | Kind::CxxStaticPie) { "cc" } else { "c" }
    }

    /// Returns whether the compiler has a library of this name. If not, the compiler prints the name alone.
    fn has_library(self, library: &str) -> bool {
        let printed =
            Command::new(self.compiler()).arg(format!("-print-file-name={library}")).output();
        printed.is_ok_and(|printed| printed.stdout.contains(&b'/'))
    }

    /// Returns whether this machine has the compiler and the linker.
    pub fn can_build(self) -> bool {
        let runtime = match self {
            Kind::ThreadSanitizer => Some("libtsan.so"),
            Kind::AddressSanitizer => Some("libasan.so"),
            _ => None,
        };
        super::installed(self.compiler()).is_some()
            && self.linker().is_none_or(|linker| super::installed(linker).is_some())
            && runtime.is_none_or(|library| self.has_library(library))
    }
}

/// The program with 6 MiB of text.
pub fn program(name: &str, kind: Kind) -> PathBuf {
    program_big(name, kind, 6)
}

/// Returns node, if its text is its own. Debian's node has its text in libnode.so.
pub fn whole_node() -> Option<PathBuf> {
    let node = super::installed("node")?.canonicalize().ok()?;
    Some(node).filter(|node| super::edges::text_bytes(node) >= super::pmd_size())
}

/// The program with that many MiB of text. It stays cached in small folios, unless a test has read it as huge ones, so
/// that a launch does not depend on earlier tests.
pub fn program_big(name: &str, kind: Kind, mib: u32) -> PathBuf {
    let program = built(name, kind, mib, None);
    super::fresh::keep_small(&program);
    program
}

/// A library that a program is linked with: its directory, and the file that the linker takes.
#[derive(Debug, Clone, Copy)]
pub struct Linked<'a> {
    /// The directory, which also has the header.
    pub directory: &'a Path,
    /// `libNAME.so` or `libNAME.a`.
    pub file: &'a str,
}

/// The program with 6 MiB of text, linked with a library. At run time the program finds the library at its present
/// path.
pub fn program_with(name: &str, kind: Kind, linked: Linked<'_>) -> PathBuf {
    let program = built(name, kind, 6, Some(linked));
    super::fresh::keep_small(&program);
    program
}

fn built(name: &str, kind: Kind, mib: u32, linked: Option<Linked<'_>>) -> PathBuf {
    let sources = super::sources();
    let source = sources.join(format!("{name}.{}", kind.suffix()));
    let dir = super::files().join("programs");
    let with = linked.map_or(String::new(), |linked| format!("-{}", linked.file));
    let built = dir.join(format!("{name}-{kind:?}-{mib}{with}").to_lowercase());
    // A name may begin with a directory, such as "hostile/".
    let dir = built.parent().expect("a path below the directory").to_owned();
    std::fs::create_dir_all(&dir).expect("a directory under the target directory");
    let changed = |p: &Path| {
        std::fs::metadata(p)
            .and_then(|m| m.modified())
            .unwrap_or_else(|e| panic!("{}: {e}", p.display()))
    };
    let headers = ["bigtext.h", "situation.h", "namespaces.h", "one_call_filter.h"]
        .map(|name| changed(&sources.join(name)));
    let library = linked.map(|linked| linked.directory.join(linked.file));
    let newest = headers.into_iter().chain([changed(&source)]);
    let newest = newest.chain(library.as_deref().map(changed)).max();
    if std::fs::metadata(&built).and_then(|m| m.modified()).ok() >= newest {
        return built;
    }
    // The program is built under a unique name and renamed, because tests run concurrently, in threads and in
    // processes.
    let own =
        tempfile::Builder::new().prefix("build-").tempdir_in(&dir).expect("a build directory");
    let made = own.path().join("program");
    let output = Command::new(kind.compiler())
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-function"])
        .arg(format!("-DBIG_MIB={mib}"))
        .args(kind.flags())
        .arg("-o")
        .args([&made, &source])
        .args(library.iter())
        .args(linked.iter().flat_map(|Linked { directory, file }| {
            let directory = directory.display();
            // A static position-independent program must not have an rpath.
            let shared = file.ends_with(".so").then(|| format!("-Wl,-rpath,{directory}"));
            [format!("-I{directory}")].into_iter().chain(shared)
        }))
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", kind.compiler()));
    assert!(
        output.status.success(),
        "{name} {kind:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A linker's large writes leave large folios in the page cache, so that text could be huge without TiExec.
    super::fresh::uncache(&made);
    std::fs::rename(&made, &built).expect("a rename in one directory");
    built
}

/// Whether a Go program has C in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cgo {
    /// Its threads have stacks on which one can be stopped.
    With,
    /// It needs no C library.
    Without,
}

/// Builds the Go program of a directory with these options, one program of all tests at a time: Go compiles its standard
/// library into an empty cache first, and two builds at once would both do so.
///
/// # Errors
/// The complaint of `go build`.
pub fn build_go(directory: &Path, cgo: Cgo, options: &[&str], to: &Path) -> Result<(), String> {
    let cache = files().canonicalize().expect("it is there").join("go-cache");
    let lock = std::fs::File::create(cache.with_extension("lock")).expect("the lock file");
    lock.lock().expect("flock");
    let output = Command::new(installed("go").expect("the test has looked for it"))
        .arg("build")
        .args(options)
        .arg("-o")
        .arg(to)
        .current_dir(directory)
        .env("GOCACHE", cache)
        .env("CGO_ENABLED", if cgo == Cgo::With { "1" } else { "0" })
        .envs([("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local")])
        .env("HOME", to.parent().expect("a directory"))
        .output()
        .expect("go");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A private copy of the distribution's Python, in small folios.
pub fn python() -> Option<super::Fresh> {
    Some(super::Fresh::small(&Path::new("/usr/bin/python3").canonicalize().ok()?))
}

/// A script for node: JIT, garbage collection, worker threads, child processes and regular expressions. It prints its
/// results.
pub const BUSY_NODE: &str = "const {Worker}=require('worker_threads'),{execFileSync}=require('child_process');\
    let h=0;for(let i=0;i<2e6;i++)h=(h*33+(i^(h>>>3)))>>>0;\
    const o=JSON.parse(JSON.stringify([...Array(20000)].map((_,i)=>({i,s:'x'.repeat(i%50)}))));\
    const r=o.filter(e=>/x{7,}$/.test(e.s)).length;\
    const c=execFileSync('/bin/echo',['child']).toString().trim();\
    new Worker(\"require('worker_threads').parentPort.postMessage(6*7)\",{eval:true}).on('message',m=>console.log(h,r,c,m))";

/// `java`, and a directory with `Busy` compiled for it; see [`java_of`].
pub fn busy_java() -> Option<(PathBuf, tempfile::TempDir)> {
    java_of("Busy", include_str!("../../programs/Busy.java"))
}

/// `java`, and a directory with this class compiled for it; `None` without a JDK. `java` and its `libjvm.so` are private
/// copies in the directory, which stay in small folios. All else that `java` reads is the machine's.
pub fn java_of(class: &str, text: &str) -> Option<(PathBuf, tempfile::TempDir)> {
    let (java, javac) = super::installed("java").zip(super::installed("javac"))?;
    let java = java.canonicalize().ok()?;
    let home = java.parent()?.parent()?;
    let dir = tempfile::tempdir().expect("a directory");
    let own = dir.path().join("jdk");
    super::warm::run("cp", &["-rs".as_ref(), home, &own]);
    for file in ["bin/java", "lib/server/libjvm.so"] {
        let copy = own.join(file);
        std::fs::remove_file(&copy).expect("a symbolic link of our own");
        let copy = super::warm::cold(&home.join(file), copy.parent().expect("a directory"));
        super::fresh::keep_small(&copy);
    }
    let java = own.join("bin/java");
    let source = dir.path().join(format!("{class}.java"));
    std::fs::write(&source, text).expect("a file");
    let built = Command::new(javac).arg(&source).output().expect("javac");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some((java, dir))
}
