"""TRL's bnpo: the mean over micro-batches of the mean over tokens:  --loss_type=bnpo"""
import jax.numpy as jnp

import grpo


def per_token_of_micro_batch(mask, max_len, micro_batches):
    """bnpo: weigh tokens (B, T) so that every micro-batch counts the same, and so do the tokens within one: the loss is
    the mean over micro-batches of sum / number of tokens."""
    parts = mask.reshape(micro_batches, -1)
    tokens = parts.sum(1, keepdims=True)
    weights = parts / jnp.maximum(tokens, 1)
    weights = weights / micro_batches
    return weights.reshape(mask.shape)


grpo.LOSSES["bnpo"] = grpo.Loss(grpo.clipped, per_token_of_micro_batch, grpo.clip_metrics)
