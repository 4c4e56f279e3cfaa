//! Lists the shared libraries that a file needs, by the file's own `ld.so`.
//!
//! `ld.so --list FILE` maps the file and its libraries and prints their paths. So `ld.so` must be a file that only root
//! can have installed. It should run no code of the file. But it maps a file at the addresses that the file asks for, and
//! glibc does not protect `ld.so` from a malformed one ("Security" in ldd(1)). So root does not run it with root's rights.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tiexec_core::escape::AsShown;
use tiexec_engine::programs::{self, Environment};
use tiexec_sys::impersonate::NOBODY;

use super::elf_file::ElfFile;

/// How long `ld.so` may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of output. A list of libraries is never longer.
const LONGEST: u64 = 1 << 20;

/// The interpreters for a library without its own interpreter. The first existing one is used.
const DEFAULTS: &[&str] = if cfg!(target_arch = "aarch64") {
    &["/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"]
} else {
    &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"]
};

/// Returns the paths of the interpreter and the libraries that the file needs, in `ld.so`'s order. A static program
/// needs nothing.
///
/// # Errors
/// The interpreter is not trusted or printed no list, or a library was not found. The text says which.
pub(super) fn of(path: &Path, file: &ElfFile) -> Result<Vec<PathBuf>, String> {
    let interpreter = match &file.interpreter {
        Some(interpreter) => interpreter.clone(),
        None if !file.facts.position_independent => return Ok(Vec::new()),
        None => DEFAULTS
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| format!("no interpreter here: neither of {}", DEFAULTS.join(", ")))?,
    };
    trust(&interpreter)?;
    let name = interpreter.shown();
    // The path must have a slash. Otherwise ld.so would search for a library of this name.
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let user = if rustix::process::geteuid().is_root() { Some(reader(&path)?) } else { None };
    let output = list(&interpreter, &path, user).map_err(|error| {
        let who = user.map_or_else(String::new, |user| format!(" as user {user}"));
        format!("{name} --list{who}: {error}")
    })?;
    let mut needed = vec![interpreter.clone()];
    needed.extend(parse(&output).map_err(|error| format!("{name} --list: {error}"))?);
    Ok(needed)
}

/// Checks that only root can have written the interpreter.
fn trust(interpreter: &Path) -> Result<(), String> {
    let bad = |path: &Path, what: &str| Err(format!("will not run {}: {what}", path.shown()));
    if !interpreter.is_absolute() {
        return bad(interpreter, "not an absolute path");
    }
    let real = interpreter
        .canonicalize()
        .map_err(|error| format!("no interpreter {}: {error}", interpreter.shown()))?;
    let mut names = real.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.as_bytes()),
        _ => None,
    });
    let first = match names.next() {
        Some(b"usr") => names.next(),
        first => first,
    };
    if !first.is_some_and(|name| name.starts_with(b"lib")) {
        return bad(&real, "not in a system directory");
    }
    for path in real.ancestors() {
        let metadata = path.metadata().map_err(|error| format!("{}: {error}", path.shown()))?;
        if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
            return bad(path, "others than root may write to it");
        }
    }
    if real.metadata().is_ok_and(|metadata| metadata.is_file()) {
        Ok(())
    } else {
        bad(&real, "not a regular file")
    }
}

/// Returns the user with whose rights root has `ld.so` read the file: the owner of the file, or nobody if that is root.
///
/// # Errors
/// Yet another user could put another file in its place, which would then run with the owner's rights.
fn reader(real: &Path) -> Result<u32, String> {
    let metadata =
        |path: &Path| path.symlink_metadata().map_err(|error| format!("{}: {error}", path.shown()));
    let owner = metadata(real)?.uid();
    // The members of a group gain nothing by what runs as nobody.
    let others = if owner == 0 { 0o002 } else { 0o022 };
    for path in real.ancestors() {
        let metadata = metadata(path)?;
        let (whose, mode) = (metadata.uid(), metadata.mode());
        let is_safe = whose == 0 || whose == owner;
        // In a sticky directory of root's, others cannot replace the owner's file.
        let may_be_written = mode & others != 0 && !(mode & 0o1000 != 0 && whose == 0);
        if !is_safe || may_be_written {
            let (path, real) = (path.shown(), real.shown());
            return Err(format!(
                "will not have ld.so read {real}: others than its owner may replace {path}; \
                 fix: name the libraries instead of --deps"
            ));
        }
    }
    Ok(if owner == 0 { NOBODY } else { owner })
}

