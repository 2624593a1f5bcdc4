"""Right programs as people and models write them, with tests as data sets have them: each is to be paid.

In ASSERTED an item is a name, a program, and its tests, with lines of dashes in between; in PROMPTED the prompt comes
before the program; in PROGRAMS an item is a language and a program that prints twice its input. Every branch of the
judges that one of 144 such programs took is taken by one of these."""

ASSERTED = r'''
# a class that extends set
class Vocabulary(set):
    def known(self, text): return [w for w in text.split() if w in self]
----
v = Vocabulary(["a", "b"])
v.add("c")
assert v.known("a x c") == ["a", "c"] and v == {"a", "b", "c"} and "a" in v
assert v | {"d"} == {"a", "b", "c", "d"} and v - {"a"} == {"b", "c"} and len(v) == 3
====
# a named tuple with methods
import math
from typing import NamedTuple
class Point(NamedTuple):
    x: float
    y: float = 0.0
    def norm(self): return math.hypot(self.x, self.y)
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    @classmethod
    def origin(cls): return cls(0, 0)
----
p = Point(3, 4)
assert p.norm() == 5.0 and p == (3, 4) and p.x == 3 and p[1] == 4
assert p + Point(1, 1) == Point(4, 5) == (4, 5)
assert Point.origin() == (0, 0) and Point(2).y == 0.0
x, y = p
assert (x, y) == (3, 4) and p._replace(x=0) == (0, 4) and p._asdict() == {"x": 3, "y": 4}
----
assert {Point(1, 2): "a"}[Point(1, 2)] == "a" and len({Point(1, 2), Point(1, 2)}) == 1
assert repr(Point(1, 2)) == "Point(x=1, y=2)" and sorted([Point(2, 1), Point(1, 5)])[0] == (1, 5)
====
# a named tuple by its function
from collections import namedtuple
Card = namedtuple("Card", ["rank", "suit"])
def best(cards): return max(cards, key=lambda c: c.rank)
----
assert best([Card(3, "h"), Card(9, "s")]) == Card(9, "s")
assert best([Card(3, "h")]).suit == "h" and isinstance(best([Card(1, "h")]), tuple) and Card._fields == ("rank", "suit")
====
# a context manager that suppresses
class Suppress:
    def __init__(self, *kinds): self.kinds, self.error = kinds, None
    def __enter__(self): return self
    def __exit__(self, kind, value, trace):
        self.error = value
        return kind is not None and issubclass(kind, self.kinds)
----
with Suppress(ValueError) as s:
    raise ValueError("ignored")
assert str(s.error) == "ignored"
try:
    with Suppress(ValueError): raise KeyError("k")
except KeyError: pass
else: assert False
with Suppress(ZeroDivisionError): 1 / 0
====
# copies
import copy
class Node:
    def __init__(self, value, children=None): self.value, self.children = value, children or []
    def clone(self): return copy.deepcopy(self)
----
import copy
a = Node(1, [Node(2)])
b = copy.deepcopy(a)
b.children[0].value = 9
assert a.children[0].value == 2 and b.children[0].value == 9 and b.value == 1
c = copy.copy(a)
assert c is not a and c.value == 1 and len(c.children) == 1
d = a.clone()
assert d is not a and d.children[0].value == 2
====
# a class that defines how it is copied
class Config:
    def __init__(self, **options): self.options = options
    def __copy__(self): return Config(**self.options, copied=True)
    def __deepcopy__(self, memo): return Config(**self.options, deep=True)
----
from copy import copy, deepcopy
assert copy(Config(a=1)).options == {"a": 1, "copied": True}
assert deepcopy(Config(a=1)).options == {"a": 1, "deep": True}
====
# input that is mocked
def ask(): return int(input("a? ")) + int(input("b? "))
----
from unittest.mock import patch
with patch("builtins.input", side_effect=["3", "4"]):
    assert ask() == 7
with patch("builtins.input", return_value="5") as fake:
    assert ask() == 10
    assert fake.call_count == 2
    fake.assert_called_with("b? ")
====
# standard input that is replaced
import sys
def total(): return sum(int(line) for line in sys.stdin)
----
import io, sys
sys.stdin = io.StringIO("1\n2\n3\n")
assert total() == 6
====
# what is printed, captured by hand
import sys
def hello(name): sys.stdout.write(f"Hello, {name}!\n")
----
import io, sys
old, sys.stdout = sys.stdout, io.StringIO()
hello("Ada")
text, sys.stdout = sys.stdout.getvalue(), old
assert text == "Hello, Ada!\n"
====
# a seed that the test sets
import random
def roll(n): return [random.randint(1, 6) for _ in range(n)]
----
import random
random.seed(42)
a = roll(5)
random.seed(42)
assert roll(5) == a and all(1 <= x <= 6 for x in a)
random.seed(42)
assert a == [random.randint(1, 6) for _ in range(5)]
====
# coroutines that raise and await what the test gives
import asyncio
async def retry(task, times):
    for i in range(times):
        try: return await task()
        except ValueError as e: last = e
    raise last
----
import asyncio
calls = []
async def flaky():
    calls.append(1)
    await asyncio.sleep(0)
    if len(calls) < 3: raise ValueError("again")
    return "done"
assert asyncio.run(retry(flaky, 5)) == "done" and len(calls) == 3
async def bad(): raise ValueError("never")
try: asyncio.run(retry(bad, 2))
except ValueError as e: assert str(e) == "never"
else: assert False
====
# asynchronous generators and context managers
class Connection:
    def __init__(self): self.open = False
    async def __aenter__(self):
        self.open = True
        return self
    async def __aexit__(self, *error): self.open = False
    async def rows(self, n):
        for i in range(n): yield i
----
import asyncio
async def main():
    c = Connection()
    async with c as inside:
        assert inside.open
        assert [x async for x in inside.rows(3)] == [0, 1, 2]
    assert not c.open
asyncio.run(main())
====
# exceptions of the library, and their cause
import json
class ConfigError(Exception): pass
def load(text):
    try: return json.loads(text)
    except json.JSONDecodeError as e: raise ConfigError("bad json") from e
def raw(text): return json.loads(text)
----
import json
try: load("{")
except ConfigError as e: assert isinstance(e.__cause__, ValueError) and e.args == ("bad json",)
else: assert False
try: raw("{")
except json.JSONDecodeError as e: assert e.pos == 1 and "Expecting" in e.msg
else: assert False
====
# an abstract class
from abc import ABC, abstractmethod
class Animal(ABC):
    @abstractmethod
    def sound(self): ...
    def speak(self): return f"I say {self.sound()}"
class Dog(Animal):
    def sound(self): return "woof"
----
assert Dog().speak() == "I say woof"
try: Animal()
except TypeError as e: assert "abstract" in str(e)
else: assert False
----
class Cat(Animal):
    def sound(self): return "meow"
assert Cat().speak() == "I say meow" and isinstance(Cat(), Animal)
====
# a solution class whose tests define the nodes
from typing import Optional
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class Solution:
    def mergeTwoLists(self, a: Optional[ListNode], b: Optional[ListNode]):
        head = tail = ListNode()
        while a and b:
            if a.val <= b.val: tail.next, a = a, a.next
            else: tail.next, b = b, b.next
            tail = tail.next
        tail.next = a or b
        return head.next
----
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
def make(xs): return ListNode(xs[0], make(xs[1:])) if xs else None
def take(n): return [n.val] + take(n.next) if n else []
assert take(Solution().mergeTwoLists(make([1, 4]), make([2, 3, 5]))) == [1, 2, 3, 4, 5]
assert take(Solution().mergeTwoLists(None, None)) == []
====
# a solution class with a cache and hints
from functools import lru_cache, cache
from typing import List
class Solution:
    def climb(self, n: int) -> int:
        @lru_cache(maxsize=None)
        def go(k): return 1 if k < 2 else go(k - 1) + go(k - 2)
        return go(n)
    def rotate(self, nums: List[int], k: int) -> None:
        k %= len(nums)
        nums[:] = nums[-k:] + nums[:-k]
@cache
def square(x): return x * x
----
s = Solution()
assert s.climb(10) == 89
nums = [1, 2, 3, 4]
assert s.rotate(nums, 1) is None and nums == [4, 1, 2, 3]
assert square(3) == 9 and square(3) == 9 and square.cache_info().hits == 1
square.cache_clear()
====
# a module that the test imports
def add(a, b): return a + b
class Adder:
    def __init__(self, n): self.n = n
    def __call__(self, x): return add(self.n, x)
----
from solution import add, Adder
assert add(1, 2) == 3 and Adder(2)(3) == 5
----
import solution
assert solution.add(1, 2) == 3
from unittest.mock import patch
with patch("solution.add", return_value=99): assert Adder(2)(3) == 99
assert Adder(2)(3) == 5
====
# a mock that is given as an argument
class Service:
    def __init__(self, db): self.db = db
    def name(self, id):
        row = self.db.find(id)
        self.db.log("read", id=id)
        return row["name"] if row else None
def notify(users, send):
    for u in users: send(u, text="hi")
----
from unittest.mock import Mock, MagicMock, call
db = MagicMock()
db.find.return_value = {"name": "ada"}
assert Service(db).name(3) == "ada"
db.find.assert_called_once_with(3)
db.log.assert_called_once_with("read", id=3)
send = Mock()
notify(["a", "b"], send)
assert send.call_args_list == [call("a", text="hi"), call("b", text="hi")]
====
# decorators with arguments and functions as values
import functools
def repeat(n):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **named): return [f(*args, **named) for _ in range(n)]
        return inner
    return wrap
def compose(*fs): return functools.reduce(lambda f, g: lambda x: g(f(x)), fs)
adder = functools.partial(lambda a, b: a + b, 10)
----
@repeat(3)
def hello(name):
    """Says hello."""
    return f"hi {name}"
assert hello("x") == ["hi x"] * 3 and hello.__name__ == "hello" and hello.__doc__ == "Says hello."
assert compose(str, len)(12345) == 5 and adder(5) == 15 and list(map(adder, [1, 2])) == [11, 12]
====
# containers of the library as answers
from collections import Counter, OrderedDict, defaultdict, deque, ChainMap
from types import SimpleNamespace
def group(words):
    d = defaultdict(list)
    for w in words: d[len(w)].append(w)
    return d
def ordered(d): return OrderedDict(sorted(d.items()))
def count(t): return Counter(t)
def last(xs, n): return deque(xs, maxlen=n)
def space(**k): return SimpleNamespace(**k)
----
from collections import OrderedDict, defaultdict
g = group(["a", "bb", "c"])
assert g == {1: ["a", "c"], 2: ["bb"]} and isinstance(g, defaultdict) and g[9] == []
o = ordered({"b": 1, "a": 2})
assert o == OrderedDict([("a", 2), ("b", 1)]) and isinstance(o, OrderedDict) and list(o) == ["a", "b"]
o.move_to_end("a")
assert list(o) == ["b", "a"] and count("aab").most_common(1) == [("a", 2)] and last([1, 2, 3], 2).maxlen == 2
assert space(a=1).a == 1
====
# views, maps, zips and other lazy answers
def keys(d): return d.keys()
def items(d): return d.items()
def squares(xs): return map(lambda x: x * x, xs)
def pairs(a, b): return zip(a, b)
def evens(xs): return filter(lambda x: x % 2 == 0, xs)
def back(xs): return reversed(xs)
----
assert list(keys({"a": 1})) == ["a"] and sorted(items({"b": 2, "a": 1})) == [("a", 1), ("b", 2)]
assert list(squares([1, 2])) == [1, 4] and dict(pairs("ab", [1, 2])) == {"a": 1, "b": 2}
assert list(evens(range(5))) == [0, 2, 4] and list(back([1, 2])) == [2, 1] and set(keys({"a": 1})) == {"a"}
assert len(keys({"a": 1})) == 1 and "a" in keys({"a": 1})
====
# dates, decimals, fractions, complex, bytes, paths and uuids
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, ROUND_HALF_UP
from fractions import Fraction
from pathlib import PurePosixPath
from uuid import UUID
def parse(text): return datetime.strptime(text, "%Y-%m-%d %H:%M")
def clock(h, m): return time(h, m)
def money(x): return Decimal(x).quantize(Decimal("0.01"), ROUND_HALF_UP)
def half(): return Fraction(1, 2)
def root(): return complex(0, 1)
def path(*parts): return PurePosixPath(*parts)
def ident(n): return UUID(int=n)
def utc(): return timezone.utc
----
import datetime, uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
assert parse("2024-02-29 10:30") == datetime.datetime(2024, 2, 29, 10, 30) and parse("2024-02-29 10:30").weekday() == 3
assert money("2.675") == Decimal("2.68") and half() == 0.5 and half() + half() == 1 and root() ** 2 == -1
assert clock(9, 5) == datetime.time(9, 5) and clock(9, 5).isoformat() == "09:05:00"
assert path("a", "b.txt") == PurePosixPath("a/b.txt") and path("a", "b.txt").suffix == ".txt" and str(path("a")) == "a"
assert ident(5) == uuid.UUID(int=5) and utc() == datetime.timezone.utc
====
# the environment and the command line, patched
import os, sys
def home(): return os.environ.get("APP_HOME", "none")
def command(): return sys.argv[1:]
----
import os, sys
from unittest.mock import patch
with patch.dict(os.environ, {"APP_HOME": "/x"}): assert home() == "/x"
assert home() == "none"
with patch.object(sys, "argv", ["prog", "-v", "3"]): assert command() == ["-v", "3"]
====
# a file that is mocked
def count_lines(path):
    with open(path) as f: return sum(1 for line in f if line.strip())
def save(path, text):
    with open(path, "w") as f: f.write(text)
----
from unittest.mock import mock_open, patch
with patch("builtins.open", mock_open(read_data="a\n\nb\n")) as fake:
    assert count_lines("x.txt") == 2
fake.assert_called_once_with("x.txt")
with patch("builtins.open", mock_open()) as fake: save("y.txt", "hi")
fake().write.assert_called_once_with("hi")
====
# signatures and annotations
import inspect
def area(width: float, height: float = 1.0, *, unit: str = "m") -> str:
    """Area with its unit."""
    return f"{width * height}{unit}"
async def later(): return 1
def gen(): yield 1
----
import inspect
s = inspect.signature(area)
assert list(s.parameters) == ["width", "height", "unit"] and s.parameters["height"].default == 1.0
assert area.__annotations__["return"] == str and inspect.getdoc(area) == "Area with its unit." and callable(area)
assert inspect.iscoroutinefunction(later) and inspect.isgeneratorfunction(gen) and inspect.isfunction(area)
import types
assert isinstance(gen(), types.GeneratorType)
====
# defaultdict subclass
from collections import defaultdict, UserDict, UserList, UserString
class Graph(defaultdict):
    def __init__(self): super().__init__(set)
    def link(self, a, b): self[a].add(b); self[b].add(a)
class Cfg(UserDict):
    def __getitem__(self, k): return self.data.get(k, 0)
class L(UserList):
    def total(self): return sum(self.data)
----
g = Graph()
g.link(1, 2); g.link(1, 3)
assert g[1] == {2, 3} and g == {1: {2, 3}, 2: {1}, 3: {1}} and len(g) == 3
assert sorted(g) == [1, 2, 3]
c = Cfg(a=1)
assert c["a"] == 1 and c["zz"] == 0 and len(c) == 1 and "a" in c
l = L([1, 2])
l.append(3)
assert l.total() == 6 and len(l) == 3 and list(l) == [1, 2, 3] and l[0] == 1 and l[1:].total() == 5
====
# deque subclass and queue
from collections import deque
class MovingAverage(deque):
    def __init__(self, n): super().__init__(maxlen=n)
    def next(self, x): self.append(x); return sum(self) / len(self)
----
m = MovingAverage(2)
assert m.next(1) == 1.0 and m.next(3) == 2.0 and m.next(5) == 4.0 and list(m) == [3, 5] and m.maxlen == 2
m.appendleft(0)
assert m[0] == 0
====
# enum functional and flags, dataclass enum
from enum import Enum, IntEnum, Flag, auto, unique
Weekday = Enum("Weekday", "MON TUE")
@unique
class Planet(Enum):
    EARTH = (5.97e24, 6.37e6)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius
    @property
    def g(self): return round(6.67e-11 * self.mass / self.radius ** 2, 1)
class P(Flag):
    A = auto()
    B = auto()
class Card(IntEnum):
    TWO = 2
    ACE = 14
    def face(self): return self.name.title()
----
assert Weekday.MON.value == 1 and len(Weekday) == 2 and Weekday["TUE"] == Weekday.TUE and Planet.EARTH.g == 9.8
assert P.A in (P.A | P.B) and P.B not in P.A and bool(P.A & P.B) is False and (P.A | P.B).value == 3
assert Card.ACE > Card.TWO and Card.ACE.face() == "Ace" and sorted([Card.ACE, Card.TWO])[0] == 2 and Card(14) == Card.ACE
assert isinstance(Card.ACE, int) and isinstance(Card.ACE, Card) and Card.ACE + 1 == 15 and max(Card) == 14
assert {c.name: c.value for c in Card} == {"TWO": 2, "ACE": 14} and list(Weekday)[0] is Weekday.MON
assert Weekday.MON.name in Weekday.__members__
try: Card(99)
except ValueError as e: assert "99 is not a valid Card" in str(e)
else: assert False
====
# async class with gather, timeout and queue
import asyncio
class Pool:
    def __init__(self, n): self.sem, self.seen = asyncio.Semaphore(n), []
    async def run(self, x):
        async with self.sem:
            await asyncio.sleep(0.001)
            self.seen.append(x)
            return x * x
async def all_squares(xs):
    pool = Pool(2)
    return await asyncio.gather(*(pool.run(x) for x in xs))
async def slow(): await asyncio.sleep(10)
async def numbers():
    for i in range(3):
        yield i
----
import asyncio
assert asyncio.run(all_squares([1, 2, 3])) == [1, 4, 9]
async def main():
    try: await asyncio.wait_for(slow_short(), 0.05)
    except asyncio.TimeoutError: return "late"
async def slow_short(): await asyncio.sleep(1)
assert asyncio.run(main()) == "late"
async def collect(): return [x async for x in numbers()]
assert asyncio.run(collect()) == [0, 1, 2]
loop = asyncio.new_event_loop()
assert loop.run_until_complete(all_squares([2])) == [4]
loop.close()
====
# IsolatedAsyncioTestCase
async def fetch(x):
    if x < 0: raise ValueError("negative")
    return {"x": x}
----
import unittest
class T(unittest.IsolatedAsyncioTestCase):
    async def test_it(self):
        self.assertEqual(await fetch(1), {"x": 1})
        with self.assertRaises(ValueError): await fetch(-1)
unittest.main()
====
# exceptions hierarchy and chained
class AppError(Exception):
    code = 500
    def __init__(self, message="app", *, details=None):
        super().__init__(message)
        self.message, self.details = message, details or {}
    def to_dict(self): return {"code": self.code, "message": self.message, **self.details}
class NotFound(AppError, LookupError):
    code = 404
def find(d, k):
    try: return d[k]
    except KeyError as e: raise NotFound(f"no {k}", details={"key": k}) from e
----
try: find({}, "a")
except AppError as e:
    assert e.code == 404 and e.to_dict() == {"code": 404, "message": "no a", "key": "a"} and isinstance(e, LookupError)
    assert isinstance(e.__cause__, KeyError) and e.details["key"] == "a" and str(e) == "no a" and e.args == ("no a",)
    assert type(e).__name__ == "NotFound" and isinstance(e, NotFound) and repr(e) == "NotFound('no a')"
else: assert False
assert NotFound.code == 404 and issubclass(NotFound, AppError) and NotFound("x").message == "x"
try: raise NotFound("mine", details={"z": 1})
except NotFound as e: assert e.to_dict()["z"] == 1
====
# retry decorator with a failing mock and sleep patched
import time, functools
def retry(times, delay=1):
    def deco(f):
        @functools.wraps(f)
        def inner(*a, **k):
            for i in range(times):
                try: return f(*a, **k)
                except ConnectionError:
                    if i == times - 1: raise
                    time.sleep(delay)
        return inner
    return deco
----
from unittest.mock import Mock, patch
f = Mock(side_effect=[ConnectionError("a"), ConnectionError("b"), 42])
f.__name__ = "f"
with patch("time.sleep") as nap: assert retry(3, delay=2)(f)(1) == 42
assert f.call_count == 3 and nap.call_count == 2
nap.assert_called_with(2)
====
# case insensitive dictionary
class CaseDict(dict):
    def __setitem__(self, k, v): super().__setitem__(k.lower(), v)
    def __getitem__(self, k): return super().__getitem__(k.lower())
    def __contains__(self, k): return super().__contains__(k.lower())
    def get(self, k, d=None): return super().get(k.lower(), d)
----
d = CaseDict()
d["Abc"] = 1
assert d["ABC"] == 1 and "aBc" in d and d.get("ABC") == 1 and d == {"abc": 1} and "x" not in d and list(d) == ["abc"]
d["abc"] += 5
assert d["abc"] == 6 and d.pop("abc") == 6 and not d
====
# attribute dictionary
class AttrDict(dict):
    def __getattr__(self, k):
        try: return self[k]
        except KeyError: raise AttributeError(k)
    def __setattr__(self, k, v): self[k] = v
----
d = AttrDict(a=1)
assert d.a == 1 and d["a"] == 1
d.b = 2
assert d == {"a": 1, "b": 2} and d.b == 2
try: d.zzz
except AttributeError: pass
else: assert False
import json
assert json.dumps(d, sort_keys=True) == '{"a": 1, "b": 2}'
====
# money with comparison to its own kind and formats
from decimal import Decimal
class Money:
    def __init__(self, amount, currency="USD"): self.amount, self.currency = Decimal(str(amount)), currency
    def __add__(self, o):
        if self.currency != o.currency: raise ValueError("Currency mismatch")
        return Money(self.amount + o.amount, self.currency)
    def __mul__(self, k): return Money(self.amount * Decimal(str(k)), self.currency)
    __rmul__ = __mul__
    def __lt__(self, o): return self.amount < o.amount
    def __eq__(self, o): return isinstance(o, Money) and (self.amount, self.currency) == (o.amount, o.currency)
    def __str__(self): return f"{self.amount:.2f} {self.currency}"
    def __format__(self, s): return f"{self.currency}{self.amount:{s or '.2f'}}"
    def __hash__(self): return hash((self.amount, self.currency))
    def __bool__(self): return self.amount != 0
----
m = Money("10.50") + Money(5)
assert m == Money("15.50") and str(m) == "15.50 USD" and f"{m}" == "USD15.50" and f"{m:.1f}" == "USD15.5" and str(m * 2) == "31.00 USD"
assert 2 * Money(1) == Money(2) and Money(1) < Money(2) and max(Money(1), Money(3)) == Money(3) and not Money(0) and m.amount == Decimal("15.5") if False else True
assert sorted([Money(3), Money(1)])[0] == Money(1) and sum([Money(1), Money(2)], Money(0)) == Money(3) and len({Money(1), Money(1)}) == 1
try: Money(1) + Money(1, "EUR")
except ValueError as e: assert str(e) == "Currency mismatch"
else: assert False
====
# numbers in text, huge ints, floats, bytes, complex answers
def fact(n):
    r = 1
    for i in range(2, n + 1): r *= i
    return r
def stats(xs): return {"mean": sum(xs) / len(xs), "max": max(xs), "sorted": tuple(sorted(xs))}
def enc(s): return s.encode(), bytearray(s, "utf8"), memoryview(b"ab").tobytes()
def mixed(): return [1, 2.5, "x", None, True, (1, {2}), {"k": [frozenset({3})]}, 1j, b"z", range(3)]
----
assert fact(100) % (10 ** 9 + 7) == 437918130 and len(str(fact(200))) == 375 and stats([3, 1, 2]) == {"mean": 2.0, "max": 3, "sorted": (1, 2, 3)}
assert enc("é")[0] == b"\xc3\xa9" and enc("a")[1] == bytearray(b"a") and mixed()[5] == (1, {2}) and mixed()[6]["k"] == [frozenset({3})]
assert mixed()[4] is True and mixed()[3] is None and list(mixed()[9]) == [0, 1, 2] and type(mixed()[1]) is float
====
# unittest with mocks by decorator and setUp
import random, time
class Game:
    def __init__(self): self.score = 0
    def roll(self): return random.randint(1, 6)
    def play(self):
        n = int(input("guess: "))
        win = n == self.roll()
        self.score += win
        print("win" if win else "lose")
        return win
----
import unittest, io
from unittest.mock import patch
class TestGame(unittest.TestCase):
    def setUp(self): self.game = Game()
    @patch("builtins.input", return_value="4")
    @patch("random.randint", return_value=4)
    def test_win(self, rnd, inp):
        with patch("sys.stdout", new_callable=io.StringIO) as out: self.assertTrue(self.game.play())
        self.assertEqual(out.getvalue().strip(), "win")
        self.assertEqual(self.game.score, 1)
        rnd.assert_called_once_with(1, 6)
    @patch.object(Game, "roll", return_value=1)
    def test_lose(self, roll):
        with patch("builtins.input", side_effect=["2"]), patch("builtins.print") as p: self.assertFalse(self.game.play())
        p.assert_called_with("lose")
    def test_bad(self):
        with patch("builtins.input", return_value="x"), self.assertRaises(ValueError): self.game.play()
====
# pytest: raises, approx, parametrize, fixtures and classes
class NegativeError(ValueError): pass
def root(x):
    if x < 0: raise NegativeError(f"no root of {x}")
    return x ** 0.5
def halves(xs): return [x / 2 for x in xs]
----
import pytest
from solution import root, halves, NegativeError

def test_root():
    assert root(2) == pytest.approx(1.41421356) and root(4) == 2
    assert root(2) != pytest.approx(1.4142) and root(2) == pytest.approx(1.4, abs=0.1) and 1.41 == pytest.approx(root(2), rel=0.01)

def test_error():
    with pytest.raises(ValueError, match="no root of -1") as info:
        root(-1)
    assert "-1" in str(info.value) and info.type is NegativeError
    pytest.raises(TypeError, root, "x")
    with pytest.raises((KeyError, NegativeError)): root(-2)

@pytest.mark.parametrize("x, y", [(4, 2), (9, 3), pytest.param(16, 4, id="big")])
def test_roots(x, y): assert root(x) == y

@pytest.mark.parametrize("a", [1, 4])
@pytest.mark.parametrize("b", [9, 16])
@pytest.mark.slow
def test_products(a, b): assert root(a * b) == pytest.approx(root(a) * root(b))

@pytest.fixture
def numbers():
    yield [2, 4]

class TestHalves:
    def setup_method(self): self.want = [1, 2]
    def test_list(self, numbers): assert halves(numbers) == self.want == pytest.approx([1.0, 2.0])
    @pytest.mark.parametrize("xs", [[], [0]])
    def test_more(self, xs): assert halves(xs) == xs
----
import pytest
assert {"a": root(4)} == pytest.approx({"a": 2.0}) and (root(4), 1) == pytest.approx((2, 1)) and None != pytest.approx(0)
'''  # noqa: E501

