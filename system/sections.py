"""
Settings that are declared in the file that uses them, and tables of functions to which files add.

A file outside the core declares its keys in `class Keys(Section)`; a variant of a model, in `class Shape(Section)`. A
run or a model has those that it uses in `use`: in a config file, use=(lora.Keys(rank=16),); on the command line,
--lora.rank=16, which opens the file of that name. Where a file has several sections, each says in `typed_as` what its
keys are typed with, and FILE_OF names the file. A file reads its keys with `Keys.of(cfg)`: what the run has
set, or the defaults.
"""
import dataclasses
import difflib
import importlib
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

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


def require(field: str, name: Any, table: Collection[str]) -> None:
    """Raise a ValueError unless a table of functions has the name that a field gives."""
    if not plugged(table, name):
        refuse(field, name, table)


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
    for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_ff", "rope_theta", "max_positions"):
        value = getattr(cfg, name)
        yield value is not None and value < 1, f"{name}={value} must be at least 1"
    yield cfg.n_layer > 10_000, f"n_layer={cfg.n_layer}: no model has more than 10,000 layers"
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
        f"mask_id={cfg.mask_id} is also eos_id, one of end_ids, pad_id or bos_id: a mask must look like none of the "
        "tokens that can be there")


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
            plugged(choices, value)
        elif load(f"variants.{value}"):
            return  # its table is above this file: rl.OBJECTIVES
    if choices and value not in choices:
        refuse(name, value, choices)
    if check and value is not None and not check.holds(value):
        raise ValueError(f"{name}={value!r} must be {check.expected}")


def refuse(name: str, value: Any, choices: Collection) -> NoReturn:
    """Raise the ValueError for a value that is none of the choices, to which files of variants/ may add if they are a
    dict."""
    from system import unknown  # reads the names of other programs

    raise ValueError(unknown.value(name, value, choices))


