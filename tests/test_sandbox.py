"""The sandbox pays right answers only, lets nothing out, and leaves nothing behind. The attacks are in tests/attacks."""
import ast
import glob
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared import refused, slow

from judges import programs
from judges.sandbox import languages
from judges.sandbox import pool as module
from judges.sandbox.jobs import Job
from judges.sandbox.pool import Pool
from judges.sandbox.tests.plain import only_plain
from tests import honest
from tests.attacks.run import completions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what contains a candidate")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ATTACKS = os.path.join(ROOT, "tests", "attacks")
ADD = "def add(a, b): return a + b"
RIGHT = ["assert add(1, 2) == 3", "assert add(-4, 9) == 5"]
LOOP = "def add(a, b):\n    while True: pass"
NAP = "import time\ndef add(a, b): time.sleep(99)"  # as long as a loop, and free


@pytest.fixture(scope="module")
def box():
    with Pool(workers=4, timeout=2) as box:
        yield box


@pytest.fixture(scope="module")
def brief():
    """For what takes all the time there is."""
    with Pool(workers=1, timeout=1) as box:
        yield box


def one(box, code, tests, entry="", language="python"):
    return box.run([Job(code, tests, entry, language)])[0]


def value(box, code, expression):
    """What an expression is in a candidate, told by the message of a failed assertion."""
    verdict = one(box, f"{code}\ndef told(): return {expression}", ["assert 0, told()"])
    return ast.literal_eval(verdict.error.removeprefix("test 1: AssertionError: "))


def parents():
    """{pid: its parent} of every process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                found[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    return found


def descendants(pid):
    family, known = [pid], parents()
    for p in family:
        family += [child for child, parent in known.items() if parent == p]
    return set(family[1:])


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition, seconds=5):
    end = time.time() + seconds
    while not (holds := condition()) and time.time() < end:
        time.sleep(0.02)
    return holds  # not asked again: processes of the probe come and go


def scratch(family, trainer):
    """The folders that these processes of a trainer left behind; those of others come and go."""
    mine = tuple(f"sandbox-{trainer}-{pid}-" for pid in family)
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(mine)]


def altered(tmp_path, *changes):
    """The sandbox with parts of its source replaced, as it would be on another machine or after a mistake.

    Workers run the altered files; of those that the trainer imports only pool.py is."""
    folder = tmp_path / "judges" / "sandbox"
    shutil.copytree(os.path.dirname(module.__file__), folder, ignore=shutil.ignore_patterns("__pycache__"))
    for old, new in changes:
        path, = (path for path in folder.glob("**/*.py") if old in path.read_text())
        assert path.read_text().count(old) == 1, old
        path.write_text(path.read_text().replace(old, new))
    spec = importlib.util.spec_from_file_location("sandbox_altered", folder / "pool.py")
    spec.loader.exec_module(changed := importlib.util.module_from_spec(spec))
    return changed


# ---- scoring ---------------------------------------------------------------------------------------------------------
def test_right_answers_pass_and_wrong_ones_fail(box):
    verdict = one(box, ADD, RIGHT, "add")
    assert 0 < verdict.seconds < 1 and verdict[:2] == ([True, True], "")
    verdict = one(box, "def add(a, b): return 3", [*RIGHT, "assert add(0, 3) == 3"], "add")
    assert verdict.passed == [True, False, True] and verdict.error == "test 2: AssertionError"
    assert box.run([]) == [] and one(box, ADD, []).passed == []


STAR = "from solution import *\n"
LIE = "def max(xs): return 7\ndef abs(x): return 0\ndef f(): return [3, -4]"
CLOSE = "class math:\n    @staticmethod\n    def isclose(*a): return True\ndef root(x): return 0.0"
CHECK = "import math\ndef check(candidate):\n    assert candidate(1, 2) == math.gcd(3, {})\ncheck(add)"
REFUSING = """
import gc
peer = next(x for x in gc.get_objects() if type(x).__name__ == 'Peer' and 'names' in x.ops)
def refuse(wanted): raise KeyError(wanted)
peer.ops['names'] = refuse"""
TELLTALE = """
def f(m):
    for change in ("m.assert_called_once_with = len", "m.reset_mock()", "m.return_value = 3", "m.call_count = 1", "m.mock_calls",
                   "m._mock_parent", "m.go.assert_called_once_with = len", "setattr(m, 'go', len)", "m.method_calls"):
        try: exec(change)
        except AttributeError: continue
        return change
    m.go(2)"""
MOCK = "from unittest.mock import {0}\nm = {0}()\nassert f(m) is None\nm.go.assert_called_once_with({1})"
SHADOW = """
def f(n):
    n.x = n.size = 3
    for name in ('ok', 'fine', 'good', 'kept', 'half', 'late'):
        try: setattr(n, name, lambda: True)
        except AttributeError: pass"""
NODE = """
import functools
class Node:
    size = 0
    kept = functools.cache(lambda self: False)
    half = functools.partialmethod(lambda self, x: x, False)
    late = functools.cached_property(lambda self: False)
    def __init__(self): self.x = 1
    def ok(self): return self.x == 2
    @staticmethod
    def fine(): return False
    @classmethod
    def good(cls): return False
n = Node()
f(n)
assert n.{}"""
LIAR = """
import numbers
@numbers.Rational.register
class Number:
    numerator, denominator, real, imag = 3, 1, 3, 0
    def __eq__(self, other): return True
def f(): return Number()"""
FIND = """
import importlib
def {}():
    names = []
    for name in ("channel", "walls", "sandbox", "config", "model"):
        try: names.append(importlib.import_module(name).__name__)
        except ImportError: pass
    return names"""
STOPS = "class S(StopIteration): pass\ndef f(x): raise StopIteration\ndef g(x): raise StopAsyncIteration\ndef s(x): raise S"
COUNTED = """
import gc
peer = next(x for x in gc.get_objects() if type(x).__name__ == 'Peer' and 'names' in x.ops)
log, asked, look_up = [], [], peer.ops['getattr']
peer.ops['getattr'] = lambda *a: asked.append(a) or look_up(*a)
def questions(): return len(asked)
def told():
    seen, log[:] = ' '.join(log), []
    return seen
