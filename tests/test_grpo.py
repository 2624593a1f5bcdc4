"""
grpo.py: the losses against TRL's own numbers, the rest against identities.

The first update is REINFORCE. The gradients of the KL estimates are enumerated over a vocabulary. Over all paths of a
small sampler, enumerated, the gradient of the loss is that of the expected reward.
"""
import dataclasses
import functools
import itertools
import re

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shared import all_paths, refused, slow

import config
import diffusion
import grpo
import model
import rl
import sample
from grpo import LossBatch, LossConfig, advantages
from sample import Plan
from variants import losses, moving_reference, repetition_penalty

# Three completions of four tokens, the rest of them padding; with them the numbers of GOLDEN were made.
NEW = jnp.array([[-1.0, -0.5, -2.0, -0.1], [-0.3, -1.2, -0.7, -3.0], [-0.9, -0.2, -1.1, -0.6]])
OLD = jnp.array([[-1.3, -0.5, -1.2, -0.4], [-0.1, -1.0, -1.3, -2.0], [-0.9, -0.5, -1.0, -0.6]])
REF = jnp.array([[-1.1, -0.6, -1.5, -0.2], [-0.3, -1.5, -0.9, -2.5], [-1.0, -0.3, -1.0, -0.5]])
MASK = jnp.arange(4) < jnp.array([[4], [2], [3]])
COUNTS = np.asarray(MASK)  # to index with
ADV = jnp.array([1.2, -0.8, -0.4])
LEVELS, SCALES = ("token", "sequence"), ("group", "batch", "none")
QUICK = "token", slow("sequence")


def close(a, b, tol=1e-5, message=""):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=tol, err_msg=message)


def evaluate(cfg, logp=NEW, old=OLD, ref=REF, adv=ADV, mask=MASK, weight=None, metric_weight=None, **more):
    """Compute the loss, its gradient with respect to log p, and metrics, weighing tokens as one whole batch."""
    weight = grpo.token_weights(cfg.loss, mask, mask.shape[1]) if weight is None else weight
    metric_weight = mask / jnp.maximum(mask.sum(), 1) if metric_weight is None else metric_weight
    batch = LossBatch(adv, mask, weight, metric_weight, old, ref)
    of = lambda logp: grpo.loss(logp, batch, cfg, **more)
    (loss, metrics), grad = jax.value_and_grad(of, has_aux=True)(logp)
    return float(loss), np.asarray(grad), {name: float(value) for name, value in metrics.items()}


# ---- the original's numbers ----
STALE = """not what TRL's own loss code (f2cd577, July 2026) says of these arrays, at clip 0.2 and 0.28, cispo's cap 5,
at most 4 tokens and one process. Only if TRL itself has changed since: run its code again and copy the new numbers."""
GOLDEN = {  # (loss, ratio): the loss at kl_beta 0 and 0.04
    ("grpo", "token"): (-0.037952, -0.037069), ("grpo", "sequence"): (-0.019638, -0.018756),
    ("bnpo", "token"): (-0.244372, -0.243399), ("bnpo", "sequence"): (-0.219245, -0.218272),
    ("dapo", "token"): (-0.244372, -0.243399), ("dapo", "sequence"): (-0.219245, -0.218272),
    ("dr_grpo", "token"): (-0.183279, -0.182549), ("dr_grpo", "sequence"): (-0.164434, -0.163704),
    ("cispo", "token"): (0.179068, 0.180041), ("cispo", "sequence"): (0.242908, 0.243880),
}  # fmt: skip
RATIOS = {"high_mean": 0.222222, "region_mean": 0.222222, "high_max": 0.5, "low_mean": 0, "low_min": 0}


@pytest.mark.parametrize("loss, level", [
    which if which == ("grpo", "sequence") or which[1] == "token" else slow(*which) for which in GOLDEN])
def test_losses_and_their_metrics_are_trls(loss, level):
    for beta, expected in zip((0.0, 0.04), GOLDEN[loss, level], strict=True):
        value, _, metrics = evaluate(LossConfig(loss=loss, ratio=level, clip_high=0.28, kl_beta=beta))
        close([value, metrics["loss"]], [expected, expected], 2e-6, STALE)
        clips = {f"clip_ratio/{name}": ratio * (level == "token") for name, ratio in RATIOS.items()}
        clips = {"cispo": {"cispo_clip_ratio": 0}}.get(loss, clips)
        assert {name for name in metrics if "clip" in name} == set(clips)
        close([metrics[name] for name in clips], list(clips.values()), 2e-6, STALE)
        assert ("kl" in metrics) == (beta > 0)
        close(metrics.get("kl", 0.024322), 0.024322, 2e-6, STALE)


# ---- advantages ----
def opinions(seed, R=2, N=3, G=4):
    """Draw rewards (R, N, G), a fifth of them nan, but at least two different ones in each group."""
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(R, N, G)).astype(np.float32)
    r[rng.random(r.shape) < 0.2] = np.nan
    r[:, :, :2] = np.where(np.isnan(r[:, :, :2]), [0.25, 0.75], r[:, :, :2])
    return r


