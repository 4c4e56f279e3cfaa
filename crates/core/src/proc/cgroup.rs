//! `/proc/PID/cgroup` and `/proc/PID/mountinfo`: the files of a process's cgroup of memory or of processor time, and
//! the units that the process belongs to.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{lines, mountinfo, number};
use crate::order;

/// The place of the files of a process's cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupFiles {
    /// Its path, as `/proc/PID/cgroup` shows it.
    pub path: Vec<u8>,
    /// The mount point of the hierarchy.
    pub mount: Vec<u8>,
    /// The process's own directory below `mount`, without a leading slash; empty at the top.
    pub below: Vec<u8>,
    /// True if the cgroup lies outside of the mount; then `mount` is the best substitute.
    pub outside: bool,
    /// True for cgroup v2 (such as `memory.max`), false for v1 (`memory.limit_in_bytes`).
    pub unified: bool,
}

impl CgroupFiles {
    /// Returns the cgroup's own directory and those above it, up to the mount.
    pub fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let mount = Path::new(OsStr::from_bytes(&self.mount));
        let below = Path::new(OsStr::from_bytes(&self.below));
        below.ancestors().map(move |part| mount.join(part))
    }
}

/// Finds the memory cgroup of the process whose `cgroup` and `mountinfo` these are.
///
/// Returns `None` where no hierarchy with the memory controller is mounted here: there is nothing
/// to check then. For v2 the mount may still lack the controller; its files are then missing.
pub fn memory_cgroup(cgroup: &[u8], mountinfo: &[u8]) -> Option<CgroupFiles> {
    cgroup_with(b"memory", cgroup, mountinfo)
}

/// Finds the cgroup that counts the processor time of the process (`cpuacct.usage`, or `cpu.stat` of v2).
pub fn cpu_cgroup(cgroup: &[u8], mountinfo: &[u8]) -> Option<CgroupFiles> {
    cgroup_with(b"cpuacct", cgroup, mountinfo)
}

/// Finds the cgroup that limits the number of the process's processes (`pids.max`).
pub fn pids_cgroup(cgroup: &[u8], mountinfo: &[u8]) -> Option<CgroupFiles> {
    cgroup_with(b"pids", cgroup, mountinfo)
}

fn cgroup_with(controller: &[u8], cgroup: &[u8], mountinfo: &[u8]) -> Option<CgroupFiles> {
    let has_it = |names: &[u8]| names.split(|&byte| byte == b',').any(|name| name == controller);
    let v1 = paths(cgroup).find(|(controllers, _)| has_it(controllers));
    let unified = v1.is_none();
    let path = v1.map(|(_, path)| path).or_else(|| path_in(cgroup, b""))?;
    let kind: &[u8] = if unified { b"cgroup2" } else { b"cgroup" };
    let mounts = mountinfo::parse(mountinfo);
    let mut fits: Vec<_> = mounts
        .iter()
        .filter(|mount| mount.kind == kind && (unified || has_it(mount.options)))
        .map(|mount| (mount, below(path, mount.root)))
        .collect();
    // A container may have the machine's whole hierarchy mounted besides its own part.
    order::by_key(&mut fits, |(_, below)| below.is_none());
    let (mount, below) = fits.into_iter().next()?;
    Some(CgroupFiles {
        path: path.to_vec(),
        mount: unescape(mount.mount_point),
        outside: below.is_none(),
        below: below.unwrap_or_default(),
        unified,
    })
}

/// Returns where a cgroup is below a mount of its hierarchy, whose top is the cgroup `root`; `None` outside of it. Outside of
/// the reader's cgroup namespace a path begins with `/..`, which leads nowhere below the mount.
fn below(path: &[u8], root: &[u8]) -> Option<Vec<u8>> {
    let root = unescape(root);
    let root = root.strip_suffix(b"/").unwrap_or(&root);
    // "/docker/x" is not a parent of "/docker/xy".
    let below = path.strip_prefix(root).filter(|rest| rest.is_empty() || rest[0] == b'/')?;
    let below = below.strip_prefix(b"/").unwrap_or(below);
    let is_above = below.split(|&byte| byte == b'/').any(|part| part == b"..");
    (!is_above).then(|| below.to_vec())
}

