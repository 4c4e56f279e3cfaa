"""An image store for the time of a bench, and none otherwise: in a mount namespace of the bench's own."""

import contextlib
import ctypes
import os
import subprocess

from lib import session

CLONE_NEWNS = 0x00020000
PLACE = "/run/tiexec/images"

_libc = ctypes.CDLL(None, use_errno=True)


def hide():
    """Goes where no store is seen, nor anything else in /run. Without privilege the machine's own one stays."""
    os.environ.pop("XDG_RUNTIME_DIR", None)
    if os.getuid() != 0:
        return
    if _libc.unshare(CLONE_NEWNS) != 0:
        session.unable(f"unshare(CLONE_NEWNS): {os.strerror(ctypes.get_errno())}")
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", "mode=755", "tiexec-bench", "/run"]):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            session.unable(f"{' '.join(command)}: {made.stderr.strip()}")


def none_because(options):
    """Why there can be no store for this bench; `None` if there can."""
    if os.getuid() != 0:
        return "only root sets up an image store"
    if not session.ctl_has(options, "store"):
        return "this tiexecctl has no image store"
    return None


@contextlib.contextmanager
def set_up(options, *arguments):
    """A store in the hidden place, empty at first; after `hide`."""
    made = subprocess.run([session.ctl(options), "store", "setup", *arguments], capture_output=True, text=True)
    if made.returncode != 0:
        session.unable(f"tiexecctl store setup: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", PLACE], check=True)
        os.rmdir(PLACE)  # a directory on /run would be a store, too: /run is a tmpfs


def used():
    """Bytes that the store takes."""
    stat = os.statvfs(PLACE)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize
