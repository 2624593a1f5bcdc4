"""
Settings that are declared in the file that uses them.

A file outside the core declares its keys in `class Keys(Section)`; a variant of a model, in `class Shape(Section)`. A
run or a model has those that it uses in `use`: in a config file, use=(lora.Keys(rank=16),); on the command line,
--lora.rank=16, which opens the file of that name. Where a file has several sections, each says in `typed_as` what its
keys are typed with, and settings.FILE_OF names the file. A file reads its keys with `Keys.of(cfg)`: what the run has
set, or the defaults.
"""
import contextlib
import dataclasses
import glob
import itertools
import math
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

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


def check_value(name, field, value):
    """Raise a ValueError if a value is not one that the key's declaration allows. name: as it is typed."""
    choices, check = field.metadata.get("choices"), field.metadata.get("check")
    if field.metadata.get("table"):
        if isinstance(choices, dict):
            settings.plugged(choices, value)
        elif settings.load(f"variants.{value}"):
            return  # its table is above this file: rl.OBJECTIVES
    if choices and value not in choices:
        refuse(name, value, choices)
    if check and value is not None and not check.holds(value):
        raise ValueError(f"{name}={value!r} must be {check.expected}")


def refuse(name: str, value: Any, choices: Collection) -> NoReturn:
    """Raise the ValueError for a value that is none of the choices, to which files of variants/ may add if they are a
    dict."""
    from system import unknown  # reads the names of other programs

    if isinstance(choices, dict):
        settings.load_variants()
    raise ValueError(unknown.value(name, value, choices))


def check_fields(cfg: Any, prefix: str = "") -> None:
    """Raise a ValueError if a field of a dataclass of keys has not its annotated type, or a value that its declaration
    does not allow. prefix: what is typed before the names of its fields."""
    settings.check_types(cfg, prefix)
    for field in dataclasses.fields(cfg):
        check_value(prefix + field.name, field, getattr(cfg, field.name))


@dataclasses.dataclass(frozen=True)
class Section:
    """The keys of a file, declared in its class Keys, and all that it may change in a run that uses it.

    Here nothing changes; a file overrides what it needs. Where several of a run change the same thing, they do so one
    after the other, in the order of their names. cfg and c: the Config of the run."""

    typed_as: ClassVar[str] = ""  # what its keys are typed with; "": the name of its file
    brings: ClassVar[dict[str, str]] = {}  # of a Shape: the parts of a model that it names, as in {"mlp": "moe"}
    belongs_to: ClassVar[str | None] = None  # the key that has to name this file, or its own keys change nothing
    objective: ClassVar[str] = ""  # the only objective that reads these keys; "": each

    def __post_init__(self):
        check_fields(self, f"{settings.variant_of(self)}.")

    @classmethod
    def of(cls, cfg: Any) -> Self:
        """Return the section of this class that a run uses, or its defaults."""
        return next((section for section in cfg.use if isinstance(section, cls)), cls())

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
        """Return pack(name, shape, fetch, dtype), which stores a matrix (I, O) of a frozen base in another form while
        it is read (variants/quantized.py); None: it is read as it is."""
        return None

    @property
    def block(self) -> int | None:
        """Return the length of the blocks that a model fills one after the other; None: it has none."""
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
        """Change the advantages (N, G) of a rewards.Scored."""
        return adv

    def views(self, key: Any, views: Any, rollout: Any, cfg: Any) -> Any:
        """Change the diffusion.Views of a Rollout."""
        return views

    @property
    def term(self) -> Any:
        """Return the rl.Term that is added to the loss; None: nothing is."""
        return None

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
# Files outside variants/ that have keys, by the name that is typed before the dot.
ELSEWHERE = {
    "texts": "data.texts",
    "programs": "judges.programs",
    "adapt": "checkpoints.adapt",
    "checkpoint": "checkpoints.checkpoint",
    "evaluation": "loop.evaluation",
    "memory": "loop.memory",
    "runs": "loop.runs",
}
KINDS = "Keys", "Shape"  # of a run, of its model


def section_class(name: str, kind: str) -> type[Section] | None:
    """Import the file of this name -> its Section that is typed so; None if there is no such file, or no such class."""
    paths = [ELSEWHERE[name]] if name in ELSEWHERE else [f"variants.{file}" for file in settings.files_of(name)]
    for file in filter(None, map(settings.load, paths)):
        for own in vars(file).values():
            if isinstance(own, type) and issubclass(own, Section) and (variant_of(own), kind_of(own)) == (name, kind):
                return own
    return None


def kind_of(section: type[Section]) -> str:
    """Return Shape if a class has keys of a model, Keys if it has keys of a run, whatever it is called then."""
    return "Shape" if section.__name__ == "Shape" else "Keys"


def names() -> list[str]:
    """List what keys may be typed with, without opening a file."""
    paths = glob.glob(os.path.join(ROOT, "variants", "*.py"))
    return sorted({*ELSEWHERE, *settings.FILE_OF, *(os.path.basename(path)[:-3] for path in paths)})


class Key(NamedTuple):
    """A key of a section."""

    section: type[Section]
    field: str  # empty: the name of the file alone, with which the section is put in use or taken out

    @property
    def kind(self) -> str:
        """Return Keys if it is a key of a run, Shape if of its model."""
        return kind_of(self.section)

    @property
    def written(self) -> str:
        """Return its class as in a config file: lora.Keys."""
        return f"{self.section.__module__.rpartition('.')[2]}.{self.section.__name__}"

    @property
    def type(self) -> Any:
        """Return the annotation of its value."""
        return typing.get_type_hints(self.section)[self.field] if self.field else bool