def trl_advantages(r, w, mode, scale, eps):
    """Compute TRL's two modes in numpy, float64: r (R, N, G) -> (N, G)."""
    r, w = r.astype(float), np.array(w)[:, None, None]
    nothing = np.isnan(r).all(0)
    group = dict(axis=-1, keepdims=True)
    if mode == "each":
        z = (r - np.nanmean(r, **group)) / (np.nanstd(r, ddof=1, **group) + eps)
        total = np.where(nothing, np.nan, np.nansum(w * z, 0))
        a = (total - np.nanmean(total)) / (np.nanstd(total, ddof=1) + eps)
    else:
        total = np.where(nothing, np.nan, np.nansum(w * r, 0))
        std = {"group": np.nanstd(total, ddof=1, **group), "batch": np.nanstd(total, ddof=1), "none": 1 - eps}[scale]
        a = (total - np.nanmean(total, **group)) / (std + eps)
    return np.where(nothing, 0, a)


@pytest.mark.parametrize("mode, scale", [("sum", "group"), ("sum", "batch"), ("sum", "none"), ("each", "group")])
def test_advantages_are_trls_with_opinions_missing(mode, scale):
    for seed, weights in itertools.product(range(3), ((1.0, 1.0), (2.0, 0.3))):
        r = opinions(seed)
        r[:, 1, 3] = np.nan  # nobody has one on this completion
        a = advantages(jnp.array(r), weights, scale=scale, normalize=mode)
        close(a, trl_advantages(r, weights, mode, scale, 1e-4), 1e-4)
        assert a[1, 3] == 0


@given(st.floats(-1e3, 1e3, width=32), st.sampled_from([3, 4]), st.sampled_from(SCALES), st.sampled_from([1e-8, 1e-4]),
       st.sampled_from(["mean", "loo"]))  # fmt: skip
@example(np.float32(0.1).item(), 3, "group", 1e-8, "mean")
@settings(max_examples=6, deadline=None)
def test_a_group_of_equal_rewards_has_advantages_of_exactly_0(value, G, scale, eps, baseline):
    """The float32 mean of three 0.1 is not 0.1, and the difference would be divided by eps."""
    r = jnp.full((2, 3, G), value, jnp.float32).at[:, 2].set(jnp.arange(G))
    for weights in ((1.0, 0.0), (0.3, 0.7)):
        a = np.asarray(advantages(r, weights, baseline, scale, eps))
        assert (a[:2] == 0).all() and a[2].any()
    assert (advantages(r[:, :2], normalize="each", eps=eps) == 0).all()


def test_rewards_of_many_digits_keep_their_differences():
    """In 32 bits, 1e8 and 1e8 + 1 are equal."""
    a = advantages(1e8 + np.array([[[0.0, 2, 1, 1]]]))
    close(a, advantages(np.array([[[0.0, 2, 1, 1]]])))
    assert a[0, 1] > 0.5


def test_left_out_of_its_own_baseline_a_reward_is_compared_with_the_mean_of_the_others():
    r = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    expected = np.array([[row[i] - np.delete(row, i).mean() for i in range(4)] for row in r])
    for scale, std in (("group", r.std(1, ddof=1, keepdims=True)), ("batch", r.std(ddof=1)), ("none", 1)):
        close(advantages(jnp.array(r)[None], baseline="loo", scale=scale, eps=0), expected / std)


def test_without_a_baseline_every_right_completion_counts_the_same():
    """Rejection sampling: also in a group in which all are right."""
    r = np.array([[[1, 0, np.nan, 1], [1, 1, 1, 1.0]]])
    close(advantages(r, baseline="none", scale="none"), np.nan_to_num(r[0]))
    close(advantages(1e8 * r, baseline="none", scale="none"), 1e8 * np.nan_to_num(r[0]))
    keys = dict(objective="grpo", init_from="a", adv_baseline="none")
    config.Config(**keys, adv_norm="none")
    for wrong in ({"adv_norm": "group"}, {"adv_norm": "batch", "reward_norm": "each"}):
        refused("takes a reward as it is: set adv_norm='none'", config.Config, **keys | wrong)


def test_completions_without_opinions_are_left_out_and_a_single_opinion_gives_no_advantage():
    nan = np.nan
    r = jnp.array([[[1, nan, 3, nan, 8], [nan, nan, 5, nan, nan], [nan] * 5]], jnp.float32)
    for baseline in ("mean", "loo"):
        a = np.asarray(advantages(r, baseline=baseline))
        close(a[0, [0, 2, 4]], advantages(jnp.array([[[1.0, 3, 8]]]), baseline=baseline)[0])
        assert (a[0, [1, 3]] == 0).all() and (a[1:] == 0).all()


