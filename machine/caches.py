"""
What a sampler need not compute again: keys and values of columns that do not change, or not yet (sample.Plan.cache).
"""
import functools

import jax
import jax.numpy as jnp

import model


def revisit(params, s, cfg, plan, valid, start, length, fresh):
    """State, the start (B,) of a window -> its features (B, length, D), the cache. A fresh pass computes and keeps all
    columns. The others compute those of the block, of the prefix cache also all on its right, in one of four lengths,
    each compiled once; they see the rest as it was then, and keep what they compute from the beginning of the block on.
    A shifted model reads the first token of a block from the column before."""
    T, first, dual = s.z.shape[1], jnp.maximum(start - cfg.shift, 0), plan.cache == "dual"
    least = min(length + cfg.shift, T)
    sizes = [*range(least, T, T if dual else max(length, T // 4)), T]
    wanted = jnp.where(fresh, T, least if dual else T - first.min())
    kept = jnp.where(fresh, 0, s.block), T
    part = lambda n: (0 if n == T else jnp.minimum(first, T - n), n, kept)
    fns = [lambda cache, n=n: model.read(params, s.z, cfg, valid, start, length, cache, part(n)) for n in sizes]
    return jax.lax.switch(jnp.searchsorted(jnp.array(sizes), wanted), fns, s.cache)


def block_pass(params, s, cfg, plan, valid, start, length):
    """State of a block model, start (B,) of a window -> its features (B, length, D), the cache. One block is computed,
    the first that is not in the cache for good; finished, it then is, and a shifted model reads the next token, too.
    With dual, only the window, where it was computed with its block once and needs no token of the column before it."""
    T = s.z.shape[1]
    full = min(cfg.block_causal, T)
    whole = (s.i <= 0) | cfg.shift & (model.columns(s.z, start, 1)[:, 0] == cfg.mask_id)
    dual = plan.cache == "dual" and length < full
    own = (jnp.where(whole, 0, start), jnp.where(whole, T, start + length)) if dual else None  # rows keep their own

    def run(size, cache):
        first = jnp.minimum(s.kept, T - size) if size == full else start
        h, cache = model.extend(params, model.columns(s.z, first, size), cfg, valid, cache, first, kept=own)
        at = start[:, None] + jnp.arange(length) - cfg.shift - first[:, None]
        return jax.vmap(lambda h, at: h[at])(h, at.clip(0, size - 1)), cache

    few = functools.partial(run, length)
    return jax.lax.cond(whole.any(), functools.partial(run, full), few, s.cache) if dual else run(full, s.cache)


@functools.partial(jax.jit, static_argnames=("cfg", "group"))
def prefill(params, z, cfg, valid, group):
    """z (B, T), in which every `group` rows are alike -> the cache of a causal model, from one pass over one of each.

    Behind a row's first hole it is wrong, and computed again before it is read."""
    some = None if valid is None else valid[::group]
    cache = model.new_cache(cfg, len(z) // group, z.shape[1])
    cache = model.extend(params, z[::group], cfg, some, cache)[1]
    return [jnp.repeat(x, group, 1) for x in cache]
