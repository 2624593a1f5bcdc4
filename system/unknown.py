"""
What to say about a name that is none of ours, the key of another program or one that is misspelt, about a value of
another type, about a config file that fails, and about what ends a program.
"""
import contextlib
import difflib
import fnmatch
import functools
import importlib
import itertools
import os
import re
import traceback
import types
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "config/elsewhere.txt"
# What to say before the last column of FILE.
ANSWER = {"=": "here it is ", "-": "there is no such thing here: "}


@functools.cache
def foreign_keys():
    """Read config/elsewhere.txt: [[key of another program, "=" or "-", our key or why there is none], ...]."""
    lines = FILE.read_text().splitlines()
    return [line.split(maxsplit=2) for line in lines if line.strip() and line[0] != "#"]


def quote(value: Any) -> str:
    """Quote a value in a message: its type and its beginning."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def tensors(file: str, error: Exception) -> str:
    """Return the message for a safetensors file that cannot be opened."""
    folder = os.path.dirname(file)
    is_of_run = os.path.basename(folder).startswith("step-")  # checkpoint.py names its folders so
    cure = f"; delete {folder} to use the checkpoint before it" if is_of_run else ""
    return f"{file} is missing, truncated or not a safetensors file: {error}{cure}"


def load_variants() -> None:
    """Import all files of variants/ that can be loaded, so that the tables have all their names for a message. No run
    computes anything else after it, see sections.add."""
    for path in sorted(FILE.parents[1].glob("variants/*.py")):
        with contextlib.suppress(Exception):
            importlib.import_module(f"variants.{path.stem}")


def value(name: str, value: object, choices: Collection) -> str:
    """Return the message for a value that a key cannot have: those that it can have, and ours for it, or one that is
    spelled almost so. To choices that are a dict, files of variants/ may add."""
    more = ""
    if isinstance(choices, dict):
        load_variants()
        more = f"; no file variants/{value}.py adds it"
    message = f"{name}={value!r}: one of {', '.join(map(str, choices))}"
    near = difflib.get_close_matches(spelled(value), filter(None, map(str, choices)), 1, 0.7)
    return message + (of_value(name, value) or (f"; did you mean {near[0]!r}?" if near else more))


def spelled(value: object) -> str:
    """Spell a value as ours are spelled."""
    return str(value).lower().replace(".", "_").replace("-", "_")


def of_value(name: str, value: object) -> str:
    """Return what FILE says about a value of a key, to end a message; "" if it says nothing."""
    typed = f"{name}:{spelled(value)}"
    known = [ANSWER[sign] + answer for theirs, sign, answer in foreign_keys() if fnmatch.fnmatchcase(typed, theirs)]
    return f"; {known[0]}" if known else ""


def key(name: str, known: Collection[str], keys: Collection[str] = ()) -> str:
    """Return the message for a key that does not exist: our name for it, or the key that is spelled almost so.

    known: the keys of a run without variants; keys: those of variants, see index.all_keys"""
    message = f"unknown config key {name!r}"
    bare, leaf = name.removeprefix("model."), name.rpartition(".")[2]  # actor_rollout_ref.actor.kl_loss_coef
    file = bare.partition(".")[0]
    own = [one for one in keys if one.partition(".")[0] == file]
    words = dict.fromkeys((name, bare if own else leaf))
    for word, (theirs, sign, answer) in itertools.product(words, foreign_keys()):
        if fnmatch.fnmatchcase(word.replace("-", "_"), theirs):
            return f"{message}: {ANSWER[sign]}{answer}"
    names = {k: k for k in own or (*known, *keys) if "." in k or k in known}
    if bare == file:
        last = {k.split(".")[-1]: k for k in (*keys, *known)}
        names = last | names
    near = difflib.get_close_matches(bare.lower(), names, 1, 0.7)
    if near:
        message += f", did you mean {names[near[0]]!r}?"
    if own:
        return f"{message}; there are {', '.join(own)}"
    where = "see --help=all" if bare == file else f"there is no variants/{file}.py with keys"
    return message if near else f"{message}; {where}"


def keyword(name: str, known: Collection[str], keys: dict[str, Any]) -> str:
    """Return the message for a keyword of Config(...) that does not exist. known, keys: as in `key`."""
    if found := keys.get(name):
        owner = "ModelConfig" if found.kind == "Shape" else "Config"
        file, field = name.partition(".")[0], found.field
        return f"{name} is of a variant, {file}: {owner}(use=({found.written}({field and field + '=...'}),))"
    if f"model.{name}" in known:
        return f"{name} is a key of the model: model=ModelConfig({name}=...), or model=replace(base.model, {name}=...)"
    return key(name, known, keys)


def unreadable(name: str, text: str, kind: Any, keys: Collection[str]) -> str:
    """Return the message for the text of a key that is no value of its type. keys: as in `key`."""
    more = of_value(name, text)
    own = [key for key in keys if key.startswith(f"{name}.")]
    if own and not more:
        more = f"; the keys of {name} are {', '.join(own)}"
    return f"--{name}={text}: expected {expected(kind)}{more}"


def file(name: str) -> str:
    """Return the message for a config file that does not exist."""
    there = sorted(path.stem for path in FILE.parent.glob("[!_]*.py"))
    stem = os.path.basename(name).removesuffix(".py")
    if gone := [answer for theirs, sign, answer in foreign_keys() if fnmatch.fnmatchcase(f"config:{stem}", theirs)]:
        return f"no config file {name!r}: {gone[0]}"
    near = difflib.get_close_matches(stem, there, 1)
    question = f" (did you mean config/{near[0]}.py?)" if near else ""
    return f"no config file {name!r}{question}; as config/NAME.py there are {', '.join(there)}"


def raised(error: Exception, path: str, known: Collection[str], keys: Callable) -> str:
    """Return the message for an error that a config file raises, with the line of the file. known, keys():
    as in `key`, for a key of Config(...) or ModelConfig(...) that does not exist."""
    key = re.search(r"unexpected keyword argument '([\w.]+)'", str(error))
    message = str(error)
    if key:
        message = keyword(key[1], known, keys())
    elif not isinstance(error, (ValueError, ImportError, SyntaxError)):
        message = f"{type(error).__name__}: {message}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{path}{where}: {message}"


NAMES = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "text",
    type(None): "None",
}
EXAMPLES = {  # of tuples
    str: ("a,b", "('a', 'b')"),
    float: ("1,2", "(1, 2)"),
    int: ("1,8,1", "(1, 8, 1)"),
    Any: ("--lora=True", "(lora.Keys(),)"),
}


def expected(kind: Any) -> str:
    """Describe an annotation in words."""
    if isinstance(kind, types.UnionType):
        return " or ".join(expected(k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        pairs = "((0, 1), (500, 2))"
        shell, file = EXAMPLES.get(typing.get_args(kind)[0], (pairs, pairs))
        return f"a tuple, as in {shell} on the command line or {file} in a file"
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def explain(error: Exception) -> str:
    """Return the message of an error; one of the disk as a sentence, which begins with the file."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be read or written: {error.strerror[0].lower()}{error.strerror[1:]}"
    if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return ("the device has no memory left: a smaller batch_size or rollout_chunk, or more "
                f"gradient_accumulation_steps ({str(error).splitlines()[0][:200]})")  # fmt: skip
    return str(error) + place(error)


def place(error: Exception) -> str:
    """Return the last line outside of installed packages that led to an error; "" if that is a `raise`, for which
    somebody wrote the message."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.line and "/lib/python3" not in frame.filename]
    if not ours or str(ours[-1].line).startswith("raise "):
        return ""
    path, number, _, line = ours[-1]
    return f" ({path}, line {number}: {line})"