@pytest.mark.parametrize("p", [0.05, 0.4])
def test_divided_by_the_groups_mean_the_gradient_is_that_of_the_first_terms_of_log_p(p):
    """MaxRL: log p = -sum over k of (1 - p) ** k / k. All 2 ** G rewards of a group are enumerated, for a policy that
    is right with probability p: G completions give the gradient of the first G - 1 terms."""
    G = 4
    rewards = jnp.array(list(itertools.product((0.0, 1.0), repeat=G)))
    chance = jnp.where(rewards == 1, p, 1 - p).prod(1)
    score = jnp.where(rewards == 1, 1 / p, -1 / (1 - p))  # the gradient of each completion's log-prob by p
    adv = advantages(rewards[None], scale="mean", eps=0.0)
    close((chance * (adv * score).mean(1)).sum(), sum((1 - p) ** (k - 1) for k in range(1, G)), 1e-5)
    close(advantages(jnp.array([[[1.0, 0.0, 0.0, 3.0], [1.0, 1.0, 1.0, 5.0]]]), scale="mean", eps=0.0),
          [[0, -1, -1, 2], [-0.5, -0.5, -0.5, 1.5]])  # fmt: skip
    assert not advantages(jnp.zeros((1, 2, 3)), scale="mean").any()


def test_wd1s_weights_are_two_softmaxes_and_sum_to_0():
    a = np.array([[2.0, -1.0, 0.5, 0.0]])
    w = losses.weights(jnp.array(a, jnp.float32))
    close(w / 4, np.exp(a) / np.exp(a).sum() - np.exp(-a) / np.exp(-a).sum())
    assert abs(float(w.sum())) < 1e-6 and w[0, 0] > 0 > w[0, 1]
    judged = np.array([[True, False, True, True]])
    some = losses.weights(jnp.array(a, jnp.float32), judged)
    close(some[judged] / 4, losses.weights(jnp.array(a[:, judged[0]], jnp.float32))[0] / 3)
    assert some[0, 1] == 0 != some[0, 3]
    beside = losses.weights(jnp.array([*a, [0] * 4], jnp.float32))  # a group of equal rewards
    assert not beside[1].any() and not losses.weights(jnp.zeros((1, 4))).any()
    close(beside[0] / 8, w[0] / 4)


def test_the_kl_and_the_loss_of_wd1_do_not_grow_with_the_batch():
    cfg, many = LossConfig("wd1", "none", kl_beta=1.0), lambda x: jnp.concatenate([x] * 16)
    once, often = evaluate(cfg), evaluate(cfg, *map(many, (NEW, OLD, REF, ADV, MASK)))
    close([often[0], often[2]["pg_loss"]], [once[0], once[2]["pg_loss"]])


# ---- the ratio ----
@pytest.mark.parametrize("level", [*QUICK, slow("none")])
@pytest.mark.parametrize("name", grpo.LOSSES)
def test_the_first_update_has_a_ratio_of_one_and_is_reinforce(name, level):
    cfg = LossConfig(loss=name, ratio=level)
    assert (grpo.ratios(NEW, NEW, MASK, level) == 1).all()
    value, grad, metrics = evaluate(cfg, old=NEW)
    weight = np.asarray(grpo.token_weights(name, MASK, 4))
    close(grad, -np.asarray(ADV)[:, None] * weight * MASK, 1e-6)
    assert metrics["ratio_max"] == 1 and metrics["approx_kl"] == 0
    assert not any(value for name, value in metrics.items() if "clip" in name)
    unknown = jnp.full_like(OLD, jnp.nan)
    for old in (None, unknown, OLD) if level == "none" else (None, unknown, NEW.at[0].set(jnp.nan)):
        other = evaluate(cfg, old=old)
        assert other[0] == value and (other[1] == grad).all() and other[2] == metrics


def test_a_sequences_ratio_is_the_geometric_mean_of_its_tokens_whatever_its_length():
    d, rho = np.asarray(NEW - OLD), grpo.ratios(NEW, OLD, MASK, "sequence")
    close(rho[:, 0], [np.exp(row[keep].mean()) for row, keep in zip(d, COUNTS, strict=True)])
    close(grpo.ratios(*(jnp.tile(x, (1, 2)) for x in (NEW, OLD, MASK)), "sequence"), rho)
    close(grpo.ratios(NEW, OLD, MASK, "token"), np.exp(d))


@pytest.mark.parametrize("level", QUICK)
@pytest.mark.parametrize("name", grpo.LOSSES)
def test_a_policy_far_from_the_old_one_has_a_finite_gradient(name, level):
    for distance in (-200, 200):  # exp(200) is inf in float32, and 0 * inf nan
        value, grad, metrics = evaluate(LossConfig(loss=name, ratio=level), old=NEW + distance)
        assert np.isfinite(value) and np.isfinite(grad).all() and np.isfinite(metrics["approx_kl"])


def test_no_gradient_reaches_the_old_policy_the_reference_or_the_rewards():
    cfg, weight = LossConfig(kl_beta=0.1, kl_est="k2"), grpo.token_weights("dapo", MASK, 4)
    of = lambda old, ref, adv: grpo.loss(NEW, LossBatch(adv, MASK, weight, MASK / MASK.sum(), old, ref), cfg)[0]
    for g in jax.grad(of, (0, 1, 2))(OLD, REF, ADV):
        assert (g == 0).all()


# ---- clipping ----
@functools.partial(jax.vmap, in_axes=(0, None, None))
def at(rho, A, cfg):
    """Compute the loss of a token with this ratio and advantage, and its gradient with respect to log p = -1."""
    token = lambda x: jnp.full((1, 1), x, jnp.float32)
    batch = LossBatch(A[None], token(1) > 0, 1.0, 1.0, token(-1 - jnp.log(rho)))
    of = lambda logp: grpo.loss(token(logp), batch, cfg)[0]
    return jax.value_and_grad(of)(-1.0)


