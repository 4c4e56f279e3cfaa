//! Finds the images that running processes map.

use std::collections::HashMap;

use rustix::fs::{major, minor};
use tiexec_core::proc::maps::{self, FileId};
use tiexec_sys::procfs::ProcDir;

use super::SUFFIX;

/// How many processes map which image. Counts only processes whose maps this process may read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users {
    counts: HashMap<FileId, u64>,
}

impl Users {
    /// Reads the maps of every process. Root may read nearly all of them, except those of processes with more
    /// capabilities or in another PID namespace.
    pub fn scan() -> Self {
        let mut users = Self::default();
        for text in ProcDir::every().filter_map(|(_, process)| process.read("maps").ok()) {
            users.count(&text);
        }
        users
    }

    fn count(&mut self, text: &[u8]) {
        let lines = text.split(|&byte| byte == b'\n');
        let mut files: Vec<FileId> = lines
            .filter(|line| line.windows(SUFFIX.len()).any(|part| part == SUFFIX.as_bytes()))
            .filter_map(|line| maps::parse_vma(line, 0).ok())
            .map(|vma| vma.file)
            .collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            *self.counts.entry(file).or_default() += 1;
        }
    }

    /// Returns how many processes were seen to map the file with that device and inode.
    pub fn of(&self, device: u64, inode: u64) -> u64 {
        let id = FileId { major: major(device), minor: minor(device), inode };
        self.counts.get(&id).copied().unwrap_or(0)
    }
}
