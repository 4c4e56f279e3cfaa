//! Opens the file behind a mapping of a process that may be hostile.
//!
//! The process decides what it maps, where its files lie, what its paths lead to, and when that changes. These
//! rules follow:
//!
//! - TiExec takes the file from the mapping itself (`map_files`), and the mapping must still be the one that was
//!   examined. It uses the path only if the kernel refuses that.
//! - TiExec opens only files that are known to be regular. A file of a process of other credentials must also lie
//!   on a file system that answers by itself: a FUSE server may never answer, and a process that waits for it
//!   cannot even be killed.
//! - TiExec follows a path in the process's own root, through no link, and only in this process's own mount
//!   namespace. In another one the same path may lead elsewhere.

use std::fs::File;

use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_core::proc::mountinfo::{self, Mount};
use tiexec_core::skip::FailureKind;
use tiexec_sys::pagecache::FileMapping;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{self, Identity, PathFile};
use tiexec_sys::{Errno, Pid, SysError, procmap_query, thp};
use tiexec_tracee::Failure;

use crate::credentials;
use crate::file_systems::{LOCAL, OVERLAY, mounts_of};
use crate::target_file::TargetFile;
use crate::workers::Workers;

/// Opens the file that `vma` of `process` maps: in the reader, if `workers` has one.
///
/// # Errors
/// `changed`: the mapping is gone, or is another one. `foreign_filesystem`: the process is another user's, and
/// reading the file may never end. `file_gone`: the path leads to another file or to no file, or the file is not a
/// regular one.
pub(crate) fn open_mapped(
    process: &ProcDir,
    workers: &Workers,
    vma: &Vma,
) -> Result<TargetFile, Failure> {
    let file = by_mapping(process, vma)?;
    if let Some(known) = file.as_ref().and_then(|file| workers.known(file)) {
        return Ok(TargetFile::Apart(known));
    }
    let trusted = workers.trust(process);
    let file = match file {
        Some(file) => {
            if !trusted {
                must_be_local_by(process, Some(&file), vma)?;
            }
            must_be_regular(&file, vma)?;
            file
        }
        None => by_path(process, workers, vma, trusted)?,
    };
    match workers.open(&file)? {
        Some(opened) => Ok(TargetFile::Apart(opened)),
        None => file.open().map(TargetFile::Here).map_err(gone(vma)),
    }
}

/// Opens the program that a process executes. Applies the same rules as `open_mapped`.
///
/// # Errors
/// `foreign_filesystem`; `target_gone`; `ptrace_denied`; `file_gone`.
pub fn open_exe(process: &ProcDir) -> Result<File, Failure> {
    let file = PathFile::of_process(process, "exe").map_err(Failure::unreadable)?;
    if !credentials::are_ours(process) {
        let id = reopen::mount_id(&file);
        must_be_local(process, |mount| Some(mount.id) == id, "its program")?;
    }
    if !file.identity().is_ok_and(|identity| identity.regular) {
        return Err(Failure::new(FailureKind::FileGone, "its program is not a regular file"));
    }
    file.open().map_err(Failure::of(FailureKind::FileGone))
}

/// Opens a handle of the file through the mapping; `None` if the kernel does not permit that.
fn by_mapping(process: &ProcDir, vma: &Vma) -> Result<Option<PathFile>, Failure> {
    let (start, end) = (vma.range.start().get(), vma.range.end().get());
    let link = format!("map_files/{start:x}-{end:x}");
    let file = PathFile::of_process(process, &link);
    if let Err(SysError { errno: Errno::PERM | Errno::ACCES, .. }) = file {
        return Ok(None);
    }
    // The mapping may have become another one since it was examined, and its link then leads to another file. On most file
    // systems the file itself tells that.
    let is_that_of = |identity: Identity| {
        identity.device == (vma.file.major, vma.file.minor) && identity.inode == vma.file.inode
    };
    let file = match file {
        Ok(file) if file.identity().is_ok_and(is_that_of) => return Ok(Some(file)),
        other => other,
    };
    let maps = process.open_file("maps", false).map_err(Failure::unreadable)?;
    match procmap_query::first_changed(&maps, &[vma]).map_err(Failure::unreadable)? {
        None => file.map(Some).map_err(gone(vma)),
        Some(_) => Err(Failure::mapped_otherwise(vma)),
    }
}

