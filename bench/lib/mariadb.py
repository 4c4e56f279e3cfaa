"""mariadbd with one table, under sysbench."""

import os
import re
import shutil
import subprocess

from lib import workload


def which(directory=None):
    return workload.need("mariadbd", "mariadb-server")


class Data:
    """A data directory with the table, the server that serves it, and the commands of its clients."""

    def __init__(self, work, test, threads=2):
        self.work = work.resolve()
        socket = self.work / "socket"
        self.sysbench = [workload.need("sysbench", "sysbench"), test, "--db-driver=mysql", f"--mysql-socket={socket}", "--mysql-user=root",
                         "--mysql-db=bench", "--tables=1", "--table-size=50000", f"--threads={threads}"]
        self.client = [workload.need("mariadb", "mariadb-client"), "--no-defaults", f"--socket={socket}", "-uroot", "-e"]
        self.made = self.work / "made"
        self.directory = self.work / "data"
        if not self.made.exists():
            self.work.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.directory, ignore_errors=True)
            workload.output([workload.need("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={self.directory}",
                             "--user=root", "--skip-test-db", "--auth-root-authentication-method=normal"])
        self.socket = socket

    def start(self, prefix, environment=None, program=None):
        """The server's process, once it answers and has the table."""
        with open(self.work / "log", "w") as log:
            server = subprocess.Popen([*prefix, program or which(), "--no-defaults", f"--datadir={self.directory}", "--user=root",
                                       "--skip-networking", f"--socket={self.socket}", f"--pid-file={self.work / 'pid'}"],
                                      stderr=log, env={**os.environ, **(environment or {})})
        create = [*self.client, "create database if not exists bench"]
        workload.until("mariadbd answers", lambda: subprocess.run(create, capture_output=True).returncode == 0)
        if not self.made.exists():
            workload.output([*self.sysbench, "prepare"])
            self.made.touch()
        return server


def runner(test):
    """A run of one of sysbench's tests."""

    def run(work, program, prefix, options):
        data = Data(work, test)

        def load(count):
            said = workload.output([*data.sysbench, "--time=0", f"--events={count}", "run"])
            return int(re.search(r"transactions:\s+(\d+)", said).group(1))

        return workload.server(lambda: data.start(prefix, program=program), load, options)

    return run
