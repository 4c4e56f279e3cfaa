"""A tiexecd of the bench's own, whose launch socket is there or not as the bench wants."""

import contextlib
import os
import subprocess
import time

from lib import session

SOCKET = "/run/tiexec/launch.sock"
ASIDE = SOCKET + ".aside"
PATIENCE = 30  # seconds for the agent to listen


class Agent:
    def __init__(self):
        self.listens = True

    def listen(self, wanted):
        """Shows or hides the socket. Without it, a launch finds no agent."""
        if wanted != self.listens:
            os.rename(*((ASIDE, SOCKET) if wanted else (SOCKET, ASIDE)))
            self.listens = wanted


@contextlib.contextmanager
def running(options, work):
    """An agent without rules, after `store.hide`."""
    directories = [work / name for name in ("conf", "state")]
    for directory in directories:
        directory.mkdir(mode=0o755)
    daemon = os.path.join(os.path.dirname(options.tiexec), "tiexecd")
    with open(work / "log", "wb") as log:
        command = [daemon, "--conf-dir", directories[0], "--state-dir", directories[1]]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while not os.path.exists(SOCKET):
            if child.poll() is not None or time.monotonic() > until:
                session.unable(f"tiexecd does not listen: {(work / 'log').read_text()}")
            time.sleep(0.01)
        yield Agent()
    finally:
        child.kill()
        child.wait()
