"""mariadbd with one table, under sysbench."""

import re
import shutil
import subprocess

from lib import workload


def which():
    return workload.need("mariadbd", "mariadb-server")


def runner(test):
    """A run of one of sysbench's tests."""

    def run(work, program, prefix, options):
        data, socket = work / "data", work / "socket"
        sysbench = [workload.need("sysbench", "sysbench"), test, "--db-driver=mysql", f"--mysql-socket={socket}", "--mysql-user=root",
                    "--mysql-db=bench", "--tables=1", "--table-size=50000", "--threads=2"]
        if not (work / "made").exists():
            shutil.rmtree(data, ignore_errors=True)
            workload.output([workload.need("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={data}", "--user=root",
                             "--skip-test-db", "--auth-root-authentication-method=normal"])
        client = [workload.need("mariadb", "mariadb-client"), "--no-defaults", f"--socket={socket}", "-uroot", "-e"]

        def start():
            with open(work / "log", "w") as log:
                server = subprocess.Popen([*prefix, program, "--no-defaults", f"--datadir={data}", "--user=root", "--skip-networking",
                                           f"--socket={socket}", f"--pid-file={work / 'pid'}"], stderr=log)
            create = [*client, "create database if not exists bench"]
            workload.until("mariadbd answers", lambda: subprocess.run(create, capture_output=True).returncode == 0)
            if not (work / "made").exists():
                workload.output([*sysbench, "prepare"])
                (work / "made").touch()
            return server

        def load(seconds):
            said = workload.output([*sysbench, f"--time={max(1, round(seconds))}", "run"])
            return int(re.search(r"transactions:\s+(\d+)", said).group(1))

        return workload.server(start, load, options)

    return run