def file_of(name: str) -> str:
    """Return the file that a key is typed with: lora of lora.rank."""
    return name.removeprefix("model.").partition(".")[0]


def fields_of(settings: Any) -> dict[str, dataclasses.Field]:
    """Return the fields of a dataclass {name: field}."""
    return {field.name: field for field in dataclasses.fields(settings)}


def find_key(name: str) -> Key | None:
    """Find a key of a section by its name, as in lora.rank, in the one file that may have it; None: there is none."""
    file, dot, field = name.partition(".")
    for kind in KINDS:
        section = section_class(file, kind)
        if section and (field in fields_of(section) or not dot):
            return Key(section, field)
    return None


def all_keys() -> dict[str, Key]:
    """Import all files with keys, used or not -> {name: Key}. Files that cannot be loaded are left out."""
    found: dict[str, Key] = {}
    for name in names():
        with contextlib.suppress(ValueError):
            for section in filter(None, (section_class(name, kind) for kind in KINDS)):
                found |= {name_of(section, field): Key(section, field) for field in fields_of(section)}
                found.setdefault(name, Key(section, ""))
    return found


def default_of(name: str) -> Any:
    """Return the default of a key of a section, whose file is imported; None if there is no such key."""
    found = find_key(name)
    return found and (fields_of(found.section)[found.field].default if found.field else True)


def name_of(section: type[Section], field: str) -> str:
    """Return how a key is typed."""
    return f"{variant_of(section)}.{field}"


def find(cfg: Any, name: str) -> Any:
    """Return the section of the file of this name that settings use; None: they use none. No file is imported."""
    return next((section for section in cfg.use if variant_of(section) == name), None)


def in_order(use: Any, kind: str) -> tuple:
    """Check the sections of `use` -> them, sorted by name, so that equal settings are equal. kind: of KINDS."""
    for section in use if isinstance(use, tuple) else (use,):
        if not isinstance(section, Section) or kind_of(type(section)) != kind or not isinstance(use, tuple):
            example = "(lora.Keys(rank=16),)" if kind == "Keys" else "(blocks.Shape(block=4),)"
            raise ValueError(f"use={use!r}: expected a tuple with {kind} of files of variants/, as in use={example}")
    used = sorted(use, key=variant_of)
    for one, other in itertools.pairwise(map(variant_of, used)):
        if one == other:
            raise ValueError(f"use={use!r} has {one}.{kind} twice")
    return tuple(used)


def with_keys_of(names: Iterable[str], use: tuple) -> tuple:
    """Add to `use` the Keys of files that are named by a value, as in loss_type=cispo, if they have some."""
    there = [*map(variant_of, use)]
    found = [section_class(name, "Keys") for name in dict.fromkeys(names) if name not in there]
    return *use, *(section() for section in found if section)


def changed(cfg: Any, values: dict[str, Any]) -> Any:
    """Return settings (a Config, ModelConfig or Plan) with these values {name: value}. lora.rank is the key of a
    section, which is put in use; lora=True does that alone, and lora=False takes it out."""
    use = {variant_of(section): section for section in values.get("use", cfg.use)}
    own = unsettled(cfg) if cfg.kind == "Shape" else {}
    for name, value in values.items():
        file, dot, field = name.partition(".")
        if name in fields_of(cfg):
            own |= {name: value} if name != "use" else {}
        elif dot or value:
            kind = section_class(file, cfg.kind)
            if kind is None or dot and field not in fields_of(kind):
                raise ValueError(f"{name}={value!r}: there is no such key")
            section = use.get(file) or kind()
            use[file] = dataclasses.replace(section, **{field: value}) if dot else section
        else:
            use.pop(file, None)
    return dataclasses.replace(cfg, use=tuple(use.values()), **own)


def flat(cfg: Any) -> dict[str, Any]:
    """Return the fields of settings, and the keys of the sections in use as they are typed {name: value}."""
    out = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg) if field.name != "use"}
    for section in cfg.use:
        name = variant_of(section)
        out |= {f"{name}.{field}": value for field, value in vars(section).items()} or {name: True}
    return out


# ---- the parts of a model --------------------------------------------------------------------------------------------


def settle(cfg: Any, tables: dict[str, dict]) -> dict[str, str]:
    """Decide which entry of each table a ModelConfig has: tables {field: table} -> {field: name}. It is the one that
    the field names, or that causal, shift or a Shape in `use` brings. ValueError if two of these say different things,
    if no table has the name, or if an entry needs a Shape that is not in `use`."""
    found = {field: (getattr(cfg, field), f"{field}={getattr(cfg, field)!r}") for field in tables}
    plain = {field: next(iter(table)) for field, table in tables.items()}
    brought = [(who, field, name) for who, brings in cfg.brought() for field, name in brings.items()]
    for who, field, name in brought:
        there, said_by = found[field]
        if there not in (plain[field], name):
            raise ValueError(f"{said_by} and {who} exclude each other in a model: both say what its {field} is")
        found[field] = name, who
    for field, (name, _) in found.items():
        if not settings.plugged(tables[field], name):
            refuse(field, name, tables[field])
        file = settings.written_in(tables[field][name])
        shape = section_class(file, "Shape")
        if shape and shape.brings.get(field) == name and (field, name) not in [said[1:] for said in brought]:
            raise ValueError(f"{field}={name!r} needs use=({file}.Shape(),), as in --{file}=True; without it, set "
                             f"{field}={plain[field]!r}")  # fmt: skip
    return {field: name for field, (name, _) in found.items()}


def unsettled(cfg: Any) -> dict[str, str]:
    """Return the fields of a ModelConfig that name what its sections brought, as they are without them."""
    return {field: str(fields_of(cfg)[field].default) for _, brings in cfg.brought() for field in brings}
