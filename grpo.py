"""
Group relative policy optimization: rewards -> advantages -> a loss on log-probabilities. Arrays in, arrays out.

Three choices that are often sold as one algorithm are independent here. The *estimator* of log-probabilities lives in
diffusion.py and is never seen here. The *ratio level* says what is compared with the policy that wrote a completion:
each token (PPO, GRPO), the whole completion by its mean (GSPO, ESPO), or nothing (REINFORCE, which one update on fresh
completions always is). The *loss* says how tokens are clipped and how they are averaged.

Shapes: N prompts, G completions of each, B = N * G completions, T tokens. `mask` (B, T) is True on the tokens that
count: those that the policy wrote, up to and with the first end of text.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

# ---- advantages ------------------------------------------------------------------------------------------------------

def moments(r, axis):
    """r with nan for no opinion -> its mean, sample standard deviation and count along axis (kept), without the nan."""
    seen = ~jnp.isnan(r)
    n = seen.sum(axis, keepdims=True)
    mean = jnp.where(seen, r, 0).sum(axis, keepdims=True) / jnp.maximum(n, 1)
    square = jnp.where(seen, (r - mean) ** 2, 0).sum(axis, keepdims=True)
    return mean, jnp.sqrt(square / jnp.maximum(n - 1, 1)), n


def centred(r, baseline, scale, eps):
    """r (N, G) -> (r - baseline) / scale. A group whose rewards are equal gets exactly 0: its smallest is subtracted
    first, so there is nothing left to round (the float32 mean of three 0.1 is not 0.1: with a small eps, -0.43)."""
    r = r - jnp.min(jnp.where(jnp.isnan(r), jnp.inf, r), 1, keepdims=True)
    mean, std, n = moments(r, 1)
    # Without its own reward in it, the baseline of a completion is n / (n - 1) times as far away (RLOO).
    a = (r - mean) * (n / jnp.maximum(n - 1, 1) if baseline == "loo" else 1.0)
    return a / (std + eps) if scale == "group" else a


def advantages(rewards, weights=(1.0,), baseline="mean", scale="group", eps=1e-4, normalize="sum"):
    """rewards (R, N, G) of R reward functions, nan where one has no opinion -> (N, G), 0 where none has.

    baseline: the mean of the group, or of its others (loo). scale: divide by the standard deviation of the group, of
    the batch, or by none: with it, groups that are almost always right or wrong count as much as those in between
    (Dr. GRPO). normalize: weigh and add the rewards first (sum), or normalize each in its group first (each: a reward
    with a small spread then counts as much as one with a large; scale is not looked at).
    """
    w = jnp.asarray(weights, jnp.float32)[:, None, None]
    nothing = jnp.isnan(rewards).all(0)
    add = lambda parts: jnp.where(nothing, jnp.nan, jnp.nansum(w * parts, 0))
    if normalize == "each":
        total = add(jnp.stack([centred(r, baseline, "group", eps) for r in rewards]))
        return jnp.nan_to_num(total / (moments(total, (0, 1))[1] + eps))  # its mean is 0: every group's is
    total = add(rewards)
    a = centred(total, baseline, scale, eps)
    if scale == "batch":
        a = a / (moments(total, (0, 1))[1] + eps)
    return jnp.nan_to_num(a)


def wd1_weights(adv, judged=True):
    """adv, judged (N, G) -> (N, G): what wd1's weighted likelihood puts in its place (Eq. 9 of 2507.08838): the softmax
    over the batch of the advantages, less that of their negatives, times its size: the loss is a mean over it. Groups
    that agree are in neither (they would get 1 / Z+ - 1 / Z-), nor is what no reward has judged."""
    teaches = (adv != 0).any(1, keepdims=True) & judged
    part = lambda a: jnp.where(teaches, jax.nn.softmax(a, (0, 1), where=teaches), 0)
    return adv.size * (part(adv) - part(-adv))


# ---- losses ----------------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Objective:
    """Everything about the loss that is not data; hashable, so jit can compile one loss for it."""

    loss: str = "dapo"  # one of LOSSES
    ratio: str = "token"  # token, sequence or none
    clip_low: float = 0.2  # a ratio below 1 - clip_low no longer falls
    clip_high: float = 0.2  # a ratio above 1 + clip_high no longer rises
    clip_cap: float | None = None  # dual clip: at a negative advantage no ratio counts as more than this
    cispo_cap: float = 5.0  # cispo: no ratio weighs more than this
    kl_beta: float = 0.0  # weight of the KL to the reference; 0: there need be none
    kl_est: str = "k3"  # one of KLS
    entropy_coef: float = 0.0  # weight of the entropy of the predictions, a bonus


def clamp(x, low, high):
    """x cut to low..high; on a bound it still has its gradient, as in torch. (jnp.clip's is half of it there: with
    clip_low=0 the first ratio, 1, would have three quarters.)"""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def clipped(rho, logp, A, o):
    """PPO: -min(rho A, clip(rho) A)."""
    free = rho if o.clip_cap is None else clamp(rho, -jnp.inf, o.clip_cap)
    return -jnp.minimum(free * A, clamp(rho, 1 - o.clip_low, 1 + o.clip_high) * A)


def cispo(rho, logp, A, o):
    """CISPO: the ratio is a weight, cut off but never without gradient through log p."""
    return -jax.lax.stop_gradient(jnp.minimum(rho, o.cispo_cap)) * A * logp


def sapo(rho, logp, A, o):
    """SAPO: a sigmoid in place of the clip, steeper where the advantage is negative."""
    tau = jnp.where(A > 0, 1.0, 1.05)
    return -A * 4 / tau * jax.nn.sigmoid(tau * (rho - 1))


def likelihood(rho, logp, A, o):
    """-A log p, without a ratio: wd1 (A from `wd1_weights`) and SPG (log p from diffusion.sandwich)."""
    return -A * logp


# A weight for every token of a batch. They are made of the whole batch before it is cut into micro-batches, so that the
# losses of these add up; divided anew in each, a token in a micro-batch with short completions would count for more.


def per_sequence(mask, max_len, parts):
    """Every completion counts the same, its tokens share: mean_i mean_t."""
    return mask / jnp.maximum(mask.sum(1, keepdims=True), 1) / len(mask)


def per_token(mask, max_len, parts):
    """Every token of the batch counts the same: sum / number of tokens."""
    return mask / jnp.maximum(mask.sum(), 1)


def per_token_of_part(mask, max_len, parts):
    """bnpo: every token of its micro-batch counts the same, every one of the `parts` micro-batches, too."""
    m = mask.reshape(parts, -1)
    return (m / jnp.maximum(m.sum(1, keepdims=True), 1) / parts).reshape(mask.shape)


def constant(mask, max_len, parts):
    """Dr. GRPO: a fixed divisor, so that long completions are not punished less for a mistake."""
    return mask / (len(mask) * max_len)


def by_length(mask, max_len, parts):
    """LUSPO: every completion counts as much as it has tokens. As in TRL, its mean is over all columns: padding adds to
    the value (never to the gradient, see `loss`), so this loss is meant for the ratio of a sequence."""
    return jnp.broadcast_to(mask.sum(1, keepdims=True) / (len(mask) * max_len), mask.shape)


def summed(mask, max_len, parts):
    """wd1: every completion counts the same, as the sum of its tokens: mean_i sum_t."""
    return mask / len(mask)


AGGREGATIONS = {"token": per_token, "sequence": per_sequence, "constant": constant, "sum": summed}
LOSSES = {  # those of the papers: how a token is clipped, how tokens are added up
    "grpo": (clipped, per_sequence), "bnpo": (clipped, per_token_of_part), "dapo": (clipped, per_token),
    "dr_grpo": (clipped, constant), "luspo": (clipped, by_length), "cispo": (cispo, per_token),
    "sapo": (sapo, per_sequence), "wd1": (likelihood, summed), "spg": (likelihood, per_token),
}  # fmt: skip


def weights(name, mask, max_len, parts=1, aggregation=None):
    """mask (B, T) of a whole batch -> (B, T), what each token weighs in the loss of this name, or by an aggregation."""
    return (AGGREGATIONS[aggregation] if aggregation else LOSSES[name][1])(mask, max_len, parts)


# ---- KL to the reference, from log-probs of the policy and of the reference, d = reference - policy
#
# All estimate KL(policy || reference) on the policy's samples. As a term of the loss it is their gradient that counts:
# k1's is the score function, zero on average; k2's is that of the reverse KL; k3's is that of the forward KL (Schulman
# 2020; 2510.01555). Off-policy samples need the ratio as a weight, through which gradient flows.
#
# These identities hold for one token given the tokens before it. A sum of k2 over the tokens of a completion leaves
# out how an early token changes what comes later: enumerated over 3 tokens, its gradient differs by 0.33 of 6.4 from
# that of the sequence's reverse KL. k2_sequence has that KL's gradient, divided by the length.


def k2(d, rho, mask, seen):
    return d**2 / 2


def k3(d, rho, mask, seen):
    return jnp.expm1(d) - d


def k3_ratio(d, rho, mask, seen):
    return rho * k3(d, rho, mask, seen)


def k2_sequence(d, rho, mask, seen):
    """ESPO: (E - E_ref) ** 2 / 2L per completion (B, 1), E the log-prob of its L tokens. For a drift that all tokens
    share it is L times the mean of k2."""
    total = (d * mask * seen).sum(1, keepdims=True)
    return total**2 / (2 * jnp.maximum(mask.sum(1, keepdims=True), 1))


KLS = {"k2": k2, "k3": k3, "k3_ratio": k3_ratio, "k2_sequence": k2_sequence}


# ---- the loss --------------------------------------------------------------------------------------------------------

def ratios(logp, old_logp, mask, level, seen=1.0):
    """log-probs (B, T) -> the ratio to the old policy, (B, T) or, from the mean over a sequence, (B, 1)."""
    if level == "none" or old_logp is None:
        old_logp = jax.lax.stop_gradient(logp)  # 1, with the gradient of log p
    log_ratio = logp - old_logp
    if level == "sequence":
        log_ratio = (log_ratio * mask * seen).sum(1, keepdims=True) / jnp.maximum(mask.sum(1, keepdims=True), 1)
    return jnp.exp(jnp.clip(log_ratio, -20, 20))  # an infinite ratio would make 0 * inf = nan in the gradient


def loss(logp, old_logp, ref_logp, adv, mask, weight, share, o, entropy=None, seen=1.0):
    """logp, old_logp, ref_logp (B, T), adv (B,), mask (B, T), weight (B, T) of `weights` -> scalar, metrics.

    share (B, T), of sum 1 over the whole batch: for metrics that are means, and the entropy. seen (B, T): how often
    each token counts because of what an estimator drew (s of diffusion.py). old_logp None: the policy itself.
    Everything adds up over micro-batches but what ends in _max or _min. One advantage for each completion: every token
    of it gets the same.
    """
    A = jax.lax.stop_gradient(adv)[:, None]
    logp = jnp.where(mask, logp, jax.lax.stop_gradient(logp))  # padding carries no gradient, whatever its weight
    old_logp, ref_logp = jax.lax.stop_gradient((old_logp, ref_logp))
    rho = ratios(logp, old_logp, mask, o.ratio, seen)
    per = LOSSES[o.loss][0](rho, logp, A, o)

    def add_up(terms):
        """Sum terms over the batch. One per token (B, T) was drawn; one per sequence (B, 1) has the draw inside."""
        return jnp.sum(weight * (seen * terms if terms.shape == logp.shape else terms))

    pg_loss = add_up(per)
    mean = lambda x: jnp.sum(share * x)
    drawn = mask * seen
    in_rows = lambda x: (x * drawn).sum(1) / jnp.where(drawn.any(1), drawn.sum(1), 1)
    log_rho = jnp.log(rho)
    metrics = {
        "pg_loss": pg_loss, "logp": mean(logp),
        "ratio_max": jnp.where(drawn > 0, rho, 0).max(), "approx_kl": mean(jnp.expm1(log_rho) - log_rho),
    }  # fmt: skip
    if LOSSES[o.loss][0] is clipped:
        low, high = (rho < 1 - o.clip_low) & (A < 0), (rho > 1 + o.clip_high) & (A > 0)
        metrics |= {
            "clip_ratio/low_mean": mean(low), "clip_ratio/high_mean": mean(high),
            "clip_ratio/region_mean": mean(low | high),
            "clip_ratio/low_min": in_rows(low).min(), "clip_ratio/high_max": in_rows(high).max(),
        }  # fmt: skip
    if o.loss == "cispo":
        metrics["cispo_clip_ratio"] = mean((rho > o.cispo_cap) & (A > 0))
    total = pg_loss
    if o.kl_beta:
        d = ref_logp - logp
        metrics["kl"] = mean(k3(d, rho, mask, seen))
        metrics["kl_loss"] = o.kl_beta * add_up(KLS[o.kl_est](d, rho, mask, seen))
        total += metrics["kl_loss"]
    if entropy is not None:
        metrics["entropy"] = mean(entropy)
        total -= o.entropy_coef * mean(entropy)
    return total, metrics | {"loss": total}


# ---- the reference ---------------------------------------------------------------------------------------------------

@functools.partial(jax.jit, static_argnames=("mode", "decay", "interval", "mix"))
def update_reference(ref, params, step, mode, decay=0.99, interval=64, mix=1.0):
    """ref, params, the iteration just finished -> the reference of the next one.

    static: never changes. ema: decay * ref + (1 - decay) * params, after every iteration. periodic: after every
    `interval` iterations, mix * params + (1 - mix) * ref. Two papers call the opposite shares alpha.
    """
    if mode == "static":
        return ref
    share = 1 - decay if mode == "ema" else jnp.where(step % interval == 0, mix, 0.0)
    return jax.tree.map(lambda r, p: (1 - share) * r + share * p, ref, params)  # exact at 0 and 1
