"""Run code that a model wrote against tests: fast, contained, hard to cheat. Standard library only, and never jax.

    trainer --job--> judge --one socket per completion--> zygote --fork--> candidate
    (Sandbox)        runs the tests                       sees no test     runs the untrusted code

Scoring: tests run in the judge. There the candidate's functions are stubs that send arguments out and get plain data
back, so a forged answer is worth what a wrong answer is. Objects of the candidate's classes stay where they are: their
stubs ask for attributes and methods, and never whether they equal a plain value. The candidate shares no memory with a
test. The parent of judge and zygote, their warden, watches the candidates and starts programs. It sees neither tests
nor code.

Containment (Linux): a candidate cannot start processes, signal, use the network, write, or read more than Python's
standard library and the system's; memory, CPU time, threads and descriptors are limited. The judge stands behind the
same walls, but for a folder of its own that it may write to: a test that calls eval on an answer hands over this judge
and its verdicts, not the machine. Workers try to get out before they are used, and refuse to work if they can. `python
judges/sandbox.py` says what holds here. Kernel bugs and side channels are not contained.

Programs in other languages run behind the same walls, one process per test. Weaker there: they can read the toolchain
(/usr, /lib, but no Python packages) and exec it (what it starts stays inside); compilers, not the programs, can fork,
and write to one folder.

Time: a completion may take `timeout` seconds of CPU, and as long without doing anything while its test waits. What it
waits for a busy core is not its fault and does not count; a far longer limit of wall-clock time stands behind this.
"""
import contextlib
import glob
import importlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections import deque
from typing import NamedTuple

if __name__ == "__main__":  # run as a script: imports come from the project's folder, not from this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from judges.judge import GRACE, JUDGE_MEMORY, WALL
from judges.languages import CHECKS, COMPILE_SECONDS, COMPILER_MEMORY, LANGUAGES, SYNTAX, command_for
from judges.peer import MESSAGE, Peer
from judges.values import Dead, plain
from judges.walls import LIBRARIES, MACHINE, Limits, without_packages

HERE = os.path.dirname(os.path.abspath(__file__))
HOLDS = ("process", "network", "signal", "write", "read", "memory")  # what is contained, and tried before use
RETRY = 1  # seconds until a batch on which the machine failed is tried again
PROBE = """
import os, socket
def escaped(what, much=0):
    try:
        if what == "process": os.fork() or os._exit(0)
        if what == "network": socket.socket()
        if what == "signal": os.kill(os.getppid(), 0)
        if what == "write": os.remove(open(f"/tmp/sandbox-probe-{os.getpid()}", "w").name)
        if what == "read": os.listdir("/")
        if what == "memory": bytearray(much)
        return True
    except (OSError, MemoryError):
        return False
"""
PROGRAM_PROBE = """
import sys
compiling = {compiled} and not os.path.exists("compiled")  # compilers start processes, and write to their folder
out = [what for what in {held} if not (compiling and what == "process") and escaped(what, {much})]
try: compiling and open("compiled", "w").close()
except OSError: out.append("write")  # without Landlock a compiler may write everywhere or nowhere
print(*out)
sys.exit(bool(out))
"""
ADVICE = "Use Linux 5.13 or newer with seccomp and Landlock, or a virtual machine, or accept it: --sandbox_unsafe="
# Tests that may run what an answer says. Their judge may since then do what that answer wants: it judges no other.
OBEYS = re.compile(r"\b(eval|exec|pickle|marshal|shelve|runpy|ctypes|__import__|import_module)\b")


def named(error):
    """Which of HOLDS an error names, all if none."""
    return [x for x in HOLDS if re.search(rf"\b{x}\b", error)] or list(HOLDS)


def checked(peer, tests):
    """A judge's answer of the right form: a test that evaluates an answer may have made it do anything."""
    reply = peer.receive()
    try:
        verdict, goes_on = reply
        passed, error, seconds = verdict["passed"], plain(verdict["error"]), float(verdict["seconds"])
        if [*map(type, passed)] != [bool] * tests: raise ValueError(passed)
    except (ValueError, TypeError, LookupError, AttributeError): peer.die("sent nonsense")
    return {"passed": passed, "error": error, "seconds": seconds}, goes_on


class Broken(RuntimeError):
    """The machine failed, perhaps for the moment."""


class Worker(NamedTuple):
    process: object
    peer: Peer


def packages():
    """The folders from which this process imports what is not Python's, and the one with this program."""
    library = os.path.dirname(os.__file__)
    own = [place for place in sys.path if "-packages" in place
           or not ((place + "/").startswith(library + "/") or place.endswith("lib-dynload"))]
    return sorted({os.path.realpath(place) for place in [*own, os.path.dirname(HERE)]
                   if os.path.isdir(place)})


