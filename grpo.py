"""
GRPO (group relative policy optimization): rewards -> advantages -> a loss on log-probabilities. Arrays in, arrays out.

Papers sell three choices as one algorithm. Here each is made on its own:

    estimator     how log p of a token is computed under a denoiser; lives in diffusion.py
    ratio level   whether the ratio to the old policy is that of a token (PPO, GRPO), that of a whole completion, by its
                  mean log-ratio (GSPO, ESPO), or left out (REINFORCE's form, as the first update always has)
    loss          how the ratio of a token is clipped, and how tokens are averaged

Shapes: N prompts, G completions of each, B = N * G completions, T tokens, R reward functions. `mask` (B, T) is True on
the tokens that count: those that the policy wrote, up to and including the first end of text.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike


def one_of(name, *names):
    """Return a name, which must be one of these."""
    if name not in names:
        raise ValueError(f"{name!r}: expected one of {', '.join(names)}")
    return name


class Choices(dict):
    """What an argument of this file may be, by name. What was compiled with a function is forgotten when its name gets
    another one, as when a cell of a notebook is run again."""

    def __setitem__(self, name, choice):
        if self.get(name, choice) is not choice:
            jax.clear_caches()
        super().__setitem__(name, choice)

    def __missing__(self, name):
        return one_of(name, *self)


# ---- advantages ------------------------------------------------------------------------------------------------------


def moments(values: ArrayLike, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute along an axis, which stays with length 1, the mean, the standard deviation (divided by n - 1), and n, how
    many values are not nan."""
    values = np.asarray(values, np.float64)
    known = ~np.isnan(values)
    n = known.sum(axis, keepdims=True)
    mean = np.where(known, values, 0).sum(axis, keepdims=True) / np.maximum(n, 1)
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis, keepdims=True)
    return mean, np.sqrt(squares / np.maximum(n - 1, 1)), n


def centred(rewards: np.ndarray, baseline: str, scale: str, eps: float) -> np.ndarray:
    """Subtract its group's baseline from every reward, and divide by the group's standard deviation if scale="group",
    by its mean reward if scale="mean", else by nothing.

    rewards (N, G) -> (N, G); nan, for no opinion, stays nan. With a baseline, and eps above 0, the results of equal
    rewards are exactly 0.
    """
    # With the lowest reward subtracted first, equal rewards leave nothing to round. Otherwise the mean of three 0.1 is
    # not 0.1, and the difference divided by a small eps is an advantage.
    lowest = np.where(np.isnan(rewards), np.inf, rewards).min(1, keepdims=True)
    rewards = rewards - lowest
    mean, std, n = moments(rewards, 1)
    from_mean = rewards - mean
    from_others = from_mean * (n / np.maximum(n - 1, 1))  # RLOO: the mean of the others is n / (n - 1) times as far
    adv = Choices(none=lowest + rewards, mean=from_mean, loo=from_others)[baseline]
    divisor = Choices(group=std + eps, mean=lowest + mean + eps, batch=1, none=1)[scale]
    with np.errstate(invalid="ignore"):  # 0 / 0, where eps is 0 and nothing differs
        return adv / divisor


def advantages(
    rewards: ArrayLike,
    weights: Any = (1.0,),
    baseline: str = "mean",
    scale: str = "group",
    eps: float = 1e-4,
    normalize: str = "sum",
) -> np.ndarray:
    """Compare every completion with the others of its group.

    rewards (R, N, G), nan for no opinion; weights (R,) -> (N, G) float32, 0 where no reward has an opinion.
    baseline: subtract the mean of the group ("mean"), of its other completions ("loo"), or nothing ("none").
    scale: divide by the standard deviation of the "group" or the "batch", or by nothing ("none", Dr. GRPO). Divided by
    the group's, very easy and very hard prompts count as much as those in between. "mean" divides by the group's mean
    reward (MaxRL): for rewards of 0 and 1 that raises log p(right) instead of p(right), so hard prompts count most.
    normalize: add the weighted rewards, then normalize ("sum"); or normalize each reward in its group, add, and divide
    by the standard deviation of the sums in the batch ("each"; `scale` is ignored). With "each", a reward that varies
    little counts as much as one that varies a lot.
    eps: added to every divisor.
    """
    # In 64 bits: in 32, the rewards 1e8 and 1e8 + 1 would be equal.
    rewards, weights = np.asarray(rewards, np.float64), np.asarray(weights, np.float64)[:, None, None]
    if rewards.ndim != 3:
        raise ValueError(f"rewards of shape {rewards.shape}: expected (R, N, G)")
    no_opinion = np.isnan(rewards).all(0)
    each = one_of(normalize, "sum", "each") == "each"
    if each:
        rewards = np.stack([centred(reward, baseline, "group", eps) for reward in rewards])
    total = np.where(no_opinion, np.nan, np.nansum(weights * rewards, 0))
    adv = total if each else centred(total, baseline, scale, eps)
    if each or scale == "batch":
        _, std, _ = moments(total, (0, 1))
        adv = adv / (std + eps)
    return np.nan_to_num(adv).astype(np.float32)


