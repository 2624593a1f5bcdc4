"""Samplers of other people's models, to the token and the step, and the plans their authors published numbers with.

The texts were written by the authors' own samplers in torch, with the network of tests/fixtures/sdar under transformers'
Qwen3 and the masks of these samplers. The mask was banned: dllm at ca17675 (its three samplers and its quota).
"""
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import config
import rl
import sample
from system import checkpoint
from variants import dllm

KEY = jax.random.key(0)
DLLM = json.load(open("tests/fixtures/dllm.json"))
CASES = [(kind, n) for kind in ("sample", "infill", "blocks") for n in range(len(DLLM[kind]))]
QUICK = {("sample", 2), ("infill", 1), ("blocks", 5)}


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """Each plan is compiled by itself, and these are small."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def network(**switches):
    params, cfg = checkpoint.load("tests/fixtures/sdar")
    return dataclasses.replace(cfg, eos_id=None, end_ids=(), **switches), params


def masked(case, mask_id):
    """Return the text of a case with its masks."""
    step = np.array(case["step"])
    return np.where(step >= 0, mask_id, case["x"])


def check(rule, cases, cfg, params, **plan):
    """Fill texts with one plan, padded on the left to one length, and compare tokens and the step of each."""
    T = max(len(case["x"]) for case in cases) + 1
    before = [T - len(case["x"]) for case in cases]
    z = np.array([np.pad(masked(case, cfg.mask_id), (n, 0)) for n, case in zip(before, cases, strict=True)])
    valid = np.arange(T) >= np.array(before)[:, None]
    plan = {name: cases[0].get(name) for name in ("steps", "block_len")} | plan
    plan = sample.Plan(rule=rule, **plan)
    x, trace = sample.generate(params, KEY, jnp.array(z), cfg, plan, jnp.array(valid))
    for row, n, case in zip(range(len(cases)), before, cases, strict=True):
        np.testing.assert_array_equal(x[row, n:], case["x"])
        _, order = np.unique(trace["step"][row, n:], return_inverse=True)  # passes that only store count as steps
        np.testing.assert_array_equal(order - 1, case["step"])


def test_the_quota_is_dllms_to_the_last_half():
    n, steps, expected = zip(*DLLM["quota"], strict=True)
    hole, counts = np.arange(max(n)) < np.array(n)[:, None], []
    plan, steps = sample.Plan(rule="dllm", steps=max(steps)), np.array(steps)[:, None]
    while hole.any():
        rank, i = np.cumsum(hole, 1) - 1, np.full_like(steps, len(counts))
        fills = hole & np.asarray(dllm.dllm(sample.Block(jnp.array(hole), rank, None, None, i, steps), plan))
        hole &= ~fills
        counts.append(fills.sum(1))
    assert [[k for k in row if k] for row in np.array(counts).T.tolist()] == list(expected)


@pytest.mark.parametrize("kind, n", [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES])
def test_texts_and_steps_are_those_of_dllms_samplers(kind, n):
    check("dllm", [DLLM[kind][n]], *network(**({} if kind == "blocks" else {"block_causal": None})))


def test_rows_of_one_batch_have_blocks_of_their_own_and_an_exact_cache():
    check("dllm", [case for case in DLLM["blocks"] if case["steps"] == 4], *network(), cache="prefix")


@pytest.mark.parametrize("plan, switches, said", [
    (dict(cache="dual"), dict(block_causal=None), "cache='dual': dllm's sampler has none, except for block models"),
    (dict(block_len=3), {}, "block_len=3: expected a divisor of block_causal=4"),
    ({}, dict(causal_text=True), "rule='dllm' is for models that fill in masks"),
])  # fmt: skip
def test_what_dllm_has_no_sampler_for_is_refused(plan, switches, said):
    cfg, params = network(**switches)
    with pytest.raises(ValueError, match=said):
        check("dllm", DLLM["blocks"][:1], cfg, params, **plan)


def test_a_run_that_would_score_other_blocks_than_were_sampled_is_refused():
    with pytest.raises(ValueError, match="counts the blocks of a block model from the prompt's end"):
        rl.scoring_model(config.Config(rule="dllm", model=network()[0]))
