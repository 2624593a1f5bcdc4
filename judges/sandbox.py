"""Run code that a model wrote against tests: fast, contained, hard to cheat. Standard library only, and never jax.

    trainer --starts--> warden
       |                   |
       |                   +-- zygote --forks--> candidate
       |                   |                         | calls, answers
       +------job, verdict--- bench --forks--> judge

    warden (warden.py) starts, watches and ends the processes of one worker, and reads neither code nor test
    bench (judge.py) is forked for each completion: it has parsed the tests, and runs nothing
    judge (judge.py, asserts.py) has the tests of one completion and runs them, and never runs the code
    zygote (zygote.py) is forked for each completion, and never had a test in its memory
    candidate (candidate.py) runs the code of one completion

A job, code and tests, goes from the trainer to the judge. The judge has the zygote fork a candidate and speaks to it
over a socket of its own. Five files say what may cross there: channel.py (messages), values.py (plain data), stubs.py
and operations.py (everything else), peer.py (the conversation). The walls around each process are in walls.py, programs
of other languages in languages.py, what tests use of pytest in small_pytest.py.

Who trusts whom. Nobody believes a candidate: the judge takes plain data from it, and no word of its objects about how
they compare with plain data. A test may evaluate an answer, and so hand its judge over: the trainer then believes the
judge's verdict on that completion, which is the completion's own loss or gain, and nothing else. The judge, its lines
to the other processes and its files are gone before the next completion comes.

Scoring: tests run in the judge. There the candidate's functions are stubs that send arguments out and get plain data
back, so a forged answer is worth what a wrong answer is. The candidate shares no memory with a test.

Containment (Linux): a candidate cannot start processes, signal, use the network, write, or read more than Python's
standard library and the system's; memory, CPU time, threads and descriptors are limited. Workers try to get out before
they are used, and refuse to work if they can. `python judges/sandbox.py` says what holds here. Kernel bugs and side
channels are not contained.
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
from collections.abc import Iterable
from typing import Any

if __name__ == "__main__":  # as a script: imports come from the project's folder, not from this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from judges.channel import MESSAGE, Channel, Dead
from judges.judge import GRACE, JUDGE_MEMORY
from judges.languages import COMPILE_SECONDS, COMPILER_MEMORY, LANGUAGES, SYNTAX, command_for
from judges.values import one_line
from judges.walls import LIBRARIES, MACHINE, Limits, empty, without_packages

# subprocess, tempfile and concurrent.futures are imported where they are used: see walls.py.
HERE = os.path.dirname(os.path.abspath(__file__))
PER_CORE = 6  # workers, at most MOST in all
MOST = 64
WALL = 20  # seconds of wall-clock time per second of CPU: with six workers on a busy core each gets a tenth of it
RETRY = 1  # seconds until a batch on which the machine failed is tried again

# ---- ways out, tried before use --------------------------------------------------------------------------------------
HOLDS = ("process", "network", "signal", "write", "read", "memory")  # what is contained
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
ADVICE = "Use Linux 5.13 or newer with seccomp and Landlock, or a virtual machine, or accept it: --programs.unsafe="


def named(error):
    """Return those of HOLDS that an error names, or all if it names none."""
    return [x for x in HOLDS if re.search(rf"\b{x}\b", error)] or list(HOLDS)


class Broken(RuntimeError):
    """The machine failed, perhaps for the moment."""


class JudgeDied(Exception):
    """A judge died over a job: with this exit status, or with these words about the machine."""

    def __init__(self, status, words=""):
        super().__init__(words or f"exit status {status}")
        self.status = status


def verdict_on(tests: list, passed: list | None, error: str, seconds: float) -> dict[str, Any]:
    """Make a verdict; passed, one bool per test, is None if they all failed."""
    return {"passed": passed or [False] * len(tests), "error": error, "seconds": seconds}


class Worker:
    """A warden with its judge and zygote. By exec: nothing of the trainer's memory, devices or files is in them."""

    def __init__(self, limits):
        from subprocess import DEVNULL, Popen

        ours, theirs = socket.socketpair()
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        env |= {"TMPDIR": temporary_folder(), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-s", "-S", "-W", "ignore", os.path.join(HERE, "warden.py"), str(theirs.fileno())]
        command += [json.dumps(limits)]
        settings = {"cwd": "/", "stdin": DEVNULL, "stdout": DEVNULL, "start_new_session": True, "env": env}
        with theirs:
            try:
                self.process = Popen(command, pass_fds=[theirs.fileno()], **settings)
            except OSError as e:
                ours.close()
                raise Broken(f"no worker starts: {e}") from None
        self.line, self.limits = ours, limits

    def end(self):
        """End the worker -> its exit status. One that has lost its trainer leaves by itself, a stuck one is killed."""
        self.line.close()
        with contextlib.suppress(importlib.import_module("subprocess").TimeoutExpired):
            self.process.wait(1)
        self.process.kill()
        for left in glob.glob(f"{temporary_folder()}/sandbox-{os.getpid()}-{self.process.pid}-*"):
            empty(left)
            with contextlib.suppress(OSError):
                os.rmdir(left)
        return self.process.wait()

    def ask(self, job):
        """Have a new judge score a job -> the verdict. Raises JudgeDied."""
        _, tests, _, language = job
        patience = self.limits.wall * (self.limits.timeout + (language != "python") * COMPILE_SECONDS) + GRACE
        ours, theirs = socket.socketpair()
        channel, verdict = Channel(ours, MESSAGE, time.monotonic() + patience), None
        with ours:
            try:
                with theirs:
                    socket.send_fds(self.line, [b"j"], [theirs.fileno()])
                channel.send(job)
                verdict = receive_verdict(channel, tests)
            except OSError:  # there is no warden
                raise JudgeDied(self.end()) from None
            except Dead:
                pass
        status = self.end_judge()
        if channel.dead == "out of time" or status == -signal.SIGXCPU:
            return verdict_on(tests, None, "out of time: a test works on too large an answer", self.limits.timeout)
        if type(verdict) is str:
            raise JudgeDied(MACHINE, verdict)
        if not verdict:
            raise JudgeDied(status)
        return verdict

    def end_judge(self):
        """Have the warden end the judge, of which nothing is left then -> its exit status. Raises JudgeDied."""
        self.line.settimeout(GRACE)
        try:
            self.line.sendall(b"e")
            return int(self.line.recv(9))
        except (OSError, ValueError):
            raise JudgeDied(self.end()) from None

    def probe(self):
        """Let candidate and judge try to get out -> the names of what did not hold. Raises JudgeDied."""
        much = 2 * max(self.limits.memory, JUDGE_MEMORY)
        tests = [PROBE + f"assert not (out := [x for x in {HOLDS} if escaped(x, {much})]), out"]  # the judge itself
        tests += [f"assert not escaped({x!r}, {much})" for x in HOLDS]
        tests += ["assert escaped('')", "assert not escaped('')"]  # and let it be scored
        verdict = self.ask([PROBE, tests, "escaped", "python"])
        judge_holds, *held, right, wrong = verdict["passed"]
        if wrong or not right:
            raise JudgeDied(MACHINE)
        judges_out = [] if judge_holds else named(verdict["error"])
        return [x for x, holds in zip(HOLDS, held, strict=True) if not holds or x in judges_out]


def receive_verdict(channel, tests):
    """Receive a verdict, or how the machine failed, in the right form: a test that evaluates an answer may have made
    the judge send anything."""
    reply = channel.receive()
    if type(reply) is str:
        return one_line(reply) or "the machine failed"
    try:
        passed, error, seconds = reply["passed"], one_line(reply["error"]), float(reply["seconds"])
        if [*map(type, passed)] != [bool] * len(tests):
            raise ValueError(passed)
    except (ValueError, TypeError, LookupError, AttributeError):
        channel.die("sent nonsense")
    return verdict_on(tests, passed, error, seconds)


def temporary_folder():
    return importlib.import_module("tempfile").gettempdir()


def packages():
    """Find folders that programs must not read: those of installed packages, and the one with this program."""
    library = os.path.dirname(os.__file__) + "/"
    own = [p for p in sys.path if "-packages" in p or not ((p + "/").startswith(library) or p.endswith("lib-dynload"))]
    return sorted({os.path.realpath(place) for place in [*own, os.path.dirname(HERE)] if os.path.isdir(place)})


def usable_cores():
    """Count the cores that this process may use: by its affinity, and by the quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"]
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/cgroup") as f:
        path = next(line for line in f if line.startswith("0::")).strip()[3:]
        folders += ["/sys/fs/cgroup" + path[:i] for i in range(1, len(path) + 1) if path[i : i + 1] in ("", "/")]
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            quota, period = quota_of(folder)
            cores = min(cores, -(-quota // period)) if quota > 0 else cores
    return max(1, cores)


def quota_of(folder):
    """Read how many microseconds of CPU a control group may use in how many; ValueError without a quota."""
    names = ["cpu.max"] if os.path.exists(folder + "/cpu.max") else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    words = []
    for name in names:
        with open(f"{folder}/{name}") as f:
            words += f.read().split()
    quota, period = map(int, words)
    return quota, period


# ---- the trainer's side ----------------------------------------------------------------------------------------------
class Sandbox:
    """Workers that are started when they are needed and that close() ends.

    timeout: CPU seconds per completion; memory: bytes; unsafe: names in HOLDS that need not be contained. workers None:
    six per core that this process may use, at most 64. A completion that sleeps, or one whose loop shares its core,
    holds its worker for the whole timeout and longer, and the others should not wait."""

    def __init__(
        self, workers: int | None = None, timeout: float = 3.0, memory: int = 512 << 20, unsafe: Iterable[str] = ()
    ):
        from concurrent.futures import ThreadPoolExecutor

        if wrong := set(unsafe) - set(HOLDS):
            raise ValueError(f"programs.unsafe: {', '.join(sorted(wrong))} is not among {', '.join(HOLDS)}")
        cores = usable_cores()
        self.workers = workers or min(MOST, PER_CORE * cores)
        wall = WALL * max(1.0, self.workers / (PER_CORE * cores))
        closed = packages()
        self.limits = Limits(timeout, memory, list(unsafe), without_packages(LIBRARIES, closed), closed, wall)
        self.idle: deque[Worker] = deque()
        self.pool = ThreadPoolExecutor(self.workers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.end_idle()

    def end_idle(self):
        while self.idle:
            self.idle.pop().end()

    def run(self, jobs: Iterable[tuple]) -> list[dict]:
        """Score jobs [(code, [test, ...], entry[, language])] -> [{"passed": [bool, ...], "error", "seconds" of CPU}].

        A test is Python that asserts, or {"input": str, "output": str} for a program, or SYNTAX (does it compile?).
        `entry` is the function asked for, "" if unknown. A False is always the candidate's own failure: if this
        machine fails twice, Broken is raised."""
        batch = [check_job(i, *job) for i, job in enumerate(jobs)]
        try:
            return self.try_batch(batch)
        except Broken as e:
            print(f"the sandbox: {e}; once more, in {RETRY} s", file=sys.stderr)
            self.end_idle()
            time.sleep(RETRY)
            return self.try_batch(batch)

    def try_batch(self, jobs):
        if jobs:
            self.idle.append(self.ready())  # every batch begins by trying to get out
        others = {language for *_, language in jobs} - {"python"}
        compiled = {bool(command_for(language, "compile")) for language in others}
        for probe in sorted("compiling probe" if compiles else "probe" for compiles in compiled):
            self.try_programs(probe)
        try:
            verdicts = [self.pool.submit(self.score, job) for job in jobs]
        except RuntimeError as e:
            raise Broken(f"no thread starts: {e}") from None
        importlib.import_module("concurrent.futures").wait(verdicts)
        return [verdict.result() for verdict in verdicts]

    def spawn(self) -> Worker:
        return Worker(self.limits)

    def ready(self):
        """Return a worker that has just been probed."""
        for _ in range(self.workers + 3):  # all that are idle may have been killed, and a busy machine is tried again
            worker = self.idle_worker() or self.spawn()
            try:
                out = [x for x in worker.probe() if x not in self.limits.unsafe]
            except JudgeDied as e:
                print(f"the sandbox: {e}", file=sys.stderr)
                worker.end()
                continue
            if not out:
                return worker
            worker.end()
            raise RuntimeError(f"this machine does not contain: {', '.join(out)}. {ADVICE}{self.accepting(out)}")
        raise Broken("the sandbox does not work on this machine: see the errors above, or try a longer timeout")

    def idle_worker(self):
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def accepting(self, names):
        return ",".join(x for x in HOLDS if x in {*names, *self.limits.unsafe})

    def try_programs(self, probe):
        """Let a program of another language try to get out; RuntimeError if it can. probe: one of languages.PROBES"""
        held = [x for x in HOLDS if x not in self.limits.unsafe]
        tries = PROGRAM_PROBE.format(held=held, much=2 * COMPILER_MEMORY, compiled=probe != "probe")
        error = self.score([PROBE + tries, [{"input": "", "output": ""}], "", probe])["error"]
        if error:
            names = self.accepting(named(error))
            raise RuntimeError(f"this machine does not contain programs: {error}. {ADVICE}{names}")

    def score(self, job):
        """Score one job on a free worker -> {"passed": [bool, ...], "error", "seconds"}. If its judge dies, try again
        on another free worker, or on a new one that is probed first. After three deaths all tests have failed.

        Broken is raised if the machine was the reason for the last one. A judge may say so because it obeys an answer,
        so where that can be, the machine is probed once more, and after six such deaths it was the completion."""
        tests, deaths, death = job[1], 0, JudgeDied(0)
        if not tests:
            return verdict_on(tests, None, "no tests", 0.0)
        may_obey = any(type(test) is str for test in tests)
        while deaths < 3 or deaths < 6 and death.status == MACHINE:
            if deaths == 3:
                if not may_obey:
                    raise Broken(f"the sandbox failed three times in a row: {death}")
                self.end_idle()
            worker = self.idle_worker() or self.ready()
            try:
                return worker.ask(job)
            except JudgeDied as e:
                deaths, death = deaths + 1, e
            finally:
                if worker.process.returncode is None:
                    self.idle.append(worker)
        return verdict_on(tests, None, f"its tests kill the judge: {death}", self.limits.timeout)


def known_test(test, language):
    if type(test) is dict and type(test.get("input")) is type(test.get("output")) is str:
        return True
    return type(test) is str or test == SYNTAX and language in LANGUAGES


def check_job(i: int, code: str, tests: list, entry: str = "", language: str = "python") -> list:
    """Return job number i as a list, or raise a ValueError that says what is wrong with it."""
    texts = type(code) is type(entry) is str and type(tests) in (list, tuple)
    if not (texts and all(known_test(test, language) for test in tests)):
        raise ValueError(f'job {i}: expected (code: str, [assert: str or {{"input": str, "output": str}}], entry: str)')
    if language != "python":
        if language not in LANGUAGES:
            raise ValueError(f"job {i}: language {language!r} is not python, {', '.join(LANGUAGES)}")
        lang = LANGUAGES[language]
        if not shutil.which(lang.needs):
            raise ValueError(f"job {i}: {language} needs {lang.needs}, not found here: apt-get install {lang.package}")
        if not all(type(test) is dict for test in tests):
            raise ValueError(f'job {i}: only python has assert tests, those of {language} are {{"input", "output"}}')
    return [code, list(tests), entry, language]


def report() -> int:
    """Print what this machine contains and which languages run here -> exit status."""
    with Sandbox(workers=1, timeout=10, unsafe=HOLDS) as sandbox:
        worker = sandbox.spawn()
        try:
            out = worker.probe()
        except JudgeDied:
            raise SystemExit("no worker starts: see the errors above") from None
        sandbox.idle.append(worker)
        for what in HOLDS:
            print(f"{what:12}{'NOT CONTAINED' if what in out else 'contained'}")
        print(f"{'python':12}{sys.version.split()[0]}, asserts and stdin/stdout")
        for name, lang in LANGUAGES.items():
            try:
                state = sandbox.run([(lang.hello, [{"input": "", "output": "1"}], "", name)])[0]["error"]
            except (ValueError, RuntimeError) as e:
                state = str(e)
            print(f"{name:12}{state or 'stdin/stdout'}")
    return bool(out)


if __name__ == "__main__":
    sys.exit(report())