# ---- losses: what each token adds, from ratio, logp and adv -> (B, T), or (B, 1) if the ratio is that of a sequence --


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The settings of the loss; hashable, so that jit can compile one loss for each."""

    loss: str = "dapo"  # one of LOSSES
    ratio: str = "token"  # token, sequence or none
    clip_low: float = 0.2  # a ratio below 1 - clip_low is not pushed down further
    clip_high: float = 0.2  # a ratio above 1 + clip_high is not pushed up further
    kl_beta: float = 0.0  # weight of the KL to the reference; 0: no reference needed
    kl_est: str = "k3"  # one of KLS
    use: tuple[Any, ...] = ()  # the keys of variants, see system/sections.py


def clamp(x, low, high):
    """Limit x to low..high; a value on a bound keeps its gradient, as in torch.

    jnp.clip halves it there: with clip_low=0, the ratio 1 of a first update would keep three quarters of its gradient.
    """
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def clipped(ratio, logp, adv, cfg):
    """PPO: -min(ratio * adv, clip(ratio) * adv)."""
    return -jnp.minimum(ratio * adv, clamp(ratio, 1 - cfg.clip_low, 1 + cfg.clip_high) * adv)


# ---- losses: the weight of each token in the sum, from mask (B, T) -> (B, T) -----------------------------------------
#
# Computed before the batch is cut into micro-batches, so that their losses add up. Normalized per micro-batch, tokens
# beside short completions would count more.


def per_sequence(mask, max_len, micro_batches):
    """Every completion counts the same, and so do the tokens of one: the mean over completions of the mean over its
    tokens."""
    return mask / jnp.maximum(mask.sum(1, keepdims=True), 1) / len(mask)


def per_token(mask, max_len, micro_batches):
    """Every token of the batch counts the same: sum / number of tokens."""
    return mask / jnp.maximum(mask.sum(), 1)


def constant(mask, max_len, micro_batches):
    """Dr. GRPO: a fixed divisor, B * max_len, so that a mistake in a long completion costs no less."""
    return mask / (len(mask) * max_len)


def summed(mask, max_len, micro_batches):
    """The mean over completions of the sum over its tokens."""
    return mask / len(mask)


def clip_metrics(ratio, batch, cfg):
    """Measure how many ratios `clipped` clips, under TRL's names."""
    adv, scored = batch.adv[:, None], batch.mask * batch.share

    def per_completion(values):
        return (values * scored).sum(1) / jnp.where(scored.any(1), scored.sum(1), 1)

    low = (ratio < 1 - cfg.clip_low) & (adv < 0)
    high = (ratio > 1 + cfg.clip_high) & (adv > 0)
    return {
        "clip_ratio/low_mean": batch.mean(low),
        "clip_ratio/low_min": per_completion(low).min(),
        "clip_ratio/high_mean": batch.mean(high),
        "clip_ratio/high_max": per_completion(high).max(),
        "clip_ratio/region_mean": batch.mean(low | high),
    }


def no_metrics(ratio, batch, cfg):
    """Measure nothing: no ratio is clipped."""
    return {}


class Loss(NamedTuple):
    """A published loss: the sum over tokens of token_loss * token_weights."""

    token_loss: Callable  # ratio, logp, adv, LossConfig -> (B, T) or (B, 1)
    token_weights: Callable  # mask, max_len, micro_batches -> (B, T)
    metrics: Callable = no_metrics  # ratio, LossBatch, LossConfig -> {name: scalar}


AGGREGATIONS = Choices(token=per_token, sequence=per_sequence, constant=constant, sum=summed)
LOSSES = Choices(
    grpo=Loss(clipped, per_sequence, clip_metrics),
    dapo=Loss(clipped, per_token, clip_metrics),
    dr_grpo=Loss(clipped, constant, clip_metrics),
)


def token_weights(
    loss: str, mask: Array, max_len: int, micro_batches: int = 1, aggregation: str | None = None
) -> Array:
    """Weigh every token of a batch as the loss of this name does, or as `aggregation`: mask (B, T) -> (B, T).

    max_len: the most tokens that a completion can have."""
    weigh = AGGREGATIONS[aggregation] if aggregation else LOSSES[loss].token_weights
    return weigh(mask, max_len, micro_batches)


# ---- the loss --------------------------------------------------------------------------------------------------------