PROMPTED = r'''
# a dataclass of the prompt, returned, compared, changed and shown
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: int = 0
    _seen: int = 0


def mirror(p: Point, q) -> Point:
    """Swap the coordinates of p, and mark q."""
----
```python
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: int = 0
    _seen: int = 0

def mirror(p, q):
    assert isinstance(p, Point) and isinstance(q, Point) and q._seen == 0 and p == Point(p.x, p.y)
    q._seen += 1
    q.x = 9
    return Point(p.y, p.x)
```
----
q = Point(5)
assert mirror(Point(1, 2), q) == Point(2, 1) and Point(2, 1) == mirror(Point(1, 2), Point(0))
assert q.x == 9 and q._seen == 1 and isinstance(mirror(Point(1), Point(1)), Point)
assert mirror(Point(1, 2), Point(3)).x == 2
assert [mirror(Point(1, 2), Point(3))] == [Point(2, 1)] != [Point(2, 2)]
====
# LeetCodeDataset's form, asked for Solution().twoSum
from typing import *
import collections

class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next

def list_node(values):
    head = tail = ListNode()
    for v in values:
        tail.next = ListNode(v)
        tail = tail.next
    return head.next
----
```python
class Solution:
    def twoSum(self, nums: List[int], target: int) -> List[int]:
        seen = {}
        for i, n in enumerate(nums):
            if target - n in seen: return [seen[target - n], i]
            seen[n] = i
    def total(self, node):
        return node.val + self.total(node.next) if node else 0
```
----
def check(candidate):
    assert candidate(nums = [3, 3], target = 6) == [0, 1]
    assert candidate([2, 7, 11, 15], 9) == [0, 1]
check(Solution().twoSum)
----
def check(candidate):
    assert candidate(nums = [3, 2, 4], target = 6) == [1, 2]
----
assert Solution().total(list_node([1, 2, 3])) == 6
'''

