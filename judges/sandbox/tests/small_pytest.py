"""What tests of data sets use of pytest, for the judge, which sees no installed package: raises, approx, parametrize,
fixture, fail and skip, as pytest documents them. A test that skips has not passed."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from types import FunctionType, GeneratorType
from typing import Any, NoReturn

NUMBERS = int, float, complex, Decimal, Fraction


class Failed(AssertionError):
    """A test has failed, or was skipped."""


def fail(reason: str = "", pytrace: bool = True, **_: Any) -> NoReturn:
    raise Failed(reason)


def skip(reason: str = "", **_: Any) -> NoReturn:
    raise Failed(f"skipped: {reason}")


xfail = skip


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
        self.value, self.type, self.typename, self.tb = error, kind, kind.__name__, trace
        if self.pattern is not None:
            self.match(self.pattern)
        return True

    def match(self, pattern):
        if not re.search(pattern, str(self.value)):
            fail(f"{pattern!r} does not match {str(self.value)!r}")
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

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.settings = expected, (rel, abs, nan_ok)
        self.rel = 1e-6 if rel is None and abs is None else rel or 0
        self.abs, self.nan_ok = 1e-12 if abs is None else abs, nan_ok

    def __repr__(self):
        return f"approx({self.expected!r})"

    def __eq__(self, actual):
        expected = self.expected
        if isinstance(expected, Mapping):
            same = isinstance(actual, Mapping) and set(actual) == set(expected)
            return same and all(approx(expected[k], *self.settings) == actual[k] for k in expected)
        if isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
            pairs = isinstance(actual, Sequence) and len(actual) == len(expected) and zip(expected, actual, strict=True)
            return bool(pairs is not False and all(approx(e, *self.settings) == a for e, a in pairs))
        return self.close(expected, plain_number(actual))

    def close(self, expected, actual):
        if type(expected) not in NUMBERS or type(actual) not in NUMBERS:
            return type(actual) not in NUMBERS and bool(expected == actual)
        if expected != expected or actual != actual:
            return self.nan_ok and expected != expected and actual != actual
        if expected == actual or math.isinf(abs(expected)) or math.isinf(abs(actual)):
            return bool(expected == actual)
        kind = Decimal if isinstance(expected, Decimal) else float
        return abs(expected - actual) <= max(kind(str(self.rel)) * abs(expected), kind(str(self.abs)))


def plain_number(x):
    """Return a number as its plain type: an object of the candidate's may have a class that extends one."""
    base = next((kind for kind in NUMBERS if kind in type(x).__mro__), None)
    return x if base is None or type(x) is base else base.__add__(x, base(0))


# ---- tests with arguments --------------------------------------------------------------------------------------------
class Param(tuple):
    """The arguments of one case."""


def param(*values: Any, **_: Any) -> Param:
    return Param(values)


def parametrize(names: Any, cases: Any, **_: Any) -> Callable:
    """Run a test once per case, with these arguments; several decorators make all combinations."""
    names = [x.strip() for x in names.split(",")] if isinstance(names, str) else list(names)
    rows = [case if len(names) > 1 or type(case) is Param else [case] for case in cases]
    named = [dict(zip(names, row, strict=True)) for row in rows] or skip("no cases")

    def decorate(function):
        vars(function).setdefault("parameters", []).append(named)
        return function

    return decorate


def fixture(function: Any = None, **_: Any) -> Any:
    """Make a function whose result, or what it yields, tests get by its name."""
    if function is None:
        return fixture
    function.is_fixture = True
    return function


class Marks:
    """pytest.mark: a mark that skips fails the test, and all but parametrize say nothing else."""

    parametrize = staticmethod(parametrize)

    def __getattr__(self, name):
        def mark(*args, **named):
            skips = name in ("skip", "xfail") or name == "skipif" and args and args[0]
            if skips:
                skip(name)
            return args[0] if len(args) == 1 and type(args[0]) in (FunctionType, type) else mark

        return mark


mark = Marks()


def cases(function: FunctionType, space: dict, first: int = 0) -> Iterator[dict]:
    """Yield the arguments of each run of a test; space: where its fixtures are; first: its arguments that are bound."""
    code, defaults = function.__code__, len(function.__defaults__ or ())
    for chosen in itertools.product(*vars(function).get("parameters", [])):
        given = {name: value for case in chosen for name, value in case.items()}
        opened: list[GeneratorType] = []
        for name in code.co_varnames[first : code.co_argcount - defaults]:
            if name not in given:
                given[name] = fixture_value(name, space, opened)
        yield given
        for generator in opened:
            next(generator, None)


def fixture_value(name, space, opened):
    function = dict.get(space, name)
    if not getattr(function, "is_fixture", False):
        fail(f"fixture {name!r} not found")
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    value = function(**{x: fixture_value(x, space, opened) for x in arguments})
    if type(value) is GeneratorType:
        opened.append(value)
        return next(value)
    return value
