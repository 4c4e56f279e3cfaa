//! Whether a process has mapped the bytes that a file has now.

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::address_space::Memory;
use tiexec_tracee::Failure;

use crate::target_file::{ReadAt, TargetFile};

/// Compares the process's bytes with the file's at `file_offset`.
///
/// # Errors
/// `modified_text`: they differ. `proc_unavailable`, `read_failed`: one of them cannot be read.
pub(super) fn compare(
    memory: &Memory,
    range: AddrRange,
    file: &TargetFile,
    file_offset: u64,
) -> Result<(), Failure> {
    const CHUNK: u64 = 1 << 20;
    let mut at = 0;
    let (mut here, mut there) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    while at < range.len() {
        let len = CHUNK.min(range.len() - at) as usize;
        let from = RemoteAddr::new(range.start().get() + at);
        memory.read(from, &mut here[..len]).map_err(Failure::unreadable)?;
        read_mapped(file, &mut there[..len], file_offset + at)
            .map_err(Failure::of(FailureKind::ReadFailed))?;
        if here[..len] != there[..len] {
            let what = format!("the file's bytes differ from those at {from:?}");
            return Err(Failure::new(SkipReason::ModifiedText, what));
        }
        at += len as u64;
    }
    Ok(())
}

/// Reads `file` as a mapping of it would show it: zeros follow the end of the file.
fn read_mapped(file: &TargetFile, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64)? {
            0 => {
                buffer[done..].fill(0);
                break;
            }
            count => done += count,
        }
    }
    Ok(())
}
