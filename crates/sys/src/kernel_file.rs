//! Files of the kernel's own file systems, by which a program sets something: `/proc`, `/sys`, cgroups.

#![expect(
    clippy::disallowed_methods,
    reason = "no user can put another file in the place of one of the kernel's"
)]

use std::path::Path;

/// Writes to a file of the kernel's. `path` must lie below `/proc` or `/sys`.
///
/// # Errors
/// The errors of open(2) and write(2).
pub fn write(path: impl AsRef<Path>, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)
}
