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
import _thread
import ast
import builtins
import collections
import contextlib
import ctypes
import functools
import gc
import glob
import importlib
import io
import json
import math
import operator
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

# subprocess, tempfile and concurrent.futures are imported where they are used: they load threading, whose fork hooks
# would double the cost of every candidate.
LINUX = sys.platform == "linux"
HOLDS = ("process", "network", "signal", "write", "read", "memory")  # what is contained, and tried before use
MESSAGE = 8 << 20  # bytes of the longest answer or output: a list of a million small ints fits
JUDGE_MEMORY = 1 << 30  # a test works on what the candidate answered: "x" * answer must not eat the machine
JUDGE_KEEPS = 128 << 20  # bytes of the largest judge that goes on: what Python has taken it does not give back
COMPILER_MEMORY = 2 << 30
COMPILE_SECONDS = 20  # of CPU; javac takes 1
WALL = 20  # seconds of wall-clock time per second of CPU: with six workers on a busy core each gets a tenth of it
GRACE = 10  # seconds until a judge that does not react is replaced
MACHINE = 75  # exit status where the machine failed, not a candidate or a test
RETRY = 1  # seconds until a batch on which the machine failed is tried again
THREADS = 64  # of one process; Java starts 20
TICK = 0.02  # seconds between two looks at what runs


class Dead(BaseException):
    """The other side is gone, out of time or talks nonsense. A test's `except Exception` must not catch it."""


class Failed(Exception):
    """A completion's own failure of one test. Anything else that is raised is the machine's: it ends the judge."""


# ---- 1. Plain data and calls between judge and candidate -------------------------------------------------------------
# JSON, never pickle: reading a message must not be able to run anything. What JSON cannot say is {tag: parts}.
items = lambda d: [[k, v] for k, v in dict.items(d)]
nothing = lambda v: None
KINDS = {  # tag: (type, take apart, put together); a subclass travels as its nearest base
    "int": (int, lambda v: hex(int.__index__(v)), lambda p: int(p, 16)),  # hex: linear time, no limit on digits
    "float": (float, float.__float__, float), "complex": (complex, complex.__repr__, complex),
    "str": (str, str.__str__, str), "list": (list, list, list), "tuple": (tuple, list, tuple),
    "set": (set, list, set), "frozenset": (frozenset, list, frozenset), "dict": (dict, items, dict),
    "Counter": (Counter, items, lambda p: Counter(dict(p))), "OrderedDict": (OrderedDict, items, OrderedDict),
    "defaultdict": (defaultdict, lambda v: [v.default_factory, items(v)], lambda p: defaultdict(*p)),
    "deque": (deque, lambda v: [list(v), v.maxlen], lambda p: deque(*p)),
    "range": (range, lambda v: [v.start, v.stop, v.step], lambda p: range(*p)),
    "slice": (slice, lambda v: [v.start, v.stop, v.step], lambda p: slice(*p)),
    "bytes": (bytes, bytes.hex, bytes.fromhex), "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "Decimal": (Decimal, Decimal.__str__, Decimal),
    "Fraction": (Fraction, lambda v: [v.numerator, v.denominator], lambda p: Fraction(*p)),
    "datetime": (datetime, lambda v: [datetime.isoformat(v), v.fold],
                 lambda p: datetime.fromisoformat(p[0]).replace(fold=p[1])),
    "date": (date, date.isoformat, date.fromisoformat), "time": (clock, clock.isoformat, clock.fromisoformat),
    "timedelta": (timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda p: timedelta(*p)),
    "timezone": (timezone, lambda v: v.utcoffset(None), timezone),
    "keys": (type({}.keys()), list, lambda p: dict.fromkeys(p).keys()),
    "values": (type({}.values()), list, lambda p: dict(enumerate(p)).values()),
    "items": (type({}.items()), list, lambda p: dict(p).items()),
    "Ellipsis": (type(...), nothing, lambda p: ...),
    "NotImplemented": (type(NotImplemented), nothing, lambda p: NotImplemented)}
TAGS = {kind: tag for tag, (kind, _, _) in KINDS.items()}
MUTABLE = (list, dict, set, deque, bytearray, Counter, OrderedDict, defaultdict)
RUNNERS = {"unittest", "doctest", "bdb", "test"}  # their exceptions say what becomes of a test: SkipTest
TEXTS = {"uuid": ("UUID",), "ipaddress": ("IPv4Address", "IPv6Address"),  # str(x) says all of them
         "pathlib": ("PurePosixPath", "PosixPath")}
TYPES = {k.__name__: k for k in vars(types).values() if isinstance(k, type)}  # function, generator, coroutine, ...

# An object that is not plain data stays where it is; the other end gets a stub. It is asked freely about itself
# (ALONE), but an operator with two sides (PAIRS) only if both are such objects. So the candidate's classes can add and
# order their own kind, and are never asked whether they equal, exceed or contain a plain value: they would say yes.
# Only an object that the test itself has made of a class (`meant`) is asked what it contains and which number it is. It
# may also be added to a plain value, if that makes an object again, which is then `mixed` and no number: it has seen
# the value. A test that wants a number does not make a Vector.
library = lambda module, name, *args, **named: getattr(importlib.import_module(module), name)(*args, **named)
leave = lambda x, error: type(x).__exit__(x, error and type(error), error, None)
ALONE = dict(getattr=getattr, setattr=setattr, delattr=delattr, iter=iter, next=next, len=len, str=str, repr=repr,
             bool=bool, hash=hash, neg=operator.neg, pos=operator.pos, invert=operator.invert, abs=abs,
             format=format, dir=dir,
             getitem=operator.getitem, setitem=operator.setitem, delitem=operator.delitem, reversed=reversed,
             enter=lambda x: type(x).__enter__(x), copy=functools.partial(library, "copy", "copy"),
             deepcopy=lambda x, memo: library("copy", "deepcopy", x), aiter=lambda x: type(x).__aiter__(x),
             instancecheck=lambda kind, x: isinstance(x, kind), subclasscheck=lambda kind, x: issubclass(x, kind))
MEANT = dict(int=int, float=float, complex=complex, index=operator.index, round=round)
ORDER = "eq ne lt le gt ge".split()
NUMERIC = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
PAIRS = {n: getattr(operator, f"__{n}__") for n in [*ORDER, *NUMERIC, "contains"]}
IN_PLACE = {f"i{n}": getattr(operator, f"__i{n}__") for n in NUMERIC}
PAIRS |= IN_PLACE | {"divmod": divmod}


class Remote:
    """A stub of an object at the other end: whatever is done to it is asked over there."""
    __slots__ = "_peer", "_number", "_meant", "_makes", "__weakref__"  # did the test make it; does calling it make one

    def __new__(cls, peer, number, *body):
        if body: return derive(peer, number, *body)  # a test's class statement with a base of the candidate's: its name
        self = super().__new__(cls)
        asks_freely = peer.ops is not JUDGE_OPS  # a candidate: what a test gives it does not lie
        for name, value in ("_peer", peer), ("_number", number), ("_meant", asks_freely), ("_makes", False):
            object.__setattr__(self, name, value)
        return self

    def __call__(self, *args, **named):
        made = self._peer.call(self._number, args, named)
        if self._makes and foreign(made): object.__setattr__(made, "_meant", True)
        return made

    def __contains__(self, x):
        if foreign(x) or self._meant: return self._peer.call("contains", (self, x), {})
        return any(y is x or y == x for y in self)

    def __exit__(self, kind, error, trace):
        return self._peer.call("exit", (self, error), {}) and may_pass(error, trace)

    async def __aexit__(self, kind, error, trace):
        return self._peer.call("aexit", (self, error), {}) and may_pass(error, trace)

    async def __aenter__(self): return self._peer.call("aenter", (self,), {})
    async def __anext__(self): return self._peer.call("anext", (self,), {})

    @property
    def __class__(self):
        kind = self._peer.call("getattr", (self, "__class__"), {})
        return kind if foreign(kind) or kind in TYPES.values() else Remote  # it may lie, but not that it is plain

    @property
    def __dict__(self): return self._peer.call("getattr", (self, "__dict__"), {})
    @property
    def __doc__(self): return self._peer.call("getattr", (self, "__doc__"), {})
    @property
    def __module__(self): return self._peer.call("getattr", (self, "__module__"), {})


