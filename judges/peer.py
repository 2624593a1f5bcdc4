"""Peer."""
import _thread
import builtins
import collections
import importlib
import json
import struct
import sys
import time
import types
from collections import defaultdict, deque

from judges.stubs import JUDGE_OPS, LIKES, OWN_ERROR, Like, OwnKind, Remote, Waiting, awaited, test_made
from judges.values import KINDS, MUTABLE, RUNNERS, TAGS, TEXTS, TYPES, Dead, bare_record, builtin_type, refill

MESSAGE = 8 << 20  # bytes of the longest answer or output: a list of a million small ints fits


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
