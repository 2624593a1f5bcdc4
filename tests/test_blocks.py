"""Models that are causal over blocks: SDAR's and Fast-dLLM v2's own outputs, and exact values by enumeration."""
import dataclasses
import functools
import itertools
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffusion
import disk
import model
import sample

SDAR, FAST = "tests/fixtures/sdar", "tests/fixtures/fastdllm2"
KEY = jax.random.key(0)
CFG = model.ModelConfig(vocab_size=5, n_layer=2, n_head=2, d_model=16, d_ff=32, block_causal=2, qk_norm=True, mask_id=4,
                        eos_id=3)  # fmt: skip
FAR = jax.tree.map(lambda w: w + 0.3 * jax.random.normal(KEY, w.shape), model.init(KEY, CFG))  # sure of something
X = jax.random.randint(jax.random.key(1), (3, 6), 0, 4)


def of(**switches):
    return dataclasses.replace(CFG, **switches)


@functools.cache
def fixture(folder):
    return *disk.load(folder), np.load(f"{folder}/expected.npz")


def but_mask(x, mask_id=308):
    return np.delete(np.asarray(x), mask_id, -1)


def close(a, b, tol=1e-4):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=0)


# ---- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "odd"])
@pytest.mark.parametrize("folder", [SDAR, FAST])
def test_logits_equal_those_of_the_original_code(folder, kind):
    params, cfg, e = fixture(folder)
    ours, theirs = model.logits(params, e[f"ids_{kind}"], cfg), e[f"logits_{kind}"]
    close(but_mask(ours[:, 1:]), but_mask(theirs[:, :-1] if cfg.shift else theirs[:, 1:]))


def test_the_loss_of_a_noisy_copy_beside_the_clean_one_equals_sdars():
    params, cfg, e = fixture(SDAR)
    labels = e["train_labels"]
    weight = e["train_hole"] / np.where(e["train_p"], e["train_p"], 1) / (labels != -100).sum()
    batch = dict(x=e["train_ids"], z=e["train_noisy"], weight=weight.astype(np.float32), valid=None)
    close(diffusion.loss(params, batch, cfg)[0], e["train_loss_no_mask_id"])


@functools.partial(jax.jit, static_argnames="cfg")
def one_pass(params, z, x, cfg, valid):
    return diffusion.gather_logp(model.logits(params, z, cfg, valid), x)


def alone(params, x, M, cfg, valid=None):
    """log p of every token of x (N, T) under M (N, T), each block read from the text before it by a pass of its own."""
    valid = jnp.ones(x.shape, bool) if valid is None else valid
    block = model.positions_of(valid, x.shape[1]) // cfg.block_causal
    masked = lambda n: jnp.where(M & (block >= n), cfg.mask_id, x)
    parts = [jnp.where(block == n, one_pass(params, masked(n), x, cfg, valid), 0) for n in range(int(block.max()) + 1)]
    return np.asarray(sum(parts))


@pytest.mark.parametrize("switches", [dict(), dict(shift=True), dict(window=3)])
def test_one_clean_copy_serves_all_views_as_a_pass_for_every_block_does(switches):
    cfg, valid = of(**switches), jnp.arange(6) >= jnp.array([[0], [1], [2]])  # padding: columns are no positions
    M = valid & (jax.random.uniform(KEY, (4, 3, 6)) < 0.6)
    four = lambda a: jnp.tile(a, (4, 1))
    want = alone(FAR, four(X), M.reshape(12, 6), cfg, four(valid)).reshape(M.shape)
    for chunk in (None, 2, 6):  # all views of all texts, half of those of one, all of one and half of the next
        logp = diffusion.view_logp(FAR, X, M, cfg, valid, 0, chunk)[0]
        close(np.where(M, logp, 0), np.where(M, want, 0), 2e-5)


def test_padding_on_the_left_does_not_move_the_blocks():
    padded = jnp.pad(X, ((0, 0), (3, 0)))
    valid = jnp.broadcast_to(jnp.arange(9) >= 3, padded.shape)
    close(model.logits(FAR, padded, CFG, valid)[:, 3:], model.logits(FAR, X, CFG), 1e-5)


def test_a_block_of_the_whole_text_is_the_bidirectional_model():
    both = lambda cfg: model.logits(FAR, X, cfg), of(block_causal=6), of(block_causal=None)
    close(both[0](both[1]), both[0](both[2]), 2e-6)
    batch = {"tokens": X, "hole": jnp.ones(X.shape, bool), "valid": None}
    a, b = (diffusion.noise(KEY, batch, cfg, paired=True) for cfg in both[1:])
    sort = lambda x: np.asarray(x)[np.lexsort(np.asarray(x).T)]  # pairs are together, or all first halves first
    np.testing.assert_array_equal(sort(a["z"]), sort(b["z"]))
    np.testing.assert_array_equal(sort(a["weight"]), sort(b["weight"]))
    close(diffusion.loss(FAR, a, both[1])[0], diffusion.loss(FAR, b, both[2])[0], 2e-6)


