"""
How far is the policy gradient of each likelihood estimator from the exact one? For tests/bench.py truth.

The model is the one of tests/test_grpo.py: three tokens, L masks behind a prompt. All 3 ** L paths of its sampler are
enumerated, so the gradient of the expected reward is known. Masks of views are drawn.

Shapes: n paths, L masks, S = 2 ** L sets of masks in a text, P parameters.
"""
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
         "trace, one step": 1}  # fmt: skip
WHOLE = ", all tokens"  # behind the name of an estimator that also scores the tokens after the end
REWARDS = 20  # of which the table has the mean


class Case(typing.NamedTuple):
    """How long texts are, and whether END ends them."""

    length: int
    ends: bool = False


class Enumerated(typing.NamedTuple):
    """All paths of the sampler, and the policy's log-probs at every set of masks of every path's text."""

    x: typing.Any  # (n, L) tokens
    step: typing.Any  # (n, L) the step that wrote each
    chance: typing.Any  # (n,) the probability of a path
    counts: typing.Any  # (n, L) bool, the tokens up to the first end
    slope: typing.Any  # (n, S * L) the row in `slopes` of the text's token at every place, for every set of masks
    slopes: typing.Any  # (4 ** L * 3 L, P) derivatives of all log-probs by the parameters
    exact: typing.Any  # adv (n,) -> (P,), the gradient of the expected reward


def mask_sets(L):
    """List all sets of masks (S, L); that with the number s is s in binary, the first token its last digit."""
    return np.arange(2**L)[:, None] >> np.arange(L) & 1 == 1


def advantages(paths, seed):
    """Give every text up to its end a random reward -> (n,), less the expected reward."""
    table = np.random.default_rng(seed).normal(size=(3,) * paths.x.shape[1]).astype(np.float32) + 1
    reward = table[tuple(np.where(paths.counts, paths.x, 0).T)]
    return reward - (paths.chance * reward).sum()


@jax.jit
def all_slopes(flat_params, states):
    """Compute the derivatives of the log-probs of the three tokens at all places of all states (4 ** L, L) by the
    parameters (P,) -> (4 ** L * 3 L, P)."""
    unflatten = jax.flatten_util.ravel_pytree(tiny.PARAMS)[1]
    L = states.shape[1]

    def logp_of(flat_params, which):
        state = states[which // (3 * L)]
        logits = model.logits(unflatten(flat_params), tiny.with_prompt(state[None], 1), tiny.CFG)
        return jax.nn.log_softmax(logits)[0, 1:, :3].reshape(-1)[which % (3 * L)]

    # One row after the other: jax.jacrev, which makes one batch of them, is wrong here by 6% (34% in jit).
    return jax.lax.map(lambda which: jax.grad(logp_of)(flat_params, which), jnp.arange(len(states) * 3 * L))


def enumerated(case):
    """Enumerate the paths of the sampler that fills the surest token first."""
    L, params = case.length, tiny.PARAMS
    x, step, order_chance = tiny.paths(sample.Plan(order="confidence", steps=L, temperature=1.0), L)
    everything = np.ones(x.shape, bool)
    counts = np.asarray(rl.loss_mask(x, everything, END, config.Config())) if case.ends else everything
    chance = order_chance * np.asarray(tiny.probabilities(params, x, step, 1.0)).prod(1)
    state = np.where(mask_sets(L), tiny.HOLE, x[:, None]) @ tiny.code(L)  # (n, S)
    entry = ((state[..., None] * L + np.arange(L)) * 3 + x[:, None]).reshape(len(x), -1)

    def exact(adv):
        return np.asarray(tiny.flat(tiny.exact_gradient(params, x, step, order_chance, 1.0, adv)))

    slopes = np.asarray(all_slopes(tiny.flat(params), tiny.every_state(L)))
    return Enumerated(x, step, chance, counts, entry, slopes, exact)


def drawn_views(label, paths, key, copies):
    """Draw views of `copies` of all paths -> masked, weight (rows, K, L): what is masked, and what each log-prob counts
    in the estimate."""
    rows = np.tile(np.arange(len(paths.x)), copies)
    order, counts = tiny.with_prompt(paths.step[rows], -1), paths.counts[rows] | label.endswith(WHOLE)
    n = VIEWS[label.removesuffix(WHOLE)] or paths.x.shape[1]
    views = diffusion.views(key, label.split(",")[0], order >= 0, step=order, n=n,
                            counts=tiny.with_prompt(counts, False))  # fmt: skip
    masked, weight, share = (np.asarray(a)[..., 1:] for a in views)
    return masked, weight * (share * counts)[:, None]


def moments(label, paths, dots, n_keys, copies):
    """Draw views of an estimator n_keys * copies times for every path -> the mean (n, S * L) by log-probs of the
    gradient of a loss whose advantage is 1, its squared length (n,), and the number of views.

    dots: (n, S * L, S * L), the dot products of the derivatives of all log-probs of each path's text"""
    (n, L), mean, square = paths.x.shape, 0.0, 0.0
    for key in jax.random.split(jax.random.key(0), n_keys):
        masked, weight = drawn_views(label, paths, key, copies)
        place = (masked @ 2 ** np.arange(L))[..., None] * L + np.arange(L)  # (rows, K, L), into S * L
        each = np.zeros((copies * n, 2**L * L), np.float32)
        np.add.at(each, (np.arange(copies * n)[:, None, None], place), weight)
        each = each.reshape(copies, n, -1).swapaxes(0, 1)
        mean += each.mean(1) / n_keys
        square += ((each @ dots) * each).sum(2).mean(1) / n_keys
    return mean, square, masked.shape[1]


def near_truth(paths, adv, exact, mean, square):
    """Compare the mean gradient of an estimator with the exact one (P,) -> their cosine, and signal to noise of one
    completion. mean, square: of `moments`"""
    by_logp = np.zeros(len(paths.slopes), np.float32)
    np.add.at(by_logp, paths.slope, (paths.chance * adv)[:, None] * mean)
    found = by_logp @ paths.slopes
    along, variance = found @ exact / np.linalg.norm(exact), paths.chance * adv**2 @ square - found @ found
    return along / np.linalg.norm(found), along / variance**0.5


def rows(case, labels, n_keys, copies):
    """Yield for each estimator [label, views, cosine, signal to noise per view], means over REWARDS rewards."""
    paths = enumerated(case)
    rewards = [(adv, paths.exact(adv)) for adv in (advantages(paths, seed) for seed in range(2, 2 + REWARDS))]
    dots = np.stack([paths.slopes[entry] @ paths.slopes[entry].T for entry in paths.slope])
    for label in labels:
        mean, square, views = moments(label, paths, dots, n_keys, copies)
        cosine, ratio = np.mean([near_truth(paths, *known, mean, square) for known in rewards], 0)
        yield [label, views, cosine, ratio / views**0.5]
