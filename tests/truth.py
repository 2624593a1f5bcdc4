"""
How far is the policy gradient of each likelihood estimator from the exact one? For tests/bench.py truth.

The model is the one of tests/test_grpo.py: three tokens, L masks behind a prompt. All 3 ** L paths of its sampler are
enumerated, so the gradient of the expected reward is known. Masks of views are drawn.

Shapes: n paths, L masks, S = 2 ** L sets of masks in a text, P parameters.
"""
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import test_grpo as tiny

import config
import diffusion
import model
import rl
import sample

END = 2  # the token that ends a text, in the case with ends
# Estimators of log-probs and the n of each (logp_views), for about three views; None: one view for each step.
# `exact` is that of causal models.
VIEWS = {"one_step": 1, "coupled": 1, "elbo": 3, "coupled_elbo": 2, "quadrature": 3, "strata": 3, "trace": None,
         "trace, one step": 1, "left_to_right": None}  # fmt: skip
WHOLE = ", all tokens"  # behind the name of an estimator that also scores the tokens after the end
OTHERS = 20  # rewards besides the one of the table


class Case(typing.NamedTuple):
    """How long texts are, and whether END ends them."""

    length: int
    ends: bool = False


class Enumerated(typing.NamedTuple):
    """All paths of the sampler, and a policy's log-probs at every set of masks of every path's text."""

    x: typing.Any  # (n, L) tokens
    step: typing.Any  # (n, L) the step that wrote each
    chance: typing.Any  # (n,) the probability of a path under the policy that writes
    counts: typing.Any  # (n, L) bool, the tokens up to the first end
    logp: typing.Any  # (n, S * L) of the text's token at every place, for every set of masks
    slope: typing.Any  # (n, S * L) the row of each in `slopes`
    slopes: typing.Any  # (4 ** L * 3 L, P) derivatives of all log-probs by the parameters
    exact: typing.Any  # adv (n,) -> (P,), the gradient of the expected reward


class Moments(typing.NamedTuple):
    """The gradient of the loss of one completion whose advantage is 1, over the draws of its views."""

    mean: typing.Any  # (n, S * L) by log-probs
    square: typing.Any  # (n,) the squared length, by parameters


def mask_sets(L):
    """List all sets of masks (S, L); that with the number s is s in binary, the first token its last digit."""
    return np.arange(2**L)[:, None] >> np.arange(L) & 1 == 1


def advantages(paths, seed):
    """Give every text up to its end a random reward -> (n,), less the expected reward. seed=1: as in test_grpo.py."""
    L = paths.x.shape[1]
    table = np.random.default_rng(seed).normal(size=(3,) * L).astype(np.float32) + 1
    reward = table[tuple(np.where(paths.counts, paths.x, 0).T)]
    return reward - (paths.chance * reward).sum()


