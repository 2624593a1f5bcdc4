"""
Rewards of the user's own: functions in a Python file, settings in parentheses, and what to say when a name is wrong, a
column lacks or a reward fails.
"""

import ast
import contextlib
import difflib
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from judges import rules


def find(spec, name, settings, known):
    """Find a reward that is in a file of the user or has settings -> its name, the function; a ValueError if there is
    none. spec: the name with its settings. known: {name: a reward, or what it is made from}."""
    if spec.count("(") > spec.count(")") and not settings:
        raise ValueError(f"the reward {spec!r} lacks a closing parenthesis, as in 'length(target=40)'")
    if name.endswith(".py"):
        raise ValueError(f"the reward {name!r} names a file without its function: write {name}:FUNCTION")
    path, colon, short = name.rpartition(":")
    if not colon and name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if name in ("overlong", "repetition"):
            hint = " It is gone: docs/tried.md says what it was."
        raise ValueError(f"no reward {name!r}.{hint} There are {', '.join(known)}, and path/to/file.py:function")
    if not colon and isinstance(known[name], str):
        raise ValueError(f"the reward {name!r} is made from {known[name]}")
    fn = load_function(path, short) if colon else known[name]
    return short, with_settings(short, fn, settings) if settings else fn


def load_function(path, name):
    """Import a reward from a Python file of the user; a ValueError names the mistake in one sentence."""
    where = f"reward {path}:{name}:"
    if not (os.path.isfile(path) and path.endswith(".py")):
        raise ValueError(f"{where} there is no Python file {path!r}")
    try:
        module = load_file(os.path.abspath(path), os.stat(path).st_mtime_ns)
    except (Exception, SystemExit) as e:
        raise ValueError(f"{where} {path} cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(getattr(module, name, None)):
        wrong = "is not a function" if hasattr(module, name) else "is not there"
        functions = [other for other, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{where} {name!r} {wrong}; the functions in {path} are {', '.join(functions) or 'none'}")
    return as_reward(where, name, getattr(module, name))


@functools.cache
def load_file(path, changed):
    """Import a file once, and again when the time at which it was changed is another, so that its functions share what
    is in it. Its name among the modules, where dataclasses look for it, is its path: a name would hide ours."""
    spec = importlib.util.spec_from_file_location(path, path)
    sys.modules[path] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_reward(where: str, name: str, fn: Any) -> Callable:
    """Make a reward of a user's function, which takes lists or one text.

    where: how the message begins if it takes neither.
    """
    wanted = list(inspect.signature(fn).parameters.values()) if callable(fn) else []
    if any(p.name in ("completions", "completion_ids") or p.kind is p.VAR_KEYWORD for p in wanted):
        return fn
    if wanted and wanted[0].name in ("completion", "text"):
        return rules.per_text(fn, blank=None)
    line = f" (line {fn.__code__.co_firstlineno})" if inspect.isfunction(fn) else ""
    raise ValueError(
        f"{where} it is {name}{inspect.signature(fn) if callable(fn) else f' = {fn!r}'}{line}; expected "
        f"{name}(prompts, completions, **columns), lists by these names, of which only completions is a "
        f"must, or {name}(completion), one text"
    )


# Parameters of a reward that a trainer fills, so that they are no settings.
GIVEN = {"text", "prompt", "prompts", "completion", "completions", "token_ids", "groups", "max_length",
         "tokens_per_pass", "first_reward"}  # fmt: skip


def with_settings(name: str, fn: Any, text: str) -> Any:
    """Set parameters of a reward for all rows: "target=40" sets target_length to 40; a prefix of the name is enough.

    A setting that reads as a number, a list, ... of Python is one, unless its parameter is annotated as a text."""
    rule = getattr(fn, "rule", fn)
    signature, settings = inspect.signature(rule), {}
    free = {p.name: p for p in signature.parameters.values() if p.name not in GIVEN and p.kind is not p.VAR_KEYWORD}
    for setting in re.split(r",\s*(?=\w+\s*=)", text):
        key, value = map(str.strip, setting.split("=", 1))
        found = [p for p in free if p == key] or [p for p in free if p.startswith(key)]
        if len(found) != 1:
            raise ValueError(f"the reward {name!r} has no setting {key!r}; there are {', '.join(free) or 'none'}")
        parameter = free.pop(found[0])
        settings[parameter.name] = literal(value) if parameter.annotation is not str else value
        if isinstance(parameter.default, (int, float)) and isinstance(literal(value), str):
            raise ValueError(f"the reward {name!r}: {key}={value} should be a number, as in {key}=1")
    bound = functools.update_wrapper(functools.partial(rule, **settings), rule)
    left = [p for name, p in signature.parameters.items() if name not in settings]
    bound.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    if rule is fn:
        return bound
    if fn.blank is not None and all(p.default is not p.empty for p in left[1:]):  # a rule of ours that needs but a text
        try:
            bound("a text")
        except Exception as e:
            raise ValueError(f"the reward {name!r} cannot be computed with {text}: {e}; correct that setting") from None
    return rules.per_text(bound, fn.blank)


def literal(text):
    """Read a text as a number, list, ... of Python, if it is one."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


# ---- when a reward fails ---------------------------------------------------------------------------------------------


def row_text(i, prompts, completions):
    """Describe a row in a message."""
    return f"row {i} (prompt {prompts[i][:60]!r}, completion {completions[i][:60]!r})"


def lacks_column(name, column, there, is_completion):
    """Say that a reward needs a column -> the error to raise. there: the columns that there are; is_completion: True if
    the completion of a row counts as it."""
    why = ": only a run knows how fast a completion was written" if column == "tokens_per_pass" else ""
    if is_completion:
        why = ". The completion of a row counts as it, but there is none (rewards.py: only with --check)"
    return ValueError(f"reward {name!r} needs the column {column!r}; there are {', '.join(there) or 'none'}{why}")


def why_it_failed(fn, error, call_rows, prompts, completions):
    """Say how a reward failed: the line that raised, and the first row on which it fails alone -> end of a message."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, RuntimeError) and frames[-1].filename.endswith(os.path.join("judges", "sandbox", "pool.py")):
        return f": {error}"  # a failure of the machine, for which no completion is to blame
    file = getattr(getattr(inspect.unwrap(fn), "__code__", None), "co_filename", None)
    at = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    culprit = "the batch as a whole, no single row"
    for i in range(len(prompts)):
        try:
            call_rows(slice(i, i + 1))
        except (Exception, SystemExit):
            culprit = row_text(i, prompts, completions)
            break
    chat = isinstance(error, TypeError) and str(error).startswith("string ind")  # completion[0]["content"]
    hint = "; prompts and completions are texts here, not chats: write completion, without [0][...]" if chat else ""
    return f" failed on {culprit}: {type(error).__name__}: {error} ({at.filename}:{at.lineno}){hint}"
