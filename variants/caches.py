"""
What a sampler need not compute again: keys and values of columns that do not change, or not yet.

A causal model and a block model have exact caches (causal.py, blocks.py). A bidirectional one has Fast-dLLM's two
approximate ones (sample.Plan.cache), whose sampler is here: the columns outside the current block are computed when the
block begins, and then kept. All rows begin their next block together.
"""
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
import sample
from system import sections, sharding
from variants.shifted import shifted


class Write(NamedTuple):
    """Where new keys and values go in a cache."""

    first: jax.Array | int  # the column of the first of them; (B,) if rows differ
    low: jax.Array | int = 0  # columns before it are not overwritten; (B,) if rows differ
    high: jax.Array | int | None = None  # nor is this one or any behind it; None: no limit, by `low` neither


def new_cache(cfg, B, T):
    """Make an empty cache for B rows of T columns -> [keys, values] of each layer, (B, KV heads, T, head_dim) each."""
    shape = B, cfg.kv_heads, T, cfg.head_dim
    empty = jnp.zeros(shape, cfg.dtype)
    return [[empty, empty]] * cfg.n_layer


def store(cache, new, write):
    """Put new (B, S, KV, K) into the cached keys or values (B, KV, T, K) of a layer, in the columns that `write`
    names.

    The cache lies as `attention` multiplies it: to transpose it takes a quarter of a step with texts of 470 tokens."""
    new = new.astype(cache.dtype)
    if jnp.ndim(write.first) == 0 and write.high is None:
        return jax.lax.dynamic_update_slice_in_dim(cache, new.swapaxes(1, 2), write.first, 2)
    B, S = new.shape[:2]
    T = cache.shape[2]
    high = T if write.high is None else write.high
    places = write.first, write.low, high
    first, low, high = (jnp.reshape(x, (-1, 1)) for x in places)
    at = first + jnp.arange(S)
    outside = (at < low) | (at >= high)
    at = jnp.where(outside, T, at)  # beyond the end: dropped
    row = jnp.arange(B)[:, None]
    return cache.at[row, :, at].set(new, mode="drop")


def compute(params, z, cfg, valid, cache, part, write, wanted=None):
    """Compute the columns `part` (first, how many) of z (B, T) -> their states, and the cache in which they are stored
    as `write` says. wanted (first, how many), counted from the first column of `part`: whose states are returned (None:
    all)."""
    tokens = model.columns(z, part)
    positions = model.positions_of(valid, z.shape[1])
    positions = model.columns(positions, part)
    mask = model.attention_mask(cfg, valid, z, part)
    return forward(params, tokens, cfg, positions, mask, cache, write, wanted)


def forward(params, tokens, cfg, positions, mask, cache, write, part=None):
    """Run the network over tokens (B, S), as model.forward does, whose columns also see those in the cache -> hidden
    states (B, S, D), and the cache with their keys and values. mask: from model.attention_mask, over the T columns of
    the cache."""
    new_cache: list[list] = []  # of the layers so far

    def attention(q, k, v, scores, part):
        old = cache[len(new_cache)]
        stored = [store(a, new, write) for a, new in zip(old, (k, v), strict=True)]
        new_cache.append(stored)
        k, v = (a.swapaxes(1, 2) for a in new_cache[-1])
        return model.attention(q, k, v, scores, part)

    cfg = dataclasses.replace(cfg, remat=False)  # a cache has no gradient
    h = model.forward(params, tokens, cfg, positions, mask, part, attention)
    return h, new_cache


@functools.partial(jax.jit, static_argnames=("cfg", "group"))
def prefill(params, z, cfg, valid, group):
    """Make the cache of a causal or block model from one pass over z (B, T), in which every `group` rows are identical
    (of a causal model: as it reads them, see causal.moved_right).

    From a row's first mask on (in a block model, from its block on) it is wrong, and is computed again before it is
    read."""
    z, valid = one_of_each_group((z, valid), group)
    B, T = z.shape
    cache = new_cache(cfg, B, T)
    everything = 0, T
    _, cache = compute(params, z, cfg, valid, cache, everything, Write(0))
    return for_all_rows(cache, group)


