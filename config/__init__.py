"""
The keys of a run, and the loader:  python train.py config/sudoku.py --learning_rate=1e-3 --n_layer=2

A config file is ordinary Python that defines `config = Config(...)`; the command line changes it. Keys are checked by
name, type and value before anything compiles. `python train.py --help=all` prints every key.

A *recipe* is a config file for a model that has to be downloaded. It defines up to four dicts more: `downloads`, where
the model and data come from; `shape`, the keys of the model, so that --plan needs no download; `tiny`, the keys that
--model=tiny changes to try the recipe on a random model (data/tiny); and `small`, those that --model=small changes to
try it on a model that our own pretraining makes in minutes. sudoku9_grpo.py, for a GPU, has the last two as well.
"""

import ast
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
import runpy
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import jax

import diffusion
import grpo
import sample
from model import ModelConfig
from system import sections, terminal
from system.sections import (
    BELOW_1,
    FRACTION,
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    SMALLEST,
    Check,
    Section,
    at_least,
    check_fields,
    key,
    variant_of,
    within,
)

__all__ = ["Section", "key", "variant_of"]  # for the files that declare keys

# ---- the keys --------------------------------------------------------------------------------------------------------


def can_start(path):
    """False for an empty path, and for the words that init_from takes in nanoGPT."""
    return path not in ("", "resume", "scratch")


def may_be_filled(path):
    """False for an empty path, for a file, and for / and the home, which no run may fill."""
    taken = not path or os.path.isfile(path)
    return not taken and os.path.abspath(os.path.expanduser(path)) not in ("/", os.path.expanduser("~"))


