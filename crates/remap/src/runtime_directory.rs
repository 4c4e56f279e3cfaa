//! Directories for what TiExec remembers until the next boot. Only the user may enter them.
//!
//! - root: below `/run/tiexec`;
//! - any other user: in `tiexec` below `XDG_RUNTIME_DIR`, or else below `/run/user/UID`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tiexec_core::escape::AsShown;

use crate::trusted_directory::{self, Rule, Trust};

/// The parent of root's directories.
const SYSTEM: &str = "/run/tiexec";

/// Opens this user's directory of that name, creating it if needed.
///
/// # Errors
/// The reason why it cannot be used: another user could have put it there, or it cannot be made.
pub(crate) fn open(name: &str) -> Result<OwnedFd, String> {
    let user = rustix::process::geteuid().as_raw();
    let places: Vec<(PathBuf, [u32; 2])> = if user == 0 {
        // The image store lies beside it, and everybody must be able to enter the parent.
        vec![(Path::new(SYSTEM).join(name), [0o755, 0o700])]
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = PathBuf::from(format!("/run/user/{user}"));
        let all = runtime.into_iter().filter(|path| path.is_absolute()).chain([usual]);
        all.map(|path| (path.join("tiexec").join(name), [0o700, 0o700])).collect()
    };
    let mut why = None;
    for (path, make) in places {
        let rule = Rule { user, trust: Trust::Own { sticky: true }, make: &make };
        let refused = match trusted_directory::open(&path, &rule) {
            Ok(Some((fd, stat))) if stat.st_uid == user && stat.st_mode & 0o7777 == 0o700 => {
                return Ok(fd);
            }
            Ok(Some((_, stat))) => {
                let mode = stat.st_mode & 0o7777;
                format!("{} belongs to user {} with mode {mode:04o}", path.shown(), stat.st_uid)
            }
            Ok(None) => format!("{} has no directory above it", path.shown()),
            Err(distrust) => distrust.to_string(),
        };
        why.get_or_insert(refused);
    }
    Err(why.unwrap_or_default())
}
