//! `tiexecctl store setup`: mounts the system's store.

use tiexec_core::addr::mib;
use tiexec_remap::store::directory::SYSTEM;
use tiexec_remap::store::setup::{Done, Size, setup, unit};

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
        Err(error) => {
            warn(&error);
            if error.denied { exit::NOT_PERMITTED } else { exit::FAILED }
        }
    }
}
