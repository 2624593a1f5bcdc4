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
# Estimators of log-probs and how many views each has: about three; "trace" and "left_to_right": one for each step.
# `exact` is that of causal models.
VIEWS = {"one_step": 1, "coupled": 1, "elbo": 3, "coupled_elbo": 2, "quadrature": 3, "strata": 3, "trace": None,
         "trace, one step": 1, "left_to_right": None}  # fmt: skip
WHOLE = ", all tokens"  # the name of an estimator that also scores tokens after the end


class Case(typing.NamedTuple):
    """How long texts are, and whether END ends them."""

    length: int
    ends: bool = False


class Enumerated(typing.NamedTuple):
    """All paths of the sampler, and a policy's log-probs at every set of masks of every path's text."""

    x: typing.Any  # (n, L) tokens
    step: typing.Any  # (n, L) the step that wrote each
    chance: typing.Any  # (n,) the probability of a path under the policy that writes
    adv: typing.Any  # (n,) its reward less the expected reward
    counts: typing.Any  # (n, L) bool, the tokens up to the first end
    logp: typing.Any  # (n, S * L) of the text's token at every place, for every set of masks
    slope: typing.Any  # (n, S * L) the row of each in `slopes`
    slopes: typing.Any  # (4 ** L * 3 L, P) derivatives of log-probs by the parameters
    exact: typing.Any  # (P,) the gradient of the expected reward


def mask_sets(L):
    """List all sets of masks (S, L); that with the number s is s in binary, the first token its last digit."""
    return np.arange(2**L)[:, None] >> np.arange(L) & 1 == 1


def reward_of(x, counts):
    """Give every text (n, L) up to its end, which `counts` (n, L) has, a random reward (n,)."""
    table = tiny.REWARD if x.shape[1] == 3 else np.random.default_rng(1).normal(size=(3,) * x.shape[1]) + 1
    return table[tuple(np.where(counts, x, 0).T)].astype(np.float32)


@jax.jit
def all_slopes(flat_params, states):
    """Log-probs of the three tokens at all places of all states (4 ** L, L), and their derivatives by the parameters
    (P,) -> (4 ** L * 3 L,), (4 ** L * 3 L, P)."""
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
    """Enumerate the paths of the sampler that fills the surest token first, with the log-probs of `params`. chance: that
    of each path, if another policy wrote them."""
    L = case.length
    x, step, order_chance = paths(L)
    everything = np.ones(x.shape, bool)
    counts = np.asarray(rl.loss_mask(x, everything, END, config.Config())) if case.ends else everything
    p = order_chance * np.asarray(tiny.probabilities(params, x, step, 1.0)).prod(1)
    drawn = p if chance is None else chance
    reward = reward_of(x, counts)
    adv = reward - (drawn * reward).sum()
    logp, slopes = all_slopes(tiny.flat(params), tiny.every_state(L))
    state = np.where(mask_sets(L), tiny.HOLE, x[:, None]) @ tiny.code(L)  # (n, S)
    entry = ((state[..., None] * L + np.arange(L)) * 3 + x[:, None]).reshape(len(x), -1)
    exact = tiny.flat(tiny.exact_gradient(params, x, step, order_chance, 1.0, adv))
    return Enumerated(x, step, drawn, adv, counts, np.asarray(logp)[entry], entry, np.asarray(slopes),
                      np.asarray(exact))  # fmt: skip


@functools.cache
def paths(L):
    """Return x, step (n, L) and the chance (n,) of every path of the sampler, one token per step."""
    return tuple(tiny.paths(sample.Plan(order="confidence", steps=L, temperature=1.0), L))


def gradients(label, now, before, keys, copies):
    """Draw views of `copies` of all paths for each key -> the gradient of their losses by the log-probs of each policy
    in `now`, [(copies, n, S * L)]. Tokens have their ratio to the policy `before`."""
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
            each = weight * (share * np.exp(drift) * before.adv[rows][:, None])
            out = np.zeros((len(rows), 2**L * L), np.float32)
            np.add.at(out, (index, place), each)
            found.append(out.reshape(copies, len(before.x), -1))
        yield found


def n_views(label, L):
    """How many views an estimator has; of `coupled` and `coupled_elbo`, half a pair or a pair each."""
    return VIEWS[label.removesuffix(WHOLE)] or L


def passes(label, L):
    """Count the forward passes that an estimator makes for one completion."""
    views = diffusion.views(jax.random.key(0), label.split(",")[0], jnp.ones((1, L), bool),
                            step=jnp.zeros((1, L), int), n=n_views(label, L))  # fmt: skip
    return len(views.masked)


def products(policy):
    """Multiply the derivatives of all log-probs of each path's text with each other -> (n, S * L, S * L)."""
    return np.stack([policy.slopes[entry] @ policy.slopes[entry].T for entry in policy.slope])


def near_truth(label, now, dots, before, n_keys, copies):
    """Compare the mean gradient of an estimator with the exact one, for each policy in `now` and its `products` -> their
    cosine, their distance, the deviation of the gradient of one completion (both as shares of the exact length), and
    signal to noise of one completion."""
    means, squares = [0.0] * len(now), [0.0] * len(now)
    for found in gradients(label, now, before, jax.random.split(jax.random.key(0), n_keys), copies):
        for i, by_logp in enumerate(found):
            means[i] += by_logp.mean(0) / n_keys
            each = by_logp.swapaxes(0, 1)  # (n, copies, S * L)
            squares[i] += before.chance @ ((each @ dots[i]) * each).sum(2).mean(1) / n_keys
    return [summary(policy, before.chance, *moments) for policy, *moments in zip(now, means, squares, strict=True)]


def summary(policy, chance, mean, square):
    """Turn mean gradients by log-probs (n, S * L) and the mean square into the numbers of `near_truth`."""
    total = np.zeros(len(policy.slopes))
    np.add.at(total, policy.slope, chance[:, None] * mean)
    mean = total @ policy.slopes
    length = np.linalg.norm(policy.exact)
    along, variance = mean @ policy.exact / length, square - mean @ mean
    return (along / np.linalg.norm(mean), np.linalg.norm(mean - policy.exact) / length, variance**0.5 / length,
            along / variance**0.5)  # fmt: skip


def rows(case, labels, n_keys, copies):
    """Yield [label, passes, cosine, bias, deviation, signal to noise per pass; cosine and signal to noise after an
    update] for each estimator."""
    before = enumerated(case, tiny.PARAMS)
    flat, unflatten = jax.flatten_util.ravel_pytree(tiny.PARAMS)
    moved = unflatten(flat + 0.03 * before.exact / np.linalg.norm(before.exact))
    after = enumerated(case, moved, before.chance)
    dots = products(before), products(after)
    for label in labels:
        n = passes(label, case.length)
        on, off = near_truth(label, (before, after), dots, before, n_keys, copies)
        yield [label, n, *on[:3], on[3] / n**0.5, off[0], off[3] / n**0.5]
