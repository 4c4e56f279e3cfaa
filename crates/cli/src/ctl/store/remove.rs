//! `tiexecctl store remove FILE…`: removes the images of files.

use std::path::{Path, PathBuf};

use tiexec_core::escape::AsShown;
use tiexec_remap::store::prune::{Removed, remove_images_of};

use super::super::told;
use super::prune::{line, ours, take};
use super::{cannot, print};
use crate::exit;
use crate::stdio::warn;

pub(super) fn run(files: &[PathBuf], json: bool) -> u8 {
    let doing = "remove images";
    let directories = match ours(doing) {
        Ok(directories) => directories,
        Err(status) => return status,
    };
    let mut all: Vec<Removed> = Vec::new();
    let mut statuses = Vec::new();
    for file in files {
        let original = as_stored(file);
        let mut of_file = Vec::new();
        for directory in &directories {
            match remove_images_of(directory, &original) {
                Ok(outcomes) => of_file.extend(take(outcomes, &mut all)),
                Err(failure) => of_file.push(cannot(doing, &failure)),
            }
        }
        if of_file.is_empty() {
            of_file.push(exit::FAILED);
            warn(format_args!(
                "cannot remove the image of {}: there is none; fix: run tiexecctl store list, which shows all",
                file.as_path().shown()
            ));
        }
        statuses.extend(of_file);
    }
    let printed = if json {
        print(&super::list::as_json("store_remove", &[("removed", &all)]))
    } else {
        print(&all.iter().map(line).collect::<String>())
    };
    told(exit::together(&statuses), printed)
}

/// Returns the path under which the store keeps a file: the path in maps, even if the file is gone.
fn as_stored(file: &Path) -> String {
    let path = file.canonicalize().or_else(|_gone| std::path::absolute(file));
    path.unwrap_or_else(|_| file.to_owned()).to_string_lossy().into_owned()
}
