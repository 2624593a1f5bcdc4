"""A conversation between judge and candidate: each calls functions of the other, and serves calls while it waits.

    call    [what, args, named]         what: an operation's name (operations.py), or the number of a function
    answer  ["return", value, changes]  changes: [place, contents] of each mutable argument that the call has changed
            ["raise", exception, []]

Plain values travel as in values.py. Everything else stays where it is and travels as a number: {"mine": 3} is an
object of the sender, for which the receiver makes a stub (stubs.py), and {"yours": 3} is the receiver's own object on
its way back. The same object always gets the same stub. The other tags:

    waits, coroutine   an object of the sender that can be awaited
    like               an object whose class extends a plain type, with its contents
    raised, error      an exception, and an exception class, with the names of its bases
    type, text         a type or constant by its name; an object of the library by its str()
"""

import _thread
import importlib
import sys
import types
from typing import Any

from judges.sandbox.wire.channel import Channel, Dead
from judges.sandbox.wire.operations import JUDGE_OPS, test_made
from judges.sandbox.wire.stubs import ANSWER, LIKES, MADE, Method, Remote, Waiting, awaited, error_kind, foreign, like
from judges.sandbox.wire.values import KINDS, MUTABLE, NAMED, NAMES, TAGS, TEXTS, base_of, refill

RUNNERS = {"unittest", "doctest", "bdb", "test"}  # their exceptions say what becomes of a test: SkipTest
ENDS = {StopIteration: "next", StopAsyncIteration: "anext"}
ERRORS = (Exception, SystemExit)


