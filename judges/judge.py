"""The judge: the process that has the tests, runs them, and says which have passed.

It meets nothing of a completion but plain data and stubs (peer.py). Still it stands behind the same walls as a
candidate, except that it may write to a folder of its own: a test that calls eval on an answer hands over this judge
and the verdict on this completion, and nothing else. For each completion the `bench` forks a judge, as a zygote does.

Python completions run in processes that the zygote forks, one for all asserts of a completion and one per input of a
program. Programs of other languages are started by the warden. Each process says "ready" when it has locked itself in,
and only then gets the code.

A completion may take `timeout` seconds of CPU. The time that it waits for a busy core does not count, and a far longer
deadline of wall-clock time stands behind this.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import socket
import sys
import time
from typing import Any, NoReturn

from judges.asserts import name_of, parse, run_assert
from judges.channel import MESSAGE, Channel, Dead
from judges.languages import COMPILE_SECONDS, LANGUAGES, SYNTAX, command_for, java_names
from judges.peer import Peer
from judges.values import describe, one_line
from judges.walls import (
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
from judges.zygote import WORD

JUDGE_MEMORY = 1 << 30  # a test works on what the candidate answered: "x" * answer must not eat the machine
GRACE = 10  # seconds until a process that does not react is given up


class Failed(Exception):
    """A completion's own failure of one test. Anything else that is raised is the machine's: it ends the judge."""


def without_end_space(text):
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def nameless_file(text):
    """Open a file without a name that holds this text in UTF-8, at its beginning."""
    if LINUX:
        f = open(os.memfd_create("stdin"), "w+b")
    else:
        f = importlib.import_module("tempfile").TemporaryFile()
    f.write(text.encode("utf-8", "replace"))
    f.seek(0)
    return f


class Job:
    """One completion: the processes that run it, the CPU seconds they took, and the deadline of what runs now."""

    def __init__(self, lines, code, language, limits):
        self.to_zygote, self.to_warden = lines
        self.code, self.language, self.limits = code, language, limits
        self.seconds, self.started, self.running = 0.0, [], {}  # pids; {pid: (the zygote's child?, its socket)}
        self.candidate, self.functions = None, {}  # one for all asserts, so that its state lives on; stubs by name
        self.program = None  # the name under which a program of another language is compiled
        self.set_deadline(limits.timeout)

    def set_deadline(self, seconds):
        self.deadline = time.monotonic() + self.limits.wall * seconds

    def left(self):
        """Return the CPU seconds that the completion may still take; raise Dead if there are none."""
        left = self.limits.timeout - self.seconds
        if left <= 0:
            raise Dead("out of time")
        return left

    def ask_zygote(self, pid, seconds, fds=()):
        """Have the zygote end process `pid` (seconds: -1) -> its exit status, CPU seconds.

        pid 0: have it fork a candidate that may take `seconds` of CPU -> its pid, `seconds`."""
        socket.send_fds(self.to_zygote, [WORD.pack(pid, seconds)], fds)
        return WORD.unpack(self.to_zygote.recv(WORD.size))

    def ask_warden(self, *request, fds=()):
        """Send the warden a request -> its answer. request: a verb of Warden.answer and its arguments."""
        socket.send_fds(self.to_warden, [json.dumps(request).encode()], fds)
        return json.loads(self.to_warden.recv(4096))

    def start(self, program, *files):
        """Start a process and wait until it is locked in -> its pid, the Peer to talk to it.

        program: [language, name, stage, CPU seconds] for the warden, or None for a candidate
        files: none for a module that answers calls; stdin and stdout for a program"""
        ours, theirs = socket.socketpair()
        with theirs:
            fds = [f.fileno() for f in (theirs, *files)]
            if program:
                pid = self.ask_warden("program", *program, fds=fds)
            else:
                pid, _ = self.ask_zygote(0, self.left(), fds)
        self.running[pid] = program is None, ours
        self.started.append(pid)
        peer = Peer(ours, limit=MESSAGE, deadline=max(self.deadline, time.monotonic() + GRACE))
        try:
            hello = peer.receive()
        except Dead as e:
            hello = str(e)
        if hello != "ready":
            raise OSError(f"a program or a candidate could not be locked in: {hello}")
        peer.deadline = self.deadline
        return pid, peer

    def stop(self, pid):
        of_zygote, sock = self.running.pop(pid)
        sock.close()
        status, seconds = self.ask_zygote(pid, -1) if of_zygote else self.ask_warden("end", pid)
        self.seconds += seconds
        return status

    def close(self):
        for pid in list(self.running):
            self.stop(pid)

    def why_ended(self):
        """Return why the warden has ended a process of this job, or ""."""
        return self.ask_warden("why", self.started)

    def loaded_candidate(self):
        """Return the Peer of the candidate that has run the code and answers calls; the first call starts it."""
        if not self.candidate:
            _, peer = self.start(None)
            peer.send([self.code, False])
            said = peer.receive()
            if said != "loaded":
                peer.die(said if type(said) is str else "sent nonsense")
            self.candidate = peer
        return self.candidate

    def read(self, source, most):
        """Read a file or socket until its other end is closed, at most `most` bytes; Dead at the deadline."""
        data = b""
        while len(data) < most:
            ready, _, _ = select.select([source], [], [], max(0, self.deadline - time.monotonic()))
            if not ready:
                raise Dead("out of time")
            part = os.read(source.fileno(), most - len(data))
            if not part:
                break
            data += part
        return data

    def run_program(self, program, text=""):
        """Run a program, as in `start`, on the input `text` -> its output. Failed or Dead unless it exits with 0."""
        read, write = os.pipe()
        with nameless_file(text) as stdin, open(read, "rb") as output:
            with open(write, "wb") as stdout:
                pid, peer = self.start(program, stdin, stdout)
            if not program:
                peer.send([self.code, True])
            printed = self.read(output, MESSAGE)
            if len(printed) == MESSAGE:
                raise Failed(f"printed {MESSAGE} bytes")
            last_words = self.read(peer.sock, 300).decode("ascii", "replace")  # until it has exited
        printed = printed.decode("utf-8", "replace")
        if status := self.stop(pid):
            if why := self.why_ended():
                raise Dead(why)
            raise Failed(last_words or f"exit status {status} {printed[-200:]}")
        return printed

    def compile(self, stage, seconds):
        """Compile the code of another language (stage "compile"), or only check it ("check"), within these CPU seconds,
        which the completion is not charged for. Raise Dead if that fails."""
        self.program, code = java_names(self.code) if self.language == "java" else ("Main", self.code)
        self.set_deadline(seconds)
        with nameless_file(code) as source:
            self.ask_warden("write", self.language, self.program, fds=[source.fileno()])
        try:
            if command_for(self.language, stage):
                self.run_program([self.language, self.program, stage, seconds])
        except Failed as e:
            slow = self.seconds > 0.9 * seconds  # the kernel has ended the compiler
            raise Dead("out of time: compiling" if slow else f"does not compile: {e}") from None
        self.seconds = 0.0
        self.set_deadline(self.limits.timeout)

    def run_asserts(self, test, entry):
        candidate = self.loaded_candidate()
        try:
            run_assert(candidate, test, entry, self.functions)
        except Dead:
            raise
        except BaseException as e:  # also a test's SystemExit
            raise Failed(describe(e)) from None
        if candidate.dead:
            raise Dead(candidate.dead)

    def run_with_input(self, test):
        program = None
        if self.language != "python":
            if not self.program:
                self.compile("compile", COMPILE_SECONDS)
            program = [self.language, self.program, "run", self.left()]
        printed = without_end_space(self.run_program(program, test["input"]))
        if printed != without_end_space(test["output"]):
            raise Failed(f"printed {printed[:100]!r}")

    def run_test(self, test, entry):
        if type(test) is str:
            self.run_asserts(test, entry)
        elif test == SYNTAX:
            self.compile("check", self.limits.timeout + LANGUAGES[self.language].check_seconds)
        else:
            self.run_with_input(test)
        if time.monotonic() > self.deadline:
            raise Dead("out of time")


def score(job: Job, tests: list, entry: str) -> dict[str, Any]:
    """Run the tests of a job -> {"passed": [bool, ...], "error": the first failure, "seconds": of CPU}."""
    passed, error = [False] * len(tests), ""
    try:
        for i, test in enumerate(tests):
            try:
                job.run_test(test, entry)
                passed[i] = True
            except Failed as e:
                error = error or f"test {i + 1}: {e}"
    except Dead as e:
        error = error or job.why_ended() or str(e)
    finally:
        job.close()
    return {"passed": passed, "error": one_line(error), "seconds": job.seconds}


def bench(warden: socket.socket, folder: str, limits: Limits, parent: int) -> int:
    """Fork a judge for each completion, and end it, as the warden asks, until the warden (pid `parent`) has gone.

    folder: where a test may write"""
    preload()
    os.environ["TMPDIR"] = folder
    more = become_countable()  # for judges: with it the bench itself might be unable to fork
    limit(AS=JUDGE_MEMORY, FSIZE=JUDGE_MEMORY, NOFILE=256)
    rules = SYSTEM | dict.fromkeys(limits.libraries, READ | LIST) | {folder: ALL}
    me, wall = os.getpid(), lock(rules, JUDGE, limits.unsafe)
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


def prepare(_, tests, entry, language):
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
    """Score a completion for the trainer.

    lines: to the zygote and to the warden; wall: from walls.lock; more: from walls.become_countable. Python cannot
    interrupt a test that works on too large an answer, sum(range(answer)). So the kernel ends this judge (SIGXCPU) once
    it has taken about `limits.timeout` seconds of CPU."""
    try:
        null = os.open("/dev/null", os.O_RDWR)  # the terminal is the trainer's
        for fd in range(3):
            os.dup2(null, fd)
        seconds = math.ceil(limits.timeout + 0.5)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        verdict: dict | str
        try:
            limit(**more)
            shut(wall, parent)
            code, tests, entry, language = job
            verdict = score(Job(lines, code, language, limits), tests, entry)
        except Exception as e:
            verdict = describe(e)
        trainer.send(verdict)
    finally:
        os._exit(0)


def preload() -> None:
    """Run, before judges are forked, what most of them need: see zygote.preload."""
    sys.modules["random"].seed(1)  # the same verdict in every worker
    for _ in range(16):
        warm_up()
        parse.cache_clear()
    gc.collect()
    gc.freeze()


class Rehearsal(Job):
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
        Channel(theirs).send(["def f(x): return 3", tests, "f", "python"])
        code, tests, entry, language = Channel(ours).receive()
        verdict = score(Rehearsal((ours, ours), code, language, Limits(3.0, 0, [], [], [])), tests, entry)
        Channel(ours).send(verdict)