class Sandbox:
    """Sandbox(workers, timeout in s, memory in bytes, unsafe): starts judges when they are needed; close() ends them.

    `unsafe` names what is accepted not to be contained. Six workers per core: a completion that sleeps, or one whose
    loop shares its core, holds its worker for the whole timeout and longer, and the others should not wait."""

    def __init__(self, workers=None, timeout=3.0, memory=512 << 20, unsafe=()):
        from concurrent.futures import ThreadPoolExecutor
        if wrong := set(unsafe) - set(HOLDS):
            raise ValueError(f"sandbox_unsafe: {', '.join(sorted(wrong))} is not among {', '.join(HOLDS)}")
        self.workers = workers or min(64, 6 * os.cpu_count())
        closed = packages()
        self.limits = Limits(timeout, memory, list(unsafe), without_packages(LIBRARIES, closed), closed)
        self.idle = deque()
        self.pool = ThreadPoolExecutor(self.workers)

    def __enter__(self): return self
    def __exit__(self, *_): self.close()

    def close(self):
        self.pool.shutdown(cancel_futures=True)
        self.end_idle()

    def end_idle(self):
        while self.idle: self.end(self.idle.pop())

    def run(self, jobs):
        """[(code, [test, ...], entry[, language]), ...] -> [{"passed": [bool, ...], "error": str}, ...] in that order.

        A test is Python that asserts, or {"input": str, "output": str} for a program, or SYNTAX. `entry` is the
        function asked for, "" if unknown. A verdict has the CPU "seconds", too. Raises when this machine fails, twice:
        a False is always the candidate's own."""
        jobs = [check_job(i, *job) for i, job in enumerate(jobs)]
        try: return self.try_batch(jobs)
        except Broken as e:
            print(f"the sandbox: {e}; once more, in {RETRY} s", file=sys.stderr)
            self.end_idle()
            time.sleep(RETRY)
            return self.try_batch(jobs)

    def try_batch(self, jobs):
        if jobs: self.idle.append(self.ready())  # every batch begins by trying to get out
        for probe in sorted({"compiling probe" if command_for(language, "compile") else "probe"
                             for *_, language in jobs if language != "python"}): self.try_programs(probe)
        try: verdicts = [self.pool.submit(self.score, job) for job in jobs]
        except RuntimeError as e: raise Broken(f"no thread starts: {e}") from None
        importlib.import_module("concurrent.futures").wait(verdicts)
        return [verdict.result() for verdict in verdicts]

    def spawn(self):
        """A new worker, by exec: nothing of the trainer's memory, threads, devices, files or environment is in it."""
        from subprocess import DEVNULL, Popen
        ours, theirs = socket.socketpair()
        found = {k: os.environ[k] for k in ("LD_LIBRARY_PATH", "PYTHONHOME") if k in os.environ}  # Python may need them
        found["TMPDIR"] = importlib.import_module("tempfile").gettempdir()  # where `end` looks for what it leaves
        command = [sys.executable, "-s", "-S", "-W", "ignore", os.path.join(HERE, "warden.py"), str(theirs.fileno())]
        command += [json.dumps(self.limits)]
        with theirs:
            try: process = Popen(command, pass_fds=[theirs.fileno()], cwd="/", stdin=DEVNULL, stdout=DEVNULL,
                                 start_new_session=True, env={"PYTHONHASHSEED": "0"} | found)
            except OSError as e:
                ours.close()
                raise Broken(f"no worker starts: {e}") from None
        return Worker(process, Peer(ours, limit=MESSAGE))

    def end(self, worker):
        """A worker that has lost its trainer leaves by itself, a stuck one is killed -> exit status."""
        worker.peer.sock.close()
        with contextlib.suppress(importlib.import_module("subprocess").TimeoutExpired): worker.process.wait(1)
        worker.process.kill()
        folders = f"{importlib.import_module('tempfile').gettempdir()}/sandbox-{os.getpid()}-{worker.process.pid}-*"
        for left in glob.glob(folders): shutil.rmtree(left, ignore_errors=True)
        return worker.process.wait()

    def ask(self, worker, job):
        """-> the verdict, or the exit status of a judge that died over the job."""
        patience = WALL * (self.limits.timeout + (job[3] != "python") * COMPILE_SECONDS) + GRACE
        worker.peer.deadline = time.monotonic() + patience
        try:
            worker.peer.send(job)
            verdict, goes_on = checked(worker.peer, len(job[1]))
        except Dead as e:
            status = self.end(worker)
            if str(e) != "out of time" and status != -signal.SIGXCPU: return status
            error = "out of time: a test works on too large an answer"
            return {"passed": [False] * len(job[1]), "error": error, "seconds": self.limits.timeout}
        if not goes_on or any(type(test) is str and OBEYS.search(test) for test in job[1]): self.end(worker)
        return verdict

    def probe(self, worker):
        """Let candidate and judge try to get out -> the names of what did not hold; None, and an end, if nothing can
        be told."""
        much = 2 * max(self.limits.memory, JUDGE_MEMORY)
        tests = [PROBE + f"assert not (out := [x for x in {HOLDS} if escaped(x, {much})]), out"]  # the judge itself
        tests += [f"assert not escaped({x!r}, {much})" for x in HOLDS]
        tests += ["assert escaped('')", "assert not escaped('')"]  # and let it be scored
        verdict = self.ask(worker, [PROBE, tests, "escaped", "python"])
        judges, *held, right, wrong = [False, False, True] if type(verdict) is int else verdict["passed"]
        if right and not wrong:
            judges_out = [] if judges else named(verdict["error"])
            return [x for x, holds in zip(HOLDS, held, strict=True) if not holds or x in judges_out]
        self.end(worker)

    def ready(self):
        """A worker that has just been probed."""
        for _ in range(self.workers + 3):  # all that are idle may have been killed, and a busy machine is tried again
            try: worker = self.idle.pop()
            except IndexError: worker = self.spawn()
            if (out := self.probe(worker)) is None: continue
            if not (out := [x for x in out if x not in self.limits.unsafe]): return worker
            self.end(worker)
            raise RuntimeError(f"this machine does not contain: {', '.join(out)}. {ADVICE}{self.accepting(out)}")
        raise Broken("the sandbox does not work on this machine: see the errors above, or try a longer timeout")

    def accepting(self, names):
        return ",".join(x for x in HOLDS if x in {*names, *self.limits.unsafe})

    def try_programs(self, probe):
        """The same for the walls around programs of other languages, and their compilers."""
        held = [x for x in HOLDS if x not in self.limits.unsafe]
        tries = PROGRAM_PROBE.format(held=held, much=2 * COMPILER_MEMORY, compiled=probe != "probe")
        if error := self.score([PROBE + tries, [{"input": "", "output": ""}], "", probe])["error"]:
            names = self.accepting(named(error))
            raise RuntimeError(f"this machine does not contain programs: {error}. {ADVICE}{names}")

    def score(self, job):
        """One job on a free worker. If its judge dies it is tried again, on one that has just been probed."""
        if not job[1]: return {"passed": [], "error": "no tests", "seconds": 0.0}
        for _ in range(3):
            try: worker = self.idle.pop()
            except IndexError: worker = self.ready()
            verdict = self.ask(worker, job)
            if type(verdict) is dict:
                if worker.process.returncode is None: self.idle.append(worker)
                return verdict
        if verdict == MACHINE: raise Broken("the sandbox failed three times in a row: see the errors above")
        # Not by an error: three judges that had just been sound died over the answers of this one completion.
        error = f"its tests kill the judge, exit status {verdict}"
        return {"passed": [False] * len(job[1]), "error": error, "seconds": self.limits.timeout}


