"""
Denoisers that predict a token from the state one place before it, as the causal models do that they were made from
(Dream):  --shift=True
"""
import jax.numpy as jnp

import model
from system import sections


def state_before(params, z, cfg, valid, start, length):
    """Predict a token from the state one place before it, and the first token of a text from its own (Dream)."""
    T = z.shape[1]
    # A number stays a number: `remat.recomputed` (system/) may read no array that it is not given.
    larger = max if isinstance(start, int) else jnp.maximum
    first = larger(start - 1, 0)
    n = min(length + 1, T)
    part = None if n == T else (first, n)
    h = model.trunk(params, z, cfg, valid, part)
    return shifted(h, first, start, length, valid)


def shifted(h, first, start, length, valid):
    """Pick the states that a shifted denoiser predicts tokens start, start + 1, ... from, those one column before them
    (for the first token of a text: its own): h (B, S, D), the states from column `first` on -> (B, length, D)."""
    start = jnp.reshape(start, (-1, 1))
    first = jnp.reshape(first, (-1, 1))
    left = start - 1 + jnp.arange(length)
    begin = 0 if valid is None else jnp.argmax(valid, 1)[:, None]  # no state stands before a text begins
    index = jnp.maximum(left, begin) - first
    index = jnp.broadcast_to(index, (len(h), length))
    return jnp.take_along_axis(h, index[..., None], 1)


sections.add(model.READS, shifted=state_before)
