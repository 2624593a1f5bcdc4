"""
Train a judge (objective="judge"): a transformer with a head of width 1 learns from pairs of a better and a worse text.

judges/model_judge.py makes a reward of a trained judge.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from tqdm import tqdm

import config
import data
import model
import rl
import sample
from checkpoints import checkpoint
from data import texts
from judges.model_judge import encode, rate
from system import sections, sharding


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    belongs_to = "objective"
    n_rows: int = config.key(8192, "train rows to make pairs from", config.POSITIVE_INT)
    temperatures: tuple[float, ...] = config.key((0.5, 1.0, 1.5), "temperatures of the worse text of a pair")


# ---- pairs of texts --------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """N rows with a prompt, and for each a better and a worse completion."""

    rows: list
    better: list
    worse: list
    kinds: list  # why the worse text is worse


def split_words(text):
    """Split into words and, between them, the space."""
    return re.split(r"(\s+)", text)


def make_worse(rng, text, other, has_prompt=True):
    """Spoil a text -> worse text, kind: "swapped" (two pieces), "lost" (one or more), "replaced" (one by `other`'s).

    other: the completion of another row. If there is a prompt, which `other` does not answer, `other` as a whole is a
    fourth kind, "another row". Pieces are words, or characters if the text has less than four words.
    """
    parts, stride = split_words(text), 2  # every second part is space
    if len(parts) < 7:
        parts, stride = list(text), 1
    kinds = ["lost"]
    if len(parts) > 1:
        kinds = ["swapped", "lost", "replaced"] + ["another row"] * has_prompt
    kind = kinds[rng.integers(len(kinds))]
    if kind == "another row":
        return other, kind
    n_pieces = -(-len(parts) // stride)
    i, j = 0, 0
    if n_pieces > 1:
        i, j = sorted(stride * rng.choice(n_pieces, 2, replace=False))
    if kind == "swapped":
        parts[i], parts[j] = parts[j], parts[i]
    elif kind == "replaced":
        theirs = split_words(other) if stride == 2 else list(other) or [""]
        parts[i] = theirs[min(i, (len(theirs) - 1) // stride * stride)]  # from the same place: the best imitation
    else:
        del parts[i : i + stride * (1 + (j - i) // (4 * stride))]
    return "".join(parts), kind


def make_pairs(rows: list[dict], seed: int, refill: Callable | None = None) -> Pairs:
    """Make Pairs of the rows of a data set.

    Rows with `chosen` and `rejected` are used as they are. Otherwise the completion is the better text. The worse one
    is a spoiled copy or, for every second row, a copy refilled by a generator: refill(rows, seed) -> texts, kinds, with
    an empty kind for texts that do not fit. Rows whose copy equals the completion are left out.
    """
    if all("chosen" in row and "rejected" in row for row in rows):
        chosen, rejected = [row["chosen"] for row in rows], [row["rejected"] for row in rows]
        return Pairs(rows, chosen, rejected, ["rejected"] * len(rows))
    if not all("completion" in row and "score" not in row for row in rows):
        raise ValueError("a judge learns from rows with chosen and rejected (write rows with a score as such pairs), "
                         f"or with a completion that is right; the first row has {', '.join(rows[0])}")  # fmt: skip
    better = [row["completion"] for row in rows]
    rng = np.random.default_rng(seed)
    others = (better[rng.integers(len(rows))] for _ in rows)  # lazily, between the draws of make_worse
    has_prompt = [bool(row["prompt"]) for row in rows]
    worse = [make_worse(rng, *row) for row in zip(better, others, has_prompt, strict=True)]
    if refill:
        texts_and_kinds = zip(*refill(rows[::2], seed), strict=True)
        for i, (text, kind) in enumerate(texts_and_kinds):
            if kind:
                worse[2 * i] = text, kind
    differ = [i for i, (text, _) in enumerate(worse) if text != better[i]]  # a refilled text may be right
    return Pairs(
        rows=[rows[i] for i in differ],
        better=[better[i] for i in differ],
        worse=[worse[i][0] for i in differ],
        kinds=[worse[i][1] for i in differ],
    )


def encode_pairs(pairs: Pairs, tok: Any, max_len: int, template: Any = None) -> dict[str, Any]:
    """Encode Pairs -> {"better", "worse": tokens (N, T), "better_valid", "worse_valid" (N, T)}.

    T may differ between better and worse. Texts of more than max_len tokens lose their beginning, which is reported."""
    sides = {"better": pairs.better, "worse": pairs.worse}
    sizes = [
        len(data.prompt_ids(row, tok, template)) + len(tok.encode(text)) + 1
        for side in sides.values()
        for row, text in zip(pairs.rows, side, strict=True)
    ]
    if longer := sum(size > max_len for size in sizes):
        tqdm.write(
            f"{longer} of {len(sizes)} texts, the longest of {max(sizes)} tokens, lose their beginning: there is room "
            f"for max_prompt_len + max_new_tokens + 1 = {max_len}"
        )
    arrays = {}
    for name, side in sides.items():
        arrays[name], arrays[name + "_valid"] = encode(pairs.rows, side, tok, max_len, template)
    return arrays


# ---- learning --------------------------------------------------------------------------------------------------------


def loss(
    params: Any, batch: dict[str, Any], cfg: model.ModelConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the loss of a batch of `encode_pairs`, and metrics.

    Bradley-Terry: the better of two should score higher. Added to it is a cross-entropy with label 1 for the better
    and 0 for the worse text, so that sigmoid(score) is the probability that a text is a better one.
    """
    score = functools.partial(rate, params, cfg=cfg)
    better = score(batch["better"], valid=batch["better_valid"])
    worse = score(batch["worse"], valid=batch["worse_valid"])
    pointwise = (log_sigmoid(better) + log_sigmoid(-worse)) / 2
    metrics = {"pair_acc": jnp.mean(better > worse)}
    return -jnp.mean(log_sigmoid(better - worse) + pointwise), metrics


def pair_metrics(better: np.ndarray, worse: np.ndarray, pairs: Pairs) -> dict[str, float]:
    """Compute the accuracy of a judge, in all and by kind, from its scores better, worse (N,) of held-out Pairs."""
    metrics = {"val/pair_acc": float(np.mean(better > worse))}
    for kind in sorted(set(pairs.kinds)):
        of_kind = np.array(pairs.kinds) == kind
        right = (better > worse)[of_kind]
        metrics[f"val/pair_acc/{kind}"] = float(np.mean(right))
    return metrics


def refill_rows(rows, seed, generator, cfg, tok):
    """Mask 20 to 100% of the tokens of each completion and let a generator fill them -> texts, kinds, one per row.

    All windows of a document are filled, batches in turn at each of the temperatures. A kind is "filled at 0.7", or
    "" if the row does not fit.
    """
    rng = np.random.default_rng(seed)
    template = texts.template_of(cfg, tok)
    arrays, row_of, _ = data.encode(rows, tok, cfg.max_prompt_len, cfg.max_new_tokens, template)
    maskable = arrays.maskable & (arrays.tokens != tok.eos_id)
    n, temperatures = len(maskable), Keys.of(cfg).temperatures
    u = rng.random(maskable.shape)
    arrays = arrays._replace(maskable=maskable & (u < rng.uniform(0.2, 1.0, (n, 1))))
    size = min(cfg.eval_size, -(-n // len(temperatures)))  # every temperature has its turn
    windows, kinds = [[]] * n, [""] * len(rows)
    for turn, first in enumerate(range(0, n, max(size, 1))):
        index = np.arange(first, first + size) % n  # all batches have one shape
        temperature = temperatures[turn % len(temperatures)]
        chunk = arrays.arrays(index)
        plan = sample.plan(cfg, temperature)
        filled, _ = sample.fill(generator, jax.random.key(seed + turn), chunk, cfg, plan)
        for i, window in zip(index, texts.completion_ids(filled, tok, cfg), strict=True):
            windows[i] = window
            kinds[row_of[i]] = f"filled at {temperature:g}"
    ids = [[] for _ in rows]
    for row, window in zip(row_of, windows, strict=True):
        ids[row] += window
    return [tok.decode(row) for row in ids], kinds


def find_generator(cfg, start):
    """Return the params of the language model that refills texts, or None if the run starts from none.

    start: the params that the run starts from, or None. If they are a judge's, as in a resumed run, the model in
    init_from is loaded instead."""
    if start and model.width(start):
        family = checkpoint.Keys.of(cfg).open_as
        start = checkpoint.load(cfg.init_from, open_as=family)[0] if cfg.init_from else None
    return None if start and model.width(start) else start


def judge_task(cfg: Any, tok: Any, start: Any) -> rl.Task:
    """Prepare the training of a judge on pairs of texts.

    start: the params that the run starts from, a judge's or a denoiser's, whose head is replaced; None: nothing."""
    generator = find_generator(cfg, start)
    refill = functools.partial(refill_rows, generator=generator, cfg=cfg, tok=tok) if generator else None
    max_len = cfg.max_prompt_len + cfg.max_new_tokens + 1
    train_rows = texts.split_rows(cfg, "train")[: Keys.of(cfg).n_rows]
    val_rows = texts.split_rows(cfg, "val")[: cfg.eval_size]
    train_pairs, val_pairs = make_pairs(train_rows, cfg.seed, refill), make_pairs(val_rows, cfg.seed + 1, refill)
    for split, pairs in (("train", train_pairs), ("val", val_pairs)):
        if not pairs.rows:
            raise ValueError(f"{cfg.dataset}/{split}: no pair is left: every completion equals its spoiled copy, as an "
                             "empty one does")  # fmt: skip
    template = texts.template_of(cfg, tok)
    train, val = (encode_pairs(pairs, tok, max_len, template) for pairs in (train_pairs, val_pairs))
    score = jax.jit(functools.partial(rate, cfg=cfg.model))

    def init(key):
        params = model.init(key, cfg.model, n_out=1)
        known = start or {}
        return params | {name: w for name, w in known.items() if name != "head" or model.width(known)}

    def iterate(state, key, update):
        index = data.batch_indices(len(train["better"]), cfg.batch_size, state.step, cfg.seed)
        update({name: jnp.asarray(a[index]) for name, a in train.items()})
        return {}

    def part_loss(params, batch):
        # A mean over rows: the losses of micro-batches add up to that of the batch.
        return jax.tree.map(lambda x: x / cfg.gradient_accumulation_steps, loss(params, batch, cfg.model))

    def evaluate(state, key):
        def score_some(x, valid):
            return score(state.weights, x, valid=valid)

        def score_side(side):
            arrays = val[side], val[side + "_valid"]
            scores = sharding.in_chunks(score_some, config.eval_rows(cfg), *arrays)
            return np.asarray(scores)

        better, worse = score_side("better"), score_side("worse")
        columns = ("prompt", "better", "worse", "kind", "score_better", "score_worse")
        prompts = [row["prompt"] for row in val_pairs.rows]
        rows = zip(prompts, *val_pairs[1:], better.tolist(), worse.tolist(), strict=True)
        return pair_metrics(better, worse, val_pairs), [dict(zip(columns, row, strict=True)) for row in rows]

    return rl.Task(init, iterate, part_loss, evaluate, len(train["better"]), "val/pair_acc")


sections.add(rl.OBJECTIVES, judge=judge_task)
