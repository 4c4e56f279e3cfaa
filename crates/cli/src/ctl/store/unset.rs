//! `tiexecctl store unset`: removes the system's store.

use tiexec_remap::store::directory::SYSTEM;
use tiexec_remap::store::setup::unset;

use super::print;
use crate::exit;
use crate::stdio::warn;

pub(super) fn run() -> u8 {
    if !rustix::process::geteuid().is_root() {
        warn(
            "cannot unmount the system's image store: only root can unmount it; fix: run it as root",
        );
        return exit::NOT_PERMITTED;
    }
    match unset() {
        Ok(was_mounted) => {
            let done = if was_mounted { "unmounted" } else { "is not set up" };
            print(&format!("{SYSTEM}: {done}\n"))
        }
        Err(error) => {
            warn(&error);
            if error.denied { exit::NOT_PERMITTED } else { exit::FAILED }
        }
    }
}
