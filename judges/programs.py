"""Rewards for code: which program a completion means, and whether it parses, passes its tests, runs fast, reads well.

Nothing runs in this process: Python is only parsed here. Programs run, and compilers check other languages, in the
sandbox, all of a batch in one call. rewards.py describes the type of the functions with columns
`prompts, completions, ...` and has all other rewards.
"""

import ast
import builtins
import collections
import dataclasses
import json
import re
import shutil
from collections.abc import Set
from typing import Any, NamedTuple

from tqdm import tqdm

import rewards
from judges import fences, formats
from judges.fences import DEFINITIONS, MAX_SOURCE, PARTS, parse
from judges.sandbox import pool
from judges.sandbox.jobs import Job, Verdict, problem
from judges.sandbox.languages import LANGUAGES, SYNTAX
from rewards import Scores
from system import sections


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    timeout: float = sections.key(1.0, "CPU seconds for the asserts of a program, and each input", sections.POSITIVE)
    workers: int | None = sections.key(None, "programs at a time; None: six per core, at most 64",
                                       sections.POSITIVE_INT)  # fmt: skip
    unsafe: tuple[str, ...] = sections.key((), "protections to do without on this machine, see docs/sandbox.md")

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of `pool.run`."""
        return {"timeout": self.timeout, "workers": self.workers, "unsafe": self.unsafe}


ALIASES = {
    **dict.fromkeys(("", "py", "pypy"), "python"),
    **dict.fromkeys(("cpp", "cxx", "g++", "gnu c++"), "c++"),
    **dict.fromkeys(("gcc", "gnu c"), "c"),
}
EMPTY = r"\[\]|\{\}|(?:\w+\.)?(?:(?:list|dict|set|deque|Counter|OrderedDict)\(\)|defaultdict\(\w*\))"
NOT_RUN = Verdict([])


class Program(NamedTuple):
    """A completion as a program."""

    code: str
    entry: str  # the function asked for, "" if unknown
    language: str


# ---- which program, does it parse ------------------------------------------------------------------------------------
def language_of(name: str | None) -> str:
    """Return our name of a language as people write it: "Python 3", "py" and None are "python", "C++17" is "c++"."""
    name = (name or "").strip().lower()
    if not re.match(r"py(thon)?[ -]?2", name):  # another language
        name = re.sub(r"[ -]?\d[\d.]*$", "", name)
    return ALIASES.get(name, name)


def runs(language: str | None) -> bool:
    """True if tests in this language, as people write it, can be run. In others these rewards have no opinion."""
    return language_of(language) in ("python", *LANGUAGES)


def check(rows: list[dict]) -> collections.Counter:
    """Check that the tests of rows can be run (ValueError if not, as without a compiler).

    -> {language, as written: number of rows} of the languages that are not run here."""
    other = collections.Counter(
        row["language"] for row in rows if "language" in row and not runs(row["language"])
    )
    for i, row in enumerate(rows):
        if row.get("tests") and row.get("language") not in other:
            if wrong := problem(Job("", row["tests"], "", language_of(row.get("language")))):
                raise ValueError(f"row {i}: {wrong}")
    return other


def definition(code: str, name: str, language: str = "python") -> re.Match | None:
    """Find where code defines a name -> a match or None; in Python only at the top level."""
    name = re.escape(name)
    if language == "python":
        return re.search(
            rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b|^{name}[ \t]*(?::[^\n=]*)?=(?!=)",
            code,
            re.M,
        )
    return re.search(rf"\b{name}\s{{0,9}}\([^;{{}}]{{0,300}}\)[^;{{}}]{{0,99}}\{{", code)


def program(prompt: str, completion: str, entry: str | None = None, language: str = "python") -> str:
    """Return the program a completion means: its fenced block or itself, if that defines `entry`; else prompt + code.

    Of several blocks it is the last that defines `entry`, with those that have what it lacks, else the first; without
    `entry` the last that does something. Imports and helpers of the prompt come along. A block without `entry` stands
    alone if the prompt does not begin `entry` either. `entry` is by default the last function of a Python prompt; if
    there is none, the code stands alone."""
    if language == "python":
        prompt, goes_on = fences.code_of_prompt(prompt)
        completion = "```python\n" * goes_on + completion
    if not entry and language == "python":
        entry = (re.findall(r"^(?:async[ \t]+)?def[ \t]+(\w+)", prompt, re.M) or [None])[-1]
    text, blocks = fences.answer(completion), [block.code for block in fences.blocks(completion, language)]
    code = blocks[0] if blocks else text
    if not entry:
        return next(filter(does_something, reversed(blocks)), code) if language == "python" else code
    entry = re.split(r"\W", entry)[0]  # of Solution().twoSum
    if chosen := [i for i, block in enumerate(blocks) if definition(block, entry, language)]:
        code = with_missing(blocks, chosen[-1]) if language == "python" else blocks[chosen[-1]]
    elif language == "python" and not blocks and definition(text, entry) and not parse(text)[1]:
        loose = fences.between_sentences(text)
        code = loose if definition(loose, entry) else text
    begun = definition(prompt, entry, language)
    if not definition(code, entry, language):
        return futures_first(prompt + code) if begun or not blocks else code
    return futures_first(given_by(prompt, begun) + code) if language == "python" else code


def does_something(code):
    """True if code parses and calls a function: it is no header, and not the output that an answer shows."""
    tree = parse(code)[1]
    return tree is not None and any(isinstance(node, ast.Call) for node in ast.walk(tree))


def given_by(prompt, begun):
    """Return the part of a Python prompt before `entry` begins (all, if it does not), if it only defines things."""
    before = prompt[: begun.start()] if begun else prompt + "\n"
    tree = parse(before)[1]
    return before if tree and all(isinstance(node, PARTS) for node in tree.body) else ""


def with_missing(blocks, chosen):
    """Put before the chosen block those others that define names it reads and does not have; they only define."""
    code, tree = blocks[chosen], parse(blocks[chosen])[1]
    if not tree:
        return code
    missing = read_names(tree) - defined_names(tree) - set(dir(builtins))
    for i in reversed(range(len(blocks))):
        tree = parse(blocks[i])[1] if i != chosen and missing else None
        if tree and defined_names(tree) & missing and all(isinstance(node, PARTS) for node in tree.body):
            code = blocks[i].rstrip("\n") + "\n" + code
            missing |= read_names(tree) - set(dir(builtins))
    return futures_first(code)


def futures_first(code):
    """Move `from __future__` to the top: in a completion it is the first line, but it comes after the prompt's."""
    lines = re.compile(
        r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^()]*\)|[\w, \t]+)[^\n]*\n?", re.M
    )
    return "".join(line.rstrip("\n") + "\n" for line in lines.findall(code)) + lines.sub("", code)