/// The systemd units that a process belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Units {
    /// The unit of the system's manager.
    pub system: String,
    /// The unit of a user's own manager, which runs in `user@UID.service`.
    pub user: Option<UserUnit>,
}

/// A unit of a user's manager. The user chooses the name, which may also be that of a system unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserUnit {
    /// The user's id.
    pub uid: u32,
    /// The unit.
    pub name: String,
}

impl Units {
    /// Returns the service that the process belongs to, and whether it is one of this user's own manager; `None` if the
    /// innermost unit is not a service, or belongs to the manager of another user.
    pub fn service_for(&self, uid: u32) -> Option<(&str, bool)> {
        let (name, is_own) = match &self.user {
            None => (&self.system, false),
            Some(unit) if unit.uid == uid => (&unit.name, true),
            Some(_) => return None,
        };
        name.ends_with(".service").then_some((name, is_own))
    }
}

impl std::fmt::Display for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.system)?;
        self.user.as_ref().map_or(Ok(()), |unit| write!(f, "/{}", unit.name))
    }
}

/// Returns the units of the process whose `cgroup` this is; `of_init` is that of PID 1.
///
/// The place in the tree decides, not the name: below slices, the first cgroup is a unit of the system's manager. All
/// below that belongs to the unit, and the process to which it was delegated names it (systemd: `cg_path_get_unit`,
/// `cg_path_get_user_unit` in `src/basic/cgroup-util.c`).
pub fn units(cgroup: &[u8], of_init: &[u8]) -> Option<Units> {
    // Take systemd's own hierarchy, if there is one in use.
    ["name=systemd", ""].iter().find_map(|hierarchy| {
        let path = path_in(cgroup, hierarchy.as_bytes())?;
        let init = path_in(of_init, hierarchy.as_bytes()).unwrap_or_default();
        // In a container the manager's root may differ from the hierarchy's root.
        let own = [&b"/init.scope"[..], b"/system.slice", b"/system"];
        let root = own.iter().find_map(|own| init.strip_suffix(*own)).unwrap_or(init);
        let root = root.strip_suffix(b"/").unwrap_or(root);
        let below = path.strip_prefix(root).filter(|rest| rest.starts_with(b"/"))?;
        units_below(below)
    })
}

/// Returns the process's path in the hierarchy of systemd's manager: cgroup v2, or systemd's own hierarchy if that is
/// in use.
pub fn path(cgroup: &[u8]) -> Option<&[u8]> {
    let own = path_in(cgroup, b"name=systemd").filter(|path| *path != b"/");
    own.or_else(|| path_in(cgroup, b""))
}

/// Returns the unit in whose own cgroup the process is, if that is a service. A service may delegate cgroups below its own;
/// a process in one of these is not in the service's own.
pub fn own_service(cgroup: &[u8]) -> Option<&[u8]> {
    let leaf = path(cgroup)?.rsplit(|&byte| byte == b'/').next()?;
    let unit = leaf.strip_prefix(b"_").unwrap_or(leaf);
    (unit.len() > b".service".len() && unit.ends_with(b".service")).then_some(unit)
}

/// Returns whether the process whose `cgroup` this is is a user's own systemd: the manager of `user@UID.service` runs in a
/// scope below that unit.
pub fn is_users_manager(cgroup: &[u8]) -> bool {
    let mut parts = path(cgroup).unwrap_or_default().rsplit(|&byte| byte == b'/');
    let is_its = |unit: &[u8]| unit.starts_with(b"user@") && unit.ends_with(b".service");
    parts.next() == Some(b"init.scope") && parts.next().is_some_and(is_its)
}

