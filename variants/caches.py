"""
What a sampler need not compute again: keys and values of columns that do not change, or not yet.

A causal model and a block model have exact caches. A bidirectional one has Fast-dLLM's two approximate ones
(sample.Plan.cache): the columns outside the current block are computed when the block begins, and then kept.
"""
import functools
import operator

import jax
import jax.numpy as jnp

import model
from variants.causal import moved_right


def compute(params, z, cfg, valid, cache, part, write, wanted=None):
    """Compute the columns `part` (first, how many) of z (B, T) -> their states, and the cache in which they are stored
    as `write` says. wanted (first, how many), counted from the first column of `part`: whose states are returned (None:
    all)."""
    tokens = model.columns(z, part)
    positions = model.positions_of(valid, z.shape[1])
    positions = model.columns(positions, part)
    mask = model.attention_mask(cfg, valid, z, part)
    return model.forward(params, tokens, cfg, positions, mask, cache, write, wanted)


@functools.partial(jax.jit, static_argnames=("cfg", "group"))
def prefill(params, z, cfg, valid, group):
    """Make the cache of a causal or block model from one pass over z (B, T), in which every `group` rows are identical.

    From a row's first mask on (in a block model, from its block on) it is wrong, and is computed again before it is
    read."""
    z = z[::group]
    if valid is not None:
        valid = valid[::group]
    B, T = z.shape
    cache = model.new_cache(cfg, B, T)
    if cfg.causal:
        z, valid = moved_right(z, valid, cfg)
    everything = 0, T
    _, cache = compute(params, z, cfg, valid, cache, everything, model.Write(0))
    return [jnp.repeat(a, group, 1) for a in cache]


def next_column(params, z, cfg, valid, cache, column):
    """Compute the state (B, 1, D) that a causal model predicts the token in `column` () from -> it, the cache with that
    column. z (B, T) and valid are moved right by one here (causal.moved_right): what is read is the token before."""
    z, valid = moved_right(z, valid, cfg)
    part = column, 1
    return compute(params, z, cfg, valid, cache, part, model.Write(column))


def approximate_pass(params, s, window, cfg, plan, valid, L):
    """Compute the states (B, L, D) of the current block with Fast-dLLM's cache, and update it.

    A refreshing pass computes and stores all columns. Others compute those of the block, with the prefix cache also all
    on its right, rounded up to one of a few lengths, each compiled once. They attend to the cached rest, and store the
    columns from the block's first on. A shifted model reads the first token of a block from the column before."""
    T = s.z.shape[1]
    first = jnp.maximum(window.start - cfg.shift, 0)
    least = min(L + cfg.shift, T)
    if plan.cache == "dual":
        sizes = sorted({least, T})
        needed = least
    else:
        step = max(L, T // 4)
        sizes = [*range(least, T, step), T]
        needed = T - first.min()
    needed = jnp.where(window.refresh, T, needed)
    low = jnp.where(window.refresh, 0, s.block)

    def run(size, cache):
        at = 0 if size == T else jnp.minimum(first, T - size)
        part = at, size
        write = model.Write(at, low, T)
        wanted = None if size == least else (first - at, least)
        h, cache = compute(params, s.z, cfg, valid, cache, part, write, wanted)
        if cfg.shift:
            h = model.shifted(h, first, window.start, L, valid)
        return h, cache

    runs = [functools.partial(run, size) for size in sizes]
    index = jnp.searchsorted(jnp.array(sizes), needed)
    return jax.lax.switch(index, runs, s.cache)


def block_pass(params, s, window, cfg, plan, valid, L):
    """Compute the states (B, L, D) of the current block of a block model, and update the cache.

    The block that is computed is the first that is not stored for good (Window.stored): the one being filled or, once
    it is finished, the same one for the last time, from which a shifted model also predicts the next block's first
    token. If a block is filled in parts of L columns, the first pass of a part computes the whole block, and with the
    dual cache later ones only the part; but a shifted model computes the whole block until the part's first token,
    which it reads from the column before, is filled."""
    T = s.z.shape[1]
    full = min(cfg.block_causal, T)
    start = window.start
    in_parts = plan.cache == "dual" and L < full
    first_token = model.columns(s.z, (start, 1))[:, 0]
    begins = window.i <= 0
    whole = begins | cfg.shift & (first_token == cfg.mask_id)  # rows that need their whole block

    def run(size, cache):
        first = jnp.minimum(window.stored, T - size) if size == full else start
        write = model.Write(first)
        if in_parts:  # rows that need only their part keep the rest
            low = jnp.where(whole, 0, start)
            high = jnp.where(whole, T, start + L)
            write = model.Write(first, low, high)
        part = first, size
        h, cache = compute(params, s.z, cfg, valid, cache, part, write)
        at = start[:, None] + jnp.arange(L) - cfg.shift - first[:, None]
        at = at.clip(0, size - 1)
        return jax.vmap(operator.getitem)(h, at), cache

    if not in_parts:
        return run(full, s.cache)
    run_block = functools.partial(run, full)
    run_part = functools.partial(run, L)
    return jax.lax.cond(whole.any(), run_block, run_part, s.cache)