FOLDER = Check(may_be_filled, "the name of a folder of its own, as in out/try")
SOURCE = Check(bool, "None, a folder or a config file")
START = Check(can_start, "None, a folder or a config file; --resume=True continues the run in out_dir")
GROUP = at_least(2)._replace(expected="at least 2: a completion is compared with the others of its group")
PASSING = POSITIVE._replace(expected="above 0: a completion that earns nothing would pass")
SEED = within(0, 2**32 - 1, "at least 0 and below 2**32")
MASK_RATIO = within(SMALLEST, 1, "above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of a run. Names, types, values and what has to hold between keys are checked: ValueError."""

    objective: str = key("pretrain", "what to optimize: pretrain (fine-tuning if rows have prompts), judge, grpo",
                         choices=("pretrain", "judge", "grpo"), table=True, section="run")
    out_dir: str = key("out/run", "folder for checkpoints, logs and report.html", FOLDER)
    init_from: str | None = key(None, "a model (folder or ORG/NAME), out_dir or config file (trained first)", START)
    base: tuple[str, ...] = key((), "keys for the config file in init_from, as in seed=1,max_iters=9; or --base.seed=1")
    resume: bool = key(False, "continue the run in out_dir; otherwise an earlier run there is moved aside")
    seed: int = key(0, "random seed: the same seed on the same machine gives the same run", SEED)
    max_iters: int = key(1000, "optimizer steps; grpo: rollouts, each with all its updates", POSITIVE_INT)
    stop_at: float | None = key(None, "stop once val/sampled (judge: val/pair_acc) exceeds this", BELOW_1)
    eval_only: bool = key(False, "evaluate the newest checkpoint (or init_from) and exit")
    log_interval: int = key(10, "steps between lines of metrics.jsonl (grpo: and of rollouts.jsonl)", POSITIVE_INT)
    eval_interval: int = key(100, "steps between evaluations on val", POSITIVE_INT)
    eval_size: int = key(256, "number of val rows per evaluation", POSITIVE_INT)
    eval_rewards: tuple[str, ...] = key((), "rewards for evaluations only, never trained on; the first decides")
    pass_at: float | None = key(None, "lowest first reward that passes; None: pass rates are its mean", PASSING)
    save_interval: int = key(500, "steps between checkpoints", POSITIVE_INT)

    mesh: tuple[int, int, int] | None = key(None, "devices on data (whole models), fsdp and tensor; None: all on fsdp",
                                            section="many devices")

    dataset: str = key("sudoku", "a folder in data/, your own folder or file (JSONL, JSON, txt, Parquet), or ORG/NAME",
                       section="data")
    num_epochs: float | None = key(None, "passes over the train rows, instead of max_iters", POSITIVE)
    max_prompt_len: int = key(20, "tokens per prompt, padded on the left", NON_NEGATIVE)
    max_new_tokens: int = key(20, "tokens per completion, padded with end-of-text", POSITIVE_INT)

    batch_size: int = key(32, "rows per step; grpo: prompts per rollout", POSITIVE_INT, section="optimizer")
    gradient_accumulation_steps: int = key(1, "micro-batches per batch", POSITIVE_INT)
    learning_rate: float = key(1e-3, "highest learning rate, reached after the warm-up", POSITIVE)
    lr_schedule: str = key("cosine", "cosine or constant, after the warm-up", choices=("cosine", "constant"))
    warmup_iters: int = key(20, "steps of the warm-up", NON_NEGATIVE)
    lr_end: float = key(0.1, "last learning rate of the cosine, as a fraction of learning_rate", FRACTION)
    beta1: float = key(0.9, "Adam's decay of the first moment", BELOW_1)
    beta2: float = key(0.99, "Adam's decay of the second moment", BELOW_1)
    adam_eps: float = key(1e-8, "Adam's epsilon", POSITIVE)
    weight_decay: float = key(0.1, "for all but norms, biases and embeddings", NON_NEGATIVE)
    grad_clip: float | None = key(1.0, "largest global gradient norm; None: no clipping", POSITIVE)
    ema_decay: float | None = key(None, "average the parameters; the average is evaluated and saved", BELOW_1)

    loss_norm: str = key("token", "token: mean over tokens (pretraining); completion: over rows, each by its length",
                         choices=("token", "completion"))

    diffusion_steps: int = key(16, "denoising steps per completion; models with blocks: per block", POSITIVE_INT,
                               section="sampling: for rollouts (whose log-probs grpo filters alike) and evaluations")
    order: str = key("confidence", "which masks to fill first: random, confidence, margin, entropy, left, sampled")
    rule: str = key("quota", "how many to fill per step", choices=sample.RULES, table=True)
    block_len: int | None = key(None, "fill blocks of this length from left to right; None: one block", POSITIVE_INT)
    cache: str = key("none", "reuse keys and values outside the block: none, prefix (left), dual (both sides)")
    threshold: float = key(0.9, "rule=threshold: fill all masks that are at least this probable, and the best one")
    tempered: bool = key(False, "order and rule use probabilities after temperature, top_k and top_p; False: before")
    temperature: float = key(1.0, "for rollouts and samples; evaluations also decode greedily", NON_NEGATIVE)
    top_k: int | None = key(None, "sample from the k most probable tokens; None: from all")
    top_p: float | None = key(None, "sample from the most probable tokens that reach this probability; None: from all")

    rewards: tuple[str, ...] = key((), "names, path.py:function, length(target=40); the first decides at evaluations",
                                   section="rewards")
    reward_weights: tuple[float, ...] = key((), "one per reward; empty: all 1")
    judge_from: str | None = key(None, "model of the reward `judge`: a folder or a config file", SOURCE)

    group_size: int = key(8, "completions per prompt, compared with each other", GROUP, section="grpo: rollouts")
    rollout_chunk: int | None = key(None, "most completions or val rows to fill at a time; None: all", POSITIVE_INT)
    early_end: bool = key(False, "stop a row once all tokens before its end of text are filled (evaluations always do)")
    updates_per_rollout: int = key(1, "passes over the completions, each with new masks", POSITIVE_INT)
    keep_completions: int | None = key(None, "update on those with the largest advantages; None: all", POSITIVE_INT)
    minibatch_size: int | None = key(None, "most completions per update; None: all of them", POSITIVE_INT)
    score_after_end: bool = key(False, "include tokens after the end of text in the loss: only then trace is unbiased")
    fill_in: bool = key(False, "prompts are the rows' own completions, partly masked")
    mask_ratio_min: float = key(0.2, "fill_in: smallest fraction of masked tokens; coupled: lowest t", MASK_RATIO)
    mask_ratio_max: float = key(0.8, "fill_in: largest fraction; coupled: highest t", MASK_RATIO)

    logp_est: str = key("coupled_elbo", "estimator of log-probs, see diffusion.py; causal models need exact",
                        choices=diffusion.ESTIMATORS, section="grpo: log-probabilities", table=True)
    logp_views: int = key(4, "masked copies per completion (coupled_elbo: pairs), if the estimator leaves it open",
                          within(1, 1000, "from 1 to 1000"))

    adv_baseline: str = key("mean", "mean: of the group; loo: of the other completions; none: the reward itself",
                            choices=("mean", "loo", "none"), section="grpo: advantages and loss, see grpo.py")
    adv_norm: str = key("group", "divide by the standard deviation of the group, the batch, or none; mean: by the mean "
                        "reward of the group (MaxRL)", choices=("group", "batch", "none", "mean"))
    adv_eps: float = key(1e-4, "added to the standard deviation", NON_NEGATIVE)
    adv_negative: float = key(0.0, "weight of negative advantages; 0: learn only from the better ones", NON_NEGATIVE)
    reward_norm: str = key("sum", "sum: add up several rewards, then normalize; each: normalize each first",
                           choices=("sum", "each"))
    ratio_level: str = key("none", "ratio to the old policy per token, per sequence, or none",
                           choices=("token", "sequence", "none"))
    loss_type: str = key("dapo", "how tokens are clipped and averaged, by the name of its paper", choices=grpo.LOSSES,
                         table=True)
    aggregation: str | None = key(None, "average tokens in another way than loss_type",
                                  choices={None: None} | grpo.AGGREGATIONS)
    clip_low: float = key(0.2, "ratios are clipped below 1 - clip_low", FRACTION)
    clip_high: float = key(0.2, "ratios are clipped above 1 + clip_high", POSITIVE)
    kl_beta: float = key(0.0, "weight of the KL to the reference; 0: no reference", NON_NEGATIVE)
    kl_est: str = key("k3", "estimator of the KL", choices=grpo.KLS, table=True)
    ref_from: str | None = key(None, "reference: a folder or a config file; None: the initial policy", SOURCE)

    use: tuple[Any, ...] = key((), "the keys of variants, as in (lora.Keys(rank=16),)")
    model: ModelConfig = ModelConfig()
    typed: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)  # keys on the command line
    kind: typing.ClassVar[str] = "Keys"  # of the sections in `use`

    def __post_init__(self):
        check_fields(self)
        object.__setattr__(self, "use", sections.in_order(self.use, self.kind, named_variants(self)))
        sections.check(self, between_keys, *(section.between_keys for section in self.use))