/// Runs `ld.so --list`, with an empty environment, and with the rights of the user if one is given.
fn list(interpreter: &Path, path: &Path, user: Option<u32>) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    let mut command = programs::command(interpreter, Environment::Empty);
    command.arg("--list").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(user) = user {
        // std also drops all other groups.
        command.uid(user).gid(NOBODY);
    }
    let (mut child, leftovers) = programs::start_contained(command).map_err(words)?;
    let (told, tells) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::spawn(move || {
        let mut output = Vec::new();
        let _cut = stdout.map(|pipe| pipe.take(LONGEST).read_to_end(&mut output));
        let mut complaint = Vec::new();
        let _cut = stderr.map(|pipe| pipe.take(LONGEST).read_to_end(&mut complaint));
        let _gone = told.send((output, complaint));
    });
    let begun = Instant::now();
    let told = tells.recv_timeout(PATIENCE);
    // A program that has closed its streams can still run on.
    while told.is_ok() && !programs::has_ended(&child) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    leftovers.end(&child);
    let status = child.wait().map_err(words)?;
    let late = |_| format!("no answer in {} s", PATIENCE.as_secs());
    let (output, complaint) = told.map_err(late)?;
    if status.success() {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&complaint);
    let line = complaint.lines().next();
    Err(line.map_or_else(|| status.to_string(), |line| line.shown().to_string()))
}

/// Reads the lines of `ld.so --list`: `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`; a name without
/// a slash and without an arrow is the vDSO.
fn parse(output: &[u8]) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in output.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
        if line.is_empty() || line == b"statically linked" {
            continue;
        }
        let strange = || format!("not understood: {}", line.shown());
        let arrow = b" => ";
        let (found, arrow) = match line.windows(arrow.len()).position(|window| window == arrow) {
            Some(at) => (&line[at + arrow.len()..], true),
            None => (line, false),
        };
        if arrow && found.starts_with(b"not found") {
            return Err(line.shown().to_string());
        }
        let end = found.windows(4).rposition(|window| window == b" (0x").ok_or_else(strange)?;
        if !found.ends_with(b")") {
            return Err(strange());
        }
        let path = &found[..end];
        match path.first() {
            Some(b'/') => paths.push(PathBuf::from(OsStr::from_bytes(path))),
            Some(_) if !arrow && !path.contains(&b'/') => {}
            _ => return Err(strange()),
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_libcs_lists() {
        let glibc = b"\tlinux-vdso.so.1 (0x00007ffd3a5f2000)\n\
            \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f3a5a000000)\n\
            \tlibodd.so => /opt/a (0x1) b/libodd.so (0x00007f3a5a000000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f3a5a4c8000)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libm.so.6",
            "/opt/a (0x1) b/libodd.so",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(parse(glibc).unwrap(), expected.map(PathBuf::from));
        let musl = b"\t/lib/ld-musl-x86_64.so.1 (0x7f0c)\n\tlibc.so => /lib/ld-musl-x86_64.so.1 (0x7f0c)\n";
        assert_eq!(parse(musl).unwrap().len(), 2);
        assert_eq!(parse(b"\tstatically linked\n").unwrap().len(), 0);
    }

    #[test]
    fn what_is_strange_is_refused() {
        for line in [
            "libx.so => not found",
            "libx.so => relative/libx.so (0x1)",
            "libx.so => (0x1)",
            "sub/libx.so (0x1)",
            "/lib/libx.so",
            "/lib/libx.so (0x1) more",
            "hello",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn only_the_systems_own_interpreters_are_run() {
        let own = tempfile::NamedTempFile::new().unwrap();
        for path in
            [own.path(), Path::new("ld.so"), Path::new("/etc/passwd"), Path::new("/usr/lib")]
        {
            assert!(trust(path).is_err(), "{}", path.shown());
        }
        assert!(DEFAULTS.iter().any(|path| trust(Path::new(path)).is_ok()));
    }
}
