"""Find out which tests evaluate nothing that a completion hands over, so that one judge may run many of them.

Such a test has only asserts, assignments and calls. They are made of constants, the test's own variables, builtins that
compute something and keep nothing, and calls of the function that the test is about (`entry`). There is no other name
of the completion, no attribute but those of `math`, no import, definition, lambda, `with` or `try`.
"""

import ast
import functools
import warnings

from judges.sandbox.jobs import Job

LONGEST = 10_000  # characters of a test that is looked at: bounds the time and the stack of the parser
BUILTINS = set(
    """abs all any bin bool bytes chr complex dict divmod enumerate filter float frozenset hash hex int isinstance len
    list map max min oct ord pow range repr reversed round set slice sorted str sum tuple zip""".split()
)
PARTS = """Module Assert Assign Expr Pass Constant List Tuple Set Dict JoinedStr FormattedValue
    Compare BoolOp BinOp UnaryOp IfExp Slice Starred keyword cmpop boolop operator unaryop expr_context
    ListComp SetComp DictComp GeneratorExp comprehension"""
KINDS = tuple(getattr(ast, name) for name in PARTS.split())


def only_plain(job: Job) -> bool:
    """True if all tests of a job are of this kind."""
    if job.language != "python" or not job.entry.isidentifier():
        return False
    return all(type(test) is str and plain_test(test, job.entry) for test in job.tests)


@functools.lru_cache(10_000)  # the completions of a group share their tests
def plain_test(source, entry):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a "\d" in a test is no news for the trainer's console
            nodes = [*ast.walk(ast.parse(source[:LONGEST]))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    shadows = stored & (BUILTINS | {entry, "math"}) or any(name.startswith("__") for name in stored | {entry})
    return len(source) < LONGEST and not shadows and all(is_plain(n, entry, stored) for n in nodes)


def is_plain(n, entry, stored):
    """Check one node. A variable may hold an answer, so it is read and never called."""
    if isinstance(n, ast.Call):
        return isinstance(n.func, ast.Attribute) or isinstance(n.func, ast.Name) and n.func.id not in stored
    if isinstance(n, ast.Attribute):
        of_math = isinstance(n.value, ast.Name) and n.value.id == "math"
        return of_math and isinstance(n.ctx, ast.Load) and not n.attr.startswith("_")
    if isinstance(n, ast.Name):
        return n.id in stored | BUILTINS | {entry, "math"}
    if isinstance(n, ast.Subscript):
        return isinstance(n.ctx, ast.Load)
    return isinstance(n, KINDS)
