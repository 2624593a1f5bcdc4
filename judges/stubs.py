"""Stubs."""
import functools
import importlib
import operator
import sys
import types
from decimal import Decimal
from fractions import Fraction

from judges.values import KINDS, MUTABLE, TYPES, refill

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


def may_pass(error, trace):
    """May the candidate's context manager swallow this? Not what a test's assertion or its own code has raised."""
    space = trace and trace.tb_frame.f_globals
    return (isinstance(error, Exception) and not isinstance(error, AssertionError) and trace.tb_next is None
            and trace.tb_lineno in getattr(space, "safe", ()))
