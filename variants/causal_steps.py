"""
How an autoregressive model is sampled from: one column of all rows after the other, with a KV cache.
"""
import jax
import jax.numpy as jnp

import sample
from variants import caches, causal


def check(cfg, plan):
    """Refuse a plan that an autoregressive model cannot follow."""
    if plan.order != "left":
        raise ValueError(f"order={plan.order!r}: a causal model sees only what is left of a mask; use order='left'")
    if plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r}: a causal model has a cache of its own, an exact one; leave it out")


def next_column(params, z, cfg, valid, cache, column):
    """Compute the state (B, 1, D) that a causal model predicts the token in `column` () from -> it, the cache with that
    column. z (B, T) and valid are moved right by one here (causal.moved_right): what is read is the token before."""
    z, valid = causal.moved_right(z, valid, cfg)
    part = column, 1
    return caches.compute(params, z, cfg, valid, cache, part, caches.Write(column))


def commit_all(block, plan):
    """Say that the token of the one column is committed: no other rule makes a difference."""
    return jnp.ones_like(block.masked)


def fill_from_the_left(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T), of which every `group` rows have one prompt. In a step all rows are at one column.
    The first is the first that any row has to fill; given tokens are visited, too, because the cache has to hold them.
    """
    B, T = z.shape
    first = jnp.argmax((z == cfg.mask_id).any(0))
    zero = jnp.zeros(B, jnp.int32)

    def step(state):
        s, cache = state
        column = jnp.full(B, first + s.n)
        w = sample.window(s.z, column, zero, zero + 1, cfg, 1)
        h, cache = next_column(params, s.z, cfg, valid, cache, w.column[0, 0])
        chosen = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, commit_all)
        s = sample.write(s, w, *chosen)
        return sample.fill_rest(s, sample.behind_the_end, cfg), cache

    def unfinished(state):
        return jnp.any(state[0].z == cfg.mask_id)

    state = sample.begin(z), caches.prefill(params, z, cfg, valid, group)
    s, _ = jax.lax.while_loop(unfinished, step, state)
    return sample.result(s, caches.distinct_steps(s.step))


sample.SAMPLERS["causal_steps"] = fill_from_the_left
sample.CHECKS["causal_steps"] = check
