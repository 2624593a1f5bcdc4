"""
Read the logits of a large vocabulary on a CPU, where XLA is faster if it is cut into stretches.
"""

import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

HUGE = 2**16  # from this size on the gradient of log p computes probabilities again instead of keeping them
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


def token_logp(logits, x, log_total, name):
    """Return log p of the tokens x (...) under logits (..., V), whose log_sum is log_total (...). name: of what a
    gradient may keep."""
    if logits.shape[-1] >= HUGE:
        return huge_logp(logits, x, jax.lax.stop_gradient(checkpoint_name(log_total, name)))
    return logit_of(logits, x) - log_total


def logit_of(logits, x):
    """Pick the logits (...) of the tokens x (...) from logits (..., V)."""
    return jnp.take_along_axis(logits, x[..., None], -1)[..., 0]


@jax.custom_vjp
def huge_logp(logits, x, log_total):
    """Compute `token_logp` of a huge vocabulary; its gradient is one pass over the logits, without a scatter."""
    return logit_of(logits, x) - log_total


def logp_and_residuals(*inputs):
    """Return log p of x (...), and the residuals that `logp_gradient` takes."""
    return huge_logp(*inputs), inputs


def logp_gradient(residuals, g):
    """Return g (...) times the gradient of log p by the logits: 1 at the token, less all probabilities."""
    logits, x, log_total = residuals
    own = jnp.arange(logits.shape[-1]) == x[..., None]
    g = g[..., None]
    p = jnp.exp(logits - log_total[..., None])
    return g * (own - p), None, None


huge_logp.defvjp(logp_and_residuals, logp_gradient)


def likeliest(logits):
    """Return logits.argmax(-1): which stretch has the largest, then where in it. XLA's own takes 11 times as long (V =
    32,768)."""
    logits = jax.lax.stop_gradient(logits)
    parts = cut(logits, -jnp.inf)
    best = alone(parts.max(-1)).argmax(-1)
    inside = jnp.take_along_axis(parts, best[..., None, None], -2)[..., 0, :]
    return best * parts.shape[-1] + inside.argmax(-1)


def draw_rows(keys, logits, inverse_cdf):
    """Draw a token from the softmax of each of logits (N, V), with keys (N,) -> (N,). inverse_cdf: that of kernels.py.

    The vocabulary is cut as `kernels.peak_and_sum` cuts it, so both read it once. (Its stretches have other lengths
    than those of `kernels.draw`: the same key draws another token there, just as often.)"""
    parts = cut(logits)
    peak = alone(parts.max(-1)).max(-1)[:, None, None]
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