RHO = jnp.array([0.1, 0.5, 0.75, 0.79, 0.81, 1.0, 1.25, 1.29, 1.31, 2.9, 3.1, 50.0])
GOOD, BAD = jnp.float32(1.5), jnp.float32(-1.5)
WIDE = LossConfig(clip_low=0.2, clip_high=0.3)


@pytest.mark.parametrize("level", LEVELS)
def test_only_good_tokens_above_and_bad_tokens_below_are_clipped(level):
    cfg = dataclasses.replace(WIDE, ratio=level)
    close(at(RHO, GOOD, cfg), (-1.5 * np.minimum(RHO, 1.3), -1.5 * RHO * (RHO < 1.3)))
    close(at(RHO, BAD, cfg), (1.5 * np.maximum(RHO, 0.8), 1.5 * RHO * (RHO > 0.8)))


@pytest.mark.slow
@pytest.mark.parametrize("A", [GOOD, BAD])
def test_a_ratio_that_lies_on_a_bound_has_the_gradient_that_torch_gives_it(A):
    """Torch's clamp passes it on at a bound, its min shares it between equals. Binary fractions, so that nothing is
    rounded: the ratio 1 with clip_low=0, and 0.5 and 1.5 on their bounds."""
    def torchs(rho, low, high):
        torch = pytest.importorskip("torch")
        x = torch.tensor(rho, requires_grad=True)
        (-torch.min(x * float(A), torch.clamp(x, 1 - low, 1 + high) * float(A))).backward()
        return float(x.grad)

    for rho, low, high in ((1.0, 0, 0.5), (0.5, 0.5, 0.5), (1.5, 0.5, 0.5)):
        cfg = LossConfig(clip_low=low, clip_high=high)
        ours = jax.grad(lambda rho, cfg=cfg: grpo.clipped(rho, None, A, cfg))(rho)
        assert float(ours) == torchs(rho, low, high), (rho, low, high)


def test_cispos_weight_stops_at_its_cap_but_never_its_gradient():
    for A in (GOOD, BAD):
        capped = LossConfig("cispo", use=(losses.Cispo(cap=3.0),))
        close(at(RHO, A, capped), (A * np.minimum(RHO, 3), -A * np.minimum(RHO, 3)))


def test_metrics_count_tokens_that_are_clipped_not_padding():
    """Of completions of 4, 2 and 3 tokens 4, 2 and 1 are clipped below, or 0, 0 and 1 above."""
    _, _, low = evaluate(LossConfig(clip_low=0.05), old=OLD.at[0].set(NEW[0] + 1), adv=-jnp.ones(3))
    names = ("low_mean", "low_min", "region_mean", "high_mean")
    close([low[f"clip_ratio/{k}"] for k in names], [7 / 9, 1 / 3, 7 / 9, 0])
    _, _, high = evaluate(LossConfig(), old=OLD.at[0].set(NEW[0]), adv=jnp.ones(3))
    close([high[f"clip_ratio/{k}"] for k in ("high_mean", "high_max", "low_mean")], [1 / 9, 1 / 3, 0])
    ratio, ones, share = jnp.array([[0.5, 1, 0.5, 0.5]]), jnp.ones((1, 4)), jnp.array([[2.0, 2, 0, 0]])
    drawn = grpo.LossBatch(-jnp.ones(1), ones > 0, ones, share / 4, share=share)  # half of the tokens, for all
    found = grpo.clip_metrics(ratio, drawn, LossConfig())
    close([found["clip_ratio/low_mean"], found["clip_ratio/low_min"]], [1 / 2, 1 / 2])


def test_other_metrics_are_of_tokens_not_padding():
    _, _, metrics = evaluate(LossConfig())
    d = np.asarray(NEW - OLD)[COUNTS]
    close([metrics[k] for k in ("ratio_max", "approx_kl", "logp")],
          [np.exp(0.3), (np.exp(d) - 1 - d).mean(), np.asarray(NEW)[COUNTS].mean()])  # fmt: skip
    _, _, low = evaluate(LossConfig(loss="grpo"), logp=OLD - 0.5 - 0.1 * jnp.arange(4))
    close(low["ratio_max"], np.exp(-0.5))  # also if all are below 1


# ---- the KL, over all texts of two tokens ----
THEIRS, OURS = jax.random.normal(jax.random.key(5), (2, 4, 3))  # logits of the first token; of the second, given it


def of_pairs(theta):
    """Log-probs (9, 2) of the tokens of each text."""
    first, second = jax.nn.log_softmax(theta[0]), jax.nn.log_softmax(theta[1:])
    return jnp.stack([jnp.repeat(first, 3), second.reshape(-1)], 1)


def kl_of_tokens(p, q, draws):
    """Add up KL(p || q) of both tokens, that of the second averaged over first tokens with the logits draws[0]."""
    chance = jnp.concatenate([jnp.ones(1), jax.nn.softmax(draws[0])])
    p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    return chance @ jnp.sum(jnp.exp(p) * (p - q), 1)