# ---- the bound -------------------------------------------------------------------------------------------------------


def test_blocks_of_one_are_an_autoregressive_model():
    cfg, texts = of(block_causal=1), jnp.array(list(itertools.product(range(4), repeat=3)))
    batch = {"tokens": texts, "hole": jnp.ones(texts.shape, bool), "valid": None}
    noisy = diffusion.noise(KEY, batch, cfg)
    assert (noisy["z"] == cfg.mask_id).all()  # the bound needs no luck
    nll = -diffusion.view_logp(FAR, texts, jnp.ones((1, *texts.shape), bool), cfg)[0][0].sum(1)
    close(diffusion.loss(FAR, noisy, cfg)[0], nll.sum() / texts.size, 1e-5)
    close(jnp.exp(-nll).sum(), 1, 1e-5)  # it is a distribution over all texts
    close(nll, -alone(FAR, texts, True, cfg).sum(1), 1e-5)


def exact_bound(params, x, cfg):
    """The ELBO of x (T,): over the blocks, the mean over all orders in which a block's tokens can come."""
    T, b, cases = len(x), cfg.block_causal, []  # what is masked, which token is read then, and its share
    for first in range(0, T, b):
        orders = list(itertools.permutations(range(first, min(first + b, T))))
        cases += [(np.isin(np.arange(T), order[n:]), i, 1 / len(orders)) for order in orders for n, i in enumerate(order)]
    M, at, share = map(np.array, zip(*cases, strict=True))
    logp = alone(params, jnp.tile(x, (len(M), 1)), M, cfg)
    return (share * logp[np.arange(len(M)), at]).sum()


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("b", [2, 3])
def test_the_loss_is_on_average_the_exact_bound(b, paired):
    cfg, x = of(block_causal=b), X[0, :5]
    rows = jnp.tile(x, (512, 1))
    batch = {"tokens": rows, "hole": jnp.ones(rows.shape, bool), "valid": None}
    got = diffusion.loss(FAR, diffusion.noise(KEY, batch, cfg, paired=paired), cfg)[0]
    close(got, -exact_bound(FAR, x, cfg) / 5, 0.02)


def test_of_a_uniform_model_the_loss_is_log_v_for_every_draw():
    even = FAR | {"head": jnp.zeros_like(FAR["head"])}
    hole = jnp.arange(6) >= jnp.array([[0], [3], [5]])
    batch = {"tokens": X, "hole": hole, "valid": None}
    for paired in (False, True):
        close(diffusion.loss(even, diffusion.noise(KEY, batch, CFG, paired=paired), CFG)[0], np.log(4), 1e-5)


@pytest.mark.parametrize("method", ["elbo", "coupled_elbo"])
def test_estimators_with_a_number_of_masks_for_a_row_bound_each_block(method):
    x = jnp.tile(X[:1], (256, 1))
    M, w, s = diffusion.views(KEY, method, jnp.ones(x.shape, bool), n=2, block=diffusion.blocks(None, 6, CFG))
    logp = (s * diffusion.token_logp(FAR, x, M, w, CFG)).sum(1)
    close(logp.mean(), exact_bound(FAR, X[0], CFG), 0.15)


def test_trace_takes_the_same_step_of_every_block_as_one_view():
    step = jnp.array([[-1, 3, 7, 5, 9, 8]])
    hole = step >= 0
    M, w, s = diffusion.views(KEY, "trace", hole, step, n=2, block=diffusion.blocks(None, 6, CFG))
    np.testing.assert_array_equal(M[:, 0], [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(w[:, 0], [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(s, hole)


def test_trace_gives_the_log_probs_of_sdars_sampler_on_its_canvas():
    params, cfg, e = fixture(SDAR)
    for r in range(5):
        x, step = jnp.array(e[f"canvas_{r}"])[None], jnp.array(e[f"canvas_step_{r}"])[None]
        M, w, _ = diffusion.views(KEY, "trace", step >= 0, step, n=4, block=diffusion.blocks(None, x.shape[1], cfg))
        free = dataclasses.replace(cfg, mask_id=None)  # theirs keeps the mask in the softmax
        l = model.readout(params, model.features(params, jnp.where(M[:, 0], 308, x), cfg, clean=x), free)
        logp = (w[:, 0] * diffusion.gather_logp(l, jnp.broadcast_to(x, M[:, 0].shape))).sum(0)
        close(logp, np.where(step[0] >= 0, e[f"canvas_logp_{r}"], 0), 1e-5)