class Waiting(Remote):
    """A stub of what can be awaited."""
    __slots__ = ()
    def __await__(self): return awaited(self).__await__()


def foreign(x):
    """Is this an object of the other end? By its true type, for __class__ can lie."""
    return issubclass(type(x), (Remote, Like))


def pair(name, swapped=False):
    """The method of a stub that asks for this operator."""
    def method(self, x):
        if not foreign(x) and (name in ORDER or not self._meant): return NotImplemented
        result = self._peer.call(name, (x, self) if swapped else (self, x), {})
        parts = result if type(result) is tuple else (result,)  # divmod has two
        return meant(result, name, self, x) if foreign(x) or parts and all(map(foreign, parts)) else NotImplemented
    return method


def meant(x, op, *makers):
    """What an object that a test has made makes of itself, -v or v + w, is meant, too; mixed is what v + 1 makes."""
    pure = all(foreign(y) and y._meant != "mixed" for y in makers)
    for part in x if type(x) is tuple else (x,):
        if makers[0]._meant and foreign(part) and not (op in IN_PLACE and part is makers[0]):
            object.__setattr__(part, "_meant", True if pure else "mixed")
    return x


def alone(name):
    def method(self, *args):
        if name in MEANT and not self._meant: raise TypeError(f"an object has no {name}")
        result = self._peer.call(name, (self, *args), {})
        if self._meant == "mixed" and name in NUMERICAL and not foreign(result):
            raise TypeError(f"no {name} of what was made with a plain value")
        return meant(result, name, self) if name in (*UNARY, "copy", "deepcopy") else result
    return method


for _n in ALONE | MEANT: setattr(Remote, f"__{_n}__", alone(_n))
for _n in set(PAIRS) - {"contains"}: setattr(Remote, f"__{_n}__", pair(_n))
for _n in [*NUMERIC, "divmod"]: setattr(Remote, f"__r{_n}__", pair(_n, swapped=True))


async def awaited(stub):
    """A coroutine of the other end, as one of this: it runs over there."""
    return stub._peer.call("await", (stub,), {})


def finish(awaitable):
    """Run this to its end, on a loop of its own if one is running -> its result."""
    asyncio = importlib.import_module("asyncio")
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        if running or not loops: loops.append(asyncio.new_event_loop())
        return loops[-1].run_until_complete(awaitable)
    finally:
        if running: loops.pop().close()
        asyncio._set_running_loop(running)


CANDIDATE_OPS = ALONE | MEANT | PAIRS
loops = []  # the first one stays: what it has begun may go on in the next call
FINISH = {"await": lambda x: finish(x), "anext": lambda x: finish(type(x).__anext__(x)),
          "aenter": lambda x: finish(type(x).__aenter__(x)),
          "aexit": lambda x, error: finish(type(x).__aexit__(x, error and type(error), error, None))}


def derive(name, bases, body):
    """A class of the test that extends one of the candidate's, made over there: its methods are calls back."""
    return next(b for b in bases if foreign(b))._peer.call("derive", (name, bases, body), {})


def derived(name, bases, body):
    def method(stub): return lambda self, *args, **named: stub(self, *args, **named)
    made = {k: method(v) if type(v) is Remote else v for k, v in body.items()}
    return types.new_class(name, bases, {}, lambda space: space.update(made))


class Like:
    """A stub of an object whose class extends a plain one (class Stack(list)), with its contents.

    It is compared, hashed and read as these; its other methods and attributes are asked over there. What its class
    overrides is asked only of an object that the test has made, or between two of the candidate's."""
    _meant = _makes = False

    def __getattribute__(self, name):
        get = object.__getattribute__
        if name in LOCAL: return get(self, name)
        base, special = get(self, "_base"), name.startswith("__") and name not in ("__class__", "__dict__", "__doc__")
        if special and hasattr(type(self), name): return get(self, name)
        inherited = hasattr(base, name) and base not in MUTABLE and name not in get(self, "_names")
        if inherited and not name.startswith("__"): return get(self, name)
        return get(self, "_peer").call("getattr", (self, name), {})

    def __setattr__(self, name, value): self._peer.call("setattr", (self, name, value), {})
    def __delattr__(self, name): self._peer.call("delattr", (self, name), {})
    def __copy__(self): return self._peer.call("copy", (self,), {})
    def __deepcopy__(self, memo): return self._peer.call("deepcopy", (self, memo), {})
    def __call__(self, *args, **named): return self._peer.call("getattr", (self, "__call__"), {})(*args, **named)
    __enter__, __exit__ = Remote.__enter__, Remote.__exit__


LOCAL = {"_peer", "_number", "_meant", "_makes", "_names", "_base", "_read"}
CHANGING = "setitem", "delitem", *IN_PLACE
UNARY = "neg", "pos", "invert", "abs", "round", "bool"
NUMERICAL = {*UNARY, *MEANT, "len"}
FREE = "str", "repr", "format"
READING = [*FREE, *UNARY, *"len iter getitem contains reversed hash int float index".split()]
NUMBERS = int, float, complex, Decimal, Fraction, str, bytes


def fresh(self):
    """Read again what an object holds that may have changed since: after a call, never in between."""
    peer, base = self._peer, self._base
    if base in MUTABLE and self._read != peer.calls:
        now = peer.call("plain", (self,), {})
        object.__setattr__(self, "_read", peer.calls)
        if type(now) is not base: peer.die("bad answer: not what it was")
        refill(self, base, now)


def refill(x, base, now):
    """Make this mutable object hold the same as another one."""
    base.clear(x)
    if not issubclass(base, dict): return (base.update if base is set else base.extend)(x, now)
    for k, v in now.items(): base.__setitem__(x, k, v)  # OrderedDict.update would ask x for its own __setitem__


def like_method(base, name, op, swapped=False):
    """The method of a stub with contents: those of its base on the contents, unless the object may be asked."""
    plainly = getattr(base, name, None) or op == "bool" and (lambda x: base.__len__(x) > 0)
    known = {name, name.replace("__i", "__", 1) if op in CHANGING else name, "__missing__" if op == "getitem" else name}

    def method(self, *args):
        other = args and all(map(foreign, args))
        if self._meant == "mixed" and op in NUMERICAL: raise TypeError(f"no {op} of what was made with a plain value")
        may = other and op in PAIRS or self._meant and (op in READING or base not in NUMBERS) or op in FREE
        if op in CHANGING and base in MUTABLE or may and op not in ORDER and known & self._names:
            result = self._peer.call(op, (*args, self) if swapped else (self, *args), {})
            if op in PAIRS: meant(result, op, self, *args)
            if op in READING or op in ("setitem", "delitem") or other or foreign(result): return result
        if not plainly and op in PAIRS and op != "contains": return NotImplemented
        if not plainly: raise TypeError(f"a {base.__name__} has no {name}")
        for x in (self, *args):
            if issubclass(type(x), Like): fresh(x)
        return plainly(self, *args)
    return method


def like_class(base):
    """The class of stubs whose contents are of this type."""
    body = {"_base": base, "__hash__": base.__hash__}
    for op in {*READING, *CHANGING, *PAIRS}:
        if op in PAIRS or op in UNARY or hasattr(base, f"__{op}__"):  # str with __int__ would be asked for int("5")
            body[f"__{op}__"] = like_method(base, f"__{op}__", op)
    for op in [*NUMERIC, "divmod"]: body[f"__r{op}__"] = like_method(base, f"__r{op}__", op, swapped=True)
    return type(base.__name__, (Like, base), body)


EXTENDED = "int float complex str list tuple set frozenset dict Counter OrderedDict defaultdict deque bytes bytearray"
LIKES = {tag: like_class(KINDS[tag][0]) for tag in [*EXTENDED.split(), "Decimal", "Fraction"]}


GIVEN = {"_io.StringIO", "_io.BytesIO", "types.SimpleNamespace", "argparse.Namespace", "queue.Queue", "queue.LifoQueue",
         "queue.PriorityQueue", "_queue.SimpleQueue", "random.Random", "re.Pattern", "re.Match"}


def test_made(x):
    """Is it of a class that a test defines (TreeNode, ...), a mock, or one of the library's that only hold data?"""
    kind = type(x)
    return kind.__module__ in ("test", "unittest.mock") or f"{kind.__module__}.{kind.__name__}" in GIVEN


