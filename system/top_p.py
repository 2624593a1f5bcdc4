"""
Top-p sampling: which tokens it keeps.
"""
import jax
import jax.numpy as jnp


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
