"""Programs that see how much of their time interrupts take (gaps.c)."""

import contextlib
import mmap
import struct
import subprocess

from . import session

TOTALS = struct.Struct("=QQ")  # nanoseconds run, and of these lost
LINE = 64  # bytes: a cache line for each program


class Gaps:
    """Programs that run all the time, until the end of the block."""

    def __init__(self, totals, children):
        self.totals, self.children = totals, children
        self.pids = [child.pid for child in children]

    def look(self):
        """The nanoseconds that all have run, and that they have lost, until now."""
        each = [TOTALS.unpack_from(self.totals, place * LINE) for place in range(len(self.children))]
        return [sum(kind) for kind in zip(*each)]

    def lost_during(self, act):
        """The share of the programs' time that they lose while `act` runs, and its answer."""
        ran, lost = self.look()
        answer = act()
        ran_then, lost_then = self.look()
        if ran_then == ran:
            session.unable("gaps: the programs did not run")
        return (lost_then - lost) / (ran_then - ran), answer


@contextlib.contextmanager
def running(work, number=1):
    """Starts so many programs, with their files in the directory `work`."""
    program, file = session.compiled("gaps.c", work, "-O2"), work / "totals"
    file.write_bytes(bytes(LINE * number))
    children = []
    try:
        for place in range(number):
            children.append(subprocess.Popen([program, file, str(place * LINE)], stdin=subprocess.DEVNULL))
        with open(file, "rb") as opened:
            yield Gaps(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), children)
    finally:
        for child in children:
            child.kill()
            child.wait()