def test_field(x, name, *new):
    """A candidate's view of such an object: names without underscore, and not what a mock tells its test."""
    known = [vars(k) for k in type(x).__mro__ if k.__module__ == "unittest.mock"]
    told = known and (new or name == "method_calls" or any(name in names for names in known))
    named = type(x) is types.FunctionType and name in ("__name__", "__qualname__", "__doc__") and not new
    if not named and (not test_made(x) or name.startswith("_") or told):
        raise AttributeError(f"no {name!r} for the candidate")
    if new: setattr(x, name, *new)
    return getattr(x, name)


def if_made(op):
    """The operator for what a test has made."""
    def guarded(x, *args):
        if not test_made(x): raise TypeError("not for the candidate")
        return op(x, *args)
    return guarded


def run_coroutine(x):
    if type(x) is not types.CoroutineType: raise TypeError("not for the candidate")
    return finish(x)


def printed(name, text):
    """What a candidate has printed, where a test has put a file in place of its own output."""
    if name in ("stdout", "stderr") and type(text) is str and getattr(sys, name) is not getattr(sys, f"__{name}__"):
        getattr(sys, name).write(text)


MADE = ["exit", *"str repr format getitem setitem delitem reversed enter neg abs copy deepcopy".split(), *MEANT, *PAIRS]
JUDGE_OPS = {n: if_made((CANDIDATE_OPS | {"exit": leave})[n]) for n in MADE} | {
    "getattr": test_field, "setattr": test_field, "iter": iter, "next": next, "len": len, "bool": bool, "hash": hash,
    "eq": operator.eq, "await": run_coroutine, "printed": printed}


def make_error(self, *args, **named):
    """A test makes an exception of the candidate's: over there, and its copy here."""
    made = self._home(*args, **named)
    self.args = made.args
    vars(self).update(vars(made))


def ask_error(self, name):
    if name.startswith("__") or "_remote" not in vars(self): raise AttributeError(f"no {name!r}")
    return getattr(self._remote, name)


def say_error(self): return str(self._remote) if "_remote" in vars(self) else Exception.__str__(self)


class OwnKind(type):
    """The class of classes of exceptions that are at the other end: their attributes are asked there."""

    def __getattr__(cls, name):
        if name.startswith("__"): raise AttributeError(name)
        return getattr(type.__getattribute__(cls, "_home"), name)


OWN_ERROR = {"__init__": make_error, "__getattr__": ask_error, "__str__": say_error}


class Peer:
    """One end of a conversation: packs values, makes calls, serves calls; `ops` are the functions callable by name."""

    def __init__(self, sock, ops=JUDGE_OPS, limit=1 << 40, deadline=None):
        self.sock, self.ops, self.limit, self.deadline, self.dead = sock, ops, limit, deadline, ""
        self.shown, self.numbers = [], {}  # objects of ours that the other end knows, and their numbers by id
        self.stubs, self.types = {}, {}  # what we know of its objects, and of its exceptions and namedtuples
        self.defined, self.calls = {}, 0  # what classes that extend a plain one define; how often we called
        self.exits, self.before_call = False, None  # may a call end in SystemExit; what to do before each
        self.one_caller = _thread.RLock()  # a test may have threads

    def die(self, why):
        self.dead = self.dead or why  # stays when a test swallows the exception: dying must never pass as raising
        raise Dead(why)

    def send(self, message):
        data = json.dumps(message).encode()
        self.wait(self.sock.sendall, struct.pack(">I", len(data)) + data)

    def wait(self, operation, argument):
        if self.deadline:
            if (left := self.deadline - time.monotonic()) <= 0: self.die("out of time")
            self.sock.settimeout(left)
        try: return operation(argument)
        except OSError as e: self.die("out of time" if isinstance(e, TimeoutError) else "exited")

    def take(self, size):
        data = bytearray()
        while len(data) < size:
            if not (part := self.wait(self.sock.recv, min(size - len(data), 1 << 20))): self.die("exited")
            data += part
        return data

    def receive(self):
        size, = struct.unpack(">I", self.take(4))
        if size > self.limit: self.die(f"sent {size} bytes at once, {self.limit} are allowed")
        try: return json.loads(self.take(size))
        except (ValueError, RecursionError, MemoryError) as e: self.die(f"sent no message: {type(e).__name__}")

    def number(self, x):
        """The number under which the other end knows this object of ours."""
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.shown)
            self.shown.append(x)
        return self.numbers[id(x)]

    def pack(self, x):
        kind = type(x)
        if x is None or kind in (bool, str, float) or kind is int and -2**63 < x < 2**63: return x
        if kind is list: return [self.pack(y) for y in x]
        if issubclass(kind, (Remote, Like)): return {"yours": x._number}
        base = next((b for b in kind.__mro__ if b in TAGS), None)  # not isinstance: __class__ can lie
        if base is tuple and hasattr(kind, "_fields") and bare_record(kind):
            return {"record": [kind.__name__, list(kind._fields), [self.pack(y) for y in x]]}
        if base and TAGS[base] in LIKES and kind.__module__ == "solution": return self.pack_like(x, kind, base)
        if base: return {TAGS[base]: self.pack(KINDS[TAGS[base]][1](x))}
        if issubclass(kind, BaseException): return self.pack_error(x)
        if issubclass(kind, type) and issubclass(x, (Exception, SystemExit)): return {"error": self.error_names(x)}
        if issubclass(kind, type) and (getattr(builtins, x.__name__, None) is x or TYPES.get(x.__name__) is x):
            return {"type": x.__name__}
        if kind.__name__ in TEXTS.get(kind.__module__, ()): return {"text": [kind.__module__, kind.__name__, str(x)]}
        if kind is types.CoroutineType:
            back = x.cr_code is awaited.__code__ and x.cr_frame
            return {"yours": back.f_locals["stub"]._number} if back else {"coroutine": self.number(x)}
        if self.ops is JUDGE_OPS and not (callable(x) or hasattr(kind, "__next__") or test_made(x)):
            raise TypeError(f"a {kind.__name__} cannot be passed to the candidate")
        return {"waits" if hasattr(kind, "__await__") else "mine": self.number(x)}

    def pack_like(self, x, kind, base):
        """An object of a class that extends a plain one; what the class defines is told once."""
        parts, number, defined = self.pack(KINDS[TAGS[base]][1](x)), self.number(kind), None
        if number not in self.defined:
            defined = sorted({n for k in kind.__mro__ if k not in TAGS and k is not object for n in vars(k)})
            self.defined[number] = defined
        return {"like": [self.number(x), TAGS[base], parts, number, defined]}

    def pack_error(self, x):
        """An exception: what it is, its arguments, its attributes and its cause."""
        if "_remote" in x.__dict__: return {"yours": x._remote._number}
        tell = [list(BaseException.args.__get__(x)), {k: v for k, v in x.__dict__.items() if k[:1] != "_"}, None]
        cause = x.__cause__
        if issubclass(type(cause), Exception) and type(cause).__module__ != "test":
            tell[2] = self.error_names(type(cause))
        try: told = self.pack(tell[:2])
        except Exception: told = [["an argument that cannot be told"], {"dict": []}]
        return {"raised": [self.number(x), self.error_names(type(x)), *told, tell[2]]}

    def unpack(self, x):
        if type(x) is list: return [self.unpack(y) for y in x]
        if type(x) is not dict: return x
        (tag, parts), = x.items()
        if tag in ("mine", "waits"):  # same object, same stub
            return self.stubs.setdefault(int(parts), (Remote if tag == "mine" else Waiting)(self, int(parts)))
        if tag == "yours": return self.shown[parts]
        if tag == "like": return self.unpack_like(*parts)
        if tag == "raised": return self.unpack_error(*parts)
        if tag == "error": return self.error_type(parts)
        if tag == "record": return self.record_type(*parts[:2])(*self.unpack(parts[2]))
        if tag == "type": return TYPES[parts] if parts in TYPES else builtin_type(parts)
        if tag == "text" and parts[1] in TEXTS[parts[0]]:
            return getattr(importlib.import_module(parts[0]), parts[1])(str(parts[2]))
        if tag == "coroutine": return awaited(self.unpack({"mine": parts}))
        return KINDS[tag][2](self.unpack(parts))

    def unpack_like(self, number, tag, parts, kind, defined):
        base, plain = KINDS[tag][0], KINDS[tag][2](self.unpack(parts))
        if defined is not None: self.defined[kind] = frozenset(map(str, defined))
        stub = self.stubs.get(number)
        if type(stub) is not LIKES[tag]:
            stub = self.stubs[number] = base.__new__(LIKES[tag], *[plain] * (base not in MUTABLE))
            if base is deque: deque.__init__(stub, (), plain.maxlen)
            if base is defaultdict: defaultdict.__init__(stub, plain.default_factory)
            for name, value in zip(("_peer", "_number", "_names"), (self, number, self.defined[kind]), strict=True):
                object.__setattr__(stub, name, value)
        if base in MUTABLE: refill(stub, base, plain)
        object.__setattr__(stub, "_read", self.calls)
        return stub

    def unpack_error(self, number, names, args, fields, cause):
        kind, args, fields = self.error_type(names), self.unpack(args), self.unpack(fields)
        known = self.stubs.get(number)
        if type(known) is kind: return known
        try: error = kind(*args) if kind.__module__ == "builtins" else kind.__new__(kind)
        except Exception: error = kind.__new__(kind)
        error.args = tuple(args)
        fields = {k: v for k, v in fields.items() if not k.startswith("_") and not hasattr(BaseException, k)}
        vars(error).update(fields, _remote=Remote(self, int(number)))
        if cause: error.__cause__ = (kind := self.error_type(cause)).__new__(kind)
        self.stubs[number] = error
        return error

    def error_names(self, kind):
        """The name of a built-in exception, else [module:name, number, the same of its bases]."""
        if "_home" in vars(kind): return {"yours": kind._home._number}
        if getattr(builtins, kind.__name__, None) is kind: return kind.__name__
        bases = [self.error_names(b) for b in kind.__bases__ if issubclass(b, Exception)]
        return [f"{kind.__module__}:{kind.__name__}", self.number(kind), *bases]

    def error_type(self, names):
        """The built-in exception of that name, one of the library's, or one of our own with this name and bases."""
        if type(names) is str: found = getattr(builtins, names, None)
        elif type(names) is dict: found = self.unpack(names)
        else:
            full, number, *bases = names
            module, _, name = full.partition(":")
            standard = module.partition(".")[0] in sys.stdlib_module_names - RUNNERS
            found = getattr(sys.modules.get(module), name, None) if standard else self.types.get(number)
            if not isinstance(found, type):
                own = OWN_ERROR | {"_home": Remote(self, int(number)), "__module__": "solution"}
                found = self.types[number] = OwnKind(name, tuple(map(self.error_type, bases)), own)
        if not issubclass(found, (Exception, SystemExit)): raise TypeError("not an exception")
        return found

    def record_type(self, name, fields):
        """A namedtuple with these names, which are all it has of the original."""
        if len(fields) > 100 or not " ".join([name, *fields]).isascii(): raise ValueError("not a namedtuple")
        key = name, *fields
        if key not in self.types: self.types[key] = collections.namedtuple(name, fields)
        return self.types[key]

    def call(self, what, args, named):
        """Call a function of the other end, and serve its calls back until the answer comes."""
        with self.one_caller: return self.call_alone(what, args, named)

    def call_alone(self, what, args, named):
        if self.dead: raise Dead(self.dead)
        if self.before_call: self.before_call()
        self.calls += what != "plain"
        self.send([what, self.pack(list(args)), {k: self.pack(x) for k, x in named.items()}])
        while True:
            message = self.receive()
            try:
                verb, value, more = message
                if verb == "return":
                    for place, now in more:  # what the function changed in its arguments changes here too
                        mine, now = args[place] if type(place) is int else named[place], self.unpack(now)
                        if type(mine) not in MUTABLE: raise TypeError("change of a constant")
                        refill(mine, type(mine), now)
                    return self.unpack(value)
                if verb == "raise":
                    error = self.unpack(value)
                    if not issubclass(type(error), (Exception, SystemExit)): raise TypeError("not an exception")
                    break
            except Exception as e: self.die(f"bad answer: {type(e).__name__}: {e}")
            self.serve(message)
        if isinstance(error, SystemExit) and not self.exits: self.die("exited")
        ends = {StopIteration: "next", StopAsyncIteration: "anext"}  # at any other place map, zip and all would end
        if any(isinstance(error, kind) and what != asked for kind, asked in ends.items()):
            raise RuntimeError(f"{type(error).__name__} from what is no iterator")
        raise error

    def serve(self, message):
        """Answer one call of the other end."""
        try:
            what, args, named = message
            function = self.ops[what] if type(what) is str else self.shown[what]
            args, named = self.unpack(args), {k: self.unpack(x) for k, x in named.items()}
            places = {k: x for k, x in [*enumerate(args), *named.items()] if type(x) in MUTABLE}
            before = [self.pack(x) for x in places.values()]
            value = self.pack(function(*args, **named))
            after = [self.pack(x) for x in places.values()]
            changed = zip(places, before, after, strict=True)
            reply = ["return", value, [[k, now] for k, was, now in changed if was != now]]
        except (Exception, SystemExit) as e:
            if self.ops is JUDGE_OPS and isinstance(e, SystemExit): raise
            reply = ["raise", self.pack_error(e), []]
        if self.before_call and self.ops is not JUDGE_OPS: self.before_call()
        self.send(reply)