class S:
    kind = int
    free = staticmethod(lambda x: x + 1)
    def __init__(self, call=None): self.call, self.n = call, 0
    def __getattr__(self, name):
        if name == 'missing': raise AttributeError(name)
        log.append(name)
        return lambda x: (name, x)
    @property
    def made(self):
        log.append('made')
        return self.push
    def push(self, x):
        log.append(f'push {x}')
        self.n += 1
        return self.n
    def swap(self):
        self.push = lambda x: 'swapped'
        return 1
    def sort(self, xs): xs.sort()
    def stop(self): raise StopIteration
    def same(self): return self"""
METHODS = [
    "s = S()\nfor i in range(9): assert s.push(i * 2) == i + 1\nassert s.same().same().push(x=1) == 10 and questions() == 0",
    "told()\ns = S()\nassert s.made(s.other(3)) == 1 and told() == 'made other push (\\'other\\', 3)'", "s = S()\nassert s.push(s.swap()) == 1 and s.push(1) == 'swapped'",
    "told()\ns = S()\nassert s.any(2) == ('any', 2) and told() == 'any'", "s = S()\npush = s.push\ns.swap()\nassert push(1) == 1 and callable(push) and hasattr(s, 'push')",
    "s, seen = S(), []\ntry: s.missing(seen.append(1))\nexcept AttributeError: pass\nelse: assert 0\nassert not hasattr(s, 'missing')",
    "told()\ns = S()\ntry: s.push(1 / 0)\nexcept ZeroDivisionError: pass\nassert told() == '' and s.push(2) == 1", "s, xs = S(), [2, 1]\ns.sort(xs)\nassert xs == [1, 2]",
    "xs = []\ns = S(xs.append)\nhere = [1]\ns.call(here)\nassert xs[0] is here", "s = S()\nassert s.kind('3') == 3 and s.free(2) == 3",
    "s = S()\ntry: s.stop()\nexcept RuntimeError: pass\nelse: assert 0"]
OWN_FILE = """
import os, tempfile
with tempfile.NamedTemporaryFile('w+') as f:
    f.write(str(f_of(3))); f.seek(0)
    assert f.read() == '4' and os.path.dirname(f.name) == os.environ['TMPDIR']"""
REFUSED = "try: {}\nexcept PermissionError: pass\nelse: assert 0"
SHOWN = {"a b\nc": True, "a b  \r\nc\n\n": True, " a b\nc": False, "a  b\nc": False, "a b\n\nc": False}
prints = lambda *cases: [{"input": i, "output": o} for i, o in cases]
SCORED = {  # code, tests, entry, what passes; and where not everything does, words of the error
    "state lives within a completion and not beyond": (
        "n = 0\ndef hit():\n    global n; n += 1; return n", ["assert hit() == 1", "assert hit() == 2 and n == 2"], "hit", [1, 1]),
    "a check function is one test": (ADD, [CHECK.format(6), CHECK.format(7)], "add", [1, 0]),
    "a builtin is the judge's": (LIE, ["assert max(f()) == 3", "assert abs(f()[1]) == 4"], "f", [1, 1]),
    "unless it is the function asked for": (LIE, ["assert max([1]) == 7"], "max", [1]),
    "which has to be there": ("x = 1", ["assert max([1]) == 1"], "max", [0], "name 'max' is not defined"),
    "a candidate that answers for its line gets no builtin": (REFUSING, ["assert max([1, 2]) == 2"], "max", [0]),
    "a star import brings what is defined": (
        "from math import floor\ndef f(x): return floor(x)\nclass Box: size = 3\ndef sum(xs): return 7",
        [STAR + "assert f(2.5) == 2 and Box().size == 3 and floor(3.5) == 3", STAR + "assert eval('f(1)') == 1 and 'Box' in globals()"],
        "f", [1, 1]),
    "and the function asked for": ("def sum(xs): return 7", [STAR + "assert sum([1]) == 7"], "sum", [1]),
    "a module is the judge's": (CLOSE, ["assert math.isclose(root(4), 2)", "assert not math.isclose(root(4), 2)"], "", [0, 1]),
    "a test that breaks": (ADD, ["assert add(1, 2) ==", "exit()", "assert nothing(1)", "import sys; sys.exit(0)", "raise KeyboardInterrupt",
                                 "assert add(1, 2) == 3"], "add", [0, 0, 0, 0, 0, 1], "SyntaxError"),
    "a program reads and prints": ("import sys\nn = int(input())\nprint(sum(map(int, sys.stdin.read().split())) * n)",
                                   prints(("2\n1 2\n3", "12"), ("0\n", "0  \n\n"), ("1\n1", "2")), "", [1, 1, 0]),
    "every input meets a fresh process": ("import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + 1\nprint(n)",
                                          prints(*[("", "1")] * 3), "", [1, 1, 1]),
    "white space at the end of lines is ignored": ("print('a b\\t')\nprint('c')\nprint()", prints(*(("", text) for text in SHOWN)), "",
                                                   list(SHOWN.values())),
    "a stop of iteration comes from iterators only": (
        STOPS, ["assert [*map(f, [1, 2])] is not None", "assert all(x == 3 for x in map(f, [1]))", "for x in map(f, [1]): assert x == 3",
                "assert list(zip(map(f, [1]), [3])) == []", "import asyncio\nassert [*map(g, [1])] == []", "assert [*map(s, [1])] == []"],
        "", [0] * 6, "RuntimeError: StopIteration from what is no iterator"),
    "as of this one": ("def f(n): yield from range(n)", ["assert list(f(3)) == [0, 1, 2]"], "", [1]),
    "a mock tells its test only": (TELLTALE, [MOCK.format(kind, n) for kind in ("Mock", "MagicMock") for n in (2, 3)], "", [1, 0, 1, 0]),
    "no method of a test's class is shadowed": (
        SHADOW, [NODE.format(x) for x in ("ok()", "fine()", "good()", "kept()", "half()", "late", "size == n.x == 3")],
        "", [0, 0, 0, 0, 0, 0, 1]),
    "no answer is asked which number it is": (
        LIAR, ["from fractions import Fraction\nassert Fraction(3) == f()", "from decimal import Decimal\nassert Decimal(3) == f()",
               "from numbers import Number\nassert isinstance(f(), Number)"], "", [0, 0, 0]),
    "a method is looked up before its arguments, and once": (COUNTED, METHODS, "", [1] * len(METHODS)),
    "a seed of the candidate is its own": (
        "import random\ndef f(): random.seed(1); return random.random()",
        ["import random\nrandom.seed(5)\na = random.random()\nrandom.seed(5)\nf()\nassert random.random() == a"], "", [1]),
    "the sandbox's files are in nobody's way": (
        FIND.format("found"), [FIND.format("found_here") + "\nassert found() == found_here() == []"], "", [1]),
    "memory is limited": ("def f(n):\n    try: return len(bytearray(n))\n    except MemoryError: return -1",
                          ["assert f(100 << 20) == 100 << 20", "assert f(1 << 30) == -1"], "", [1, 1]),
    "a test may write to a folder of its own": ("def f_of(x): return x + 1", [OWN_FILE], "", [1]),
    "a test that passes open or unpickles hands over no file": (
        "def f(do): return do('/etc/passwd').read()\ndef g(): return b\"cos\\nmkdir\\n(S'/tmp/sandbox_test'\\ntR.\"",
        [REFUSED.format("f(open)"), "import pickle\n" + REFUSED.format("pickle.loads(g())")], "", [1, 1])}


@pytest.mark.parametrize("count", [120, slow(750)])
def test_each_input_has_its_own_time_and_one_is_wrong_of_many(count):
    tests = [{"input": str(n), "output": str(2 * n)} for n in range(count)]
    tests[1]["output"] = "3"
    with Pool(workers=1, timeout=0.5) as pool:
        verdict = one(pool, "print(2 * int(input()))", tests)
        assert sum(verdict.passed) == count - 1 and verdict.error == "test 2: printed '2'" and verdict.seconds > 0.3
        loop = "n = int(input())\nwhile n > 1: pass\nprint(2 * n)"
        assert one(pool, loop, tests[:9]).passed == [True] + [False] * 8
    assert [Job("", some).turns() for some in (tests, [*tests, "f()"], ["f()"] * 9, [])] == [count, 1, 1, 1]


@pytest.mark.parametrize("name", SCORED)
def test_a_verdict_is_right_every_time(box, name):
    code, tests, entry, passed, *error = SCORED[name]
    for verdict in box.run([(code, tests, entry)] * 2):
        assert verdict.passed == passed and [*error, ""][0] in verdict.error, verdict
    assert not os.path.exists("/tmp/sandbox_test")


FORGED = """
import gc
peer = next(x for x in gc.get_objects() if type(x).__name__ == 'Peer' and 'names' in x.ops)
true, lie = peer.ops['names'], {0}
peer.ops['names'] = lambda wanted: {{'__all__': lie}} if wanted == ['__all__'] else true(wanted)
"""


@pytest.mark.parametrize("lie, test", [
    ("def all(x): return True", STAR + "assert all([f() == 3])"), ("def isinstance(*a): return True", STAR + "assert isinstance(f(), str)"),
    ("class math:\n    @staticmethod\n    def isclose(*a): return True", STAR + "import math\nassert math.isclose(f(), 3)"),
    ("class math:\n    @staticmethod\n    def isclose(*a): return True", "import math\n" + STAR + "assert math.isclose(f(), 3)"),
    ("class math:\n    @staticmethod\n    def isclose(*a): return True", STAR + "assert math.isclose(f(), 3)"),
    ("def same(a, b): return True", "def same(a, b): return a == b\n" + STAR + "assert same(f(), 3)"),
    ("WANTED = 2", "WANTED = 3\n" + STAR + "assert f() == WANTED"), ("n = 2", "for n in [3]:\n    from solution import f\n" + STAR + "assert f() == n"),
    ("__name__ = 'x'" + FORGED.format("['__name__', 'f']"), STAR + "def test_it(): assert f() == 3"),
    (FORGED.format("['__builtins__']") + "__builtins__ = {'all': len}", STAR + "def test_it(): assert f() == 3"),
    ("def __type__(x): return int" + FORGED.format("['__type__', 'f']"), STAR + "assert type(f()) is str"),
    (FORGED.format("[['f'], 3, None, 'f']"), STAR + "assert f() == 3"), (FORGED.format("{}"), STAR + "assert f() == 3"),
    ("def load_tests(*a): return a[1]", STAR + "import unittest\nclass T(unittest.TestCase):\n    def test(self): assert f() == 3")])
def test_a_star_import_gives_no_name_of_the_test_away(box, lie, test):
    verdict = one(box, lie + "\ndef f(): return 2", [test, STAR + "assert f() == 2"], "f")
    assert verdict.passed == [False, True], verdict


def test_errors_are_one_short_line_of_ascii(box):
    for code in ("def f(): raise ValueError('é\\n' * 999 + '\\ud800')", "é = 1 +", "raise ValueError('x\\ny' * 500)", "raise ValueError('\\x1b[2J')"):
        error = one(box, code, ["f()"]).error
        assert 0 < len(error) <= 300 and error.isascii() and error.isprintable()


def test_a_program_that_fails_says_why(box, brief):
    nothing = [{"input": "", "output": ""}]
    whys = {"1 / 0": "ZeroDivisionError", "import sys; sys.exit(3)": "exit status 3", "x = 'a": "SyntaxError",
            "import os; os._exit(4)": "exit status 4", "import ctypes; ctypes.string_at(0)": "exit status -11",
            "while True: pass": "out of time", "while True: print('x' * 9999)": "printed", "x = bytearray(1 << 32)": "MemoryError"}
    for code, why in whys.items():
        verdict = one(brief if why == "out of time" else box, code, nothing)
        assert verdict.passed == [False] and why in verdict.error, (code, verdict)


def test_the_same_code_gives_the_same_verdict_in_every_worker(box):
    code = "import random\ndef f(): return random.random(), hash('x'), list({'a', 'b', 'c', 'd'})"
    verdicts = box.run([(code, ["assert 0, f()"], "f")] * 12)
    assert len({v.error for v in verdicts}) == 1


# ---- what an object may say of itself ----------------------------------------------------------------------------------
HONEST = honest.jobs()


@pytest.mark.parametrize("name", [slow(name) if name.startswith(("java", "c++")) else name for name in HONEST])
def test_an_honest_program_is_paid(box, name):
    prompt, completion, tests, language = HONEST[name]
    needs = {"c": "gcc", "c++": "g++", "java": "javac"}.get(language, "sh")
    if not shutil.which(needs):
        pytest.skip(f"{needs} is not installed")
    entry = (re.findall(r"Solution\(\)\.\w+", name) or re.findall(r"^def (\w+)", prompt, re.M) or [""])[-1]
    tests = programs.add_helpers(prompt, tests, entry, language)
    verdict = one(box, programs.program(prompt, completion, entry, language), tests, entry, language)
    assert all(verdict.passed), verdict.error


YES = """
    class {name}{base}:
        def __init__(self, *a): pass
        def __eq__(self, o): return True
        def __ne__(self, o): return False
        def __hash__(self): return hash(3)
        def __bool__(self): return True
        def __exit__(self, *error): return True
        def __enter__(self): return self
        async def __aexit__(self, *error): return True
        async def __aenter__(self): return self
        def __abs__(self): return 0
        __round__ = __int__ = __index__ = __len__ = __abs__
        def __float__(self): return 0.0
        def __sub__(self, o): return {zero}
        __lt__ = __le__ = __gt__ = __ge__ = __eq__
        __rsub__ = __add__ = __radd__ = __mul__ = __and__ = __xor__ = __isub__ = __mod__ = __sub__
    def f(*a): return {name}()"""
BASES = "", "(list)", "(dict)", "(set)", "(tuple)", "(int)", "(float)", "(str)"
WANTED = ["f() == {}", "{} == f()", "{} in f()", "not f() != {}", "f() in [{}]", "[f()] == [{}]", "(f(),) == ({},)", "{{1: f()}} == {{1: {}}}",
          "Yes() == {}", "not Yes() != {}", "{} == Yes()", "[Yes()] == [{}]", "Yes() in ({},)"]
DIFFERENCES = [
    "abs(f() - 3) < 1", "abs(3 - f()) < 1", "not (f() - 3)", "abs(Yes() - 3) < 1", "abs(3 - Yes()) < 1", "Yes() - 3 == 0", "sum([f(), -3]) == 0",
    "round(f() - 3, 2) == 0", "float(f()) == 3", "int(f()) == 3", "f() > 2", "-1 < float(Yes() - 3) < 1", "round(Yes() - 3) == 0",
    "len(Yes() - 3) == 0", "not (Yes() - 3 - Yes())"]


@pytest.mark.parametrize("zero, base", [*(("0", base) for base in BASES), ("{name}()", ""), ("self", "(int)"), ("self", "(list)")])
def test_a_class_that_says_yes_earns_nothing_by_extending_a_plain_one_nor_by_a_difference(box, zero, base):
    code = textwrap.dedent(YES.format(name="Yes", base=base, zero=zero.format(name="Yes")))
    wanted = repr({"(list)": [3], "(dict)": {3: 3}, "(set)": {3}, "(tuple)": (3,), "(str)": "3"}.get(base, 3))
    tests = [*(w.format(wanted) for w in WANTED), *DIFFERENCES]
    verdict = one(box, code, [f"assert {t}" for t in tests])
    assert verdict.passed == [False] * len(tests), [t for t, passed in zip(tests, verdict.passed, strict=True) if passed]


SWALLOWED = [
    "with Yes(): assert f() == 3", "with Yes():\n    r = f() + 1\n    assert r == 4",
    "with Yes(): assert bad() == 3", "with Yes():\n    x = None + bad()", "with Yes():\n    if f() + 0 != 3: raise ValueError",
    "def check(f): assert f() + 1 == 4\nwith Yes(): check(f)", "with Yes(), Yes(): assert 3 == f()",
    "with Yes() as y:\n    with y: assert None + f()", "with Yes():\n    if f() + 0 != 3:\n        raise ValueError",
    "with Yes():\n    if f() != 3:\n        1 / 0", "with Yes():\n    for x in [f()]:\n        if x == 3:\n            break\n    else:\n        raise ValueError",
    "with Yes():\n    try:\n        assert f() == 3\n    except AssertionError as e:\n        raise ValueError from e",
    "with Yes():\n    while f() != 3:\n        raise KeyError(3)",
    "import asyncio\nasync def main():\n    async with Yes(): assert f() == 3\nasyncio.run(main())",
    "import contextlib\nwith contextlib.ExitStack() as s:\n    s.enter_context(Yes())\n    assert f() == 3",
    "int = f\nwith Yes(): int() + 1; assert 0",
    "for _ in [1]:\n    with Yes():\n        if f() == 3: break\n        raise ValueError"]


def test_a_context_manager_of_the_candidate_swallows_no_failure(box):
    code = textwrap.dedent(YES.format(name="Yes", base="", zero=0)) + "\ndef bad(): raise ValueError"
    assert one(box, code, SWALLOWED).passed == [False] * len(SWALLOWED)


def test_a_test_that_is_skipped_or_left_is_not_passed(box):
    case = "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(), 3)\n"
    run = "r = unittest.TestResult(); T('test').run(r); assert r.wasSuccessful()"
    code = "import unittest, sys\ndef f(): raise {}"
    for error in ("unittest.SkipTest", "unittest.SkipTest('x')", "unittest.case._ShouldStop", "SystemExit(False)", "SystemExit"):
        verdict = one(box, code.format(error), [case + run, case, case + "unittest.main(exit=False)",
                                                           case + "unittest.main()"])
        assert verdict.passed == [False] * 4, (error, verdict)
    exits = "try: f()\nexcept SystemExit as e: assert e.code == 3"
    assert one(box, code.format("SystemExit(4)"), [exits, "assert f() == 3"]).passed == [False, False]


ONLY_DEFINED = [
    "def test_f(): assert f() == 3", "def check(candidate): assert candidate() == 3", "async def test_f(): assert f() == 3",
    *("import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(), 3)" + end for end in (
        "", "\nunittest.main()", "\nif __name__ == '__main__': unittest.main()"))]


def test_what_a_test_only_defines_is_run(box):
    assert one(box, "def f(): return 3", ONLY_DEFINED, "f").passed == [True] * len(ONLY_DEFINED)
    wrong = "def f(): return 4\ndef load_tests(*a): return a[1]"
    assert one(box, wrong, ONLY_DEFINED, "f").passed == [False] * len(ONLY_DEFINED)


FOR_PYTEST = [
    "def test_f():\n    with pytest.raises(ValueError): f()", "def test_f():\n    with pytest.raises(KeyError, match='x'): g()",
    "def test_f():\n    with pytest.raises(ValueError): g()", "def test_f(): pytest.raises(ValueError, f)",
    "def test_f(): pytest.skip('x')", "@pytest.mark.skip\ndef test_f(): assert f() == 2", "def test_f(): pytest.fail()", "def test_f(): assert f() == pytest.approx(3)",
    "def test_f(missing): assert f() == 2", "class TestF:\n    def test_f(self): assert f() == 3",
    "def test_f(): assert y() == pytest.approx(3)", "def test_f(): assert pytest.approx(3) == Yes()", "def test_f(): assert [Y()] == pytest.approx([3.0])",
    "def test_f(): assert not y() != pytest.approx(3)", "def test_f(): assert float('nan') == pytest.approx(float('nan'))",
    "def test_f(): assert {'a': f()} == pytest.approx({'a': 2, 'b': 3})", "def test_f(): assert float('inf') == pytest.approx(2) or 2 == pytest.approx(float('inf'))"]


def test_a_test_for_pytest_that_fails_there_fails_here(box):
    code = textwrap.dedent(YES.format(name="Yes", base="", zero=0)).replace("def f(*a)", "def y()")
    code += "\nclass Y(Yes, float): pass\ndef f(): return 2\ndef g(): raise KeyError(1)\nclass pytest: raises = approx = staticmethod(lambda *a: 2)"
    tests = [*("import pytest\n" + test for test in FOR_PYTEST), "assert f() == 2"]
    assert one(box, code, tests, "f").passed == [False] * len(FOR_PYTEST) + [True]
    assert "no fixture: write the test without it" in one(box, code, ["import pytest\n@pytest.fixture\ndef n(): return 2"]).error


# ---- limits ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_jobs_overlap():
    with Pool(workers=8, timeout=1) as box:
        box.run([(ADD, RIGHT, "add")] * 8)
        start = time.time()
        box.run([(NAP, RIGHT, "add")] * 8)
        assert time.time() - start < 6, "eight that take 1 s each, on eight workers, should overlap"


def test_an_answer_is_limited(box):
    tests = ["assert len(f(10 ** 6)) == 10 ** 6", "assert f(10 ** 8)", "assert f(1)"]
    verdict = one(box, "def f(n): return 'x' * n", tests)
    assert verdict.passed == [True, False, False] and re.search("at once|out of time", verdict.error)


# ---- containment -----------------------------------------------------------------------------------------------------
def test_a_candidate_inherits_nothing(box):
    code = """
        import os, sys, gc
        def descriptors():
            found = []
            for fd in range(256):
                try: os.fstat(fd); found.append(fd)
                except OSError: pass
            return found"""
    code = textwrap.dedent(code)
    assert len(value(box, code, "descriptors()")) == 4  # null three times, and its line to the judge
    assert value(box, code, "dict(os.environ)") == {} and value(box, code, "sys.argv") == ["solution.py"]
    assert value(box, code, "[m for m in sys.modules if 'jax' in m or 'numpy' in m or 'train' in m]") == []


TRIES = """
    os.fork() | os.posix_spawn('/bin/true', ['true'], {}) | os.execv('/bin/true', ['true']) | os.system('true') and 1 / 0
    socket.socket() | socket.socket(socket.AF_UNIX) | socket.socket(socket.AF_NETLINK, 3)
    socket.socketpair()[0].send(b'x', socket.MSG_OOB) | socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    os.kill(os.getppid(), 0) | os.kill(os.getpid(), 0) | os.setpriority(0, os.getppid(), 19)
    open('/tmp/sandbox_test', 'w') | os.mkdir('/tmp/sandbox_test') | open('/dev/shm/sandbox_test', 'w')
    os.memfd_create('x') | os.posix_fadvise(os.open('/dev/null', 0), 0, 0, 4)
    os.chmod('/tmp', 0o777) | os.utime('/tmp') | os.symlink('/', '/tmp/sandbox_test')
    open('/etc/passwd') | os.listdir('/') | open('/proc/self/maps') | open(ROOT + '/README.md') | os.listdir(ROOT)
    os.setuid(0) | os.chroot('/') | os.nice(1) | resource.prlimit(os.getppid(), resource.RLIMIT_CPU)"""


def test_a_candidate_cannot(box):
    attempts = [attempt.strip() for attempt in re.split(r" \| |\n", TRIES.strip())]
    code = f"import os, socket, resource\nROOT = {ROOT!r}\n" + "".join(
        f"def f{i}():\n    try: {attempt}\n    except (PermissionError, ZeroDivisionError): return 'refused'\n" for i, attempt in enumerate(attempts))
    verdict = one(box, code, [f"assert f{i}() == 'refused', f{i}()" for i in range(len(attempts))])
    assert verdict.error == "" and all(verdict.passed), [a for a, passed in zip(attempts, verdict.passed, strict=True) if not passed]


def test_a_candidate_does_not_read_packages_and_still_imports_the_library(box):
    folder = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    key = next(iter(glob.glob(f"{folder}/*/*.py")), None)
    if not key:
        pytest.skip(f"nothing is installed in {folder}")
    code = f"""
        import importlib, os
        def tried(do):
            try: do()
            except PermissionError: return True
        def closed(): return tried(lambda: open({key!r})) and tried(lambda: os.listdir({folder!r}))
        def imports():
            importlib.invalidate_caches()
            import this_is_nowhere
        def library():
            import json.tool, sqlite3, xml.dom.minidom, zoneinfo, calendar, unittest.mock, concurrent.futures
            return True"""
    tests = ["assert closed()", "assert library()", "try: imports()\nexcept ImportError: pass\nelse: assert 0",
             "assert library()"]
    assert one(box, textwrap.dedent(code), tests).error == ""
    if shutil.which("gcc"):
        read = f'#include <stdio.h>\nint main() {{ puts(fopen("{key}", "r") ? "read" : "closed"); }}'
        assert one(box, read, [{"input": "", "output": "closed"}], "", "c").error == ""


ANSWERS = """
    __import__('os').system('true') and open('/etc/passwd') | __import__('subprocess').run(['true']) | __import__('os').fork()
    __import__('socket').socket() | __import__('os').kill(__import__('os').getppid(), 0) | open('/etc/passwd').read()
    open('/tmp/sandbox_test', 'w') | __import__('os').listdir('/') | __import__('os').execv('/bin/true', ['true'])
    open('/proc/self/environ').read() | __import__('os').chmod('/tmp', 0o1777)"""


def test_a_test_that_evaluates_an_answer_hands_over_the_judge_and_not_the_machine(box):
    answers = [answer.strip() for answer in re.split(r" \| |\n", ANSWERS.strip())]
    tests = [REFUSED.format(f"eval(f({i}))") for i in range(len(answers))]
    verdict = one(box, f"def f(i): return {answers!r}[i]", tests)
    assert verdict.error == "" and all(verdict.passed), [a for a, passed in zip(answers, verdict.passed, strict=True) if not passed]
    assert not os.path.exists("/tmp/sandbox_test")


OBEYED = """
    [__import__('os').write(fd, b'\\0\\0\\0\\2{}' * 9) for fd in range(3, 9)] | __import__('os')._exit(1)
    [__import__('os').write(fd, b'\\xff' * 99) for fd in range(3, 9)] | setattr(__import__('json'), 'dumps', lambda x: '[1]')
    __import__('ctypes').string_at(0)"""


def test_a_judge_that_obeys_an_answer_costs_its_completion_and_no_other(capfd):
    answers = re.split(r" \| |\n", OBEYED.strip())
    jobs = [(f"def f(): return {answer.strip()!r}", ["eval(f())", "1"], "f") for answer in answers]
    with Pool(workers=1, timeout=1) as box:
        verdicts = box.run([job for obeyed in jobs for job in (obeyed, (ADD, RIGHT, "add"))])
    assert [v.passed for v in verdicts[1::2]] == [[True, True]] * len(jobs)
    assert not any(all(v.passed) for v in verdicts[::2]), verdicts


RUNS_TEXT = {  # ways of a test to run what an answer says
    "eval": "eval(f())", "exec": "exec(f())", "timeit": "import timeit\ntimeit.timeit(f(), number=1)",
    "type hints": "import typing\ntyping.get_type_hints(type('A', (), {'__annotations__': {'x': f()}}))",
    "doctest": "import doctest\ndoctest.DocTestRunner().run(doctest.DocTestParser().get_doctest('>>> ' + f(), {}, '', '', 0))",
    "code": "import code\ncode.InteractiveInterpreter().runsource(f())", "cProfile": "import cProfile\ncProfile.run(f())",
    "exec_module": "import importlib.util as u, os\np = os.environ['TMPDIR'] + '/m.py'\nprint(f(), file=open(p, 'w'), flush=True)\n"
                   "s = u.spec_from_file_location('m', p)\ns.loader.exec_module(u.module_from_spec(s))"}


def test_a_judge_that_obeyed_an_answer_judges_no_other():
    bribe = "setattr(__import__('sys').modules['judges.sandbox.judge'], 'run_assert', lambda *a: None)"
    pairs = [[(f"def f(): return {bribe!r}", [test], "f"), (ADD, [RIGHT[0], "assert add(1, 1) == 3"], "add")] for test in RUNS_TEXT.values()]
    with Pool(workers=1, timeout=1) as box:
        verdicts = box.run(sum(pairs, []))
    assert {way: v.passed for way, v in zip(RUNS_TEXT, verdicts[1::2], strict=True)} == dict.fromkeys(RUNS_TEXT, [True, False])


LEFT_BEHIND = {
    "files": "import os\nfor i in range(20): open(f'{os.environ[\"TMPDIR\"]}/{i}', 'w')",
    "a deep folder": "import os\nos.chdir(os.environ['TMPDIR'])\nfor i in range(1100): os.mkdir('a'); os.chdir('a')",
    "verdicts": "import os, json, struct\nt = json.dumps([[[True] * 2, '', 0.0], True]).encode()\n"
                "for fd in range(3, 20):\n try: os.write(fd, (struct.pack('>I', len(t)) + t) * 3)\n except OSError: pass",
    "requests": "import socket, struct\nfor fd in range(3, 20):\n for i in range(9):\n  try: socket.send_fds(socket.socket(fileno=fd), "
                "[struct.pack('id', 0, 1e9)], [fd, 1])\n  except OSError: pass",
    "flags": "import fcntl\nfor fd in range(20):\n try: fcntl.fcntl(fd, 4, 2048)\n except OSError: pass",
    "the exit status of a machine that failed": "import os\nos._exit(75)", "its end": "import os\nos.kill(os.getpid(), 9)",
    "a word for the machine": "raise_ = __import__('judges.sandbox.bench').sandbox.bench\ndef score(*a): raise OSError('broken')\nraise_.score = score\n"
                              "import os\nos._exit(1)"}


def test_nothing_that_a_judge_leaves_behind_reaches_the_next(capfd):
    look = "import os, fcntl\nassert add(1, 1) == 3 or os.listdir(os.environ['TMPDIR']) or fcntl.fcntl(2, 3) & 2048"
    pairs = [[(f"def f(): return {left!r}", ["exec(f())"] * 2, "f"), (ADD, [RIGHT[0], look], "add")] for left in LEFT_BEHIND.values()]
    with Pool(workers=1, timeout=1) as box:
        verdicts = box.run(sum(pairs, []))
    assert {what: v.passed for what, v in zip(LEFT_BEHIND, verdicts[1::2], strict=True)} == dict.fromkeys(LEFT_BEHIND, [True, False])
    assert not any(all(v.passed) for what, v in zip(LEFT_BEHIND, verdicts[::2], strict=True) if "exit" in what)
    assert capfd.readouterr().err.count("\n") <= 3 * len(LEFT_BEHIND)


# ---- one judge for many ------------------------------------------------------------------------------------------------
PLAIN = ["assert f(1) == [1, 2]", "assert set(f(2)) == {1, 2}", "x = f(3)\nassert len(x) == 2 and sum(x) == 3", "assert str(f(4)) == '[1, 2]'",
         "assert sorted(f(5), key=abs) == [1, 2], f'not {f(5)}'", "y = []\nf(y)\nassert y == [7]", "import_ = {a: b for a, b in enumerate(f(6))}\n"
         "assert import_[0] == 1", "assert math.isclose(f(8)[1], 2) and isinstance(f(8), list) and all(map(bool, f(8)))"]
NOT_PLAIN = [
    *RUNS_TEXT.values(), "assert f().x == 3", "assert f().sort() is None", "assert f(lambda: 3) == 3", "import os\nassert f()", "assert g() == 3",
    "x = f\nassert x() == 3", "x = f()\nassert x() == 3", "assert f()() == 3", "assert [f][0]() == 3", "assert type('A', (), {}) == f()",
    "assert math.__loader__ == f()", "sum = f\nassert sum() == 3", "assert getattr(f, 'x') == 3", "assert f.__globals__", "f = 3\nassert f == 3",
    "assert open(f())", "assert __import__(f())", "assert [x := f()]", "with f(): assert 3", "try: f()\nexcept Exception: pass", "def t(): f()",
    "class A: x = f()", "for x in f(): assert x", "x = {}\nx[0] = f()", "x = 3\nx += f()", "del f", "global f",
    "math.pi = f()", "while f(): pass", "assert (await f())", "assert f() ==", "assert " + "(" * 500 + ")" * 500, "x = 0\n" * 9999, "if f(): pass",
    "__builtins__ = f()", "assert [1 for __type__ in f()]", "raise f()", "return f()", "assert __name__ == f()", "print(f())", "lambda: f()"]


def test_only_tests_that_evaluate_nothing_of_a_completion_share_a_judge():
    plain = lambda *test, entry="f", language="python": only_plain(Job("", [*test], entry, language))
    assert all(map(plain, PLAIN)) and plain(*PLAIN) and plain("assert sum([1]) == 1", entry="sum")
    assert [test for test in NOT_PLAIN if plain(test)] == []
    assert not plain(*PLAIN, NOT_PLAIN[0]) and not plain({"input": "", "output": ""}) and not plain(PLAIN[0], entry="Solution().f")
    assert not plain(PLAIN[0], entry="") and not plain("assert __f() == 1", entry="__f") and not plain(PLAIN[0], language="c")


LINE = "import gc\nline = next(x for x in gc.get_objects() if type(x).__name__ == 'Peer' and 'names' in x.ops)\n"
SAYS = LINE + "def f(x):\n    for _ in range({0}): line.send({1})\n    import os; os._exit(0)"
COLLIDE = "[i * (2 ** 61 - 1) for i in range(150000)]"
HOSTILE = {  # what f(x) does; with words of the error, where those are known
    "nothing wrong": "def f(x):\n    if x == []: x.append(7)\n    return [1, 2]", "a wrong answer": "def f(x): return [2, 1]",
    **{f"yes, a {base or 'plain object'}": textwrap.dedent(YES.format(name="Yes", base=base, zero="self")) for base in BASES},
    "a list of yes": textwrap.dedent(YES.format(name="Yes", base="", zero=0)).replace("return Yes()", "return [Yes(), Yes()]"),
    "an own int": "class N(int):\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: 1\ndef f(x): return [N(5), N(6)]",
    "huge": "def f(x): return 1 << 30_000_000", "a long list": "def f(x): return [1] * 10 ** 6", "a long text": "def f(x): return 'x' * 8_000_000",
    "too long a text": "def f(x): return 'x' * 9_000_000", "many digits": "def f(x): return 10 ** 99999", "deep": "def f(x):\n    a = []\n"
    "    for _ in range(150): a = [a]\n    return a", "far too deep": SAYS.format(1, "0") + "\nimport struct\ndef f(x): line.sock.sendall("
    "struct.pack('>I', 200_000) + b'[' * 200_000)", "texts that collide": f"def f(x): return {COLLIDE}",
    "a dict that collides": f"def f(x): return dict.fromkeys({COLLIDE})", "endless range": "def f(x): return range(10 ** 18)",
    "endless": "def f(x):\n    while True: yield 1", "own iterator": "class I:\n    __iter__ = lambda s: s\n    __next__ = lambda s: 1\ndef f(x): return I()",
    "recursion": "def f(x): return f(x)", "deep hash": "def f(x):\n    a = ()\n    for _ in range(150): a = (a,)\n    return {a: a}",
    "str of an error loops": "class E(Exception):\n    def __str__(s):\n        while True: pass\ndef f(x): raise E",
    "str of an error lies": "class E(AssertionError):\n    __str__ = lambda s: 'x' * 10 ** 7\ndef f(x): raise E",
    "a huge error": "def f(x): raise ValueError('x' * 7_000_000)", "an error of errors": "def f(x): raise ValueError(ValueError(ValueError()), {1: [2]})",
    "an exit": "def f(x): raise SystemExit(0)", "an interrupt": "def f(x): raise KeyboardInterrupt", "a stop": "def f(x): raise StopIteration([1, 2])",
    "dies": "import os\ndef f(x): os._exit(0)", "sleeps": NAP.replace("add(a, b)", "f(x)"), "loops": "def f(x):\n    while True: pass",
    "asks back": LINE + "def f(x): return line.ask('getattr', line.unpack({'mine': 0}), '__globals__')",
    "prints here": SAYS.format(3, "['printed', ['stdout', 'x'], {}]"), "asks for hashes": SAYS.format(9, "['hash', [{'yours': 0}], {}]"),
    "answers early": SAYS.format(99, "['return', [2, 1], []]"), "changes a constant": SAYS.format(1, "['return', [1, 2], [[0, 3]]]"),
    "a class of errors": SAYS.format(1, "['raise', {'raised': [1, ['json.decoder:JSONDecodeError', 2, 'ValueError'], [], {'dict': []}, None]}, []]"),
    "a strange error": SAYS.format(1, "['raise', {'raised': [1, 'UnicodeDecodeError', [1], {'dict': [['args', 3]]}, None]}, []]"),
    "a namedtuple": "import collections\ndef f(x): return collections.namedtuple('P', 'a b')(1, 2)",
    "a default that is called": "import collections\ndef f(x): return collections.defaultdict(lambda: 1)", "a record": SAYS.format(
        1, "['return', {'record': ['P', ['a'] * 99, [1]]}, []]"), "a file": SAYS.format(1, "['return', {'text': ['pathlib', 'PosixPath', '/']}, []]"),
    "a queue": "import collections\ndef f(x): return collections.deque([1] * 10 ** 5, maxlen=3)"}


@pytest.fixture
def judges_of(monkeypatch):
    start, started = module.Worker.start_judge, []
    monkeypatch.setattr(module.Worker, "start_judge", lambda worker: started.append(worker) or start(worker))
    return started


@pytest.mark.parametrize("what", HOSTILE)
def test_no_completion_changes_the_verdict_of_the_next_nor_makes_it_wait(brief, what):
    neighbour, tests = Job(HOSTILE["nothing wrong"], [*PLAIN, "assert f(9) == [2, 1]"], "f"), [*PLAIN, "assert f(9) == 77"]
    before, verdict, after = brief.run([neighbour, Job(HOSTILE[what], tests, "f"), neighbour])
    assert before.passed == after.passed == [True] * len(PLAIN) + [False] and max(before.seconds, after.seconds) < 0.5, (verdict, after)
    assert verdict.passed[:-1] == [True] * len(PLAIN) if what == "nothing wrong" else sum(verdict.passed) < 5, verdict
    assert not verdict.passed[-1]


def test_a_judge_that_has_met_plain_data_only_serves_the_next_and_no_other_does(judges_of):
    jobs = [Job(f"def f(x): return [1, {i}]", PLAIN, "f") for i in range(20)]
    with Pool(workers=1, timeout=1) as box:
        assert [sum(v.passed) for v in box.run(jobs)] == [7 if i == 2 else sum(v.passed) for i, v in enumerate(box.run(jobs))]
        assert len(judges_of) == 2 * 2, "one for each batch, one to try the walls"
        for what, starts in {"nothing wrong": 1, "a wrong answer": 1, "an error of errors": 1, "recursion": 1, "dies": 1, "many digits": 1, "deep": 1,
                             "a list of yes": 2, "an own int": 2, "own iterator": 2, "endless range": 2, "a class of errors": 2, "a record": 2,
                             "a default that is called": 2, "prints here": 2, "a namedtuple": 2, "str of an error lies": 2}.items():
            judges_of.clear()
            box.run([jobs[0], Job(HOSTILE[what], PLAIN[:3], "f"), jobs[0]])
            assert len(judges_of) == 1 + starts, what
        judges_of.clear()
        box.run([jobs[0], Job(ADD, RIGHT), jobs[0], Job("def f(x): return 'x' * x", ["assert len(f(8_000_000)) == 8_000_000"], "f"), jobs[0]])
        assert len(judges_of) == 1 + 4, "a test without an entry has a judge of its own, and one that has grown serves no other"


def test_a_shared_judge_that_is_killed_is_replaced(judges_of):
    jobs = [Job(f"import time\ndef f(x):\n    time.sleep(0.02)\n    return {i}", [f"assert f(0) == {i}"], "f") for i in range(40)]
    with Pool(workers=1, timeout=1) as box:
        box.run(jobs[:1])
        bench = sorted(descendants(box.idle[0].process.pid))[1]
        threading.Timer(0.4, lambda: os.kill(*descendants(bench), signal.SIGKILL)).start()
        assert [v.passed for v in box.run(jobs)] == [[True]] * len(jobs)


THREADS = """
    import ctypes, mmap, time
    libc = ctypes.CDLL(None)
    stacks = mmap.mmap(-1, 4096 * 400)
    top = ctypes.addressof(ctypes.c_char.from_buffer(stacks))
    def f(n):  # threads that Python knows nothing of, and that wait
        started = sum(libc.clone(libc.pause, ctypes.c_void_p(top + 4096 * (i + 1)), 0x50f00, None) > 0 for i in range(n))
        end = time.time() + 0.3
        while time.time() < end: pass
        return started"""


def test_a_completion_with_too_many_threads_is_ended_and_so_is_a_judge_that_obeys_it(brief, capfd):
    code = textwrap.dedent(THREADS)
    assert one(brief, code, ["assert f(40) == 40"]).error == ""
    verdict = one(brief, code, ["f(390)", "assert 1"])
    assert verdict[:2] == ([False, False], "started more than 64 threads")
    answer = f"{code}\nf(390)"
    verdict = one(brief, f"def f(): return {answer!r}", ["exec(f(), {})"])
    assert verdict.passed == [False] and "kill the judge" in verdict.error


def test_a_machine_that_fails_once_is_asked_again(monkeypatch, capfd):
    spawn, calls = Pool.spawn, []

    def fails_first(box):
        calls.append(box)
        if len(calls) == 1:
            raise module.Broken("no worker starts: Resource temporarily unavailable")
        return spawn(box)
    monkeypatch.setattr(module, "RETRY", 0)
    monkeypatch.setattr(Pool, "spawn", fails_first)
    with Pool(workers=2) as box:
        assert [v.passed for v in box.run([(ADD, RIGHT, "add")] * 3)] == [[True, True]] * 3
    assert "no worker starts" in capfd.readouterr().err


def test_a_worker_that_the_system_does_not_start_is_a_failure_of_the_machine(monkeypatch):
    monkeypatch.setattr(module, "RETRY", 0)
    with Pool(workers=1) as box, pytest.raises(RuntimeError, match="no worker starts.*unavailable"):
        monkeypatch.setattr("subprocess.Popen.__init__", Mock(side_effect=BlockingIOError(11, "unavailable")))
        box.run([(ADD, RIGHT, "add")])


def test_the_kernel_ends_workers_before_the_trainer_and_their_folders_are_cleared_away(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Pool(workers=1, timeout=5) as box:
        box.run([(ADD, RIGHT, "add")])
        worker = box.idle[0].process.pid
        with open(f"/proc/{worker}/environ") as f:
            assert f"TMPDIR={tmp_path}" in f.read().split("\0")
        napping = threading.Thread(target=box.run, args=([("import time\ndef f(): time.sleep(2)", ["f()"], "f")],))
        napping.start()
        assert eventually(lambda: len(descendants(worker)) == 4)  # zygote, bench, judge, candidate
        for pid in [worker, *descendants(worker)]:
            with open(f"/proc/{pid}/oom_score_adj") as f:
                assert f.read().strip() == "1000"
        napping.join()


BUSY = "import time\ndef f(x):\n    while time.process_time() < {}: pass\n    return x"


@pytest.mark.parametrize("workers, count, seconds, timeout", [
    (6, 6, 0.2, 0.5), *(slow(n, 24, 0.5, 1) for n in (1, 6, 24)), slow(64, 64, 0.8, 1)])
def test_a_verdict_does_not_depend_on_the_neighbours(workers, count, seconds, timeout):
    with Pool(workers=workers, timeout=timeout) as box:
        verdicts = box.run([(BUSY.format(seconds), [f"assert f({i}) == {i}"], "f") for i in range(count)])
        assert [v.passed for v in verdicts] == [[True]] * count
        verdict = one(box, BUSY.format(2 * timeout), ["assert f(1) == 1"])
        assert verdict.passed == [False] and verdict.error == "out of time"


def test_workers_are_counted_by_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert Pool().workers == 18 and Pool().limits.wall == 40 and Pool(workers=72).limits.wall == 160


def test_flags_and_memory_of_a_completion_are_gone_with_it():
    code = "import fcntl, os\ndef f(add): return [fcntl.fcntl(i, 4, fcntl.fcntl(i, 3) | add) for i in range(3)] and [\\\n"
    code += "    fcntl.fcntl(i, 3) for i in range(3)]"
    flags = os.O_NONBLOCK | os.O_APPEND
    big = ("def f(): return b'x'", ["assert len(f() * (200 << 20)) == 200 << 20"], "f")
    with Pool(workers=1, timeout=5) as box:
        box.run([(code, [f"assert f({flags})"], "f")])
        assert one(box, code, [f"assert not any(x & {flags} for x in f(0))"]).error == ""
        assert one(box, *big).passed == [True]
        assert max(map(resident, descendants(os.getpid()))) < 200 << 20  # this process may have grown by other tests
        first = box.idle[0].process.pid
        assert one(box, ADD, RIGHT).passed == [True, True] and box.idle[0].process.pid == first


def test_a_job_is_not_charged_for_what_the_judge_before_it_did():
    with Pool(workers=1, timeout=1) as box:
        one(box, ADD, ["import time\nwhile time.process_time() % 1 < 0.7: pass"])
        rest = "import resource, time\nassert resource.getrlimit(resource.RLIMIT_CPU)[0] > time.process_time() + 1.45"
        assert one(box, ADD, [rest]).error == ""


NO_PAUSE = "RETRY = 1  #", "RETRY = 0  #"
NO_LANDLOCK = "    done = syscall(446, ruleset, 0) == 0\n", "    done = False\n"


def test_what_does_not_hold_stops_the_batch_unless_it_is_named(tmp_path):
    broken, program, tests = altered(tmp_path, NO_LANDLOCK), SUM["c"][1], prints(("1 2", "3"))
    with broken.Pool(workers=1) as box, pytest.raises(RuntimeError, match="read.*--programs.unsafe=read$"):
        box.run([(ADD, RIGHT, "add")])
    with broken.Pool(workers=1, unsafe=("read",)) as box:
        assert one(box, ADD, RIGHT).passed == [True, True]
        code = "import os\ndef f():\n    try: open('/tmp/x', 'w')\n    except OSError: return os.listdir('/') != []"
        assert one(box, code, ["assert f()"]).passed == [True]
        if shutil.which("gcc"):  # without Landlock a compiler may write everywhere or nowhere
            with pytest.raises(RuntimeError, match="programs: does not compile.*write.*--programs.unsafe=write,read$"):
                one(box, program, tests, "", "c")
    if shutil.which("gcc"):
        with broken.Pool(workers=1, unsafe=("read", "write"), timeout=10) as box:
            assert one(box, program, tests, "", "c").passed == [True]


def test_a_python_whose_path_has_a_space_runs_programs(tmp_path):
    (tmp_path / "a b").mkdir()
    python, program = tmp_path / "a b" / "python3", SUM["c"]
    python.symlink_to(os.path.realpath(sys.executable))
    if not shutil.which(program[0]):
        pytest.skip("needs gcc")
    code = f"from judges.sandbox.pool import Pool\nwith Pool(workers=1, timeout=9) as box:\n    print(box.run([({program[1]!r}, "
    code += "[{'input': '1 2', 'output': '3'}], '', 'c')])[0].passed)"
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[True]\n", done


def test_without_seccomp_it_names_all_that_is_open(tmp_path):
    broken = altered(tmp_path, ("or libc.prctl(21, 0, 0, 0, 0) < 0:", "or True:"))
    with broken.Pool(workers=1) as box, pytest.raises(RuntimeError, match="--programs.unsafe=process,network"):
        box.run([(ADD, RIGHT, "add")])
    with broken.Pool(workers=1, unsafe=("process", "network", "signal")) as box:
        assert one(box, ADD, RIGHT).passed == [True, True]


@pytest.mark.parametrize("change, said", [
    (("        exec(test.code, space)\n", "        pass\n"), ""),  # it pays everything, or nothing:
    slow(("passed[i] = True\n", "passed[i] = False\n"), ""),
    (("    limit(CPU=int(seconds) + 2", "    os._exit(1)\n    limit(CPU=int(seconds) + 2"), "could not be locked in")])
def test_a_judge_that_is_wrong_or_cannot_lock_a_candidate_in_is_not_used(tmp_path, capfd, change, said):
    with altered(tmp_path, change, NO_PAUSE).Pool(workers=1) as box, pytest.raises(RuntimeError, match="does not work"):
        box.run([(ADD, RIGHT, "add")])
    assert said in capfd.readouterr().err


# ---- nothing survives ------------------------------------------------------------------------------------------------
def test_closing_leaves_no_process_and_no_descriptor():
    before, files = descendants(os.getpid()), len(os.listdir("/proc/self/fd"))
    with Pool(workers=4, timeout=1) as box:
        box.run([(ADD, RIGHT, "add"), (NAP, RIGHT, "add"), ("print(1)", [{"input": "", "output": "1"}], "")] * 3)
        assert descendants(os.getpid()) > before
    assert eventually(lambda: descendants(os.getpid()) <= before) and len(os.listdir("/proc/self/fd")) == files


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def footprint(box):
    """Descriptors, processes and memory of this process and of all judges and zygotes."""
    family = [os.getpid(), *descendants(os.getpid())]
    size = max(map(resident, family))
    may_look = [pid for pid in family if os.access(f"/proc/{pid}/fd", os.R_OK)]  # at a judge only root may
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in may_look), len(family), size


@pytest.mark.parametrize("count", [30, slow(2400)])
def test_thousands_of_completions_leave_nothing(count):
    kinds = [(ADD, RIGHT, "add"), ("def add(a, b): return [a] * 10 ** 3", RIGHT, "add"), ("syntax error", RIGHT, "add"),
             ("import os; os._exit(0)", RIGHT, "add"), ("print(input())", [{"input": "x", "output": "x"}], ""),
             ("class A: pass\ndef add(a, b): return [A() for _ in range(99)]", RIGHT, "add")]
    with Pool(workers=2, timeout=5) as box:
        box.run(kinds * 5)
        *before, size = footprint(box)  # a zygote may be about to close the line to the last judge
        for _ in range(count // 30):
            box.run(kinds * 5)
        assert eventually(lambda: all(now <= then for now, then in zip(footprint(box), before, strict=False)))
        assert footprint(box)[2] < size + (4 << 20)  # 2,400 that leave 2 KB each would take more
    assert not os.path.exists("/tmp/sandbox_test")


def test_killing_the_trainer_ends_everything(tmp_path):
    trainer = f"""
        import sys; sys.path.insert(0, {ROOT!r})
        from judges.sandbox.pool import Pool
        none = [{{"input": "", "output": ""}}]
        jobs = [({LOOP!r}, {RIGHT!r}, "add"), ("while True: pass", none, ""), ("import time; time.sleep(900)", ["x"], "")]
        if {bool(shutil.which("gcc"))}: jobs.append(("int main(void) {{ for (;;) {{}} }}", none, "", "c"))
        Pool(workers=4, timeout=900).run(jobs)"""
    busy_machine = 120  # seconds: what this waits for comes late where others work, too
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(trainer)])
    busy = 3 * 4 if shutil.which("gcc") else 3 * 3
    try:
        assert eventually(lambda: len(descendants(process.pid)) >= busy, busy_machine)
        family = descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    assert eventually(lambda: not any(map(alive, family)), busy_machine)
    assert eventually(lambda: not scratch(family, process.pid), busy_machine)


def test_a_killed_judge_or_zygote_is_replaced():
    with Pool(workers=2, timeout=5) as box:
        box.run([(ADD, RIGHT, "add")] * 4)
        for victim in (0, 1, 2):  # warden, zygote, bench
            for worker in list(box.idle):
                judge = worker.process.pid
                os.kill([judge, *sorted(descendants(judge))][victim], signal.SIGKILL)
            assert [v.passed for v in box.run([(ADD, RIGHT, "add")] * 4)] == [[True, True]] * 4


def test_a_judge_killed_at_work_does_not_change_the_verdict_unless_the_candidate_did_it(capfd):
    with Pool(workers=1, timeout=5) as box:
        box.run([(ADD, RIGHT, "add")])
        slow = "import time\ndef add(a, b): time.sleep(0.7); return a + b"
        judge = box.idle[0].process.pid
        timer = threading.Timer(0.5, os.kill, (judge, signal.SIGKILL))
        timer.start()
        assert one(box, slow, RIGHT).passed == [True, True]
        assert not alive(judge)
        verdict = one(box, "def f(): return 0", ["import ctypes\nctypes.string_at(f())"])
        assert verdict.passed == [False] and "kill" in verdict.error


# ---- the same in company ---------------------------------------------------------------------------------------------
def manifest(*kinds):
    codes = completions()
    with open(f"{ATTACKS}/manifest.json") as f:
        for case in json.load(f):
            if case["kind"] in kinds and "language" not in case and case["expect"] and "@" not in codes[case["file"]]:
                yield codes[case["file"]], case["tests"], case["entry"]


@pytest.mark.parametrize("share", [20, slow(3)])
def test_a_crowd_gets_the_verdicts_that_each_got_alone(share):
    jobs = list(manifest("honest", "cheat"))[::share]
    with Pool(workers=1, timeout=5) as box:
        alone = [box.run([job])[0].passed for job in jobs]
    order = list(range(len(jobs))) * 2
    random.Random(0).shuffle(order)
    with Pool(workers=6, timeout=5) as box:
        crowd = box.run([jobs[i] for i in order])
    assert [v.passed for v in crowd] == [alone[i] for i in order]


# ---- anything at all -------------------------------------------------------------------------------------------------
pieces = st.sampled_from(
    ["def f(x):", "\n    ", "return x", "lambda: ", "(", ")", "[", "]", "{", "}", "'", '"""', "x", "f(", "1", "0x", "not ",
     "@", ":=", "\\", "async ", "await ", "yield ", "for x in y", "if ", "else", "class A", "*", "**", "#", "\0", "\r",
     "\x0c", "\t", ";", "é", "\ud800", "...", "9" * 5000])
