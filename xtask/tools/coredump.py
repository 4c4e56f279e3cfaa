"""coredump.py PROGRAM CORE EXE PID: has systemd-coredump's own program take a core, and prints the message for the journal.

The program gets the core as from systemd-coredump.socket (process_socket in systemd's src/coredump/coredump.c). This script listens in
place of the journal, in the case's own /run.
"""
import array
import os
import socket
import sys
import time

program, core, exe, pid = sys.argv[1:]
os.makedirs("/run/systemd/journal", exist_ok=True)
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
journal.settimeout(60)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
fields = {
    "PID": pid, "UID": "0", "GID": "0", "SIGNAL": "11", "TIMESTAMP": str(int(time.time())), "RLIMIT": "18446744073709551615",
    "HOSTNAME": "case", "COMM": os.path.basename(exe), "EXE": exe, "UNIT": "case.service",
}
for name, value in fields.items():
    ours.send(f"COREDUMP_{name}={value}".encode())
ours.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open(core, os.O_RDONLY)]))])
ours.close()
child = os.fork()
if child == 0:
    os.dup2(theirs.fileno(), 3)
    os.execve(program, [program], {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
theirs.close()
while True:
    data, rights, _, _ = journal.recvmsg(1 << 20, 64)
    for _, _, passed in rights:
        descriptor = array.array("i", passed)[0]
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    if b"COREDUMP_SIGNAL=" in data:
        break
os.waitpid(child, 0)
sys.stdout.buffer.write(data)
