//! The cache directories for things that take long to make: `NAME` in the user's cache directory, or the directory in
//! `$NAME_CACHE`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

#[derive(Debug)]
pub(crate) struct Cache(PathBuf);

impl Cache {
    /// Opens the cache of the guests: `$TIEXEC_VM_CACHE`, or else `tiexec-vm`.
    pub(crate) fn open() -> Result<Self> {
        Self::named("tiexec-vm", "TIEXEC_VM_CACHE")
    }

    /// Opens the directory in an environment variable, or else the directory `name`.
    pub(crate) fn named(name: &str, by: &str) -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dir = variable(by).map(PathBuf::from).or_else(|| {
            let home = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let home = home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
            home.map(|home| home.join(name))
        });
        let dir = dir.with_context(|| format!("neither {by} nor HOME is set"))?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Returns the cache's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the directory of that name, and makes it if it is missing.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.0.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// Returns the entry of that name. A missing entry is made first, under another name until it is complete.
    pub(crate) fn once(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let made = self.0.join(name);
        if made.exists() {
            return Ok(made);
        }
        let new = self.0.join(format!("{name}.new"));
        if let Some(parent) = made.parent() {
            fs::create_dir_all(parent)?;
        }
        let _from_before = fs::remove_file(&new).or_else(|_| fs::remove_dir_all(&new));
        eprintln!("making {}", made.display());
        make(&new).with_context(|| format!("cannot make {}", made.display()))?;
        fs::rename(&new, &made)?;
        Ok(made)
    }
}
