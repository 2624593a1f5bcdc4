"""Run one test of a data set, Python that asserts, in the judge. The completion's functions are stubs in its globals.

A name that a test reads is, in this order, the test's own; a module of the library if the test uses it like one
(`math.isclose`); a builtin; the candidate's. So a candidate's `abs` or `math` never gets here. Only the function that
the test is about (`entry`) may shadow a builtin: MBPP 126 is called sum.

What a test replaces in the library (input, sys.stdout, os.environ, a seed), it replaces in the judge alone.
"""

import ast
import builtins
import functools
import importlib
import re
import sys
import types
from abc import ABCMeta
from typing import Any, NamedTuple

from judges.sandbox.tests import small_pytest
from judges.sandbox.wire.operations import finish
from judges.sandbox.wire.stubs import MADE, Method, Remote, foreign
from judges.sandbox.wire.values import NAMES

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Test(NamedTuple):
    """A test that has been parsed."""

    code: types.CodeType
    wanted: set  # the names that it reads from the candidate
    early: set  # those of them that class bodies use; they are looked up first, as Python skips `__missing__` there
    modules: set  # the modules that it uses as `math.x`
    library: set  # those, and the ones that it imports
    safe: set  # the lines on which nothing of the candidate's can raise
    used: set  # the names and attributes that it reads
    exits: bool  # True if it names SystemExit
    taken: set  # the names that `from solution import *` leaves as they are: those that the test binds, modules


@functools.lru_cache(1000)  # the completions of a group share their tests
def parse(source: str, entry: str) -> Test:
    """Parse a test about the function `entry`, and find out which names it takes from the candidate."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    names = [n for n in nodes if isinstance(n, ast.Name)]
    attributes = [n for n in nodes if isinstance(n, ast.Attribute)]
    read = {n.id for n in names}
    loaded = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    stored = {n.id for n in names if not isinstance(n.ctx, ast.Load)} | {entry}
    dotted = {n.value.id for n in attributes if isinstance(n.value, ast.Name)}
    modules = (dotted & sys.stdlib_module_names) - {entry}
    names_of_builtins = set(dir(builtins))
    wanted = {name for name in read - modules if name == entry or name not in names_of_builtins}
    if "type" not in stored:
        ask_for_types(nodes)
    return Test(
        wanted=wanted,
        early=wanted & names_in_classes(nodes),
        modules=modules,
        library=imported(nodes) | modules,
        safe=safe_lines(nodes),
        used=loaded | {n.attr for n in attributes},
        exits="SystemExit" in read,
        taken=bound_names(nodes) | modules | names_of_builtins - {entry},
        code=compile(ask_for_methods(nodes), "<test>", "exec", dont_inherit=True),  # the last, as it changes the nodes
    )


def imported(nodes):
    """Find the modules that a test imports."""
    named = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return named | {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}


def bound_names(nodes):
    """Find the names that a test assigns, defines or imports."""
    names = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    names |= {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    imports = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    from_elsewhere = [n for n in imports if getattr(n, "module", "") not in ("solution", "__main__")]
    return names | {(a.asname or a.name).partition(".")[0] for n in from_elsewhere for a in n.names}


def names_in_classes(nodes):
    """Find the names in the bodies of classes, without those in the bodies of their functions."""
    found, left = set(), [part for n in nodes if isinstance(n, ast.ClassDef) for part in n.body]
    while left:
        n = left.pop()
        if isinstance(n, ast.Name):
            found.add(n.id)
        later = getattr(n, "body", []) if isinstance(n, FUNCTIONS) else []
        later = later if isinstance(later, list) else [later]
        left += [child for child in ast.iter_child_nodes(n) if child not in later]
    return found


def ask_for_types(nodes):
    """Replace type(x) in a test by type_of(x), which gives the class of the candidate's object and not of its stub."""
    for n in nodes:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "type" and len(n.args) == 1:
            n.func.id = "__type__"


def ask_for_methods(nodes):
    """Replace x.name(...) by method_of(x, "name")(...), except on safe lines -> the tree."""
    safe = safe_lines(nodes)
    for n in nodes:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.lineno not in safe:
            x, name = n.func.value, n.func.attr
            if name[0] != "_":
                n.func = ast.Call(ast.Name("__method__", ast.Load()), [x, ast.Constant(name)], [])
    return ast.fix_missing_locations(nodes[0])