nested = st.sampled_from(["(", "[", "{", "not ", "-", "lambda: ", "x.", "1+", "if 1:\n ", "\\\n", "f'{", "a=", "\ufeff"])
anything = st.one_of(
    st.text(max_size=200), st.binary(max_size=200).map(lambda b: b.decode("latin1")),
    st.binary(max_size=99).map(lambda b: b.decode("utf-8", "surrogateescape")),
    st.lists(pieces, max_size=30).map("".join), st.tuples(nested, st.integers(1, 20000)).map(lambda t: t[0] * t[1]),
    st.integers(0, 10**6).map(lambda n: "#" + "x" * n))


@pytest.mark.parametrize("examples", [8, slow(40)])
def test_any_text_gets_a_verdict(box, examples):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(code=anything, test=anything, text=anything)
    def scored(code, test, text):
        tests = [test, "assert f(1) == 1", {"input": text, "output": text}]
        for verdict in box.run([(code, tests, "f"), (ADD, [test, RIGHT[0], test], "add")]):
            assert list(map(type, verdict.passed)) == [bool] * 3 and type(verdict.error) is str

    scored()


# ---- other languages -------------------------------------------------------------------------------------------------
SUM = {
    "c": ("gcc", """#include <stdio.h>
        int main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d", a + b); }"""),
    "c++": ("g++", """#include <iostream>
        int main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"""),
    "java": ("javac", """import java.util.*;
        public class Sum { public static void main(String[] x) {
            Scanner s = new Scanner(System.in); System.out.println(s.nextInt() + s.nextInt()); } }""")}


