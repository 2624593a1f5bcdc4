"""Stubs: what a process holds in place of an object that stays in the other process, and what may be asked of it.

Whatever is done to a stub is asked at the other end, over the peer that it came from. The same classes serve both ends,
but the judge must not believe a candidate's object that says it equals 3. The rules:

* An operator with two sides is asked only if both are the candidate's objects. Its classes can add and order their own
  kind, and are never asked whether they equal, exceed or contain a plain value: they would say yes.
* `_origin` says how the judge got an object. An ANSWER has no further rights. One that is MADE by the test itself, by
  calling the candidate's class, is also asked what it contains and which number it is. It may also be added to a plain
  value if that makes an object again. The new object is MIXED: as it has seen the value, it is not asked for a number.
* A `Like` stands for an object whose class extends a plain one (class Stack(list)), and has its contents here. It is
  compared, hashed and read as these contents.

A candidate's stubs of a test's objects are all MADE: what a test hands over does not lie.
"""

import sys
import types
from collections import defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

from judges.sandbox.wire.operations import ALONE, ARITHMETIC, AS_NUMBER, IN_PLACE, ORDER, PAIRS
from judges.sandbox.wire.values import KINDS, MUTABLE, TYPES, refill

ANSWER, MADE, MIXED = "answer", "made", "mixed"
UNARY = "neg", "pos", "invert", "abs", "round", "bool"
NUMERICAL = {*UNARY, *AS_NUMBER, "len"}


def foreign(x: Any) -> bool:
    """True if x is a stub of the other end's object. By its true type, because __class__ can lie."""
    return issubclass(type(x), (Remote, Like))


def set_origin(result, op, *operands):
    """Pass the origin of an object on to what it makes of itself -> `result`.

    If v is MADE, so are -v and v + w, unless w is MIXED; v + 1 is MIXED."""
    if operands[0]._origin != ANSWER:
        pure = all(foreign(x) and x._origin != MIXED for x in operands)
        for part in result if type(result) is tuple else (result,):
            if foreign(part) and not (op in IN_PLACE and part is operands[0]):
                object.__setattr__(part, "_origin", MADE if pure else MIXED)
    return result


def refuse_mixed(stub, op):
    """Raise a TypeError if a MIXED object is asked for a number."""
    if stub._origin == MIXED and op in NUMERICAL:
        raise TypeError(f"no {op} of what was made with a plain value")


def may_swallow(error, trace):
    """True if a candidate's context manager may swallow an exception: one that the test itself raises on a line of
    Test.safe. A failed assertion, or what the candidate's code raises, it may not."""
    space = trace and trace.tb_frame.f_globals
    allowed = isinstance(error, Exception) and not isinstance(error, AssertionError)
    return allowed and trace.tb_next is None and trace.tb_lineno in getattr(space, "safe", ())


def class_here(names, space, mark="__doc__"):
    """Find the first class in `space` that has one of these names, and this attribute; None if there is none.

    Both ends have the classes of a prompt, so an object of the one end is an instance of the other end's class."""
    found = [dict.get(space, name) for name in names if type(name) is str]
    return next((x for x in found if issubclass(type(x), type) and hasattr(x, mark)), None)


def attribute(name):
    """Make a property that asks the other end for an attribute which every Python object has."""

    @property
    def ask(self):
        return self._peer.ask("getattr", self, name)

    return ask


class Remote:
    """A stub of an object at the other end. `_makes` is True for a class: what a call of it returns is MADE."""

    __slots__ = "_peer", "_number", "_origin", "_makes", "__weakref__"

    def __new__(cls, peer, number, *body):
        if body:  # a class statement of a test with a base of the candidate's: these are its name, bases and body
            return derive(peer, number, *body)
        self = super().__new__(cls)
        for name, value in ("_peer", peer), ("_number", number), ("_origin", peer.origin), ("_makes", False):
            object.__setattr__(self, name, value)
        return self

    def __call__(self, *args, **named):
        result = self._peer.call(self._number, args, named)
        if self._makes and foreign(result):
            object.__setattr__(result, "_origin", MADE)
        return result

    def __contains__(self, x):
        if foreign(x) or self._origin != ANSWER:
            return self._peer.ask("contains", self, x)
        return any(y is x or y == x for y in self)

    def __exit__(self, kind, error, trace):
        return self._peer.ask("exit", self, error) and may_swallow(error, trace)

    async def __anext__(self):
        return self._peer.ask("anext", self)

    @property  # type: ignore[misc]
    def __class__(self):
        peer = self._peer
        if not peer.in_judge:
            return class_here(peer.ask("class_names", self), vars(sys.modules["solution"])) or Remote
        kind = peer.ask("getattr", self, "__class__")  # it may lie, but not that it is plain
        if foreign(kind) and peer.given:
            return class_here([x.__name__ for x in kind.__mro__ if foreign(x)], peer.given, "__given__") or kind
        return kind if foreign(kind) or kind in TYPES.values() else Remote

    __dict__, __doc__, __module__ = map(attribute, ("__dict__", "__doc__", "__module__"))