/// Returns the UID of the Kubernetes pod to which the process whose `cgroup` this is belongs.
///
/// The kubelet names a pod's cgroup `podUID` (driver cgroupfs) or `kubepods-QOS-podUID.slice` (driver systemd, which
/// has underscores for the dashes). The runtime's own cgroups lie below, or behind a colon if containerd does not know
/// of systemd. The first such name from the top decides. Below a container, and below `user.slice`, any process may
/// choose the names of cgroups, so no name counts there. All hierarchies must agree.
pub fn pod(cgroup: &[u8]) -> Option<String> {
    let mut found = paths(cgroup).filter_map(|(_, path)| pod_in(path));
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

fn pod_in(path: &[u8]) -> Option<String> {
    let is_id = |part: &[u8]| part.len() == 64 && part.iter().all(u8::is_ascii_hexdigit);
    let is_others = |part: &[u8]| part == b"user.slice" || part.ends_with(b".scope") || is_id(part);
    let mut parts = path.split(|&byte| byte == b'/').take_while(|part| !is_others(part));
    parts.find_map(|part| {
        let name = part.split(|&byte| byte == b':').next()?;
        let name = name.strip_suffix(b".slice").unwrap_or(name);
        let (before, uid) = name.split_at_checked(name.len().checked_sub(36)?)?;
        let uid = std::str::from_utf8(uid).ok()?.replace('_', "-");
        let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
        let fits = |(at, byte): (usize, u8)| match byte {
            b'-' => is_dash(at),
            byte => byte.is_ascii_hexdigit() && !is_dash(at),
        };
        let named = before == b"pod" || before.ends_with(b"-pod");
        (named && uid.bytes().enumerate().all(fits)).then_some(uid)
    })
}

/// Returns the process's path in the hierarchy that has exactly these named controllers.
fn path_in<'a>(cgroup: &'a [u8], controllers: &[u8]) -> Option<&'a [u8]> {
    paths(cgroup).find_map(|(named, path)| (named == controllers).then_some(path))
}

/// Splits each line, such as `4:memory:/path` or `0::/path`: the controllers of a hierarchy, and the process's path in it.
fn paths(cgroup: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines(cgroup).filter_map(|(_, line)| {
        // A unit's name may hold colons; only the first two colons are the kernel's.
        let mut fields = line.splitn(3, |&byte| byte == b':');
        number(fields.next()?, 10)?;
        Some((fields.next()?, fields.next()?))
    })
}

fn units_below(path: &[u8]) -> Option<Units> {
    let is_slice = |part: &&[u8]| part.ends_with(b".slice");
    let is_unit = |part: &&[u8]| {
        let kinds = [&b".service"[..], b".scope", b".socket", b".mount", b".swap"];
        kinds.iter().any(|kind| part.len() > kind.len() && part.ends_with(kind))
    };
    // A name that would equal the name of a kernel file has an underscore before it.
    let name =
        |part: &[u8]| String::from_utf8_lossy(part.strip_prefix(b"_").unwrap_or(part)).into_owned();
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let mut parts = parts.skip_while(is_slice);
    let system = parts.next().filter(is_unit).map(name)?;
    let uid = system.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service"));
    let user = uid.and_then(|uid| {
        let name = parts.find(|part| !is_slice(part)).filter(is_unit).map(name)?;
        Some(UserUnit { uid: uid.parse().ok()?, name })
    });
    Some(Units { system, user })
}

