"""
Check that a value has the type that its field is annotated with.
"""
import sys
import types
import typing
from typing import Any


def check_types(cfg: Any) -> None:
    """Raise a ValueError if a field of a dataclass has not its annotated type (an int will do for a float)."""
    for name, kind in typing.get_type_hints(type(cfg)).items():
        value = getattr(cfg, name)
        if not fits(value, kind):
            raise ValueError(f"{name}={value!r}: expected {describe(kind)}, got {type(value).__name__}")


def fits(value: Any, kind: Any) -> bool:
    """Return True if a value has the annotated type."""
    if kind is Any:
        return True
    if isinstance(kind, types.UnionType):
        return any(fits(value, k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            return False
        inner = typing.get_args(kind)
        inner = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(inner) and all(map(fits, value, inner))
    if kind is float:  # neither inf nor nan, nor an int that is too large for a float
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


NAMES = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text", type(None): "None"}
EXAMPLES = {str: ("a,b", "('a', 'b')"), float: ("1,2", "(1, 2)"), int: ("1,8,1", "(1, 8, 1)")}  # of tuples


def describe(kind: Any) -> str:
    """Describe an annotation in words."""
    if isinstance(kind, types.UnionType):
        return " or ".join(describe(k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        pairs = "((0, 1), (500, 2))"
        shell, file = EXAMPLES.get(typing.get_args(kind)[0], (pairs, pairs))
        return f"a tuple, as in {shell} on the command line or {file} in a file"
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))
