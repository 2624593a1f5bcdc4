"""
Judges: the transformer with a head of width 1, which reads a prompt and a completion and scores how good it is.

A judge learns from pairs of a better and a worse text (variants/judge.py) and then stays frozen: a reward for texts
that no rule and no test can grade. The model that a run starts from can be a reward as well, by the log-probability of
the completion (`coherence`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import data
import diffusion
import model
from checkpoints import checkpoint
from checkpoints.best import best_checkpoint
from data import hub, texts
from system import sharding

MAX_LEN = 4096  # the most tokens of prompt and completion that a judge reads
FLOOR = -20.0  # of coherence
WIDTHS = [8 * w << i for i in range(16) for w in (2, 3)]  # of token arrays, each compiled once: 16, 24, 32, 48, 64, ...

# ---- models as rewards -----------------------------------------------------------------------------------------------


def encode(rows, completions, tok, max_len, template=None):
    """Encode prompt + completion + end of text, padded on the left -> tokens (B, T) int32, valid (B, T) bool.

    rows have the prompts and, where there are some, the messages before them; template: see data.chat. T is the longest
    text rounded up to one of WIDTHS, at most max_len. Longer texts lose their beginning. tok is the judge's own
    tokenizer, which may differ from the policy's.
    """
    ids = []
    for row, text in zip(rows, completions, strict=True):
        whole = [*data.prompt_ids(row, tok, template), *tok.encode(text), tok.eos_id]
        ids.append(whole[-max_len:])
    longest = max(map(len, ids), default=1)
    width = min(max_len, next(w for w in WIDTHS if w >= longest))
    tokens = np.full((len(ids), width), tok.pad_id, np.int32)
    valid = np.zeros(tokens.shape, bool)
    for i, row in enumerate(ids):
        tokens[i, -len(row) :] = row
        valid[i, -len(row) :] = True
    return tokens, valid


def rows_of(prompts, messages_before):
    """Put the columns of a reward back into rows; messages_before: of each prompt, or None if no row has any."""
    before = messages_before or [None] * len(prompts)
    rows = []
    for prompt, turns in zip(prompts, before, strict=True):
        rows.append({"prompt": prompt} | ({"messages_before": turns} if turns else {}))
    return rows


def in_batches(fn, *arrays, size):
    """Apply fn to arrays (B, ...) -> (B,), `size` rows at a time; the last batch is filled up, so fn compiles once."""
    n = len(arrays[0])
    rows = np.arange(-(-n // size) * size).clip(max=n - 1)
    return np.asarray(sharding.in_chunks(fn, size, *(a[rows] for a in arrays)), float)[:n]


def sigmoid(x):
    """Turn scores into probabilities, in numpy."""
    return 1 / (1 + np.exp(-x))


def rate(params, tokens, cfg, valid):
    """Rate texts with a judge: tokens, valid (B, T) -> one number per text (B,). It reads the mean of the states, or in
    a causal model the last of them."""
    h = model.trunk(params, tokens, cfg, valid).astype(jnp.float32)
    if cfg.causal:
        pooled = h[:, -1]  # (B, D)
    else:
        counts = valid.astype(jnp.float32)
        total = jnp.sum(h * counts[..., None], 1)
        pooled = total / jnp.maximum(counts.sum(1, keepdims=True), 1)
    return sharding.replicate(pooled @ params["head"][:, 0])


def judge(
    params: Any, cfg: model.ModelConfig, tok: Any, batch_size: int = 32, max_len: int = MAX_LEN, template: Any = None
) -> Callable:
    """Make a reward of a judge: the sigmoid of its score, in (0, 1); blank text scores 0. template: see `encode`."""

    @jax.jit
    def score(params, tokens, valid):
        return rate(params, tokens, cfg, valid)

    def reward(prompts, completions, messages_before=None):
        arrays = encode(rows_of(prompts, messages_before), completions, tok, max_len, template)
        scores = in_batches(functools.partial(score, params), *arrays, size=batch_size)
        return [float(p) if text.strip() else 0.0 for p, text in zip(sigmoid(scores), completions, strict=True)]

    return reward


def coherence(
    params: Any,
    cfg: model.ModelConfig,
    tok: Any,
    batch_size: int = 32,
    max_len: int = MAX_LEN,
    template: Any = None,
) -> Callable:
    """Make a reward of a frozen language model: the mean log-prob per token of a completion, its end of text included.

    In nats, at most 0. For a denoiser it is the likelihood bound from 8 masks, the same ones for every text. Blank text
    scores FLOOR, which is lower than a uniform guess in any vocabulary; no text scores less.
    """

    @jax.jit
    def bound(params, tokens, valid, maskable):
        return diffusion.likelihood(params, data.Batch(tokens, maskable, valid), jax.random.key(0), cfg)

    def reward(prompts, completions, messages_before=None):
        tokens, valid = encode(rows_of(prompts, messages_before), completions, tok, max_len, template)
        width = tokens.shape[1]
        length = np.array([min(len(tok.encode(text)) + 1, width) for text in completions])  # with the end of text
        completion = np.arange(width) >= width - length[:, None]
        logp = in_batches(functools.partial(bound, params), tokens, valid, completion, size=batch_size) / length
        return [max(FLOOR, float(p)) if text.strip() else FLOOR for p, text in zip(logp, completions, strict=True)]

    return reward


def load(folder: Any, dtype: str = "float32") -> Callable:
    """Load a judge -> its reward. dtype: to compute in."""
    found, _ = best_checkpoint(hub.local_copy(folder))
    run = checkpoint.read_run(found)
    best, keys = run.get("best") or {}, run.get("config", {})
    params, cfg = checkpoint.load(found, dtype)
    tok = data.open_tokenizer(found, cfg.vocab_size)
    if not model.width(params):
        raise ValueError(f"judge_from={folder!r} is not a judge, as its head has not width 1: name the folder of one")
    tested = f"{best['measure']} {best['score']:.3f} on held-out texts" if best else "never tested on held-out texts"
    print(f"judge {found}: {tested}")
    name, system, instruction = (keys.get(f"texts.{key}") for key in ("chat_template", "system_prompt", "instruction"))
    template = data.chat(name, system, tok, instruction)
    return judge(params, cfg, tok, template=template)


def rewards_of(cfg: Any, tok: Any, names: tuple[str, ...]) -> dict[str, Callable]:
    """Make the rewards from models that a run names: of the judge, and of the model that it starts from."""
    made = {"judge": load(cfg.judge_from, cfg.model.dtype)} if cfg.judge_from else {}
    if "coherence" in names and cfg.init_from:
        params, _ = checkpoint.load(cfg.init_from, cfg.model.dtype, checkpoint.Keys.of(cfg).open_as)
        made["coherence"] = coherence(params, cfg.model, tok, template=texts.template_of(cfg, tok))
    return made
