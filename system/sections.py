"""
Settings that are declared in the file that uses them.

A file outside the core declares its keys in `class Keys(Section)`; a variant of a model, in `class Shape(Section)`.
Config and ModelConfig read them as their own: somebody who types a key, or writes it in a config file, uses the section
that has it, and `use` says which these are. A file reads its keys with `Keys.of(cfg)`: what the run has set, or the
defaults. The first field of a Shape is its switch: with False or None a model goes without that variant.
"""
import ast
import contextlib
import dataclasses
import functools
import glob
import math
import os
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, Self

from system import settings
from system.settings import variant_of

# ---- how a key is declared -------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """A condition on a value, and what a message says the value must be."""

    holds: Callable[[Any], bool]  # None always passes
    expected: str


def within(low: float, high: float, expected: str) -> Check:
    """Return the check that a value lies from low to high."""

    def holds(value):
        return low <= value <= high

    return Check(holds, expected)


def at_least(n: float) -> Check:
    """Return the check that a value is at least n."""
    return within(n, math.inf, f"at least {n}")


SMALLEST = sys.float_info.min  # the smallest number above 0
NON_NEGATIVE, POSITIVE_INT, POSITIVE = at_least(0), at_least(1), within(SMALLEST, math.inf, "above 0")
BELOW_1 = within(0, math.nextafter(1, 0), "at least 0 and below 1")
FRACTION = within(0, 1, "from 0 to 1")


def key(default: Any, meaning: str, check: Check | None = None, choices: Collection = (), section: str = "",
        table: bool = False) -> Any:
    """Declare a key: its default, its line in --help, and which values are allowed.

    choices: the values, a dict of functions or their names; --help lists those of a dict. section: the title above this
    key in --help. table: True if a file of variants/ may add to the choices; its name is a value, too.
    """
    metadata = dict(meaning=meaning, check=check, choices=choices, section=section, table=table)
    return dataclasses.field(default=default, metadata=metadata)


def check_value(field, value):
    """Raise a ValueError if a value is not one that the key's declaration allows."""
    choices, check = field.metadata.get("choices"), field.metadata.get("check")
    if field.metadata.get("table"):
        if isinstance(choices, dict):
            settings.plugged(choices, value)
        elif settings.load(f"variants.{value}"):
            return  # its table is above this file: rl.OBJECTIVES
    if choices and value not in choices:
        refuse(field.name, value, choices)
    if check and value is not None and not check.holds(value):
        raise ValueError(f"{field.name}={value!r} must be {check.expected}")


def refuse(name: str, value: Any, choices: Collection) -> NoReturn:
    """Raise the ValueError for a value that is none of the choices, to which files of variants/ may add if they are a
    dict."""
    from system import unknown  # reads the names of other programs

    if isinstance(choices, dict):
        settings.load_variants()
    raise ValueError(unknown.value(name, value, choices))


def check_fields(cfg: Any) -> None:
    """Raise a ValueError if a field of a dataclass of keys has not its annotated type, or a value that its declaration
    does not allow."""
    settings.check_types(cfg)
    for field in dataclasses.fields(cfg):
        check_value(field, getattr(cfg, field.name))


