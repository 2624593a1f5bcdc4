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

from judges.sandbox.judge import Trial, score
from judges.sandbox.tests.asserts import name_of, parse
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
    preload()
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
        job = Channel(trainer).receive()
        prepare(*job)
        pid = os.fork()
        if not pid:
            warden.close()
            judge(job, Channel(trainer), lines, wall, limits, me, more)
        for sock in (trainer, *lines):
            sock.close()
        warden.sendall(WORD.pack(pid, 0))
    return 0


def prepare(_, tests, entry, language, shared):
    """Parse the tests of a job, and import what they name, once for all judges: a fork keeps it."""
    for test in tests:
        with contextlib.suppress(BaseException):  # an import may also end the process
            parsed = parse(test, name_of(entry))
            new = parsed.library - sys.modules.keys() - {"antigravity", "this"}
            for name in new:
                importlib.import_module(name)
            if new:
                gc.freeze()


def judge(job, trainer, lines, wall, limits, parent, more) -> NoReturn:
    """Be a judge: lock oneself in and score completions for the trainer.

    lines: to the zygote and to the warden; wall: from walls.lock; more: from walls.become_countable"""
    try:
        null = os.open("/dev/null", os.O_RDWR)  # the terminal is the trainer's
        for fd in range(3):
            os.dup2(null, fd)
        try:
            limit(**more)
            shut(wall, parent)
            serve(job, trainer, lines, limits)
        except Exception as e:
            trainer.send([describe(e), False])
    finally:
        os._exit(0)


def serve(job, trainer, lines, limits):
    """Score jobs [code, tests, entry, language, shared], which the trainer sends, while each leaves nothing behind.

    The trainer gets [verdict, again]. If `shared` and `again` are True, this judge waits for another job."""
    size, again = peak_memory(), True
    while again:
        code, tests, entry, language, shared = job
        allow_seconds(limits.timeout, shared)
        trial = Trial(lines, code, language, limits)
        verdict = score(trial, tests, entry)
        again = shared and not trial.met_objects() and peak_memory() < size + LEFT_OVER
        trainer.send([verdict, again])
        if again:
            job = trainer.receive()


def peak_memory():
    """Return the most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def allow_seconds(timeout, shared):
    """Let this process take about `timeout` seconds of CPU from now on. Then the kernel ends it (SIGXCPU).

    Python cannot interrupt a test that works on too large an answer, sum(range(answer)). A test that obeys an answer
    might catch the signal, so in a judge of its own a second one follows that cannot be caught."""
    seconds, most = math.ceil(time.process_time() + timeout + 0.5), resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, most if shared else seconds + 1))


def preload() -> None:
    """Run, before judges are forked, what most of them need: see zygote.preload."""
    sys.modules["random"].seed(1)  # the same verdict in every worker
    for _ in range(16):
        warm_up()
        parse.cache_clear()
    gc.collect()
    gc.freeze()


class Rehearsal(Trial):
    """A job whose zygote and candidate are here, and answer with what they always say."""

    def ask_zygote(self, pid, seconds, fds=()):
        if pid:
            return 0, 0.0
        self.there = Channel(socket.socket(fileno=os.dup(fds[0])))
        for message in ("ready", "loaded", ["return", {"dict": [["f", {"mine": 0}]]}, []], *[["return", 3, []]] * 3):
            self.there.send(message)
        return 1, seconds


def warm_up():
    """Do what a judge does. See zygote.warm_up."""
    ours, theirs = socket.socketpair()
    tests = [f"assert f({i}, 2) == 3" for i in range(3)]
    with ours, theirs:
        Channel(theirs).send(["def f(x): return 3", tests, "f", "python", False])
        code, tests, entry, language, _ = Channel(ours).receive()
        verdict = score(Rehearsal((ours, ours), code, language, Limits(3.0, 0, [], [], [])), tests, entry)
        Channel(ours).send(verdict)
