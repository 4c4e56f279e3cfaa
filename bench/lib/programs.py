"""Real programs with much text, where this machine has them."""

import shutil
import subprocess
from pathlib import Path


def said(*command):
    """What a command writes to its stdout; nothing if there is no such command."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def postgres():
    found = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))
    return found[-1] if found else "postgres"


def cc1plus():
    """gcc's C++ compiler proper."""
    return said("gcc", "-print-prog-name=cc1plus") or "cc1plus"


def one_line_of_cplusplus(work):
    source = work / "one.cc"
    source.write_text("int main() { return 0; }\n")
    return str(source)
