//! Programs with a big shared object beside them, and the coverage of the object's text.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::fresh::{Pinned, keep_small, uncache};
use super::launch::Run;
use super::smaps::{Coverage, Vma, coverage_of, vmas};

/// The way in which the object and its program are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// By GNU's linker: the vaddr of the text equals its offset.
    Gnu,
    /// By lld: vaddr and offset differ by base pages.
    Lld,
    /// With musl.
    Musl,
    /// The object has so many relocations that a test can catch `ld.so` while it relocates.
    Relocated,
    /// By GNU's linker without RELRO, so that no change of permissions shows that `ld.so` has finished.
    NoRelro,
    /// The same with musl, where nothing else shows it.
    MuslNoRelro,
    /// With a text relocation in the middle huge page of its end part.
    TextRelocation,
    /// In C++, with exceptions.
    Cxx,
}

impl Made {
    /// Returns whether this machine has the compiler and the linker.
    pub fn can_build(self) -> bool {
        let (compiler, linker) = (self.compiler(), if self == Made::Lld { "ld.lld" } else { "ld" });
        super::installed(compiler).is_some() && super::installed(linker).is_some()
    }

    fn compiler(self) -> &'static str {
        match self {
            Made::Musl | Made::MuslNoRelro => "musl-gcc",
            Made::Cxx => "c++",
            _ => "cc",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Made::Gnu => &["-DHAS_IFUNC"],
            Made::Lld => &["-DHAS_IFUNC", "-fuse-ld=lld"],
            Made::TextRelocation => &["-DTEXT_RELOCATION", "-Wl,-z,notext"],
            Made::Relocated => &["-DHAS_IFUNC", "-DRELOCATED=200000"],
            Made::NoRelro => &["-DHAS_IFUNC", "-Wl,-z,norelro"],
            Made::MuslNoRelro => &["-Wl,-z,norelro"],
            Made::Musl | Made::Cxx => &[],
        }
    }

    fn sources(self) -> [&'static str; 2] {
        if self == Made::Cxx {
            ["throws.cc", "catches.cc"]
        } else {
            ["big_object.c", "uses_object.c"]
        }
    }
}

/// A program and its object, in their own directory. Drop removes it.
pub struct WithObject {
    dir: tempfile::TempDir,
    /// The program.
    pub program: PathBuf,
    /// The shared object beside the program.
    pub object: PathBuf,
    pinned: Vec<Pinned>,
}

impl WithObject {
    /// A program with 1 MiB of text, and an object with 6.
    pub fn new(made: Made) -> WithObject {
        WithObject::sized(made, 1, 6)
    }

    /// A program and an object with these sizes of text in MiB, cached in small folios.
    pub fn sized(made: Made, main_mib: u32, object_mib: u32) -> WithObject {
        let built = build(made, main_mib, object_mib);
        let parent = super::files().canonicalize().expect("it is there");
        let dir =
            tempfile::Builder::new().prefix("object-").tempdir_in(parent).expect("a directory");
        let copy = |name: &str| {
            let copy = dir.path().join(name);
            super::install(&built.join(name), &copy, 0o755);
            uncache(&copy);
            copy
        };
        let (program, object) = (copy("program"), copy("libbig_object.so"));
        let pinned = [&program, &object].map(|file| Pinned::small(file)).into();
        WithObject { dir, program, object, pinned }
    }

    /// Takes the object out of the page cache.
    pub fn uncache_object(&mut self) {
        self.pinned.clear();
        uncache(&self.object);
    }

    /// The directory that holds both.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A launch with copies, which work with every state of the page cache, and without a watch of the start.
    pub fn run(&self, args: &[&str]) -> Run {
        // The deadline is long, because the machine may be busy.
        Run::new(&self.program, args).options(["--backing=image", "--deadline=2m", "--settle=0"])
    }

    /// How much of the object's text is huge in a process.
    pub fn coverage(&self, pid: i32) -> Coverage {
        object_coverage(pid, &self.object)
    }
}

/// Returns how much of a mapped object's text is huge, either its own text or TiExec's image in its place.
pub fn object_coverage(pid: i32, object: &Path) -> Coverage {
    coverage_of(&vmas(pid), object)
}

/// Returns the mappings of the object's text that are still its own file.
pub fn own_text(pid: i32, object: &Path) -> Vec<Vma> {
    let name = object.to_string_lossy();
    vmas(pid).into_iter().filter(|vma| vma.is_text() && vma.path == name).collect()
}

/// Builds both once for all concurrent tests. Returns their directory.
fn build(made: Made, main_mib: u32, object_mib: u32) -> PathBuf {
    let sources = super::sources();
    let [object, program] = made.sources().map(|name| sources.join(name));
    let all = super::files().join("programs");
    std::fs::create_dir_all(&all).expect("a directory under the target directory");
    let built = all.join(format!("object-{made:?}-{main_mib}-{object_mib}").to_lowercase());
    // One test builds the object. The others, also in other processes, wait for it.
    let lock = std::fs::File::create(built.with_extension("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let changed = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let headers = ["bigtext.h", "situation.h"].map(|name| sources.join(name));
    let newest = [&object, &program, &headers[0], &headers[1]].map(|path| changed(path));
    if changed(&built) >= newest.into_iter().max().flatten() {
        return built;
    }
    let own = tempfile::Builder::new().prefix("build-").tempdir_in(&all).expect("a directory");
    let (library, binary) = (own.path().join("libbig_object.so"), own.path().join("program"));
    let compile = |mib: u32, flags: &[&str], from: &Path, to: &Path, last: &[&Path]| {
        let output = Command::new(made.compiler())
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-function"])
            .arg(format!("-DBIG_MIB={mib}"))
            .args(made.flags())
            .args(flags)
            .arg("-o")
            .args([to, from])
            .args(last)
            .output()
            .expect("a compiler");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {made:?}: {errors}", from.display());
    };
    let shared = [
        "-fPIC",
        "-shared",
        "-pthread",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libbig_object.so",
        "-Wl,-z,lazy",
    ];
    compile(object_mib, &shared, &object, &library, &[]);
    let plain = ["-fPIE", "-pie", "-pthread", "-Wl,-rpath,$ORIGIN", "-Wl,-z,lazy"];
    compile(main_mib, &plain, &program, &binary, &[&library]);
    let _older = std::fs::remove_dir_all(&built);
    std::fs::rename(own.keep(), &built).expect("a place for it");
    built
}

/// A library with 6 MiB of text, which the program `late` loads.
pub fn late_library(dir: &Path) -> PathBuf {
    let source = super::sources().join("late.c");
    let made = dir.join("built.so");
    let built = std::process::Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-DLIBRARY", "-DBIG_MIB=6", "-o"])
        .args([&made, &source])
        .output()
        .expect("cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // A new file may be in huge folios.
    let copies = dir.join("copies");
    std::fs::create_dir(&copies).expect("a directory");
    let copy = super::warm::cold(&made, &copies);
    keep_small(&copy);
    copy
}
