"""Plain data as JSON."""
import builtins
import collections
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from fractions import Fraction


class Dead(BaseException):
    """The other side is gone, out of time or talks nonsense. A test's `except Exception` must not catch it."""


class Failed(Exception):
    """A completion's own failure of one test. Anything else that is raised is the machine's: it ends the judge."""


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


def refill(x, base, now):
    """Make this mutable object hold the same as another one."""
    base.clear(x)
    if not issubclass(base, dict): return (base.update if base is set else base.extend)(x, now)
    for k, v in now.items(): base.__setitem__(x, k, v)  # OrderedDict.update would ask x for its own __setitem__


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