class Packer:
    """Turn values into what JSON can say and back, and remember which objects the two ends know of each other."""

    def __init__(self, in_judge):
        self.in_judge, self.origin = in_judge, ANSWER if in_judge else MADE
        self.shown, self.numbers = [], {}  # our objects that the other end knows; their numbers by id
        self.stubs, self.kinds = {}, {}  # stubs of the other end's objects; its exception classes
        self.defined = {}  # the names that classes which extend a plain type define
        self.objects = 0  # how many objects of the other end we met that are no plain data, or that it asked for
        self.calls = 0  # how often we called: what was read before the last call may be out of date

    def number(self, x):
        """Return the number under which the other end knows this object of ours; a new object gets the next one."""
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.shown)
            self.shown.append(x)
        return self.numbers[id(x)]

    def pack(self, x: Any) -> Any:
        kind = type(x)
        if x is None or kind in (bool, str, float) or kind is int and -(2**63) < x < 2**63:
            return x
        if kind is list:
            return [self.pack(y) for y in x]
        if foreign(x):
            return {"yours": x._number}
        if base := base_of(kind):
            return self.pack_plain(x, kind, base)
        if issubclass(kind, BaseException):
            return self.pack_error(x)
        if issubclass(kind, type) and issubclass(x, ERRORS):
            return {"error": self.error_names(x)}
        if id(x) in NAMES:
            return {"type": NAMES[id(x)]}
        package = str(kind.__module__).partition(".")[0]  # paths are in pathlib._local in Python 3.13
        if kind.__name__ in TEXTS.get(package, ()):
            return {"text": [package, kind.__name__, str(x)]}
        return self.pack_object(x, kind)

    def pack_plain(self, x, kind, base):
        tag, parts = TAGS[base], self.pack(KINDS[TAGS[base]].apart(x))
        if tag not in LIKES or kind.__module__ != "solution" and not hasattr(kind, "_fields"):  # of a namedtuple
            return {tag: parts}
        number, defined = self.number(kind), None
        if number not in self.defined:  # told once
            own = [k for k in kind.__mro__ if k not in TAGS and k is not object]
            defined = self.defined[number] = sorted({name for k in own for name in vars(k)})
        return {"like": [self.number(x), tag, parts, number, defined]}

    def pack_object(self, x, kind):
        if kind is types.CoroutineType:
            stands_for_theirs = x.cr_code is awaited.__code__ and x.cr_frame
            if stands_for_theirs:
                return {"yours": x.cr_frame.f_locals["stub"]._number}
            return {"coroutine": self.number(x)}
        if self.in_judge and not (callable(x) or hasattr(kind, "__next__") or test_made(x)):
            raise TypeError(f"a {kind.__name__} cannot be passed to the candidate")
        return {"waits" if hasattr(kind, "__await__") else "mine": self.number(x)}

    def pack_error(self, x):
        """Describe an exception by its class, arguments, attributes and cause."""
        if "_remote" in x.__dict__:
            return {"yours": x._remote._number}
        arguments = list(BaseException.args.__get__(x))
        fields = {name: value for name, value in x.__dict__.items() if name[:1] != "_"}
        cause, kind = None, type(x.__cause__)
        if issubclass(kind, Exception) and kind.__module__ != "test":
            cause = self.error_names(kind)
        try:
            told = self.pack([arguments, fields])
        except Exception:
            told = [["an argument that cannot be told"], {"dict": []}]
        return {"raised": [self.number(x), self.error_names(type(x)), *told, cause]}

    def error_names(self, kind):
        """Describe an exception class: a built-in one by its name, one of the other end by {"yours": number}, any other
        by [module:name, number, its bases described]."""
        if "_home" in vars(kind):
            return {"yours": kind._home._number}
        if NAMED.get(kind.__name__) is kind:
            return kind.__name__
        bases = [self.error_names(base) for base in kind.__bases__ if issubclass(base, Exception)]
        return [f"{kind.__module__}:{kind.__name__}", self.number(kind), *bases]

    def unpack(self, x: Any) -> Any:
        if type(x) is list:
            return [self.unpack(y) for y in x]
        if type(x) is not dict:
            return x
        ((tag, parts),) = x.items()
        if tag in KINDS:
            return KINDS[tag].together(self.unpack(parts))
        self.objects += tag != "raised"  # a built-in exception is as plain as its arguments
        return getattr(self, READERS[tag])(parts)

    def unpack_mine(self, number, kind=Remote):
        return self.stubs.setdefault(int(number), kind(self, int(number)))

    def unpack_waits(self, number):
        return self.unpack_mine(number, Waiting)

    def unpack_coroutine(self, number):
        return awaited(self.unpack_mine(number))

    def unpack_yours(self, number):
        return self.shown[number]

    def unpack_type(self, name):
        return NAMED[name]

    def unpack_text(self, parts):
        module, name, text = parts
        if name not in TEXTS[module]:
            raise TypeError("not a type that travels as text")
        return getattr(importlib.import_module(module), name)(str(text))

    def unpack_like(self, parts):
        number, tag, values, kind, defined = parts
        base, plain = KINDS[tag].type, KINDS[tag].together(self.unpack(values))
        if defined is not None:
            self.defined[kind] = frozenset(map(str, defined))
        stub = self.stubs.get(number)
        if type(stub) is not LIKES[tag]:
            stub = self.stubs[number] = like(tag, self, number, self.defined[kind], plain)
        if base in MUTABLE:
            refill(stub, base, plain)
        object.__setattr__(stub, "_read", self.calls)
        return stub

    def unpack_raised(self, parts):
        number, names, args, fields, cause = parts
        kind, args, fields = self.unpack_error(names), self.unpack(args), self.unpack(fields)
        known = self.stubs.get(number)
        if type(known) is kind:
            return known
        try:
            error = kind(*args) if kind.__module__ == "builtins" else kind.__new__(kind)
        except Exception:
            error = kind.__new__(kind)
        error.args = tuple(args)
        free = {name: x for name, x in fields.items() if name[:1] != "_" and not hasattr(BaseException, name)}
        vars(error).update(free, _remote=Remote(self, int(number)))
        if cause:
            cause = self.unpack_error(cause)
            error.__cause__ = cause.__new__(cause)
        self.stubs[number] = error
        return error

    def unpack_error(self, names):
        """Find the exception class that is described, built-in or of the library, or make a class like it."""
        if type(names) is str:
            found = NAMED.get(names)
        elif type(names) is dict:
            found = self.unpack(names)
        else:
            found = self.named_error(*names)
        if not issubclass(found, ERRORS):
            raise TypeError("not an exception")
        return found

    def named_error(self, full_name, number, *bases):
        """Find or make the class that `error_names` describes as [module:name, number, bases]."""
        self.objects += 1
        module, _, name = full_name.partition(":")
        standard = module.partition(".")[0] in sys.stdlib_module_names - RUNNERS
        found = getattr(sys.modules.get(module), name, None) if standard else self.kinds.get(number)
        if not isinstance(found, type):
            found = error_kind(name, tuple(map(self.unpack_error, bases)), Remote(self, int(number)))
            self.kinds[number] = found
        return found


