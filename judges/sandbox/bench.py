"""The bench: forks judges, as the zygote forks candidates. It parses tests and runs nothing.

A completion has a judge of its own, unless its tests are all plain (tests/plain.py). Such tests evaluate nothing that a
completion hands over, so a judge may serve the next completion, too, if that has plain tests. The trainer decides. The
judge ends as soon as it has met anything but plain data, such as an object, an own exception class or a call back, or
has grown: so nothing that one completion leaves behind, neither a stub nor memory, is there for another.
"""

import contextlib
import gc
import importlib
import math
import os
import resource
import socket
import sys
import time
from typing import NoReturn

from judges.sandbox.jobs import Job
from judges.sandbox.judge import Trial, score
from judges.sandbox.tests.asserts import ask_about_abstract_classes, name_of, parse
from judges.sandbox.walls import (
    ALL,
    JUDGE,
    LINUX,
    LIST,
    READ,
    SYSTEM,
    Limits,
    become_countable,
    die_with_parent,
    end_process,
    limit,
    lock,
    shut,
)
from judges.sandbox.wire.channel import Channel
from judges.sandbox.wire.values import describe
from judges.sandbox.zygote import WORD

JUDGE_MEMORY = 1 << 30  # a test works on what the candidate answered: "x" * answer must not eat the machine
LEFT_OVER = 16 << 10  # KiB that a judge may grow by and still serve another completion


def bench(warden: socket.socket, folder: str, limits: Limits, parent: int) -> int:
    """Fork a judge for each completion, and end it, as the warden asks, until the warden (pid `parent`) has gone.

    folder: where a test may write"""
    sys.modules["random"].seed(1)  # the same verdict in every worker
    ask_about_abstract_classes()
    gc.collect()
    gc.freeze()
    os.environ["TMPDIR"] = folder
    more = become_countable()  # for judges: with it the bench itself might be unable to fork
    limit(AS=JUDGE_MEMORY, FSIZE=JUDGE_MEMORY, NOFILE=256)
    rules = SYSTEM | dict.fromkeys(limits.libraries, READ | LIST) | {folder: ALL}
    me, wall = os.getpid(), lock(rules, JUDGE, limits.unsafe, forks=True)
    if LINUX:
        die_with_parent()
    while os.getppid() == parent:
        word, fds, *_ = socket.recv_fds(warden, WORD.size, 3)
        if not word:
            break
        pid, _ = WORD.unpack(word)
        if pid:
            warden.sendall(WORD.pack(*end_process(pid)))
            continue
        trainer, *lines = [socket.socket(fileno=fd) for fd in fds]
        message = Channel(trainer).receive()
        prepare(Job(*message[0]))
        pid = os.fork()
        if not pid:
            warden.close()
            judge(message, Channel(trainer), lines, wall, limits, me, more)
        for sock in (trainer, *lines):
            sock.close()
        warden.sendall(WORD.pack(pid, 0))
    return 0


def prepare(job):
    """Parse the tests of a job, and import what they name, once for all judges: a fork keeps it."""
    for test in job.tests:
        with contextlib.suppress(BaseException):  # an import may also end the process
            parsed = parse(test, name_of(job.entry))
            new = parsed.library - sys.modules.keys() - {"antigravity", "this"}
            for name in new:
                importlib.import_module(name)
            if new:
                gc.freeze()


def judge(message, trainer, lines, wall, limits, parent, more) -> NoReturn:
    """Be a judge: lock oneself in and score completions for the trainer.

    lines: to the zygote and to the warden; wall: from walls.lock; more: from walls.become_countable"""
    try:
        null = os.open("/dev/null", os.O_RDWR)  # the terminal is the trainer's
        for fd in range(3):
            os.dup2(null, fd)
        try:
            limit(**more)
            shut(wall, parent)
            serve(message, trainer, lines, limits)
        except Exception as e:
            trainer.send([describe(e), False])
    finally:
        os._exit(0)


def serve(message, trainer, lines, limits):
    """Score jobs, which the trainer sends as [job, shared], while each leaves nothing behind.

    The trainer gets [verdict, again]. If `shared` and `again` are True, this judge waits for another job."""
    size, again = peak_memory(), True
    while again:
        parts, shared = message
        job = Job(*parts)
        allow_seconds(limits.timeout * job.turns(), shared)
        trial = Trial(lines, job, limits)
        verdict = score(trial)
        plain = not (trial.candidate and trial.candidate.objects)  # plain data, and the function of the tests
        again = shared and plain and peak_memory() < size + LEFT_OVER
        trainer.send([verdict, again])
        if again:
            message = trainer.receive()


def peak_memory():
    """Return the most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def allow_seconds(timeout, shared):
    """Let this process take about `timeout` seconds of CPU from now on. Then the kernel ends it (SIGXCPU).

    Python cannot interrupt a test that works on too large an answer, sum(range(answer)). A test that obeys an answer
    might catch the signal, so in a judge of its own a second one follows that cannot be caught."""
    seconds, most = math.ceil(time.process_time() + timeout + 0.5), resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, most if shared else seconds + 1))
