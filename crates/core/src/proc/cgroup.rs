//! `/proc/PID/cgroup` and `/proc/PID/mountinfo`: where a process's memory cgroup is to be read.

use super::{lines, number};

/// Where the files of a process's memory cgroup are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryCgroup {
    /// Where the hierarchy is mounted.
    pub mount: Vec<u8>,
    /// The process's own directory below `mount`, without a leading slash; empty at the top.
    pub below: Vec<u8>,
    /// Whether this is cgroup v2 (`memory.max`), else v1 (`memory.limit_in_bytes`).
    pub unified: bool,
}

/// Finds the memory cgroup of the process whose `cgroup` and `mountinfo` these are.
///
/// Returns `None` where no hierarchy with the memory controller is mounted here: there is nothing
/// to check then. For v2 the mount may still lack the controller; its files are then missing.
pub fn memory_cgroup(cgroup: &[u8], mountinfo: &[u8]) -> Option<MemoryCgroup> {
    let mut v1 = None;
    let mut v2 = None;
    for (_, line) in lines(cgroup) {
        // "4:memory:/path" or "0::/path"
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.split(|&byte| byte == b',').any(|name| name == b"memory") {
            v1 = Some(path);
        } else if number(id, 10) == Some(0) && controllers.is_empty() {
            v2 = Some(path);
        }
    }
    let (path, unified) = v1.map(|path| (path, false)).or(v2.map(|path| (path, true)))?;
    lines(mountinfo).find_map(|(_, line)| {
        // "36 35 0:30 ROOT MOUNT opts [tags] - TYPE SOURCE super-options"
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = words.iter().position(|&word| word == b"-")?;
        let (root, mount) = (*words.get(3)?, *words.get(4)?);
        let (kind, options) = (*words.get(dash + 1)?, *words.get(dash + 3)?);
        let fits = if unified {
            kind == b"cgroup2"
        } else {
            kind == b"cgroup" && options.split(|&byte| byte == b',').any(|name| name == b"memory")
        };
        if !fits {
            return None;
        }
        // In a container the hierarchy's root here is the container's own cgroup: strip it, and
        // fall back to the mount's top where the path lies outside (a cgroup namespace).
        let root = unescape(root);
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        // "/docker/x" is no parent of "/docker/xy".
        let below = path.strip_prefix(root).filter(|rest| rest.is_empty() || rest[0] == b'/');
        let below = below.unwrap_or_default();
        Some(MemoryCgroup {
            mount: unescape(mount),
            below: below.strip_prefix(b"/").unwrap_or(below).to_vec(),
            unified,
        })
    })
}

/// Returns the systemd unit that the process belongs to: the last part of its cgroup path that
/// ends in `.service` or `.scope`.
pub fn unit(cgroup: &[u8]) -> Option<String> {
    lines(cgroup).find_map(|(_, line)| {
        // A unit's name may hold colons: only the first two are the kernel's.
        let path = line.splitn(3, |&byte| byte == b':').nth(2)?;
        let part = path
            .rsplit(|&byte| byte == b'/')
            .find(|part| part.ends_with(b".service") || part.ends_with(b".scope"))?;
        Some(String::from_utf8_lossy(part).into_owned())
    })
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
    fn v2_in_a_container_is_relative_to_the_mounts_root() {
        let mounts = b"32 29 0:28 /docker/x /sys/fs/cgroup ro shared:4 - cgroup2 cgroup rw\n";
        let found = memory_cgroup(b"0::/docker/x/app\n", mounts).unwrap();
        assert_eq!((&found.below[..], found.unified), (&b"app"[..], true));
        let outside = memory_cgroup(b"0::/\n", mounts).unwrap();
        assert_eq!(outside.below, b"");
        assert_eq!(memory_cgroup(b"0::/\n", b"garbage\n"), None);
        assert_eq!(memory_cgroup(b"\xff::\n4:memory\n", mounts), None);
    }

    #[test]
    fn unit_is_the_innermost_one() {
        let user = b"0::/user.slice/user@1000.service/app.slice/run-4.scope/x\n";
        assert_eq!(unit(user).as_deref(), Some("run-4.scope"));
        assert_eq!(
            unit(b"1:name=systemd:/system.slice/mysql.service\n").as_deref(),
            Some("mysql.service")
        );
        assert_eq!(unit(b"0::/\n"), None);
    }
}
