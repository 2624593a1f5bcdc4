"""
A regression on the log-ratio, as RSPO (2605.10218) and GDSD's code (2605.29398) have it:

    --loss_type=regress --ratio_level=sequence --regress.scale=0.1

Of each completion, the mean log-ratio per token is to become scale * advantage. RSPO's scale is one that a few updates
reach. GDSD's is out of reach (1, beside a clip of 0.0004 / length): it is REINFORCE until the ratio has left the clip.
"""
import dataclasses

import jax.numpy as jnp

import grpo
from system import sections, settings


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    belongs_to = "loss_type"
    scale: float = sections.key(0.1, "the log-ratio per token that an advantage of 1 asks for", sections.POSITIVE)
    clip: float | None = sections.key(None, "no gradient beyond this log-ratio per token", sections.POSITIVE)

    def between_keys(self, c):
        yield (c.loss_type == "regress" and c.ratio_level != "sequence",
               f"loss_type='regress' is a regression on the ratio of a completion: set ratio_level='sequence' (now "
               f"{c.ratio_level!r})")  # fmt: skip


def regression(ratio, logp, adv, cfg):
    """(log ratio - scale * adv) ** 2 / (2 * scale), where a ratio of 1 has the gradient of REINFORCE."""
    keys = Keys.of(cfg)
    drift = jnp.log(ratio)
    if keys.clip:
        drift = grpo.clamp(drift, -keys.clip, keys.clip)
    return (drift - keys.scale * adv) ** 2 / (2 * keys.scale)


def metrics(ratio, batch, cfg):
    """Measure the share of completions, by tokens, that the clip leaves without a gradient."""
    clip = Keys.of(cfg).clip
    return {"regress_clip_ratio": batch.mean(jnp.abs(jnp.log(ratio)) > clip)} if clip else {}


settings.add(grpo.LOSSES, regress=grpo.Loss(regression, grpo.per_sequence, metrics))
