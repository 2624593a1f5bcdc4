"""
More losses (--loss_type): TRL's bnpo, the mean over micro-batches of the mean over tokens, and wd1 (2507.08838, with
--adv_negative=1), a weighted likelihood without a ratio to an old policy. Two softmax functions over the batch make its
weights of the advantages: one pulls the better completions up, the other pushes the worse ones down.
"""
import dataclasses

import jax
import jax.numpy as jnp

import config
import grpo
from system import settings


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    """There are none: the name of a loss says it all."""

    def between_keys(self, c):
        yield (c.loss_type == "wd1" and c.ratio_level != "none",
               f"loss_type={c.loss_type!r} has no ratio: set ratio_level='none' (now {c.ratio_level!r})")  # fmt: skip

    def credit(self, found, adv, cfg):
        """Weigh the advantages (N, G) of a rewards.Scored, if the loss is wd1's."""
        if cfg.loss_type != "wd1":
            return adv
        judged = ~jnp.isnan(jnp.asarray(found.rewards)).all(0)
        return weights(adv, judged)


def weights(adv, judged=True):
    """Turn advantages into the weights of wd1's likelihood (Eq. 9).

    adv (N, G), judged (N, G) True where a reward has an opinion -> (N, G): softmax of the advantages over the batch
    minus softmax of their negatives, times the batch size (the loss averages). Groups whose rewards are all equal are
    left out of both, or they would get 1 / Z+ - 1 / Z-.
    """
    counts = (adv != 0).any(1, keepdims=True) & judged

    def softmax(values):
        return jnp.where(counts, jax.nn.softmax(values, (0, 1), where=counts), 0)

    return adv.size * (softmax(adv) - softmax(-adv))


def weighted_likelihood(ratio, logp, adv, cfg):
    """-adv * log p, without a ratio."""
    return -adv * logp


def per_token_of_micro_batch(mask, max_len, micro_batches):
    """bnpo: weigh tokens (B, T) so that every micro-batch counts the same, and so do the tokens within one: the loss is
    the mean over micro-batches of sum / number of tokens."""
    parts = mask.reshape(micro_batches, -1)
    tokens = parts.sum(1, keepdims=True)
    weights = parts / jnp.maximum(tokens, 1)
    weights = weights / micro_batches
    return weights.reshape(mask.shape)


settings.add(
    grpo.LOSSES,
    wd1=grpo.Loss(weighted_likelihood, grpo.summed),
    bnpo=grpo.Loss(grpo.clipped, per_token_of_micro_batch, grpo.clip_metrics),
)
