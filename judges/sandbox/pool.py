"""Run code that a model wrote against tests: fast, contained, hard to cheat. Standard library only, and never jax.

    trainer --starts--> warden
       |                   |
       |                   +-- zygote --forks--> candidate
       |                   |                         | calls, answers
       +------job, verdict--- bench --forks--> judge

    warden (warden.py) starts, watches and ends the processes of one worker, and reads neither code nor test
    bench (bench.py) is forked for each worker: it has parsed the tests, and runs nothing
    judge (judge.py, tests/) has the tests of one completion after another and runs them, and never runs the code
    zygote (zygote.py) is forked for each worker, and never had a test in its memory
    candidate (candidate.py) runs the code of one completion

`run` gives a job, code and tests (jobs.py), to a worker of the pool, and it goes from there to the judge. The judge has
the zygote fork a candidate and speaks to it over a socket of its own. The files of wire/ say what may cross there:
channel.py (messages), values.py (plain data), stubs.py and operations.py (everything else), peer.py (the conversation).
The walls around each process are in walls.py, programs of other languages in languages.py, what tests use of pytest in
tests/small_pytest.py. `python -m judges.sandbox` says what holds here, docs/sandbox.md what that is good for.

Scoring: tests run in the judge. There the candidate's functions are stubs that send arguments out and get plain data
back, so a forged answer is worth what a wrong answer is. The candidate shares no memory with a test.

Who trusts whom. Nobody believes a candidate: the judge takes plain data from it, and no word of its objects about how
they compare with plain data. A test may evaluate an answer, and so hand its judge over: the trainer then believes the
judge's verdict on that completion, which is the completion's own loss or gain, and nothing else. The judge, its lines
to the other processes and its files are gone before the next completion comes. Only tests that evaluate nothing of a
completion (tests/plain.py, decided by the trainer) share a judge, until it meets more than plain data (bench.py).

Containment (Linux): a candidate cannot start processes, signal, use the network, write, or read more than Python's
standard library and the system's; memory, CPU time, threads and descriptors are limited. Workers try to get out before
they are used, and refuse to work if they can. Kernel bugs and side channels are not contained.

This file is the trainer's side: a pool of workers, each of which is tried before it scores.
"""

import concurrent.futures
import contextlib
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable

from judges.sandbox.bench import JUDGE_MEMORY
from judges.sandbox.jobs import Job, Verdict, problem
from judges.sandbox.judge import GRACE
from judges.sandbox.languages import COMPILE_SECONDS, COMPILER_MEMORY, command_for
from judges.sandbox.tests.plain import only_plain
from judges.sandbox.walls import LIBRARIES, MACHINE, Limits, empty, without_packages
from judges.sandbox.wire.channel import MESSAGE, Channel, Dead
from judges.sandbox.wire.values import one_line

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))  # of the project
PER_CORE = 6  # workers, at most MOST in all
MOST = 64
WALL = 40  # seconds of wall-clock time per second of CPU: 64 workers may have the time of two cores, by a quota
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


def all_failed(job: Job, error: str, seconds: float = 0.0) -> Verdict:
    return Verdict([False] * len(job.tests), error, seconds)