class Method:
    """A method of a stub that a test is about to call, when its arguments are known.

    The call is one question, which looks the method up and calls it. But Python looks up first: if the arguments ask
    the other end something, the peer, whose `awaits_call` this is, has it looked up before that question."""

    def __init__(self, stub, name):
        self.stub, self.name, self.peer, self.error = stub, name, stub._peer, None
        with self.peer.one_caller:  # tests may have threads
            self.peer.look_up_method()
            self.peer.awaits_call = self

    def look_up(self):
        try:
            self.found = getattr(self.stub, self.name)
        except Exception as e:
            self.error = e

    def __call__(self, *args, **named):
        with self.peer.one_caller:
            if self.peer.awaits_call is self:
                self.peer.awaits_call = None
                is_method, found = self.peer.call("call_method", (self.stub, self.name, *args), named)
                if is_method is True:
                    return found  # what the method returned
                self.found = found
        if self.error:
            raise self.error
        return self.found(*args, **named)


class Waiting(Remote):
    """A stub of an object that can be awaited."""

    __slots__ = ()

    def __await__(self):
        return awaited(self).__await__()


async def awaited(stub: Any) -> Any:
    """Await an object of the other end: the other end runs it, and this coroutine returns its result."""
    return stub._peer.ask("await", stub)


def alone(op):
    """Make the method of Remote for an operator on one object."""

    def method(self, *args):
        if op in AS_NUMBER and self._origin == ANSWER:
            raise TypeError(f"an object has no {op}")
        if op == "deepcopy":
            args = ()  # its memo has the addresses of objects here: at the other end they are those of others
        result = self._peer.ask(op, self, *args)
        if not foreign(result):
            refuse_mixed(self, op)
        return set_origin(result, op, self) if op in (*UNARY, "copy", "deepcopy") else result

    return method


def pair(op, swapped=False):
    """Make the method of Remote for an operator with two sides; swapped: the stub stands on the right."""

    def method(self, x):
        if not foreign(x) and (op in ORDER or self._origin == ANSWER):
            return NotImplemented
        result = self._peer.ask(op, x, self) if swapped else self._peer.ask(op, self, x)
        parts = result if type(result) is tuple else (result,)  # divmod has two
        believed = foreign(x) or parts and all(map(foreign, parts))
        return set_origin(result, op, self, x) if believed else NotImplemented

    return method


def add_operators():
    for op in ALONE | AS_NUMBER:
        setattr(Remote, f"__{op}__", alone(op))
    for op in set(PAIRS) - {"contains"}:
        setattr(Remote, f"__{op}__", pair(op))
    for op in [*ARITHMETIC, "divmod"]:
        setattr(Remote, f"__r{op}__", pair(op, swapped=True))


add_operators()


# ---- classes and exceptions ------------------------------------------------------------------------------------------
def derive(name, bases, body):
    """Have the candidate make a test's class that extends one of its own; the methods call the test back."""
    base = next(base for base in bases if foreign(base))
    return base._peer.ask("derive", name, bases, body)


def derived(name: str, bases: tuple, body: dict) -> type:
    """Make the class that `derive` asks for. Stubs in its body become functions, which Python binds as methods."""

    def as_function(stub):
        def function(self, *args, **named):
            return stub(self, *args, **named)

        return function

    body = {key: as_function(value) if type(value) is Remote else value for key, value in body.items()}
    return types.new_class(name, bases, {}, lambda space: space.update(body))


class ErrorKind(type):
    """The class of exception classes that are at the other end (`_home`): their attributes are asked there."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(type.__getattribute__(cls, "_home"), name)


def make_error(self, *args, **named):
    """Initialize an exception of the other end's class: make it there, and copy its arguments and attributes."""
    made = self._home(*args, **named)
    self.args = made.args
    vars(self).update(vars(made))


def ask_error(self, name):
    if name.startswith("__") or "_remote" not in vars(self):
        raise AttributeError(f"no {name!r}")
    return getattr(self._remote, name)


def say_error(self):
    return str(self._remote) if "_remote" in vars(self) else Exception.__str__(self)


def error_kind(name: str, bases: tuple, home: Remote) -> type:
    """Make an exception class that stands for one of the other end."""
    body = {"__init__": make_error, "__getattr__": ask_error, "__str__": say_error}
    return ErrorKind(name, bases, body | {"_home": home, "__module__": "solution"})


