//! The parts of a file that have no data.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};

/// The data and the holes of a file. This remembers the last extents that it found, so a file without holes costs two
/// calls, however many queries follow.
#[derive(Debug)]
pub struct Holes<'a> {
    file: &'a File,
    /// A hole, which may be empty, and the data after it: no data from the first offset to the second, data from the
    /// second to the third.
    known: Cell<[u64; 3]>,
}

impl<'a> Holes<'a> {
    /// Makes no call yet.
    pub fn of(file: &'a File) -> Self {
        Self { file, known: Cell::new([0; 3]) }
    }

    /// `lseek(SEEK_DATA)`, `lseek(SEEK_HOLE)` — returns whether the file has data in `range`, in bytes; true if that
    /// is not known. Reading a hole through a mapping of a tmpfs would allocate memory for it.
    pub fn has_data(&self, range: &Range<u64>) -> bool {
        let [from, _, end] = self.known.get();
        if !(from..end).contains(&range.start) {
            self.known.set(match seek(self.file, SeekFrom::Data(range.start)) {
                Ok(data) => {
                    [range.start, data, seek(self.file, SeekFrom::Hole(data)).unwrap_or(data)]
                }
                Err(rustix::io::Errno::NXIO) => [range.start, u64::MAX, u64::MAX],
                Err(_) => return true,
            });
        }
        self.known.get()[1].max(range.start) < range.end
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
        let holes = Holes::of(&file);
        for _ in 0..2 {
            assert!(!holes.has_data(&(0..4096)));
            assert!(holes.has_data(&(0..1 << 20)));
            assert!(holes.has_data(&(1 << 19..1 << 20)));
            assert!(!holes.has_data(&(1 << 19 | 4096..1 << 20)));
            assert!(!holes.has_data(&(1 << 20..2 << 20)));
        }
    }
}
