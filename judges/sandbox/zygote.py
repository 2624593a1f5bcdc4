"""The zygote: a Python that has imported what completions need and locked itself in, and is forked for each of them.

It is forked from the warden before any test arrives, so no test and no expected value is in the memory that a candidate
inherits. A judge asks it, with one WORD, to fork a candidate or to end one, and it tells the warden of each. A judge
may have been handed over to a candidate, so the zygote ends only its own children, and hangs up at a senseless request.
"""

import builtins
import contextlib
import gc
import importlib
import os
import resource
import select
import socket
import struct
import sys

from judges.sandbox.candidate import candidate, load_module
from judges.sandbox.walls import (
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
)
from judges.sandbox.wire.operations import CANDIDATE_OPS, JUDGE_OPS
from judges.sandbox.wire.peer import Peer

WORD = struct.Struct("id")  # between judge, zygote and warden: a pid, seconds
PRELOADED = "bisect cmath copy dataclasses enum heapq io itertools math random re statistics string textwrap typing"


def zygote(warden: socket.socket, limits: Limits, parent: int) -> int:
    """Serve one judge after the other, until the parent, at the other end of `warden`, has gone.

    The warden sends the line to the next judge. Then, and when a judge has gone, all candidates end."""
    preload()
    limit(CORE=1, FSIZE=0, NOFILE=64)  # CORE: 1, because with 0 a crash is still piped to the system's crash handler
    if LINUX:
        limit(AS=size_now() + limits.memory)  # macOS has no usable limit of memory
    more = become_countable()
    me, wall = os.getpid(), lock(SYSTEM | dict.fromkeys(limits.libraries, READ | LIST), forks=True)
    if LINUX:
        die_with_parent()
    lines, running = [warden], set[int]()
    while os.getppid() == parent:
        line = select.select(lines, [], [])[0][0]
        word, fds = receive(line)
        pid, seconds = WORD.unpack(word) if len(word) == WORD.size else (-1, 0.0)
        if pid in running:
            running.remove(pid)
            answer, word = WORD.pack(*end_process(pid)), WORD.pack(pid, -1)
        elif line is warden or pid or not seconds > 0:  # the next judge; or this one has gone, or obeys an answer
            end_all(running, warden)
            for old in lines[1:]:
                old.close()
            lines[1:] = [socket.socket(fileno=fd) for fd in fds if line is warden]
            if line is warden and not word:
                break
            continue
        elif pid := os.fork():
            running.add(pid)
            answer = word = WORD.pack(pid, seconds)
        else:
            for sock in lines:
                sock.close()
            return candidate(fds, wall, me, seconds, more)
        for fd in fds:
            os.close(fd)
        warden.sendall(word)
        with contextlib.suppress(OSError):
            line.sendall(answer)
    return 0


def receive(line):
    """Receive a word and open files; b"" if the other end has gone."""
    try:
        word, fds, *_ = socket.recv_fds(line, WORD.size, 4)  # little is done here: every page touched is copied
    except OSError:
        return b"", []
    return word, fds


def end_all(running, warden):
    for pid in running:
        end_process(pid)
        with contextlib.suppress(OSError):  # the warden may have gone
            warden.sendall(WORD.pack(pid, -1))
    running.clear()


def import_libraries() -> None:
    """Import what candidates and judges need, in the warden, for both."""
    for name in PRELOADED.split():
        importlib.import_module(name)


def preload():
    """Run what every candidate needs, and forget where this process comes from."""
    sys.modules["random"].seed(0)  # the same verdict in every worker
    os.environ.clear()
    sys.argv[:] = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # as scripts know them; -S left them out
    for _ in range(16):
        warm_up()
    gc.collect()
    gc.freeze()  # a collection in a candidate would write to, and so copy, every page


def warm_up():
    """Do what a candidate does. Code that has run is specialized, and pages written before the fork are not copied
    after it: 340 page faults instead of 404 per candidate, and 1.7 ms instead of 2.2."""
    here, there = socket.socketpair()
    ours, theirs = Peer(here, JUDGE_OPS), Peer(there, CANDIDATE_OPS)
    ours.send("def f(x): return [x]")
    load_module(theirs, theirs.receive())
    for call in (["names", [["f"]], {}], [0, [1, "x", [{"tuple": [2.5]}]], {}], [0, [{"dict": [["a", 1]]}], {}]):
        ours.send(call)
        theirs.serve(theirs.receive())
    for _ in range(4):
        ours.unpack(ours.receive())


def size_now():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * resource.getpagesize()
