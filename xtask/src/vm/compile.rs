//! Compiles for a guest, which would be slow. The guest's `cc` leaves its arguments in the shared directory, and waits
//! for the result.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::build::Built;
use crate::repository;

/// Answers the guest's requests below `shared`, until `done`. `kept` is the cache of earlier results.
pub(crate) fn serve(shared: &Path, kept: &Path, built: &Built, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        for entry in fs::read_dir(shared).into_iter().flatten().flatten() {
            let request = entry.path();
            if request.join("asked").exists() && !request.join("answered").exists() {
                let answer = answer(&request, kept, built);
                let (status, stdout, stderr) = match answer {
                    Ok(output) => (output.status.code().unwrap_or(1), output.stdout, output.stderr),
                    Err(error) => (1, Vec::new(), format!("{error:#}\n").into_bytes()),
                };
                // The last file signals that the others are complete.
                let status = status.to_string().into_bytes();
                let files = [("stdout", stdout), ("stderr", stderr), ("answer", status)];
                for (name, bytes) in files {
                    if let Err(error) = fs::write(request.join(name), bytes) {
                        eprintln!("{}: {error}", request.display());
                    }
                }
                let _seen = fs::rename(request.join("answer"), request.join("answered"));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn answer(request: &Path, kept: &Path, built: &Built) -> Result<Output> {
    let text = fs::read_to_string(request.join("asked"))?;
    let mut words = text.lines();
    let name = words.next().context("an empty request")?;
    let compiler = built.compilers.iter().find(|(known, _)| *known == name);
    let (_, compiler) = compiler.with_context(|| format!("no compiler {name} here"))?;
    let mut arguments: Vec<&str> = words.collect();
    let out = arguments.iter().position(|&word| word == "-o");
    if let Some(out) = out {
        arguments.drain(out..(out + 2).min(arguments.len()));
    }
    let mut command = Command::new(compiler);
    if arguments.iter().any(|argument| argument.starts_with("-fuse-ld=")) {
        // A compiler for another architecture finds a linker with a plain name only here.
        command.arg("-B").arg(linkers(kept)?);
    }
    for argument in &arguments {
        match argument.strip_prefix(GIVEN) {
            Some(name) => command.arg(request.join("given").join(name)),
            None => command.arg(argument),
        };
    }
    if out.is_none() {
        return Ok(command.output()?);
    }
    let made = kept.join(format!("{:016x}", key(compiler, &arguments, request)?));
    let output = if made.exists() {
        Command::new("true").output()?
    } else {
        let new = made.with_extension("new");
        let output = command.arg("-o").arg(&new).output()?;
        if output.status.success() {
            fs::rename(new, &made)?;
        }
        output
    };
    if output.status.success() {
        fs::copy(&made, request.join("program"))?;
    }
    Ok(output)
}

/// Returns a directory of the linkers that link for every architecture.
fn linkers(kept: &Path) -> Result<PathBuf> {
    let dir = kept.join("linkers");
    fs::create_dir_all(&dir)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in ["ld.lld", "ld.mold"] {
        let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.exists());
        let link = dir.join(name);
        if let Some(found) = found.filter(|_| !link.exists()) {
            std::os::unix::fs::symlink(found, link)?;
        }
    }
    Ok(dir)
}

/// The prefix of arguments that are files of the guest, which the request contains.
const GIVEN: &str = "given/";

/// Returns a hash of the arguments and of all files that they could compile.
fn key(compiler: &str, arguments: &[&str], request: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (compiler, arguments).hash(&mut hasher);
    for given in arguments.iter().filter(|argument| argument.starts_with(GIVEN)) {
        fs::read(request.join(given))?.hash(&mut hasher);
    }
    let sources = repository()?.join("tests/programs");
    let mut files: Vec<PathBuf> = [sources.clone(), sources.join("hostile")]
        .iter()
        .flat_map(fs::read_dir)
        .flat_map(|dir| dir.flatten().map(|file| file.path()))
        .collect();
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        fs::read(file)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}