@dataclasses.dataclass(frozen=True)
class Section:
    """The keys of a file, declared in its class Keys, and all that it may change in a run that uses it.

    Here nothing changes; a file overrides what it needs. Where several of a run change the same thing, they do so one
    after the other, in the order of their names. cfg and c: the Config of the run."""

    def __post_init__(self):
        check_fields(self)

    @classmethod
    def of(cls, cfg: Any) -> Self:
        """Return the section of this class that a run uses, or its defaults."""
        return next((section for section in getattr(cfg, "use", ()) if isinstance(section, cls)), cls())

    @property
    def freezes(self) -> bool:
        """True if the run trains new parameters beside those that it starts from, which stay as they are."""
        return False

    @property
    def moves_reference(self) -> bool:
        """True if the reference of the KL changes during the run."""
        return False

    @property
    def reshapes(self) -> bool:
        """True if the run makes a model of another shape of the one that it starts from."""
        return False

    @property
    def pack(self) -> Any:
        """Return pack(name, shape, fetch, dtype), which stores the matrices (L, I, O) of a frozen base in another form
        while they are read (variants/quantized.py); None: they are read as they are."""
        return None

    @property
    def copies(self) -> int:
        """Return how many rows of a batch of pretraining are made of one text."""
        return 1

    # ---- data
    def rows(self, rows: list[dict], split: str, cfg: Any) -> list[dict]:
        """Choose the rows of a split that the run uses."""
        return rows

    def rows_of_steps(self, rows: list[dict], cfg: Any) -> Callable | None:
        """Return the function of the step that gives the indices of the rows it may learn from; None: all."""
        return None

    def noise(self, draw: Callable, cfg: Any) -> Callable:
        """Return what draws masks in pretraining, in place of `draw` (diffusion.noise)."""
        return draw

    # ---- sampling
    @property
    def in_sampling(self) -> bool:
        """True if sampling needs these keys, as `row_logits` does."""
        return False

    def row_logits(self, z: Any, valid: Any, cfg: Any, plan: Any) -> Callable | None:
        """Return change(logits (N, V), row (N,)) for tokens that are drawn for rows of z (B, T); None: no change. cfg:
        the ModelConfig."""
        return None

    def logits(self, logits: Any, place: Any, rollout: Any, cfg: Any) -> Any:
        """Change the logits (N, V) of tokens of a Rollout at a diffusion.Place, as when they were drawn."""
        return logits

    # ---- a rollout: rewards, advantages, noisy copies
    def reward(self, values: Any, cfg: Any) -> Any:
        """Change the values (n,) of each reward."""
        return values

    def credit(self, found: Any, adv: Any, cfg: Any) -> Any:
        """Change the advantages (N, G) of an rl.Scored."""
        return adv

    def views(self, key: Any, views: Any, rollout: Any, cfg: Any) -> Any:
        """Change the diffusion.Views of a Rollout."""
        return views

    # ---- parameters, and what is logged
    def split(self, params: dict, key: Any, cfg: Any) -> tuple[dict, dict | None]:
        """Split starting params into those that are trained and the frozen others, if `freezes`."""
        return params, None

    def whole(self, params: dict, base: dict, cfg: Any) -> dict:
        """Join the two parts that `split` made: the params of a model."""
        return params

    def reference(self, state: Any, cfg: Any) -> Any:
        """Return the reference of the KL after an iteration: state is the rl.State then."""
        return state.reference

    def logger(self, cfg: Any) -> Any:
        """Begin to log elsewhere -> an object with log(values, step); None: not."""
        return None

    # ---- what has to hold
    def between_keys(self, c: Any) -> Iterator[tuple[Any, str]]:
        """Yield (True if wrong, message) for everything that has to hold between these keys and those of the Config c.
        """
        yield from ()

    def fits(self, c: Any, shape: Any, where: str) -> Iterator[tuple[Any, str]]:
        """Yield (True if wrong, message) for everything that has to hold between these keys, the Config c and the
        ModelConfig that the run starts from. where: whose model it is."""
        yield from ()


# ---- the keys of all files -------------------------------------------------------------------------------------------

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = "variants", "data", "judges", "system", "checkpoints", "loop"


class Declared(NamedTuple):
    """Where a key is declared."""

    module: str
    kind: str  # its class: Keys for the keys of a run, Shape for those of its model

    @property
    def variant(self) -> str:
        """Return the name that is typed after --use."""
        return self.module.rpartition(".")[2]