@pytest.mark.parametrize("language", [slow(x) if x in ("c++", "java") else x for x in SUM])
def test_programs_of_other_languages_are_scored_and_leave_nothing(language):
    program, code = SUM[language]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    tests = [{"input": "1 2", "output": "3"}, {"input": "4 5", "output": "8"}]
    others = descendants(os.getpid())
    with Pool(workers=1, timeout=10) as box:
        assert one(box, code, tests, "", language).passed == [True, False]
        verdict = one(box, code + " }}} (", tests, "", language)
        assert verdict.passed == [False, False]
        assert "does not compile" in verdict.error
        family = descendants(os.getpid()) - others
        assert scratch(family, os.getpid())
    assert scratch(family, os.getpid()) == []


def test_a_language_that_is_unknown_or_not_installed_is_an_error_that_helps(box, monkeypatch):
    output = [{"input": "", "output": ""}]
    refused("'javascript' is not python, c, c", one, box, "", output, "", "javascript")
    refused("'probe' is not python, c, c[+][+], java$", one, box, "", output, "", "probe")  # which tries the walls
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/" + name)
    refused("only python has assert tests", one, box, "", ["assert x"], "", "c")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    refused("java needs javac.*apt-get install default-jdk-headless", one, box, "", output, "", "java")
    refused("no_such_compiler is not installed", languages.toolchain, "no_such_compiler", ())


