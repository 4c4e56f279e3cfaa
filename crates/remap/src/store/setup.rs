//! The system's image store: a tmpfs of its own.
//!
//! The tmpfs has `huge=advise`, not `always`. The builder chooses the parts that become huge, so that symbols, data
//! and sidecars do not take a huge page each. The store is not `/run` itself, which is often `noexec`.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::value::parse_bytes;
use tiexec_sys::{Errno, thp};

use super::directory::{Directory, SYSTEM, system_place};
use crate::files;
use crate::headroom::total_memory;
use crate::trusted_directory::{self, Distrust, Rule, Trust, is_mount};

/// The maximum size of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// A share of the machine's memory, in per cent.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

/// The default is a tenth of the memory.
impl Default for Size {
    fn default() -> Self {
        Self::Percent(10)
    }
}

impl Size {
    /// Returns the size on this machine in bytes, rounded up to whole base pages.
    pub fn bytes(self) -> u64 {
        let page = rustix::param::page_size() as u64;
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total_memory() / 100 * u64::from(percent),
        };
        bytes.checked_next_multiple_of(page).unwrap_or(bytes)
    }
}

/// Parses a size as tmpfs(5) does: `10%`, `512M`, `2G`, or bytes.
impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "not a size such as 512M, 2G or 10%";
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err("not between 1% and 100%"),
            };
        }
        // For the kernel 0 means no limit, which is never wanted here.
        let bytes = parse_bytes(text).ok().filter(|&bytes| bytes > 0);
        bytes.map(Self::Bytes).ok_or(FORM)
    }
}

/// Prints a size as mount(8) and systemd do.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// The result of setting the store up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The store was mounted.
    Mounted,
    /// The store existed already.
    Already,
    /// The store existed, and now has another size.
    Resized,
}

/// Why the store could not be set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetupError {
    /// The action and its object.
    pub doing: String,
    /// The kernel's answer, or another obstacle.
    pub why: String,
    /// True if root could do this.
    pub denied: bool,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.doing, self.why)
    }
}

impl SetupError {
    fn new(doing: impl fmt::Display, errno: Errno) -> Self {
        let denied = matches!(errno, Errno::PERM | Errno::ACCES);
        Self { doing: doing.to_string(), why: errno.to_string(), denied }
    }
}

fn flags() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV | MountFlags::STRICTATIME
}

/// Mounts the system's store, or resizes it. With `None`, a new store gets the default size, and an existing one
/// keeps its size.
///
/// # Errors
/// [`SetupError`]; the store is unchanged.
///
/// # Kernel
/// Needs CAP_SYS_ADMIN. If the kernel knows no `huge=` (CONFIG_TRANSPARENT_HUGEPAGE), the store is mounted without
/// it.
pub fn setup(size: Option<Size>) -> Result<Done, SetupError> {
    let path = Path::new(SYSTEM);
    if let Some(size) = size {
        check(size)?;
    }
    make(path)?;
    let unfit = |why| SetupError { doing: format!("use {SYSTEM}"), why, denied: false };
    let place = system_place().map_err(|failure| unfit(failure.detail))?;
    let (fd, stat) = place.ok_or_else(|| unfit("it was removed again".into()))?;
    if !is_mount(&fd, &stat) {
        return mount_new(path, size.unwrap_or_default());
    }
    let mounted = rustix::fs::fstatvfs(&fd)
        .map_err(|errno| SetupError::new(format_args!("look at {SYSTEM}"), errno.into()))?;
    let usable = Directory::system().map_err(|failure| unfit(failure.detail))?;
    let present = mounted.f_blocks.saturating_mul(mounted.f_frsize);
    let wanted = size.map_or(present, Size::bytes);
    if usable.is_some() && wanted == present {
        return Ok(Done::Already);
    }
    let data = CString::new(format!("size={wanted}")).unwrap_or_default();
    match mount_remount(path, flags(), &*data) {
        Ok(()) => Ok(Done::Resized),
        Err(rustix::io::Errno::INVAL) => Err(SetupError {
            doing: format!("make {SYSTEM} {wanted} bytes large"),
            why: "there is more in it, or it is no tmpfs".into(),
            denied: false,
        }),
        Err(errno) => Err(SetupError::new(format_args!("remount {SYSTEM}"), errno.into())),
    }
}

/// Checks that the machine has memory for a full store of this size.
fn check(size: Size) -> Result<(), SetupError> {
    let (wanted, memory) = (size.bytes(), total_memory());
    if wanted <= memory {
        return Ok(());
    }
    let (doing, why) = (
        format!("give {SYSTEM} {} MiB", mib(wanted)),
        format!("the machine has {} MiB of memory; fix: leave out --size (10%)", mib(memory)),
    );
    Err(SetupError { doing, why, denied: false })
}

