//! Parts of a file that it has no data for.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};

/// `lseek(SEEK_DATA)` — returns whether the file has data in `range`, in bytes; so where that cannot be told. Reading a
/// hole through a mapping of a tmpfs would allocate memory for it.
pub fn has_data(file: &File, range: &Range<u64>) -> bool {
    match seek(file, SeekFrom::Data(range.start)) {
        Ok(at) => at < range.end,
        Err(rustix::io::Errno::NXIO) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_has_none() {
        let file = File::from(
            rustix::fs::memfd_create("holes", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd"),
        );
        rustix::fs::ftruncate(&file, 1 << 20).expect("its length");
        rustix::io::pwrite(&file, b"x", 512 << 10).expect("a byte");
        assert!(!has_data(&file, &(0..4096)));
        assert!(has_data(&file, &(0..1 << 20)));
        assert!(!has_data(&file, &(1 << 19 | 4096..1 << 20)));
    }
}
