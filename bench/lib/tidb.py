"""tidb-server with its embedded store, under sysbench."""

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

from lib import session, workload

LOAD = ["--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-user=root", "--mysql-db=test",
        "--tables=4", "--table-size=10000", "--db-ps-mode=disable", "--range-size=10", "--threads=2"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def which(directory=None):
    return os.environ.get("TIDB_SERVER") or workload.need("tidb-server", "none: see bench/README.md")


def runner(test):
    """A run of one of sysbench's tests."""

    def run(work, program, prefix, options):
        port = free_port()
        sysbench = [workload.need("sysbench", "sysbench"), test, *LOAD, f"--mysql-port={port}"]

        def answers():
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            except OSError:
                return False

        def load(count):
            said = workload.output([*sysbench, "--time=0", f"--events={count}", "run"])
            if int(re.search(r"ignored errors:\s+(\d+)", said).group(1)):
                session.unable(f"transactions failed: {said[-500:]}")
            return int(re.search(r"transactions:\s+(\d+)", said).group(1))

        with tempfile.TemporaryDirectory(dir=work) as place, open(Path(place) / "log", "w") as log:

            def start():
                server = subprocess.Popen(
                    [*prefix, program, "--store=unistore", f"--path={place}/data", "--host=127.0.0.1", f"-P={port}", "--status=0",
                     f"--socket={place}/socket", "-L=error"], stdout=log, stderr=log, cwd=place)
                workload.until("tidb-server answers", answers)
                workload.output([*sysbench, "prepare"])
                return server

            return workload.server(start, load, options)

    return run
