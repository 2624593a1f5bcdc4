"""variants/credit.py: advantages of steps, against the exact gradient of the expected reward over all paths of a small
sampler (tests/test_grpo.py), and against the sampler's own greedy filling."""
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_grpo as tiny

import config
import grpo
import model
import rl
import sample
from sample import Plan
from variants import credit

CFG = config.Config(model=tiny.CFG, max_prompt_len=1, max_new_tokens=3)
PLAN = Plan(order="confidence", steps=3, temperature=1.0)  # which mask is next depends on what is there


def rollout(x, step):
    """Paths x, step (n, 3) -> the Rollout that they are behind a prompt of one token."""
    tokens, step = tiny.with_prompt(x, 1), tiny.with_prompt(step, -1)
    completion = step >= 0
    return rl.Rollout(tokens, None, completion, completion, step, jnp.zeros(step.shape), jnp.zeros(len(step)))


@pytest.fixture(scope="module")
def paths():
    """All paths: their chances, rewards, what the policy thinks at each step, and b(x_t) of each token."""
    x, step, chance = tiny.paths(PLAN)
    r, reward = rollout(x, step), tiny.REWARD[tuple(x.T)]
    p = chance * np.asarray(tiny.probabilities(tiny.PARAMS, x, step, 1.0)).prod(1)
    steps = credit.look_at_steps(tiny.PARAMS, r, CFG)
    fill = steps.fills[..., 1:]
    b = tiny.REWARD[tuple(np.moveaxis(fill, -1, 0))].T  # (n, S)
    exact = tiny.flat(tiny.exact_gradient(tiny.PARAMS, x, step, chance, 1.0, reward))
    return types.SimpleNamespace(x=x, step=step, r=r, p=p, reward=reward, steps=steps, b=b, exact=exact,
                                 b_token=np.asarray(credit.at_tokens(b, r, 0.0)))  # fmt: skip


def gradient(all_of, adv, counts=True, p=None):
    """The gradient of the expected reward as the loss has it, with advantages (n,), or (n, 4) of the tokens."""
    p = all_of.p if p is None else p
    return -tiny.flat(tiny.grpo_gradient(tiny.PARAMS, all_of.x, all_of.step, p, 1.0, jnp.asarray(adv), counts))


# ---- the texts before each step --------------------------------------------------------------------------------------


def test_the_fill_of_a_text_is_the_samplers_at_temperature_0_in_one_step(paths):
    plan = Plan(order="left", steps=1, temperature=0.0)
    assert paths.steps.fills.shape == (3, *paths.r.tokens.shape)
    for t in range(3):
        z = jnp.where(paths.r.step >= t, tiny.HOLE, paths.r.tokens)
        x, trace = sample.generate(tiny.PARAMS, jax.random.key(0), z, tiny.CFG, plan)
        np.testing.assert_array_equal(paths.steps.fills[t], x)
        assert (np.asarray(trace["n_steps"]) == 1).all()
    assert len(np.unique(paths.steps.fills[0], axis=0)) == 1  # before the first step all texts are equal
    assert (paths.steps.fills[2] != np.asarray(paths.r.tokens)).any(1).mean() > 0.5


def test_the_entropy_of_a_step_is_the_mean_over_the_tokens_that_it_committed_and_that_count():
    x = np.array([[0, 1, 2], [2, 1, 0]])
    r = rollout(x, np.array([[0, 0, 1], [1, 0, 3]]))
    r = r._replace(counts=r.counts.at[1, 2].set(False))  # the token of step 1 in row 1
    steps = credit.look_at_steps(tiny.PARAMS, r, CFG)
    z = [[1, 3, 3, 3], [1, 0, 1, 3], [1, 3, 1, 3], [1, 2, 1, 3]]
    q = jax.nn.softmax(model.logits(tiny.PARAMS, jnp.array(z), tiny.CFG))
    h = np.asarray(-jnp.sum(q * jnp.log(jnp.maximum(q, 1e-30)), -1))
    expected = [[h[0, 1:3].mean(), h[1, 3], -np.inf, -np.inf], [-np.inf, h[2, 1], -np.inf, h[3, 3]]]
    np.testing.assert_allclose(steps.entropy, expected, atol=1e-5)


def test_a_rollout_without_tokens_in_the_loss_has_no_steps():
    r = rollout(np.zeros((2, 3), int), np.zeros((2, 3), int))
    r = r._replace(counts=r.counts & False)
    steps = credit.look_at_steps(tiny.PARAMS, r, CFG)
    assert steps.fills.shape == (0, 2, 4) and steps.entropy.shape == (2, 0)
    assert credit.choose_steps(steps.entropy, 2).shape == (2, 0)
    assert not credit.at_tokens(np.zeros((2, 0), bool), r, False).any()