def builtin_type(name):
    if isinstance(kind := getattr(builtins, name), type): return kind
    raise TypeError("not a type")


def bare_record(kind):
    """Is it a namedtuple without methods of its own?"""
    if kind.__mro__[1] is not tuple: return False
    given = vars(collections.namedtuple("R", kind._fields))
    return not any(callable(v) or isinstance(v, (property, classmethod, staticmethod))
                   for n, v in vars(kind).items() if n not in given)


def describe(error):
    """An exception in words; its own __str__ may be the candidate's."""
    try: return plain(f"{type(error).__name__}: {error}")
    except Exception: return type(error).__name__


def plain(text):
    """Something to log: one line of at most 300 ASCII characters."""
    text = re.sub(r"[\x00-\x1f\x7f]", lambda c: repr(c[0])[1:-1], text[:300].replace("\n", " "))
    return text.encode("ascii", "backslashreplace")[:300].decode().strip(": ")


# ---- 2. The judge: one process per worker, runs the trusted tests ----------------------------------------------------
class Test(NamedTuple):
    """A test, read."""
    code: object
    wanted: set  # names that it wants of the candidate
    modules: set  # which it uses as `math.x`
    library: list  # all modules of the library that it names, in a string too: "random.random"
    exits: bool  # does it name SystemExit
    safe: set  # lines on which nothing of the candidate's can raise
    used: set  # names and attributes that it reads
    early: set  # names that the bodies of its classes read, where Python does not ask a dict for what it misses


