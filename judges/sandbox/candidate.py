"""The candidate: the process that runs one completion, a module that answers calls or a program on its own.

Everything in this process may be the completion's doing: it can rewrite each of these functions and send any bytes. So
nothing here protects anybody. The walls (walls.py) stand before its code runs, and the judge believes none of it.
"""

import os
import socket
import sys
import types

from judges.sandbox.walls import limit, shut
from judges.sandbox.wire.operations import CANDIDATE_OPS, FINISH, leave, library
from judges.sandbox.wire.peer import Peer
from judges.sandbox.wire.stubs import derived
from judges.sandbox.wire.values import KINDS, TAGS, base_of, describe


def candidate(fds: list, wall: object, parent: int, seconds: float, limits: dict) -> int:
    """Run a completion behind the walls -> exit status.

    fds: the line to the judge; for a program also its stdin and stdout. wall: from walls.lock; parent: the zygote's
    pid; seconds: of CPU; limits: as walls.limit takes them."""
    null = os.open("/dev/null", os.O_RDWR)  # opened anew, as flags of an open file hold for all who share it
    for target, fd in enumerate([*fds[1:], null, null, null][:2] + [null]):
        os.dup2(fd, target)
    for fd in (null, *fds[1:]):
        os.close(fd)
    limit(CPU=int(seconds) + 2, **limits)
    shut(wall, parent)
    if not wall:
        os.setsid()  # a group to kill; behind the walls there are no children
    peer = Peer(socket.socket(fileno=fds[0]), CANDIDATE_OPS)
    peer.send("ready")
    code, is_program = peer.receive()
    if is_program:
        return run_program(peer, code)
    try:
        load_module(peer, code)
        while True:
            peer.serve(peer.receive())
    finally:
        os._exit(0)  # at once, whatever was raised: without atexit, threads or flushing


def load_module(peer: Peer, code: str) -> None:
    """Run the code once. From then on the judge can call what it defines."""
    module = sys.modules["solution"] = types.ModuleType("solution")
    served = Served(module)
    names = [name for name in vars(Served) if name[0] != "_"]
    peer.ops = peer.ops | FINISH | {"library": library, "derive": derived, "exit": leave}
    peer.ops |= {name: getattr(served, name) for name in names}
    try:
        exec(compile(code, "<solution>", "exec", dont_inherit=True), vars(module))
    except BaseException as e:
        peer.send(describe(e))
        raise
    peer.send("loaded")


def run_program(peer, code):
    """Run the code as a script. The interpreter then joins threads, runs atexit, flushes."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = vars(sys)["__stdout__"] = open(1, "w", encoding="utf-8", closefd=False)
    try:
        exec(compile(code, "<solution>", "exec", dont_inherit=True), vars(module))
    except Exception as e:
        peer.sock.sendall(describe(e).encode())
        return 1
    return 0


class Served:
    """What the judge asks of a loaded completion: each method is an operation."""

    def __init__(self, module):
        self._globals = vars(module)

    def names(self, wanted):
        """Return {name: value} of those of the `wanted` names that are global here; ["__all__"] asks for all names."""
        if wanted == ["__all__"]:
            return {"__all__": [name for name in self._globals if name[0] != "_"]}
        return {name: self._globals[name] for name in wanted if name in self._globals}

    def setname(self, name, *value):
        """Set a global name; delete it if there is no value."""
        if value:
            self._globals[name] = value[0]
        else:
            del self._globals[name]

    def call_method(self, x, name, /, *args, **named):
        """Call a method -> [True, its result]. [False, the attribute] if it is no method: the test calls what it is."""
        found = getattr(x, name)
        return [True, found(*args, **named)] if type(found) is types.MethodType else [False, found]

    def plain(self, x):
        """Return the contents of an object whose class extends a plain type, as that type."""
        kind = KINDS[TAGS[base_of(type(x))]]
        return kind.together(kind.apart(x))
