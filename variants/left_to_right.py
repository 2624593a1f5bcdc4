"""JustGRPO's estimator of log-probs:  --logp_est=left_to_right"""
import jax.numpy as jnp

import diffusion
from variants import trace


def left_to_right(key, completion, inputs):
    """JustGRPO: score as `trace` does, as if the completion had been written from left to right, a token per step."""
    step = jnp.cumsum(completion, 1) - 1
    return trace.trace(key, completion, inputs._replace(step=step))


diffusion.ESTIMATORS["left_to_right"] = left_to_right
