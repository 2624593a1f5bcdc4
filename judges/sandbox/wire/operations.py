"""What one end of a conversation may ask of the other by name: the operators of Python, as far as each end allows them.

A candidate serves all operators on its own objects (CANDIDATE_OPS, and FINISH for what its loaded code lets one await).
It gains nothing by lying about them: stubs.py decides which answers count.

The judge serves far fewer (JUDGE_OPS), because a candidate that calls back is hostile. It opens only what a test has
made in order to hand it over: objects of the test's own classes, mocks, and a few classes that only hold data. A
candidate sees neither their private names nor what a mock tells its test.
"""

import builtins
import copy
import importlib
import operator
import types
from typing import Any


def from_module(module, names):
    return {name: getattr(module, name) for name in names.split()}


def dunders(names):
    return {name: getattr(operator, f"__{name}__") for name in names.split()}


def method(x: Any, name: str) -> Any:
    """Find a method in the class of x and bind it to x, as a `with` statement does.

    type(x).__exit__ will not do for a mock: what it returns is not the method of a class, and is not to get x."""
    for kind in type(x).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            return found.__get__(x, type(x)) if hasattr(type(found), "__get__") else found
    raise TypeError(f"{type(x).__name__!r} object has no {name}")


def enter(x):
    return method(x, "__enter__")()


def leave(x, error):
    return method(x, "__exit__")(error and type(error), error, None)


def instancecheck(kind, x):
    return isinstance(x, kind)


def subclasscheck(kind, x):
    return issubclass(x, kind)


def library(module: str, name: str, *args, **named) -> Any:
    """Call a function of the standard library."""
    return getattr(importlib.import_module(module), name)(*args, **named)


# ALONE: operators on one object. AS_NUMBER: what it is as a number. PAIRS: operators on two objects.
ALONE = from_module(builtins, "getattr setattr delattr iter aiter next len str repr bool hash abs format dir reversed")
ALONE |= dunders("neg pos invert getitem setitem delitem") | {"enter": enter}
ALONE |= {"copy": copy.copy, "deepcopy": copy.deepcopy}
ALONE |= {"instancecheck": instancecheck, "subclasscheck": subclasscheck}
AS_NUMBER = from_module(builtins, "int float complex round") | dunders("index")
ORDER = "eq ne lt le gt ge".split()
ARITHMETIC = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
IN_PLACE = dunders(" ".join(f"i{name}" for name in ARITHMETIC))
PAIRS = dunders(" ".join([*ORDER, *ARITHMETIC, "contains"])) | IN_PLACE | {"divmod": divmod}
CANDIDATE_OPS = ALONE | AS_NUMBER | PAIRS

loops: list = []  # the first event loop stays: what it has begun may go on in the next call


def finish(awaitable: Any) -> Any:
    """Run an awaitable to its end, on a new loop if one is running, and return its result."""
    asyncio = importlib.import_module("asyncio")
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        if running or not loops:
            loops.append(asyncio.new_event_loop())
        return loops[-1].run_until_complete(awaitable)
    finally:
        if running:
            loops.pop().close()
        asyncio._set_running_loop(running)


def finish_next(x):
    return finish(type(x).__anext__(x))


FINISH = {"await": finish, "anext": finish_next}

# ---- what the judge serves -------------------------------------------------------------------------------------------
HOLD_DATA = set(
    "_io.StringIO _io.BytesIO types.SimpleNamespace argparse.Namespace queue.Queue queue.LifoQueue queue.PriorityQueue "
    "_queue.SimpleQueue random.Random re.Pattern re.Match".split()
)


def test_made(x: Any) -> bool:
    """True if the class of x is defined by a test (TreeNode), a mock, or one of the library that only holds data."""
    kind = type(x)
    return kind.__module__ in ("test", "unittest.mock") or f"{kind.__module__}.{kind.__name__}" in HOLD_DATA


def class_names(x):
    """Return the names of the classes of an object that a test has made."""
    return [kind.__name__ for kind in type(x).__mro__ if kind.__module__ == "test"]


def is_method(x):
    """True if a value in a class is a method there, also a cached, a partial one or one in C: no attribute of an object
    that a candidate may set in its place."""
    return callable(x) or hasattr(type(x), "__get__") and not hasattr(type(x), "__set__")


def test_field(x, name, *new):
    """Get an attribute of a test's object for a candidate, or set it to `new` -> its value. AttributeError if it may
    not: no test made the object, the name is private or a method's, or a mock would tell its test something by it."""
    kinds = type(x).__mro__
    mocks = [vars(kind) for kind in kinds if kind.__module__ == "unittest.mock"]
    tells_the_test = mocks and (new or name == "method_calls" or any(name in names for names in mocks))
    shadows = new and any(name in vars(kind) and is_method(vars(kind)[name]) for kind in kinds)
    private = name.startswith("__" if hasattr(type(x), "__given__") else "_")
    allowed = test_made(x) and not private and not tells_the_test and not shadows
    if type(x) is types.FunctionType and not new:
        allowed = allowed or name in ("__name__", "__qualname__", "__doc__")
    if not allowed:
        raise AttributeError(f"no {name!r} for the candidate")
    if new:
        setattr(x, name, *new)
    return getattr(x, name)


def if_made(op):
    """Wrap an operator so that it raises TypeError unless its first operand was made by a test."""

    def guarded(x, *args):
        if not test_made(x):
            raise TypeError("not for the candidate")
        return op(x, *args)

    return guarded


def run_coroutine(x):
    if type(x) is not types.CoroutineType:
        raise TypeError("not for the candidate")
    return finish(x)


GUARDED = "str repr format getitem setitem delitem reversed enter neg abs copy deepcopy".split()
JUDGE_OPS = {name: if_made(CANDIDATE_OPS[name]) for name in [*GUARDED, *AS_NUMBER, *PAIRS]}
JUDGE_OPS |= from_module(builtins, "iter next len bool hash") | dunders("eq")
JUDGE_OPS |= {"exit": if_made(leave), "getattr": test_field, "setattr": test_field, "await": run_coroutine}
JUDGE_OPS["class_names"] = class_names