# ---- what follows from the keys --------------------------------------------------------------------------------------


def named_variants(cfg: Config) -> list[str]:
    """List the variants that a run names by its objective, rule, estimator and loss: their keys are used."""
    named = (sample.RULES, cfg.rule), (diffusion.ESTIMATORS, cfg.logp_est), (grpo.LOSSES, cfg.loss_type)
    return [cfg.objective, *itertools.starmap(sections.variant_named, named)]


def n_views(cfg: Config) -> int:
    """Return the number of masked copies per completion that grpo scores."""
    T = cfg.max_prompt_len + cfg.max_new_tokens
    return views_made(diffusion.ESTIMATORS[cfg.logp_est], cfg.logp_views, T, cfg.model, cfg.use)


@functools.cache
def views_made(estimator, n, T=8, model=Config.model, use=()):
    """Return the number of copies that an estimator, a function, makes for logp_views=n of texts of T tokens. It is
    traced on two texts, and nothing is computed. ValueError if a shape is not that of `Views`."""

    def views():
        step = jax.numpy.zeros((2, T), int)
        there = step == 0
        inputs = diffusion.EstimatorInputs(step, n, counts=there, cfg=model, valid=there, use=use)
        return estimator(jax.random.key(0), there, inputs)

    masked, weight, share = jax.eval_shape(views)
    sections.of_shape(weight, estimator.__name__, (2, *masked.shape[1:2], T))
    sections.of_shape(share, estimator.__name__, (2, T))
    return masked.shape[1]


def n_update(cfg: Config) -> int:
    """Return the number of completions of a rollout that grpo updates on."""
    completions = cfg.batch_size * cfg.group_size
    return min(cfg.keep_completions or completions, completions)


def minibatch(cfg: Config) -> int:
    """Return the number of completions per update of grpo."""
    return min(cfg.minibatch_size or n_update(cfg), n_update(cfg))


def updates_per_iter(cfg: Config) -> int:
    """Return the number of optimizer steps per iteration of the loop."""
    return cfg.updates_per_rollout * n_update(cfg) // minibatch(cfg) if cfg.objective == "grpo" else 1


def has_ratios(cfg: Config) -> bool:
    """True if the loss needs old log-probs: it has ratios, and updates after the first of an iteration, whose policy is
    no longer the one that wrote the completions."""
    return cfg.ratio_level != "none" and updates_per_iter(cfg) > 1


def old_logp_by_gradient(cfg: Config) -> bool:
    """True if old log-probs have to come from the very program that is differentiated. In 16 bits another program for
    the same function rounds otherwise: before anything moved, up to 49% of ESPO's ratios were beyond its clip of 4e-4.
    """
    return cfg.objective == "grpo" and cfg.model.dtype != "float32" and has_ratios(cfg)


