"""
All rows of a rollout or an evaluation, so many at a time. Where rows need different numbers of passes, one that is full
makes room for the next; else they would wait for the slowest of their chunk, half of the work (docs/rollouts.md).
"""
import functools
import math

import jax
import jax.numpy as jnp

import sample
from machine import mesh


def fill(params, keys, arrays, cfg, plan, size, group=1):
    """`sample.fill` of rows of which every `group` have one prompt, `size` at a time; n_steps is the mean of chunks, or
    of how many places were computed for a row."""
    group, n = math.gcd(size, group), len(keys)
    if size >= n or n % size or mesh.shape() or not varied(cfg.model, plan):
        some = lambda keys, arrays: sample.fill(params, keys, arrays, cfg, plan, group)
        return mesh.in_chunks(some, size, keys, arrays)
    return in_turn(params, keys, sample.masked_tokens(arrays, cfg.model), cfg.model, plan, arrays["valid"], size, group)


def varied(cfg, plan):
    """Do rows differ in how many passes they need, and has no cache to be made again for one that takes a place?"""
    return plan.rule not in ("quota", "dream") and plan.cache == "none" and not (cfg.causal or cfg.block_causal)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "size", "group"))
def in_turn(params, keys, z, cfg, plan, valid, size, group):
    """keys (N,), z (N, T), valid (N, T) or None -> `sample.generate` of them, in a loop over `size` rows."""
    N, rows = len(z), lambda tree, at: jax.tree.map(lambda a: a[at] if a.ndim else a, tree)
    part = lambda at: None if valid is None else valid[at]
    begun = sample.begin(params, keys, z, cfg, plan, valid)[1]

    def first(at):  # the step that those of a group have in common
        return sample.fill_step(params, keys[at], rows(begun, at), cfg, plan, part(at), group)

    some = jax.lax.map(first, jnp.arange(N).reshape(-1, size))
    begun = sample.State(*(None if a is None else a[0] if name == "n" else a.reshape(N, *a.shape[2:])
                           for name, a in zip(sample.State._fields, some, strict=True)))  # fmt: skip

    def told(s, since):  # the first step is nobody's own
        return s.z, jnp.where(s.step > 0, s.step - since[:, None], s.step), s.logp

    def turn(carry):
        s, row, since, waiting, out = carry
        s = sample.fill_step(params, keys[row], s, cfg, plan, part(row))
        full = ~(s.z == cfg.mask_id).any(1)
        out = jax.tree.map(lambda a, new: a.at[jnp.where(full, row, N)].set(new, mode="drop"), out, told(s, since))
        following = waiting + jnp.cumsum(full) - 1
        enters = full & (following < N)
        row = jnp.where(enters, following, jnp.where(full, N, row))  # N: nobody, nothing of it is written down
        new = lambda a, old: jnp.where(enters.reshape(-1, *[1] * (old.ndim - 1)), a, old) if old.ndim else old
        return (jax.tree.map(new, rows(begun, row), s), row, jnp.where(enters, s.n - 1, since),
                waiting + enters.sum(), out)  # fmt: skip

    at, nobody = jnp.arange(size), jnp.zeros(N, jnp.int32)
    busy = lambda carry: jnp.any(carry[0].z == cfg.mask_id) | (carry[3] < N)
    s, *_, out = jax.lax.while_loop(busy, turn, (rows(begun, at), at, nobody[:size], size, told(begun, nobody)))
    return out[0], {"step": out[1], "logp": out[2], "n_steps": 1 + (s.n - 1) * size / N}