def method_of(x, name):
    """Return the method `name` of x, which the test calls as soon as it has the arguments."""
    return Method(x, name) if type(x) is Remote else getattr(x, name)


def type_of(x):
    return x.__class__ if foreign(x) else type(x)


def safe_lines(nodes):
    """Find the lines on which a `with` has one statement and only the test itself can raise, whatever the candidate
    answers: `raise`, or an expression without a name."""
    withs = [n for n in nodes if isinstance(n, ast.With) and len(n.items) == len(n.body) == 1]
    alone = [n.body[0] for n in withs]
    nameless = [n for n in alone if isinstance(n, ast.Expr) and not any(isinstance(x, ast.Name) for x in ast.walk(n))]
    return {n.lineno for n in [*nameless, *(n for n in alone if isinstance(n, ast.Raise))]}


def find(peer, name):
    """Return [the value of a global name of the candidate], or [] if there is none.

    A stub whose name is written like a class's (Stack, _Node) may make objects: see `Remote._makes`."""
    try:
        found = peer.ask("names", [name])
    except Exception as e:
        peer.die(f"bad answer: {type(e).__name__}")  # a KeyError would lead to the judge's builtin
    if not found:
        return []
    value = found[name]
    peer.objects -= type(value) is Remote  # a function is met by its name only
    if type(value) is Remote and re.fullmatch("_?[A-Z][A-Za-z0-9]*", name):  # a class, as everybody writes them
        object.__setattr__(value, "_origin", MADE)
        object.__setattr__(value, "_makes", True)
    return [value]


class Names(dict):
    """The globals of a test, which ask the candidate for the names that the test does not define.

    Plain values are asked for each time, because they change. A Remote is asked for once, and put into `functions` for
    later tests of the same completion."""

    def __init__(self, peer, test, entry, functions):
        super().__init__(functions, __name__="test", __type__=type_of, __method__=method_of)
        self.peer, self.wanted, self.safe, self.entry, self.functions = peer, test.wanted, test.safe, entry, functions

    def __missing__(self, name):
        if name not in self.wanted:
            raise KeyError(name)  # a builtin
        found = find(self.peer, name)
        if not found:  # never the judge's own builtin in place of the function asked for
            raise (NameError if name == self.entry else KeyError)(f"name {name!r} is not defined")
        if type(found[0]) is Remote:
            self[name] = self.functions[name] = found[0]
        return found[0]


class Solution(types.ModuleType):
    """The module that a test gets when it imports the completion: from solution import f."""

    def __init__(self, peer, taken):
        super().__init__("solution")
        vars(self).update(_peer=peer, _taken=taken)

    def __getattr__(self, name):
        if name == "__all__":
            names = [x for value in find(self._peer, name) if type(value) is list for x in value if type(x) is str]
            return [x for x in names if x[:1] not in ("", "_") and x not in self._taken]
        if found := find(self._peer, name):
            return found[0]
        raise AttributeError(f"module 'solution' has no attribute {name!r}")

    def __setattr__(self, name, value):
        self._peer.ask("setname", name, value)

    def __delattr__(self, name):
        self._peer.ask("setname", name)


# Functions of the library that look into an object are called where the object is.
ROUTED = {
    "dataclasses": "asdict astuple fields is_dataclass replace",
    "asyncio": "iscoroutinefunction",
    "inspect": """signature isclass isfunction ismethod iscoroutine iscoroutinefunction isgenerator
        isgeneratorfunction isasyncgenfunction isabstract getdoc getsource getmembers""",
}


@functools.lru_cache
def route(module):
    """Replace the functions of a module (its name) that are in ROUTED, for all tests: with a stub as first argument
    the candidate runs them, as the object is there; else they run here as before."""
    home = importlib.import_module(module)
    for name in ROUTED[module].split():
        setattr(home, name, routed(module, name, getattr(home, name)))


def routed(module, name, here):
    """Make a function that runs in the candidate if its first argument is a stub, and is `here` otherwise."""
    def function(x, *args, **named):
        if foreign(x):
            return x._peer.call("library", (module, name, x, *args), named)
        return here(x, *args, **named)

    return function