def has_frozen_base(cfg: Config) -> bool:
    """True if the run trains new parameters beside a frozen base, as LoRA does."""
    return any(section.freezes for section in cfg.use)


def freezing(cfg: Config) -> Section | None:
    """Return the section of a run that trains new parameters beside a frozen base; None: all are trained."""
    found = [section for section in cfg.use if section.freezes]
    if len(found) > 1:
        names = " and ".join(map(variant_of, found))
        raise ValueError(f"{names} each train parameters of their own: leave one out")
    return found[0] if found else None


def pack_of(cfg: Config) -> Callable | None:
    """Return what stores the matrices of a frozen base in another form while they are read, see Section.pack."""
    return next((section.pack for section in cfg.use if section.pack), None)


def has_reference(cfg: Config) -> bool:
    """True if the State of a run has a reference: grpo with a kl_beta. With LoRA the base is used instead."""
    compares = cfg.objective == "grpo" and cfg.kl_beta > 0
    return compares and not has_frozen_base(cfg) and not cfg.eval_only


def reference_stays(cfg: Config) -> bool:
    """True if the reference of the KL is the same throughout the run."""
    return not any(section.moves_reference for section in cfg.use)


def reshapes(cfg: Config) -> bool:
    """True if the run makes a model of another shape of the one that it starts from."""
    return any(section.reshapes for section in cfg.use)


def copies(cfg: Config) -> int:
    """Return how many rows of a batch of pretraining are made of one text."""
    return math.prod(section.copies for section in cfg.use)


def tokens_per_iter(cfg: Config) -> int:
    """Return the number of tokens per iteration, padding included; grpo: of every completion and its prompt."""
    rows = cfg.batch_size * {"grpo": cfg.group_size, "judge": 2}.get(cfg.objective, 1)
    return rows * (cfg.max_prompt_len + cfg.max_new_tokens)