@functools.partial(jax.jit, static_argnames="est")
@jax.value_and_grad
def expected_kl(theta, est):
    """Average the loss's KL term, and its gradient, over completions that the policy draws."""
    chance = jax.lax.stop_gradient(jnp.exp(of_pairs(theta).sum(1, keepdims=True)))
    cfg, ones = LossConfig(kl_beta=1.0, kl_est=est), jnp.ones((9, 2), bool)
    batch = LossBatch(jnp.zeros(9), ones, chance * ones, chance / 2, ref_logp=of_pairs(THEIRS))
    return grpo.loss(of_pairs(theta), batch, cfg)[0]


def test_the_gradient_of_an_estimate_of_the_kl_is_that_of_a_kl():
    value, of_sequence = jax.value_and_grad(lambda theta: kl_of_tokens(theta, THEIRS, theta))(OURS)
    reverse, forward = jax.grad(kl_of_tokens)(OURS, THEIRS, OURS), jax.grad(kl_of_tokens, 1)(THEIRS, OURS, OURS)
    assert min(abs(reverse - forward).max(), abs(reverse - of_sequence).max()) > 0.05
    for est, expected in (("k2", reverse), ("k3", forward), ("k2_sequence", of_sequence)):
        close(expected_kl(OURS, est)[1], expected, 1e-6)
    close(expected_kl(OURS, "k3")[0], value, 1e-6)


