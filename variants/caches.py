"""
What a sampler need not compute again: keys and values of columns that do not change, or not yet.

A causal model and a block model have exact caches (causal.py, block_steps.py). A bidirectional one has
Fast-dLLM's two approximate ones (sample.Plan.cache), whose sampler is here: the columns outside the current block are
computed when the block begins, and then kept. All rows begin their next block together.
"""
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
import sample
from system import settings, sharding


class Write(NamedTuple):
    """Where new keys and values go in a cache."""

    first: jax.Array | int  # the column of the first of them; (B,) if rows differ
    low: jax.Array | int = 0  # columns before it are not overwritten; (B,) if rows differ
    high: jax.Array | int | None = None  # nor is this one or any behind it; None: no limit, by `low` neither


def new_cache(cfg, B, T):
    """Make an empty cache for B rows of T columns -> [keys, values], each (layers, B, KV heads, T, head_dim)."""
    shape = cfg.n_layer, B, cfg.kv_heads, T, cfg.head_dim
    return [bits(jnp.zeros(shape, cfg.dtype)) for _ in "kv"]


def bits(x):
    """View bfloat16 as uint16. XLA's CPU converts a whole array of bfloat16 to float32 and back to slice it or to
    update a part, in a loop once per layer."""
    if x.dtype != jnp.bfloat16:
        return x
    return jax.lax.bitcast_convert_type(x, jnp.uint16)


def numbers(x):
    """Undo `bits`."""
    if x.dtype != jnp.uint16:
        return x
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16)


def store(cache, new, layer, write):
    """Put new (B, S, KV, K) into a layer of cache (L, B, KV, T, K), in the columns that write (a Write) names.

    The cache lies as `attention` multiplies it: to transpose it takes a quarter of a step with texts of 470 tokens."""
    dtype = jnp.bfloat16 if cache.dtype == jnp.uint16 else cache.dtype  # uint16: see `bits`
    new = bits(new.astype(dtype))
    if jnp.ndim(write.first) == 0 and write.high is None:
        new = new.swapaxes(1, 2)[None]
        return jax.lax.dynamic_update_slice(cache, new, (layer, 0, 0, write.first, 0))
    B, S = new.shape[:2]
    T = cache.shape[3]
    high = T if write.high is None else write.high
    first, low, high = (jnp.reshape(x, (-1, 1)) for x in (write.first, write.low, high))
    at = first + jnp.arange(S)
    outside = (at < low) | (at >= high)
    at = jnp.where(outside, T, at)  # beyond the end: dropped
    row = jnp.arange(B)[:, None]
    return cache.at[layer, row, :, at].set(new, mode="drop")


def stored(cache, layer):
    """Return the keys or values (B, T, KV, K) of a layer from a cache (L, B, KV, T, K)."""
    return numbers(cache[layer]).swapaxes(1, 2)


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
    params = model.prepared(params, cfg)
    rotation = model.ROTARY[cfg.rotary](positions, cfg)

    def layer(carry, inputs, part=None):
        x, cache = carry
        w, i = inputs

        def attend(q, k, v):
            nonlocal cache
            cache = [store(old, new, i, write) for old, new in zip(cache, (k, v), strict=True)]
            k, v = (stored(a, i) for a in cache)
            return model.attention(q, k, v, mask(i), part)

        w = jax.tree.map(numbers, sharding.gather_weights(w))
        x = model.block(x, w, cfg, rotation, attend, part)
        return (sharding.shard_rows(x), cache), None

    carry = model.embed(params, tokens, cfg), cache
    weights = jax.tree.map(bits, params["blocks"])
    x, cache = model.run_layers(layer, carry, weights, cfg, part)
    return model.rms_norm(model.wanted_columns(x, part), params["norm"], cfg.norm_eps), cache


@functools.partial(jax.jit, static_argnames=("cfg", "group"))
def prefill(params, z, cfg, valid, group):
    """Make the cache of a causal or block model from one pass over z (B, T), in which every `group` rows are identical
    (of a causal model: as it reads them, see causal.moved_right).

    From a row's first mask on (in a block model, from its block on) it is wrong, and is computed again before it is
    read."""
    z = z[::group]
    if valid is not None:
        valid = valid[::group]
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


def one_of_each_group(rows, cache, group):
    """Keep the first of every `group` rows, which are identical, of a tree of rows and of a cache."""
    return sharding.take(rows, slice(None, None, group)), [a[:, ::group] for a in cache]


def for_all_rows(cache, group):
    """Repeat the rows of a cache of one row per group."""
    return [jnp.repeat(a, group, 1) for a in cache]


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
            h = model.shifted(h, first, start, L, valid)
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
        (z, one, of_text), cache = one_of_each_group((s.z, w, valid), cache, group)
        h, cache = approximate_pass(params, z, one, refresh, cfg, plan, of_text, cache)
        chosen = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, sample.RULES[plan.rule])
        s = sample.write(s, w, *chosen)
        if plan.early_end:
            s = sample.fill_rest(s, sample.behind_the_end, cfg)
        return s, for_all_rows(cache, group)

    def unfinished(state):
        return jnp.any(state[0].z == cfg.mask_id)

    state = sample.begin(z), new_cache(cfg, *z.shape)
    if group > 1:
        state = step(state, group)
    s, _ = jax.lax.while_loop(unfinished, step, state)
    return sample.result(s, distinct_steps(s.step))


settings.add(sample.SAMPLERS, caches=sample.Sampler(fill_with_cache))