class LossBatch(NamedTuple):
    """The inputs of the loss that do not depend on the policy being trained, for a batch or a micro-batch."""

    adv: Array  # (B,) one advantage per completion, used for all of its tokens; or (N, G), in this order
    mask: Array  # (B, T) True on tokens that count
    weight: Array  # (B, T) from `token_weights`
    metric_weight: Array  # (B, T) for means over tokens; sums to 1 over the whole batch
    # (B, T) under the policy that wrote the completions. nan, or None for all: that is the policy being trained.
    old_logp: Array | None = None
    ref_logp: Any = None  # (B, T) under the reference; None: no KL
    share: Any = 1.0  # (B, T) if the estimator scores only a sample of tokens: 0 if not scored, on average 1

    def mean(self, values):
        """Average values (B, T) over the tokens of the batch; in a micro-batch, return what it adds to that average."""
        return jnp.sum(self.metric_weight * values)


def ratios(logp: Array, old_logp: Array | None, mask: Array, level: str, share: Any = 1.0) -> Array:
    """Compute the ratio of the policy to the old policy.

    logp, old_logp, mask, share (B, T) -> (B, T); for level "sequence" (B, 1), from the mean log-ratio of a completion.
    For level "none", and where old_logp is nan or None, it is 1 and has the gradient of log p.
    """
    current = jax.lax.stop_gradient(logp)
    if level == "none" or old_logp is None:
        old_logp = current
    log_ratio = logp - jnp.where(jnp.isnan(old_logp), current, old_logp)
    if one_of(level, "token", "sequence", "none") == "sequence":
        total = (log_ratio * mask * share).sum(1, keepdims=True)
        log_ratio = total / jnp.maximum(mask.sum(1, keepdims=True), 1)
    return jnp.exp(jnp.clip(log_ratio, -20, 20))  # an infinite ratio would make 0 * inf = nan in the gradient


# Estimates of KL(policy || reference) on samples of the policy, from logr = log(reference / policy) (Schulman 2020).
# In a loss only their gradients matter (2510.01555). k1 = -logr is missing: its gradient is the score function, zero on
# average. On samples of an old policy none of them is the KL: that would need the ratio as a weight.
#
# This holds for one token given the tokens before it. The sum of k2 over the tokens of a completion ignores that an
# early token changes the later ones: by enumeration over 3 tokens, its gradient is 0.33 away from that of the
# sequence's reverse KL, which is 6.4 long. k2_sequence (variants/losses.py) has exactly that KL's gradient, divided by
# the length.


def k2(logr, batch):
    """Squared log-ratio / 2, per token; its gradient is that of the reverse KL, KL(policy || reference)."""
    return logr**2 / 2


def k3(logr, batch):
    """exp(logr) - 1 - logr, per token; its gradient is that of the forward KL, KL(reference || policy)."""
    return jnp.expm1(logr) - logr


KLS = Choices(k2=k2, k3=k3)


def ratio_metrics(ratio: Array, batch: LossBatch, cfg: LossConfig) -> dict[str, Array]:
    """Measure how far the policy is from the old one, and what the loss has to say about it."""
    scored = batch.mask * batch.share
    metrics = {
        "ratio_max": jnp.where(scored > 0, ratio, 0).max(),
        "approx_kl": batch.mean(k3(jnp.log(ratio), batch)),
    }
    return metrics | LOSSES[cfg.loss].metrics(ratio, batch, cfg)


def loss(logp: Array, batch: LossBatch, cfg: LossConfig) -> tuple[Array, dict[str, Array]]:
    """Compute policy gradient loss + KL, and metrics.

    logp (B, T) under the policy that is trained -> scalar, {name: scalar}. Over micro-batches all values add up, except
    those whose name ends in _max or _min.
    """
    batch = jax.lax.stop_gradient(batch._replace(adv=jnp.ravel(batch.adv)))
    logp = jnp.where(batch.mask, logp, jax.lax.stop_gradient(logp))  # padding has no gradient, whatever its weight
    ratio = ratios(logp, batch.old_logp, batch.mask, cfg.ratio, batch.share)

    def weighted_sum(terms):
        """Add terms up; terms of tokens (B, T) are multiplied by their share, those of sequences (B, 1) include it."""
        if terms.shape not in (logp.shape, (len(logp), 1)):
            raise ValueError(f"a loss or KL returns the shape {terms.shape}: expected (B, T) = {logp.shape} or (B, 1)")
        return jnp.sum(batch.weight * (batch.share * terms if terms.shape == logp.shape else terms))

    pg_loss = weighted_sum(LOSSES[cfg.loss].token_loss(ratio, logp, batch.adv[:, None], cfg))
    metrics = {"pg_loss": pg_loss, "logp": batch.mean(logp)} | ratio_metrics(ratio, batch, cfg)
    total = pg_loss
    if cfg.kl_beta:
        logr = batch.ref_logp - logp
        metrics["kl"] = batch.mean(k3(logr, batch))
        metrics["kl_loss"] = cfg.kl_beta * weighted_sum(KLS[cfg.kl_est](logr, batch))
        total += metrics["kl_loss"]
    return total, metrics | {"loss": total}