fn by_path(
    process: &ProcDir,
    workers: &Workers,
    vma: &Vma,
    trusted: bool,
) -> Result<PathFile, Failure> {
    let refused = |what: &str| {
        let what = format!("{}: {what}", vma.path().shown());
        Failure::new(FailureKind::FileGone, what)
    };
    if !workers.share_mounts(process) {
        return Err(refused(
            "the process is in another mount namespace, and only root of the machine may take a file from its mapping",
        ));
    }
    if !trusted {
        let status = process.status().unwrap_or_default();
        if status.credentials.uids.contains(&0) {
            return Err(refused("a process of uid 0 may have any file of root's at this path"));
        }
        must_be_local_by(process, None, vma)?;
    }
    let path = vma.path();
    let file = PathFile::in_root_of(process, path).map_err(gone(vma))?;
    let now = must_be_regular(&file, vma)?;
    if now.inode != vma.file.inode {
        return Err(refused("is another file by now"));
    }
    if now.device != (vma.file.major, vma.file.minor) && !is_mapped_as(&file, vma.file) {
        return Err(refused("is a file of another device by now"));
    }
    Ok(file)
}

/// Returns whether maps shows a mapping of the file with this identity. For btrfs and overlayfs, statx shows other
/// device numbers than maps.
fn is_mapped_as(file: &PathFile, id: FileId) -> bool {
    let Some(pages) = thp::pages() else { return false };
    let Ok(opened) = file.open() else { return false };
    let Ok(mapping) = FileMapping::new(&opened, 0..pages.pmd.bytes(), pages.pmd) else {
        return false;
    };
    let maps = ProcDir::this_process().and_then(|this| this.open_file("maps", false));
    let shown = maps.and_then(|maps| procmap_query::mapping_at(&maps, mapping.start()));
    shown.is_ok_and(|shown| shown.is_some_and(|shown| shown.file == id))
}

fn must_be_regular(file: &PathFile, vma: &Vma) -> Result<Identity, Failure> {
    let identity = file.identity().map_err(gone(vma))?;
    let odd = || format!("{}: is not a regular file", vma.path().shown());
    if identity.regular { Ok(identity) } else { Err(Failure::new(FailureKind::FileGone, odd())) }
}

/// Makes sure that reading the memory of a process of other credentials waits for nobody: checks each file that the
/// process maps, as [`open_mapped`] checks one.
///
/// # Errors
/// `foreign_filesystem`; `changed`.
pub(crate) fn must_all_be_local(process: &ProcDir, vmas: &[Vma]) -> Result<(), Failure> {
    let mut seen: Vec<FileId> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.is_file_backed()) {
        if !seen.contains(&vma.file) {
            seen.push(vma.file);
            must_be_local_by(process, by_mapping(process, vma)?.as_ref(), vma)?;
        }
    }
    Ok(())
}

/// As [`must_be_local`], by the mount on which the file lies. Without `file`, by the device that maps shows.
fn must_be_local_by(process: &ProcDir, file: Option<&PathFile>, vma: &Vma) -> Result<(), Failure> {
    let name = vma.path().shown().to_string();
    match file {
        Some(file) => {
            let id = reopen::mount_id(file);
            must_be_local(process, |mount| Some(mount.id) == id, &name)
        }
        None => {
            let device = (vma.file.major, vma.file.minor);
            must_be_local(process, |mount| mount.device == device, &name)
        }
    }
}

