"""What the scripts in bench/workloads have in common: one run of a real program, one figure, more is better.

A script is called as `bench/workloads/NAME --dir DIR [--program FILE] [--seconds S] [--settle S] [PREFIX...]`; PREFIX stands before the
program that is measured: nothing, or tiexec and its options. `--which` prints the program; `--install` gets what is missing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lib import session

TICKS = os.sysconf("SC_CLK_TCK")
REAPED = 0.5  # seconds after which a server has waited for the children that served a client


def need(program, package):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if not found:
        session.unable(f"{program}: not there; Debian's package is {package}, or {session.NAME} --install")
    return os.path.realpath(found)


def used(pid):
    """Processor seconds of a process and of the children that it has waited for."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / TICKS


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
    """Starts a server, loads it for as long as it may take to be switched, and then counts for a window: what it got done in a second
    of its processor time. With `--turns`, one server is measured in all ways by turns: see `by_turns`."""
    process = start()
    try:
        load(max(options.settle + 1, 1))
        if options.turns:
            return by_turns(process.pid, load, options)
        return window(process.pid, load, options.seconds)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def window(pid, load, seconds):
    time.sleep(REAPED)
    before = used(pid)
    count = load(seconds)
    time.sleep(REAPED)
    return count / (used(pid) - before)


def by_turns(pid, load, options):
    """Windows of one process, one for each entry of `--turns`: the options of `tiexecctl attach`, or null for the text as it was. The
    first second after a switch does not count."""
    found, switched = [], False
    for attach in json.loads(options.turns):
        if switched:
            output([options.ctl, "revert", "-q", str(pid)])
        switched = attach is not None
        if switched:
            output([options.ctl, "attach", "-q", *attach, str(pid)])
        load(1)
        found.append(window(pid, load, options.seconds))
    return found


def batch(command, times=1, **more):
    """Runs a command to its end, so many times: how often in a minute of its processor time."""
    spent = 0.0
    for _ in range(times):
        with open(os.devnull, "r+b") as null:
            child = subprocess.Popen(command, stdin=null, stdout=null, stderr=subprocess.PIPE, **more)
            said = child.stderr.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            session.unable(f"{' '.join(map(str, command))}: {child.returncode}: {said[-500:].decode(errors='replace')}")
        spent += usage.ru_utime + usage.ru_stime
    return 60 * times / spent


def main(which, run, unit, packages=(), extra=(), install=None, copies=False, serves=False):
    """The command line of a script. `which()` finds the program, `run(work, program, prefix, options)` returns the figure; `extra` are
    options that tiexec needs for this program; `copies` says that a private copy of the program runs as well; `serves` that it is a
    server, so that one process can be measured in each way by turns."""
    parser = argparse.ArgumentParser(prog=session.NAME)
    parser.add_argument("--dir", default=str(session.TARGET / "workloads"), help="for data that is kept (default %(default)s)")
    parser.add_argument("--program", help="run this copy instead")
    parser.add_argument("--seconds", type=float, default=6, help="of a server's window (default %(default)s)")
    parser.add_argument("--settle", type=float, default=0, help="seconds before it in which the server may be switched")
    parser.add_argument("--which", action="store_true", help="print what is measured, as JSON, and stop")
    parser.add_argument("--install", action="store_true", help="install what is missing, and stop")
    parser.add_argument("--turns", help="measure one server by these turns, as JSON")
    parser.add_argument("--ctl", help="the tiexecctl that makes them")
    parser.add_argument("prefix", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.install:
        missing = [package for package in packages if subprocess.run(["dpkg", "-s", package], capture_output=True).returncode]
        if missing:
            output(["apt-get", "install", "-q=2", "-y", "--no-install-recommends", *missing])
        if install:
            install(Path(options.dir))
        return
    if options.which:
        print(json.dumps({"program": which(), "unit": unit, "extra": list(extra), "copies": copies, "serves": serves}))
        return
    work = Path(options.dir) / Path(sys.argv[0]).name
    work.mkdir(parents=True, exist_ok=True)
    prefix = [*options.prefix, *extra, "--"] if options.prefix else []
    found = run(work.resolve(), options.program or which(), prefix, options)
    for figure in found if isinstance(found, list) else [found]:
        print(f"figure {figure:.3f}")