PROGRAMS = r'''
# java
import java.util.*;
class Solution {
    static int twice(int x) { return 2 * x; }
    public static void main(String[] args) {
        Scanner in = new Scanner(System.in);
        System.out.println(twice(in.nextInt()));
    }
}
====
# java
import java.util.Scanner;
public final class Doubler {
    record Pair(int a, int b) { int sum() { return a + b; } }
    public static void main(String... args) {
        int n = new Scanner(System.in).nextInt();
        System.out.println(new Pair(n, n).sum());
    }
}
====
# java
package com.example;
// public class Decoy
class Helper { int two(int x) { return x + x; } }
class Program {
    public static void main(final String[] args) throws Exception {
        System.out.println(new Helper().two(Integer.parseInt(new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).readLine().trim())));
    }
}
====
# c++
#include <bits/stdc++.h>
#include <ranges>
using namespace std;
struct P { int x; auto operator<=>(const P&) const = default; };
template <typename T> concept Number = std::integral<T>;
auto twice(Number auto x) { return x + x; }
int main() {
    int n; cin >> n;
    vector<int> v{n, n};
    int sum = 0;
    for (int x : v | views::filter([](int x) { return x != 0; })) sum += x;
    cout << (P{1} < P{2} ? sum : 0) + (twice(n) - 2 * n) << endl;
}
====
# c
#include <stdio.h>
#include <math.h>
int main(void) { int n; if (scanf("%d", &n) != 1) return 1; printf("%.0f\n", sqrt(4.0 * n * n)); return 0; }
'''  # noqa: E501


def parts(text, n):
    """The items of a list above -> [(name, part, ...)]; the first part lies below the name."""
    for item in text.strip("\n").split("\n====\n"):
        name, rest = item.split("\n", 1)
        yield name.removeprefix("# "), *rest.split("\n----\n", n)


def jobs():
    """{name: (prompt, completion, tests, language)}"""
    found = {}
    for name, code, tests in parts(ASSERTED, 1):
        found[name] = "", code, tests.split("\n----\n"), "python"
    for name, prompt, completion, tests in parts(PROMPTED, 2):
        found[name] = prompt + "\n", completion, tests.split("\n----\n"), "python"
    for i, (language, code) in enumerate(parts(PROGRAMS, 0)):
        tests = [{"input": "21\n", "output": "42\n"}, {"input": "4", "output": "8"}]
        found[f"{language} {i}"] = "", code, tests, language
    return found
