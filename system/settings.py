"""
Settings are frozen dataclasses: how variants add to them, which types their fields have, and what has to hold.
"""
import contextlib
import importlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

# ---- what variants add -----------------------------------------------------------------------------------------------


def load(module: str) -> types.ModuleType | None:
    """Import a file of ours; None if it is not there. ValueError if it cannot be imported."""
    folder, _, name = module.rpartition(".")
    if not name.isidentifier():
        return None
    try:
        return importlib.import_module(module)
    except Exception as e:
        if not (isinstance(e, ModuleNotFoundError) and e.name in (folder, module)):
            raise ValueError(f"{module.replace('.', '/')}.py cannot be loaded: {type(e).__name__}: {e}") from e
    return None


def load_variants() -> None:
    """Import all files of variants/ that can be loaded, so that the tables have all their names for a message. No run
    computes anything else after it, see `add`."""
    for path in sorted(Path(__file__).parents[1].glob("variants/*.py")):
        with contextlib.suppress(ValueError):
            load(f"variants.{path.stem}")


class Table(dict):
    """A choice among functions by name, to which files of variants/ add. What was compiled with a function is forgotten
    when its name gets another one, as when a cell of a notebook is run again: equal settings then mean something else.
    """

    def __setitem__(self, name: str, function: Any) -> None:
        if self.get(name, function) is not function:
            import jax  # what reads settings alone can do without

            jax.clear_caches()
        super().__setitem__(name, function)

    def __delitem__(self, name: str) -> None:
        self[name] = None  # to forget what was compiled
        super().__delitem__(name)


# The files of variants/ that have entries or keys of other names than their own {name: file}.
FILE_OF = (
    dict.fromkeys(("one_step", "coupled", "exact", "trace", "quadrature", "strata", "masked_prompt"), "estimators")
    | dict.fromkeys(("margin", "dream", "static", "dynamic", "factor", "entropy"), "rules")
    | dict.fromkeys(("wd1", "bnpo", "cispo", "k2_sequence", "nll", "entropy_bonus"), "losses")
)


def add(table: dict[str, Any], **functions: Any) -> None:
    """Add the functions of a file of variants/ to a table. A name that somebody has set is not overwritten, whether
    they set it before the file was imported or after."""
    for name, function in functions.items():
        if name not in table or written_in(table[name]) == written_in(function):
            table[name] = function


def files_of(name: Any) -> list[str]:
    """List the files of variants/ that may have this name: one that is called so, which may be a user's own, and the
    one that is written in FILE_OF."""
    return [name, FILE_OF[name]] if name in FILE_OF else [name]


def plugged(table: Collection[str], name: Any) -> bool:
    """Say if a table of functions has this name, after importing the file of variants/ that adds it."""
    for file in files_of(name):
        if name not in table:
            load(f"variants.{file}")
    return name in table


def variant_named(table: dict[str, Any], name: str) -> str:
    """Return the name of an entry, whose keys a run then uses; "" if it is the core's or somebody else's own."""
    return name if written_in(table[name]) in files_of(name) else ""


def written_in(entry: Any) -> str:
    """Return the name of the file of variants/ that the function of a table is written in, or one of a record's; ""
    if it is written elsewhere."""
    functions = entry if isinstance(entry, tuple) else (entry,)
    return max(f.__module__.partition("variants.")[2] for f in functions if callable(f))


def variant_of(section: Any) -> str:
    """Return what the keys of a section, or of a class of sections, are typed with."""
    return section.typed_as or section.__module__.rpartition(".")[2]


# ---- types -----------------------------------------------------------------------------------------------------------


def check_types(cfg: Any, prefix: str = "") -> None:
    """Raise a ValueError if a field of a dataclass has not its annotated type (an int will do for a float).

    prefix: what is typed before the names of its fields"""
    for name, kind in typing.get_type_hints(type(cfg)).items():
        if typing.get_origin(kind) is ClassVar:
            continue
        value = getattr(cfg, name)
        if not fits(value, kind):
            from system import unknown  # has the words

            raise ValueError(f"{prefix}{name}={value!r}: expected {unknown.expected(kind)}, got {type(value).__name__}")


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


# ---- what has to hold ------------------------------------------------------------------------------------------------


def check(cfg: Any, *rules: Callable) -> None:
    """Raise a ValueError if a rule is broken. rules: each is called with cfg and yields (True if wrong, message)."""
    for rule in rules:
        for wrong, message in rule(cfg):
            if wrong:
                raise ValueError(message)


def rules_of_a_model(cfg: Any) -> Iterator[tuple[Any, str]]:
    """Yield (True if wrong, message) for the fields of a model.ModelConfig that belong to no variant."""
    for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_ff"):
        value = getattr(cfg, name)
        yield value is not None and value < 1, f"{name}={value} must be at least 1"
    yield cfg.d_head is None and cfg.d_model % cfg.n_head, (
        f"d_model={cfg.d_model} must be divisible by n_head={cfg.n_head} (or set d_head)")
    yield cfg.n_kv_head is not None and (cfg.n_kv_head < 1 or cfg.n_head % cfg.n_kv_head), (
        f"n_head={cfg.n_head} must be divisible by n_kv_head={cfg.n_kv_head}")
    yield cfg.head_dim * cfg.rotary_share % 2 or not 0 < cfg.rotary_share <= 1, (
        f"rotary positions turn pairs, but here {cfg.rotary_share} of a head's {cfg.head_dim} columns: make that an "
        "even number")
    yield cfg.causal and not cfg.shift, (
        "causal=True needs shift=True: a position that sees its own token cannot predict it")
    yield "causal" in (cfg.mask, cfg.read) and not cfg.causal, (
        f"mask={cfg.mask!r}, read={cfg.read!r} need causal=True; without it, set mask='all' and read='own'")
    yield cfg.read == "shifted" and not cfg.shift, "read='shifted' needs shift=True; without it, set read='own'"
    yield cfg.dtype not in ("float32", "bfloat16"), f"dtype={cfg.dtype!r}: one of float32, bfloat16 (no other 16 bits)"
    ids = [(name, getattr(cfg, name)) for name in ("mask_id", "eos_id", "pad_id", "bos_id")]
    ids += [("end_ids", i) for i in cfg.end_ids]
    for name, i in ids:
        # A causal model never reads a mask, so its id may lie beyond the vocabulary: all others are text.
        size = cfg.vocab_size + (cfg.causal and name == "mask_id")
        yield i is not None and not 0 <= i < size, f"{name}={i} is outside the vocabulary of {cfg.vocab_size} ids"
    yield cfg.mask_id is not None and cfg.mask_id in (*cfg.ends, cfg.pad_id, cfg.bos_id), (
        f"mask_id={cfg.mask_id}, eos_id={cfg.eos_id}, end_ids={cfg.end_ids}, pad_id={cfg.pad_id}, "
        f"bos_id={cfg.bos_id}: a mask must look like none of the tokens that can be there")
