"""The warden: one per worker, starts, watches and ends its processes, and knows neither code nor test.

The trainer starts this file as a script, by exec and with an almost empty environment, so nothing of the trainer's
memory, devices and open files is in a worker. The warden then forks zygote and judge, and its trust goes like this:

    trainer   believed. When it hangs up, everything here ends.
    zygote    tells of the candidates that it forks and ends (`news`). A candidate cannot write there.
    judge     asks for programs (`requests`). It may obey a candidate's answer, so it gets no more than a candidate has,
              and a request that makes no sense ends the worker.

Every TICK the warden looks at what runs: at CPU time, at threads, and at time in which a process and its judge both
sleep, because a completion that sleeps, or waits for nothing, would never use up its CPU time.
"""

import contextlib
import functools
import json
import math
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

if __name__ == "__main__":  # as a script: imports come from the project's folder, not from this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from judges.judge import judge
from judges.languages import ALL_LANGUAGES, command_for, exec_program, toolchain
from judges.walls import LINUX, MACHINE, THREADS, Limits, end_process, kill, limit
from judges.zygote import WORD, zygote

TICK = 0.02  # seconds between two looks at what runs


@dataclass
class Account:
    """What a candidate or program may use, and has used."""

    budget: float  # seconds
    start: float = field(default_factory=time.monotonic)
    used: float = 0.0  # of CPU
    idle: float = 0.0
    threads: int = 1
    why: str = ""  # why it has been ended; "": it runs


def stat(path):
    """Read /proc/<pid>, or a task in it -> its state, its number of threads."""
    fd = os.open(path + "/stat", os.O_RDONLY)
    try:
        fields = os.read(fd, 999).rsplit(b")", 1)[1].split()
    finally:
        os.close(fd)
    return fields[0], int(fields[17])


def asleep(pid):
    """True if no thread of a process runs, or waits for a core or a disk."""
    return all(stat(f"/proc/{pid}/task/{task}")[0] not in b"RD" for task in os.listdir(f"/proc/{pid}/task"))


