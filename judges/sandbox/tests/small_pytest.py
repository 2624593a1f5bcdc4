"""What plain tests use of pytest, for the judge, which sees no installed package: raises, approx and fail, as pytest
documents them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

NUMBERS = int, float, complex


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"of pytest there are raises, approx and fail here, but no {name}: write the test without it")


def fail(reason: str = "", **_: Any) -> NoReturn:
    raise AssertionError(reason)


class Raises:
    """The context manager `raises`. Inside of `with raises(E) as info`, info.value is the exception afterwards."""

    def __init__(self, expected, match=None):
        self.expected, self.pattern, self.value = expected, match, None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            fail(f"DID NOT RAISE {self.expected}")
        if not issubclass(kind, self.expected):
            return False
        self.value, self.type = error, kind
        if self.pattern is not None and not re.search(self.pattern, str(error)):
            fail(f"{self.pattern!r} does not match {str(error)!r}")
        return True


def raises(expected: Any, *call: Any, match: str | None = None, **named: Any) -> Raises:
    """Expect an exception in a `with`, or of the call of a function with arguments."""
    context = Raises(expected, match)
    if call:
        with context:
            call[0](*call[1:], **named)
    return context


class approx:  # noqa: N801
    """Equal to numbers, lists and dicts of numbers that differ by at most max(rel * |expected|, abs)."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected, rel=None, abs=None):
        self.expected, self.settings = expected, (rel, abs)
        self.rel = 1e-6 if rel is None and abs is None else rel or 0
        self.abs = 1e-12 if abs is None else abs

    def __repr__(self):
        return f"approx({self.expected!r})"

    def __eq__(self, actual):
        expected = self.expected
        if isinstance(expected, Mapping):
            same = isinstance(actual, Mapping) and set(actual) == set(expected)
            return same and all(approx(expected[k], *self.settings) == actual[k] for k in expected)
        if isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
            same = isinstance(actual, Sequence) and len(actual) == len(expected)
            return same and all(approx(e, *self.settings) == a for e, a in zip(expected, actual, strict=True))
        return self.close(expected, plain_number(actual))

    def close(self, expected, actual):
        if type(expected) not in NUMBERS or type(actual) not in NUMBERS:
            return type(actual) not in NUMBERS and bool(expected == actual)
        return expected == actual or abs(expected - actual) <= max(self.rel * abs(expected), self.abs) < math.inf


def plain_number(x):
    """Return a number as its plain type: an object of the candidate's may have a class that extends one."""
    base = next((kind for kind in NUMBERS if kind in type(x).__mro__), None)
    return x if base is None or type(x) is base else base.__add__(x, base(0))
