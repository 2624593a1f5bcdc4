"""Warden."""
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
import types

if __name__ == "__main__":  # run as a script: imports come from the project's folder, not from this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from judges.judge import judge
from judges.languages import LANGUAGES, command_for, exec_program, toolchain
from judges.walls import LINUX, MACHINE, THREADS, Limits, end_process, kill, limit
from judges.zygote import WORD, freeze_imports, zygote

TICK = 0.02  # seconds between two looks at what runs


def stat(path):
    """/proc/<pid> or a task in it -> its state, how many threads it has."""
    fd = os.open(path + "/stat", os.O_RDONLY)
    try: fields = os.read(fd, 999).rsplit(b")", 1)[1].split()
    finally: os.close(fd)
    return fields[0], int(fields[17])


def asleep(pid):
    """True if no thread of a process runs, or waits for a core or a disk."""
    return all(stat(f"/proc/{pid}/task/{task}")[0] not in b"RD" for task in os.listdir(f"/proc/{pid}/task"))


class Warden:
    """One worker: its judge, its zygote, its folder, and what is watched of all that these have started."""

    def __init__(self, fd, limits):
        self.trainer, self.limits, self.me = socket.socket(fileno=fd), limits, os.getpid()
        os.set_inheritable(fd, False)
        self.folder = "/".join((os.environ["TMPDIR"], f"sandbox-{os.getppid()}-{self.me}-{os.urandom(4).hex()}"))
        for name in ("", "/judge", "/program"): os.mkdir(self.folder + name, 0o700)
        self.programs, self.running, self.whys = set(), {}, {}  # pids; {pid: its account}; {pid: why it was ended}
        self.looked = self.heard = time.monotonic()

    def start(self):
        """Fork judge and zygote -> there, what they shall do; here, None."""
        (self.ctl, to_warden), (self.news, tell), (asked, to_zygote) = pairs = [socket.socketpair() for _ in range(3)]
        for name, own in ("zygote", (asked, tell)), ("judge", (to_warden, to_zygote, self.trainer)):
            vars(self)[name] = os.fork()
            if vars(self)[name]: continue
            for sock in {*sum(pairs, ()), self.trainer} - {*own}: sock.close()
            if name == "zygote": return functools.partial(zygote, asked, tell, self.limits, self.me)
            return functools.partial(judge, self.trainer, (to_zygote, to_warden), f"{self.folder}/judge", self.limits,
                                     self.me)
        for sock in (to_warden, tell, asked, to_zygote): sock.close()
        self.news.setblocking(False)

    def serve(self):
        """Serve the judge's requests and look at what runs until judge, zygote or trainer have gone."""
        idle, busy = select.poll(), select.poll()
        for poll in (idle, busy):
            poll.register(self.trainer, 0)  # tells when it hangs up
            poll.register(self.ctl, select.POLLIN)
        idle.register(self.news, select.POLLIN)  # while busy, news are read at every look: one waking for many
        while True:
            waits = not self.running and time.monotonic() > self.heard + 10 * TICK
            happened = dict((idle if waits else busy).poll(None if waits else TICK * 1000))
            if self.trainer.fileno() in happened: self.leave()
            self.hear()
            if time.monotonic() > self.looked + TICK: self.look()
            if self.ctl.fileno() in happened: self.answer()

    def hear(self):
        """What the zygote has told since: a pid and its CPU seconds, or -1 when it has ended."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if not (data := self.news.recv(100 * WORD.size)):  # the zygote is not what fails if it ends by itself
                    self.leave(MACHINE if os.waitpid(self.zygote, 0)[1] else -signal.SIGKILL)
                self.heard = time.monotonic()
                for pid, seconds in WORD.iter_unpack(data):
                    self.forget(pid) if seconds < 0 else self.watch(pid, seconds)

    def watch(self, pid, seconds):
        self.running[pid] = types.SimpleNamespace(
            budget=seconds, start=time.monotonic(), used=0.0, idle=0.0, threads=1, why="")

    def forget(self, pid):
        if why := self.running.pop(pid).why: self.whys[pid] = why

    def answer(self):
        """Serve one request of the judge."""
        message, fds, *_ = socket.recv_fds(self.ctl, 4096, 4)
        if not message: self.leave(wait=True)
        try:
            verb, *request = json.loads(message)
            self.ctl.sendall(json.dumps(getattr(self, f"answer_{verb}")(*request, *fds)).encode())
        except (ValueError, LookupError, TypeError, AttributeError): self.leave(-signal.SIGKILL)  # it obeys an answer
        for fd in fds: os.close(fd)

    def answer_write(self, language, name, fd):
        """Put a source, an open file, into the program's folder, where then nothing else is."""
        if not re.fullmatch(r"\w+", name): raise ValueError(f"a program called {name!r}")
        for left in os.scandir(f"{self.folder}/program"):
            shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else os.remove(left.path)
        path = f"{self.folder}/program/{name}.{LANGUAGES[language].suffix}"
        with open(fd, "rb", closefd=False) as source, open(path, "wb") as f: shutil.copyfileobj(source, f)

    def answer_program(self, language, name, stage, seconds, *fds):
        """Start a program or its compiler -> its pid."""
        lang, folder = LANGUAGES[language], f"{self.folder}/program"
        toolchain(lang.needs, tuple(self.limits.closed))  # found once, here
        if (pid := os.fork()) == 0: exec_program(fds, lang, command_for(language, stage, name), stage,
                                                 seconds, folder, self.limits, self.me)
        self.programs.add(pid)
        self.watch(pid, float(seconds) if stage == "run" else math.inf)  # compilers fork: the kernel counts each
        return pid

    def answer_end(self, pid):
        """End a program -> exit status, CPU seconds."""
        self.programs.remove(pid)  # of nothing else
        self.forget(pid)
        return end_process(pid)

    def answer_why(self, pids):
        """Why one of these has been ended, or ""."""
        why = next((w for w in [self.whys.get(p) or p in self.running and self.running[p].why for p in pids] if w), "")
        self.whys.clear()
        return why

    def look(self):
        """End what has too many threads, or has used its time: CPU time, and time when it and its judge both sleep."""
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 2 * TICK), now
        for pid, it in self.running.items():
            if now - it.start < TICK: continue  # most have ended by then
            with contextlib.suppress(OSError): self.measure(pid, it, passed)  # a thread may just have ended
            if it.threads > THREADS: it.why = it.why or f"started more than {THREADS} threads"
            elif it.used + it.idle > it.budget: it.why = it.why or "out of time"
            if it.why: kill(pid)

    def measure(self, pid, it, passed):
        if not LINUX: it.used = time.monotonic() - it.start
        else:
            before, it.used = it.used, time.clock_gettime(~pid << 3 | 2)  # its CPU clock
            state, it.threads = stat(f"/proc/{pid}")
            if state not in b"RD" and it.used - before < passed / 2 and asleep(pid) and asleep(self.judge):
                it.idle += passed
            if stat(f"/proc/{self.judge}")[1] > THREADS: kill(self.judge)

    def leave(self, status=0, wait=False):
        """End all there is, and this process as the judge has ended if it has. The zygote ends its candidates."""
        ended, how = os.waitpid(self.judge, 0 if wait else os.WNOHANG)
        if ended: status = os.waitstatus_to_exitcode(how)
        else: end_process(self.judge)
        for pid in self.programs: end_process(pid)
        with contextlib.suppress(ChildProcessError): os.waitpid(self.zygote, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(self.me, -status)
        os._exit(status)


def work(fd, limits):
    """Be the warden of a worker, or what it has forked -> exit status."""
    os.register_at_fork = lambda **_: None  # no module's hooks at every fork: there is one thread, random stays seeded
    if LINUX:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
            f.write("1000")  # short of memory, the kernel ends this and what it starts, not the trainer
    limit(CORE=1)
    freeze_imports()
    warden = Warden(fd, limits)
    if task := warden.start(): return task()
    try: warden.serve()
    except Exception as e:
        print(f"the sandbox: {type(e).__name__}: {e}", file=sys.stderr)
        warden.leave(MACHINE)


if __name__ == "__main__":
    if hasattr(sys, "set_int_max_str_digits"): sys.set_int_max_str_digits(100_000)  # tests of long integers say so
    del sys.path[0]  # tests import the standard library's modules, not ours
    sys.exit(work(int(sys.argv[1]), Limits(*json.loads(sys.argv[2]))))
