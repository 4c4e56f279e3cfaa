//! `tiexecctl attach PID…`: a running process's text onto huge pages.

use std::time::Duration;

use tiexec_core::plan::Backing;
use tiexec_remap::Failure;
use tiexec_remap::attach::{AttachOrder, Images, attach, revert};
use tiexec_remap::launch::Sources;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, thp};

use crate::exit;
use crate::say::warn;

pub(super) fn run(pids: &[i32], back: bool) -> u8 {
    let mut images = Images::default();
    let mut worst = exit::OK;
    for &pid in pids {
        if let Err(failure) = one(pid, &mut images, back) {
            warn(format_args!("cannot attach to process {pid}: {failure}"));
            worst = exit::FAILED;
        }
    }
    worst
}

fn one(pid: i32, images: &mut Images, back: bool) -> Result<(), Failure> {
    let pages = thp::pages().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let process = ProcDir::of(pid).unwrap();
    let sources = Sources { pagecache: true, store: true, copy: Some(Backing::Image) };
    let order = AttachOrder {
        pid,
        process: &process,
        pages,
        sources,
        deadline: Duration::from_secs(30),
        dry_run: false,
    };
    if back {
        println!("{:?}", revert(&order)?);
        return Ok(());
    }
    let attached = attach(&order, images)?;
    print!("{}", attached.plan);
    println!("{:?} {:?} copied {}", attached.failure, attached.stop, attached.bytes_copied);
    Ok(())
}
