"""
A judge is the transformer with a head of width 1: it reads a prompt and a completion and says how good it is. It learns
from pairs of a better and a worse text, and then stays frozen: a reward for texts that no rule and no test can grade.
"""
import dataclasses
import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import config
import data
import diffusion
import disk
import model
import sample
from data import texts
from machine import mesh

MAX_LEN = 4096  # tokens of a prompt and a completion that a judge reads at most
WIDTHS = [8 * w << i for i in range(16) for w in (2, 3)]  # of the arrays that a judge reads: 16, 24, 32, 48, 64, ...

# ---- as a reward -----------------------------------------------------------------------------------------------------

def encode(prompts, completions, tok, max_len):
    """Texts -> tokens (B, T) int32, valid (B, T) bool for model.score: prompt, completion, eos; padded on the left.

    T is the longest, rounded up to one of WIDTHS, as each is compiled, and at most max_len: what is longer loses its
    beginning. The tokenizer is the judge's own: the policy's may differ."""
    texts = zip(prompts, completions, strict=True)
    ids = [[*tok.add_bos(tok.encode(prompt)), *tok.encode(text), tok.eos_id][-max_len:] for prompt, text in texts]
    width = min(max_len, next(w for w in WIDTHS if w >= max(map(len, ids), default=1)))
    tokens = np.full((len(ids), width), tok.pad_id, np.int32)
    valid = np.zeros(tokens.shape, bool)
    for i, row in enumerate(ids):
        tokens[i, -len(row) :], valid[i, -len(row) :] = row, True
    return tokens, valid


