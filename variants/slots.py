"""
Continuous batching: fill all rows of a rollout or an evaluation, a fixed number at a time. If rows need different
numbers of passes, a finished row is replaced by the next one. Otherwise rows would wait for the slowest of their chunk,
which is half of the work (docs/rollout-speed.md).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import sample
from system import sharding
from variants import speed


def fill(params, keys, batch: Any, cfg, plan: sample.Plan, size: int, group: int = 1) -> tuple[jax.Array, dict]:
    """Fill N rows as `sample.fill` does, `size` at a time -> x (N, T), the trace. Every `group` rows have one prompt.

    The trace also has passes (N,), the denoising passes of each row (see variants/speed.py). Its n_steps is the mean
    number of passes per chunk or, if finished rows were replaced, per row."""
    x, trace = fill_chunks(params, keys, batch, cfg, plan, size, math.gcd(size, group))
    return x, trace | {"passes": speed.passes(trace["step"], cfg.model, plan)}


def fill_chunks(params, keys, batch, cfg, plan, size, group):
    """Fill rows in slots, if that saves passes, or else in chunks -> x (N, T) and the trace of `sample.generate`."""
    n = len(keys)
    if size < n and n % size == 0 and not sharding.shape() and varies(cfg.model, plan):
        z = sample.masked_tokens(batch, cfg.model)
        return in_turn(params, keys, z, cfg.model, plan, batch.valid, size, group)

    def chunk(keys, batch):
        return sample.fill(params, keys, batch, cfg, plan, group)

    return sharding.in_chunks(chunk, size, keys, batch)


def varies(cfg, plan):
    """True if rows need different numbers of passes, and no cache has to be made again for a row that moves in."""
    return plan.rule not in ("quota", "dream") and plan.cache == "none" and not (cfg.causal or cfg.block_causal)


class Slots(NamedTuple):
    """The loop over `size` slots; each works on one of N rows."""

    s: sample.State  # of the rows in the slots
    row: jax.Array  # (size,) which row each slot works on; N: none
    since: jax.Array  # (size,) the step before which the row moved in
    waiting: jax.Array  # () the next row
    out: tuple  # what is finished: z, step, logp (N, T)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "size", "group"))
def in_turn(params, keys, z, cfg, plan, valid, size, group):
    """Fill z (N, T) as `sample.generate` does, in `size` slots, a divisor of N. keys (N,), valid (N, T) or None."""
    N = len(z)
    start = first_steps(params, keys, z, cfg, plan, valid, size, group)

    def turn(c):
        s = sample.fill_step(params, keys[c.row], c.s, cfg, plan, pick(valid, c.row))
        full = ~(s.z == cfg.mask_id).any(1)
        finished = jnp.where(full, c.row, N)  # N is no row: nothing is written there
        out = jax.tree.map(lambda a, new: a.at[finished].set(new, mode="drop"), c.out, result(s, c.since))
        following = c.waiting + jnp.cumsum(full) - 1
        enters = full & (following < N)
        row = jnp.where(enters, following, jnp.where(full, N, c.row))
        s = jax.tree.map(functools.partial(replace_rows, enters), pick(start, row), s)
        return Slots(s, row, jnp.where(enters, s.n - 1, c.since), c.waiting + enters.sum(), out)

    def busy(c):
        return jnp.any(c.s.z == cfg.mask_id) | (c.waiting < N)

    first = jnp.arange(size)
    since = jnp.zeros(N, jnp.int32)
    slots = Slots(pick(start, first), first, since[:size], jnp.int32(size), result(start, since))
    slots = jax.lax.while_loop(busy, turn, slots)
    x, step, logp = slots.out
    return x, {"step": step, "logp": logp, "n_steps": 1 + (slots.s.n - 1) * size / N}


def first_steps(params, keys, z, cfg, plan, valid, size, group):
    """Take the first step of all rows, which the rows of a group have in common -> State of N rows."""
    N = len(z)
    _, start = sample.begin(params, keys, z, cfg, plan, valid)

    def first(at):
        return sample.fill_step(params, keys[at], pick(start, at), cfg, plan, pick(valid, at), group)

    chunks = jax.lax.map(first, jnp.arange(N).reshape(-1, size))
    joined = jax.tree.map(lambda a: a.reshape(N, *a.shape[2:]), chunks._replace(n=None))
    return joined._replace(n=chunks.n[0])


def pick(tree, rows):
    """Take some rows of all arrays; scalars stay."""
    return jax.tree.map(lambda a: a[rows] if a.ndim else a, tree)


def replace_rows(enters, new, old):
    """Replace the rows of `old` that are True in enters (size,) by those of `new`; scalars stay."""
    if old.ndim == 0:
        return old
    return jnp.where(enters.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def result(s, since):
    """Return z, step and logp, each step counted as if the row had been filled alone: `since` (N,) is taken off, except
    from step 0, which all rows take before the slots."""
    return s.z, jnp.where(s.step > 0, s.step - since[:, None], s.step), s.logp