/// Makes sure that reading the file waits for no server that the process could have chosen. Its file system must be
/// one of [`LOCAL`], or an overlay of such file systems that no ordinary user mounted.
fn must_be_local(
    process: &ProcDir,
    is_its: impl Fn(&Mount<'_>) -> bool,
    name: &str,
) -> Result<(), Failure> {
    let own = ProcDir::this_process().and_then(|this| mounts_of(&this));
    let own = own.unwrap_or_default();
    let own_mounts = mountinfo::parse(&own);
    let mut theirs = Vec::new();
    let is_known = own_mounts.iter().any(&is_its);
    if !is_known {
        theirs = mounts_of(process).map_err(Failure::unreadable)?;
    }
    let their_mounts = mountinfo::parse(&theirs);
    let Some(mount) = own_mounts.iter().chain(&their_mounts).find(|mount| is_its(mount)) else {
        return Err(foreign(name, b"a file system that is not mounted where the process sees it"));
    };
    let is_local = if mount.kind != OVERLAY {
        LOCAL.contains(&mount.kind)
    } else {
        // A user can mount an overlay in namespaces of its own, over a file system of its own.
        (is_known || mounted_by_us(process)) && has_local_layers(mount, &own_mounts)
    };
    if is_local { Ok(()) } else { Err(foreign(name, mount.kind)) }
}

/// Returns whether all layers of an overlay lie on file systems of [`LOCAL`].
///
/// The mount options name the layers by paths that are valid where the overlay was mounted. In another mount
/// namespace the same paths may lead elsewhere. TiExec therefore resolves them only in a namespace that has this
/// very overlay: process 1's, where container runtimes mount overlays, or else this process's own.
///
/// Process 1 is not believed about its own root. If that is an overlay, somebody outside mounted it. Otherwise root
/// in a container, which is process 1 there, could gain something by a volume at the path of a layer.
fn has_local_layers(overlay: &Mount<'_>, own_mounts: &[Mount<'_>]) -> bool {
    let of_init = mounts_of_init().unwrap_or_default();
    let of_init = mountinfo::parse(&of_init);
    let is_it = |mount: &Mount<'_>| mount.kind == OVERLAY && mount.device == overlay.device;
    let mounts: &[Mount<'_>] =
        if of_init.iter().any(|mount| is_it(mount) && mount.mount_point != b"/") {
            &of_init
        } else if own_mounts.iter().any(is_it) {
            own_mounts
        } else {
            return false;
        };
    mountinfo::overlay_layers(overlay.options).is_some_and(|layers| {
        layers.iter().all(|layer| {
            let mount = mountinfo::of_path(mounts, layer);
            mount.is_some_and(|mount| LOCAL.contains(&mount.kind))
        })
    })
}

/// Returns the mountinfo of process 1, if only root can have made these mounts.
///
/// In another PID namespace, process 1 may be any user's program. It must therefore be root, and be in this
/// process's own user namespace, to which its mount namespace must belong. Any other process could enter a user
/// namespace and choose, by chroot(2), the directory to which all paths in its mountinfo are relative.
fn mounts_of_init() -> Option<Vec<u8>> {
    let (this, init) = (ProcDir::this_process().ok()?, ProcDir::of(Pid::INIT).ok()?);
    let is_same = |name| Some(this.namespace(name).ok()? == init.namespace(name).ok()?);
    let uids = init.status().ok()?.credentials.uids;
    let is_root = !uids.is_empty() && uids.iter().all(|&uid| uid == 0);
    let is_believed = is_same("ns/user")? && is_root && mounted_by_us(&init);
    is_believed.then(|| mounts_of(&init).ok())?
}

/// Returns whether the mounts that the process sees can come only from holders of rights in this process's own user
/// namespace.
fn mounted_by_us(process: &ProcDir) -> bool {
    let own = ProcDir::this_process().and_then(|this| this.namespace("ns/user")).ok();
    own.is_some() && reopen::owner_of_mounts(process).ok().flatten() == own
}

fn gone(vma: &Vma) -> impl FnOnce(SysError) -> Failure {
    move |error| Failure::of(FailureKind::FileGone)(error).about(vma.path().shown())
}

fn foreign(name: &str, kind: &[u8]) -> Failure {
    let kind = String::from_utf8_lossy(kind);
    let what = format!("{name} lies on {kind}, and the process is another user's");
    Failure::new(FailureKind::ForeignFilesystem, what)
}
