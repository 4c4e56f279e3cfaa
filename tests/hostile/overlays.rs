//! TiExec reads a file of an overlay if the overlay's layers are local. The namespace in which a container runtime
//! mounted the overlay shows that, and no other user's mounts can show other layers.

use std::path::Path;

use support::attaching::{ctl, json};
use support::{Kind, Public, Run, installed, is_root, program, require, tiexecctl};

use super::files::{fuse, of_file, silent_to_root};

fn needs() -> bool {
    let tools = ["setpriv", "unshare", "nsenter"];
    is_root() && tools.iter().all(|tool| installed(tool).is_some())
}

/// A script for the mounts of a node of Kubernetes: process 1 and the pod have the overlay. The agent's container has
/// neither the overlay nor its layers at these paths.
const NODE: &str = r#"cd "$1"
    mkdir layers merged
    mount -t tmpfs -o mode=755 tmpfs layers
    mkdir layers/one layers/two
    mv hold layers/one
    mount -t overlay -o "lowerdir=$PWD/layers/one:$PWD/layers/two" overlay merged
    mkfifo input
    exec 3<>input
    unshare --mount setpriv --reuid=2001 --regid=2001 --clear-groups "$PWD/merged/hold" 7 <input >output 3>&- &
    pod=$!
    until grep -q ready output; do sleep 0.1; done
    unshare --mount sh -ec 'umount merged; mount -t proc proc layers; "$@"' sh \
        "$2" attach --backing=image "$pod" && echo attached
    echo >&3
    wait "$pod" || exit $?"#;

#[test]
fn one_that_a_container_runtime_mounted() {
    require!(needs(), "another user and mounts need root");
    let public = Public::new();
    public.add(&program("hold", Kind::StaticNoPie), "hold", 0o755);
    let words = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", NODE];
    let run = Run::new("unshare", words).plain().with_arg("sh").with_arg(public.path());
    let done = run.with_arg(tiexecctl()).output();
    done.assert_code(7);
    assert!(done.out().contains("attached"), "{done}");
}

/// Root mounted the overlay in namespaces of a container, over a file system that a user serves. This machine has no
/// mount at that path.
#[test]
fn one_that_was_mounted_elsewhere() {
    require!(needs() && Path::new("/dev/fuse").exists(), "FUSE and another user need root");
    let held = silent_to_root("overlay");
    let pid = held.said_pid();
    let done = ctl(["attach", "--backing=image", "--json", &pid.to_string()]);
    let reasons = of_file(&json(&done), "/mnt/file")["rest"].to_string();
    assert!(reasons.contains("foreign_filesystem"), "{done}");
    held.finish().assert_code(7);
}

/// Process 1 is root of a container whose root directory is the overlay. At the paths of the layers, process 1 shows
/// its own tmpfs.
#[test]
fn one_whose_process_1_shows_other_layers() {
    require!(needs() && Path::new("/dev/fuse").exists(), "FUSE and another user need root");
    let (public, node) = fuse();
    public.add(&program("hostile/silent_fuse", Kind::StaticNoPie), "silent_fuse", 0o755);
    let run = Run::new(public.path().join("silent_fuse"), ["container".as_ref(), node.as_os_str()]);
    let own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let held = run.plain().behind(own).hold();
    let first = support::smaps::children(held.pid())[0].to_string();
    // The tracer runs in the same PID namespace.
    let attach = "mount -t proc proc /proc; exec \"$@\" attach --backing=image --json 1";
    let words = ["--pid", "--target", &first, "unshare", "--mount", "sh", "-ec", attach, "sh"];
    let done = Run::new("nsenter", words).plain().with_arg(tiexecctl()).output();
    let reasons = of_file(&json(&done), "/mnt/file")["rest"].to_string();
    assert!(reasons.contains("foreign_filesystem"), "{done}");
    held.finish().assert_code(7);
}
