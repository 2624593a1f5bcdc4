"""EB-Sampler's rule:  --rule=entropy --entropy.budget=0.1. (The bonus for entropy in the loss is entropy_bonus.py.)"""
import dataclasses

import jax.numpy as jnp

import sample
from system import sections, settings


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    belongs_to = "rule"
    budget: float = sections.key(0.1, "rule=entropy: fill while the sum of entropies, less the largest, is within this "
                                 "(nats)", sections.NON_NEGATIVE)  # fmt: skip


def entropy(b, plan):
    """EB-Sampler: tokens in plan.order, as long as the sum of their entropies, less the largest, is within the budget;
    at least one."""
    not_later = b.rank[:, None] <= b.rank[..., None]  # (B, L, L)
    upto = jnp.where(not_later, b.entropy[:, None], 0)
    within = upto.sum(-1) - upto.max(-1) <= Keys.of(plan).budget
    return within | (b.rank == 0)


settings.add(sample.RULES, entropy=entropy)
