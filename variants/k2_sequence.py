"""ESPO's estimator of the KL of whole completions:  --kl_est=k2_sequence"""
import jax.numpy as jnp

import grpo


def k2_sequence(logr, batch):
    """ESPO, per completion (B, 1): (log p - log p_ref) ** 2 / 2L, where log p is the sum over its L tokens.

    If all tokens drift equally, this is L times the mean of k2.
    """
    total = (logr * batch.mask * batch.share).sum(1, keepdims=True)
    length = batch.mask.sum(1, keepdims=True)
    return total**2 / (2 * jnp.maximum(length, 1))


grpo.KLS["k2_sequence"] = k2_sequence
