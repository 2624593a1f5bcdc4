"""SAPO (2511.20347):  --loss_type=sapo"""
import jax
import jax.numpy as jnp

import grpo


def sapo(ratio, logp, adv, cfg):
    """SAPO: a sigmoid instead of the clip, steeper for negative advantages."""
    tau = jnp.where(adv > 0, 1.0, 1.05)
    return -adv * 4 / tau * jax.nn.sigmoid(tau * (ratio - 1))


grpo.LOSSES["sapo"] = grpo.Loss(sapo, grpo.per_sequence)
