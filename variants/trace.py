"""
The log-probability of the path on which a completion was written:  --logp_est=trace

Exact if every step has a view of its own (--logp_views) and completions are scored behind their ends too.
"""
import jax
import jax.numpy as jnp

import diffusion


def trace(key, completion, inputs):
    """TraceRL, CJ-GRPO: score each token at the step that committed it, given the tokens committed before. With fewer
    views n than the S steps that committed a token of the loss, take every (S / n)-th of these from a random start,
    each standing for S / n (AGRPO)."""
    counts = completion if inputs.counts is None else inputs.counts
    number, scored_at = diffusion.chosen(NUMBERS, inputs.cfg)(counts, inputs)
    S = jnp.max(jnp.where(counts, scored_at, -1), 1) + 1  # (B,)
    n_views = jnp.clip(S, 1, inputs.n)
    u = jax.random.uniform(key, S.shape)
    k = jnp.arange(inputs.n)[:, None]
    every_nth = jnp.floor((u + k) * (S / n_views))
    step = jnp.where(S <= inputs.n, k, every_nth)[..., None]  # (n, B, 1)
    in_view = completion & (k < n_views)[..., None]
    stands_for = jnp.maximum(S, 1) / n_views  # steps
    weights = in_view * (scored_at == step) * stands_for[:, None]
    masked = in_view & (number >= step)
    return diffusion.split_weight(masked, weights)


def step_numbers(counts, inputs):
    """Number the denoising steps that commit a token of the loss, from 0: counts (B, T), True on those tokens -> for
    each token (B, T) the number of its step, or of the last numbered one before it; -1 before the first. Twice: by the
    first a view masks tokens, by the second it scores them. Steps 0 0 2 5 have the numbers 0 0 1 2; if the token of
    step 2 is not in the loss, 0 0 0 1."""
    mine = inputs.step[..., None]
    others = inputs.step[:, None]
    further_left = jnp.tri(counts.shape[1], k=-1, dtype=bool)
    repeats = (mine == others) & counts[:, None] & further_left
    leftmost = counts & ~repeats.any(-1)  # of the tokens that one step committed
    number = (leftmost[:, None] & (others <= mine)).sum(-1) - 1
    return number, number


NUMBERS = {"rows": step_numbers}  # blocks number the steps of each block anew


diffusion.ESTIMATORS["trace"] = trace