# ---- what counts, and how much ----
@pytest.mark.parametrize("level", QUICK)
@pytest.mark.parametrize("name", grpo.LOSSES)
def test_padding_and_completions_that_are_masked_out_have_no_gradient_and_change_no_value(name, level):
    cfg = LossConfig(loss=name, ratio=level, kl_beta=0.1)
    noisy = lambda x, by: jnp.where(MASK, x, by * x)
    value, grad, metrics = evaluate(cfg)
    other, other_grad, other_metrics = evaluate(cfg, noisy(NEW, 3), noisy(OLD, 2), noisy(REF, 0.5))
    assert (grad[~COUNTS] == 0).all() and (grad[COUNTS] != 0).any()
    close(grad, other_grad, 1e-6)
    close([value, *metrics.values()], [other, *other_metrics.values()], 1e-6)
    mask = MASK.at[1].set(False)
    a = evaluate(cfg, mask=mask)
    b = evaluate(cfg, NEW.at[1].add(2), OLD.at[1].add(-1), REF.at[1].add(5), ADV.at[1].set(9), mask)
    assert a[0] == b[0] and (a[1] == b[1]).all() and not a[1][1].any() and a[1].any()
    nothing = evaluate(cfg, mask=mask & False)
    assert nothing[0] == 0 and not nothing[1].any() and np.isfinite([*a[2].values(), *nothing[2].values()]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", grpo.LOSSES)
def test_micro_batches_add_up_to_the_batch(name):
    cfg = LossConfig(loss=name, kl_beta=0.1)
    pairs = ((NEW, REF), (OLD, NEW), (REF, OLD), (ADV, -2 * ADV), (MASK, MASK[:, ::-1]))
    six = [jnp.concatenate(pair) for pair in pairs]
    mask, weight = six[-1], grpo.token_weights(name, six[-1], 4, micro_batches=2)
    data = (*six, weight, mask / mask.sum())
    whole = evaluate(cfg, *data)
    parts = [evaluate(cfg, *(x[i : i + 3] for x in data)) for i in (0, 3)]
    close(sum(p[0] for p in parts), whole[0], 1e-6)
    close(np.concatenate([p[1] for p in parts]), whole[1], 1e-6)
    summed = [k for k in whole[2] if not k.endswith(("_min", "_max"))]
    close([sum(p[2][k] for p in parts) for k in summed], [whole[2][k] for k in summed], 1e-6)
    of_loss = {grpo.clipped: {"clip_ratio/low_mean"}, losses.cispo: {"cispo_clip_ratio"}}
    clips = of_loss.get(grpo.LOSSES[name].token_loss, set())
    assert {"loss", "pg_loss", "kl", "approx_kl", "logp"} | clips <= set(summed)


def test_how_tokens_are_added_up_is_chosen_independently_of_how_they_are_clipped():
    """By hand: the loss of each token, clipped as in PPO or CISPO, added up in each of four ways."""
    rho, A = np.exp(np.asarray(NEW - OLD)), np.asarray(ADV)[:, None]
    per = {"dapo": -np.minimum(rho * A, rho.clip(0.8, 1.2) * A), "cispo": -np.minimum(rho, 5) * A * np.asarray(NEW)}
    for loss, terms in per.items():
        rows = [row[counts] for row, counts in zip(terms, COUNTS, strict=True)]
        ways = {"token": np.concatenate(rows).mean(), "sequence": np.mean([row.mean() for row in rows]),
                "constant": sum(row.sum() for row in rows) / (3 * 5), "sum": np.mean([row.sum() for row in rows])}
        for name, way in ways.items():
            weight = grpo.token_weights(loss, MASK, 5, aggregation=name)
            assert evaluate(LossConfig(loss), weight=weight)[0] == pytest.approx(way, abs=1e-5)


@pytest.mark.parametrize("loss", [lambda ratio, *_: ratio.sum(1), lambda ratio, *_: ratio.sum()])
def test_a_loss_per_completion_is_refused_also_of_as_many_completions_as_tokens(loss, monkeypatch):
    monkeypatch.setitem(grpo.LOSSES, "mine", grpo.Loss(loss, grpo.per_token))
    square = dict(logp=NEW[:, :3], old=OLD[:, :3], mask=MASK[:, :3])
    said = r"a loss or KL returns the shape \(3?,?\): expected \(B, T\) = \(3, 3\)"
    refused(said, evaluate, LossConfig(loss="mine"), **square)


def test_the_kl_is_logged_as_it_enters_the_loss():
    for kl_est in grpo.KLS:
        loss, _, metrics = evaluate(LossConfig("dr_grpo", kl_beta=0.3, kl_est=kl_est))
        assert loss == pytest.approx(metrics["pg_loss"] + metrics["kl_loss"], abs=1e-6) and metrics["kl_loss"] > 0


def test_wd1_weighs_log_p_itself_whatever_the_ratio():
    product = np.asarray(-ADV[:, None] * NEW)[COUNTS]
    for old in (OLD, None):
        close(evaluate(LossConfig(loss="wd1"), old=old)[0], product.sum() / 3)


def test_entropy_is_a_bonus_on_the_tokens_that_count():
    H, weight = jnp.abs(REF), MASK / MASK.sum()
    batch = LossBatch(ADV, MASK, weight, weight)
    cfg = shared.run(objective="grpo", init_from="x", rewards=("exact",), **{"entropy_bonus.coef": 0.5})
    added, _ = losses.entropy_bonus(NEW, H, None, batch, cfg)
    close(added, -0.5 * np.asarray(H)[COUNTS].mean())


# ---- the reference ----
@pytest.mark.parametrize("mode, moves", [
    ("ema", lambda r, p, n: 0.9 * r + 0.1 * p),
    ("periodic", lambda r, p, n: r if n % 3 else 0.25 * r + 0.75 * p)])  # fmt: skip
def test_the_reference_follows_the_policy_as_its_mode_says(mode, moves):
    policies = np.random.default_rng(0).normal(size=(7, 2, 3)).astype(np.float32)
    expected, ref = policies[0], {"w": jnp.array(policies[0])}
    for n in range(1, 7):
        state = rl.State(n, {"w": jnp.array(policies[n])}, (), None, ref)
        ref = moving_reference.Keys(mode, decay=0.9, interval=3, mix=0.75).reference(state, config.Config())
        expected = moves(expected, policies[n], n)
        close(ref["w"], expected, 1e-6)
    assert not (ref["w"] == policies[0]).all()
    copy = moving_reference.moved(ref, {"w": jnp.array(policies[1])}, 1.0)
    assert (copy["w"] == policies[1]).all()


# ---- all of it, exactly: three real tokens, three holes, every path of the sampler ----
HOLE = 3
CFG = model.ModelConfig(vocab_size=4, n_layer=1, n_head=2, d_model=16, rope_theta=3.0, mask_id=HOLE)
START = jax.jit(model.init, static_argnames="cfg")(jax.random.key(4), CFG)
# And from it a model that is sure of some tokens, and not of others.
GAIN = {"q": 3, "k": 3, "o": 8, "embed": 2, "head": 15}
PARAMS = jax.tree_util.tree_map_with_path(lambda path, w: w * GAIN.get(path[-1].key, 1), START)
every_state = lambda length: np.array(list(itertools.product(range(4), repeat=length)))
code = lambda length: 4 ** np.arange(length)[::-1]  # every_state(L)[z @ code(L)] is z
with_prompt = lambda rows, first: jnp.pad(jnp.asarray(rows), ((0, 0), (1, 0)), constant_values=first)
REWARD = np.random.default_rng(1).normal(size=(3, 3, 3)).astype(np.float32) + 1


def choices(plan, length=3):
    """-> choice(state, n): what the sampler may commit there at step n, a list of (chance, (L,) bool)."""
    if plan.order == "random":  # any as many of the holes as the quota says
        size = lambda z, n: -(-(z == HOLE).sum() // (plan.steps - n))
        sets = lambda z, n: list(itertools.combinations(np.flatnonzero(z == HOLE), size(z, n)))
        return lambda z, n: [(1 / len(sets(z, n)), np.isin(range(length), s)) for s in sets(z, n)]
    s = sample.begin(with_prompt(every_state(length), 1))
    keys = sample.row_keys(jax.random.key(0), len(s.z))
    table = []
    for n in range(length):  # one step from every state there is
        after = sample.fill_step(PARAMS, keys, s, CFG, plan, None)
        table.append(np.asarray(after.step == n)[:, 1:])
        s = s._replace(n=after.n, block=after.block, i=after.i)
    return lambda z, n: [(1.0, table[n][z @ code(length)])]


def paths(plan, length=3):
    """-> x, step (n, L) of every path from L holes to none, chance (n,) of its order."""
    return all_paths(choices(plan, length), HOLE, length)


def kept(logits, temperature, top_p, top_k, penalty):
    """Logits (4 ** L, L, V) of all states -> the same after the sampler's filters, written anew; 1 is the prompt."""
    states = every_state(logits.shape[1])
    known = (with_prompt(states, 1)[:, :, None] == jnp.arange(4)).any(1, keepdims=True) & (jnp.arange(4) != HOLE)
    logits = jnp.where(known, jnp.where(logits > 0, logits / penalty, logits * penalty), logits) / temperature
    # The probability of all likelier tokens.
    above = lambda q: jnp.where(logits[..., None, :] > logits[..., :, None], q[..., None, :], 0).sum(-1)
    logits = jnp.where(above(jax.nn.softmax(logits)) <= top_p, logits, -1e30)
    return jnp.where(above(jnp.ones(logits.shape)) < top_k, logits, -1e30)


@functools.partial(jax.jit, static_argnames="filters")
def probabilities(params, x, step, temperature, filters=(1.0, 4, 1.0)):
    """What the sampler draws in the states of every path: p (n, L) of its tokens."""
    L = x.shape[1]
    p = jax.nn.softmax(kept(model.logits(params, with_prompt(every_state(L), 1), CFG)[:, 1:], temperature, *filters))
    before = jnp.where(step[:, None, :] < step[:, :, None], x[:, None, :], HOLE)  # (n, L, L): as token i was drawn
    return p[before @ code(L), jnp.arange(L), x]


@functools.partial(jax.jit, static_argnames="filters")
@jax.grad
def exact_gradient(params, x, step, chance, temperature, reward, filters=(1.0, 4, 1.0)):
    """Of the expected reward, differentiated as it is, without log-probs."""
    return jnp.sum(chance * probabilities(params, x, step, temperature, filters).prod(1) * reward)


def penalty_of(plan):
    return next((keys.penalty for keys in plan.use if isinstance(keys, repetition_penalty.Keys)), 1)


@functools.partial(jax.jit, static_argnames="plan")
@jax.grad
def grpo_gradient(params, x, step, p, temperature, reward, counts=True, plan=None):
    """The loss's on every path at once, each with its probability p (n,) as its weight; counts (n, 3): of what."""
    x, order = with_prompt(x, 1), with_prompt(step, -1)
    hole = order >= 0
    mask = hole & with_prompt(jnp.broadcast_to(counts, step.shape), False)
    M, w, _ = diffusion.views(jax.random.key(0), "trace", hole, step=order, n=3)

    def say(logits, x, place):
        if plan and (penalty := penalty_of(plan)) != 1:
            present = repetition_penalty.ids_of(place.z, place.z != CFG.mask_id, logits.shape[-1])
            logits = repetition_penalty.penalized(logits, present, penalty)
        drawn = sample.as_drawn(logits, x, plan) if plan else logits / temperature
        return diffusion.gather_logp(drawn, x), x

    logp = (w * diffusion.view_logp(params, x, M, CFG, say=say)[0]).sum(1)
    weight = len(x) * p[:, None] * grpo.token_weights("dr_grpo", mask, 1)
    batch = LossBatch(reward, mask, weight, mask / mask.sum())
    return grpo.loss(logp, batch, LossConfig("dr_grpo", "none"))[0]


flat = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]
PENALTY = "repetition_penalty.penalty"
PLANS = {  # and of how many orders their paths are
    Plan(order="confidence", steps=2, temperature=1.0): 1,
    Plan(order="confidence", steps=3, temperature=1.0): 2,  # which hole is next depends on what is there
    shared.plan(rule="entropy", **{"entropy.budget": 0.7}, temperature=1.3): 2,  # and so does how many are
    Plan(order="random", steps=2, temperature=1.0): 3,
    Plan(order="left", steps=3, temperature=0.7): 1,
    Plan(order="confidence", steps=3, temperature=1.2, top_p=0.7): 2,
    shared.plan(order="random", steps=2, temperature=1.0, top_k=2, **{PENALTY: 1.7}): 3,
    shared.plan(rule="entropy", **{"entropy.budget": 0.7, PENALTY: 1.3}, temperature=1.3, top_p=0.9): 2,
}


@pytest.mark.parametrize("plan", [p if p == list(PLANS)[1] else slow(p) for p in PLANS],
                         ids=lambda p: f"{p.order}-{p.rule}-{p.steps}-{p.top_p or p.top_k}")  # fmt: skip
def test_on_policy_the_trace_gives_exactly_the_gradient_of_the_expected_reward(plan):
    x, step, chance = paths(plan)
    T, reward, filters = plan.temperature, REWARD[tuple(x.T)], (plan.top_p or 1, plan.top_k or 4, penalty_of(plan))
    p = chance * np.asarray(probabilities(PARAMS, x, step, T, filters)).prod(1)
    assert abs(p.sum() - 1) < 1e-5 and len(np.unique(step, axis=0)) == PLANS[plan]
    exact = flat(exact_gradient(PARAMS, x, step, chance, T, reward, filters))
    ours = lambda step, reward, plan=plan: -flat(grpo_gradient(PARAMS, x, step, p, T, reward, plan=plan))
    close(ours(step, reward), exact)
    close(ours(step, reward - 5), exact, 3e-5)  # a baseline changes nothing
    for other in (step * 0, step * 0 + np.arange(3)):  # the log-probs of another order do: all at once, from the left
        assert abs(ours(other, reward) - exact).max() > 0.1 or (other == step).all()
    if filters != (1, 4, 1):  # some paths cannot be gone, and log-probs as if nothing had been filtered are others
        assert (p == 0).any() and abs(ours(step, reward, None) - exact).max() > 0.1


def test_a_token_that_the_filter_bans_now_has_a_finite_log_prob_and_the_others_keep_theirs():
    """As at another view, or after an update: it counts as one of those that are kept."""
    logits, plan = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05])), Plan(temperature=1.0, top_p=0.6)
    logp = lambda logits, x: diffusion.gather_logp(sample.as_drawn(logits, x, plan), x)
    tokens = jnp.arange(4)
    close(logp(jnp.tile(logits, (4, 1)), tokens), np.log([0.5 / 0.8, 0.3 / 0.8, 0.15 / 0.95, 0.05 / 0.85]))
    grads = jax.vmap(jax.grad(logp), (None, 0))(logits, tokens)
    assert np.isfinite(grads).all() and (grads[tokens, tokens] > 0.3).all() and (grads[0, 2:] == 0).all()


