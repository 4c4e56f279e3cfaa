//! Random numbers that no other process can know.

use crate::error::SysError;

/// `getrandom` — returns 64 random bits.
///
/// # Errors
/// ENOSYS before Linux 3.17.
pub fn word() -> Result<u64, SysError> {
    let mut bytes = [0; 8];
    let mut done = 0;
    while done < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        done += rustix::rand::getrandom(&mut bytes[done..], flags)
            .map_err(SysError::of("getrandom"))?;
    }
    Ok(u64::from_ne_bytes(bytes))
}
