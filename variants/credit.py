"""
Credit per denoising step (EGSPO and EGSPO-SA, 2603.12554), for rollouts that `trace` scores.

A completion is written in steps, and its reward comes at the end. GRPO gives each of its tokens the same advantage.
Here the tokens that step t committed get an advantage of their own. Let x_t be the text before step t, masks and all,
and b(x_t) the reward of x_t with every mask filled by its likeliest token, in one pass:

    A_t = (1 - w) (R - mean of R over the group) + w (R - b(x_t))           w: step_baseline

So b(x_t) says what the text was worth before the step: like a value model, but without one to train. Because it does
not depend on the tokens that step t draws, subtracting it does not change the expected gradient. `entropy_steps` keeps
only the steps of a completion whose tokens were the most uncertain, and that is biased: docs/credit.md.

Shapes: B completions, T tokens, S denoising steps.
"""
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffusion
from data import texts
from judges import scores
from system import hosts, kernels, sharding


def wanted(cfg: Any) -> bool:
    """True if entropy_steps or step_baseline is set."""
    return cfg.entropy_steps is not None or cfg.step_baseline > 0


class Steps(NamedTuple):
    """What the policy makes of the texts x_0 .. x_{S-1}, x_t being the text before step t."""

    fills: np.ndarray  # (S, B, T) each text with all masks filled by the likeliest tokens
    entropy: np.ndarray  # (B, S) mean over the tokens of the loss that the step committed; -inf if there are none


@functools.partial(jax.jit, static_argnames="cfg")
def look(params, r, step, cfg):
    """Read the texts of a Rollout before `step` () in one pass -> their greedy fill (B, T), and the mean entropy (B,)
    of the tokens of the loss that the step committed; -inf if there are none."""
    masked = r.completion & (r.step >= step)
    committed = r.counts & (r.step == step)

    def likeliest_and_entropy(logits, x, place):
        return kernels.likeliest(logits), diffusion.entropy(logits)

    token, entropy = diffusion.view_logp(
        params, r.tokens, masked[None], cfg.model, r.valid, cfg.max_prompt_len, scored=masked[None],
        say=likeliest_and_entropy,
    )  # fmt: skip
    fill = jnp.where(masked, token[0], r.tokens)
    n = committed.sum(1)
    total = jnp.where(committed, entropy[0], 0).sum(1)
    mean = total / jnp.maximum(n, 1)
    mean = jnp.where(n > 0, mean, -jnp.inf)
    return sharding.replicate((fill, mean))


def look_at_steps(params, r, cfg) -> Steps:
    """Read the texts of a Rollout before each of its steps, one pass per step."""
    def some(r, step):
        return look(params, r, step[0], cfg)

    B, T = r.tokens.shape
    last = jnp.where(r.counts, r.step, -1).max()
    S = int(hosts.gather(last)) + 1
    if S == 0:
        return Steps(np.zeros((0, B, T), int), np.zeros((B, 0)))
    found = []
    for step in range(S):
        numbers = jnp.full(B, step)
        at_step = sharding.in_chunks(some, cfg.rollout_chunk or B, r, numbers)
        found.append(jax.tree.map(hosts.gather, at_step))
    fills, entropy = zip(*found, strict=True)
    return Steps(np.stack(fills), np.stack(entropy, 1))


def choose_steps(entropy: np.ndarray, n: int | None) -> np.ndarray:
    """Choose the n steps of each completion with the largest entropy, the earlier one of equals; None: all.

    entropy (B, S), -inf if a step commits no token of the loss -> (B, S) bool."""
    if n is None:
        n = entropy.shape[1]
    order = np.argsort(-entropy, 1, kind="stable")
    rank = np.argsort(order, 1)
    return (entropy > -np.inf) & (rank < n)


def at_tokens(values: np.ndarray, r, nothing) -> jax.Array:
    """Give each token the value (B, S) of the step that committed it -> (B, T); `nothing` where no step did."""
    step = hosts.gather(r.step)
    S = values.shape[1]
    if S == 0:
        return jnp.full(step.shape, nothing)
    there = (step >= 0) & (step < S)
    of_step = np.take_along_axis(values, step.clip(0, S - 1), 1)
    return jnp.asarray(np.where(there, of_step, nothing))


def fill_rewards(steps: Steps, chosen: np.ndarray, rows: list, fns: dict, cfg: Any, tok: Any) -> np.ndarray:
    """Judge the greedy fills before the chosen (B, S) steps of B completions, whose prompts are in `rows` -> (B, S),
    nan for the other steps. Each fill is judged alone, as a group of one."""
    completion, step = np.nonzero(chosen)
    fills = jnp.asarray(steps.fills[step, completion])
    ids = texts.completion_ids(fills, tok, cfg)
    rows = [rows[i] for i in completion]
    scored = scores.score(fns, {}, cfg, tok, rows, ids, 1)
    out = np.full(chosen.shape, np.nan)
    out[completion, step] = scored.total
    return out


def by_step(params, r, adv, which, found, fns, cfg, tok):
    """Remove the tokens of steps that `entropy_steps` leaves out from the loss. With a step_baseline, give each of the
    other steps an advantage of its own.

    r: Rollout of B completions, adv (B,) their advantages, which (B,) their indices among the N * G completions of the
    Scored `found` -> the Rollout whose `counts` has the tokens of the chosen steps; advantages (B,), or with a
    step_baseline (B, T)."""
    steps = look_at_steps(params, r, cfg)
    chosen = choose_steps(steps.entropy, cfg.entropy_steps)
    counts = r.counts & at_tokens(chosen, r, False)
    r = r._replace(counts=counts)
    if not cfg.step_baseline:
        return r, adv
    which = np.asarray(which)
    rows = [found.rows[i // cfg.group_size] for i in which]
    total = scores.total_rewards(found.rewards[: len(cfg.rewards)], cfg).reshape(-1)  # without the diversity bonus
    gain = total[which, None] - fill_rewards(steps, chosen, rows, fns, cfg, tok)
    gain = np.nan_to_num(gain).astype(np.float32)  # 0 where one of the two has no reward
    w = cfg.step_baseline
    return r, (1 - w) * adv[:, None] + w * at_tokens(gain, r, 0.0)
