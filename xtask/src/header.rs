//! The C header of libtiexec, generated from its C API.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::repository;

fn place() -> Result<PathBuf> {
    Ok(repository()?.join("include/tiexec.h"))
}

/// Makes the header.
fn made() -> Result<String> {
    let library = repository()?.join("crates/self");
    let config = cbindgen::Config::from_file(library.join("cbindgen.toml"));
    let config = config.map_err(anyhow::Error::msg)?;
    let builder = cbindgen::Builder::new().with_config(config);
    let bindings = builder.with_src(library.join("src/abi.rs")).generate();
    let mut header = Vec::new();
    bindings.context("cannot make the header")?.write(&mut header);
    // Rust's section `# Safety` repeats the text above it in other words, so the header omits it.
    let text = String::from_utf8(header)?;
    let mut kept: Vec<&str> = Vec::new();
    let mut is_safety = false;
    for line in text.lines() {
        if line.trim() == "// # Safety" {
            is_safety = true;
            // The empty line before the section is omitted too.
            kept.pop();
        }
        is_safety &= line.trim_start().starts_with("//");
        if !is_safety {
            kept.push(line.trim_end());
        }
    }
    Ok(kept.join("\n") + "\n")
}

/// Returns the structures and functions, without comments.
pub(crate) fn declarations() -> Result<String> {
    let header = made()?;
    let (_, code) =
        header.split_once("#include <stdint.h>").context("the header includes no types")?;
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let lines = lines.filter(|line| !line.starts_with(['#', '}']) || *line == "};");
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("extern"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Writes the header.
pub(crate) fn write() -> Result<()> {
    let place = place()?;
    fs::write(&place, made()?).with_context(|| format!("cannot write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_code() {
        let there = fs::read_to_string(place().unwrap()).unwrap();
        assert!(there == made().unwrap(), "include/tiexec.h is old; fix: cargo xtask header");
    }
}
