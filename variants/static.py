"""SDAR's rule: an equal share of a block's length at each step:  --rule=static"""
import jax.numpy as jnp

import sample


def static(b, plan):
    """SDAR: in each step an equal share of the block's length, at least one. If a prompt fills the beginning of the
    block, its masks are used up in fewer steps."""
    L = b.masked.shape[1]
    share = L // b.steps + (b.i < L % b.steps)
    return (b.rank < jnp.maximum(share, 1))


sample.RULES["static"] = static