/// Undoes mountinfo's octal escapes (`\040` for a blank).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let code = (text[at] == b'\\')
            .then(|| text.get(at + 1..at + 4).and_then(|digits| number(digits, 8)))
            .flatten()
            .and_then(|value| u8::try_from(value).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_wins_where_it_has_the_controller() {
        let found = memory_cgroup(
            b"4:memory:/a/b\n3:cpuset:/\n0::/u\n",
            b"30 29 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
              31 29 0:27 / /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory\n\
              32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert_eq!(found.mount, b"/sys/fs/cgroup/my memory");
        assert_eq!(found.below, b"a/b");
        assert!(!found.unified);
    }

    #[test]
    fn processor_time_has_a_hierarchy_of_its_own() {
        let mounts = b"30 29 0:26 / /c rw - cgroup cgroup rw,cpu,cpuacct\n\
              31 29 0:27 / /m rw - cgroup cgroup rw,memory\n32 29 0:28 / /u rw - cgroup2 cgroup2 rw\n";
        let found = cpu_cgroup(b"4:memory:/a\n3:cpu,cpuacct:/b\n0::/u\n", mounts).unwrap();
        assert_eq!(
            (&found.mount[..], &found.below[..], found.unified),
            (&b"/c"[..], &b"b"[..], false)
        );
        let found = cpu_cgroup(b"4:memory:/a\n0::/x/y\n", mounts).unwrap();
        assert_eq!(
            (&found.mount[..], &found.below[..], found.unified),
            (&b"/u"[..], &b"x/y"[..], true)
        );
    }

    #[test]
    fn v2_in_a_container_is_relative_to_the_mounts_root() {
        let mounts = b"32 29 0:28 /docker/x /sys/fs/cgroup ro shared:4 - cgroup2 cgroup rw\n";
        let found = memory_cgroup(b"0::/docker/x/app\n", mounts).unwrap();
        assert_eq!((&found.below[..], found.unified), (&b"app"[..], true));
        assert!(!memory_cgroup(b"0::/docker/x/app\n", mounts).unwrap().outside);
        let outside = memory_cgroup(b"0::/\n", mounts).unwrap();
        assert_eq!((&outside.below[..], outside.outside), (&b""[..], true));
        assert_eq!(memory_cgroup(b"0::/\n", b"garbage\n"), None);
        assert_eq!(memory_cgroup(b"\xff::\n4:memory\n", mounts), None);
    }

    #[test]
    fn the_machines_hierarchy_is_found_beside_a_containers_own() {
        let own = "40 29 0:28 /kubepods/pod1/a /own ro - cgroup2 cgroup rw\n";
        let whole = "41 29 0:28 / /whole rw - cgroup2 cgroup rw\n";
        let other = b"0::/kubepods/pod2/b\n";
        let found = memory_cgroup(other, format!("{own}{whole}").as_bytes()).unwrap();
        assert_eq!((&found.mount[..], found.outside), (&b"/whole"[..], false));
        assert_eq!(found.below, b"kubepods/pod2/b");
        assert!(memory_cgroup(other, own.as_bytes()).unwrap().outside);
        // In a cgroup namespace of its own, no path of another container leads anywhere.
        for root in ["/", "/../../.."] {
            let mounts = format!("40 29 0:28 {root} /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
            let found = memory_cgroup(b"0::/../../pod2/b\n", mounts.as_bytes()).unwrap();
            assert!(found.outside && found.below.is_empty(), "{root}: {found:?}");
        }
    }

    fn shown(cgroup: &str, of_init: &str) -> Option<String> {
        units(cgroup.as_bytes(), of_init.as_bytes()).map(|units| units.to_string())
    }

    #[test]
    fn a_pod_is_found_in_all_layouts() {
        let uid = "0a1b2c3d-4e5f-6789-abcd-ef0123456789";
        let low = uid.replace('-', "_");
        let id = "c".repeat(64);
        for path in [
            // The driver cgroupfs: all three classes of service, containerd and CRI-O.
            format!("/kubepods/pod{uid}/{id}"),
            format!("/kubepods/burstable/pod{uid}/{id}"),
            format!("/kubepods/besteffort/pod{uid}/crio-{id}"),
            // The driver systemd.
            format!("/kubepods.slice/kubepods-pod{low}.slice/cri-containerd-{id}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{low}.slice/crio-{id}.scope"
            ),
            format!(
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{low}.slice/docker-{id}.scope/init"
            ),
            format!("/system.slice/containerd.service/kubepods-pod{low}.slice:cri-containerd:{id}"),
            // kind, in a container itself.
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{low}.slice/cri-containerd-{id}.scope"
            ),
            // From inside a cgroup namespace.
            format!("/../../pod{uid}/{id}"),
            format!("/../../kubepods-burstable-pod{low}.slice/cri-containerd-{id}.scope"),
            // A container chooses the names below its own cgroup.
            format!("/kubepods/pod{uid}/{id}/pod11111111-2222-3333-4444-555555555555"),
        ] {
            for text in [format!("0::{path}\n"), format!("4:memory:{path}\n3:cpuset:/\n0::/\n")] {
                assert_eq!(pod(text.as_bytes()).as_deref(), Some(uid), "{text}");
            }
        }
        for path in [
            "/".to_owned(),
            "/kubepods/burstable".to_owned(),
            format!("/system.slice/docker-{id}.scope"),
            format!("/machine.slice/libpod-{id}.scope"),
            // A container of another runtime may choose the names below its own cgroup.
            format!("/system.slice/docker-{id}.scope/kubepods/pod{uid}/{id}"),
            format!("/docker/{id}/pod{uid}"),
            format!("/kubepods/pod{}/x", &uid[1..]),
            format!("/kubepods/pod{}z/x", &uid[1..]),
            format!("/kubepods/xpod{uid}/x"),
            format!("/user.slice/user-7.slice/user@7.service/kubepods/pod{uid}/x"),
        ] {
            assert_eq!(pod(format!("0::{path}\n").as_bytes()), None, "{path}");
        }
        let two = format!("4:memory:/pod{uid}/x\n0::/pod11111111-2222-3333-4444-555555555555/x\n");
        assert_eq!(pod(two.as_bytes()), None);
    }

    #[test]
    fn the_place_tells_whose_unit_it_is() {
        let of = |path: &str| shown(&format!("0::{path}\n"), "0::/init.scope\n");
        let is = |path: &str, unit: &str| assert_eq!(of(path).as_deref(), Some(unit), "{path}");
        is("/system.slice/mysqld.service", "mysqld.service");
        is("/system.slice/system-pg.slice/pg@a:b.service/inner", "pg@a:b.service");
        is("/init.scope", "init.scope");
        is("/system.slice/_memory.service", "memory.service");
        is("/user.slice/user-7.slice/session-3.scope/mysqld.service", "session-3.scope");
        let own = "/user.slice/user-7.slice/user@7.service";
        is(&format!("{own}/app.slice/mysqld.service"), "user@7.service/mysqld.service");
        is(&format!("{own}/system.slice/mysqld.service/x"), "user@7.service/mysqld.service");
        is(&format!("{own}/mysqld.service"), "user@7.service/mysqld.service");
        is(&format!("{own}/x/mysqld.service"), "user@7.service");
        is("/system.slice/docker-1.scope/system.slice/mysqld.service", "docker-1.scope");
        is("/system.slice/a.service/user@7.service/mysqld.service", "a.service");
        for none in ["/", "/x/mysqld.service", "/system.slice", "/.service", "/../mysqld.service"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn the_managers_root_is_where_its_own_process_is() {
        let path = "0::/docker/x/system.slice/mysqld.service\n";
        assert_eq!(shown(path, "0::/init.scope\n"), None);
        let inside = Some("mysqld.service".to_owned());
        assert_eq!(shown(path, "0::/docker/x/init.scope\n"), inside);
        assert_eq!(shown(path, "0::/docker/x\n"), inside);
        assert_eq!(shown(path, "0::/docker/xy\n"), None);
        assert_eq!(shown("0::/docker/xy/a.service\n", "0::/docker/x\n"), None);
        assert_eq!(shown("0::/a.service\n", ""), Some("a.service".to_owned()));
    }

    #[test]
    fn the_path_is_that_of_the_managers_hierarchy() {
        assert_eq!(path(b"4:memory:/c\n0::/a/b\n"), Some(&b"/a/b"[..]));
        assert_eq!(path(b"1:name=systemd:/d\n0::/a\n"), Some(&b"/d"[..]));
        assert_eq!(path(b"1:name=systemd:/\n0::/a\n"), Some(&b"/a"[..]));
        assert_eq!(path(b"4:memory:/c\n"), None);
    }

    #[test]
    fn a_users_manager_is_known_by_its_scope() {
        let user = "/user.slice/user-7.slice/user@7.service";
        for (path, is_one) in [
            (format!("{user}/init.scope"), true),
            (format!("{user}/app.slice/app-1.scope"), false),
            (format!("{user}/app.slice/init.scope"), false),
            ("/init.scope".to_owned(), false),
            ("/system.slice/web.service".to_owned(), false),
        ] {
            assert_eq!(is_users_manager(format!("0::{path}\n").as_bytes()), is_one, "{path}");
        }
        assert!(!is_users_manager(b""));
    }

    #[test]
    fn systemds_own_hierarchy_comes_first_where_it_is_in_use() {
        let of = |text: &str| shown(text, "1:name=systemd:/\n0::/\n");
        let unit = Some("a.service".to_owned());
        assert_eq!(of("4:memory:/c.service\n1:name=systemd:/a.service\n0::/b.service\n"), unit);
        assert_eq!(of("1:name=systemd:/\n0::/a.service\n"), unit);
        assert_eq!(of("4:memory:/c.service\n"), None);
    }
}
