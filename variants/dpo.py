"""
Learn from pairs of a better and a worse answer to a prompt, with neither rollouts nor rewards (DPO, 2305.18290):

    loss = -log sigmoid(kl_beta * ((E_better - E_better_ref) - (E_worse - E_worse_ref)))

E is log p of an answer given its prompt, E_ref the same under the reference, the model that training started from. In a
causal model E is exact. In a denoiser it is an estimate of the bound (ELBO) from a few masked copies, and its noise
also biases a loss that is not linear in it. So policy and reference see the same masks, which matters most; as in VRPO
(LLaDA-1.5, 2505.19223) so do both answers of a pair, which made no difference here (docs/lessons.md). A denoiser's
answer is all max_new_tokens columns, ends of text included.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from tqdm import tqdm

import config
import data
import diffusion
import rl
from data import texts
from system import evaluation, runs, sharding

SIDES = "chosen", "rejected"  # the better and the worse answer


class PairBatch(NamedTuple):
    """B pairs, each with the better answer first and the worse one second, and with their masks."""

    tokens: jax.Array  # (B, 2, T)
    valid: jax.Array  # (B, 2, T) False on left padding
    masked: jax.Array  # (B, 2, K, T) the masks of K views
    weight: jax.Array  # (B, 2, K, T) of each log-prob in E
    reference: jax.Array | None = None  # (B, 2) E under the reference


# ---- rows -> pairs ---------------------------------------------------------------------------------------------------


def pairs_of(cfg: Any, split: str) -> list[dict]:
    """Read the rows of a split; an error if one is no pair."""
    rows = texts.split_rows(cfg, split)
    lacking = [row for row in rows if not {"prompt", *SIDES} <= row.keys()]
    if lacking:
        raise ValueError(
            f"{cfg.dataset}/{split}: objective='dpo' learns from rows with prompt, chosen (the better answer) and "
            f"rejected (the worse one), but {len(lacking)} of {len(rows)} rows are no such pairs; the first of them "
            f"has {', '.join(lacking[0])}"
        )
    return rows


def between_keys(c):
    """Return a pair (True if wrong, message) for each thing that has to hold between the keys of dpo."""
    return (
        (not c.kl_beta,
         "objective='dpo' needs kl_beta above 0 (0.1 is usual): the smaller it is, the further the policy may go from "
         "the model in init_from"),
        (c.logp_est not in ("elbo", "coupled_elbo", "quadrature", "exact"),
         f"logp_est={c.logp_est!r}: objective='dpo' needs the log-likelihood of given texts: take elbo, coupled_elbo "
         "or quadrature for a denoiser, and exact for a causal model"),
        config.chunks_of_views(c, 2 * c.batch_size // c.gradient_accumulation_steps, "answers"))  # fmt: skip


def check_early(cfg: Any) -> None:
    """Raise an error, before a base is trained, if the rows are no pairs."""
    for split in ("train", "val"):
        pairs_of(cfg, split)


def encode_pairs(cfg: Any, tok: Any, split: str) -> list[texts.EncodedRows]:
    """Encode the pairs of a split whose two answers differ and fit -> [the better answers, the worse ones], row by row.
    """
    rows = pairs_of(cfg, split)
    template = texts.template_of(cfg, tok)
    keep = np.array([row["chosen"] != row["rejected"] for row in rows])
    equal = int((~keep).sum())
    sides = []
    for name in SIDES:
        answers = [row | {"completion": row[name]} for row in rows]
        side = data.encode(answers, tok, cfg.max_prompt_len, cfg.max_new_tokens, template)
        n_windows = np.bincount(side.row, minlength=len(rows))
        keep &= n_windows == 1  # 0: too long; more: cut into windows
        sides.append(side)
    left_out = (
        f"{equal} of {len(rows)} pairs have two equal answers, and {len(rows) - equal - keep.sum()} others do not fit "
        f"max_prompt_len={cfg.max_prompt_len} and max_new_tokens={cfg.max_new_tokens}"
    )
    if not keep.any():
        raise ValueError(f"{cfg.dataset}/{split}: no pair is left: {left_out}")
    if not keep.all():
        tqdm.write(f"{cfg.dataset}/{split}: {left_out}: left out")
    kept = [rows[i] for i in np.flatnonzero(keep)]
    pairs = []
    for side in sides:
        index = np.flatnonzero(keep[side.row])
        encoded = texts.EncodedRows(kept, *side.batch.part(index))
        pairs.append(texts.end_at_eos(encoded, tok) if cfg.model.causal else encoded)
    return pairs


# ---- pairs -> loss ---------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def draw_views(key: jax.Array, better: data.Batch, worse: data.Batch, cfg: Any) -> PairBatch:
    """Draw the masks of B pairs, with the same random numbers for both answers (B rows of T tokens each)."""

    def of_side(side):
        masked, weight, share = diffusion.views(key, cfg.logp_est, side.maskable, n=cfg.logp_views)
        masked = masked.swapaxes(0, 1)
        weight = (weight * share).swapaxes(0, 1)
        valid = jnp.ones(side.tokens.shape, bool) if side.valid is None else side.valid
        return side.tokens, valid, masked, weight

    sides = of_side(better), of_side(worse)
    return PairBatch(*(jnp.stack(arrays, 1) for arrays in zip(*sides, strict=True)))


def log_likelihood(params: dict, batch: PairBatch, cfg: Any) -> jax.Array:
    """Estimate log p of the answers of B pairs given their prompts -> E (B, 2)."""
    B, _, K, T = batch.masked.shape

    def views_first(a):  # (B, 2, K, T) -> (K, 2B, T)
        return a.reshape(2 * B, K, T).swapaxes(0, 1)

    x = batch.tokens.reshape(-1, T)
    valid = batch.valid.reshape(-1, T)
    masked, weight = views_first(batch.masked), views_first(batch.weight)
    views = diffusion.Views(masked, weight, jnp.ones(x.shape))
    chunk = cfg.logp_chunk and min(cfg.logp_chunk, 2 * B * K)
    logp = diffusion.token_logp(params, x, views, cfg.model, valid, cfg.max_prompt_len, chunk)
    return logp.sum(1).reshape(B, 2)


@functools.partial(jax.jit, static_argnames="cfg")
def reference_likelihood(params: dict, batch: PairBatch, cfg: Any) -> jax.Array:
    """Compute `log_likelihood` by micro-batches of the size that the gradient has: in 16 bits, a product of another
    shape gives other numbers."""
    parts = sharding.cut(batch, cfg.gradient_accumulation_steps)
    E = jax.lax.map(functools.partial(log_likelihood, params, cfg=cfg), parts)
    return sharding.replicate(E.reshape(-1, 2))


def loss(params: dict, batch: PairBatch, cfg: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the loss of a batch, plus nll_coef * -log p of the better answers per token -> scalar, metrics. In
    micro-batches both are divided by gradient_accumulation_steps, so that they add up."""
    E = log_likelihood(params, batch, cfg)
    margin = margins(E, batch.reference, cfg)
    parts = {
        "dpo_loss": -log_sigmoid(margin),
        "margin": margin,
        "margin_acc": margin > 0,
        "logp/chosen": E[:, 0],
        "logp/rejected": E[:, 1],
    }
    metrics = {name: values.mean() / cfg.gradient_accumulation_steps for name, values in parts.items()}
    nll = -metrics["logp/chosen"] / cfg.max_new_tokens
    return metrics["dpo_loss"] + getattr(cfg, "nll_coef", 0.0) * nll, metrics


