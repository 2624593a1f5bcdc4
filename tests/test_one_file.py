"""docs/one_file.py stands alone, learns, and computes what the files of the core compute."""
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import KEY, estimated_logp, python, token_logp
from shared import views as draw_views

import diffusion
import grpo
import model
import sample
from judges import rules

sys.path.insert(0, "docs")
import one_file  # noqa: E402

CFG = model.ModelConfig(vocab_size=one_file.V, n_layer=one_file.LAYERS, n_head=one_file.H, d_model=one_file.D,
                        d_ff=one_file.F, rope_theta=100.0, norm_eps=1e-5, mask_id=one_file.MASK)  # fmt: skip


@pytest.fixture(scope="module")
def params():
    """A model that is sure of some cells: gradients of a new one would hardly differ from cell to cell."""
    drawn = one_file.init(KEY)
    return drawn | {"head": 30 * drawn["head"]}


@pytest.fixture(scope="module")
def grids():
    return jnp.array(one_file.all_grids())


def masks_of(shape, seed=1):
    return jax.random.uniform(jax.random.key(seed), shape) < jnp.linspace(0.1, 0.9, shape[0])[:, None]


def close(a, b, atol=2e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def test_its_grids_are_all_there_are_and_its_reward_is_the_sudoku_reward(grids):
    assert len(np.unique(grids, axis=0)) == 288 and one_file.is_right(grids).all()
    wrong = np.array(grids[:50]).copy()
    wrong[:, 3] = (wrong[:, 3] + 1) % 4
    both = np.concatenate([grids[:50], wrong])
    texts = ["".join(map(str, row + 1)) for row in both]
    prompts = [text[:5] + "." * 11 for text in texts]
    theirs = [rules.sudoku_all(text, prompt) == 1 for text, prompt in zip(texts, prompts, strict=True)]
    np.testing.assert_array_equal(one_file.is_right(both), theirs)


def test_its_loss_of_pretraining_and_the_gradient_are_the_cores(params, grids):
    x, (count_key, mask_key) = grids[:40], jax.random.split(KEY)
    count = jax.random.randint(count_key, (40,), 1, 17)
    masked = one_file.random_masks(mask_key, x >= 0, count)
    weight = masked * diffusion.weight(count / 16)[:, None] / x.size
    batch = diffusion.NoisyBatch(x, jnp.where(masked, one_file.MASK, x)[:, None], weight[:, None], None)
    theirs = jax.jit(jax.value_and_grad(lambda params: diffusion.loss(params, batch, CFG)[0]))(params)
    close(jax.jit(jax.value_and_grad(one_file.pretrain_loss))(params, KEY, x), theirs)


def test_its_sampler_fills_the_cells_of_the_core_in_the_same_order(params, grids):
    z = one_file.puzzles(KEY, grids, 200)
    plan = sample.Plan(steps=one_file.STEPS, rule="quota", order="confidence")
    x, _ = sample.generate(params, KEY, z, CFG, plan)
    same = (np.asarray(one_file.fill(params, KEY, z, 0.0)) == x).all(1)
    assert same.mean() > 0.97  # the core rounds confidences to 12 bits, so that few ties fall otherwise


@pytest.mark.slow
def test_its_sampler_draws_from_the_model(params, grids):
    z = jnp.tile(jnp.where(jnp.arange(16) == 5, one_file.MASK, grids[0]), (4000, 1))
    drawn = np.asarray(one_file.fill(params, KEY, z, 1.0))[:, 5]
    p = np.exp(one_file.log_probs(params, z[:1])[0, 5, :4])
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, p, atol=0.03)


def test_its_advantages_are_the_cores():
    rewards = np.random.default_rng(0).integers(0, 2, (30, 4)).astype(np.float32)
    close(one_file.advantages(rewards), grpo.advantages(rewards[None]))


def test_its_log_probs_of_completions_are_the_estimator_coupled_elbo(params, grids):
    """On the same masks; the estimator splits the weights into those of log p and the share of a token in the loss."""
    completion = masks_of((24, 16), 2).at[:, 3].set(True)
    views = draw_views(jax.random.key(5), "coupled_elbo", completion, n=1)
    theirs = (views.share * token_logp(params, grids[:24], views, CFG)).sum(1)
    close(jax.jit(one_file.completion_logp)(params, grids[:24], completion, views.masked[:, 0]), theirs, 1e-4)


@pytest.mark.slow
def test_its_policy_loss_has_the_gradient_of_the_cores_loss_without_ratio(params, grids):
    completion, adv = masks_of((24, 16), 2).at[:, 3].set(True), jnp.linspace(-1, 1, 24)
    count_key, mask_key = jax.random.split(KEY)
    count = jax.random.randint(count_key, (24,), 0, one_file.EMPTY + 1)
    part = one_file.random_masks(mask_key, completion, count)
    each = [(completion.sum(1) + 1) / (2 * jnp.maximum(m.sum(1), 1)) for m in (part, completion & ~part)]
    masked = jnp.stack([part, completion & ~part], 1)
    views = diffusion.split_weight(masked, masked * jnp.stack(each, 1)[..., None])
    weight = grpo.token_weights("dapo", completion, 16)

    def loss(params):
        logp = estimated_logp(params, grids[:24], views, CFG)
        batch = grpo.LossBatch(adv, completion, weight, weight, share=views.share)
        return grpo.loss(logp, batch, grpo.LossConfig("dapo", "none"))[0]

    ours = jax.jit(jax.grad(one_file.policy_loss))(params, KEY, grids[:24], completion, adv)
    close(ours, jax.jit(jax.grad(loss))(params))


def test_it_imports_nothing_of_the_project_and_fits_on_a_few_screens():
    source = open("docs/one_file.py").read()
    packages = {name.split(".")[0] for name in re.findall(r"^(?:import|from) (\w+)", source, re.M)}
    assert packages - sys.stdlib_module_names == {"jax", "numpy", "optax"} and len(source.splitlines()) <= 250


@pytest.mark.parametrize("words", [["--help"], ["1", "many"], ["1", "2", "3", "4"]])
def test_words_that_are_no_three_numbers_are_answered_with_what_can_be_given(words):
    done = python("docs/one_file.py", *words)
    assert done.returncode and done.stderr.startswith("\nGRPO for a masked") and "[seed [steps" in done.stderr


@pytest.mark.slow
def test_copied_elsewhere_it_runs_and_rewards_make_it_better(tmp_path):
    shutil.copy("docs/one_file.py", tmp_path)
    done = python("-I", "one_file.py", "0", "300", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sampled = [int(n) for n in re.findall(r"sampled +(\d+)%", done.stdout)]
    assert len(sampled) == 3 + 2 and sampled[-1] > sampled[2] + 5, done.stdout
    assert "wrong before GRPO and is right after" in done.stdout
