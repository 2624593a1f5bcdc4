"""Say plain data as JSON: what may cross between the judge and a candidate.

JSON, never pickle: reading a message must not be able to run anything. A value that JSON cannot say travels as
{tag: parts}, where KINDS gives for each tag a type, the function that takes its values apart, and the one that puts the
parts together again. A subclass travels as its nearest base, taken apart by that base's own method, which the subclass
cannot override. peer.py applies the table; objects that are not plain data are the business of stubs.py.
"""

import builtins
import collections
import re
import types
from abc import ABCMeta
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """How the values of a plain type travel."""

    type: type
    apart: Callable  # value -> parts
    together: Callable  # parts -> value


def spread(kind):
    """Return the function that makes this type from a list of arguments."""

    def together(parts):
        return kind(*parts)

    return together


def by_attributes(kind, *names):
    """Make the Kind of a type that is built from the values of these attributes."""

    def apart(value):
        return [getattr(value, name) for name in names]

    return Kind(kind, apart, spread(kind))


def pairs_of(d):
    return [[k, v] for k, v in dict.items(d)]


def dict_like(kind):
    """Make the Kind of a type that is built from key-value pairs, in their order."""

    def together(pairs):
        return kind(dict(pairs))

    return Kind(kind, pairs_of, together)


def factory_and_pairs(d):
    return [d.default_factory, pairs_of(d)]


def iso_and_fold(moment):
    return [datetime.isoformat(moment), moment.fold]


def from_iso_and_fold(parts):
    return datetime.fromisoformat(parts[0]).replace(fold=parts[1])


def to_hex(n):
    """Write an integer in hex, which takes linear time and has no limit of digits."""
    return hex(int.__index__(n))


def from_hex(digits):
    return int(digits, 16)


def offset(zone):
    return zone.utcoffset(None)


def keys_of(parts):
    return dict.fromkeys(parts).keys()


def values_of(parts):
    return dict(enumerate(parts)).values()


def items_of(parts):
    return dict(parts).items()


def contents_and_length(queue):
    return [list(queue), queue.maxlen]


KINDS = {
    "int": Kind(int, to_hex, from_hex),
    "float": Kind(float, float.__float__, float),
    "complex": Kind(complex, complex.__repr__, complex),
    "str": Kind(str, str.__str__, str),
    "list": Kind(list, list, list),
    "tuple": Kind(tuple, list, tuple),
    "set": Kind(set, list, set),
    "frozenset": Kind(frozenset, list, frozenset),
    "dict": dict_like(dict),
    "Counter": dict_like(Counter),
    "OrderedDict": dict_like(OrderedDict),
    "defaultdict": Kind(defaultdict, factory_and_pairs, spread(defaultdict)),
    "deque": Kind(deque, contents_and_length, spread(deque)),
    "range": by_attributes(range, "start", "stop", "step"),
    "slice": by_attributes(slice, "start", "stop", "step"),
    "bytes": Kind(bytes, bytes.hex, bytes.fromhex),
    "bytearray": Kind(bytearray, bytearray.hex, bytearray.fromhex),
    "Decimal": Kind(Decimal, Decimal.__str__, Decimal),
    "Fraction": by_attributes(Fraction, "numerator", "denominator"),
    "datetime": Kind(datetime, iso_and_fold, from_iso_and_fold),
    "date": Kind(date, date.isoformat, date.fromisoformat),
    "time": Kind(clock, clock.isoformat, clock.fromisoformat),
    "timedelta": by_attributes(timedelta, "days", "seconds", "microseconds"),
    "timezone": Kind(timezone, offset, timezone),
    "keys": Kind(type({}.keys()), list, keys_of),
    "values": Kind(type({}.values()), list, values_of),
    "items": Kind(type({}.items()), list, items_of),
}
TAGS = {kind.type: tag for tag, kind in KINDS.items()}
MUTABLE = (list, dict, set, deque, bytearray, Counter, OrderedDict, defaultdict)
# Types of the library whose values str() says completely.
TEXTS = {
    "uuid": ("UUID",),
    "ipaddress": ("IPv4Address", "IPv6Address"),
    "pathlib": ("PurePosixPath", "PosixPath"),
}
# Types and constants that travel by their name: int, ValueError, Ellipsis; function, generator, coroutine; Iterator.
TYPES = {kind.__name__: kind for kind in vars(types).values() if isinstance(kind, type)}
NAMED: dict[str, Any] = {name: x for name, x in vars(builtins).items() if isinstance(x, type) and name[0] != "_"}
NAMED |= TYPES | {"Ellipsis": ..., "NotImplemented": NotImplemented}
NAMED |= {kind.__name__: kind for kind in vars(collections.abc).values() if type(kind) is ABCMeta}
NAMES = {id(x): name for name, x in NAMED.items()}


def base_of(kind: type) -> type | None:
    """Return the plain type that a type is or extends, or None. Not by isinstance, because __class__ can lie."""
    return next((base for base in kind.__mro__ if base in TAGS), None)


def refill(x: Any, base: Any, now: Any) -> None:
    """Make a mutable object x hold what `now` holds, with the methods of its plain type `base`."""
    base.clear(x)
    if issubclass(base, dict):
        for k, v in now.items():
            base.__setitem__(x, k, v)  # OrderedDict.update would ask x for its own __setitem__
    elif base is set:
        set.update(x, now)
    else:
        base.extend(x, now)


def one_line(text: str) -> str:
    """Make text fit for a log: one line of at most 300 ASCII characters."""
    text = re.sub(r"[\x00-\x1f\x7f]", lambda c: repr(c[0])[1:-1], text[:300].replace("\n", " "))
    return text.encode("ascii", "backslashreplace")[:300].decode().strip(": ")


def describe(error: BaseException) -> str:
    """Say an exception in one line: "ValueError: why", or its name alone if its __str__ (a candidate's?) fails."""
    try:
        return one_line(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__
