"""What every bench begins with: its options, a place for its files, and the line that says what machine this is."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = str(Path(sys.argv[0]).resolve()).removeprefix(f"{ROOT}/")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def unable(why):
    """Ends the bench: it could not measure."""
    sys.exit(f"{NAME}: {why}")


def compiled(source, into, *flags):
    """The program made of a C file of bench/."""
    into.mkdir(parents=True, exist_ok=True)
    program = into / Path(source).stem
    made = subprocess.run(["cc", *flags, "-o", program, ROOT / "bench" / source], capture_output=True, text=True)
    if made.returncode:
        unable(f"cc: {made.stderr}")
    return program


def parser(description, copies=True):
    made = argparse.ArgumentParser(prog=NAME, description=description)
    made.add_argument("--tiexec", default=str(TARGET / "dist" / "tiexec"), metavar="PATH",
                      help="the tiexec to measure (default %(default)s)")
    if copies:
        made.add_argument("--dir", default=str(TARGET), metavar="DIR",
                          help="where the copies of the programs go for the time: a file system with large folios "
                               "(default %(default)s)")
    return made


def run(main):
    """Runs the bench; whoever no longer reads its output has seen enough."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def begin(options):
    """Checks what all benches need; makes the paths absolute."""
    if not os.access(options.tiexec, os.X_OK):
        unable(f"{options.tiexec}: not there; run `make`")
    options.tiexec = os.path.abspath(options.tiexec)
    if "dir" in options:
        options.dir = os.path.abspath(options.dir)  # as the kernel shows it in maps
    # A TIEXEC in the caller's environment would affect the measurement.
    os.environ.pop("TIEXEC", None)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the copies are removed


@contextlib.contextmanager
def workplace(options):
    """A directory below `--dir` for the time of the bench."""
    try:
        work = tempfile.TemporaryDirectory(prefix="tiexec-bench.", dir=options.dir)
    except OSError as error:
        unable(f"--dir: {error}")
    with work as path:
        os.chmod(path, 0o755)  # the image store takes only what everybody may read
        yield Path(path)


def ctl(options):
    """The tiexecctl beside the tiexec that is measured."""
    return os.path.join(os.path.dirname(options.tiexec), "tiexecctl")


def ctl_has(options, command):
    """Whether tiexecctl has `command`."""
    try:
        asked = subprocess.run([ctl(options), command, "--help"], capture_output=True)
    except OSError:
        return False
    return asked.returncode == 0


def first_line(path, key=None):
    try:
        with open(path) as file:
            for line in file:
                if key is None:
                    return line.strip()
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "?"


def machine():
    """What a figure is worth nothing without."""
    thp = "/sys/kernel/mm/transparent_hugepage"
    kernel = os.uname()
    return [
        f"kernel {kernel.release} {kernel.machine}; {os.cpu_count()} CPUs, "
        f"{first_line('/proc/cpuinfo', 'model name')}; load {first_line('/proc/loadavg').split()[0]}",
        f"THP {first_line(f'{thp}/enabled')}; shmem {first_line(f'{thp}/shmem_enabled')}; uid {os.getuid()}",
    ]