def test_tokens_after_the_end_have_to_be_scored_for_the_gradient_of_the_expected_reward():
    """Token 2 is an end of text, the reward looks at what is before. What comes after it was context of what is before
    where that was filled later: left out, its log-probs are missing, and even a constant reward has a gradient."""
    plan = list(PLANS)[1]
    x, step, chance = paths(plan)
    hole, T = np.ones(x.shape, bool), plan.temperature
    up_to_end, everything = (np.asarray(rl.loss_mask(x, hole, 2, config.Config(score_after_end=after)))
                             for after in (False, True))  # fmt: skip
    p = chance * np.asarray(probabilities(PARAMS, x, step, T)).prod(1)
    ours = lambda counts, reward: -flat(grpo_gradient(PARAMS, x, step, p, T, reward, counts))
    for reward in (REWARD[tuple(np.where(up_to_end, x, 0).T)], np.ones(len(x), np.float32)):
        exact = flat(exact_gradient(PARAMS, x, step, chance, T, reward))
        right, wrong = (float(jnp.linalg.norm(ours(counts, reward) - exact)) for counts in (everything, up_to_end))
        print(f"off by {right:.1e} of {jnp.linalg.norm(exact):.3f} with all holes, by {wrong:.3f} up to the end")
        assert right < 2e-5 and wrong > 0.01
    assert everything.all() and not up_to_end.all()