/// Removes all images from the system's store and unmounts it. Returns whether it was mounted. Processes that map
/// an image keep it until they end.
///
/// # Errors
/// [`SetupError`]; the store is mounted, and some images may be gone.
///
/// # Kernel
/// Needs CAP_SYS_ADMIN.
pub fn unset() -> Result<bool, SetupError> {
    let unfit = |why| SetupError { doing: format!("unmount {SYSTEM}"), why, denied: false };
    let place = system_place().map_err(|failure| unfit(failure.detail))?;
    let Some((fd, _)) = place.filter(|(fd, stat)| is_mount(fd, stat)) else { return Ok(false) };
    let doing = format!("remove what is in {SYSTEM}");
    let unread = |errno: rustix::io::Errno| SetupError::new(&doing, errno.into());
    for file in rustix::fs::Dir::read_from(&fd).map_err(unread)? {
        let file = file.map_err(unread)?;
        if !matches!(file.file_name().to_bytes(), b"." | b"..") {
            let name = OsStr::from_bytes(file.file_name().to_bytes());
            files::remove(&fd, name).map_err(unread)?;
        }
    }
    drop(fd);
    // Mapped images keep their file system busy. Detached, the file system is out of reach at once, and ends with
    // the last mapping.
    unmount(SYSTEM, UnmountFlags::DETACH)
        .map_err(|errno| SetupError::new(format_args!("unmount {SYSTEM}"), errno.into()))?;
    Ok(true)
}

/// Makes the directory of the store, and the one above it, if they are missing.
fn make(path: &Path) -> Result<(), SetupError> {
    let rule = Rule { user: 0, trust: Trust::Own { sticky: false }, make: &[0o755, 0o755] };
    match trusted_directory::open(path, &rule) {
        Ok(_) => Ok(()),
        Err(Distrust { source: Some(errno), path: at, .. }) => {
            Err(SetupError::new(format_args!("make the directory {}", at.shown()), errno))
        }
        Err(distrust) => {
            let doing = format!("make the directory {}", path.shown());
            Err(SetupError { doing, why: distrust.to_string(), denied: false })
        }
    }
}

fn mount_new(path: &Path, size: Size) -> Result<Done, SetupError> {
    let try_options = |options: String| {
        let data = CString::new(options).unwrap_or_default();
        mount("tiexec", path, "tmpfs", flags(), Some(&*data))
    };
    let plain = format!("mode=0755,size={}", size.bytes());
    let mounted = match try_options(format!("{plain},huge=advise")) {
        Err(rustix::io::Errno::INVAL) => try_options(plain),
        result => result,
    };
    mounted
        .map(|()| Done::Mounted)
        .map_err(|errno| SetupError::new(format_args!("mount a tmpfs at {SYSTEM}"), errno.into()))
}

/// Returns a systemd mount unit that sets the store up at boot, for
/// `/etc/systemd/system/run-tiexec-images.mount`.
pub fn unit(size: Option<Size>) -> String {
    let huge = if Path::new(thp::DIRECTORY).exists() { ",huge=advise" } else { "" };
    let size = size.unwrap_or_default();
    format!(
        "[Unit]\n\
         Description=TiExec image store\n\
         Documentation=man:tiexecctl(8)\n\
         \n\
         [Mount]\n\
         What=tiexec\n\
         Where={SYSTEM}\n\
         Type=tmpfs\n\
         Options=mode=0755,nosuid,nodev,strictatime,size={size}{huge}\n\
         DirectoryMode=0755\n\
         \n\
         [Install]\n\
         WantedBy=local-fs.target\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_tmpfs_reads_them() {
        let size = |text: &str| text.parse::<Size>();
        assert_eq!(size("512M"), Ok(Size::Bytes(512 << 20)));
        assert_eq!(size("2g"), Ok(Size::Bytes(2 << 30)));
        assert_eq!(size("4096"), Ok(Size::Bytes(4096)));
        assert_eq!(size("10%"), Ok(Size::Percent(10)));
        for wrong in ["", "M", "0", "0%", "101%", "-1", "1.5G", "12X", "99999999999T", "1,mode=777"]
        {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_default_is_a_tenth_of_the_memory() {
        let tenth = Size::default().bytes();
        let all = Size::Percent(100).bytes();
        assert!(tenth * 10 <= all + 10 * rustix::param::page_size() as u64 && tenth * 11 > all);
    }
}
