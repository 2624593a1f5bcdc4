"""Judge."""
import importlib
import json
import math
import os
import resource
import select
import socket
import sys
import time

from judges.asserts import run_assert
from judges.languages import CHECKS, COMPILE_SECONDS, SYNTAX, command_for, java_names
from judges.peer import MESSAGE, Peer
from judges.values import Dead, Failed, describe, plain
from judges.walls import ALL, JUDGE, LINUX, LIST, MACHINE, READ, SYSTEM, become_countable, limit, lock, shut
from judges.zygote import WORD

JUDGE_MEMORY = 1 << 30  # a test works on what the candidate answered: "x" * answer must not eat the machine
JUDGE_KEEPS = 128 << 20  # bytes of the largest judge that goes on: what Python has taken it does not give back
WALL = 20  # seconds of wall-clock time per second of CPU: with six workers on a busy core each gets a tenth of it
GRACE = 10  # seconds until a judge that does not react is replaced


def tidy(text):
    """What a program printed, without the white space nobody sees."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def nameless_file(text):
    """An open file with this text and nothing to remove afterwards."""
    if LINUX: f = open(os.memfd_create("stdin"), "w+b")
    else: f = importlib.import_module("tempfile").TemporaryFile()
    f.write(text.encode("utf-8", "replace"))
    f.seek(0)
    return f


class Job:
    """One completion in the judge: its deadline, the processes that run it, and the CPU time they took."""

    def __init__(self, lines, code, language, limits):
        self.lines, self.code, self.language, self.limits = lines, code, language, limits
        self.deadline = time.monotonic() + WALL * limits.timeout
        self.running, self.functions, self.caller, self.name = {}, {}, None, None
        self.seconds, self.started = 0.0, []

    def zygote(self, pid, seconds, fds=()):
        """pid 0: have it fork a candidate with these CPU seconds and descriptors, -> its pid and these; else end that
        one, -> exit status, seconds it took."""
        socket.send_fds(self.lines[0], [WORD.pack(pid, seconds)], fds)
        return WORD.unpack(self.lines[0].recv(WORD.size))

    def warden(self, *request, fds=()):
        """Have the warden do something -> its answer."""
        socket.send_fds(self.lines[1], [json.dumps(request).encode()], fds)
        return json.loads(self.lines[1].recv(4096))

    def start(self, request, *files):
        """A new process with these files, after it has locked itself in and said so -> its pid, a line to it. The
        request is what the warden shall start, or for a candidate the CPU seconds."""
        ours, theirs = socket.socketpair()
        with theirs:
            fds, python = [f.fileno() for f in (theirs, *files)], type(request) is float
            pid = self.zygote(0, request, fds)[0] if python else self.warden("program", *request, fds=fds)
        self.running[pid] = python, ours
        self.started.append(pid)
        peer = Peer(ours, limit=MESSAGE, deadline=max(self.deadline, time.monotonic() + GRACE))
        try: hello = peer.receive()
        except Dead as e: hello = str(e)
        if hello != "ready": raise OSError(f"a candidate could not be locked in: {hello}")
        peer.deadline = self.deadline
        return pid, peer

    def left(self):
        """The CPU seconds that the completion may still take."""
        if (left := self.limits.timeout - self.seconds) <= 0: raise Dead("out of time")
        return left

    def stop(self, pid):
        python, sock = self.running.pop(pid)
        sock.close()
        status, seconds = self.zygote(pid, -1) if python else self.warden("end", pid)
        self.seconds += seconds
        return status

    def close(self):
        for pid in list(self.running): self.stop(pid)

    def reason(self):
        """Why the warden has ended a process of this job, or ""."""
        return self.warden("why", self.started)

    def load(self):
        """A candidate that has run the code and answers calls."""
        _, peer = self.start(self.left())
        peer.send([self.code, False])
        if (said := peer.receive()) != "loaded": peer.die(said if type(said) is str else "sent nonsense")
        return peer

    def listen(self, source, most):
        """What comes from a file or socket until its other end is closed, at most so many bytes."""
        data = b""
        while len(data) < most:
            ready, _, _ = select.select([source], [], [], max(0, self.deadline - time.monotonic()))
            if not ready: raise Dead("out of time")
            if not (part := os.read(source.fileno(), most - len(data))): break
            data += part
        return data

    def run_program(self, request, text="", code=None):
        """Run a program on this input -> what it printed. Raises with its last words unless it exits with 0."""
        read, write = os.pipe()
        with nameless_file(text) as stdin, open(read, "rb") as out:
            with open(write, "wb") as stdout: pid, peer = self.start(request, stdin, stdout)
            if code is not None: peer.send([code, True])
            printed = self.listen(out, MESSAGE)
            if len(printed) == MESSAGE: raise Failed(f"printed {MESSAGE} bytes")
            words = self.listen(peer.sock, 300).decode("ascii", "replace")  # until it has exited
        printed = printed.decode("utf-8", "replace")
        if status := self.stop(pid):
            if why := self.reason(): raise Dead(why)
            raise Failed(words or f"exit status {status} {printed[-200:]}")
        return printed

    def compile(self, stage, seconds):
        """Write a program of another language to a file and compile it, or only check it, in these CPU seconds."""
        self.name, code = java_names(self.code) if self.language == "java" else ("Main", self.code)
        self.deadline = time.monotonic() + WALL * seconds
        with nameless_file(code) as source: self.warden("write", self.language, self.name, fds=[source.fileno()])
        try:
            if command_for(self.language, stage):
                self.run_program([self.language, self.name, stage, seconds])
        except Failed as e:
            slow = self.seconds > 0.9 * seconds  # the kernel has ended the compiler
            raise Dead("out of time: compiling" if slow else f"does not compile: {e}") from None
        self.seconds, self.deadline = 0.0, time.monotonic() + WALL * self.limits.timeout

    def run_test(self, test, entry):
        if type(test) is str:  # all asserts of a completion share one candidate: state lives from call to call
            self.caller = self.caller or self.load()
            try: run_assert(self.caller, test, entry, self.functions)
            except Dead: raise
            except BaseException as e: raise Failed(describe(e)) from None  # also a test's SystemExit
            if self.caller.dead: raise Dead(self.caller.dead)
        elif test == SYNTAX: self.compile("check", self.limits.timeout + CHECKS[self.language][1])
        else:
            if self.language == "python": printed = self.run_program(self.left(), test["input"], self.code)
            else:
                if not self.name: self.compile("compile", COMPILE_SECONDS)
                request = [self.language, self.name, "run", self.left()]
                printed = self.run_program(request, test["input"])
            if (printed := tidy(printed)) != tidy(test["output"]): raise Failed(f"printed {printed[:100]!r}")
        if time.monotonic() > self.deadline: raise Dead("out of time")


def score(job, tests, entry):
    """Run the tests of a job -> {"passed": [bool, ...], "error": the first failure, "seconds": of CPU}."""
    passed, error = [False] * len(tests), ""
    try:
        for i, test in enumerate(tests):
            try:
                job.run_test(test, entry)
                passed[i] = True
            except Failed as e: error = error or f"test {i + 1}: {e}"
    except Dead as e: error = error or job.reason() or str(e)
    finally: job.close()
    return {"passed": passed, "error": plain(error), "seconds": job.seconds}


def judge(sock, lines, folder, limits, parent):
    """Score what the trainer sends, one completion after the other, until the warden ends this process."""
    trainer, most = Peer(sock), resource.getrlimit(resource.RLIMIT_CPU)[1]
    os.environ["TMPDIR"] = folder
    limit(AS=JUDGE_MEMORY, FSIZE=JUDGE_MEMORY, NOFILE=256, **become_countable())
    shut(lock(SYSTEM | dict.fromkeys(limits.libraries, READ | LIST) | {folder: ALL}, JUDGE, limits.unsafe), parent)
    try:
        while True:
            code, tests, entry, language = trainer.receive()
            # A test that works on too large an answer, sum(range(answer)), is beyond Python's reach: the kernel ends
            # this judge. What the job before took does not count.
            used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + limits.timeout + 0.5), most))
            verdict = score(Job(lines, code, language, limits), tests, entry)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if LINUX else 1)
            trainer.send([verdict, size <= JUDGE_KEEPS])
    except Dead: return 0
    except Exception as e:
        print(f"the sandbox: {describe(e)}", file=sys.stderr)
        return MACHINE
