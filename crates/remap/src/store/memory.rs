//! The memory that images take.

use rustix::fs::{AtFlags, major, minor};
use tiexec_core::area::Area;
use tiexec_core::proc::maps::FileId;

use super::SUFFIX;
use super::directory::Directory;

/// Records for each area that maps an image of a store how much memory the whole image takes. An image that was
/// removed after it was mapped, or that lies in another user's store, is not found.
pub fn tell(areas: &mut [Area]) {
    let is_image = |area: &&mut Area| area.vma.path().ends_with(SUFFIX.as_bytes());
    let mut images = areas.iter_mut().filter(is_image).peekable();
    if images.peek().is_none() {
        return;
    }
    let stores = Directory::all().map(|stores| stores.usable).unwrap_or_default();
    for area in images {
        let path = area.vma.path();
        let name = &path[path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1)..];
        area.image_bytes = stores.iter().find_map(|store| {
            let stat = rustix::fs::statat(&store.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let (major, minor) = (major(stat.st_dev), minor(stat.st_dev));
            let id = FileId { major, minor, inode: stat.st_ino };
            (id == area.vma.file).then(|| stat.st_blocks.cast_unsigned().saturating_mul(512))
        });
    }
}
