"""Asserts."""
import ast
import builtins
import contextlib
import functools
import importlib
import io
import os
import re
import sys
import types
from typing import NamedTuple

from judges.stubs import Remote, finish, foreign


class Test(NamedTuple):
    """A test, read."""
    code: object
    wanted: set  # names that it wants of the candidate
    modules: set  # which it uses as `math.x`
    library: list  # all modules of the library that it names, in a string too: "random.random"
    exits: bool  # does it name SystemExit
    safe: set  # lines on which nothing of the candidate's can raise
    used: set  # names and attributes that it reads
    early: set  # names that the bodies of its classes read, where Python does not ask a dict for what it misses


@functools.lru_cache(1000)  # the completions of a group share their tests
def parse(source, entry):
    """Read a test."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    read = {n.id for n in nodes if isinstance(n, ast.Name)}
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | {entry}
    dotted = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    modules = (dotted & sys.stdlib_module_names) - {entry}
    wanted = {n for n in read - modules if n == entry or not hasattr(builtins, n)}
    named = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    named |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    named |= {n.value.rpartition(".")[0] for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    library = sorted(n for n in named | modules if n.partition(".")[0] in sys.stdlib_module_names)
    safe = safe_lines(tree, stored)
    if "type" not in stored: own_type(nodes)
    code = compile(tree, "<test>", "exec", dont_inherit=True)
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    used |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return Test(code, wanted, modules, library, "SystemExit" in read, safe, used, wanted & in_classes(nodes))


def in_classes(nodes):
    """The names that stand in the bodies of classes, and not in those of their functions."""
    found, left = set(), [part for n in nodes if isinstance(n, ast.ClassDef) for part in n.body]
    while left:
        n = left.pop()
        if isinstance(n, ast.Name): found.add(n.id)
        later = getattr(n, "body", ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else ()
        left += [x for x in ast.iter_child_nodes(n) if x is not later and (type(later) is not list or x not in later)]
    return found


def own_type(nodes):
    """type(x) of a test says what class an object has over there."""
    for n in nodes:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "type" and len(n.args) == 1:
            n.func.id = "__type__"


def type_of(x): return x.__class__ if foreign(x) else type(x)


def safe_lines(tree, stored):
    """The lines with nothing but a `raise` or statements that name only builtins: only the test itself raises there."""
    good, bad, odd = set(), set(), (ast.Lambda, ast.Import, ast.ImportFrom)
    for n in ast.walk(tree):
        own = all(hasattr(builtins, x.id) and x.id not in stored if isinstance(x, ast.Name) else not isinstance(x, odd)
                  for x in ast.walk(n))
        if isinstance(n, ast.stmt) and not hasattr(n, "body") and not isinstance(n, ast.Match):
            (good if own or isinstance(n, ast.Raise) else bad).update(range(n.lineno, n.end_lineno + 1))
        elif isinstance(n, (ast.stmt, ast.ExceptHandler)) and not isinstance(n, ast.With):
            bad.update(range(n.lineno, max(n.lineno + 1, n.body[0].lineno) if hasattr(n, "body") else n.end_lineno + 1))
    inner = [i.context_expr for n in ast.walk(tree) if isinstance(n, ast.With) for part in n.body
             for x in ast.walk(part) if isinstance(x, ast.With) for i in x.items]
    return good - bad - {line for x in inner for line in range(x.lineno, x.end_lineno + 1)}


def find(peer, name):
    """[the value of a global name of the candidate], [] if there is none."""
    try: found = peer.call("names", ([name],), {})
    except Exception as e: peer.die(f"bad answer: {type(e).__name__}")  # a KeyError would lead to the judge's builtin
    if not found: return []
    value = found[name]
    if type(value) is Remote and re.fullmatch("_?[A-Z][A-Za-z0-9]*", name):  # a class, as everybody writes them
        for flag in ("_meant", "_makes"): object.__setattr__(value, flag, True)
    return [value]


class Names(dict):
    """The globals of a test. What is not in here is asked of the candidate, its plain values each time: they change."""

    def __init__(self, peer, test, entry, functions):
        super().__init__(functions, __name__="test", __type__=type_of)
        self.peer, self.wanted, self.safe, self.entry, self.functions = peer, test.wanted, test.safe, entry, functions

    def __missing__(self, name):
        if name not in self.wanted: raise KeyError(name)  # a builtin
        # Never the judge's own builtin in place of a missing function that is called like it.
        if not (found := find(self.peer, name)):
            raise (NameError if name == self.entry else KeyError)(f"name {name!r} is not defined")
        if type(found[0]) is Remote: self[name] = self.functions[name] = found[0]
        return found[0]


class Solution(types.ModuleType):
    """What a test gets that imports the completion: from solution import f."""

    def __init__(self, peer):
        super().__init__("solution")
        vars(self)["_peer"] = peer

    def __getattr__(self, name):
        if found := find(self._peer, name): return found[0]
        raise AttributeError(f"module 'solution' has no attribute {name!r}")

    def __setattr__(self, name, value): self._peer.call("setname", (name, value), {})
    def __delattr__(self, name): self._peer.call("setname", (name,), {})


class World:
    """What a test puts in place of parts of the library (input, sys.stdout, random.seed, time.sleep, os.environ), for
    the candidate, too: before each call it gets what has changed since. Afterwards all is as it was, in both."""
    WATCHED = {"sys": ("argv", "stdin", "stdout", "stderr")}

    def __init__(self, peer, library):
        self.peer, self.sent, self.seeds, self.busy = peer, {}, [], False
        self.modules, random = {}, importlib.import_module("random")
        for name in {"builtins", "sys", *library} - {"antigravity", "this"}:
            with contextlib.suppress(ImportError): self.modules[name] = importlib.import_module(name)
        self.real_seed, self.environ = random.seed, dict(os.environ)
        self.told = self.environ
        random.seed = self.seed
        self.before = {name: dict(vars(module)) for name, module in self.modules.items()}

    def seed(self, *args, **named):
        self.seeds.append(args or tuple(named.values()))
        return self.real_seed(*args, **named)

    def changed(self):
        """{(module, name): value} of all that is not as it was."""
        found = {}
        for module, before in self.before.items():
            now = vars(self.modules[module])
            for name in self.WATCHED.get(module, now.keys() & before.keys()):
                if name[0] != "_" and now[name] is not before[name]: found[module, name] = now[name]
        return found

    def tell(self):
        """Before each call: what is new."""
        if self.busy: return
        self.busy = True
        try:
            while self.seeds: self.peer.call("library", ("random", "seed", *self.seeds.pop(0)), {})
            now, environ = self.changed(), dict(os.environ)
            for place in {**now, **self.sent}:
                if place not in now: self.peer.call("restore", place, {})
                elif place not in self.sent or now[place] is not self.sent[place]: self.replace(place, now[place])
            self.sent = now
            if environ != self.told:  # not where this machine keeps its things
                own = {k: v for k, v in environ.items() if self.environ.get(k) != v}
                self.peer.call("environ", (own,), {})
            self.told = environ
        finally: self.busy = False

    def replace(self, place, value):
        if place in (("sys", "stdout"), ("sys", "stderr")): self.peer.call("print_here", place, {})
        elif place == ("sys", "stdin") and type(value) is io.StringIO:
            self.peer.call("read_here", (value.getvalue()[value.tell():],), {})
        else:
            with contextlib.suppress(TypeError): self.peer.call("replace", (*place, value), {})

    def end(self):
        importlib.import_module("random").seed = self.real_seed
        os.environ.clear()
        os.environ.update(self.environ)
        for module, name in self.changed(): setattr(self.modules[module], name, self.before[module][name])
        if self.sent and not self.peer.dead: self.tell()


ROUTED = {"dataclasses": "asdict astuple fields is_dataclass replace", "asyncio": "iscoroutinefunction",
          "inspect": """signature isclass isfunction ismethod iscoroutine iscoroutinefunction isgenerator
          isgeneratorfunction isasyncgenfunction isabstract getdoc getsource getmembers"""}


@functools.lru_cache
def route(module):
    """Functions of the library that look into an object look where it is."""
    def routed(name, here):
        def function(x, *args, **named):
            if not foreign(x): return here(x, *args, **named)
            return x._peer.call("library", (module, name, x, *args), named)
        return function
    home = importlib.import_module(module)
    for name in ROUTED[module].split(): setattr(home, name, routed(name, getattr(home, name)))


AMBIENT = {"builtins", "contextlib", "io", "os", "random", "sys", "time", "unittest", "unittest.mock"}


def run_assert(peer, source, entry, functions):
    """Run a test. The candidate's patched `abs` or `math` never gets here; `entry` may shadow a builtin (MBPP 126)."""
    test = parse(source, entry)
    space = Names(peer, test, entry, functions)
    space.update({n: importlib.import_module(n) for n in test.modules})
    for name in test.early - functions.keys():
        if found := find(peer, name): space[name] = found[0]
    for module in ROUTED.keys() & set(test.library): route(module)
    if "unittest" in test.library:  # its main would look for tests on our command line; run_defined runs them
        importlib.import_module("unittest").main = lambda *_, **__: None
    peer.exits, main = test.exits, sys.modules["__main__"]
    sys.modules |= dict.fromkeys(("solution", "__main__"), Solution(peer))
    sys.stderr, world = sys.__stdout__, None  # nobody reads what a test writes; this judge's own errors are shown
    try:
        if AMBIENT & set(test.library):
            world = World(peer, test.library)
            peer.before_call = world.tell
        exec(test.code, space)
        run_defined(space, test, entry)
    finally:
        sys.modules["__main__"] = main
        del sys.modules["solution"]
        if world: world.end()
        sys.stderr, peer.before_call = sys.__stderr__, None


def run_defined(space, test, entry):
    """Run what a test defines and does not run: functions test_..., HumanEval's check(candidate), and its TestCases, of
    which a test that does not ask for the result learns nothing."""
    own = {n: x for n, x in space.items() if type(x) in (type, types.FunctionType) and x.__module__ == "test"}
    for name in own.keys() - test.used:
        if type(own[name]) is type: continue
        arguments = own[name].__code__.co_argcount
        if name == "check" and entry and arguments == 1: own[name](*find(space.peer, entry))
        elif name.startswith("test") and not arguments:
            if type(result := own[name]()) is types.CoroutineType: finish(result)
    if "unittest" not in test.library or test.used & {"wasSuccessful", "failures", "errors"}: return
    unittest = importlib.import_module("unittest")
    cases = [x for x in own.values() if issubclass(type(x), type) and issubclass(x, unittest.TestCase)]
    result = unittest.TestResult()
    unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases)).run(result)
    for _, text in result.failures + result.errors: raise AssertionError(text.strip().rpartition("\n")[2])
    if result.skipped: raise AssertionError("skipped")
