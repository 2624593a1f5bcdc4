"""CISPO (MiniMax-M1, 2506.13585):  --loss_type=cispo --cispo.cap=5"""
import dataclasses

import jax
import jax.numpy as jnp

import grpo
from system import sections, settings


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    belongs_to = "loss_type"
    cap: float = sections.key(5.0, "loss_type=cispo: largest weight of a ratio", sections.POSITIVE)


def cispo(ratio, logp, adv, cfg):
    """CISPO: the ratio is a weight with a cap, so that log p never loses its gradient."""
    return -jax.lax.stop_gradient(jnp.minimum(ratio, Keys.of(cfg).cap)) * adv * logp


def metrics(ratio, batch, cfg):
    """Measure how many ratios have the cap as their weight."""
    return {"cispo_clip_ratio": batch.mean((ratio > Keys.of(cfg).cap) & (batch.adv[:, None] > 0))}


settings.add(grpo.LOSSES, cispo=grpo.Loss(cispo, grpo.per_token, metrics))