# ---- objects with plain contents -------------------------------------------------------------------------------------
CHANGING = "setitem", "delitem", *IN_PLACE
FREE = "str", "repr", "format"
READING = [*FREE, *UNARY, *"len iter getitem contains reversed hash int float index".split()]
NUMBERS = int, float, complex, Decimal, Fraction, str, bytes
LOCAL = {"_peer", "_number", "_origin", "_makes", "_defined", "_base", "_read"}


class Like:
    """A stub of an object whose class extends a plain one, `_base`, with its contents, last read at call `_read`.

    Methods and attributes of its class are asked over there, and so is an operator that changes a mutable one. Of the
    operators that its class overrides (`_defined` has the names) str, repr and format are asked; comparisons never;
    the others only if a test has made the object, or between two of the candidate's."""

    _origin, _makes = ANSWER, False

    def __getattribute__(self, name):
        get = object.__getattribute__
        if name in LOCAL:
            return get(self, name)
        base = get(self, "_base")
        if name.startswith("__"):
            here = hasattr(type(self), name) and name not in ("__class__", "__dict__", "__doc__")
        else:
            here = hasattr(base, name) and base not in MUTABLE and name not in get(self, "_defined")
        return get(self, name) if here else get(self, "_peer").ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._peer.ask("setattr", self, name, value)

    def __delattr__(self, name):
        self._peer.ask("delattr", self, name)

    def __copy__(self):
        return self._peer.ask("copy", self)

    def __deepcopy__(self, memo):
        return self._peer.ask("deepcopy", self)

    def __call__(self, *args, **named):
        return self._peer.ask("getattr", self, "__call__")(*args, **named)

    __enter__, __exit__ = alone("enter"), Remote.__exit__


def fresh(stub):
    """Read the contents of a mutable Like again if any call has been made since they were read."""
    peer, base = stub._peer, stub._base
    if base in MUTABLE and stub._read != peer.calls:
        now = peer.ask("plain", stub)
        object.__setattr__(stub, "_read", peer.calls)
        if type(now) is not base:
            peer.die("bad answer: not what it was")
        refill(stub, base, now)


def like_method(base, name, op, swapped=False):
    """Make the method `name` of a Like, for the operator `op`: the method of `base`, applied to the contents here, or
    a question to the object over there. Like says which.

    swapped: the stub stands on the right, as in 1 + stub."""

    def has_length(x):
        return base.__len__(x) > 0

    on_contents = getattr(base, name, None) or (has_length if op == "bool" else None)
    names = {name, "__missing__" if op == "getitem" else name}
    if op in IN_PLACE:
        names.add(name.replace("__i", "__", 1))

    def method(self, *args):
        refuse_mixed(self, op)
        other = args and all(map(foreign, args))
        believed = self._origin != ANSWER and (op in READING or base not in NUMBERS)
        believed = other and op in PAIRS or believed or op in FREE
        if op in CHANGING and base in MUTABLE or believed and op not in ORDER and names & self._defined:
            result = self._peer.ask(op, *args, self) if swapped else self._peer.ask(op, self, *args)
            if op in PAIRS:
                set_origin(result, op, self, *args)
            if op in READING or op in ("setitem", "delitem") or other or foreign(result):
                return result
        if not on_contents and op in PAIRS and op != "contains":
            return NotImplemented
        if not on_contents:
            raise TypeError(f"a {base.__name__} has no {name}")
        for x in (self, *args):
            if issubclass(type(x), Like):
                fresh(x)
        return on_contents(self, *args)

    return method


def like_class(base):
    """Make the class of stubs whose contents are of this type."""
    body = {"_base": base, "__hash__": base.__hash__}
    for op in {*READING, *CHANGING, *PAIRS}:
        if op in PAIRS or op in UNARY or hasattr(base, f"__{op}__"):  # str with __int__ would be asked for int("5")
            body[f"__{op}__"] = like_method(base, f"__{op}__", op)
    for op in [*ARITHMETIC, "divmod"]:
        body[f"__r{op}__"] = like_method(base, f"__r{op}__", op, swapped=True)
    return type(base.__name__, (Like, base), body)


EXTENDED = """int float complex str list tuple set frozenset dict Counter OrderedDict defaultdict deque bytes bytearray
    Decimal Fraction"""
LIKES = {tag: like_class(KINDS[tag].type) for tag in EXTENDED.split()}


def like(tag: str, peer: Any, number: int, defined: frozenset, plain: Any) -> Any:
    """Make a Like: one of an immutable type with the contents `plain`, a mutable one still empty."""
    base = KINDS[tag].type
    stub = base.__new__(LIKES[tag], *[plain] * (base not in MUTABLE))
    if base is deque:
        deque.__init__(stub, (), plain.maxlen)
    if base is defaultdict:
        defaultdict.__init__(stub, plain.default_factory)
    for name, value in ("_peer", peer), ("_number", number), ("_defined", defined):
        object.__setattr__(stub, name, value)
    return stub