READERS = {name.removeprefix("unpack_"): name for name in vars(Packer) if name.startswith("unpack_")}


class Peer(Packer, Channel):
    """One end of a conversation: JUDGE_OPS make it the judge's.

    ops {name: function}: what the other end may call by name; settings: of Channel."""

    def __init__(self, sock, ops=JUDGE_OPS, **settings):
        Packer.__init__(self, in_judge=ops is JUDGE_OPS)
        Channel.__init__(self, sock, **settings)
        self.ops = ops
        self.given: dict[str, Any] = {}  # the globals of a test that has classes of the prompt
        self.exits = False  # True: a call may end in SystemExit
        self.one_caller = _thread.RLock()  # a test may have threads
        self.awaits_call: Method | None = None  # which is looked up at the latest before the next question

    def ask(self, op: str, *args: Any) -> Any:
        return self.call(op, args, {})

    def call(self, what: str | int, args: tuple, named: dict) -> Any:
        """Call a function of the other end, and serve its calls back until the answer comes."""
        with self.one_caller:
            if self.dead:
                raise Dead(self.dead)
            self.look_up_method()
            self.calls += what != "plain"
            self.send([what, self.pack(list(args)), self.pack_named(named)])
            while True:
                message = self.receive()
                try:
                    verb, value, changes = message
                    if verb == "return":
                        self.change(args, named, changes)
                        return self.unpack(value)
                    if verb == "raise":
                        error = self.allowed(self.unpack(value), what)
                        break
                except Exception as e:
                    self.die(f"bad answer: {type(e).__name__}: {e}")
                self.serve(message)
            raise error

    def look_up_method(self):
        """Look up the method that awaits its call, if there is one, because something else is asked first."""
        waiting, self.awaits_call = self.awaits_call, None
        if waiting:
            waiting.look_up()

    def change(self, args, named, changes):
        """Make the changes to our arguments that the called function has made to its copies."""
        for place, now in changes:
            ours, now = args[place] if type(place) is int else named[place], self.unpack(now)
            if type(ours) not in MUTABLE:
                raise TypeError("change of a constant")
            refill(ours, type(ours), now)

    def allowed(self, error, what):
        """Check an exception that a call of `what` raised -> the one to raise here.

        A StopIteration becomes a RuntimeError unless `next` was called: it would end a test's map, zip and all early. A
        SystemExit counts as the death of the candidate unless the test names it."""
        if not issubclass(type(error), ERRORS):
            raise TypeError("not an exception")
        if isinstance(error, SystemExit) and not self.exits:
            self.die("exited")
        if any(isinstance(error, kind) and what != op for kind, op in ENDS.items()):
            return RuntimeError(f"{type(error).__name__} from what is no iterator")
        return error

    def serve(self, message: Any) -> None:
        """Answer one call of the other end."""
        self.objects += 1
        try:
            what, args, named = message
            function = self.ops[what] if type(what) is str else self.shown[what]
            args, named = self.unpack(args), {name: self.unpack(x) for name, x in named.items()}
            mutable = {place: x for place, x in [*enumerate(args), *named.items()] if type(x) in MUTABLE}
            before = self.pack_named(mutable)
            value = self.pack(function(*args, **named))
            after = self.pack_named(mutable)
            reply = ["return", value, [[place, after[place]] for place in mutable if after[place] != before[place]]]
        except ERRORS as e:
            if self.in_judge and isinstance(e, SystemExit):
                raise
            reply = ["raise", self.pack_error(e), []]
        self.send(reply)

    def pack_named(self, values):
        return {name: self.pack(x) for name, x in values.items()}