class Worker:
    """A warden with its judge and zygote. By exec: nothing of the trainer's memory, devices or files is in them."""

    def __init__(self, limits):
        ours, theirs = socket.socketpair()
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        env |= {"TMPDIR": tempfile.gettempdir(), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-s", "-S", "-W", "ignore", os.path.join(HERE, "warden.py"), str(theirs.fileno())]
        command += [json.dumps(limits)]
        settings = {"pass_fds": [theirs.fileno()], "cwd": "/", "start_new_session": True, "env": env}
        with theirs:
            try:
                null = subprocess.DEVNULL
                self.process = subprocess.Popen(command, stdin=null, stdout=null, **settings)
            except OSError as e:
                ours.close()
                raise Broken(f"no worker starts: {e}") from None
        self.line, self.limits = ours, limits
        self.judge: Channel | None = None  # while there is a judge

    def end(self):
        """End the worker -> its exit status. One that has lost its trainer leaves by itself, a stuck one is killed."""
        self.line.close()
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        self.process.kill()
        for left in glob.glob(f"{tempfile.gettempdir()}/sandbox-{os.getpid()}-{self.process.pid}-*"):
            empty(left)
            with contextlib.suppress(OSError):
                os.rmdir(left)
        return self.process.wait()

    def hang_up(self):
        if self.judge:
            self.judge.sock.close()
        self.judge = None

    def ask(self, job, shared=False):
        """Have a judge score a job: a new one or, if all that it does is `shared`, the one of the job before. Raises
        JudgeDied."""
        if self.judge and not shared:
            self.end_judge()
        compiling = COMPILE_SECONDS if job.language != "python" else 0
        patience = self.limits.wall * (self.limits.timeout * job.turns() + compiling) + GRACE
        verdict, again, dead = None, False, ""
        try:
            judge = self.judge = self.judge or self.start_judge()
            judge.deadline = time.monotonic() + patience
            judge.send([job, shared])
            verdict, again = receive_verdict(judge, len(job.tests))
        except OSError:  # there is no warden
            raise JudgeDied(self.end()) from None
        except Dead:
            dead = judge.dead
        if again and shared:
            return verdict
        status = self.end_judge()
        if dead == "out of time" or status == -signal.SIGXCPU:
            return all_failed(job, "out of time: a test works on too large an answer", self.limits.timeout)
        if type(verdict) is str:
            raise JudgeDied(MACHINE, verdict)
        if not verdict:
            raise JudgeDied(status)
        return verdict

    def start_judge(self):
        """Have the warden start a judge -> the line to it. OSError if there is no warden."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.line, [b"j"], [theirs.fileno()])
        return Channel(ours, MESSAGE)

    def end_judge(self):
        """Have the warden end the judge, of which nothing is left then -> its exit status. Raises JudgeDied."""
        self.hang_up()
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
        verdict = self.ask(Job(PROBE, tests, "escaped"))
        judge_holds, *held, right, wrong = verdict.passed
        if wrong or not right:
            raise JudgeDied(MACHINE)
        judges_out = [] if judge_holds else named(verdict.error)
        return [x for x, holds in zip(HOLDS, held, strict=True) if not holds or x in judges_out]


def receive_verdict(channel, n_tests):
    """Receive a verdict, or how the machine failed, and whether the judge waits for another job, in the right form: a
    test that evaluates an answer may have made the judge send anything."""
    reply = channel.receive()
    try:
        verdict, again = reply
        if type(verdict) is str:
            return one_line(verdict) or "the machine failed", False
        passed, error, seconds = verdict
        if [*map(type, passed)] != [bool] * n_tests:
            raise ValueError(passed)
        return Verdict(passed, one_line(error), float(seconds)), again is True
    except (ValueError, TypeError):
        channel.die("sent nonsense")


def packages():
    """Find folders that programs must not read: those of installed packages, and the one with this program."""
    library = os.path.dirname(os.__file__) + "/"
    own = [p for p in sys.path if "-packages" in p or not ((p + "/").startswith(library) or p.endswith("lib-dynload"))]
    return sorted({os.path.realpath(place) for place in [*own, ROOT] if os.path.isdir(place)})


def usable_cores():
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- the trainer's side ----------------------------------------------------------------------------------------------
class Pool:
    """Workers that are started when they are needed and that close() ends.

    timeout: CPU seconds per completion; memory: bytes; unsafe: names in HOLDS that need not be contained. workers None:
    six per core that this process may use, at most 64. A completion that sleeps, or one whose loop shares its core,
    holds its worker for the whole timeout and longer, and the others should not wait."""

    def __init__(
        self, workers: int | None = None, timeout: float = 3.0, memory: int = 512 << 20, unsafe: Iterable[str] = ()
    ):
        if wrong := set(unsafe) - set(HOLDS):
            raise ValueError(f"programs.unsafe: {', '.join(sorted(wrong))} is not among {', '.join(HOLDS)}")
        cores = usable_cores()
        self.workers = workers or min(MOST, PER_CORE * cores)
        wall = WALL * max(1.0, self.workers / (PER_CORE * cores))
        closed = packages()
        self.limits = Limits(timeout, memory, list(unsafe), without_packages(LIBRARIES, closed), closed, wall)
        self.idle: deque[Worker] = deque()
        self.threads = concurrent.futures.ThreadPoolExecutor(self.workers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        self.end_idle()

    def end_idle(self):
        while self.idle:
            self.idle.pop().end()

    def run(self, jobs: Iterable[Job]) -> list[Verdict]:
        """Score jobs. Broken is raised if this machine fails twice."""
        batch = [Job(*job) for job in jobs]
        for i, job in enumerate(batch):
            if wrong := problem(job):
                raise ValueError(f"job {i}: {wrong}")
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
        others = {job.language for job in jobs} - {"python"}
        compiled = {bool(command_for(language, "compile")) for language in others}
        for probe in sorted("compiling probe" if compiles else "probe" for compiles in compiled):
            self.try_programs(probe)
        try:
            verdicts = [self.threads.submit(self.score, job, only_plain(job)) for job in jobs]
        except RuntimeError as e:
            raise Broken(f"no thread starts: {e}") from None
        concurrent.futures.wait(verdicts)
        self.end_judges()
        return [verdict.result() for verdict in verdicts]

    def end_judges(self):
        """End the judges that wait for another job: between two batches there is none."""
        for worker in [worker for worker in self.idle if worker.judge]:
            try:
                worker.end_judge()
            except JudgeDied:
                self.idle.remove(worker)

    def spawn(self) -> Worker:
        return Worker(self.limits)

    def ready(self):
        """Return a worker that has just been probed."""
        for _ in range(self.workers + 3):  # all that are idle may have been killed, and a busy machine is tried again
            worker = self.take_idle() or self.spawn()
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

    def take_idle(self):
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
        error = self.score(Job(PROBE + tries, [{"input": "", "output": ""}], "", probe)).error
        if error:
            names = self.accepting(named(error))
            raise RuntimeError(f"this machine does not contain programs: {error}. {ADVICE}{names}")

    def score(self, job, shared=False):
        """Score one job on a free worker. If its judge dies, try again on another free worker, or on a new one that is
        probed first. After three deaths all tests have failed.

        Broken is raised if the machine was the reason for the last one. A judge may say so because it obeys an answer,
        so where that can be, the machine is probed once more, and after six such deaths it was the completion."""
        deaths, death = 0, JudgeDied(0)
        if not job.tests:
            return Verdict([], "no tests")
        may_obey = any(type(test) is str for test in job.tests)
        while deaths < 3 or deaths < 6 and death.status == MACHINE:
            if deaths == 3:
                if not may_obey:
                    raise Broken(f"the sandbox failed three times in a row: {death}")
                self.end_idle()
            worker = self.take_idle() or self.ready()
            try:
                return worker.ask(job, shared)
            except JudgeDied as e:
                deaths, death = deaths + 1, e
            finally:
                if worker.process.returncode is None:
                    self.idle.append(worker)
        return all_failed(job, f"its tests kill the judge: {death}", self.limits.timeout)


pools: dict[tuple, Pool] = {}  # at most one, by its settings: its workers stay from one batch to the next


def run(
    jobs: Iterable[Job], *, timeout: float = 3.0, workers: int | None = None, unsafe: Iterable[str] = ()
) -> list[Verdict]:
    """Score jobs. RuntimeError if this machine fails twice or lets a program out, ValueError for a job with a problem.

    timeout: CPU seconds for all asserts of a job, and for each input
    workers: jobs at a time, None: six per core; unsafe: what need not be contained"""
    settings = timeout, workers, tuple(unsafe)
    if settings not in pools:
        made = Pool(workers, timeout, unsafe=settings[2])
        while pools:
            pools.popitem()[1].close()
        pools[settings] = made
    return pools[settings].run(jobs)
