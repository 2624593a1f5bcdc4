"""variants/unmasking.py: a policy that says which masks to fill, its log-probs, and that GRPO trains nothing else."""
import dataclasses
import functools
import itertools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import checkpoint
import config
import model
import sample
import train
from variants import unmasking

KEY = jax.random.key(0)
CFG = model.ModelConfig(vocab_size=6, n_layer=1, n_head=2, d_model=16, d_ff=32, mask_id=5)
RIGHT = dict(objective="grpo", init_from="x", rewards=("exact",), rule="learned", logp_est="decisions",
             weight_decay=0.0, score_after_end=True)  # fmt: skip
RUN = config.Config(**RIGHT, max_prompt_len=1, max_new_tokens=3, model=CFG)
GREEDY_TOKENS = sample.Plan(rule="learned", temperature=1.0, top_k=1)


def far_from_start(tree, key, scale):
    leaves, shape = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return shape.unflatten([a + scale * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)])


@functools.cache
def wild():
    """The params of a denoiser that is sure of something, and of a policy that has learned something."""
    params = unmasking.with_policy(model.init(KEY, CFG), KEY, RUN)
    denoiser = far_from_start({k: v for k, v in params.items() if k != unmasking.NAME}, jax.random.key(1), 0.3)
    policy = far_from_start(params[unmasking.NAME], jax.random.key(2), 0.3)
    policy |= {"decide_by_facts": jnp.array([0.1, 0.2, 0.3]), "limit": jnp.array(0.5)}
    return denoiser | {unmasking.NAME: policy}


def orders(n):
    """Every way to fill n masks, some at each step: the step of each mask."""
    return [s for s in itertools.product(range(n), repeat=n) if set(s) == set(range(max(s) + 1))]


def rollout(tokens, step):
    """A Rollout of prompts of one token, each with three more that were filled at these steps."""
    tokens, step = jnp.asarray(tokens), jnp.pad(jnp.asarray(step), ((0, 0), (1, 0)), constant_values=-1)
    completion = step >= 0
    return types.SimpleNamespace(tokens=tokens, valid=None, completion=completion, counts=completion, step=step)


def test_the_probabilities_of_all_orders_sum_to_one():
    assert len(orders(3)) == 13
    r = rollout(np.tile([1, 2, 0, 4], (13, 1)), orders(3))
    logp, entropy = unmasking.log_probs(wild(), r, RUN)
    p = np.exp(np.asarray(logp.sum(1)))
    assert p.sum() == pytest.approx(1, abs=1e-5) and p.std() > 0.01, "the policy prefers some orders"
    assert not logp[:, 0].any() and (np.asarray(entropy[:, 1:]) > 0).all() and (np.asarray(entropy) < np.log(2)).all()


def test_orders_are_sampled_as_often_as_their_log_probs_say():
    n = 8000
    z = jnp.tile(jnp.array([[1, 5, 5, 5]]), (n, 1))
    x, found = sample.generate(wild(), KEY, z, CFG, GREEDY_TOKENS)
    rows, counts = np.unique(np.concatenate([x, found["step"]], 1), axis=0, return_counts=True)
    logp, _ = unmasking.log_probs(wild(), rollout(rows[:, :4], rows[:, 5:]), RUN)
    expected = n * np.exp(np.asarray(logp.sum(1)))
    assert expected.sum() == pytest.approx(n, rel=0.01), "what was never drawn is rare"
    assert len(rows) > 5 and (np.abs(counts - expected) < 4.5 * np.sqrt(expected) + 1).all()


def test_a_new_policy_is_the_rule_threshold():
    params = wild() | {unmasking.NAME: unmasking.init(KEY, CFG.d_model)}
    z = jnp.full((20, 4), 5).at[:, 0].set(jnp.arange(20) % 5)
    learned = sample.generate(params, KEY, z, CFG, sample.Plan(rule="learned", threshold=0.5))
    known = sample.generate(params, KEY, z, CFG, sample.Plan(rule="threshold", threshold=unmasking.START))
    np.testing.assert_array_equal(learned[0], known[0])
    np.testing.assert_array_equal(learned[1]["step"], known[1]["step"])


def test_only_the_policy_has_a_gradient():
    r = rollout(np.tile([1, 2, 0, 4], (13, 1)), orders(3))
    grads = jax.grad(lambda params: (unmasking.log_probs(params, r, RUN)[0].sum(1) * jnp.arange(13)).sum())(wild())
    policy = grads.pop(unmasking.NAME)
    assert not any(np.any(g) for g in jax.tree.leaves(grads)) and all(np.any(g) for g in jax.tree.leaves(policy))