@functools.lru_cache(1000)  # the completions of a group share their tests
def parse(source, entry):
    """Read a test."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    read = {n.id for n in nodes if isinstance(n, ast.Name)}
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | {entry}
    dotted = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    modules = (dotted & sys.stdlib_module_names) - {entry}
    wanted = {n for n in read - modules if n == entry or not hasattr(builtins, n)}
    named = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    named |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    named |= {n.value.rpartition(".")[0] for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    library = sorted(n for n in named | modules if n.partition(".")[0] in sys.stdlib_module_names)
    safe = safe_lines(tree, stored)
    if "type" not in stored: own_type(nodes)
    code = compile(tree, "<test>", "exec", dont_inherit=True)
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    used |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return Test(code, wanted, modules, library, "SystemExit" in read, safe, used, wanted & in_classes(nodes))


def in_classes(nodes):
    """The names that stand in the bodies of classes, and not in those of their functions."""
    found, left = set(), [part for n in nodes if isinstance(n, ast.ClassDef) for part in n.body]
    while left:
        n = left.pop()
        if isinstance(n, ast.Name): found.add(n.id)
        later = getattr(n, "body", ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else ()
        left += [x for x in ast.iter_child_nodes(n) if x is not later and (type(later) is not list or x not in later)]
    return found


def own_type(nodes):
    """type(x) of a test says what class an object has over there."""
    for n in nodes:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "type" and len(n.args) == 1:
            n.func.id = "__type__"


def type_of(x): return x.__class__ if foreign(x) else type(x)


def safe_lines(tree, stored):
    """The lines with nothing but a `raise` or statements that name only builtins: only the test itself raises there."""
    good, bad, odd = set(), set(), (ast.Lambda, ast.Import, ast.ImportFrom)
    for n in ast.walk(tree):
        own = all(hasattr(builtins, x.id) and x.id not in stored if isinstance(x, ast.Name) else not isinstance(x, odd)
                  for x in ast.walk(n))
        if isinstance(n, ast.stmt) and not hasattr(n, "body") and not isinstance(n, ast.Match):
            (good if own or isinstance(n, ast.Raise) else bad).update(range(n.lineno, n.end_lineno + 1))
        elif isinstance(n, (ast.stmt, ast.ExceptHandler)) and not isinstance(n, ast.With):
            bad.update(range(n.lineno, max(n.lineno + 1, n.body[0].lineno) if hasattr(n, "body") else n.end_lineno + 1))
    inner = [i.context_expr for n in ast.walk(tree) if isinstance(n, ast.With) for part in n.body
             for x in ast.walk(part) if isinstance(x, ast.With) for i in x.items]
    return good - bad - {line for x in inner for line in range(x.lineno, x.end_lineno + 1)}


def may_pass(error, trace):
    """May the candidate's context manager swallow this? Not what a test's assertion or its own code has raised."""
    space = trace and trace.tb_frame.f_globals
    return (isinstance(error, Exception) and not isinstance(error, AssertionError) and trace.tb_next is None
            and type(space) is Names and trace.tb_lineno in space.safe)


def find(peer, name):
    """[the value of a global name of the candidate], [] if there is none."""
    try: found = peer.call("names", ([name],), {})
    except Exception as e: peer.die(f"bad answer: {type(e).__name__}")  # a KeyError would lead to the judge's builtin
    if not found: return []
    value = found[name]
    if type(value) is Remote and re.fullmatch("_?[A-Z][A-Za-z0-9]*", name):  # a class, as everybody writes them
        for flag in ("_meant", "_makes"): object.__setattr__(value, flag, True)
    return [value]


class Names(dict):
    """The globals of a test. What is not in here is asked of the candidate, its plain values each time: they change."""

    def __init__(self, peer, test, entry, functions):
        super().__init__(functions, __name__="test", __type__=type_of)
        self.peer, self.wanted, self.safe, self.entry, self.functions = peer, test.wanted, test.safe, entry, functions

    def __missing__(self, name):
        if name not in self.wanted: raise KeyError(name)  # a builtin
        # Never the judge's own builtin in place of a missing function that is called like it.
        if not (found := find(self.peer, name)):
            raise (NameError if name == self.entry else KeyError)(f"name {name!r} is not defined")
        if type(found[0]) is Remote: self[name] = self.functions[name] = found[0]
        return found[0]


class Solution(types.ModuleType):
    """What a test gets that imports the completion: from solution import f."""

    def __init__(self, peer):
        super().__init__("solution")
        vars(self)["_peer"] = peer

    def __getattr__(self, name):
        if found := find(self._peer, name): return found[0]
        raise AttributeError(f"module 'solution' has no attribute {name!r}")

    def __setattr__(self, name, value): self._peer.call("setname", (name, value), {})
    def __delattr__(self, name): self._peer.call("setname", (name,), {})


class World:
    """What a test puts in place of parts of the library (input, sys.stdout, random.seed, time.sleep, os.environ), for
    the candidate, too: before each call it gets what has changed since. Afterwards all is as it was, in both."""
    WATCHED = {"sys": ("argv", "stdin", "stdout", "stderr")}

    def __init__(self, peer, library):
        self.peer, self.sent, self.seeds, self.busy = peer, {}, [], False
        self.modules, random = {}, importlib.import_module("random")
        for name in {"builtins", "sys", *library} - {"antigravity", "this"}:
            with contextlib.suppress(ImportError): self.modules[name] = importlib.import_module(name)
        self.real_seed, self.environ = random.seed, dict(os.environ)
        self.told = self.environ
        random.seed = self.seed
        self.before = {name: dict(vars(module)) for name, module in self.modules.items()}

    def seed(self, *args, **named):
        self.seeds.append(args or tuple(named.values()))
        return self.real_seed(*args, **named)

    def changed(self):
        """{(module, name): value} of all that is not as it was."""
        found = {}
        for module, before in self.before.items():
            now = vars(self.modules[module])
            for name in self.WATCHED.get(module, now.keys() & before.keys()):
                if name[0] != "_" and now[name] is not before[name]: found[module, name] = now[name]
        return found

    def tell(self):
        """Before each call: what is new."""
        if self.busy: return
        self.busy = True
        try:
            while self.seeds: self.peer.call("library", ("random", "seed", *self.seeds.pop(0)), {})
            now, environ = self.changed(), dict(os.environ)
            for place in {**now, **self.sent}:
                if place not in now: self.peer.call("restore", place, {})
                elif place not in self.sent or now[place] is not self.sent[place]: self.replace(place, now[place])
            self.sent = now
            if environ != self.told:  # not where this machine keeps its things
                own = {k: v for k, v in environ.items() if self.environ.get(k) != v}
                self.peer.call("environ", (own,), {})
            self.told = environ
        finally: self.busy = False

    def replace(self, place, value):
        if place in (("sys", "stdout"), ("sys", "stderr")): self.peer.call("print_here", place, {})
        elif place == ("sys", "stdin") and type(value) is io.StringIO:
            self.peer.call("read_here", (value.getvalue()[value.tell():],), {})
        else:
            with contextlib.suppress(TypeError): self.peer.call("replace", (*place, value), {})

    def end(self):
        importlib.import_module("random").seed = self.real_seed
        os.environ.clear()
        os.environ.update(self.environ)
        for module, name in self.changed(): setattr(self.modules[module], name, self.before[module][name])
        if self.sent and not self.peer.dead: self.tell()


ROUTED = {"dataclasses": "asdict astuple fields is_dataclass replace", "asyncio": "iscoroutinefunction",
          "inspect": """signature isclass isfunction ismethod iscoroutine iscoroutinefunction isgenerator
          isgeneratorfunction isasyncgenfunction isabstract getdoc getsource getmembers"""}


@functools.lru_cache
def route(module):
    """Functions of the library that look into an object look where it is."""
    def routed(name, here):
        def function(x, *args, **named):
            if not foreign(x): return here(x, *args, **named)
            return x._peer.call("library", (module, name, x, *args), named)
        return function
    home = importlib.import_module(module)
    for name in ROUTED[module].split(): setattr(home, name, routed(name, getattr(home, name)))


AMBIENT = {"builtins", "contextlib", "io", "os", "random", "sys", "time", "unittest", "unittest.mock"}


def run_assert(peer, source, entry, functions):
    """Run a test. The candidate's patched `abs` or `math` never gets here; `entry` may shadow a builtin (MBPP 126)."""
    test = parse(source, entry)
    space = Names(peer, test, entry, functions)
    space.update({n: importlib.import_module(n) for n in test.modules})
    for name in test.early - functions.keys():
        if found := find(peer, name): space[name] = found[0]
    for module in ROUTED.keys() & set(test.library): route(module)
    if "unittest" in test.library:  # its main would look for tests on our command line; run_defined runs them
        importlib.import_module("unittest").main = lambda *_, **__: None
    peer.exits, main = test.exits, sys.modules["__main__"]
    sys.modules |= dict.fromkeys(("solution", "__main__"), Solution(peer))
    sys.stderr, world = sys.__stdout__, None  # nobody reads what a test writes; this judge's own errors are shown
    try:
        if AMBIENT & set(test.library):
            world = World(peer, test.library)
            peer.before_call = world.tell
        exec(test.code, space)
        run_defined(space, test, entry)
    finally:
        sys.modules["__main__"] = main
        del sys.modules["solution"]
        if world: world.end()
        sys.stderr, peer.before_call = sys.__stderr__, None


