//! `/proc/PID/mountinfo`: one line per mount (proc_pid_mountinfo(5), `fs/proc_namespace.c` `show_mountinfo`).

use super::{lines, number};

/// One mount: the fields that show which file system a file lies on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount<'a> {
    /// Its number, unique among all mounts of the machine.
    pub id: u64,
    /// Device numbers of the file system, as `maps` shows those of its files.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted, still escaped.
    pub root: &'a [u8],
    /// Its mount point, still escaped.
    pub mount_point: &'a [u8],
    /// Its type, such as `ext4` or `fuse.sshfs`.
    pub kind: &'a [u8],
    /// The options of the file system itself, still escaped.
    pub options: &'a [u8],
    /// True if the mount shows other owners than the file system has (mount_setattr(2), `MOUNT_ATTR_IDMAP`).
    pub is_idmapped: bool,
}

/// Parses all mounts. Skips lines that do not have the form of the manual.
pub fn parse(text: &[u8]) -> Vec<Mount<'_>> {
    lines(text).filter_map(|(_, line)| parse_line(line)).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount<'_>> {
    let mut words = line.split(|&byte| byte == b' ');
    let id = number(words.next()?, 10)?;
    let device = words.by_ref().nth(1)?;
    let root = words.next()?;
    let mount_point = words.next()?;
    // Blanks in names are escaped.
    let own_options = words.next()?;
    let is_idmapped = own_options.split(|&byte| byte == b',').any(|option| option == b"idmapped");
    // Optional fields end with a hyphen.
    words.by_ref().find(|word| *word == b"-")?;
    let kind = words.next()?;
    let options = words.nth(1).unwrap_or_default();
    let colon = device.iter().position(|&byte| byte == b':')?;
    let small = |digits| number(digits, 10).and_then(|value| u32::try_from(value).ok());
    let device = (small(&device[..colon])?, small(&device[colon + 1..])?);
    Some(Mount { id, device, root, mount_point, kind, options, is_idmapped })
}

/// Returns the directories, lower and upper, that an overlay lies over, from its options; `None` if there are
/// none, or if the options do not give the whole path of one.
pub fn overlay_layers<'a>(options: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut layers: Vec<&'a [u8]> = Vec::new();
    for option in options.split(|&byte| byte == b',') {
        let Some(equals) = option.iter().position(|&byte| byte == b'=') else { continue };
        let value = &option[equals + 1..];
        match &option[..equals] {
            // A backslash escapes a colon or a comma in a name, and mountinfo shows the backslash as \134.
            // Such a path is split wrongly here, but `whole` rejects its first piece, which holds the
            // backslash.
            b"lowerdir" => {
                layers.extend(value.split(|&byte| byte == b':').filter(|path| !path.is_empty()))
            }
            b"upperdir" | b"lowerdir+" | b"datadir+" => layers.push(value),
            _ => {}
        }
    }
    let whole = |path: &&[u8]| path.starts_with(b"/") && !path.contains(&b'\\');
    (!layers.is_empty() && layers.iter().all(whole)).then_some(layers)
}

/// Returns the mount that a path lies on, by its longest mount point. If several mounts have one mount point,
/// the last covers the others.
pub fn of_path<'m, 'a>(mounts: &'m [Mount<'a>], path: &[u8]) -> Option<&'m Mount<'a>> {
    let holds = |mount: &&Mount<'_>| {
        let at = mount.mount_point;
        at == b"/"
            || path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    mounts.iter().filter(holds).max_by_key(|mount| mount.mount_point.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
30 22 0:25 / /run rw,nosuid - tmpfs tmpfs rw,size=4906284k\n\
41 22 0:60 / /mnt/a\\040b rw,idmapped - fuse.sshfs me@host:/ rw,user_id=2001\n\
50 22 0:61 / /c/merged rw,relatime master:7 propagate_from:2 - overlay overlay rw,lowerdir=/l/1:/l/2,upperdir=/u,workdir=/w\n\
nonsense\n\
51 22 x:1 / /d rw - ext4 d rw\n";

    #[test]
    fn mounts_are_told_by_device_type_and_place() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 4);
        let kinds: Vec<&[u8]> = mounts.iter().map(|mount| mount.kind).collect();
        assert_eq!(kinds, [&b"ext4"[..], b"tmpfs", b"fuse.sshfs", b"overlay"]);
        assert_eq!((mounts[2].device, mounts[2].mount_point), ((0, 60), &b"/mnt/a\\040b"[..]));
        assert_eq!(mounts[2].id, 41);
        let idmapped: Vec<bool> = mounts.iter().map(|mount| mount.is_idmapped).collect();
        assert_eq!(idmapped, [false, false, true, false]);
        let kind = |path: &[u8]| of_path(&mounts, path).map(|mount| mount.kind);
        assert_eq!(kind(b"/run/x"), Some(&b"tmpfs"[..]));
        assert_eq!(kind(b"/runner"), Some(&b"ext4"[..]));
        assert_eq!(kind(b"/run"), Some(&b"tmpfs"[..]));
    }

    #[test]
    fn layers_are_whole_paths_or_not_told() {
        let mounts = parse(TEXT);
        let layers = overlay_layers(mounts[3].options);
        assert_eq!(layers, Some(vec![&b"/l/1"[..], b"/l/2", b"/u"]));
        assert_eq!(overlay_layers(b"rw,lowerdir=l/1:l/2,upperdir=/u"), None);
        assert_eq!(overlay_layers(b"rw,lowerdir=/a\\134:/b"), None);
        assert_eq!(overlay_layers(b"rw,lowerdir+=/a,lowerdir+=/b"), Some(vec![&b"/a"[..], b"/b"]));
        assert_eq!(overlay_layers(b"rw"), None);
    }
}