class Warden:
    """A worker's parent process, its folder, and the accounts of what runs. fd: the line to the trainer."""

    def __init__(self, fd, limits):
        self.trainer, self.limits, self.me = socket.socket(fileno=fd), limits, os.getpid()
        os.set_inheritable(fd, False)
        self.folder = "/".join((os.environ["TMPDIR"], f"sandbox-{os.getppid()}-{self.me}-{os.urandom(4).hex()}"))
        for name in ("", "/judge", "/program"):
            os.mkdir(self.folder + name, 0o700)
        self.programs, self.running, self.whys = set(), {}, {}  # pids; {pid: Account}; {pid: why it was ended}
        self.looked = self.heard = time.monotonic()

    def start(self):
        """Fork zygote and judge. In each of them return the function that it is to run; in the warden, None."""
        (self.requests, to_warden), (self.news, tell), (asked, to_zygote) = [socket.socketpair() for _ in range(3)]
        ours, theirs = {self.requests, self.news}, {to_warden, tell, asked, to_zygote}
        tasks = {
            "zygote": (functools.partial(zygote, asked, tell), {asked, tell}),
            "judge": (
                functools.partial(judge, self.trainer, (to_zygote, to_warden), f"{self.folder}/judge"),
                {to_warden, to_zygote, self.trainer},
            ),
        }
        pids = {}
        for name, (task, own) in tasks.items():
            pids[name] = os.fork()
            if not pids[name]:
                for sock in (ours | theirs | {self.trainer}) - own:
                    sock.close()
                return functools.partial(task, self.limits, self.me)
        for sock in theirs:
            sock.close()
        self.zygote, self.judge = pids["zygote"], pids["judge"]
        self.news.setblocking(False)

    def serve(self) -> NoReturn:
        """Serve the judge's requests and look at what runs, until judge, zygote or trainer have gone."""
        idle, busy = select.poll(), select.poll()
        for poll in (idle, busy):
            poll.register(self.trainer, 0)  # tells when it hangs up
            poll.register(self.requests, select.POLLIN)
        idle.register(self.news, select.POLLIN)  # while busy, news are read at every look: one waking for many
        while True:
            waits = not self.running and time.monotonic() > self.heard + 10 * TICK
            happened = dict(idle.poll() if waits else busy.poll(TICK * 1000))
            if self.trainer.fileno() in happened:
                self.leave()
            self.hear()
            if time.monotonic() > self.looked + TICK:
                self.look()
            if self.requests.fileno() in happened:
                self.answer()

    def hear(self):
        """Read what the zygote has told since: a pid and its CPU seconds, or -1 when it has ended."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.news.recv(100 * WORD.size)
                if not data:  # exit status 0: it was asked nonsense and left, which is no failure of the machine
                    self.leave(MACHINE if os.waitpid(self.zygote, 0)[1] else -signal.SIGKILL)
                self.heard = time.monotonic()
                for pid, seconds in WORD.iter_unpack(data):
                    if seconds < 0:
                        self.forget(pid)
                    else:
                        self.running[pid] = Account(seconds)

    def forget(self, pid):
        if why := self.running.pop(pid).why:
            self.whys[pid] = why

    def answer(self):
        """Serve one request of the judge: a verb and arguments, perhaps with open files."""
        message, fds, *_ = socket.recv_fds(self.requests, 4096, 4)
        if not message:
            self.leave(wait=True)
        try:
            verb, *request = json.loads(message)
            verbs = {"write": self.write, "program": self.start_program, "end": self.end, "why": self.why}
            self.requests.sendall(json.dumps(verbs[verb](*request, *fds)).encode())
        except (ValueError, LookupError, TypeError, AttributeError):
            self.leave(-signal.SIGKILL)  # no request of ours: this judge obeys an answer
        for fd in fds:
            os.close(fd)

    def write(self, language, name, fd):
        """Copy a source, an open file, into the program's folder, and remove everything else there."""
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"a program called {name!r}")
        for left in os.scandir(f"{self.folder}/program"):
            if left.is_dir(follow_symlinks=False):
                shutil.rmtree(left.path)
            else:
                os.remove(left.path)
        path = f"{self.folder}/program/{name}.{ALL_LANGUAGES[language].suffix}"
        with open(fd, "rb", closefd=False) as source, open(path, "wb") as f:
            shutil.copyfileobj(source, f)

    def start_program(self, language, name, stage, seconds, *fds):
        """Start a program or its compiler -> its pid. fds: the line to the judge, stdin, stdout."""
        lang, command, runs = ALL_LANGUAGES[language], command_for(language, stage, name), stage == "run"
        toolchain(lang.needs, tuple(self.limits.closed))  # before the fork, so that it is found only once
        pid = os.fork()
        if pid == 0:
            exec_program(fds, command, lang, runs, seconds, f"{self.folder}/program", self.limits, self.me)
        self.programs.add(pid)
        self.running[pid] = Account(float(seconds) if runs else math.inf)  # compilers fork: the kernel counts each
        return pid

    def end(self, pid):
        """End a program (of this warden, never of the zygote) -> exit status, CPU seconds."""
        self.programs.remove(pid)  # a KeyError for anything else
        self.forget(pid)
        return end_process(pid)

    def why(self, pids):
        """Return why one of these has been ended, or ""."""
        accounts = [self.running[pid] for pid in pids if pid in self.running]
        whys = [self.whys.get(pid) for pid in pids] + [account.why for account in accounts]
        self.whys.clear()
        return next(filter(None, whys), "")

    def look(self):
        """End what has too many threads or has used its time."""
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 2 * TICK), now
        for pid, it in self.running.items():
            if now - it.start < TICK:
                continue  # most have ended by then
            with contextlib.suppress(OSError):  # a thread may just have ended
                self.measure(pid, it, passed)
            if it.threads > THREADS:
                it.why = it.why or f"started more than {THREADS} threads"
            elif it.used + it.idle > it.budget:
                it.why = it.why or "out of time"
            if it.why:
                kill(pid)

    def measure(self, pid, it, passed):
        """Update an Account, `passed` seconds after the last look. A judge with too many threads is killed."""
        if not LINUX:
            it.used = time.monotonic() - it.start
            return
        before, it.used = it.used, time.clock_gettime(~pid << 3 | 2)  # its CPU clock
        state, it.threads = stat(f"/proc/{pid}")
        if state not in b"RD" and it.used - before < passed / 2 and asleep(pid) and asleep(self.judge):
            it.idle += passed
        if stat(f"/proc/{self.judge}")[1] > THREADS:
            kill(self.judge)

    def leave(self, status: int = 0, wait: bool = False) -> NoReturn:
        """End all processes of this worker, and this one with `status`, or as the judge has ended if it has.

        status below 0: by this signal. wait: for the judge to end by itself. The zygote ends its candidates."""
        ended, how = os.waitpid(self.judge, 0 if wait else os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(how)
        else:
            end_process(self.judge)
        for pid in self.programs:
            end_process(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.zygote, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(self.me, -status)
        os._exit(status)


def freeze_imports():
    """Fix the lists of files that Python's imports have read so far, so that later imports need not list folders.

    With the right to list the library's folder, a process could also list the packages in it."""
    for path in sys.path:
        if finder := sys.path_importer_cache.get(path):
            finder.find_spec("no_such_module")
            finder._fill_cache = list


def no_fork_hooks(**hooks):
    """Stand for os.register_at_fork and do nothing: there is one thread, and random should stay seeded."""


def work(fd: int, limits: Limits) -> int:
    """Be the warden of a worker, or the judge or zygote that it has forked -> exit status."""
    os.register_at_fork = no_fork_hooks
    if LINUX:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
            f.write("1000")  # short of memory, the kernel ends this and what it starts, not the trainer
    limit(CORE=1)
    freeze_imports()
    warden = Warden(fd, limits)
    if task := warden.start():
        return task()
    try:
        warden.serve()
    except Exception as e:
        print(f"the sandbox: {type(e).__name__}: {e}", file=sys.stderr)
        warden.leave(MACHINE)


if __name__ == "__main__":
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(100_000)  # tests of long integers say so
    del sys.path[0]  # tests import the standard library's modules, not ours
    sys.exit(work(int(sys.argv[1]), Limits(*json.loads(sys.argv[2]))))
