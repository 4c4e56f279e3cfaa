"""Programs: started and waited for, and held in their own main to be looked at."""

import contextlib
import fcntl
import os
import signal
import time

from lib.session import unable

PATIENCE = 60  # seconds for a program to reach its first write
WRITES = {"x86_64": (1, 20), "aarch64": (64, 66)}  # write(2), writev(2)


def spawn(argv, descriptors, environment=None):
    """Starts argv with its descriptors 0 to 2 taken from `descriptors`, a dict, and with `environment` added to its own."""
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in descriptors.items()]
    # Python ignores SIGPIPE, and the programs would inherit that.
    environment = {**os.environ, **(environment or {})}
    return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigdef=[signal.SIGPIPE])


def finished(argv, environment=None, silent=False):
    """Runs argv to its end; returns its wall time in seconds and what it used. Stdin and stdout are /dev/null, stderr too if `silent`."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        descriptors = {0: null, 1: null, **({2: null} if silent else {})}
        begin = time.perf_counter()
        pid = spawn(argv, descriptors, environment)
        _, status, usage = os.wait4(pid, 0)
        end = time.perf_counter()
    finally:
        os.close(null)
    if status != 0:
        unable(f"{' '.join(argv)}: exit status {os.waitstatus_to_exitcode(status)}")
    return end - begin, usage


def run(argv, preload=None):
    """Runs argv to its end, with `preload` as its LD_PRELOAD; returns (milliseconds, those of a processor, minor faults)."""
    wall, usage = finished(argv, {"LD_PRELOAD": preload} if preload else None, silent=preload is not None)
    return wall * 1000, (usage.ru_utime + usage.ru_stime) * 1000, usage.ru_minflt


def seconds(argv):
    """Runs argv to its end; returns (wall, processor) seconds, with those of the children that it waited for."""
    wall, usage = finished(argv)
    return wall, usage.ru_utime + usage.ru_stime


def full_pipe():
    """A pipe that takes no more: whoever writes into it waits. Returns (read end, write end)."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, os.sysconf("SC_PAGESIZE"))
    try:
        while True:
            os.write(writer, b"\0" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


def in_write_to_stdout(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/syscall") as file:
                fields = file.read().split()
        except OSError:
            continue
        if len(fields) > 2 and int(fields[0]) in WRITES[os.uname().machine] and int(fields[1], 16) == 1:
            return True
    return False


def wait_until_held(pid, argv):
    deadline = time.monotonic() + PATIENCE
    while not in_write_to_stdout(pid):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            unable(f"{' '.join(argv)}: ended without writing to stdout")
        if time.monotonic() > deadline:
            unable(f"{' '.join(argv)}: no write to stdout in {PATIENCE} s")
        time.sleep(0.001)


def end(pid):
    """Kills and reaps a child."""
    try:
        os.kill(pid, signal.SIGKILL)
    finally:
        os.waitpid(pid, 0)


@contextlib.contextmanager
def held(argv):
    """Starts argv with its stdout a full pipe and waits until it is in its first write; gives its pid; ends it."""
    reader, writer = full_pipe()
    pid = spawn(argv, {1: writer})
    os.close(writer)
    try:
        wait_until_held(pid, argv)
        yield pid
    finally:
        end(pid)  # first, or its write fails and it says so
        os.close(reader)