def test_the_steps_with_the_largest_entropy_are_chosen_the_earlier_of_equals():
    nothing = -np.inf
    entropy = np.array([[0.1, 0.5, 0.3, nothing], [nothing, 0.2, 0.2, 0.2], [nothing] * 4])
    chosen = [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(credit.choose_steps(entropy, 2), np.array(chosen, bool))
    np.testing.assert_array_equal(credit.choose_steps(entropy, None), entropy > nothing)
    np.testing.assert_array_equal(credit.choose_steps(entropy, 9), entropy > nothing)


# ---- the gradient, exactly -------------------------------------------------------------------------------------------


def test_with_all_steps_the_reward_of_the_text_before_a_step_is_a_baseline(paths):
    """R - b(x_t) has the gradient of the expected reward, for every weight of the baseline; EGSPO-SA's own formula,
    (R - mean) + lam (R - b), has 1 + lam times it."""
    R = paths.reward[:, None]
    tiny.close(gradient(paths, paths.reward), paths.exact)
    for w in (0.3, 1.0):
        tiny.close(gradient(paths, R - (1 - w) * 0.7 - w * paths.b_token), paths.exact)
    tiny.close(gradient(paths, (R - 0.7) + 0.5 * (R - paths.b_token)), 1.5 * paths.exact, 3e-5)


def test_a_baseline_that_reads_the_text_after_the_step_is_biased(paths):
    """So the test above would see it."""
    after = np.concatenate([paths.b[:, 1:], paths.reward[:, None]], 1)
    wrong = gradient(paths, paths.reward[:, None] - np.asarray(credit.at_tokens(after, paths.r, 0.0)))
    assert np.linalg.norm(wrong - paths.exact) > 0.3 * np.linalg.norm(paths.exact)


def test_with_the_groups_mean_the_gradient_is_short_by_what_a_completion_takes_from_itself(paths):
    """Over all pairs of paths (G = 2): 1 - (1 - w) / G times the exact gradient with adv_baseline=mean, exact with
    loo."""
    w, G = 0.25, 2
    for baseline, factor in ("mean", 1 - (1 - w) / G), ("loo", 1.0):
        pairs = np.stack(np.broadcast_arrays(paths.reward[:, None], paths.reward), -1)  # (n, n, G)
        adv = grpo.advantages(jnp.asarray(pairs.reshape(1, -1, G)), baseline=baseline, scale="none")
        mine = np.asarray(adv)[:, 0].reshape(pairs.shape[:2]) @ paths.p  # (n,) mean over the other completion
        by_step = (1 - w) * mine[:, None] + w * (paths.reward[:, None] - paths.b_token)
        tiny.close(gradient(paths, by_step), factor * paths.exact, 3e-5)


def test_steps_chosen_by_entropy_are_biased_because_later_steps_decide_which(paths):
    """Which steps of a path are the most uncertain depends on the tokens of the others. So even a constant reward has a
    gradient, and a baseline changes the mean. Choosing a step by what was there before it has neither."""
    R, length = paths.reward[:, None], np.linalg.norm(paths.exact)
    baselines = {"none": 0.0, "mean": (paths.p * paths.reward).sum(), "fill": paths.b_token}

    def of(chosen):
        """Length of the gradient of a constant reward of 1, and the gradient with each baseline."""
        counts = np.asarray(credit.at_tokens(chosen, paths.r, False))[:, 1:]
        found = {name: np.asarray(gradient(paths, R - b, counts)) for name, b in baselines.items()}
        return np.linalg.norm(gradient(paths, np.ones(len(R)), counts)) / length, found

    for k in (1, 2, 3):
        constant, found = of(credit.choose_steps(paths.steps.entropy, k))
        cosine = {name: round(float(g @ paths.exact / np.linalg.norm(g) / length), 3) for name, g in found.items()}
        print(f"{k} of 3: a constant reward has {constant:.2f} of the exact length, cosines {cosine}")
        moved = np.linalg.norm(found["fill"] - found["none"]) / length
        assert (constant > 0.02 and moved > 0.02) == (k < 3)
    constant, found = of(paths.steps.entropy > np.median(paths.steps.entropy))
    assert constant < 1e-4 and np.linalg.norm(found["fill"] - found["none"]) < 1e-4


def test_the_variance_with_each_baseline(paths):
    """Of the gradient of one path. b(x_t) helps as far as the fill's reward says what the text will earn."""
    mean = (paths.p * paths.reward).sum()
    value = values(paths)
    R, best = paths.reward[:, None], np.asarray(credit.at_tokens(value, paths.r, 0.0))

    def variance(adv):
        each = [gradient(paths, np.broadcast_to(adv, (len(paths.x), 4)), p=row) for row in np.eye(len(paths.x))]
        square = sum(p * float(g @ g) for p, g in zip(paths.p, each, strict=True))
        return (square - float(paths.exact @ paths.exact)) / float(paths.exact @ paths.exact)

    found = {"none": variance(R), "mean": variance(R - mean), "fill": variance(R - paths.b_token),
             "third": variance(R - 2 / 3 * mean - paths.b_token / 3), "value": variance(R - best)}  # fmt: skip
    print({name: round(far, 2) for name, far in found.items()})
    assert found["value"] < min(found["mean"], found["fill"], found["third"])
    assert found["third"] < max(found["mean"], found["fill"])


def values(paths):
    """The exact value (n, S) of the text before each step: the expected reward of all paths that pass through it."""
    out = np.zeros(paths.b.shape)
    for t in range(3):
        state = np.where(paths.step >= t, tiny.HOLE, paths.x) @ tiny.CODE
        same = state[:, None] == state
        out[:, t] = same @ (paths.p * paths.reward) / (same @ paths.p)
    return out
