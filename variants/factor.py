"""Fast-dLLM's other rule:  --rule=factor --factor.limit=1"""
import dataclasses

import jax.numpy as jnp

import sample
from system import sections, settings


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    belongs_to = "rule"
    limit: float = sections.key(1.0, "rule=factor: fill n masks if the last is at least 1 - limit / (n + 1) probable",
                                sections.NON_NEGATIVE)  # fmt: skip


def factor(b, plan):
    """Fast-dLLM's other rule: tokens in plan.order, up to the first for which (n + 1) (1 - p) > limit, p being
    the probability of the n-th; at least one. (Its released loop fills the last mask even where that fails.)"""
    too_unsure = (b.rank + 2) * (1 - b.confidence) > Keys.of(plan).limit
    fails = b.masked & (b.rank > 0) & too_unsure
    failing = jnp.where(fails, b.rank, b.masked.shape[1])
    return (b.rank < failing.min(1, keepdims=True))


settings.add(sample.RULES, factor=factor)
