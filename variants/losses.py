"""
More losses (--loss_type), ESPO's KL (--kl_est=k2_sequence), and terms that are added to any loss.

TRL's bnpo is the mean over micro-batches of the mean over tokens. CISPO (MiniMax-M1, 2506.13585) keeps the gradient of
every token. wd1 (2507.08838, with --adv_negative=1) is a weighted likelihood without a ratio to an old policy: two
softmax functions over the batch make its weights of the advantages, one pulls the better completions up, the other
pushes the worse ones down.

    --loss_type=cispo --cispo.cap=5     --nll.coef=0.1     --entropy_bonus.coef=0.01
"""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import config
import grpo
import rewards
import rl
from system import sections


@dataclasses.dataclass(frozen=True)
class Cispo(config.Section):
    typed_as = "cispo"
    belongs_to = "loss_type"
    cap: float = config.key(5.0, "loss_type=cispo: largest weight of a ratio", config.POSITIVE)


def cispo(ratio, logp, adv, cfg):
    """CISPO: the ratio is a weight with a cap, so that log p never loses its gradient."""
    return -jax.lax.stop_gradient(jnp.minimum(ratio, Cispo.of(cfg).cap)) * adv * logp


def cap_metrics(ratio, batch, cfg):
    """Measure how many ratios have the cap as their weight."""
    return {"cispo_clip_ratio": batch.mean((ratio > Cispo.of(cfg).cap) & (batch.adv[:, None] > 0))}


@dataclasses.dataclass(frozen=True)
class Wd1(config.Section):
    """There are no keys: the name of the loss says it all."""

    typed_as = "wd1"

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


def k2_sequence(logr, batch):
    """ESPO, per completion (B, 1): (log p - log p_ref) ** 2 / 2L, where log p is the sum over its L tokens.

    If all tokens drift equally, this is L times the mean of k2.
    """
    total = (logr * batch.mask * batch.share).sum(1, keepdims=True)
    length = batch.mask.sum(1, keepdims=True)
    return total**2 / (2 * jnp.maximum(length, 1))


sections.add(
    grpo.LOSSES,
    cispo=grpo.Loss(cispo, grpo.per_token, cap_metrics),
    wd1=grpo.Loss(weighted_likelihood, grpo.summed),
    bnpo=grpo.Loss(grpo.clipped, per_token_of_micro_batch, grpo.clip_metrics),
)
sections.add(grpo.KLS, k2_sequence=k2_sequence)

# ---- terms -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Nll(config.Section):
    """The negative log-likelihood of right completions (LightningRL).

    A completion is right if its first reward reaches pass_at; without pass_at, if its advantage is above 0. Only right
    completions that learn (keep_completions) are in the loss, with the log-probs of the run's estimator.
    """

    typed_as = "nll"
    objective = "grpo"
    coef: float = config.key(0.1, "weight of the negative log-likelihood of right completions", config.NON_NEGATIVE)

    @property
    def term(self):
        return rl.Term(nll, right, tokens_of_right)


def right(scored, adv, cfg):
    """Tell which completions are right (B,), those whose first reward reaches pass_at, whatever their
    advantages (N, G); without pass_at, those with an advantage above 0."""
    if cfg.pass_at is None:
        return np.asarray(adv > 0).reshape(-1)
    first = next(iter(scored.parts.values()))
    return rewards.apply_pass_at(first, cfg) == 1  # nan, no opinion, is not right


def tokens_of_right(right, rollout, cfg):
    """Weigh the tokens of the right completions of a minibatch, right (B,), so that they sum to 1 -> (B, T); 0 if there
    is none."""
    in_right = rollout.counts & right[:, None]
    return grpo.per_token(in_right, cfg.max_new_tokens, 1)


def nll(logp, entropy, weight, batch, cfg):
    """Compute coef * the negative log-likelihood of the right completions, per token -> scalar, metrics."""
    total = -jnp.sum(weight * batch.share * logp)
    return Nll.of(cfg).coef * total, {"nll_loss": total}


@dataclasses.dataclass(frozen=True)
class EntropyBonus(config.Section):
    """The more evenly the policy spreads its probability, the smaller the loss."""

    typed_as = "entropy_bonus"
    objective = "grpo"
    coef: float = config.key(0.01, "weight of the entropy bonus", config.NON_NEGATIVE)

    @property
    def term(self):
        # The gradient of the entropy needs memory: seven arrays of logits.
        return rl.Term(entropy_bonus, of_entropy=True)


def entropy_bonus(logp, entropy, extra, batch, cfg):
    """Compute -coef * the mean entropy of the tokens that were predicted -> scalar, metrics."""
    return -EntropyBonus.of(cfg).coef * batch.mean(entropy), {}
