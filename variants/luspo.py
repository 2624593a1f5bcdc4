"""LUSPO: completions count by their length:  --loss_type=luspo --ratio_level=sequence"""
import jax.numpy as jnp

import grpo


def by_length(mask, max_len, micro_batches):
    """LUSPO: every completion counts in proportion to its length.

    As in TRL, the mean is over all columns, so padding adds to the value of the loss (never to its gradient, see
    `loss`): use it with ratio="sequence".
    """
    length = mask.sum(1, keepdims=True)
    weight = length / (len(mask) * max_len)
    return jnp.broadcast_to(weight, mask.shape)


grpo.LOSSES["luspo"] = grpo.Loss(grpo.clipped, by_length, grpo.clip_metrics)