def check_job(i, code, tests, entry="", language="python"):
    """A job as a list, or an error that says what is wrong with it."""
    good = lambda t: type(t) is str or type(t) is dict and type(t.get("input")) is type(t.get("output")) is str or (
        t == SYNTAX and language in CHECKS)
    if not (type(code) is type(entry) is str and type(tests) in (list, tuple) and all(map(good, tests))):
        raise ValueError(f'job {i}: expected (code: str, [assert: str or {{"input": str, "output": str}}], entry: str)')
    if language != "python":
        if language not in LANGUAGES:
            raise ValueError(f"job {i}: language {language!r} is not python, {', '.join(LANGUAGES)}")
        lang = LANGUAGES[language]
        if not shutil.which(lang.needs):
            raise ValueError(f"job {i}: {language} needs {lang.needs}, not found here: apt-get install {lang.package}")
        if not all(type(t) is dict for t in tests):
            raise ValueError(f'job {i}: only python has assert tests, those of {language} are {{"input", "output"}}')
    return [code, list(tests), entry, language]


def report():
    """Print what this machine contains and which languages run here -> exit status."""
    with Sandbox(workers=1, timeout=10, unsafe=HOLDS) as sandbox:
        if (out := sandbox.probe(sandbox.spawn())) is None: raise SystemExit("no worker starts: see the errors above")
        for what in HOLDS: print(f"{what:12}{'NOT CONTAINED' if what in out else 'contained'}")
        print(f"{'python':12}{sys.version.split()[0]}, asserts and stdin/stdout")
        for name, lang in list(LANGUAGES.items())[:-2]:
            try: state = sandbox.run([(lang.hello, [{"input": "", "output": "1"}], "", name)])[0]["error"]
            except (ValueError, RuntimeError) as e: state = str(e)
            print(f"{name:12}{state or 'stdin/stdout'}")
    return bool(out)


if __name__ == "__main__":
    sys.exit(report())