def test_a_ratio_ends_at_e_to_the_20():
    far = jnp.array([[30.0], [20.0], [19.5], [-19.5], [-20.0], [-30.0]])
    for level in LEVELS:
        ratio = grpo.ratios(far, jnp.zeros((6, 1)), jnp.ones((6, 1), bool), level)
        close(jnp.log(ratio[:, 0]), [20, 20, 19.5, -19.5, -20, -20])


def test_cispo_counts_ratios_beyond_its_cap_on_completions_that_are_pushed_up():
    """Not those on the cap, and none where there is no advantage."""
    some = jnp.full((3, 2), 1 / 6)
    batch = LossBatch(jnp.array([1.0, 0.0, -1.0]), some > 0, some, some)
    ratio = jnp.array([[5.0, 5.1]] * 3)
    metrics = grpo.ratio_metrics(ratio, batch, LossConfig(loss="cispo", use=(losses.Cispo(cap=5.0),)))
    close(metrics["cispo_clip_ratio"], 1 / 6)


def test_a_default_that_is_said_twice_is_the_same_both_times():
    keys = {f.name: f.default for f in dataclasses.fields(config.Config)}
    said = {f.name: f.default for f in dataclasses.fields(Plan)}
    same = said.keys() & keys.keys() - {"temperature", "early_end"}  # a run samples, a Plan alone is greedy
    assert {name: said[name] for name in same} == {name: keys[name] for name in same}
    assert LossConfig() == rl.loss_config(config.Config(ratio_level="token"))  # a run has no ratios


@pytest.mark.parametrize("given, said", [
    (dict(scale="std"), "'std': expected one of group, mean, batch, none"), (dict(baseline="median"), "'median': exp"),
    (dict(normalize="all"), "'all': expected one of sum, each"),
    (dict(rewards=np.eye(3)), "shape (3, 3): expected (R, N, G)")])  # fmt: skip
def test_names_and_shapes_that_mean_nothing_are_refused(given, said):
    refused(re.escape(said), advantages, **{"rewards": np.ones((1, 2, 3))} | given)
    refused("'tokens': expected one of token, sequence, none", grpo.ratios, np.ones((1, 2)), None, None, "tokens")
    refused("'tokens': expected one of token, seq", grpo.token_weights, "dapo", np.ones((1, 2)), 2, 1, "tokens")
    refused("logp_est='elbos': one of elbo, .*, trace.*did you mean", diffusion.views, None, "elbos", None)


def test_advantages_may_be_a_column_or_in_groups():
    four, adv = (jnp.concatenate([a, a[:1]]) for a in (NEW, ADV))
    values = {evaluate(LossConfig(), four, four, four, adv.reshape(shape), jnp.ones_like(four))[0]
              for shape in (4, (4, 1), (2, 2))}  # fmt: skip
    assert len(values) == 1
