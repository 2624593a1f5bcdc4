"""The warden: one per worker, starts, watches and ends its processes, and knows neither code nor test.

The trainer starts this file as a script, by exec and with an almost empty environment, so nothing of the trainer's
memory, devices and open files is in a worker. The warden then forks zygote and bench, and its trust goes like this:

    trainer   believed. When it hangs up, everything here ends.
    zygote    tells of the candidates that it forks and ends (`news`). A candidate cannot write there.
    bench     forks judges, and ends them.
    judge     asks for programs (`requests`). It may obey a candidate's answer, so it gets no more than a candidate has.
              It is forked for one job and ended before the next, with all that it has started and written.

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
import socket
import sys
import time
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import NoReturn

if __name__ == "__main__":  # as a script: imports come from the project's folder, not from this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from judges.sandbox.bench import bench
from judges.sandbox.languages import ALL_LANGUAGES, command_for, exec_program, toolchain
from judges.sandbox.walls import LINUX, MACHINE, THREADS, Limits, empty, end_process, kill, limit
from judges.sandbox.zygote import WORD, import_libraries, zygote

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
        self.forked = []  # pids of zygote and bench
        self.judge, self.requests = 0, None  # while there is a judge: its pid, the line to it
        self.idle, self.busy = select.poll(), select.poll()
        self.looked = self.heard = time.monotonic()

    def start(self):
        """Fork zygote and bench. In each of them return the function that it is to run; in the warden, None."""
        (self.news, to_news), (self.bench, to_bench) = socket.socketpair(), socket.socketpair()
        tasks = functools.partial(zygote, to_news), functools.partial(bench, to_bench, f"{self.folder}/judge")
        for task, line in zip(tasks, (to_news, to_bench), strict=True):
            self.forked.append(os.fork())
            if not self.forked[-1]:
                for sock in {self.trainer, self.news, self.bench, to_news, to_bench} - {line}:
                    sock.close()
                return functools.partial(task, self.limits, self.me)
        to_news.close()
        to_bench.close()
        self.news.setblocking(False)

    def serve(self) -> NoReturn:
        """Serve trainer and judge and look at what runs, until zygote or trainer have gone."""
        for poll in (self.idle, self.busy):
            poll.register(self.trainer, select.POLLIN)
        self.idle.register(self.news, select.POLLIN)  # while busy, news are read at every look: one waking for many
        while True:
            waits = not self.running and time.monotonic() > self.heard + 10 * TICK
            happened = dict(self.idle.poll() if waits else self.busy.poll(TICK * 1000))
            self.hear()
            if time.monotonic() > self.looked + TICK:
                self.look()
            if self.requests and self.requests.fileno() in happened:
                self.answer()
            if self.trainer.fileno() in happened:
                self.obey()

    def obey(self):
        """Fork a judge for a job, whose line comes with the trainer's word, or end the judge and tell how it ended."""
        word, fds, *_ = socket.recv_fds(self.trainer, 1, 1)
        if not word:
            self.leave()
        if fds:
            self.start_judge(*fds)
        else:
            self.trainer.sendall(b"%d" % self.end_judge())

    def start_judge(self, line):
        """Have a judge forked that speaks to the trainer over `line`, an open file.

        All its lines are new, so nothing that one judge leaves in them reaches the next."""
        self.requests, to_warden = socket.socketpair()
        asked, to_zygote = socket.socketpair()
        with to_warden, asked, to_zygote:
            socket.send_fds(self.news, [b"j"], [asked.fileno()])
            self.judge, _ = self.ask_bench(0, [line, to_zygote.fileno(), to_warden.fileno()])
        os.close(line)
        for poll in (self.idle, self.busy):
            poll.register(self.requests, select.POLLIN)

    def ask_bench(self, pid, fds=()):
        """Have the bench end a judge -> its exit status, CPU seconds; or fork one (pid 0) -> its pid, 0."""
        socket.send_fds(self.bench, [WORD.pack(pid, 0)], fds)
        return WORD.unpack(self.bench.recv(WORD.size))

    def hang_up(self):
        """Close the line to the judge."""
        if self.requests:
            for poll in (self.idle, self.busy):
                poll.unregister(self.requests)
            self.requests.close()
            self.requests = None

    def end_judge(self):
        """End the judge and what it has started and written -> its exit status."""
        status, _ = self.ask_bench(self.judge)
        self.judge = 0
        self.hang_up()
        for pid in list(self.programs):
            self.end(pid)
        self.whys.clear()
        empty(f"{self.folder}/judge")
        return status

    def hear(self):
        """Read what the zygote has told since: a pid and its CPU seconds, or -1 when it has ended."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.news.recv(100 * WORD.size)
                if not data:
                    self.leave(MACHINE)
                self.heard = time.monotonic()
                for pid, seconds in WORD.iter_unpack(data):
                    if seconds < 0:
                        self.forget(pid)
                    else:
                        self.running[pid] = Account(seconds)
                        self.whys.pop(pid, None)  # of an earlier process of this number

    def forget(self, pid):
        if why := self.running.pop(pid).why:
            self.whys[pid] = why

    def answer(self):
        """Serve one request of the judge: a verb and arguments, perhaps with open files."""
        try:
            message, fds, *_ = socket.recv_fds(self.requests, 4096, 4)
        except OSError:
            message, fds = b"", []
        if not message:
            self.hang_up()
            return
        try:
            verb, *request = json.loads(message)
            verbs = {"write": self.write, "program": self.start_program, "end": self.end, "why": self.why}
            self.requests.sendall(json.dumps(verbs[verb](*request, *fds)).encode())
        except (ValueError, LookupError, TypeError, AttributeError, BrokenPipeError):
            kill(self.judge)  # no request of ours: this judge obeys an answer
        for fd in fds:
            os.close(fd)

    def write(self, language, name, fd):
        """Copy a source, an open file, into the program's folder, which is emptied before."""
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"a program called {name!r}")
        empty(f"{self.folder}/program")
        path = f"{self.folder}/program/{name}.{ALL_LANGUAGES[language].suffix}"
        if not S_ISREG(os.fstat(fd).st_mode):  # a device or a pipe might never end
            raise ValueError("a source is a regular file")
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
        if self.judge and stat(f"/proc/{self.judge}")[1] > THREADS:
            kill(self.judge)

    def leave(self, status: int = 0) -> NoReturn:
        """End all processes of this worker, and this one with `status`. The zygote ends its candidates."""
        if self.judge:
            with contextlib.suppress(Exception):  # the bench may have gone
                self.end_judge()
        self.news.close()
        self.bench.close()
        for pid in self.forked:
            os.waitpid(pid, 0)
        empty(self.folder)
        os.rmdir(self.folder)
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
    import_libraries()
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
