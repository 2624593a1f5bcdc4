"""Zygote."""
import builtins
import gc
import importlib
import io
import os
import resource
import socket
import struct
import sys
import types

from judges.peer import Peer
from judges.stubs import CANDIDATE_OPS, FINISH, JUDGE_OPS, derived, leave, library
from judges.values import KINDS, TAGS, describe
from judges.walls import LINUX, LIST, READ, SYSTEM, become_countable, end_process, libc, limit, lock, shut

WORD = struct.Struct("id")  # between judge, zygote and warden: a pid, seconds
PRELOADED = "bisect cmath copy dataclasses enum heapq io itertools math random re statistics string textwrap typing"


def freeze_imports():
    """Import without listing the library's folder: a right to list it would be one to list the packages in it."""
    for path in sys.path:
        if finder := sys.path_importer_cache.get(path):
            finder.find_spec("no_such_module")
            finder._fill_cache = list


def zygote(ctl, tell, limits, parent):
    """Lock this process in once, then fork locked candidates when the judge asks, and tell the warden of each."""
    for name in PRELOADED.split(): importlib.import_module(name)
    sys.modules["random"].seed(0)  # the same verdict in every worker
    os.environ.clear()
    sys.argv[:] = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # as scripts know them; -S left them out
    limit(CORE=1, FSIZE=0, NOFILE=64)  # CORE: 1, because with 0 a crash is still piped to the system's crash handler
    if LINUX:
        with open("/proc/self/statm") as f: size = int(f.read().split()[0]) * resource.getpagesize()
        limit(AS=size + limits.memory)  # macOS has no usable limit of memory
    more = become_countable()
    me, wall = os.getpid(), lock(SYSTEM | dict.fromkeys(limits.libraries, READ | LIST))
    if LINUX: libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: dies with the warden
    for _ in range(16): warm_up()
    gc.collect()
    gc.freeze()  # a collection in a candidate would write to, and so copy, every page
    running = set()
    while os.getppid() == parent:
        word, fds, *_ = socket.recv_fds(ctl, WORD.size, 4)  # little is done here: every page touched is copied
        if len(word) < WORD.size: break
        pid, seconds = WORD.unpack(word)
        if pid in running:
            running.remove(pid)
            answer = WORD.pack(*end_process(pid))
        elif pid or not seconds > 0: break  # no request of ours: this judge obeys an answer
        elif pid := os.fork():
            running.add(pid)
            answer = word = WORD.pack(pid, seconds)
        else:
            for sock in (ctl, tell): sock.close()
            return candidate(fds, wall, me, seconds, more)
        for fd in fds: os.close(fd)
        tell.sendall(word)
        ctl.sendall(answer)
    for pid in running: end_process(pid)
    return 0


def warm_up():
    """What a candidate does, done here: code that has run is specialized, and pages written before the fork are not
    copied after it: 340 page faults instead of 404 per candidate, and 1.7 ms instead of 2.2."""
    ours, theirs = (Peer(s, ops) for s, ops in zip(socket.socketpair(), (JUDGE_OPS, CANDIDATE_OPS), strict=True))
    ours.send("def f(x): return [x]")
    load_module(theirs, theirs.receive())
    for call in (["names", [["f"]], {}], [0, [1, "x", [{"tuple": [2.5]}]], {}], [0, [{"dict": [["a", 1]]}], {}]):
        ours.send(call)
        theirs.serve(theirs.receive())
    for _ in range(4): ours.unpack(ours.receive())


def candidate(fds, wall, parent, seconds, limits):
    """One completion's process: a module that answers calls, or a program from stdin to stdout -> exit status."""
    null = os.open("/dev/null", os.O_RDWR)  # anew: flags set on an open file are those of all who share it
    for i, fd in enumerate([*fds[1:], null, null, null][:2] + [null]): os.dup2(fd, i)
    for fd in (null, *fds[1:]): os.close(fd)
    limit(CPU=int(seconds) + 2, **limits)
    shut(wall, parent)
    if not wall: os.setsid()  # a group to kill; behind the walls there are no children
    peer = Peer(socket.socket(fileno=fds[0]), CANDIDATE_OPS)
    peer.send("ready")
    code, is_program = peer.receive()
    if is_program: return run_main(peer, code)
    try:
        load_module(peer, code)
        while True: peer.serve(peer.receive())
    finally: os._exit(0)  # a call that says sys.exit() has left


class Printed(io.StringIO):
    """Standard output or error that a test looks at."""

    def flush(self):
        super().flush()
        if (text := self.getvalue()) and not self.closed:
            self.seek(0)
            self.truncate()
            self.peer.call("printed", (self.name, text), {})


def home(peer, module):
    """What a judge asks of a candidate that has loaded its code."""
    real = {}

    def replace(place, name, value):
        target = importlib.import_module(place)
        real.setdefault((place, name), getattr(target, name))
        setattr(target, name, value)

    def restore(place, name):
        if (place, name) in real: setattr(importlib.import_module(place), name, real.pop((place, name)))

    def print_here(place, name):
        stream = Printed()
        stream.peer, stream.name = peer, name
        replace(place, name, stream)
        peer.before_call = lambda: [s.flush() for s in (sys.stdout, sys.stderr) if type(s) is Printed]

    def environ(wanted):
        os.environ.clear()
        os.environ.update(wanted)

    def setname(name, *value):
        vars(module).update({name: value[0]}) if value else vars(module).pop(name)

    def contents(x):
        tag = TAGS[next(b for b in type(x).__mro__ if b in TAGS)]
        return KINDS[tag][2](KINDS[tag][1](x))

    def names(wanted):
        if wanted == ["__all__"]: return {"__all__": [n for n in vars(module) if n[0] != "_"]}
        return {n: vars(module)[n] for n in wanted if n in vars(module)}

    return dict(names=names, setname=setname, plain=contents, library=library, replace=replace, restore=restore,
                print_here=print_here, environ=environ, derive=derived, exit=leave,
                read_here=lambda text: replace("sys", "stdin", io.StringIO(text)))


def load_module(peer, code):
    """Run the code once; from then on the other end can call what it defines."""
    module = sys.modules["solution"] = types.ModuleType("solution")
    peer.ops = peer.ops | FINISH | home(peer, module)
    try: exec(compile(code, "<solution>", "exec", dont_inherit=True), vars(module))
    except BaseException as e:
        peer.send(describe(e))
        raise
    peer.send("loaded")


def run_main(peer, code):
    """Run the code as a script -> exit status; the interpreter then joins threads, runs atexit, flushes."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    try: exec(compile(code, "<solution>", "exec", dont_inherit=True), vars(module))
    except Exception as e:
        peer.sock.sendall(describe(e).encode())
        return 1
    return 0