def distinct_steps(step):
    """Count the steps (B,) that committed a token of each row, from step (B, T), -1 if given: with a cache a row may
    wait for others, or a pass may only store it. (Steps in which the rule dream commits nothing are left out, too.)"""
    step = jnp.pad(step, ((0, 0), (1, 0)), constant_values=-1)
    ordered = jnp.sort(step, 1)
    return (ordered[:, 1:] > ordered[:, :-1]).sum(1)


def one_of_each_group(tree, group):
    """Keep the first of every `group` rows, which are identical, of all arrays of a tree."""
    return sharding.take(tree, slice(None, None, group))


def for_all_rows(cache, group):
    """Repeat the rows of a cache of one row per group."""
    return jax.tree.map(lambda a: jnp.repeat(a, group, 0), cache)


# ---- Fast-dLLM -------------------------------------------------------------------------------------------------------


def approximate_pass(params, z, w, refresh, cfg, plan, valid, cache):
    """Compute the states (B, L, D) of the window w of z (B, T) with Fast-dLLM's cache, and update it.

    A pass with `refresh` () computes and stores all columns. Others compute those of the block, with the prefix cache
    also all on its right, rounded up to one of a few lengths, each compiled once. They attend to the cached rest, and
    store the columns from the block's first on. A shifted model reads the first token of a block from the column
    before."""
    T, L = z.shape[1], w.column.shape[1]
    start = w.column[:, 0]
    first = jnp.maximum(start - cfg.shift, 0)
    least = min(L + cfg.shift, T)
    if plan.cache == "dual":
        sizes = sorted({least, T})
        needed = least
    else:
        step = max(L, T // 4)
        sizes = [*range(least, T, step), T]
        needed = T - first.min()
    needed = jnp.where(refresh, T, needed)
    low = jnp.where(refresh, 0, w.block)

    def run(size, cache):
        at = 0 if size == T else jnp.minimum(first, T - size)
        part = at, size
        write = Write(at, low, T)
        wanted = None if size == least else (first - at, least)
        h, cache = compute(params, z, cfg, valid, cache, part, write, wanted)
        if cfg.shift:
            h = shifted(h, first, start, L, valid)
        return h, cache

    runs = [functools.partial(run, size) for size in sizes]
    index = jnp.searchsorted(jnp.array(sizes), needed)
    return jax.lax.switch(index, runs, cache)


def current_block(s, cfg, plan):
    """Find the block that each row works on -> its Window, and if the cache is to be computed anew (). A row that has
    finished its block waits until all rows have."""
    block = sample.next_block(s, cfg, plan)
    unfinished = (s.z == cfg.mask_id).any(1)
    in_block = unfinished & (block == s.block)
    refresh = ~in_block.any()
    may_move = in_block | refresh & unfinished
    block = jnp.where(may_move, block, jnp.maximum(s.block, 0))
    return sample.block_window(s, block, cfg, plan), refresh


def fill_with_cache(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as sample.fill_in_steps does, with one of Fast-dLLM's caches."""

    def step(state, group=1):
        s, cache = state
        w, refresh = current_block(s, cfg, plan)
        of_rows = s.z, w, valid, cache
        z, one, of_text, cache = one_of_each_group(of_rows, group)
        h, cache = approximate_pass(params, z, one, refresh, cfg, plan, of_text, cache)
        rule = sample.RULES[plan.rule]
        chosen = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, rule)
        s = sample.write(s, w, *chosen)
        if plan.early_end:
            s = sample.fill_rest(s, sample.behind_the_end, cfg)
        return s, for_all_rows(cache, group)

    state = sample.begin(z), new_cache(cfg, *z.shape)
    s, _ = sample.until_filled(step, state, cfg, group)
    return sample.result(s, distinct_steps(s.step))


sections.add(sample.SAMPLERS, caches=sample.Sampler(fill_with_cache))
