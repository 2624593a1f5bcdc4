"""
More rules of how many masks to fill at a step (--rule): `dream` (with --tempered=True), SDAR's two, `static` and
`dynamic`, Fast-dLLM's other, `factor`, and EB-Sampler's, `entropy`; and an order, `margin`:

    --rule=factor --factor.limit=1     --rule=entropy --entropy.budget=0.1
"""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import sample
from system import sections


def dream_fractions(steps):
    """Return the fraction (steps,) of the remaining masks that Dream fills at each step; all of them at the last."""
    t = np.linspace(1, 1e-3, steps + 1, dtype=np.float32)  # not to 0: as many steps as masks fill 0, 1, 1, ..., 1, 2
    fractions = 1 - t[1:-1] / t[:-2]
    return np.append(fractions, np.float32(1))


def dream(b, plan):
    """Dream: a growing fraction of a row's masks (in Dream, of their mean in the batch), rounded down; at the last step
    all of them."""
    by_steps = []
    for n in range(1, plan.steps + 1):
        fractions = dream_fractions(n)
        by_steps.append(np.pad(fractions, (0, plan.steps - n)))
    table = jnp.asarray(np.stack(by_steps))
    fraction = table[b.steps - 1, b.i]
    share = b.masked.sum(1, keepdims=True) * fraction
    is_last = b.i >= b.steps - 1
    return is_last | (b.rank < share.astype(jnp.int32))


def static(b, plan):
    """SDAR: in each step an equal share of the block's length, at least one. If a prompt fills the beginning of the
    block, its masks are used up in fewer steps."""
    L = b.masked.shape[1]
    share = L // b.steps + (b.i < L % b.steps)
    return (b.rank < jnp.maximum(share, 1))


def dynamic(b, plan):
    """SDAR's other rule: what `static` says, and every other token that is more probable than plan.threshold."""
    return static(b, plan) | (b.confidence > plan.threshold)


@dataclasses.dataclass(frozen=True)
class Factor(sections.Section):
    typed_as = "factor"
    belongs_to = "rule"
    limit: float = sections.key(1.0, "rule=factor: fill n masks if the last is at least 1 - limit / (n + 1) probable",
                                sections.NON_NEGATIVE)  # fmt: skip


def factor(b, plan):
    """Fast-dLLM's other rule: tokens in plan.order, up to the first for which (n + 1) (1 - p) > limit, p being
    the probability of the n-th; at least one. (Its released loop fills the last mask even where that fails.)"""
    too_unsure = (b.rank + 2) * (1 - b.confidence) > Factor.of(plan).limit
    fails = b.masked & (b.rank > 0) & too_unsure
    failing = jnp.where(fails, b.rank, b.masked.shape[1])
    return (b.rank < failing.min(1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class Entropy(sections.Section):
    typed_as = "entropy"
    belongs_to = "rule"
    budget: float = sections.key(0.1, "rule=entropy: fill while the sum of entropies, less the largest, is within this "
                                 "(nats)", sections.NON_NEGATIVE)  # fmt: skip


def entropy(b, plan):
    """EB-Sampler: tokens in plan.order, as long as the sum of their entropies, less the largest, is within the budget;
    at least one."""
    not_later = b.rank[:, None] <= b.rank[..., None]  # (B, L, L)
    upto = jnp.where(not_later, b.entropy[:, None], 0)
    within = upto.sum(-1) - upto.max(-1) <= Entropy.of(plan).budget
    return within | (b.rank == 0)


def margin(logits, *_):
    """The order of LLaDA's and Dream's margin: first where the likeliest token is furthest ahead of the second."""
    top, _ = jax.lax.top_k(logits, 2)
    best, second = sample.softmax_of(logits, top).T
    return best - second


sections.add(sample.RULES, dream=dream, static=static, dynamic=dynamic, factor=factor, entropy=entropy)
sections.add(sample.ORDERS, margin=margin)