@jax.jit
def all_slopes(flat_params, states):
    """Compute log-probs of the three tokens at all places of all states (4 ** L, L), and their derivatives by the
    parameters (P,) -> (4 ** L * 3 L,), (4 ** L * 3 L, P)."""
    unflatten = jax.flatten_util.ravel_pytree(tiny.PARAMS)[1]
    L = states.shape[1]

    def logp_of(flat_params, state):
        logits = model.logits(unflatten(flat_params), tiny.with_prompt(state[None], 1), tiny.CFG)
        return jax.nn.log_softmax(logits)[0, 1:, :3].reshape(-1)

    # One row after the other: jax.jacrev, which makes one batch of them, is wrong here by 6% (34% in jit).
    def row(which):
        logp, back = jax.vjp(lambda flat_params: logp_of(flat_params, states[which // (3 * L)]), flat_params)
        return logp[which % (3 * L)], back(jax.nn.one_hot(which % (3 * L), 3 * L))[0]

    return jax.lax.map(row, jnp.arange(len(states) * 3 * L))


def enumerated(case, params, chance=None):
    """Enumerate the paths of the sampler that fills the surest token first, with the log-probs of `params`. chance:
    that of each path, if another policy wrote them."""
    L = case.length
    x, step, order_chance = paths(L)
    everything = np.ones(x.shape, bool)
    counts = np.asarray(rl.loss_mask(x, everything, END, config.Config())) if case.ends else everything
    p = order_chance * np.asarray(tiny.probabilities(params, x, step, 1.0)).prod(1)
    logp, slopes = all_slopes(tiny.flat(params), tiny.every_state(L))
    state = np.where(mask_sets(L), tiny.HOLE, x[:, None]) @ tiny.code(L)  # (n, S)
    entry = ((state[..., None] * L + np.arange(L)) * 3 + x[:, None]).reshape(len(x), -1)
    drawn = p if chance is None else chance

    def exact(adv):
        return np.asarray(tiny.flat(tiny.exact_gradient(params, x, step, order_chance, 1.0, adv)))

    return Enumerated(x, step, drawn, counts, np.asarray(logp)[entry], entry, np.asarray(slopes), exact)


@functools.cache
def paths(L):
    """Return x, step (n, L) and the chance (n,) of every path of the sampler, one token per step."""
    return tuple(tiny.paths(sample.Plan(order="confidence", steps=L, temperature=1.0), L))


def gradients(label, now, before, keys, copies):
    """Draw views of `copies` of all paths for each key -> the gradient of their losses by the log-probs of each policy
    in `now`, [(copies, n, S * L)], for an advantage of 1. Tokens have their ratio to the policy `before`."""
    name, L = label.split(",")[0], before.x.shape[1]
    rows = np.tile(np.arange(len(before.x)), copies)
    order = tiny.with_prompt(before.step[rows], -1)
    counts = before.counts[rows] | label.endswith(WHOLE)
    inputs = {"step": order, "n": n_views(label, L), "counts": tiny.with_prompt(counts, False)}
    for key in keys:
        masked, weight, share = (np.asarray(a)[..., 1:] for a in diffusion.views(key, name, order >= 0, **inputs))
        weight, share = weight * counts, share * counts
        place = (masked @ 2 ** np.arange(L))[..., None] * L + np.arange(L)  # (K, rows, L), into S * L
        index = np.arange(len(rows))[:, None]
        found = []
        for policy in now:
            moved = (policy.logp - before.logp)[rows]
            drift = (weight * moved[index, place]).sum(0)
            each = weight * (share * np.exp(drift))
            out = np.zeros((len(rows), 2**L * L), np.float32)
            np.add.at(out, (index, place), each)
            found.append(out.reshape(copies, len(before.x), -1))
        yield found


def n_views(label, L):
    """Return the n (logp_views) of an estimator; `passes` counts its views, of which `coupled_elbo` has two per n."""
    return VIEWS[label.removesuffix(WHOLE)] or L


def passes(label, L):
    """Count the forward passes that an estimator makes for one completion."""
    views = diffusion.views(jax.random.key(0), label.split(",")[0], jnp.ones((1, L), bool),
                            step=jnp.zeros((1, L), int), n=n_views(label, L))  # fmt: skip
    return len(views.masked)


def products(policy):
    """Compute the dot products of the derivatives of all log-probs of each path's text -> (n, S * L, S * L)."""
    return np.stack([policy.slopes[entry] @ policy.slopes[entry].T for entry in policy.slope])


def moments(label, now, dots, before, n_keys, copies):
    """Draw views of an estimator n_keys * copies times for every path -> the Moments under each policy in `now`.

    dots: the `products` of each of these policies; before: the policy that ratios are to"""
    means, squares = [0.0] * len(now), [0.0] * len(now)
    for found in gradients(label, now, before, jax.random.split(jax.random.key(0), n_keys), copies):
        for i, by_logp in enumerate(found):
            each = by_logp.swapaxes(0, 1)  # (n, copies, S * L)
            means[i] += each.mean(1) / n_keys
            squares[i] += ((each @ dots[i]) * each).sum(2).mean(1) / n_keys
    return [Moments(*both) for both in zip(means, squares, strict=True)]


def near_truth(policy, adv, exact, found):
    """Compare the mean gradient of an estimator, whose Moments are `found`, with the exact one (P,) -> their cosine,
    their distance, the deviation of the gradient of one completion (both as shares of the exact length), and signal to
    noise of one completion."""
    by_logp = np.zeros(len(policy.slopes), np.float32)
    np.add.at(by_logp, policy.slope, (policy.chance * adv)[:, None] * found.mean)
    mean, length = by_logp @ policy.slopes, np.linalg.norm(exact)
    along, variance = mean @ exact / length, policy.chance * adv**2 @ found.square - mean @ mean
    return (along / np.linalg.norm(mean), np.linalg.norm(mean - exact) / length, variance**0.5 / length,
            along / variance**0.5)  # fmt: skip


def rows(case, labels, n_keys, copies):
    """Yield for each estimator [label, passes, cosine, bias, deviation, signal to noise per pass; cosine and signal to
    noise after an update; means of both over OTHERS rewards, without an update]."""
    before = enumerated(case, tiny.PARAMS)
    adv = advantages(before, 1)
    uphill = before.exact(adv)
    flat, unflatten = jax.flatten_util.ravel_pytree(tiny.PARAMS)
    after = enumerated(case, unflatten(flat + 0.03 * uphill / np.linalg.norm(uphill)), before.chance)
    uphill_after = after.exact(adv)
    others = [(a, before.exact(a)) for a in (advantages(before, seed) for seed in range(2, 2 + OTHERS))]
    dots = products(before), products(after)
    for label in labels:
        n = passes(label, case.length)
        now, later = moments(label, (before, after), dots, before, n_keys, copies)
        on, off = near_truth(before, adv, uphill, now), near_truth(after, adv, uphill_after, later)
        other = np.mean([near_truth(before, *known, now) for known in others], 0)
        yield [label, n, *on[:3], on[3] / n**0.5, off[0], off[3] / n**0.5, other[0], other[3] / n**0.5]
