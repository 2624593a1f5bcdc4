"""
Autoregressive models: every token is predicted from those left of it, as in all models before diffusion.

A text is moved right by one column before the network reads it, with a start token in front. So the state in a column
is about the token of that column, as in a denoiser, and nothing outside the network has to know.
"""
import jax.numpy as jnp

import diffusion
import model
import sample
from system import sections
from variants import caches


def start_id(cfg):
    """Return the id that a causal model reads before a text: begin of text, else end of text, else 0."""
    return next(i for i in (cfg.bos_id, cfg.eos_id, 0) if i is not None)


def moved_right(z, valid, cfg):
    """Move texts one column to the right, so that a causal model's state in column i predicts token i.

    z (B, T), valid (B, T) or None -> both (B, T), with a start token in front and without the last token. The start
    token counts as padding, so no later column sees it."""
    there = jnp.ones((1, z.shape[1]), bool) if valid is None else valid

    def move(a):
        padded = jnp.pad(a, ((0, 0), (1, 0)))
        return padded[:, :-1]

    z, there = move(z), move(there)
    return jnp.where(there, z, start_id(cfg)), there


def state_left(params, z, cfg, valid, start, length):
    """Predict a token from the tokens left of it."""
    z, valid = moved_right(z, valid, cfg)
    return model.own_state(params, z, cfg, valid, start, length)


def see_left(i, j, z, valid, cfg, part):
    """A column sees itself and those left of it."""
    return j <= i


def mask_nothing(key, x, maskable, valid, cfg):
    """Mask no token: a causal model never sees the one that it predicts."""
    return x, maskable, jnp.ones((1, 1))


# ---- how it is sampled from: one column of all rows after the other, with a KV cache ---------------------------------


def check(cfg, plan):
    """Refuse a plan that an autoregressive model cannot follow."""
    if plan.order != "left":
        raise ValueError(f"order={plan.order!r}: a causal model sees only what is left of a mask; use order='left'")
    if plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r}: a causal model has a cache of its own, an exact one; leave it out")


def next_column(params, z, cfg, valid, cache, column):
    """Compute the state (B, 1, D) that a causal model predicts the token in `column` () from -> it, the cache with that
    column. z (B, T) and valid are moved right by one here (moved_right): what is read is the token before."""
    z, valid = moved_right(z, valid, cfg)
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

    moved, there = moved_right(z, valid, cfg)
    cache = caches.prefill(params, moved, cfg, there, group)
    state = sample.begin(z), cache
    s, _ = sample.until_filled(step, state, cfg)
    return sample.result(s, caches.distinct_steps(s.step))


sections.add(model.READS, causal=state_left)
sections.add(model.MASKS, causal=see_left)
sections.add(diffusion.NOISES, causal=diffusion.Noise(mask_nothing))
sections.add(sample.SAMPLERS, causal=sample.Sampler(fill_from_the_left, check))
