"""The judge: the process that has the tests, runs them, and says which have passed.

It meets nothing of a completion but plain data and stubs (peer.py). Still it stands behind the same walls as a
candidate, except that it may write to a folder of its own: a test that calls eval on an answer hands over this judge
and the verdict on this completion, and nothing else. For each completion the `bench` forks a judge, as a zygote does.

Python completions run in processes that the zygote forks, one for all asserts of a completion and one per input of a
program. Programs of other languages are started by the warden. Each process says "ready" when it has locked itself in,
and only then gets the code.

The asserts of a completion together may take `timeout` seconds of CPU, and so may each input of a program, as in
contests: its start counts, too. The first one that is out of time is the last. The time that a process waits for a busy
core does not count, and a far longer deadline of wall-clock time stands behind this.
"""

import importlib
import json
import os
import select
import socket
import time

from judges.sandbox.jobs import Verdict
from judges.sandbox.languages import COMPILE_SECONDS, LANGUAGES, SYNTAX, command_for, java_names
from judges.sandbox.tests.asserts import run_assert
from judges.sandbox.walls import LINUX
from judges.sandbox.wire.channel import MESSAGE, Dead
from judges.sandbox.wire.peer import Peer
from judges.sandbox.wire.values import describe, one_line
from judges.sandbox.zygote import WORD

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


class Trial:
    """One completion: the processes that run it, the CPU seconds they took, and the deadline of what runs now."""

    def __init__(self, lines, job, limits):
        self.to_zygote, self.to_warden = lines
        self.job, self.limits = job, limits
        self.seconds, self.running = 0.0, {}  # {pid: (the zygote's child?, its socket)}
        self.candidate, self.functions = None, {}  # one for all asserts, so that its state lives on; stubs by name
        self.program = None  # the name under which a program of another language is compiled
        self.set_deadline(limits.timeout)

    def set_deadline(self, seconds):
        self.deadline = time.monotonic() + self.limits.wall * seconds

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
                pid, _ = self.ask_zygote(0, self.limits.timeout, fds)
        self.running[pid] = program is None, ours
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

    def why_ended(self, *stopped):
        """Return why the warden has ended what runs, or one of the pids that were stopped since; or ""."""
        return self.ask_warden("why", [*self.running, *stopped])

    def loaded_candidate(self):
        """Return the Peer of the candidate that has run the code and answers calls; the first call starts it."""
        if not self.candidate:
            _, peer = self.start(None)
            peer.send([self.job.code, False])
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
                peer.send([self.job.code, True])
            printed = self.read(output, MESSAGE)
            if len(printed) == MESSAGE:
                raise Failed(f"printed {MESSAGE} bytes")
            last_words = self.read(peer.sock, 300).decode("ascii", "replace")  # until it has exited
        printed = printed.decode("utf-8", "replace")
        if status := self.stop(pid):
            if why := self.why_ended(pid):
                raise Dead(why)
            raise Failed(last_words or f"exit status {status} {printed[-200:]}")
        return printed

    def compile(self, stage, seconds):
        """Compile the code of another language (stage "compile"), or only check it ("check"), within these CPU seconds,
        which the completion is not charged for. Raise Dead if that fails."""
        language, code, name = self.job.language, self.job.code, "Main"
        if language == "java":
            name, code = java_names(code)
        self.program = name
        self.set_deadline(seconds)
        with nameless_file(code) as source:
            self.ask_warden("write", language, name, fds=[source.fileno()])
        try:
            if command_for(language, stage):
                self.run_program([language, name, stage, seconds])
        except Failed as e:
            slow = self.seconds > 0.9 * seconds  # the kernel has ended the compiler
            raise Dead("out of time: compiling" if slow else f"does not compile: {e}") from None
        self.seconds = 0.0

    def run_asserts(self, test):
        candidate = self.loaded_candidate()
        try:
            run_assert(candidate, test, self.job.entry, self.functions)
        except Dead:
            raise
        except BaseException as e:  # also a test's SystemExit
            raise Failed(describe(e)) from None
        if candidate.dead:
            raise Dead(candidate.dead)

    def run_with_input(self, test):
        program = None
        if self.job.language != "python":
            if not self.program:
                self.compile("compile", COMPILE_SECONDS)
            program = [self.job.language, self.program, "run", self.limits.timeout]
        self.set_deadline(self.limits.timeout)
        printed = without_end_space(self.run_program(program, test["input"]))
        if printed != without_end_space(test["output"]):
            raise Failed(f"printed {printed[:100]!r}")

    def run_test(self, test):
        if type(test) is str:
            self.run_asserts(test)
        elif test == SYNTAX:
            self.compile("check", self.limits.timeout + LANGUAGES[self.job.language].check_seconds)
        else:
            self.run_with_input(test)
        if time.monotonic() > self.deadline:
            raise Dead("out of time")


def score(trial: Trial) -> Verdict:
    """Run the tests of a trial."""
    passed, error = [False] * len(trial.job.tests), ""
    try:
        for i, test in enumerate(trial.job.tests):
            try:
                trial.run_test(test)
                passed[i] = True
            except Failed as e:
                error = error or f"test {i + 1}: {e}"
    except Dead as e:
        error = error or trial.why_ended() or str(e)
    finally:
        trial.close()
    return Verdict(passed, one_line(error), trial.seconds)
