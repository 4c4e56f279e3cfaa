"""What the scripts in bench/workloads have in common: one run of a real program, one figure, more is better.

A script is called as `bench/workloads/NAME --dir DIR [--program FILE] [--seconds S] [--settle S] [PREFIX...]`; PREFIX stands before the
program that is measured: nothing, or tiexec and its options. `--which` prints the program; `--install` gets what is missing.
"""

import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lib import session

TICKS = os.sysconf("SC_CLK_TCK")
WASHOUT = 0.04  # seconds of load after a switch that do not count
LOOPS = Path(__file__).resolve().parent / "loops"

_libc = ctypes.CDLL(None, use_errno=True)


def need(program, package):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if not found:
        session.unable(f"{program}: not there; Debian's package is {package}, or {session.NAME} --install")
    return os.path.realpath(found)


def used(pid):
    """Processor seconds of a process, to the nanosecond, and of the children that it has waited for, in ticks."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        session.unable(f"process {pid}: it ended")
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return time.clock_gettime(clock.value) + sum(int(field) for field in fields[13:15]) / TICKS


def children(pid):
    """The children of a process."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended
            found.update((task / "children").read_text().split())
    return found


def output(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        session.unable(f"{' '.join(map(str, command))}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            session.unable(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def server(start, load, options):
    """Starts a server, whose client `load` has a piece of work done so many times and returns how often it was, and measures it: see
    `by_turns`; without `--ways` once, for `--seconds`."""
    process = start()
    try:
        count, warm = 1, 0
        while warm < max(options.settle, 1):
            spent = work_of(process.pid, load, count)[1]
            warm, count = warm + spent, adjusted(count, spent, options)
        if options.ways:
            return by_turns(process.pid, load, count, options)
        done, spent = work_of(process.pid, load, count)
        return done / spent
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def adjusted(count, spent, options):
    """How often the work is done in `--seconds` of processor time, by what so many times took. Beside other programs a slice of wall time
    could have little work."""
    return max(1, round(count * min(2, options.seconds / spent)))


def work_of(pid, load, count):
    """Has the work done; returns how often it was done, and in how many seconds of the server's processor time."""
    idle, before = children(pid), used(pid)
    done = load(count)
    until("the server has waited for the children that served a client", lambda: children(pid) <= idle)
    return done, max(used(pid) - before, 1 / TICKS)


def by_turns(pid, load, count, options):
    """Rounds of slices of one process, until `--minutes` are over. `--ways` has the options of `tiexecctl attach` for each way, or null
    for the text as it was. The slices of a round have the same work. The switch and a bit of load after it do not count."""
    ways, order = json.loads(options.ways), random.Random(session.NAME)
    found, switched = {way: [] for way in ways}, False
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        spent = []
        for way in order.sample(list(ways), len(ways)):
            if switched:
                output([options.ctl, "revert", "-q", str(pid)])
            switched = ways[way] is not None
            if switched:
                output([options.ctl, "attach", "-q", *ways[way], str(pid)])
            work_of(pid, load, max(1, round(count * WASHOUT / options.seconds)))
            done, seconds = work_of(pid, load, count)
            found[way].append(done / seconds)
            spent.append(seconds)
        count = adjusted(count, statistics.median(spent), options)
    return found


def repeated(command, options, **more):
    """Measures a program of `loops`, which does its work in one process as often as it is told."""
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)

    def load(count):
        program.stdin.write(f"{count}\n")
        program.stdin.flush()
        if program.stdout.readline() != "done\n":
            session.unable(f"{' '.join(map(str, command))}: it ended")
        return count

    return server(lambda: program, load, options)


def batch(command, times=1, **more):
    """Runs a command to its end, so many times: how often in a minute of its processor time."""
    return 60 * times / sum(ran(command, **more) for _ in range(times))


def starts(command, times=5, **more):
    """Runs a short command to its end, so many times: how often in a second of wall time."""
    begin = time.monotonic()
    for _ in range(times):
        ran(command, **more)
    return times / (time.monotonic() - begin)


def ran(command, **more):
    """Runs a command to its end; returns its processor seconds, with those of the children that it waited for."""
    with open(os.devnull, "r+b") as null:
        child = subprocess.Popen(command, stdin=null, stdout=null, stderr=subprocess.PIPE, **more)
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        session.unable(f"{' '.join(map(str, command))}: {child.returncode}: {said[-500:].decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime


def main(which, run, unit, packages=(), extra=(), install=None, copies=False, serves=False, short=False):
    """The command line of a script. `which(directory)` finds the program, `run(work, program, prefix, options)` returns the figure, or with
    `--ways` those of each way; `extra` are options that tiexec needs for this program; `copies` says that a private copy of the program runs as
    well; `serves` that it works in one process that lasts, which can be measured in each way by turns; `short` that it ends before an attach
    could sample it."""
    parser = argparse.ArgumentParser(prog=session.NAME)
    parser.add_argument("--dir", default=str(session.TARGET / "workloads"), help="for data that is kept (default %(default)s)")
    parser.add_argument("--program", help="run this copy instead")
    parser.add_argument("--seconds", type=float, default=6, help="of a server's processor time that a figure takes (default %(default)s)")
    parser.add_argument("--settle", type=float, default=0, help="seconds of its processor time that a server works before it")
    parser.add_argument("--which", action="store_true", help="print what is measured, as JSON, and stop")
    parser.add_argument("--install", action="store_true", help="install what is missing, and stop")
    parser.add_argument("--ways", help="measure one server in these ways by turns, as JSON")
    parser.add_argument("--minutes", type=float, default=10, help="how long (default %(default)s)")
    parser.add_argument("--ctl", help="the tiexecctl that makes them")
    parser.add_argument("prefix", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.dir = Path(options.dir).resolve()
    if options.install:
        missing = [package for package in packages if subprocess.run(["dpkg", "-s", package], capture_output=True).returncode]
        if missing:
            output(["apt-get", "install", "-q=2", "-y", "--no-install-recommends", *missing])
        if install:
            install(options.dir)
        return
    if options.which:
        print(json.dumps({"program": which(options.dir), "unit": unit, "extra": list(extra), "copies": copies, "serves": serves, "short": short}))
        return
    work = options.dir / Path(sys.argv[0]).name
    work.mkdir(parents=True, exist_ok=True)
    prefix = [*options.prefix, *extra, "--"] if options.prefix else []
    found = run(work, options.program or which(options.dir), prefix, options)
    print("figures", json.dumps(found))
