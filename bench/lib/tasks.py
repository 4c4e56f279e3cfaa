"""Several tasks at the same time, each of which execs programs one after the other for a fixed time."""

import json
import os
import statistics
import time

from lib import process, session


def _work(commands, seconds, null, errors):
    """What one task does: passes through `commands` until the time is over."""
    jobs = faults = reads = 0
    cpu = 0.0
    until = time.monotonic() + seconds
    while True:
        for argv in commands:
            pid = process.spawn(argv, {0: null, 1: null, 2: errors})
            _, status, usage = os.wait4(pid, 0)
            if status != 0:
                return {"failed": f"{' '.join(argv)}: exit status {os.waitstatus_to_exitcode(status)}"}
            jobs += 1
            faults += usage.ru_minflt
            reads += usage.ru_majflt
            cpu += usage.ru_utime + usage.ru_stime
        now = time.monotonic()
        if now >= until:  # only at the end of a pass: each program has run as often as the others
            return {"jobs": jobs, "faults": faults, "reads": reads, "cpu": cpu, "end": now}


def _start(work, gate, opener):
    """Forks a task that does `work` when nobody holds `opener` any more; returns its pid and where its answer comes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(opener)
            os.read(gate, 1)
            os.write(writer, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def run(commands, tasks, seconds, errors):
    """Runs `tasks` tasks for `seconds`; their programs' stderr goes to the descriptor `errors`. Returns a table row."""
    null = os.open(os.devnull, os.O_RDWR)
    gate, opener = os.pipe()
    started = []
    for number in range(tasks):
        turn = number % len(commands)  # not all of them at the same program at the same time
        order = commands[turn:] + commands[:turn]
        started.append(_start(lambda: _work(order, seconds, null, errors), gate, opener))
    begin = time.monotonic()
    for descriptor in (opener, gate, null):
        os.close(descriptor)
    answers = []
    for pid, reader in started:
        with open(reader, "rb") as file:
            answers.append(json.loads(file.read() or '{"failed": "a task died"}'))
        os.waitpid(pid, 0)
    for answer in answers:
        if "failed" in answer:
            session.unable(answer["failed"])
    each = [answer["jobs"] for answer in answers]
    jobs = sum(each)
    real = max(answer["end"] for answer in answers) - begin
    return {
        "jobs_per_minute": 60 * jobs / real,
        "jti": 100 * (1 - statistics.pstdev(each) / statistics.mean(each)),
        "real_seconds": real,
        "cpu_seconds": sum(answer["cpu"] for answer in answers),
        "jobs_per_second_per_task": jobs / real / tasks,
        "major_faults": sum(answer["reads"] for answer in answers),
        "minor_faults_per_exec": sum(answer["faults"] for answer in answers) / jobs,
    }
