"""Debian's clang-19, unpacked below the workloads' data: it need not be installed."""

import os
import re

from lib import session, workload


def place(directory):
    return directory / "clang19"


def which(directory):
    found = place(directory) / "usr/lib/llvm-19/bin/clang"
    return str(found) if found.exists() else session.unable(f"no clang-19; fix: {session.NAME} --install")


def install(directory):
    needed = workload.output(["apt-get", "install", "-s", "--no-install-recommends", "--reinstall", "clang-19"])
    packages = place(directory) / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    workload.output(["apt-get", "download", "-q", *sorted(set(re.findall(r"^Inst (\S+)", needed, re.M)))], cwd=packages)
    for package in packages.glob("*.deb"):
        workload.output(["dpkg", "-x", package, place(directory)])


def environment(directory):
    """With the libraries that were unpacked."""
    libraries = place(directory).glob("usr/lib/*-linux-gnu")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