@functools.cache
def declared_keys() -> dict[str, Declared]:
    """Find the keys of all files, used or not, in their source."""
    found: dict[str, Declared] = {}
    for path in (path for folder in FOLDERS for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.py")))):
        with open(path) as file:
            source = file.read()
        if not re.search(r"^class (Keys|Shape)\b", source, re.M):
            continue
        module, classes = os.path.relpath(path, ROOT).removesuffix(".py").replace(os.sep, "."), []
        with contextlib.suppress(SyntaxError):  # importing it says what is wrong
            classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
        for kind in classes:
            if kind.name in ("Keys", "Shape"):
                fields = [field.target for field in kind.body if isinstance(field, ast.AnnAssign)]
                names = {key.id for key in fields if isinstance(key, ast.Name)}
                if twice := names & found.keys():
                    raise ValueError(f"{path}: there is a key {min(twice)} elsewhere, choose another name")
                found |= dict.fromkeys(sorted(names), Declared(module, kind.name))
    return found


def file_of(name: str) -> types.ModuleType | None:
    """Import the file that declares the section of this name, or a file of variants/; None if there is none."""
    modules = {found.variant: found.module for found in declared_keys().values()}
    return settings.load(modules.get(name, f"variants.{name}"))


def section_of(name: str) -> Any:
    """Return the class that declares a key."""
    found = declared_keys()[name]
    return getattr(file_of(found.variant), found.kind)


def with_sections(use: tuple, names: Collection[str], kind: str = "Keys") -> tuple:
    """Add to the sections of `use` those of these names, with their defaults, if their files have keys.

    kind: see Declared."""
    for section in use:
        if not dataclasses.is_dataclass(section) or type(section).__name__ != kind:
            raise ValueError(f"use={use!r}: expected {kind} of files of variants/, as in use=(nll.Keys(),)")
    there = [variant_of(section) for section in use]
    if len({*there}) < len(there):
        raise ValueError(f"use={use!r} has a variant twice")
    kinds = [getattr(file_of(name), kind, None) for name in dict.fromkeys(names) if name not in there]
    return *use, *(section() for section in kinds if section)


def with_values(use: tuple, values: dict[str, Any], kind: str = "Keys") -> tuple:
    """Return the sections with these values {key: value}, sorted by name; those that are missing are added, and those
    that are switched off are left out. kind: see Declared."""
    declared = {name: declared_keys()[name] for name in values}
    off = {found.variant for name, found in declared.items() if is_off(name, values[name])}
    use = tuple(section for section in use if variant_of(section) not in off)
    wanted = {found.variant: found.module for found in declared.values() if found.variant not in off}
    use = with_sections(use, wanted, kind)
    if lacking := {*wanted.values()} - {type(section).__module__ for section in use}:
        path = min(lacking).replace(".", "/")
        raise ValueError(f"{path}.py cannot be loaded: it is not there, or another folder of this name comes first")

    def changed(section):
        own = {name: value for name, value in values.items() if name in section.__dataclass_fields__}
        return dataclasses.replace(section, **own)

    return tuple(sorted(map(changed, use), key=variant_of))


def is_off(name: str, value: Any) -> bool:
    """True if a value says that a model goes without the variant with this key: None or False for its first one."""
    found = declared_keys()[name]
    if found.kind == "Keys" or not (value is None or value is False):
        return False
    section = getattr(file_of(found.variant), "Shape", Section)
    return name in [*section.__dataclass_fields__][:1]


def named_by_use(names: Iterable[str]) -> list[str]:
    """Check names of variants after --use -> a list of them."""
    names = [*names]
    for name in names:
        if not {"Keys", "Shape"} & {*vars(file_of(name) or object)}:
            from system import unknown

            there = sorted({declared.variant for declared in declared_keys().values()})
            said = unknown.value("use", name, there)
            raise ValueError(f"{said} (there is no variants/{name}.py with keys of its own, class Keys or Shape)")
    return names


class Flat(type):
    """The class of settings that take the keys of sections as they take their own, and put them into `use`."""

    kind = "Keys"

    def __call__(cls, *args, **keys):
        if twice := cls.__dataclass_fields__.keys() & declared_keys().keys():
            raise ValueError(f"{declared_keys()[min(twice)].module}: there is a key {min(twice)} elsewhere: rename it")
        declared = [name for name, found in declared_keys().items() if found.kind == cls.kind and name in keys]
        given = keys.get("use", ())
        given = given if isinstance(given, tuple) else (given,)
        names = named_by_use(name for name in given if isinstance(name, str))
        if others := [name for name in names if not hasattr(file_of(name), cls.kind)]:
            owner = {"Keys": "the model of a run: ModelConfig", "Shape": "a run: Config"}[cls.kind]
            raise ValueError(f"use={others[0]!r}: variants/{others[0]}.py has keys of {owner}(use=({others[0]!r},))")
        use = with_sections(tuple(section for section in given if not isinstance(section, str)), names, cls.kind)
        keys["use"] = with_values(use, {name: keys.pop(name) for name in declared}, cls.kind)
        return super().__call__(*args, **keys)


class Shaped(Flat):
    """The class of settings of a model, whose sections are the Shapes of variants."""

    kind = "Shape"


def used(table: dict[str, Any], cfg: Any) -> dict[str, Any]:
    """Return the entries of a table that belong to sections that settings use, in the order of the table."""
    names = [*map(variant_of, cfg.use)]
    return {name: entry for name, entry in table.items() if name in names}
