"""
Read the logits of a large vocabulary on a CPU, where XLA is faster if it is cut into stretches.
"""

import math

import jax
import jax.numpy as jnp

FILLING = -1e30  # finite, so that it times a probability of 0 is 0
alone = jax.lax.optimization_barrier  # keeps XLA from fusing what makes its argument with what reads it


def cut(x, fill=FILLING):
    """Cut x (..., V) into n stretches of about sqrt(V) tokens -> (..., n, V / n). The last one is filled up, but a
    length that divides V is taken if there is one, because to fill up is to copy x."""
    V = x.shape[-1]
    length = 2 ** (V.bit_length() // 2)
    if math.gcd(V, length) >= 64:
        length = math.gcd(V, length)
    if V % length:
        missing = 0, -V % length
        sides = [(0, 0)] * (x.ndim - 1) + [missing]
        x = jnp.pad(x, sides, constant_values=fill)
    return x.reshape(*x.shape[:-1], -1, length)


def likeliest(logits):
    """Return logits.argmax(-1): which stretch has the largest, then where in it. XLA's own takes 11 times as long (V =
    32,768)."""
    logits = jax.lax.stop_gradient(logits)
    parts = cut(logits, -jnp.inf)
    peak = alone(parts.max(-1))
    best = peak.argmax(-1)
    inside = jnp.take_along_axis(parts, best[..., None, None], -2)[..., 0, :]
    return best * parts.shape[-1] + inside.argmax(-1)


def draw_rows(keys, logits, inverse_cdf):
    """Draw a token from the softmax of each of logits (N, V), with keys (N,) -> (N,). inverse_cdf: that of kernels.py.

    The vocabulary is cut as `kernels.peak_and_sum` cuts it, so both read it once. (Its stretches have other lengths
    than those of `kernels.draw`: the same key draws another token there, just as often.)"""
    parts = cut(logits)
    peak = alone(parts.max(-1)).max(-1)
    peak = peak[:, None, None]
    sums = alone(jnp.exp(parts - peak).sum(-1))
    stretch_keys, token_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    stretch = jax.vmap(inverse_cdf)(stretch_keys, sums)[:, None]
    inside = jnp.take_along_axis(parts, stretch[..., None], 1)
    inside = jnp.exp(inside - peak)[:, 0]
    token = jax.vmap(inverse_cdf)(token_keys, inside)[:, None]
    possible = jnp.take_along_axis(inside, token, 1) > 0  # see `kernels.draw`
    token = stretch * parts.shape[-1] + token
    token = jnp.where(possible, token, likeliest(logits)[:, None])
    return token[:, 0]