def margins(E: Any, reference: Any, cfg: Any) -> Any:
    """Compute kl_beta times how much more the policy prefers the better answers than the reference does: E, reference
    (B, 2), of the policy and of the reference -> (B,), 0 if the two are equal."""
    gain = E - reference
    return cfg.kl_beta * (gain[:, 0] - gain[:, 1])


# ---- the task --------------------------------------------------------------------------------------------------------


def pair_metrics(E, reference, cfg):
    """Measure held-out pairs from E, reference (N, 2). With eval_only reference is None, and there are no margins."""
    metrics = {"val/pair_acc": np.mean(E[:, 0] > E[:, 1])}
    metrics |= {f"val/logp_{side}": values.mean() for side, values in zip(SIDES, E.T, strict=True)}
    if reference is not None:
        margin = margins(E, reference, cfg)
        metrics |= {"val/margin": margin.mean(), "val/margin_acc": np.mean(margin > 0)}
        metrics["val/dpo_loss"] = np.logaddexp(0, -margin).mean()
    return {name: float(value) for name, value in metrics.items()}


def dpo_task(cfg: Any, tok: Any, start: Any) -> rl.Task:
    """Make the task of learning from pairs, starting from a model that can already do a little."""
    train = encode_pairs(cfg, tok, "train")
    val = [texts.eval_subset(side, cfg) for side in encode_pairs(cfg, tok, "val")]
    asked = texts.eval_subset(texts.encode_split(cfg, tok, "val", with_completions=False), cfg)
    fns, more = evaluation.reward_functions(cfg, tok, asked.rows)
    if not fns and not more:  # a few answers to be looked at
        asked = asked.part(np.arange(min(runs.SAMPLES, len(asked.rows))))

    def init(key):
        return start

    def iterate(state, key, update):
        index = data.batch_indices(len(train[0].rows), cfg.batch_size, state.step, cfg.seed)
        batch = draw_views(key, *(side.take(index) for side in train), cfg)
        reference = reference_likelihood(sharding.to_device(state.reference), batch, cfg)
        update(batch._replace(reference=reference))
        return {}

    def evaluate(state, key):
        def bounds(params):  # with the same masks for both answers
            return np.stack([evaluation.likelihoods(params, side, cfg) for side in val], 1)

        reference = None if state.reference is None else bounds(sharding.to_device(state.reference))
        metrics = pair_metrics(bounds(state.weights), reference, cfg)
        rates, samples = evaluation.pass_rates(cfg, tok, fns, more, state.weights, key, asked)
        return metrics | rates, samples

    best_metric = "val/sampled" if fns or more else "val/pair_acc"
    return rl.Task(init, iterate, functools.partial(loss, cfg=cfg), evaluate, len(train[0].rows), best_metric)


rl.OBJECTIVES["dpo"] = dpo_task
config.RULES["dpo"] = between_keys
