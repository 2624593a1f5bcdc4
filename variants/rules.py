"""
More rules of how many masks to fill at a step (--rule): `dream` (with --tempered=True), and SDAR's two, `static` and
`dynamic`.
"""
import jax.numpy as jnp
import numpy as np

import sample
from system import settings


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


settings.add(sample.RULES, dream=dream, static=static, dynamic=dynamic)