def test_the_expected_reward_has_the_gradient_of_the_log_probs():
    """The policy gradient theorem, over all 13 orders: a reward for few steps."""
    r = rollout(np.tile([1, 2, 0, 4], (13, 1)), orders(3))
    rewards = -np.max(orders(3), 1)
    limit = wild()[unmasking.NAME]["limit"]

    def logp(limit):
        policy = wild()[unmasking.NAME] | {"limit": limit}
        return unmasking.log_probs(wild() | {unmasking.NAME: policy}, r, RUN)[0].sum(1)

    h = 1e-2
    slope = (np.exp(logp(limit + h)) - np.exp(logp(limit - h))) @ rewards / (2 * h)
    p = np.exp(logp(limit))
    gradients = jax.jacobian(logp)(limit)
    assert (p * rewards * np.asarray(gradients)).sum() == pytest.approx(slope, rel=1e-2) and abs(slope) > 0.01


def test_a_model_without_a_policy_says_what_to_train():
    with pytest.raises(ValueError, match="no policy that says which masks to fill.*config/sudoku_order.py"):
        sample.generate(model.init(KEY, CFG), KEY, jnp.full((1, 4), 5), CFG, GREEDY_TOKENS)


@pytest.mark.parametrize("wrong, said", [
    (dict(rule="threshold"), "rule='threshold': logp_est='decisions' trains the policy"),
    (dict(weight_decay=0.1), "set weight_decay=0.0"), (dict(score_after_end=False), "set score_after_end=True"),
    (dict(order="sampled"), "set order='confidence'"), (dict(logp_scale=2.0), "set logp_scale=1.0"),
    (dict(logp_est="trace"), "train its policy, with logp_est='decisions'"),
    (dict(objective="pretrain", logp_est="trace", init_from=None), "only objective='grpo' trains"),
    (dict(block_len=4), "set block_len=None"), (dict(nll_coef=0.1), "set nll_coef=0.0")])  # fmt: skip
def test_decisions_are_all_that_is_trained(wrong, said):
    config.Config(**RIGHT)
    with pytest.raises(ValueError, match=said):
        config.Config(**RIGHT | wrong)


def test_a_policy_reads_probabilities_as_they_are():
    with pytest.raises(ValueError, match="cache='dual'.*rule='learned'"):
        sample.begin(wild(), KEY, jnp.full((1, 4), 5), CFG, dataclasses.replace(GREEDY_TOKENS, cache="dual"), None)
    blocks = dataclasses.replace(CFG, block_causal=2)
    with pytest.raises(ValueError, match="rule='learned' is for denoisers that see the whole text"):
        sample.begin(wild(), KEY, jnp.full((1, 4), 5), blocks, GREEDY_TOKENS, None)


@pytest.mark.slow
def test_a_run_changes_the_policy_alone_and_goes_on_from_its_checkpoint(tmp_path):
    rows = [json.dumps({"prompt": f"{i}", "completion": f"{i}{i}"}) + "\n" for i in range(10)]
    for split in "train", "val":
        (tmp_path / f"{split}.jsonl").write_text("".join(rows))
    common = dict(dataset=str(tmp_path), max_prompt_len=1, max_new_tokens=3, batch_size=8, warmup_iters=0,
                  lr_schedule="constant", rewards=("exact",), eval_size=4, log_samples=0,
                  model=model.ModelConfig(n_layer=1, n_head=2, d_model=32))  # fmt: skip
    train.train(config.Config(**common, out_dir=f"{tmp_path}/base", max_iters=60, eval_interval=60, learning_rate=3e-3))
    tuned = config.Config(**common | dict(
        objective="grpo", init_from=f"{tmp_path}/base", rule="learned", logp_est="decisions", weight_decay=0.0,
        score_after_end=True, group_size=4, learning_rate=1e-2, rewards=("exact", "passes"), temperature=1.0,
        log_interval=1, save_interval=2, eval_interval=4, max_iters=4, updates_per_rollout=2, ratio_level="token",
    ))  # fmt: skip
    whole, halves = (dataclasses.replace(tuned, out_dir=f"{tmp_path}/{name}") for name in ("whole", "halves"))
    train.train(whole)
    train.train(dataclasses.replace(halves, max_iters=2))
    train.train(dataclasses.replace(halves, resume=True))
    before = checkpoint.load(f"{tmp_path}/base")[0]
    (after, _), (again, _) = checkpoint.load(whole.out_dir), checkpoint.load(halves.out_dir)
    jax.tree.map(np.testing.assert_array_equal, after, again)
    policy = after.pop(unmasking.NAME)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert np.any(policy["decide"]), "the policy has learned something"
    log = [json.loads(line) for line in open(f"{whole.out_dir}/metrics.jsonl")]
    assert max(line.get("ratio_max", 1) for line in log) > 1