def add_helpers(prompt: str, tests: list | None, entry: str, language: str = "python") -> list:
    """Put before each test the functions of the prompt that it calls -> the tests. Python only.

    Else a completion could define them anew: decode(encode(x)) is x if both are the identity. A call of a function that
    neither the prompt nor the test has raises NameError. If the prompt neither begins `entry` nor is only definitions,
    nobody knows which functions belong to the task: all are the completion's, and the tests stay as they are."""
    tests, given = list(tests or []), {}
    if not entry or language != "python":
        return tests
    entry, prompt = re.split(r"\W", entry)[0], fences.code_of_prompt(prompt)[0]
    begun = definition(prompt, entry)
    before = prompt[: begun.start()] if begun else given_by(prompt, None)
    if not before.strip() and not begun or begun and not begun[0].startswith(("def", "async")):
        return tests
    for node in getattr(parse(before)[1], "body", []):
        given.update(dict.fromkeys(names_bound_by(node), node))
    return [with_helpers(test, given, entry, bool(begun)) if isinstance(test, str) else test for test in tests]


def names_bound_by(node):
    """List the names that a statement at the top level of a prompt defines, and that are the same in its tests.

    A class that says when its objects are equal is among them, other classes are the completion's: a test gets nothing
    of them but their attributes, and a completion walks faster through lists and trees of its own objects."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or compares(node):
        return [node.name]
    assigned = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
    return defined_names(node) if assigned or isinstance(node, (ast.Import, ast.ImportFrom)) else []


def compares(node):
    """True for a class without bases that has an __eq__ or is a dataclass."""
    if not isinstance(node, ast.ClassDef) or node.bases or node.keywords:
        return False
    methods = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
    return "__eq__" in methods or any("dataclass" in ast.unparse(x) for x in node.decorator_list)


def read_names(tree):
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def defined_names(tree):
    nodes = list(ast.walk(tree))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    names |= {n.name for n in nodes if isinstance(n, DEFINITIONS)}
    names |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return names | {(n.asname or n.name).partition(".")[0] for n in nodes if isinstance(n, ast.alias)}


def with_helpers(test, given, entry, begun):
    """Put before a test the definitions of the prompt, given {name: node}, that it needs, and those that they need.

    begun: the prompt begins `entry`, so other functions are not the completion's to bring"""
    tree = parse(test)[1]
    if not tree:
        return test
    own, chosen = defined_names(tree) | {entry}, []
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    unknown = {
        name
        for name in called - own - given.keys()
        if not hasattr(builtins, name) and not name[:1].isupper()
    }
    if not begun or "*" in own | given.keys():  # from math import *: nobody knows what it brings
        unknown, chosen = set(), [given["*"]] if "*" in given else []
    results = {name for name, node in given.items() if holds_results(node, tree, entry)}
    missing = read_names(tree) - own - results
    while new := [node for name, node in given.items() if name in missing and node not in chosen]:
        chosen += new
        missing |= set().union(*map(read_names, new))
    lines = [ast.unparse(node) for node in given.values() if node in chosen]
    lines += [f"{node.name}.__given__ = True" for node in chosen if isinstance(node, ast.ClassDef)]
    refuse = "def {0}(*_, **__): raise NameError('{0} is neither in the prompt nor in the test')"
    return "\n".join([*dict.fromkeys(lines), *map(refuse.format, sorted(unknown)), test])