def run_defined(space, test, entry):
    """Run what a test defines and does not run: functions test_..., HumanEval's check(candidate), and its TestCases, of
    which a test that does not ask for the result learns nothing."""
    own = {n: x for n, x in space.items() if type(x) in (type, types.FunctionType) and x.__module__ == "test"}
    for name in own.keys() - test.used:
        if type(own[name]) is type: continue
        arguments = own[name].__code__.co_argcount
        if name == "check" and entry and arguments == 1: own[name](*find(space.peer, entry))
        elif name.startswith("test") and not arguments:
            if type(result := own[name]()) is types.CoroutineType: finish(result)
    if "unittest" not in test.library or test.used & {"wasSuccessful", "failures", "errors"}: return
    unittest = importlib.import_module("unittest")
    cases = [x for x in own.values() if issubclass(type(x), type) and issubclass(x, unittest.TestCase)]
    result = unittest.TestResult()
    unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases)).run(result)
    for _, text in result.failures + result.errors: raise AssertionError(text.strip().rpartition("\n")[2])
    if result.skipped: raise AssertionError("skipped")


def tidy(text):
    """What a program printed, without the white space nobody sees."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def nameless_file(text):
    """An open file with this text and nothing to remove afterwards."""
    if LINUX: f = open(os.memfd_create("stdin"), "w+b")
    else: f = importlib.import_module("tempfile").TemporaryFile()
    f.write(text.encode("utf-8", "replace"))
    f.seek(0)
    return f


WORD = struct.Struct("id")  # between judge, zygote and warden: a pid, seconds


class Limits(NamedTuple):
    timeout: float
    memory: int
    unsafe: list
    libraries: list  # paths that candidates read
    closed: list  # folders that stay closed although they lie where programs of other languages read: packages


def java_names(code):
    """A program in Java -> the class that has its main, and the code as a file of that name: without a package, and no
    class of it public, because javac wants a public class to be called like its file."""
    quoted = r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\"{3}.*?\"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    bare = re.sub(quoted, lambda m: " " * len(m[0]), code, flags=re.DOTALL)  # comments and texts may talk of classes
    kind = r"\b(?:class|record|enum|interface)\s+([A-Za-z_$][\w$]{0,99})"
    name = latest = "Main"
    depth, text = 0, list(code)
    for m in re.finditer(rf"[{{}}]|\bpublic\b|\bpackage\s[^;{{}}]+;|{kind}|\bvoid\s+main\b", bare):
        depth += (m[0] == "{") - (m[0] == "}")
        if depth == 0 and m[0].startswith(("public", "package")): text[m.start():m.end()] = " " * len(m[0])
        if depth == 0 and m[1]: latest = m[1]
        if depth == 1 and m[0].endswith("main"): name = latest
    return name, "".join(text)


class Job:
    """One completion in the judge: its deadline, the processes that run it, and the CPU time they took."""

    def __init__(self, lines, code, language, limits):
        self.lines, self.code, self.language, self.limits = lines, code, language, limits
        self.deadline = time.monotonic() + WALL * limits.timeout
        self.running, self.functions, self.caller, self.name = {}, {}, None, None
        self.seconds, self.started = 0.0, []

    def zygote(self, pid, seconds, fds=()):
        """pid 0: have it fork a candidate with these CPU seconds and descriptors, -> its pid and these; else end that
        one, -> exit status, seconds it took."""
        socket.send_fds(self.lines[0], [WORD.pack(pid, seconds)], fds)
        return WORD.unpack(self.lines[0].recv(WORD.size))

    def warden(self, *request, fds=()):
        """Have the warden do something -> its answer."""
        socket.send_fds(self.lines[1], [json.dumps(request).encode()], fds)
        return json.loads(self.lines[1].recv(4096))

    def start(self, request, *files):
        """A new process with these files, after it has locked itself in and said so -> its pid, a line to it. The
        request is what the warden shall start, or for a candidate the CPU seconds."""
        ours, theirs = socket.socketpair()
        with theirs:
            fds, python = [f.fileno() for f in (theirs, *files)], type(request) is float
            pid = self.zygote(0, request, fds)[0] if python else self.warden("program", *request, fds=fds)
        self.running[pid] = python, ours
        self.started.append(pid)
        peer = Peer(ours, limit=MESSAGE, deadline=max(self.deadline, time.monotonic() + GRACE))
        try: hello = peer.receive()
        except Dead as e: hello = str(e)
        if hello != "ready": raise OSError(f"a candidate could not be locked in: {hello}")
        peer.deadline = self.deadline
        return pid, peer

    def left(self):
        """The CPU seconds that the completion may still take."""
        if (left := self.limits.timeout - self.seconds) <= 0: raise Dead("out of time")
        return left

    def stop(self, pid):
        python, sock = self.running.pop(pid)
        sock.close()
        status, seconds = self.zygote(pid, -1) if python else self.warden("end", pid)
        self.seconds += seconds
        return status

    def close(self):
        for pid in list(self.running): self.stop(pid)

    def reason(self):
        """Why the warden has ended a process of this job, or ""."""
        return self.warden("why", self.started)

    def load(self):
        """A candidate that has run the code and answers calls."""
        _, peer = self.start(self.left())
        peer.send([self.code, False])
        if (said := peer.receive()) != "loaded": peer.die(said if type(said) is str else "sent nonsense")
        return peer

    def listen(self, source, most):
        """What comes from a file or socket until its other end is closed, at most so many bytes."""
        data = b""
        while len(data) < most:
            ready, _, _ = select.select([source], [], [], max(0, self.deadline - time.monotonic()))
            if not ready: raise Dead("out of time")
            if not (part := os.read(source.fileno(), most - len(data))): break
            data += part
        return data

    def run_program(self, request, text="", code=None):
        """Run a program on this input -> what it printed. Raises with its last words unless it exits with 0."""
        read, write = os.pipe()
        with nameless_file(text) as stdin, open(read, "rb") as out:
            with open(write, "wb") as stdout: pid, peer = self.start(request, stdin, stdout)
            if code is not None: peer.send([code, True])
            printed = self.listen(out, MESSAGE)
            if len(printed) == MESSAGE: raise Failed(f"printed {MESSAGE} bytes")
            words = self.listen(peer.sock, 300).decode("ascii", "replace")  # until it has exited
        printed = printed.decode("utf-8", "replace")
        if status := self.stop(pid):
            if why := self.reason(): raise Dead(why)
            raise Failed(words or f"exit status {status} {printed[-200:]}")
        return printed

    def compile(self, stage, seconds):
        """Write a program of another language to a file and compile it, or only check it, in these CPU seconds."""
        self.name, code = java_names(self.code) if self.language == "java" else ("Main", self.code)
        self.deadline = time.monotonic() + WALL * seconds
        with nameless_file(code) as source: self.warden("write", self.language, self.name, fds=[source.fileno()])
        try:
            if command_for(self.language, stage):
                self.run_program([self.language, self.name, stage, seconds])
        except Failed as e:
            slow = self.seconds > 0.9 * seconds  # the kernel has ended the compiler
            raise Dead("out of time: compiling" if slow else f"does not compile: {e}") from None
        self.seconds, self.deadline = 0.0, time.monotonic() + WALL * self.limits.timeout

    def run_test(self, test, entry):
        if type(test) is str:  # all asserts of a completion share one candidate: state lives from call to call
            self.caller = self.caller or self.load()
            try: run_assert(self.caller, test, entry, self.functions)
            except Dead: raise
            except BaseException as e: raise Failed(describe(e)) from None  # also a test's SystemExit
            if self.caller.dead: raise Dead(self.caller.dead)
        elif test == SYNTAX: self.compile("check", self.limits.timeout + CHECKS[self.language][1])
        else:
            if self.language == "python": printed = self.run_program(self.left(), test["input"], self.code)
            else:
                if not self.name: self.compile("compile", COMPILE_SECONDS)
                request = [self.language, self.name, "run", self.left()]
                printed = self.run_program(request, test["input"])
            if (printed := tidy(printed)) != tidy(test["output"]): raise Failed(f"printed {printed[:100]!r}")
        if time.monotonic() > self.deadline: raise Dead("out of time")


def score(job, tests, entry):
    """Run the tests of a job -> {"passed": [bool, ...], "error": the first failure, "seconds": of CPU}."""
    passed, error = [False] * len(tests), ""
    try:
        for i, test in enumerate(tests):
            try:
                job.run_test(test, entry)
                passed[i] = True
            except Failed as e: error = error or f"test {i + 1}: {e}"
    except Dead as e: error = error or job.reason() or str(e)
    finally: job.close()
    return {"passed": passed, "error": plain(error), "seconds": job.seconds}


def judge(sock, lines, folder, limits, parent):
    """Score what the trainer sends, one completion after the other, until the warden ends this process."""
    trainer, most = Peer(sock), resource.getrlimit(resource.RLIMIT_CPU)[1]
    os.environ["TMPDIR"] = folder
    limit(AS=JUDGE_MEMORY, FSIZE=JUDGE_MEMORY, NOFILE=256, **become_countable())
    shut(lock(SYSTEM | dict.fromkeys(limits.libraries, READ | LIST) | {folder: ALL}, JUDGE, limits.unsafe), parent)
    try:
        while True:
            code, tests, entry, language = trainer.receive()
            # A test that works on too large an answer, sum(range(answer)), is beyond Python's reach: the kernel ends
            # this judge. What the job before took does not count.
            used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + limits.timeout + 0.5), most))
            verdict = score(Job(lines, code, language, limits), tests, entry)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if LINUX else 1)
            trainer.send([verdict, size <= JUDGE_KEEPS])
    except Dead: return 0
    except Exception as e:
        print(f"the sandbox: {describe(e)}", file=sys.stderr)
        return MACHINE


# ---- 3. The walls: what a process gives up for good before it meets the model's code ---------------------------------
libc = ctypes.CDLL(None, use_errno=True)
# The system calls that are allowed, name:x86-64:aarch64 (empty: not there). They read, wait, or concern the caller
# alone; what may be opened is Landlock's business. Whatever is not listed, or not invented yet, fails.
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column, the kernel's name for it
ALLOWED = """read:0:63 write:1:64 close:3:57 lseek:8:62 pread64:17:67 readv:19:65 writev:20:66 mmap:9:222
munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 futex:202:98 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132 exit:60:93 exit_group:231:94 getpid:39:172
gettid:186:178 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 uname:63:160
sysinfo:99:179 getcwd:79:17 chdir:80:49 umask:95:166 getrandom:318:278 clock_gettime:228:113 clock_getres:229:114
clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201: times:100:153 getrusage:98:165 getrlimit:97:163
sched_yield:24:124 sched_getaffinity:204:123 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293
membarrier:324:283 arch_prctl:158: restart_syscall:219:128 alarm:37: setitimer:38:103 getitimer:36:102 pause:34:
stat:4: fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291 access:21: faccessat:269:48 faccessat2:439:439
readlink:89: readlinkat:267:78 getdents64:217:61 fadvise64:221:223 dup:32:23 dup2:33: dup3:292:24 pipe:22:
pipe2:293:59 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:
epoll_pwait:281:22 eventfd2:290:19 shutdown:48:210 getsockname:51:204 getsockopt:55:209"""
RUNTIMES = " execve:59:221 capget:125:90 mincore:27:232 fchdir:81:50"  # node and java need these too
FILES = """ unlink:87: unlinkat:263:35 mkdir:83: mkdirat:258:34 rename:82: renameat:264:38 renameat2:316:276
ftruncate:77:46 pwrite64:18:68 flock:73:32"""
COMPILERS = FILES + """ fork:57: vfork:58: clone:56:220 wait4:61:260 chmod:90: fchmod:91:52 fchmodat:268:53"""
JUDGE = FILES + " memfd_create:319:279"  # and messages with descriptors


def seccomp_filter(may_write, more=""):
    """A program for the kernel's little machine (classic BPF) that decides on every system call -> address, memory."""
    column, machine = MACHINES[os.uname().machine]
    step = lambda code, value, yes=0, no=0: struct.pack("HBBI", code, yes, no, value)  # yes, no: steps to jump over
    load, equal, has_bit = (lambda at: step(0x20, at)), (lambda *a: step(0x15, *a)), (lambda *a: step(0x45, *a))
    argument = lambda n, high=0: load(16 + 8 * n + 4 * high)
    allow, fail, kill, missing = (step(6, x) for x in (0x7FFF0000, 0x50001, 0x80000000, 0x50026))  # EPERM; ENOSYS
    one_of = lambda n, *values: [argument(n)] + sum(([equal(v, 0, 1), allow] for v in values), []) + [fail]
    to_write = 0x400243  # O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_TMPFILE
    reading = lambda n: [allow] if may_write else [argument(n), has_bit(to_write, 0, 1), fail, allow]
    in_band = lambda n: [argument(n), has_bit(1, 0, 1), fail]  # no MSG_OOB: urgent data is rarely tried code
    special = {
        "clone:56:220": [argument(0), has_bit(0x10000, 0, 1), allow, fail],  # CLONE_THREAD: threads, not processes
        "clone3:435:435": [missing],  # its flags are out of sight; the C library then uses clone
        # AF_UNIX, as asyncio needs, and SOCK_STREAM, with CLOEXEC and NONBLOCK or not: it has no other address
        "socketpair:53:199": [argument(0), equal(1, 1, 0), fail, *one_of(1, 1, 0x801, 0x80001, 0x80801)],
        "prlimit64:302:261": one_of(0, 0),  # of itself
        "prctl:157:167": one_of(0, 15, 16),  # names of threads
        "sendto:44:206": [*in_band(3), argument(4), equal(0, 0, 3), argument(4, 1), equal(0, 0, 1), allow, fail],
        "recvfrom:45:207": [*in_band(3), allow],
        "fcntl:72:25": one_of(1, 0, 1, 2, 3, 4, 1030, 1032),  # not F_SETOWN, F_SETSIG: they send signals
        "ioctl:16:29": one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),  # not TIOCSTI: it types
        "open:2:": reading(1), "openat:257:56": reading(2)}
    if more == JUDGE: special |= {"sendmsg:46:211": [*in_band(2), allow], "recvmsg:47:212": [*in_band(2), allow]}
    number = lambda entry: int(entry.split(":")[column] or -1)
    listed = [n for n in map(number, (ALLOWED + more).split()) if n >= 0]
    rules = {number(entry): rule for entry, rule in special.items() if number(entry) not in (-1, *listed)}
    steps = [load(4), equal(machine, 1, 0), kill, load(0)]  # the calling convention of another machine kills
    for n, rule in rules.items(): steps += [equal(n, 0, len(rule)), *rule]
    steps += [equal(n, len(listed) - i, 0) for i, n in enumerate(listed)] + [fail, allow]
    memory = ctypes.create_string_buffer(b"".join(steps))
    return struct.pack("HxxxxxxP", len(steps), ctypes.addressof(memory)), memory