def in_batches(fn, *arrays, size):
    """fn of arrays (B, ...) -> (B,), `size` rows at a time, the last batch filled up: one shape, one compilation."""
    n = len(arrays[0])
    rows = np.arange(-(-n // size) * size).clip(max=n - 1)
    return np.asarray(mesh.in_chunks(fn, size, *(a[rows] for a in arrays)), float)[:n]


def reward(params, cfg, tok, batch_size=32, max_len=MAX_LEN):
    """A judge -> a reward in (0, 1), the sigmoid of its score of prompt + completion; blank text earns 0."""
    score = jax.jit(functools.partial(model.score, cfg=cfg))

    def judge(prompts, completions):
        read = lambda tokens, valid: score(params, tokens, valid=valid)
        scores = in_batches(read, *encode(prompts, completions, tok, max_len), size=batch_size)
        chances = 1 / (1 + np.exp(-scores))
        return [float(p) if text.strip() else 0.0 for p, text in zip(chances, completions, strict=True)]

    return judge


def coherence(params, cfg, tok, batch_size=32, max_len=MAX_LEN, floor=-20.0):
    """A frozen denoiser or autoregressive model -> a reward: the mean log-prob of the tokens of a completion.

    Of a denoiser it is the bound from 8 masks, always the same ones, wherever a text stands in its batch. Zero would be
    certainty, so blank text gets the floor: in nats per token it is rarer than a uniform guess in any vocabulary."""

    @jax.jit
    def bound(params, tokens, valid, hole):
        return diffusion.likelihood(params, {"tokens": tokens, "hole": hole, "valid": valid}, jax.random.key(0), cfg)

    def coherence(prompts, completions):
        tokens, valid = encode(prompts, completions, tok, max_len)
        width = tokens.shape[1]
        n = np.array([min(len(tok.encode(text)) + 1, width) for text in completions])  # the eos counts, too
        hole = np.arange(width) >= width - n[:, None]
        logp = in_batches(functools.partial(bound, params), tokens, valid, hole, size=batch_size) / n
        return [max(floor, float(x)) if text.strip() else floor for x, text in zip(logp, completions, strict=True)]

    return coherence


def load(folder, dtype="float32", **sizes):
    """The folder or out_dir of a judge or of a language model -> {"judge": reward} or {"coherence": reward}, which keep
    and compute it in dtype."""
    found, _ = disk.best(data.local_copy(folder))
    best = disk.read_run(found).get("best") or {}
    params, cfg = disk.load(found, dtype)
    cfg = dataclasses.replace(cfg, dtype=dtype)
    tok = data.Tokenizer.load(found, cfg.vocab_size)
    if not model.width(params):
        return {"coherence": coherence(params, cfg, tok, **sizes)}
    tested = f"{best['measure']} {best['score']:.3f} on held-out texts" if best else "never tested on held-out texts"
    print(f"judge {found}: {tested}")
    return {"judge": reward(params, cfg, tok, **sizes)}


# ---- pairs -----------------------------------------------------------------------------------------------------------

class Pairs(NamedTuple):
    prompts: list
    better: list
    worse: list
    kinds: list  # what is worse about them
    scores: np.ndarray | None  # instead of pairs: a score in [0, 1] for each of `better`


def corrupted(rng, text, other, prompted=True):
    """A text made worse: two pieces swapped, a piece lost, a piece replaced by one of another row, or, where there is a
    prompt that it does not answer, all of the text of another row."""
    split = lambda text: (re.split(r"(\s+)", text), 2)  # words, and the space between them
    parts, stride = split(text)
    if len(parts) < 7:
        parts, stride = list(text), 1
    kinds = ("swapped", "lost", "replaced", *(["another row"] if prompted else [])) if len(parts) > 1 else ("lost",)
    kind = kinds[rng.integers(len(kinds))]
    if kind == "another row":
        return other, kind
    pieces = -(-len(parts) // stride)
    i, j = sorted(stride * rng.choice(pieces, min(2, pieces), replace=False))[:2] if pieces > 1 else (0, 0)
    if kind == "swapped":
        parts[i], parts[j] = parts[j], parts[i]
    elif kind == "replaced":
        theirs = split(other)[0] if stride == 2 else list(other) or [""]
        parts[i] = theirs[min(i, (len(theirs) - 1) // stride * stride)]  # of the same place: the best imitation
    else:
        del parts[i : i + stride * (1 + (j - i) // (4 * stride))]
    return "".join(parts), kind


def pairs(rows, seed, refill=None):
    """Rows of a data set -> Pairs. Rows with `chosen` and `rejected` or with a `score` are taken as they are; of
    others the completion is the better text, and the worse one is it corrupted or, every second time, refilled by a
    generator: refill(rows, seed) -> texts, kinds, from holes in the completions."""
    given = lambda *names: all(all(name in row for name in names) for row in rows)
    prompts = [row["prompt"] for row in rows]
    if given("chosen", "rejected"):
        chosen, rejected = ([row[side] for row in rows] for side in ("chosen", "rejected"))
        return Pairs(prompts, chosen, rejected, ["rejected"] * len(rows), None)
    if not given("completion"):
        raise ValueError("a judge learns from rows with a completion, with chosen and rejected, or with completion and "
                         f"score; the first row has {', '.join(rows[0])}")
    better = [row["completion"] for row in rows]
    if given("score"):
        scores = np.array([row["score"] for row in rows], np.float32)
        if (wrong := np.flatnonzero(~((scores >= 0) & (scores <= 1)))).size:  # NaN is neither
            raise ValueError(f"scores must lie in [0, 1], but {wrong.size} of {len(rows)} do not; the first is "
                             f"score={scores[wrong[0]]:g}, of the prompt {prompts[wrong[0]][:60]!r}")
        return Pairs(prompts, better, better, ["scored"] * len(rows), scores)
    rng = np.random.default_rng(seed)
    others = (better[rng.integers(len(rows))] for _ in rows)
    worse = [corrupted(rng, *row) for row in zip(better, others, map(bool, prompts), strict=True)]
    if refill:
        new = zip(*refill(rows[::2], seed), strict=True)  # without a kind what a generator has no room for
        worse[::2] = [made if made[1] else old for made, old in zip(new, worse[::2], strict=True)]
    kept = [i for i, (text, _) in enumerate(worse) if text != better[i]]  # a generator may fill a hole rightly
    return Pairs(*([column[i] for i in kept] for column in (prompts, better, *zip(*worse, strict=True))), None)


def arrays(p, tok, max_len):
    """Pairs -> better, worse (N, T) and which of their tokens are valid, score (N,) or None: what `loss` takes."""
    out = {"score": p.scores}
    size = lambda prompt, text: len(tok.encode(prompt + text)) + 1
    sizes = [size(*both) for side in (p.better, p.worse) for both in zip(p.prompts, side, strict=True)]
    if longer := sum(n > max_len for n in sizes):
        tqdm.write(f"{longer} of {len(sizes)} texts, the longest of {max(sizes)} tokens, lose their beginning: "
                   f"there is room for max_prompt_len + max_new_tokens + 1 = {max_len}")  # fmt: skip
    for side in ("better", "worse"):
        out[side], out[side + "_valid"] = encode(p.prompts, getattr(p, side), tok, max_len)
    return out


def loss(params, batch, cfg):
    """Bradley-Terry: the better of two should score higher; and, so that sigmoid(score) is the probability of being
    one of the better ones, the cross-entropy of that. With scores: the cross-entropy to the score."""
    score = functools.partial(model.score, params, cfg=cfg)
    b = score(batch["better"], valid=batch["better_valid"])
    if batch["score"] is not None:
        p = batch["score"]
        return -jnp.mean(p * jax.nn.log_sigmoid(b) + (1 - p) * jax.nn.log_sigmoid(-b)), {}
    w = score(batch["worse"], valid=batch["worse_valid"])
    pointwise = (jax.nn.log_sigmoid(b) + jax.nn.log_sigmoid(-w)) / 2
    return -jnp.mean(jax.nn.log_sigmoid(b - w) + pointwise), {"pair_acc": jnp.mean(b > w)}


def report(b, w, p):
    """Scores of both sides of held-out Pairs p -> metrics: pairs in order, by kind; or how far from given scores."""
    chance = lambda s: 1 / (1 + np.exp(-s))
    if p.scores is not None:
        return {"val/error": float(np.abs(chance(b) - p.scores).mean()),
                "val/correlation": float(np.corrcoef(chance(b), p.scores)[0, 1])}
    out = {"val/pair_acc": float(np.mean(b > w)), "val/calibration_error": calibration_error(chance(b), chance(w))}
    for kind in sorted(set(p.kinds)):
        out[f"val/pair_acc/{kind}"] = float(np.mean((b > w)[np.array(p.kinds) == kind]))
    return out


def calibration_error(better, worse, bins=10):
    """How far, on average, the stated probability of being a better text is from the share that are."""
    p, truth = np.concatenate([better, worse]), np.repeat([1.0, 0.0], [len(better), len(worse)])
    index = np.minimum((p * bins).astype(int), bins - 1)
    return float(sum(abs(p[index == i].mean() - truth[index == i].mean()) * np.mean(index == i) for i in set(index)))


def judge_texts(cfg, tok, start):
    """A judge of texts, from pairs of a better and a worse one; its trunk starts from the denoiser in init_from. ->
    what a Task of rl.py has."""
    generator = start
    if start and model.width(start):  # a resumed run makes its pairs again with what it began from
        generator = disk.load(cfg.init_from)[0] if cfg.init_from else None
        generator = None if generator and model.width(generator) else generator

    def refill(rows, seed):
        """Holes in the completions of rows, all windows of a document, filled by the generator at one temperature after
        the other; without a kind what does not fit."""
        rng = np.random.default_rng(seed)
        arrays, _ = data.encode(rows, tok, cfg.max_prompt_len, cfg.max_new_tokens)
        text = arrays["hole"] & (arrays["tokens"] != tok.eos_id)
        arrays["hole"] = text & (rng.random(text.shape) < rng.uniform(0.2, 1.0, (len(text), 1)))
        windows, ids, kinds = [[]] * len(text), [[] for _ in rows], [""] * len(rows)
        size = min(cfg.eval_size, -(-len(text) // len(cfg.judge_temperatures)))  # every temperature has its turn
        for n, first in enumerate(range(0, len(text), max(size, 1))):
            index = np.arange(first, first + size) % len(text)  # all chunks of one shape
            heat = cfg.judge_temperatures[n % len(cfg.judge_temperatures)]
            chunk = {k: jnp.asarray(arrays[k][index]) for k in ("tokens", "hole", "valid")}
            filled = sample.fill(generator, jax.random.key(seed + n), chunk, cfg, sample.plan(cfg, heat))[0]
            for i, window in zip(index, texts.completion_ids(filled, tok, cfg), strict=True):
                windows[i], kinds[arrays["row"][i]] = window, f"filled at {heat:g}"
        for row, window in zip(arrays["row"], windows, strict=True):
            ids[row] += window
        return [tok.decode(row) for row in ids], kinds

    made = [
        pairs(texts.split_rows(cfg, split)[:n], cfg.seed + i, generator and refill)
        for i, (split, n) in enumerate((("train", cfg.judge_rows), ("val", cfg.eval_size)))
    ]
    train, val = (arrays(p, tok, cfg.max_prompt_len + cfg.max_new_tokens + 1) for p in made)
    read = jax.jit(functools.partial(model.score, cfg=cfg.model))

    def batches(state, key):
        index = data.batch_indices(len(train["better"]), cfg.batch_size, state.step, cfg.seed)
        yield {k: None if v is None else jnp.asarray(v[index]) for k, v in train.items()}, {}

    def part(params, batch):  # a mean over rows, of which every micro-batch has its share
        return jax.tree.map(lambda x: x / cfg.gradient_accumulation_steps, loss(params, batch, cfg.model))

    def evaluate(state, key):
        some = lambda tokens, valid: read(state.weights, tokens, valid=valid)
        of = lambda side: np.asarray(mesh.in_chunks(some, config.eval_rows(cfg), val[side], val[side + "_valid"]))
        b, w = of("better"), of("worse")
        columns = ("prompt", "better", "worse", "kind", "score_better", "score_worse")
        shown = zip(*made[1][:4], b.tolist(), w.tolist(), strict=True)
        return report(b, w, made[1]), [dict(zip(columns, row, strict=True)) for row in shown]

    init = lambda key: model.init(key, cfg.model, n_out=1) | {
        k: v for k, v in (start or {}).items() if k != "head" or model.width(start)}  # fmt: skip
    passes = "val/pair_acc" if train["score"] is None else "val/correlation"
    return init, batches, part, evaluate, len(train["better"]), passes