def holds_results(node, test, entry):
    """True if an assignment of a prompt makes what a completion may change, so that a test takes its value from there:
    a container that is empty at first or, if the test calls `entry` for its effect and ignores the result, anything."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or isinstance(node.value, ast.Constant):
        return False
    calls = [n.value.func for n in ast.walk(test) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    for_effect = any(isinstance(f, ast.Name) and f.id == entry for f in calls)
    return for_effect or bool(re.fullmatch(EMPTY, ast.unparse(node.value)))


def column(values, rows) -> list:
    """Return a column with an entry for each of the rows: None if there is none, and a setting, a text, in each."""
    return [values] * len(rows) if values is None or isinstance(values, str) else list(values)


def languages_of(language, rows) -> list[str]:
    """Return our names of the languages of rows. language: their column, a setting or None."""
    return [*map(language_of, column(language, rows))]


def programs(prompts, completions, entry, language) -> list[Program]:
    """Turn columns into programs. A blank completion is a blank program, whatever its prompt."""
    entries, languages = column(entry, completions), languages_of(language, completions)
    rows = zip(prompts, completions, entries, languages, strict=True)
    return [
        Program(program(p, text, e, lang) if text.strip() else "", e or "", lang)
        for p, text, e, lang in rows
    ]


def compiles(sources) -> list[float]:
    """Decide for each of [(code, language)] whether it parses, with verdicts as in `parse`.

    ast and json decide here. gcc, g++ and javac decide behind the sandbox's walls, under its time limit (out of
    time: 0.0). If a compiler is missing, the balance of the brackets decides."""
    sources = list(sources)
    verdicts = [quick_verdict(*source) for source in sources]
    left = [i for i, verdict in enumerate(verdicts) if verdict is None]
    results = run([Job(sources[i][0], [SYNTAX], "", sources[i][1]) for i in left])
    for i, result in zip(left, results, strict=True):
        verdicts[i] = verdict_of(result)
    return verdicts


def quick_verdict(code, language):
    """Decide whether a text parses -> a verdict as in `parse`; None: a compiler that is installed is to say it."""
    if not code.strip() or len(code) > MAX_SOURCE or language == "python":
        return parse(code)[0]
    if language in LANGUAGES and shutil.which(LANGUAGES[language].needs):
        return None
    good = formats.parse_json(code) is not None if language == "json" else balanced(code)
    return 1.0 if good else -1.0


def verdict_of(result):
    if "out of time" in result.error:
        return 0.0
    return 1.0 if all(result.passed) else -1.0


def balanced(code: str) -> bool:
    """True if the brackets of a text, also in strings and comments, are closed in order."""
    still_open = []
    for c in code:
        if c in "([{":
            still_open.append(c)
        elif c in ")]}" and (not still_open or still_open.pop() + c not in ("()", "[]", "{}")):
            return False
    return not still_open


def syntax(prompts, completions, entry=None, language=None):
    """+1.0 the program parses; -1.0 it does not; 0.0 blank, only comments, too long, too deep, or not text (NUL).

    By the column `language`: python by ast, json, c, c++ and java by gcc, g++ and javac; by
    the balance of its brackets where the compiler is not installed, and in every other language."""
    return compiles(
        (code, lang) for code, _, lang in programs(prompts, completions, entry, language)
    )


def fenced(prompts, completions, language=None):
    """Exactly one closed ``` block: 1.0 if what is in it parses, 0.5 if not; none, blank, cut off or several: 0.0."""
    languages = languages_of(language, completions)
    found = [fences.blocks(text, lang) for text, lang in zip(completions, languages, strict=True)]
    whole = [i for i, blocks in enumerate(found) if len(blocks) == 1 and blocks[0].closed and blocks[0].code.strip()]
    verdicts = compiles((found[i][0].code, languages[i]) for i in whole)
    scores = [0.0] * len(found)
    for i, verdict in zip(whole, verdicts, strict=True):
        scores[i] = 1.0 if verdict > 0 else 0.5
    return scores


# ---- what its tests say ----------------------------------------------------------------------------------------------
settings: dict[str, Any] = {}  # of `pool.run`, for all rewards of this process


def choose(**wanted: Any) -> None:
    """Choose the settings of the sandbox: timeout, workers, unsafe. ValueError if one of them is wrong."""
    pool.run([], **wanted)
    settings.update(wanted)


def prepare(cfg: Any, rows: list[dict], names: Set[str]) -> None:
    """Start the sandbox before a run whose rewards have these names, if they run programs."""
    tested = {"tests", "tests_all", "tests_fenced", "performance"} & names
    if not (tested or {"syntax", "fenced"} & names):
        return
    try:  # a machine without walls is refused before the run begins
        choose(**Keys.of(cfg).settings)
        pool.run([Job("", ["assert True"])] if tested else [], **settings)
        unknown = check(rows) if tested else {}
    except (RuntimeError, ValueError) as e:
        raise ValueError(f"{cfg.dataset}: {e}") from None
    for language, count in unknown.items():
        tqdm.write(
            f"{cfg.dataset}: no opinion on {count} rows in {language!r}, which tests are not run in"
        )


def run(jobs: list[Job]) -> list[Verdict]:
    """Run jobs in the sandbox, equal ones once.

    Blank code, and code without tests or in a language that is not run here, gets NOT_RUN."""
    keys = [json.dumps(job) for job in jobs]
    todo = {
        key: job
        for key, job in zip(keys, jobs, strict=True)
        if job.code.strip() and job.tests and runs(job.language)
    }
    verdicts = dict(zip(todo, pool.run(todo.values(), **settings) if todo else [], strict=True))
    return [verdicts.get(key, NOT_RUN) for key in keys]


def run_tests(prompts, meant: list[Program], tests) -> list[Verdict]:
    """Run the tests of each row on its program `meant`, with the prompt's helpers."""
    rows = zip(prompts, meant, tests, strict=True)
    return run(
        [
            Job(p.code, add_helpers(prompt, t, p.entry, p.language), p.entry, p.language)
            for prompt, p, t in rows
        ]
    )


def tests(prompts, completions, tests, entry=None, language=None):
    """Share of the row's tests that pass, 0.0 to 1.0. 0.0 also for blank text, and without tests; None in a language
    that is not run here."""
    return passed(prompts, programs(prompts, completions, entry, language), tests)


def passed(prompts, meant: list[Program], tests) -> Scores:
    """Score programs by the share of their tests that pass; None in a language that is not run here."""
    results = run_tests(prompts, meant, tests)
    shares = [sum(r.passed) / max(1, len(r.passed)) for r in results]
    return Scores(
        [share if runs(p.language) else None for share, p in zip(shares, meant, strict=True)],
        timeout_frac=[float("out of time" in r.error) for r in results],
    )


def tests_all(prompts, completions, tests, entry=None, language=None):
    """1.0 if every test of the row passes, else 0.0; also 0.0 for blank text and without tests; None as in `tests`."""
    scores = passed(prompts, programs(prompts, completions, entry, language), tests)
    return Scores(
        [None if score is None else float(score == 1.0) for score in scores], **scores.notes
    )


def tests_fenced(prompts, completions, tests, entry=None, language=None):
    """`tests` of the fenced block by itself, where `fenced` is 1.0, else 0.0: the code reward of DiffuCoder.

    (Two differences from DiffuCoder. Its regex wants a line end after the closing fence, so a completion that ends
    there earns nothing. And an endless loop costs it all tests, but here only the test that loops and later ones.)"""
    languages, entries = languages_of(language, completions), column(entry, completions)
    whole = fenced(prompts, completions, languages)
    meant = []
    for text, right, e, lang in zip(completions, whole, entries, languages, strict=True):
        meant.append(Program(fences.blocks(text, lang)[0].code if right == 1.0 else "", e or "", lang))
    return passed(prompts, meant, tests)


# ---- how good it is --------------------------------------------------------------------------------------------------
def performance(prompts, completions, tests, reference, entry=None):
    """0.0 unless every test passes; then 0.5 * min(1, (2 T + 0.05) / t) + 0.5 * min(1, C / c). None if reference fails.

    t and T are the CPU seconds the tests take with the completion and with the reference solution, as the kernel counts
    them: up to twice as long, or 50 ms, is noise. c and C are their AST nodes, each counted once more for every loop
    around it. Python only."""
    meant = programs(prompts, completions, entry, None)
    meant += programs(prompts, [text or "" for text in reference], entry, None)
    measured = []
    for p, result in zip(
        meant, run_tests([*prompts, *prompts], meant, [*tests, *tests]), strict=True
    ):
        tree, right = parse(p.code)[1], result.passed and all(result.passed)
        measured.append(
            (max(1e-6, result.seconds), complexity(tree)) if tree and right else None
        )
    scores = []
    for own, best in zip(measured[: len(completions)], measured[len(completions) :], strict=True):
        if own and best:
            (seconds, size), (best_seconds, best_size) = own, best
            speed, brevity = (2 * best_seconds + 0.05) / seconds, best_size / size
            scores.append(0.5 * min(1.0, speed) + 0.5 * min(1.0, brevity))
        else:
            scores.append(0.0 if best else None)
    return scores


def complexity(tree: ast.AST) -> int:
    """Count the nodes of a tree, each once more for every loop or comprehension around it."""
    loops = (
        ast.For,
        ast.AsyncFor,
        ast.While,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
    )
    total, stack = 0, [(tree, 1)]
    while stack:
        node, weight = stack.pop()
        total += weight
        stack.extend(
            (child, weight + isinstance(node, loops)) for child in ast.iter_child_nodes(node)
        )
    return total


QUALITY = {
    "has_docstring": 0.3,
    "proper_naming": 0.2,
    "good_comments": 0.2,
    "proper_structure": 0.3,
}


def quality(prompts, completions, entry=None):
    """0.3 has_docstring + 0.2 proper_naming + 0.2 good_comments + 0.3 proper_structure, each logged; blank text 0.0.

    A docstring is what ast calls one, or triple quotes in what does not parse. Functions are lower case, classes begin
    with a capital. A comment has more than 10 characters. Lines begin at the margin, with four spaces or a tab."""
    rows = []
    for (whole, *_), text in zip(
        programs(prompts, completions, entry, None), completions, strict=True
    ):
        blocks = fences.blocks(text)
        rows.append(quality_of(blocks[0].code if blocks else text, whole))
    scores = [
        round(sum(weight for name, weight in QUALITY.items() if row[name]), 6) for row in rows
    ]
    return Scores(scores, **{name: [float(row[name]) for row in rows] for name in QUALITY})


def quality_of(code: str, whole: str) -> dict[str, bool]:
    """Check the four points of `quality` in code as it was written; whole: the program that it is part of.

    Text that is no code fails proper_naming, although it has no bad name."""
    tree = parse(code)[1]
    lines = [
        line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    real = bool(lines) and (tree is not None or parse(whole)[1] is not None)
    if tree:
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, *DEFINITIONS))]
        documented = any(map(ast.get_docstring, nodes))
    else:
        documented = '"""' in code or "'''" in code
    names = re.findall(r"^[ \t]*(?:async +)?(def|class) +(\w+)", code, re.M)
    good = all(
        name.lstrip("_")[:1].isupper() if kind == "class" else name.islower()
        for kind, name in names
    )
    comments = [c.strip() for c in re.findall(r"(?:^|[ \t])#+(.*)", code, re.M)]
    return {
        "has_docstring": documented,
        "proper_naming": good and (real or bool(names)),
        "good_comments": any(len(comment) > 10 for comment in comments),
        "proper_structure": real and all(re.match(r" {4}|\t|\S", line) for line in lines),
    }


rewards.REWARDS.add({
    "syntax": syntax,
    "tests": tests,
    "tests_all": tests_all,
    "tests_fenced": tests_fenced,
    "performance": performance,
    "quality": quality,
    "format": quality,
    "fenced": fenced,
})