def rollout_rows(cfg: Config) -> int:
    """Return how many completions grpo generates at a time: at most rollout_chunk, in chunks of whole groups that are
    about equal; the last one is padded. A rollout_chunk below group_size is taken as it is."""
    most = cfg.rollout_chunk or cfg.batch_size * cfg.group_size
    if most < cfg.group_size:
        return most
    chunks = -(-cfg.batch_size // (most // cfg.group_size))
    return -(-cfg.batch_size // chunks) * cfg.group_size


def eval_rows(cfg: Config) -> int:
    """Return how many val rows an evaluation scores at a time: rollout_chunk or, by default, a micro-batch."""
    return cfg.rollout_chunk or max(cfg.batch_size // cfg.gradient_accumulation_steps, 1)


# ---- what has to hold between keys -----------------------------------------------------------------------------------


def between_keys(c):
    """Yield (True if wrong, message) for everything that has to hold between keys."""
    deciding, reinforces = c.rewards + c.eval_rewards, c.objective == "grpo"
    rows, parts = minibatch(c) if reinforces else c.batch_size, c.gradient_accumulation_steps
    yield from (
        (reinforces and not (c.init_from or c.resume or c.eval_only),
         "objective='grpo' needs init_from: a folder, or the config file that trains what it starts from"),
        (rows % parts, f"gradient_accumulation_steps={parts} must divide "
         f"{f'the {rows} completions per update' if reinforces else f'batch_size={rows}'}: "
         f"--gradient_accumulation_steps={math.gcd(rows, parts)} does"),
        (c.rule == "quota" and c.diffusion_steps > max(c.max_new_tokens, Config.diffusion_steps),
         f"diffusion_steps={c.diffusion_steps}: max_new_tokens={c.max_new_tokens} are filled in at most as many steps"),
        (reinforces and "judge" in deciding and not c.judge_from,
         "the reward 'judge' needs judge_from: the folder of a judge, or the config file that trains one"),
        (c.reward_weights and len(c.reward_weights) != len(c.rewards),
         f"reward_weights={c.reward_weights} has {len(c.reward_weights)} numbers for {len(c.rewards)} rewards"),
        (c.stop_at is not None and c.objective == "pretrain" and not deciding,
         f"stop_at={c.stop_at} needs rewards or eval_rewards: the first of them decides what passes"),
        (c.init_from and not (c.resume or c.eval_only) and is_inside(c.init_from, c.out_dir),
         f"init_from={c.init_from!r} lies in out_dir={c.out_dir!r}, where this run writes: give it another out_dir"),
        *(between_keys_of_grpo(c) if reinforces else ()), *idle(c))  # fmt: skip


def between_keys_of_grpo(c):
    """Return a pair (True if wrong, message) for each thing that has to hold between the keys of grpo."""
    updated, size = n_update(c), minibatch(c)
    return (
        (updated % size, f"minibatch_size={size} must divide the {updated} completions that learn: "
         f"--minibatch_size={math.gcd(size, updated)} does"),
        (c.mask_ratio_min > c.mask_ratio_max or c.logp_est == "coupled" and c.mask_ratio_max == 1,
         f"mask_ratio_min={c.mask_ratio_min} must be at most mask_ratio_max={c.mask_ratio_max}, and that below 1 for "
         "logp_est='coupled', which divides by 1 - t"),
        (c.adv_baseline == "none" and (c.adv_norm in ("group", "mean") or c.reward_norm == "each"),
         "adv_baseline='none' takes a reward as it is: set adv_norm='none' or 'batch', and reward_norm='sum'"),
        (c.early_end and c.score_after_end,
         "early_end=True samples nothing after an end of text, and score_after_end=True trains on that: leave one out"),
        (c.temperature == 0 or c.top_k == 1,
         f"temperature={c.temperature}, top_k={c.top_k}: all completions of a group would be equal; use 1.0 and None"))


# Keys that only runs of grpo read.
OF_GRPO = ("logp_est logp_views group_size early_end updates_per_rollout keep_completions minibatch_size "
           "score_after_end adv_baseline adv_norm adv_eps adv_negative reward_norm ratio_level loss_type aggregation "
           "clip_low clip_high kl_beta kl_est ref_from").split()  # fmt: skip


def idle(c):
    """Yield (True if wrong, message) for keys that are set and would have no effect."""
    grpo, judged = c.objective == "grpo", "judge" in c.rewards + c.eval_rewards
    for section in c.use:
        name = variant_of(section)
        is_typed = any(key.partition(".")[0] == name for key in c.typed)  # a recipe may inherit more than it uses
        yield (section.belongs_to and is_typed and name not in named_variants(c), f"the keys of {name} change nothing "
               f"here, they are for {section.belongs_to}={name!r}: set that, or leave them out")  # fmt: skip
        is_idle = section.objective not in ("", c.objective)
        yield is_idle, f"{name} changes nothing with objective={c.objective!r}: leave it out"
    for keys, has_no_effect, purpose in (
        ("threshold", c.rule == "quota", "rule='threshold' or 'dynamic'"),
        ("loss_norm", grpo, "objective='pretrain'"),
        ("lr_end", c.lr_schedule == "constant" and "lr_end" in c.typed, "lr_schedule='cosine'"),
        (" ".join(name for name in c.typed if name in OF_GRPO), not grpo, "objective='grpo'"),
        ("mask_ratio_min mask_ratio_max", not c.fill_in and c.logp_est != "coupled", "fill_in or logp_est='coupled'"),
        ("clip_low clip_high", grpo and c.ratio_level == "none", "a ratio: ratio_level='token' or 'sequence'"),
        ("kl_est ref_from", grpo and not c.kl_beta, "kl_beta above 0: without it there is no reference"),
        ("judge_from", not judged, "the reward 'judge'"),
        ("adv_norm", c.adv_norm == "mean" and c.reward_norm == "each", "reward_norm='sum'"),
        ("adv_eps", c.adv_norm == "none" and c.reward_norm == "sum", "a divisor: adv_norm='group', 'mean' or 'batch'"),
        ("base", not (c.init_from or "").endswith(".py"), "a config file in init_from"),
    ):  # fmt: skip
        for name in keys.split() if has_no_effect else ():
            value, default = getattr(c, name), getattr(Config, name)
            yield value != default, (f"{name}={value!r} changes nothing here, it is for {purpose}; leave it out or set "
                                     f"{name}={default!r}")


def with_model(cfg: Config, shape: ModelConfig) -> Config:
    """Return the run with a model of this shape, computed in the run's dtype and remat."""
    return dataclasses.replace(cfg, model=dataclasses.replace(shape, dtype=cfg.model.dtype, remat=cfg.model.remat))


def check_model(c: Config, shape: ModelConfig, where: str) -> None:
    """Raise a ValueError if the keys of a run do not fit the shape of the model that it starts from.

    where: whose model it is, for the message: "of config/sudoku_base.py"."""
    there, default = sections.flat(shape), sections.flat(ModelConfig())
    for name, asked in sorted(sections.flat(c.model).items(), key=lambda item: item[0] not in c.typed):
        if name not in default:
            from system import index

            default[name] = index.default_of(name)
        is_asked = name in c.typed or asked != default[name] or name not in there
        if name not in ("dtype", "remat") and is_asked and asked != there.get(name):
            raise ValueError(f"{name}={asked}, but the model {where} has {name}={there.get(name)}: leave {name} out, "
                             "or start from another model")  # fmt: skip
    of_variants = itertools.chain(*(section.fits(c, shape, where) for section in c.use))
    for wrong, message in (*between_keys_and_model(c, shape, where), *of_variants):
        if wrong:
            raise ValueError(message)
    if c.objective != "judge":
        plan = sample.plan(with_model(c, shape), c.temperature)
        sample.sampler_of(shape, plan).check(shape, plan)


def between_keys_and_model(c, shape, where):
    """Yield (True if wrong, message) for keys that depend on whether a model reads from left to right."""
    fit = "causal: take exact" if shape.causal else "not causal: take coupled_elbo, elbo, trace, ..."
    yield (c.objective == "grpo" and (c.logp_est == "exact") != shape.causal,
           f"logp_est={c.logp_est!r}, but the model {where} is {fit}")  # fmt: skip
    yield (shape.causal and c.score_after_end,
           "score_after_end=True: a causal model writes nothing after an end of text; leave it out")


def is_inside(path: str, folder: str) -> bool:
    """Return True if a path is a folder or lies in it."""
    return f"{os.path.abspath(path)}/".startswith(f"{os.path.abspath(folder)}/")


# ---- types -----------------------------------------------------------------------------------------------------------


def parse(name: str, text: str, kind: Any) -> Any:
    """Parse the text of `--name=text` as a value of the annotated type."""
    for value in possible_values(text, typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)):
        if sections.fits(value, kind):
            return value
    from system import index, unknown

    raise ValueError(unknown.unreadable(name, text, kind, index.all_keys()))


def possible_values(text, kinds):
    """Yield the values that a text may mean, the likeliest first: text where text fits (a run may be named 7)."""
    if type(None) in kinds and text == "None":
        yield None
    if str in kinds:
        yield text
    elif text.lower() in ("true", "false"):
        yield text.lower() == "true"
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about "\d" and the like
            value = to_tuples(ast.literal_eval(text.strip()))
        if int in kinds and isinstance(value, float) and value.is_integer() and "e" in text.lower():
            yield int(value)  # 1e3
        yield value
        yield (value,)  # a single name, number or pair, for a tuple of them
    yield tuple(part for part in terminal.parts(text) if part)


def to_tuples(value):
    """Turn nested lists into nested tuples."""
    return tuple(map(to_tuples, value)) if isinstance(value, (list, tuple)) else value


def as_typed(value: Any) -> str:
    """Format a value as on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) and value else str(value)


# ---- the command line ------------------------------------------------------------------------------------------------


def flatten(cfg: Any) -> dict[str, Any]:
    """Return {"max_iters": 1000, ..., "lora.rank": 16, ..., "model.n_layer": 4, ...}, as they are typed."""
    run = sections.flat(cfg)
    del run["model"], run["typed"]
    return run | {f"model.{name}": value for name, value in sections.flat(cfg.model).items()}


def owner_of(name: str) -> str | None:
    """Return "run" or "model" for the name of a key; None: there is no such key."""
    if name in sections.fields_of(Config):
        return "run" if name not in ("use", "typed", "model") else None
    if name in sections.fields_of(ModelConfig):
        return "model"
    from system import index

    found = index.find_key(name)
    return found and ("model" if found.kind == "Shape" else "run")


def type_of(name: str) -> Any:
    """Return the type of the value of a key."""
    for kind in (Config, ModelConfig):
        if name in sections.fields_of(kind):
            return typing.get_type_hints(kind)[name]
    from system import index

    found = index.find_key(name)
    return found and found.type


def refuse_unknown(names):
    """Raise a ValueError with a message for every name that is no key. Those of a base are checked with its config."""
    others = [name for name in names if name != "model" and not name.startswith("base.")]
    if unknown := [name for name in others if not owner_of(name)]:
        from system import index
        from system import unknown as names

        raise ValueError("; ".join(names.key(name, flatten(Config()), index.all_keys()) for name in unknown))


def changed(cfg: Config, values: dict[str, Any]) -> Config:
    """Return a copy of cfg with these values {name: value}, named as on the command line: n_layer and blocks.block are
    keys of the model, and model, a ModelConfig, is another one."""
    own, values = sections.fields_of(Config), {without_model(name): value for name, value in values.items()}
    refuse_unknown(name for name in values if name not in own)
    run = {name: value for name, value in values.items() if name in own or owner_of(name) == "run"}
    shape = {name: value for name, value in values.items() if name not in run}
    return sections.changed(cfg, run | {"model": sections.changed(run.get("model", cfg.model), shape)})


def override(cfg: Config, args: dict[str, str], prefix: str = "") -> Config:
    """Return a copy of cfg with all of {name: text} set at once; prefix: of the names in messages, as they were typed.

    Keys of the model need no prefix: n_layer is model.n_layer. Keys that begin with base. are for the config file in
    init_from; if they are keys of the model, they also hold for the run that starts from it.
    """
    args = {without_model(name): text for name, text in args.items()}
    base = {name.removeprefix("base."): text for name, text in args.items() if name.startswith("base.")}
    own = {name: text for name, text in args.items() if not name.startswith("base.")}
    refuse_unknown(own)
    of_both = {name: text for name, text in base.items() if owner_of(name) == "model"}
    typed = {name: f"base.{name}" for name in of_both} | {name: prefix + name for name in own}
    values = {name: parse(typed[name], text, type_of(name)) for name, text in (of_both | own).items()}
    if base:
        others = tuple(pair for pair in cfg.base if pair.partition("=")[0] not in base)
        values["base"] = others + tuple(f"{name}={text}" for name, text in base.items())
    cfg = changed(cfg, values)
    refuse_ignored(cfg, values, typed)
    return dataclasses.replace(cfg, typed=(*cfg.typed, *own))


def refuse_ignored(cfg, values, typed):
    """Raise a ValueError if another typed key, or a variant, has the last word on one, as on --mlp beside --moe=True.

    values {key: value}, typed {key: how it was typed}"""
    there = {name.removeprefix("model."): value for name, value in flatten(cfg).items()}
    there |= dict.fromkeys(map(variant_of, cfg.use + cfg.model.use), True)
    for name, value in values.items():
        has = there.get(name, False)
        if has != value:
            raise ValueError(f"--{typed.get(name, name)}={as_typed(value)} does not go with the other keys, by which "
                             f"it is {has}: leave one of them out")  # fmt: skip


def without_model(name):
    """Return the name of a key without the model. that may stand before one of the model, as in base.model.n_layer."""
    bare = re.sub(r"^(base\.)?model\.", r"\1", name)
    return name if bare == name or owner_of(bare.removeprefix("base.")) == "run" else bare


DASHES = "-", "\u2013", "\u2014"  # with what a page of a browser may have made of two hyphens


def parse_arguments(argv):
    """Sort the words of a command line into config files and {key: text}."""
    files, args, misspelt = [], {}, []
    for word in argv:
        name, equals, text = word.lstrip("".join(DASHES)).partition("=")
        if not word.startswith(DASHES) and (not equals or word.endswith(".py")):
            files.append(word)
            continue
        bare = without_model(name)
        if bare in args:
            raise ValueError(f"--{bare} is given twice")
        if word in ("--resume", "--eval_only"):
            text = "True"
        elif word != f"--{name}={text}":
            misspelt.append(f"{word}: write it as --{name}=VALUE")
        args[bare] = text
    refuse_unknown(args)  # first: somebody who types --beta 0.1 needs our name for it
    if misspelt:
        raise ValueError("; ".join(misspelt))
    return files, args


# ---- config files ----------------------------------------------------------------------------------------------------


def find_file(name):
    """Return the path of a config file, which may be named without its folder and its ending."""
    paths = (resolve_path(path) for path in (name, f"{name}.py", f"config/{name}.py"))
    if path := next(filter(os.path.isfile, paths), None):
        return path
    from system import unknown

    raise ValueError(unknown.file(name))


def run_file(name: str) -> dict[str, Any]:
    """Run a config file and return everything that it defines, with its `config` checked."""
    path = find_file(name)
    try:
        defined = runpy.run_path(path) if path.endswith(".py") else {}
    except Exception as e:  # whatever the file raises becomes one line, with the place in the file
        from system import index, unknown

        raise ValueError(unknown.raised(e, path, flatten(Config()), index.all_keys)) from None
    cfg = defined.get("config")
    if not isinstance(cfg, Config):
        raise ValueError(f"{path} defines no `config = Config(...)`: a config file, NAME.py, says "
                         "`config = Config(key=value, ...)`, as config/sudoku.py does")  # fmt: skip
    return defined


def read_file(name: str) -> Config:
    """Return the `config` that a config file defines."""
    return resolve_paths(run_file(name)["config"])


def resolve_path(path: str) -> str:
    """Return a path that can be opened, from one that a person typed.

    ~ is their home. What is not in the working folder is looked for in the folder of this program.
    """

    def exists(path):
        """Return True if a path is there, or can be made by a prepare.py in its folder."""
        return os.path.exists(path) or os.path.exists(os.path.join(os.path.dirname(path), "prepare.py"))

    path = os.path.expanduser(path)
    ours = os.path.join(sections.ROOT, path)
    return ours if not exists(path) and exists(ours) else path


def resolve_paths(cfg: Config) -> Config:
    """Resolve all paths of a run but out_dir, which is always in the working folder."""

    def in_name(name):
        """Resolve the path in the name of a reward, as in path.py:function."""
        return re.sub(r"^(.*?\.py)(?=:)", lambda path: resolve_path(path[0]), name)

    if not isinstance(cfg, Config):
        raise ValueError(f"{cfg!r} is no Config: expected one, as in train(config.load(['config/sudoku.py']))")
    changes: dict[str, Any] = {"out_dir": os.path.normpath(os.path.expanduser(cfg.out_dir))}
    changes |= {key: tuple(map(in_name, getattr(cfg, key))) for key in ("rewards", "eval_rewards")}
    for name in ("init_from", "judge_from", "ref_from", "dataset"):
        changes[name] = getattr(cfg, name) and resolve_path(getattr(cfg, name))
    return dataclasses.replace(cfg, **changes)


def base_run(cfg: Config) -> Config | None:
    """Return the run of the config file that cfg starts from; None: it starts from no config file.

    If cfg.base changes keys of that run, it writes into the out_dir of cfg + "_base", unless they name another.
    """
    if not cfg.init_from or not cfg.init_from.endswith(".py"):
        return None
    keys = {name: text for name, _, text in (pair.partition("=") for pair in cfg.base)}
    if len(keys) < len(cfg.base):
        raise ValueError(f"base={cfg.base} has a key twice")
    changes = {"out_dir": f"{cfg.out_dir}_base"} | keys if keys else {}
    return resolve_paths(override(read_file(cfg.init_from), changes, "base."))


def base_runs(cfg: Config) -> list[Config]:
    """Return a run, the run that it starts from, and so on, after checking that they can follow each other."""
    chain = [cfg]
    while base := base_run(chain[-1]):
        if any(is_inside(base.out_dir, run.out_dir) for run in chain):
            raise ValueError(f"init_from={chain[-1].init_from!r} writes into {base.out_dir!r}, where the run that "
                             "starts from it also writes: give that another out_dir")  # fmt: skip
        chain.append(base)
    if not chain[-1].init_from and not any(map(reshapes, chain)):  # made from scratch: its shape is known now
        for run in chain[:-1]:
            check_model(run, chain[-1].model, f"of {run.init_from}")
    if cfg.objective != "judge" and any(run.objective == "judge" for run in chain[1:]):
        raise ValueError(f"init_from={cfg.init_from!r} trains a judge, which writes no texts: start from another model")
    if cfg.judge_from and cfg.judge_from.endswith(".py"):
        objective = read_file(cfg.judge_from).objective
        if objective != "judge":
            raise ValueError(f"judge_from={cfg.judge_from!r} trains no judge: its objective is {objective!r}")
    return chain


def load(argv: list[str] | str, for_plan: bool = False) -> Config:
    """Return the Config of `python train.py FILE [--key=value ...]`.

    argv: the words after train.py, or one text of them. for_plan: downloads need not be there, and the model has the
    shape that the recipe states.
    """
    files, args = parse_arguments(argv.split() if isinstance(argv, str) else argv)
    if len(files) != 1:
        raise ValueError(f"usage: python train.py config/NAME.py [--key=value ...], with one config file, got "
                         f"{files or 'none'}")  # fmt: skip
    defined, size = run_file(files[0]), args.pop("model", None)
    cfg = defined["config"]
    if size is not None:
        from system import recipe

        cfg = changed(cfg, recipe.changes(files[0], defined, size))
    cfg = override(cfg, args)
    if "downloads" in defined:
        from system import recipe

        if not for_plan:
            recipe.check_downloads(files[0], defined, cfg, resolve_path)
        elif cfg.init_from == defined["config"].init_from:
            cfg = dataclasses.replace(cfg, model=sections.changed(cfg.model, defined.get("shape", {})))
    return base_runs(resolve_paths(cfg))[0]