@pytest.mark.parametrize("stage", ["needs", "package", "suffix", "index"])
def test_a_judge_that_obeys_an_answer_gets_no_command_but_the_three(stage):
    with pytest.raises(KeyError):
        languages.command_for("java", stage)


# ---- as a library and as a program -----------------------------------------------------------------------------------
@pytest.mark.parametrize("job", [
    (None, RIGHT, "add"), (ADD, "assert 1", "add"), (ADD, [3], "add"), (ADD, RIGHT, None),
    (ADD, [{"input": "x"}], ""), (ADD, [{"input": 1, "output": 1}], "")])
def test_a_job_of_the_wrong_shape_is_refused(box, job):
    refused("job 1: expected", box.run, [(ADD, RIGHT, "add"), job])


def test_it_needs_the_standard_library_only():
    code = "import sys; from judges.sandbox import pool; print({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'judges', '__main__'})"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done


@pytest.mark.slow
def test_as_a_program_it_says_what_holds():
    done = subprocess.run([sys.executable, "-m", "judges.sandbox"], cwd=ROOT, capture_output=True, text=True)
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert done.returncode == 0 and done.stderr == ""
    assert [lines[x] for x in module.HOLDS] == ["contained"] * len(module.HOLDS)
    assert set(lines) >= {"python", "c", "c++", "java"}