EXECUTE, WRITE, READ, LIST, ALL = 1, 2, 4, 8, 0xFFFF


def landlock(rules):
    """Files only as {path: rights} says, no TCP, no signals out -> False where the kernel (before 5.13) has none."""
    call = lambda *a: libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    if (abi := call(444, None, 0, 1)) < 1: return False
    known = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}.get(abi, ALL)  # all that this kernel can forbid
    ruleset = call(444, struct.pack("QQQ", known, 3, 3), 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    for path, rights in rules.items():
        if os.path.exists(path):
            place, fits = os.open(path, os.O_PATH), known if os.path.isdir(path) else EXECUTE | WRITE | READ
            call(445, ruleset, 1, struct.pack("=Qi", rights & fits, place), 0)
            os.close(place)
    done = call(446, ruleset, 0) == 0
    os.close(ruleset)
    return done


def limit(**limits):
    """limit(AS=bytes, CPU=seconds, ...), soft and hard, not above what this process was given."""
    for name, value in limits.items():
        what = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard),) * 2)


def lock(rules, more="", unsafe=()):
    """No privileges by exec, no root powers, files by `rules` -> the last wall, to be shut by each process itself."""
    if not LINUX: return None
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no core, no ptrace, /proc/<pid> belongs to root
    libc.capset(struct.pack("II", 0x20080522, 0), bytes(24))
    landlocked = landlock(rules)
    if os.uname().machine not in MACHINES or libc.prctl(21, 0, 0, 0, 0) < 0: return None  # PR_GET_SECCOMP: has none
    return seccomp_filter(landlocked or "write" in unsafe and more in (JUDGE, RUNTIMES + COMPILERS), more)


