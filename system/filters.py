"""
Top-p and top-k sampling: which tokens they keep.
"""
import jax
import jax.numpy as jnp

from system.kernels import NEVER


def kept(logits, top_p, top_k):
    """Forbid the tokens that top-p, and then top-k, leave out of logits (..., V); None: no such filter."""
    if top_p is not None and top_p < 1:
        logits = jnp.where(nucleus(logits, top_p), logits, NEVER)
    if top_k is not None:
        k = min(top_k, logits.shape[-1])
        top, _ = jax.lax.top_k(logits, k)
        logits = jnp.where(logits < top[..., -1:], NEVER, logits)
    return logits


def nucleus(logits, top_p):
    """True (..., V) for the tokens that top-p sampling keeps: the likeliest ones, until their probabilities sum to more
    than top_p. The token that crosses top_p is kept.

    The least probability that is kept is found bit by bit (floats above 0 are ordered as their bits are): a sort of the
    vocabulary takes 10 times as long."""
    p = jax.nn.softmax(jax.lax.stop_gradient(logits))
    order = jax.lax.bitcast_convert_type(p, jnp.int32)

    def halve(_, ends):
        low, high = ends  # (..., 1): `high` is kept, `low - 1` is not
        middle = low + (high - low) // 2
        total = jnp.where(order > middle, p, 0).sum(-1, keepdims=True)
        enough = total <= top_p
        low = jnp.where(enough, low, middle + 1)
        high = jnp.where(enough, middle, high)
        return low, high

    one = jnp.full((*logits.shape[:-1], 1), 0x3F800000)  # the bits of 1.0
    _, least = jax.lax.fori_loop(0, 30, halve, (0 * one, one))
    return order >= least
