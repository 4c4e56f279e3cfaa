"""tidb-server with its embedded store, under sysbench."""

import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from lib import session, workload

LOAD = ["--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-user=root", "--mysql-db=test",
        "--tables=4", "--table-size=10000", "--db-ps-mode=disable", "--range-size=10"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """tidb-server with its embedded store, in a directory of its own, and one of sysbench's loads for it."""

    def __init__(self, program, work, threads, prefix=(), load="oltp_read_only"):
        self.port, self.threads, self.load = free_port(), threads, load
        self.log = open(work / "log", "w")
        self.process = subprocess.Popen(
            [*prefix, program, "--store=unistore", f"--path={work / 'data'}", "--host=127.0.0.1", f"-P={self.port}", "--status=0",
             f"--socket={work / 'socket'}", "-L=error"], stdout=self.log, stderr=self.log, cwd=work)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if self.process.poll() is not None:
                    session.unable(f"{program} ended with {self.process.returncode}")
                time.sleep(0.1)
        else:
            self.end()
            session.unable(f"{program} does not come up")

    def sysbench(self, *more):
        done = subprocess.run(["sysbench", self.load, *LOAD, f"--mysql-port={self.port}", f"--threads={self.threads}", *more], capture_output=True, text=True)
        if done.returncode:
            session.unable(f"sysbench: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    def cpu(self):
        """Processor seconds of the server so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def window(self, seconds):
        """(transactions per second of the server's processor time, and per second of the clock) of one run of the load."""
        before = self.cpu()
        said = self.sysbench(f"--time={seconds}", "run")
        spent = self.cpu() - before
        count = int(re.search(r"transactions:\s+(\d+)", said).group(1))
        errors = int(re.search(r"ignored errors:\s+(\d+)", said).group(1))
        if errors:
            session.unable(f"{errors} transactions failed")
        return count / spent, count / seconds

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def which():
    return os.environ.get("TIDB_SERVER") or workload.need("tidb-server", "none: see bench/README.md")


def runner(load):
    """What a workload does: one of sysbench's loads; transactions per second of the server's processor time."""
    def run(work, program, prefix, options):
        with tempfile.TemporaryDirectory(dir=work) as place:
            server = Server(program, Path(place), 2, prefix, load)
            try:
                server.sysbench("prepare")
                server.window(max(1, round(options.settle + 1)))
                return server.window(round(options.seconds))[0]
            finally:
                server.end()
    return run