def shut(wall, parent):
    """Die with the parent, then seccomp: PR_SET_PDEATHSIG, PR_SET_SECCOMP. Not half a wall: raises if that fails."""
    if LINUX and (libc.prctl(1, 9, 0, 0, 0) or os.getppid() != parent or wall and libc.prctl(22, 2, wall[0], 0, 0)):
        raise OSError("seccomp refused")


def become_countable():
    """Where this is root, have a user of its own for what the kernel counts per user -> the limit of that, if any.

    Others share the count with all that they run: no thread is started when half of what this machine allows is."""
    if not LINUX: return {"NPROC": 0}  # of processes; not for root
    with contextlib.suppress(OSError):  # a user namespace may not have this user
        if os.getuid() == 0: os.setresuid(1 << 30 | int.from_bytes(os.urandom(3), "big"), 0, 0)
    if os.getuid() >= 1 << 30: return {"NPROC": 2 * THREADS}
    allowed = [resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):  # a container's
        with contextlib.suppress(OSError, ValueError), open(path) as f: allowed.append(int(f.read()))
    return {"NPROC": min(n for n in allowed if n > 0) // 2} if max(allowed) > 0 else {}


def opened(path, closed):
    """A path -> the paths to open in its place, so that what is closed stays so: the path, or its parts one by one."""
    inside = [place for place in closed if place == path or place.startswith(path + "/")]
    if not inside: return [path]
    try: parts = [] if path in inside else [part.path for part in os.scandir(path) if not part.is_symlink()]
    except OSError: parts = []
    return [place for part in parts for place in opened(part, inside)]


def without_packages(paths, closed):
    """The paths to open in place of these, so that a Python's packages stay closed: one may hold the solutions."""
    roots = dict.fromkeys(map(os.path.realpath, filter(os.path.exists, paths)))
    packages = [found for root in roots for middle in ("", "lib*/", "local/lib*/", "lib*/py*/")
                for name in ("py*/site-packages", "py*/dist-packages", "site-packages", "dist-packages")
                for found in glob.glob(f"{root}/{middle}{name}")]
    packages = {os.path.realpath(place) for place in [*packages, *closed]}
    packages = [place for place in packages if not any((root + "/").startswith(place + "/") for root in roots)]
    return [place for root in roots for place in opened(root, packages)]


# ---- 4. The zygote and its candidates: no test, no secret, no way out ------------------------------------------------
PRELOADED = "bisect cmath copy dataclasses enum heapq io itertools math random re statistics string textwrap typing"
SYSTEM = {"/usr/share/zoneinfo": READ | LIST, "/etc/ld.so.cache": READ, "/dev/null": READ | WRITE,
          "/dev/urandom": READ}
LIBRARY = os.path.dirname(os.path.realpath(os.__file__))
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", sys.base_prefix + "/lib", LIBRARY]


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


# ---- 5. Other languages: programs, compiled and run behind the same walls --------------------------------------------
class Language(NamedTuple):
    needs: str  # the program that must be installed
    package: str
    suffix: str
    compiler: str | list  # commands; {} is the program's name
    command: str | list
    reserve: int  # bytes of addresses it asks for and does not use
    hello: str


PYTHON = [sys.executable, "-I", "-S", "{}.py"]  # its path may have spaces
LANGUAGES = {
    "javascript": Language("node", "nodejs", "js", "", "node {}.js", 1 << 40, "console.log(1)"),
    "c": Language("gcc", "gcc", "c", "gcc -O1 -o {0} {0}.c -lm", "./{}", 0,
                  '#include <stdio.h>\nint main() { puts("1"); }'),
    "c++": Language("g++", "g++", "cpp", "g++ -std=gnu++2a -O1 -o {0} {0}.cpp", "./{}", 0,
                    "#include <iostream>\nint main() { std::cout << 1; }"),
    "java": Language("javac", "default-jdk-headless", "java", "javac -proc:none -J-XX:-UsePerfData {}.java",
                     "java -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1 -cp . {}", 1 << 40,
                     "class Main { public static void main(String[] a) { System.out.println(1); } }"),
    "compiling probe": Language(sys.executable, "", "py", PYTHON, PYTHON, 0, ""),
    "probe": Language(sys.executable, "", "py", "", PYTHON, 0, "")}
SYNTAX = {"syntax": True}  # a test: does the program compile?
CHECKS = {  # how that is tried, and the CPU seconds it may take beside the time limit: what an empty program takes
    "javascript": ("node --check {}.js", 1), "c": ("gcc -fsyntax-only -w {}.c", 1),
    "c++": ("g++ -std=gnu++2a -fsyntax-only -w {}.cpp", 2),
    "java": ("javac -proc:none -nowarn -J-XX:-UsePerfData -J-XX:TieredStopAtLevel=1 -d . {}.java", 4)}
TOOLCHAIN = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/etc/java-*", "/etc/ld.so.cache")


def command_for(language, stage, name=""):
    """The words of the command to check, compile or run a program of this name."""
    lang = LANGUAGES[language]
    command = {"check": CHECKS.get(language, ("",))[0], "compile": lang.compiler, "run": lang.command}[stage]
    words = command.split() if type(command) is str else command
    return [word.replace("{0}", "{}").replace("{}", name) for word in words]


@functools.lru_cache(20)
def toolchain(needs, closed):
    """Rules for what a program and its compiler read and start."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(needs))))
    paths = without_packages([home, *sum(map(glob.glob, TOOLCHAIN), [])], closed)
    rules = dict.fromkeys(paths, READ | LIST | EXECUTE)
    if needs == sys.executable: rules[LIBRARY] = rules.get(LIBRARY, 0) | LIST  # the probe cannot start without
    return rules | {"/dev/null": READ | WRITE, "/dev/urandom": READ}


def exec_program(fds, lang, command, stage, seconds, folder, limits, parent):
    """Become a program that can read the toolchain and its folder, or a compiler that can also write there."""
    try:
        path, runs = command[0] if command[0].startswith("./") else shutil.which(command[0]), stage == "run"
        line, stdin, stdout = fds
        stderr = os.open("/dev/null", os.O_WRONLY) if runs else stdout
        for fd, target in (stdin, 0), (stdout, 1), (stderr, 2), (line, 3): os.dup2(fd, target)
        os.set_inheritable(3, True)  # closes when the program ends, which is how the judge knows
        os.setsid()
        os.chdir(folder)
        memory = limits.memory if runs else COMPILER_MEMORY
        limit(AS=memory + lang.reserve, DATA=memory, CPU=math.ceil(seconds) + runs, FSIZE=0 if runs else 64 << 20)
        limit(CORE=1, NOFILE=256)
        rules = toolchain(lang.needs, tuple(limits.closed)) | {folder: READ | LIST | EXECUTE if runs else ALL}
        shut(lock(rules, RUNTIMES if runs else RUNTIMES + COMPILERS, limits.unsafe), parent)
        Peer(socket.socket(fileno=3)).send("ready")
        os.execve(path, command, {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "HOME": folder, "LANG": "C.UTF-8",
                                  "OPENSSL_CONF": "/dev/null"})  # node reads it from /etc/ssl
    finally: os._exit(127)


# ---- 6. The warden: starts, watches and ends the processes of one worker, and knows neither code nor test ------------
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


def kill(pid):
    """Kill a process, and in its group what a compiler may have started."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError): kill(pid, signal.SIGKILL)


def end_process(pid):
    """Kill a process -> its exit status, the CPU seconds it took with those that it waited for."""
    kill(pid)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


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


# ---- 7. The trainer's side -------------------------------------------------------------------------------------------
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
    return sorted({os.path.realpath(place) for place in [*own, os.path.dirname(os.path.dirname(__file__))]
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
        command = [sys.executable, "-s", "-S", "-W", "ignore", os.path.abspath(__file__), "work", str(theirs.fileno())]
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
    if hasattr(sys, "set_int_max_str_digits"): sys.set_int_max_str_digits(100_000)  # tests of long integers say so
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # tests import the standard library's modules, not ours
    if sys.argv[1:2] == ["work"]: sys.exit(work(int(sys.argv[2]), Limits(*json.loads(sys.argv[3]))))
    sys.exit(report())
