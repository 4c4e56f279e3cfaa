"""A tiexecd of the bench's own, whose launch socket is there or not as the bench wants."""

import contextlib
import os
import signal
import subprocess
import time

from lib import session

SOCKET = "/run/tiexec/launch.sock"
ASIDE = SOCKET + ".aside"
PATIENCE = 30  # seconds for the agent to listen


class Agent:
    def __init__(self, pid):
        self.pid, self.listens = pid, True

    def listen(self, wanted):
        """Shows or hides the socket. Without it, a launch finds no agent."""
        if wanted != self.listens:
            os.rename(*((ASIDE, SOCKET) if wanted else (SOCKET, ASIDE)))
            self.listens = wanted


@contextlib.contextmanager
def running(options, work, rule=""):
    """An agent with the rule, or without any."""
    directories = [work / name for name in ("conf", "state")]
    for directory in directories:
        directory.mkdir(mode=0o755)
    file = directories[0] / "bench.toml"
    file.write_text(rule)
    file.chmod(0o644)
    daemon = os.path.join(os.path.dirname(options.tiexec), "tiexecd")
    with open(work / "log", "wb") as log:
        command = [daemon, "--conf-dir", directories[0], "--state-dir", directories[1]]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + PATIENCE
        while not os.path.exists(SOCKET):
            if child.poll() is not None or time.monotonic() > until:
                session.unable(f"tiexecd does not listen: {(work / 'log').read_text()}")
            time.sleep(0.01)
        yield Agent(child.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