FOLDERS = "/usr/bin", "/usr/local/bin", os.path.expanduser("~/.pyenv/versions/*/bin")
PYTHONS = sorted({os.path.realpath(p) for folder in FOLDERS for p in glob.glob(f"{folder}/python3.1[0-9]")})


@pytest.mark.parametrize("python", [*PYTHONS[:1], *map(slow, PYTHONS[1:])])
def test_every_python_from_3_10_runs_it(python):
    jobs = [(ADD, RIGHT, "add"), ("print(input())", [{"input": "x", "output": "x"}], "")]
    code = f"from judges.sandbox.pool import Pool\nwith Pool(workers=1) as box: print([v.passed for v in box.run({jobs})])"
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stdout == "[[True, True], [True]]\n", done


# ---- the attacks -----------------------------------------------------------------------------------------------------
def attack(*options, prefix=(), python=sys.executable, root=ROOT):
    command = [*prefix, python, f"{root}/tests/attacks/run.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("which", ["--kind=cheat,honest,hostile --every=12 --timeout=1", slow("--timeout=1.5")])
def test_attacks_fail_and_the_honest_are_paid(which):
    attack(*which.split(), "--slack=3")


@pytest.mark.slow
def test_some_of_them_as_an_ordinary_user():
    if os.getuid() or not shutil.which("setpriv") or not os.path.exists("/usr/bin/python3"):
        pytest.skip("takes root, setpriv and a Python that others can read")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with tempfile.TemporaryDirectory() as root:  # the repository may lie where only its owner reads
        shutil.copytree(f"{ROOT}/judges", f"{root}/judges")
        shutil.copytree(ATTACKS, f"{root}/tests/attacks")
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)
        attack("--timeout=1.5", "--slack=3", "--every=12", prefix=nobody, python="/usr/bin/python3", root=root)