def of_shape(array: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return the array that a function of a table or of a section made. ValueError if it has another shape: what
    follows would repeat it over rows or tokens."""
    if array.shape != shape:
        raise ValueError(f"the function of {name} returns the shape {array.shape}: expected {shape}")
    return array


def check_fields(cfg: Any, prefix: str = "") -> None:
    """Raise a ValueError if a field of a dataclass of keys has not its annotated type (an int will do for a float) or a
    value that its declaration allows. prefix: what is typed before the names of its fields."""
    types = typing.get_type_hints(type(cfg))
    for field in dataclasses.fields(cfg):
        name, value, kind = prefix + field.name, getattr(cfg, field.name), types[field.name]
        if not fits(value, kind):
            from system import unknown  # has the words

            hint = "; functions are given as train(config, rewards=...)" if "function " in repr(value) else ""
            raise ValueError(f"{name}={value!r}: expected {unknown.expected(kind)}, got {type(value).__name__}{hint}")
        check_value(name, field, value)


@dataclasses.dataclass(frozen=True)
class Section:
    """The keys of a file, declared in its class Keys, and all that it may change in a run that uses it.

    Here nothing changes; a file overrides what it needs. Where several of a run change the same thing, they do so one
    after the other, in the order of their names. cfg and c: the Config of the run."""

    typed_as: ClassVar[str] = ""  # what its keys are typed with; "": the name of its file
    brings: ClassVar[dict[str, str]] = {}  # of a Shape: the parts of a model that it names, as in {"mlp": "moe"}
    belongs_to: ClassVar[str | None] = None  # the key that has to name this file, or its own keys change nothing
    objective: ClassVar[str] = ""  # the only objective that reads these keys; "": each
    freezes: ClassVar[bool] = False  # True if it trains new parameters beside those that it starts from, which stay
    moves_reference: ClassVar[bool] = False  # True if the reference of the KL changes during the run
    reshapes: ClassVar[bool] = False  # True if the run makes a model of another shape of the one that it starts from
    copies: ClassVar[int] = 1  # how many rows of a batch of pretraining are made of one text
    in_sampling: ClassVar[bool] = False  # True if sampling needs these keys, as `row_logits` does

    def __init_subclass__(cls):
        """Refuse a method that has almost the name of one of these: nothing would call it."""
        for name in vars(cls).keys() - vars(Section):
            near = difflib.get_close_matches(name, vars(Section), 1, 0.8)
            if near and callable(vars(cls)[name]) and not name.startswith("_"):
                raise ValueError(f"a Section has no method {name}: did you mean {near[0]}?")

    def __post_init__(self):
        check_fields(self, f"{variant_of(self)}.")

    @classmethod
    def of(cls, cfg: Any) -> Self:
        """Return the section of this class that a run uses, or its defaults."""
        if getattr(cfg, "kind", "Keys") != kind_of(cls):
            raise ValueError(f"a {type(cfg).__name__} has not the keys of {variant_of(cls)}: Keys are read from a "
                             "Config, a Plan or the inputs of an estimator, a Shape from a ModelConfig")
        return next((section for section in cfg.use if isinstance(section, cls)), cls())

    @property
    def pack(self) -> Any:
        """Return pack(name, shape, fetch, dtype), which stores a matrix (I, O) of a frozen base in another form while
        it is read (variants/quantized.py); None: it is read as it is."""
        return None

    @property
    def block(self) -> int | None:
        """Return the length of the blocks that a model fills one after the other; None: it has none."""
        return None

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
        """Change the diffusion.Views of a Rollout. key: that of their estimator, so fold in a number of your own."""
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
        """Make a context that gives an object with log(values, step), where a run logs as well; None: nowhere else."""
        return None

    # ---- what has to hold
    def between_keys(self, c: Any) -> Iterator[tuple[Any, str]]:
        """Yield (True if wrong, message) for all that has to hold between these keys and those of the Config c."""
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
}
KINDS = "Keys", "Shape"  # of a run, of its model


def section_class(name: str, kind: str) -> type[Section] | None:
    """Import the file of this name -> its Section that is typed so; None if there is no such file, or no such class."""
    paths = [ELSEWHERE[name]] if name in ELSEWHERE else [f"variants.{file}" for file in files_of(name)]
    for file in filter(None, map(load, paths)):
        for own in vars(file).values():
            if isinstance(own, type) and issubclass(own, Section) and (variant_of(own), kind_of(own)) == (name, kind):
                if own.__annotations__ and "__dataclass_fields__" not in vars(own):
                    raise ValueError(f"{own.__module__}.{kind} lacks @dataclasses.dataclass(frozen=True) above it")
                return own
    return None


def kind_of(section: type[Section]) -> str:
    """Return Shape if a class has keys of a model, Keys if it has keys of a run, whatever it is called then."""
    return "Shape" if section.__name__ == "Shape" else "Keys"


def fields_of(settings: Any) -> dict[str, dataclasses.Field]:
    """Return the fields of a dataclass {name: field}."""
    return {field.name: field for field in dataclasses.fields(settings)}


def find(cfg: Any, name: str) -> Any:
    """Return the section of the file of this name that settings use; None: they use none. No file is imported."""
    return next((section for section in cfg.use if variant_of(section) == name), None)


def in_order(use: tuple, kind: str, named: Iterable[str] = ()) -> tuple:
    """Check the sections of `use` -> them, sorted by name, so that equal settings are equal. kind: of KINDS. named: the
    files that are named by a value, as in loss_type=cispo, whose Keys are added if they have some."""
    if not all(isinstance(section, Section) and kind_of(type(section)) == kind for section in use):
        raise ValueError(f"use={use!r}: expected a tuple with {kind} of files of variants/, as in use=(FILE.{kind}(),)")
    there = [*map(variant_of, use)]
    if len(set(there)) < len(use):
        raise ValueError(f"use={use!r} has the {kind} of a file twice")
    added = [section_class(name, kind) for name in dict.fromkeys(named) if name not in there]
    return tuple(sorted([*use, *(section() for section in added if section)], key=variant_of))


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
                raise ValueError(f"no file of variants/ has {name}, which such a model needs")
            section = use.get(file) or kind()
            use[file] = dataclasses.replace(section, **{field: value}) if dot else section
        else:
            use.pop(file, None)
    return dataclasses.replace(cfg, use=tuple(use.values()), **own)


def flat(cfg: Any) -> dict[str, Any]:
    """Return the fields of settings, and the keys of the sections in use as they are typed {name: value}."""
    out = {name: value for name, value in vars(cfg).items() if name != "use"}
    for section in cfg.use:
        name = variant_of(section)
        out |= {f"{name}.{field}": value for field, value in vars(section).items()} or {name: True}
    return out


# ---- the parts of a model --------------------------------------------------------------------------------------------


def settle(cfg: Any, tables: dict[str, dict]) -> dict[str, str]:
    """Decide which entry of each table a ModelConfig has: tables {field: table} -> {field: name}. It is the one that
    the field names, or that causal, shift or a Shape in `use` brings. ValueError if two of these say different things,
    if no table has the name, or if an entry needs a Shape that is not in `use`."""
    names = {field: getattr(cfg, field) for field in tables}
    said_by = {field: f"{field}={name!r}" for field, name in names.items()}
    plain = {field: next(iter(table)) for field, table in tables.items()}
    for who, brings in cfg.brought():
        for field, name in brings.items():
            if names[field] not in (plain[field], name):
                raise ValueError(f"{said_by[field]} and {who} exclude each other in a model: both say what its {field} "
                                 "is")  # fmt: skip
            names[field], said_by[field] = name, who
    for field, name in names.items():
        require(field, name, tables[field])
        file = written_in(tables[field][name])
        shape = section_class(file, "Shape")
        if shape and shape.brings.get(field) == name and shape not in map(type, cfg.use):
            raise ValueError(f"{field}={name!r} needs use=({file}.Shape(),), as in --{file}=True; without it, set "
                             f"{field}={plain[field]!r}")  # fmt: skip
    return names


def unsettled(cfg: Any) -> dict[str, str]:
    """Return the fields of a ModelConfig that name what its sections brought, as they are without them."""
    return {field: str(fields_of(cfg)[field].default) for _, brings in cfg.brought() for field in brings}
