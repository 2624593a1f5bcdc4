"""
Continuous batching: fill all rows of a rollout or an evaluation, a fixed number at a time. If rows need different
numbers of passes, a finished row is replaced by the next one. Otherwise rows would wait for the slowest of their chunk,
which is half of the work (docs/hardware.md).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
import sample
from system import sharding


class Slots(NamedTuple):
    """The loop over `size` slots; each works on one of N rows."""

    s: sample.Filling  # of the rows in the slots
    row: jax.Array  # (size,) which row each slot works on; N: none
    since: jax.Array  # (size,) the step before which the row moved in
    waiting: jax.Array  # () the next row
    out: tuple  # what is finished: z, step, logp (N, T)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "size", "group"))
def in_turn(params, keys, z, cfg, plan, valid, size, group):
    """Fill z (N, T) as `sample.generate` does, in `size` slots, a divisor of N. keys (N,), valid (N, T) or None.
    n_steps is the mean number of passes per row."""
    sample.check(cfg, plan)
    params = model.cast(params, cfg.dtype)  # once, as `sample.generate` does
    N = len(z)
    start = first_steps(params, keys, z, cfg, plan, valid, size, group)

    def turn(c):
        row_keys, row_valid = sharding.take((keys, valid), c.row)
        s = sample.fill_step(params, row_keys, c.s, cfg, plan, row_valid)
        full = ~(s.z == cfg.mask_id).any(1)
        finished = jnp.where(full, c.row, N)  # N is no row: nothing is written there
        write = functools.partial(write_rows, finished)
        out = jax.tree.map(write, result(s, c.since), c.out)
        following = c.waiting + jnp.cumsum(full) - 1
        enters = full & (following < N)
        emptied = jnp.where(full, N, c.row)
        row = jnp.where(enters, following, emptied)
        replace = functools.partial(replace_rows, enters)
        s = jax.tree.map(replace, sharding.take(start, row), s)
        since = jnp.where(enters, s.n - 1, c.since)
        waiting = c.waiting + enters.sum()
        return Slots(s, row, since, waiting, out)

    def busy(c):
        masked = c.s.z == cfg.mask_id
        return masked.any() | (c.waiting < N)

    row = jnp.arange(size)
    since = jnp.zeros(N, jnp.int32)
    s = sharding.take(start, row)
    slots = Slots(s, row, since[:size], jnp.int32(size), result(start, since))
    slots = jax.lax.while_loop(busy, turn, slots)
    x, step, logp = slots.out
    n_steps = 1 + (slots.s.n - 1) * size / N
    return x, {"step": step, "logp": logp, "n_steps": n_steps, "passes": step.max(1) + 1}


def first_steps(params, keys, z, cfg, plan, valid, size, group):
    """Take the first step of all rows, which the rows of a group have in common -> Filling of N rows."""
    start = sample.begin(z)

    def first(rows):
        row_keys, s, row_valid = sharding.take((keys, start, valid), rows)
        return sample.fill_step(params, row_keys, s, cfg, plan, row_valid, group)

    chunks = jnp.arange(len(z)).reshape(-1, size)
    s = jax.lax.map(first, chunks)
    return sharding.joined(s._replace(n=None))._replace(n=s.n[0])


def write_rows(rows, new, old):
    """Write new (size, ...) to these rows of old (N, ...); there is no row N."""
    return old.at[rows].set(new, mode="drop")


def replace_rows(enters, new, old):
    """Replace the rows of `old` that are True in enters (size,) by those of `new`; scalars stay."""
    if old.ndim == 0:
        return old
    ones = [1] * (old.ndim - 1)
    return jnp.where(enters.reshape(-1, *ones), new, old)


def result(s, since):
    """Return z, step and logp, each step counted as if the row had been filled alone: `since` (N,) is taken off, except
    from step 0, which all rows take before the slots."""
    step = jnp.where(s.step > 0, s.step - since[:, None], s.step)
    return s.z, step, s.logp
