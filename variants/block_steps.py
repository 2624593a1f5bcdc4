"""
How a block model is sampled from: a block, or a part of one, after the other, with an exact KV cache or without one.
"""
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
import sample
from system import settings
from variants import blocks, caches
from variants.rules import static


def check(cfg, plan):
    """Refuse parts of blocks that are not equally long."""
    if cfg.block % min(plan.block_len or cfg.block, cfg.block):
        raise ValueError(f"block_len={plan.block_len}: expected a divisor of blocks.block={cfg.block}, whose "
                         "blocks are filled in parts of this length, or a larger number, which changes nothing")


class Turn(NamedTuple):
    """The block, or the part of a block, that each row works on."""

    window: sample.Window
    stored: jax.Array  # (B,) the columns before it are in the cache for good
    extra: jax.Array  # (B,) True if this pass is not one of the block's steps


def next_turn(s, stored, has_cache, cfg, plan, valid, L) -> Turn:
    """Find the block of L columns, or the part of a block, that each row works on.

    Two kinds of pass do not count as one of a block's steps. With a cache, a finished block gets one more pass, which
    stores it. In a shifted model, with or without a cache, the first token of each block but the first gets a pass of
    its own, because it is predicted from the finished block before it; with a cache this is the pass that stores."""
    B, T = s.z.shape
    size = cfg.block
    text = 0 if valid is None else jnp.argmax(valid, 1)  # where each row's text begins
    first = jnp.argmax(s.z == cfg.mask_id, 1)
    at = first - text
    block = text + at // L * L
    needed = text + jnp.maximum(at - cfg.shift, 0) // size * size  # the columns that must be in the cache
    stored = jnp.where(s.n == 0, needed, stored)  # the prompt has been read
    behind = has_cache & (stored < needed)
    alone = cfg.shift & (at > 0) & (at % size == 0)
    extra = alone | behind
    i = jnp.where(block == s.block, s.i, 0) - extra
    w = sample.window(s.z, block, i, jnp.full(B, plan.steps), cfg, L)
    may = (w.column == first[:, None]) | ~alone[:, None]
    return Turn(w._replace(masked=w.masked & may & ~behind[:, None]), stored, extra)


def block_pass(params, z, turn, cfg, plan, valid, cache):
    """Compute the states (B, L, D) of the window of a Turn of z (B, T), and update the cache.

    The block that is computed is the first that is not stored for good, from column turn.stored on: the one being
    filled or, once it is finished, the same one for the last time, from which a shifted model also predicts the next
    block's first token. If a block is filled in parts of L columns, the first pass of a part computes the whole block,
    and with the dual cache later ones only the part; but a shifted model computes the whole block until the part's
    first token, which it reads from the column before, is filled."""
    w, stored = turn.window, turn.stored
    T, L = z.shape[1], w.column.shape[1]
    full = min(cfg.block, T)
    start = w.column[:, 0]
    in_parts = plan.cache == "dual" and L < full
    first_token = model.columns(z, (start, 1))[:, 0]
    begins = w.i <= 0
    whole = begins | cfg.shift & (first_token == cfg.mask_id)  # rows that need their whole block

    def run(size, cache):
        first = jnp.minimum(stored, T - size) if size == full else start
        write = caches.Write(first)
        if in_parts:  # rows that need only their part keep the rest
            low = jnp.where(whole, 0, start)
            high = jnp.where(whole, T, start + L)
            write = caches.Write(first, low, high)
        part = first, size
        h, cache = caches.compute(params, z, cfg, valid, cache, part, write)
        at = start[:, None] + jnp.arange(L) - cfg.shift - first[:, None]
        at = at.clip(0, size - 1)
        return jax.vmap(operator.getitem)(h, at), cache

    if not in_parts:
        return run(full, cache)
    run_block = functools.partial(run, full)
    run_part = functools.partial(run, L)
    return jax.lax.cond(whole.any(), run_block, run_part, cache)


def behind_the_end(s, cfg, valid):
    """Find the masks (B, T) that need no more steps: those in blocks behind the first one that is not full, if a full
    one has an end of text. The whole block with the end has to be filled."""
    T = s.z.shape[1]
    number = blocks.number(valid, T, cfg)
    masked = s.z == cfg.mask_id

    def first_block(there):
        return jnp.where(there, number, T).min(1, keepdims=True)

    return masked & (first_block(masked) > first_block(sample.ends_written(s, cfg)))


def fill_in_blocks(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T), a block after the other. Of every `group` rows, which have one prompt, the first step
    computes one."""
    B, T = z.shape
    L = min(plan.block_len or T, cfg.block, T)
    rule = static if plan.rule == "quota" else sample.RULES[plan.rule]  # their own way of equal shares
    behind = functools.partial(behind_the_end, valid=valid)

    def step(state, group=1):
        s, stored, cache = state
        turn = next_turn(s, stored, cache is not None, cfg, plan, valid, L)
        w = turn.window
        if cache is None:
            h = sample.states(params, s.z, w, cfg, valid, group)
        else:
            z, one, of_text, cache = caches.one_of_each_group((s.z, turn, valid, cache), group)
            h, cache = block_pass(params, z, one, cfg, plan, of_text, cache)
            cache = caches.for_all_rows(cache, group)
        chosen = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, rule)
        s = sample.write(s, w, *chosen)
        if plan.early_end:
            s = sample.fill_rest(s, behind, cfg)
        stored = jnp.where(turn.extra, turn.stored + cfg.block, turn.stored)
        return s, stored, cache

    def unfinished(state):
        return jnp.any(state[0].z == cfg.mask_id)

    cache = None if plan.cache == "none" else caches.prefill(params, z, cfg, valid, group)
    state = sample.begin(z), jnp.zeros(B, jnp.int32), cache
    if group > 1:
        state = step(state, group)
    s, _, _ = jax.lax.while_loop(unfinished, step, state)
    passes = s.step.max(1) + 1 if cache is None else caches.distinct_steps(s.step)
    return sample.result(s, passes)


settings.add(sample.SAMPLERS, block_steps=sample.Sampler(fill_in_blocks, check))
