//! `tiexecctl store setup` and `unset`: mount the system's store, and remove it.

use tiexec_core::addr::mib;
use tiexec_remap::store::directory::SYSTEM;
use tiexec_remap::store::setup::{Done, SetupError, Size, setup, unit, unset};

use super::print;
use crate::exit;
use crate::stdio::warn;

pub(super) fn run(size: Option<Size>, only_unit: bool) -> u8 {
    if only_unit {
        return print(&unit(size));
    }
    if !rustix::process::geteuid().is_root() {
        warn("cannot set up the system's image store: only root can mount it; fix: run it as root");
        return exit::NOT_PERMITTED;
    }
    match setup(size) {
        Ok(done) => {
            let done = match done {
                Done::Mounted => "set up",
                Done::Already => "already set up",
                Done::Resized => "set up anew",
            };
            let size =
                rustix::fs::statvfs(SYSTEM).map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize));
            print(&format!("{SYSTEM}: {done}, up to {} MiB\n", mib(size)))
        }
        Err(error) => failed(&error),
    }
}

pub(super) fn undo() -> u8 {
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
        Err(error) => failed(&error),
    }
}

fn failed(error: &SetupError) -> u8 {
    warn(error);
    if error.denied { exit::NOT_PERMITTED } else { exit::FAILED }
}