def ask_about_abstract_classes():
    """Have the candidate say whether its objects and classes are of those in collections.abc: Iterator, Mapping.

    It is not asked about those in `numbers`: Fraction and Decimal would then ask an answer which number it is."""
    for name in "instancecheck", "subclasscheck":
        setattr(ABCMeta, f"__{name}__", asked(name, getattr(ABCMeta, f"__{name}__")))


def asked(op, here):
    def check(kind, x):
        if not foreign(x):
            return here(kind, x)
        return x._peer.ask(op, kind, x) if id(kind) in NAMES else issubclass(type(x), kind)

    return check


def do_nothing(*_, **__):
    pass


def run_assert(peer: Any, source: str, entry: str, functions: dict) -> None:
    """Run a test; an exception means that it fails.

    source: the test; entry: the function that it is about, see `find_entry`; functions {name: stub}: those that
    earlier tests of the completion have found, to which this one adds its own."""
    test = parse(source, name_of(entry))
    space = Names(peer, test, name_of(entry), functions)
    space.update({name: importlib.import_module(name) for name in test.modules})
    for name in test.early - functions.keys():
        if found := find(peer, name):
            space[name] = found[0]
    for module in ROUTED.keys() & test.library:
        route(module)
    if "unittest" in test.library:  # its main would look for tests on our command line; run_defined runs them
        vars(importlib.import_module("unittest"))["main"] = do_nothing
    peer.exits, main = test.exits, sys.modules["__main__"]
    sys.modules |= dict.fromkeys(("solution", "__main__"), Solution(peer, test.taken)) | {"pytest": small_pytest}
    sys.stderr = sys.__stdout__  # nobody reads what a test writes; this judge's own errors are shown
    try:
        peer.given = space if "__given__" in source else {}  # programs.with_helpers marks the classes of the prompt
        exec(test.code, space)
        run_defined(space, test, entry)
    finally:
        sys.modules["__main__"] = main
        del sys.modules["solution"], sys.modules["pytest"]
        sys.stderr = sys.__stderr__


def run_defined(space, test, entry):
    """Run what a test only defines and never uses: functions test_..., HumanEval's check(candidate), and TestCases.

    TestCases are not run if the test looks at their result itself."""
    own = {name: x for name, x in space.items() if type(x) in (type, types.FunctionType) and x.__module__ == "test"}
    for name, x in own.items():
        if type(x) is type and name.startswith("Test") and not hasattr(x, "setUp") and "__init__" not in vars(x):
            run_methods(x)
        elif type(x) is type or name in test.used:
            continue
        elif entry and asks_for_entry(name, x):
            x(*find_entry(space.peer, entry))
        elif name.startswith("test"):
            run_function(x)
    if "unittest" in test.library and not test.used & {"wasSuccessful", "failures", "errors"}:
        run_cases(own.values())


def asks_for_entry(name, function):
    """True for HumanEval's check(candidate) and a test_...(candidate)."""
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    return len(arguments) == 1 and (name == "check" or name.startswith("test") and arguments == ("candidate",))


def run_function(function, *bound):
    result = function(*bound)
    if type(result) is types.CoroutineType:
        finish(result)


def run_methods(kind):
    """Run the methods test... of a class Test..., each on an object of its own, as pytest does."""
    for name, method in vars(kind).items():
        if name.startswith("test") and type(method) is types.FunctionType:
            one = kind()
            if hasattr(one, "setup_method"):
                one.setup_method()
            run_function(method, one)


def name_of(entry: str) -> str:
    """Return the name with which an entry begins: Solution of Solution().twoSum."""
    return re.split(r"\W", entry)[0]


def find_entry(peer, entry):
    """Return [the function asked for], or []; entry: its name, or Solution().name as LeetCodeDataset has it."""
    found = find(peer, name_of(entry))
    if not found or entry == name_of(entry):
        return found
    made = found[0]() if "()" in entry else found[0]
    return [getattr(made, entry.rpartition(".")[2])]


def run_cases(values):
    """Run the TestCases among the values; an AssertionError if one fails or is skipped."""
    unittest = importlib.import_module("unittest")
    cases = [x for x in values if issubclass(type(x), type) and issubclass(x, unittest.TestCase)]
    result = unittest.TestResult()
    unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases)).run(result)
    for _, text in result.failures + result.errors:
        raise AssertionError(text.strip().rpartition("\n")[2])
    if result.skipped:
        raise AssertionError("skipped")
