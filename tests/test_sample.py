"""sample.py: equal to LLaDA's and Dream's samplers where they are deterministic, to enumeration where they are not."""
import dataclasses
import itertools
import json
import os
import re
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import KEY, TINY, completed, logits_of, refused, sharp, slow

import data
import diffusion
import model
import sample
from checkpoints import huggingface
from sample import Plan, generate, row_keys
from system import kernels, sharding, stretches
from system.filters import nucleus
from system.tokens import foreign
from tools import complete
from variants import caches, repetition_penalty, rules  # noqa: F401

V, EOS, MASK = TINY.vocab_size, TINY.eos_id, TINY.mask_id
PARAMS = sharp(TINY, 9)


def holes(*rows):
    """Rows as text, _ for a hole: "01__" -> z (B, T)."""
    return jnp.array([[MASK if c == "_" else int(c) for c in row] for row in rows], jnp.int32)


def check_filled(z, x, trace):
    z, x, hole = np.asarray(z), np.asarray(x), np.asarray(z) == MASK
    assert (x[~hole] == z[~hole]).all() and not (x == MASK).any()
    assert (np.asarray(trace["step"])[~hole] == -1).all() and (np.asarray(trace["logp"])[~hole] == 0).all()
    assert (np.asarray(trace["step"])[hole] >= 0).all() and (np.asarray(trace["logp"])[hole] <= 0).all()
    assert np.asarray(trace["step"]).max() < trace["n_steps"] or not hole.any()


# ---- LLaDA, to the token ----
SETTINGS = {
    "s32_b32": Plan(steps=32, block_len=32), "s16_b32": Plan(steps=16, block_len=32), "s32_b8": Plan(block_len=8),
    "s16_b8": Plan(steps=16, block_len=8), "s12_b8": Plan(steps=12, block_len=8),
}  # fmt: skip


@pytest.mark.parametrize("name", [n if n == "s12_b8" else slow(n) for n in SETTINGS])
def test_greedy_tokens_and_their_order_are_those_of_lladas_generate(llada, name):
    params, cfg, e = llada
    z = np.concatenate([e["prompt_ids"], e["prompt_full"]]).astype(np.int32)  # 3 rows padded on the left, 3 not
    z = np.concatenate([z, np.full((6, 32), cfg.mask_id, np.int32)], 1)
    valid = np.concatenate([np.concatenate([e["prompt_mask"], np.ones((3, 24))]), np.ones((6, 32))], 1).astype(bool)
    x, trace = generate(params, KEY, z, cfg, SETTINGS[name], valid)
    np.testing.assert_array_equal(x, np.concatenate([e[f"gen_pad_{name}"], e[f"gen_full_{name}"]]))
    states = np.concatenate([e[f"traj_pad_{name}"], e[f"traj_full_{name}"]], 1)  # (forwards + 1, 6, 56)
    for n, state in enumerate(states):
        np.testing.assert_array_equal(np.where(trace["step"] >= n, cfg.mask_id, x), state)
    assert trace["n_steps"] == SETTINGS[name].steps


@pytest.mark.parametrize("name", [slow("thr"), slow("prefix"), slow("prefix_thr"), slow("dual"), "dual_thr"])
def test_with_a_threshold_and_a_cache_tokens_and_forward_passes_are_those_of_fast_dllm(llada, name):
    params, cfg, e = llada
    cache, rule = name.removesuffix("thr").rstrip("_") or "none", "threshold" if "thr" in name else "quota"
    z = np.concatenate([e["prompt_full"][:1], np.full((1, 32), cfg.mask_id)], 1).astype(np.int32)
    x, trace = generate(params, KEY, z, cfg, Plan(rule=rule, steps=32, block_len=8, threshold=0.25, cache=cache))
    np.testing.assert_array_equal(x, e[f"fast_{name}"])
    assert trace["n_steps"] == e["fast_nfe"][["thr", "prefix", "prefix_thr", "dual", "dual_thr"].index(name)]


@pytest.mark.slow
def test_random_order_is_lladas_when_it_gets_the_same_random_numbers(llada, monkeypatch):
    (params, cfg, e), plan = llada, Plan(order="random", steps=16, block_len=16)
    z = np.concatenate([e["prompt_full"], np.full((3, 32), cfg.mask_id)], 1).astype(np.int32)
    keys, s = row_keys(KEY, len(z)), sample.begin(jnp.array(z))

    @jax.jit
    def step(s, u):
        monkeypatch.setitem(sample.ORDERS, "random", lambda *_: u.reshape(-1))
        return sample.fill_step.__wrapped__(params, keys, s, cfg, plan, None)

    for u, start in zip(e["random_u"], [24] * 8 + [40] * 8, strict=True):
        s = step(s, u[:, start:start + 16])
    np.testing.assert_array_equal(s.z, e["gen_full_random_s16_b16"])


def test_the_quota_is_lladas_get_num_transfer_tokens(llada):
    e = llada[2]
    for (n, steps), expected in zip(e["ntt_args"], e["ntt_out"], strict=True):
        hole, counts = np.arange(n)[None] >= 0, []
        for i in range(steps):
            block = sample.Block(hole, np.cumsum(hole, 1) - 1, None, None, i, steps)
            commit = hole & np.asarray(sample.quota(block, None))
            counts.append(int(commit.sum()))
            hole = hole & ~commit
        assert counts == [k for k in expected if k >= 0]


@pytest.mark.parametrize("T", [0.3, slow(1.0)])
def test_a_temperature_draws_what_lladas_gumbel_noise_draws_as_often(llada, T):
    (_, cfg, e), n = llada, 4000
    l, u = jnp.asarray(e["gumbel_logits"][0, 0]), jax.random.uniform(jax.random.key(1), (n, cfg.vocab_size))
    ours = jax.jit(jax.vmap(lambda key: kernels.draw(key, jax.nn.softmax(sample.filtered(l, Plan(temperature=T))))))
    gumbel = lambda l, u: np.argmax(np.asarray(l, np.float64) - T * np.log(-np.log(np.asarray(u, np.float64))), -1)
    assert gumbel(e["gumbel_logits"], e["gumbel_u"]).tolist() == e[f"gumbel_argmax_T{T}"].tolist()  # that is LLaDA's
    theirs = gumbel(l, u)
    share = lambda tokens: np.bincount(tokens, minlength=cfg.vocab_size) / n
    off = np.abs(share(ours(row_keys(KEY, n))) - share(theirs))
    assert (off < 5 * np.sqrt(2 * np.maximum(share(theirs), 1 / n) / n)).all()


# ---- Dream's schedule ----
def dream_counts(n, steps):
    counts = []
    for fraction in rules.dream_fractions(steps):
        counts.append(int(np.float32(n - sum(counts)) * fraction))
    return counts


@pytest.mark.slow
def test_dreams_counts_are_those_of_its_loop_in_torch():
    torch = pytest.importorskip("torch")
    for n, steps in itertools.product((1, 7, 16, 32, 100, 256), (1, 2, 3, 8, 31, 64, 100, 256)):
        ts, left = torch.linspace(1, 1e-3, steps + 1), torch.tensor([n])
        for i, k in enumerate(dream_counts(n, steps)):
            mean = left.sum() / left.shape[0]
            assert k == (int(mean * (1 - ts[i + 1] / ts[i])) if i < steps - 1 else int(mean)), (n, steps, i)
            left -= k


def test_generate_follows_dreams_schedule():
    z = jnp.full((3, 16), MASK)
    _, trace = generate(PARAMS, KEY, z, TINY, Plan(rule="dream", order="entropy", steps=5, tempered=True))
    for row in np.asarray(trace["step"]):
        assert np.bincount(row, minlength=5).tolist() == dream_counts(16, 5)
    assert trace["n_steps"] == 5


# ---- every hole, and nothing but the holes ----
plans = st.builds(
    shared.plan, order=st.sampled_from(sorted(sample.ORDERS)), rule=st.sampled_from(sorted(sample.RULES)),
    early_end=st.booleans(), steps=st.integers(1, 14),
    block_len=st.none() | st.integers(1, 12), threshold=st.floats(0, 1),
    **{"entropy.budget": st.floats(0, 3), "factor.limit": st.floats(0, 3),
       "repetition_penalty.penalty": st.sampled_from([1.0, 1.3])},
    temperature=st.sampled_from([0.0, 0.7]), top_k=st.none() | st.integers(1, 9), top_p=st.none() | st.floats(0.1, 1),
    tempered=st.booleans(),
)  # fmt: skip
batches = st.lists(st.tuples(
    st.lists(st.lists(st.integers(0, 3) | st.just(MASK), min_size=10, max_size=10), min_size=3, max_size=3),
    st.lists(st.integers(0, 6), min_size=3, max_size=3), st.integers(0, 9)), min_size=3, max_size=3)  # fmt: skip


def fill_and_check(plan, batches):
    for rows, pads, seed in batches:  # all with one compilation
        valid = np.arange(10) >= np.array(pads)[:, None]
        z = np.where(valid, np.array(rows), EOS).astype(np.int32)
        x, trace = generate(PARAMS, jax.random.key(seed), z, TINY, plan, valid)
        check_filled(z, x, trace)
        if plan.rule in ("quota", "dream"):
            assert trace["n_steps"] <= plan.steps + (0 if plan.block_len is None else -(-10 // plan.block_len))


def test_with_every_switch_at_once_every_hole_is_filled_and_nothing_else_is_changed():
    plan = shared.plan(order="sampled", rule="threshold", steps=5, block_len=4, threshold=0.4, temperature=0.7, top_k=4,
                top_p=0.9, **{"repetition_penalty.penalty": 1.3}, tempered=True)  # fmt: skip
    rng = np.random.default_rng(0)
    fill_and_check(plan, [(rng.choice([0, 1, 2, 3, MASK, MASK], (3, 10)), rng.integers(0, 7, 3), seed)
                          for seed in range(6)])


@pytest.mark.slow
@settings(max_examples=5, deadline=None, derandomize=True)
@given(plan=plans, batches=batches)
def test_every_hole_is_filled_and_nothing_else_is_changed(plan, batches):
    fill_and_check(plan, batches)


@pytest.mark.parametrize("V", [1, 5, 259, 4096])
def test_the_likeliest_token_is_that_of_argmax_the_first_of_equals(V):
    l = np.random.default_rng(V).integers(-V // 3, V // 3 + 1, (3, 40, V)).astype(np.float32)  # with ties
    l[0, 0], l[0, 1], l[0, 2, -1], l[0, 3] = -np.inf, model.NEVER, np.inf, np.nan
    np.testing.assert_array_equal(jax.jit(kernels.likeliest)(l), l.argmax(-1))


@pytest.mark.parametrize("V", [8192, slow(10_007), slow(152_064)])  # 10,007: filled up
def test_a_large_vocabulary_that_is_read_by_stretches_has_the_numbers_of_one_that_is_not(V, monkeypatch):
    rng = np.random.default_rng(V)
    l, x = jnp.array(rng.normal(0, 4, (5, V)).astype(np.float32)), jnp.array(rng.integers(0, V, 5))
    l = l.at[1, 7:].set(model.NEVER).at[2, : V - 1].set(model.NEVER)

    def numbers(l):
        l = kernels.without(l, 3)
        logp, vjp = jax.vjp(lambda l: diffusion.gather_logp(l, x), l)
        return [logp, *vjp(jnp.arange(5.0)), diffusion.entropy(l), sample.probability(l, x), sample.negative_entropy(l)]

    assert kernels.by_stretches(V) and len(stretches.cut(l)[0]) > 1
    found = jax.jit(numbers)(l)
    monkeypatch.setattr(kernels, "LARGE", V + 1)
    for ours, plain in zip(found, numbers(l), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@given(st.sampled_from([1, 7, 259]), st.floats(0, 0.999), st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_what_top_p_keeps_is_what_a_sort_keeps(V, top_p, seed):
    l = np.random.default_rng(seed).normal(0, 3, (4, V)).astype(np.float32)
    l[0] = np.round(l[0])  # ties
    l[1, : V // 2] = model.NEVER
    ranked = jnp.sort(l, -1, descending=True)
    p = np.asarray(jax.nn.softmax(ranked), np.float64)
    before = np.cumsum(p, -1) - p
    if np.abs(before - top_p).min() > 1e-6:  # else a last bit decides
        least = np.where(before <= top_p, ranked, np.inf).min(-1, keepdims=True)
        np.testing.assert_array_equal(jax.jit(nucleus)(l, top_p), l >= least)


@pytest.mark.parametrize("rule, plan", [
    ("quota", dict(steps=5, block_len=3, order="random")), slow("dream", dict(steps=4, block_len=4)),
    slow("dream", dict(steps=6)), slow("threshold", dict(threshold=0.4, block_len=3, order="sampled"))])
def test_neither_other_rows_nor_padding_change_a_row_its_blocks_or_its_share_of_the_steps(rule, plan):
    plan = shared.plan(rule=rule, temperature=1.0, **plan)
    rows = ["01______", "__2301_2", "0123_1_2", "01230123", "441___23"]
    z, valid = holes(*rows), jnp.ones((5, 8), bool).at[4, :2].set(False)
    x, trace = generate(PARAMS, KEY, z, TINY, plan, valid)
    check_filled(z, x, trace)
    for b in range(len(rows)):  # one compilation: all rows are this one, with its key
        tiled = [jnp.tile(a[b], (5, 1)) for a in (z, valid)]
        alone, own = generate(PARAMS, row_keys(KEY, 5, b), tiled[0], TINY, plan, tiled[1])
        np.testing.assert_array_equal(alone[0], x[b])
        np.testing.assert_array_equal(own["step"][0], trace["step"][b])
    cut, _ = generate(PARAMS, row_keys(KEY, 1, 4), z[4:, 2:], TINY, plan)
    np.testing.assert_array_equal(cut[0], x[4, 2:])


@pytest.mark.slow
@pytest.mark.parametrize("plan", [shared.plan(temperature=1.0, steps=3, block_len=6,
                                              **{"repetition_penalty.penalty": 1.3}),
                                  Plan(temperature=0.9, order="sampled", rule="threshold", threshold=0.3, top_p=0.9)])
def test_logits_in_chunks_of_positions_give_the_tokens_that_they_give_at_once(plan, monkeypatch):
    z = holes("01______", "0_1_2___", "________")
    x, trace = generate(PARAMS, KEY, z, TINY, plan)
    monkeypatch.setattr(kernels, "LOGITS_BYTES", 16 * V * 5)  # 5 positions at a time
    more = shared.changed(plan, **{"entropy.budget": 0.2})  # means nothing here but: compile
    y, again = generate(PARAMS, KEY, z, TINY, more)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(again["step"], trace["step"])
    np.testing.assert_allclose(again["logp"], trace["logp"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [Plan(temperature=1.0, block_len=32),
                                  Plan(temperature=1.0, block_len=32, order="sampled", top_p=0.9)])
def test_a_step_of_a_large_vocabulary_never_needs_more_than_one_and_a_half_times_the_logits_of_its_window(plan):
    V, B = 152_064, 8
    cfg = model.ModelConfig(vocab_size=V, n_layer=1, n_head=1, d_model=8, d_ff=8, mask_id=V - 1)

    def step(params, key, z):
        return sample.fill_step(params, row_keys(key, B), sample.begin(z), cfg, plan, None)

    params = jax.eval_shape(lambda: model.init(KEY, cfg))
    memory = jax.jit(step).lower(params, KEY, jax.ShapeDtypeStruct((B, 64), jnp.int32)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1.5 * 4 * V * B * 32  # 0.9; with logits and probabilities of all at once 4.0


# ---- which ones, and how many ----
def committed(row, plan, params=PARAMS):
    """The state of one row before its first step, what was committed then, and the logits it was chosen by."""
    z = holes(row)
    step = generate(params, KEY, z, TINY, plan)[1]["step"][0]
    return np.flatnonzero(step == 0), np.asarray(logits_of(params, z, TINY), np.float64)[0]


def softmax(l):
    p = np.exp(l - l.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def entropy(p):
    return -np.sum(p * np.log(p + 1e-30), -1)


def of_factor(p):
    """How many the factor rule commits: n while the last of them is as probable as it asks of n."""
    ranked = np.sort(p.max(-1))[::-1]
    return next(n for n in range(1, 9) if n == 8 or (n + 2) * (1 - ranked[n]) > 3.0)


def of_budget(p):
    """How many the entropy rule commits: as many as have the budget for their entropies, less the largest."""
    H = np.sort(entropy(p))
    return max(k for k in range(1, 9) if k == 1 or H[:k].sum() - H[:k].max() <= 2.0)


@pytest.mark.parametrize("plan, score, count", [  # without a rule, of 8 holes in 3 steps 3 are first
    (Plan(order="confidence", steps=3), lambda p: p.max(-1), lambda p: 3),
    (Plan(order="margin", steps=3), lambda p: np.sort(p)[:, -1] - np.sort(p)[:, -2], lambda p: 3),
    (Plan(order="entropy", steps=3), lambda p: -entropy(p), lambda p: 3),
    (Plan(order="left", steps=3), lambda p: -np.arange(len(p)), lambda p: 3),
    (shared.plan(rule="factor", **{"factor.limit": 3.0}), lambda p: p.max(-1), of_factor),
    (shared.plan(rule="entropy", order="entropy", **{"entropy.budget": 2.0}), lambda p: -entropy(p), of_budget)])
def test_the_holes_that_score_highest_are_committed_as_many_as_the_rule_says(plan, score, count):
    at, l = committed("01________", plan)
    p = softmax(l)[2:]
    assert 1 < count(p) < 8 and sorted(at) == sorted(2 + np.argsort(-score(p))[:count(p)])


@pytest.mark.parametrize("rule, plan, entropies, row", [
    ("threshold", Plan(threshold=0.75), [0, 0, 0], [True, True, False]),
    ("factor", shared.plan(**{"factor.limit": 0.75}), [0, 0, 0], [True, True, False]),  # 3 (1 - 0.75) for the second
    ("factor", shared.plan(**{"factor.limit": 0.0}), [0, 0, 0], [True, False, False]),
    ("factor", shared.plan(**{"factor.limit": 9.0}), [0, 0, 0], [True, True, True]),
    # the sum, less the largest, wherever it is
    ("entropy", shared.plan(**{"entropy.budget": 0.25}), [0, 0.25, 0.5], [True, True, True]),
    ("entropy", shared.plan(**{"entropy.budget": 0.25}), [1, 0.25, 0.25], [True, True, False]),
    ("entropy", shared.plan(**{"entropy.budget": 0.25}), [0.25, 1, 0.25], [True, True, False]),
    ("entropy", shared.plan(**{"entropy.budget": 0.25}), [0.5, 0.5, 0.5], [True, False, False])])
def test_a_rule_commits_what_is_exactly_on_its_bound_in_every_row(rule, plan, entropies, row):
    both = lambda row: jnp.array([row, row[::-1]])
    block = sample.Block(both([True] * 3), both([0, 1, 2]), both([0.875, 0.75, 0.5]), both(entropies), 0, 1)
    assert sample.RULES[rule](block, plan).tolist() == [row, row[::-1]]


# ---- the steps ----
@pytest.mark.parametrize("n, row, plan", [
    (4, "01________", dict(steps=4, block_len=4)), slow(4, "01________", dict(steps=4)),
    (8, "01________", dict(steps=99)),  # one a step, and no step without
    slow(4, "01________", dict(steps=1, block_len=2)),  # a block takes at least one
    (0, "0120310123", dict(steps=4, block_len=4)), slow(1, "01________", dict(rule="threshold", threshold=0.0)),
    (4, "01________", dict(rule="threshold", threshold=0.0, block_len=2)),
    (2, "0_0000000_", dict(rule="threshold", threshold=0.0, block_len=2)),  # blocks without holes are skipped
    slow(3, "0__000000_", dict(steps=6, block_len=2))])  # fmt: skip
def test_steps_are_spent_exactly_and_end_when_nothing_is_left(n, row, plan):
    assert int(generate(PARAMS, KEY, holes(row), TINY, shared.plan(**plan))[1]["n_steps"]) == n


# ---- a cache, and an early end ----
@pytest.mark.parametrize("shift, cache", [(False, "prefix"), slow(False, "dual"), slow(True, "prefix"),
                                          slow(True, "dual")])  # fmt: skip
def test_of_one_layer_a_cache_changes_nothing_for_its_keys_and_values_know_their_own_token_only(shift, cache):
    cfg = dataclasses.replace(TINY, shift=shift)
    plan = Plan(rule="threshold", threshold=0.4, temperature=1.0, block_len=4)
    z = holes("4401_____2____", "__23___1______", "440123______33", "01230123012301")  # blocks begin elsewhere in each
    valid = jnp.arange(14) >= jnp.array([[2], [0], [2], [0]])
    x, trace = generate(PARAMS, KEY, z, cfg, plan, valid)
    y, again = generate(PARAMS, KEY, z, cfg, dataclasses.replace(plan, cache=cache), valid)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_allclose(trace["logp"], again["logp"], atol=1e-5)
    assert again["n_steps"] >= trace["n_steps"]  # a row waits for the others to finish their blocks


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_with_a_cache_other_rows_and_a_shared_prompt_change_nothing_in_a_row(cache):
    cfg = dataclasses.replace(TINY, n_layer=2)
    params, plan = sharp(cfg, 1), Plan(rule="threshold", threshold=0.8, temperature=1.0, block_len=4, cache=cache)
    rows = ["01__________"] * 2 + ["23_0________"] * 2
    x, trace = generate(params, KEY, holes(*rows), cfg, plan)
    shared, shared_trace = generate(params, KEY, holes(*rows), cfg, plan, group=2)
    np.testing.assert_array_equal(shared, x)
    np.testing.assert_array_equal(shared_trace["step"], trace["step"])
    for b in range(4):  # all rows are this one, with its key
        alone, own = generate(params, row_keys(KEY, 4, b), holes(*rows[b:b + 1] * 4), cfg, plan)
        np.testing.assert_array_equal(alone[0], x[b])
        np.testing.assert_array_equal(jnp.argsort(own["step"][0]), jnp.argsort(trace["step"][b]))
    _, exact = generate(params, KEY, holes(*rows), cfg, dataclasses.replace(plan, cache="none"))
    assert abs(exact["logp"] - trace["logp"]).max() > 1e-3  # it is an approximation


@pytest.mark.parametrize("plan", [Plan(temperature=1.0, block_len=4, steps=12),
                                  slow(Plan(temperature=1.0, order="random", steps=12, block_len=4, cache="dual"))])
def test_a_text_that_ends_early_is_the_same_up_to_its_end_in_fewer_steps(plan):
    z = holes(*["01____________"] * 8)
    x, trace = generate(PARAMS, KEY, z, TINY, plan)
    y, early = generate(PARAMS, KEY, z, TINY, dataclasses.replace(plan, early_end=True))
    ends = [(row[2:].tolist() + [EOS]).index(EOS) + 2 for row in np.asarray(x)]  # 14 where there is none
    for row, other, logp, step, end in zip(*map(np.asarray, (x, y, early["logp"], early["step"])), ends, strict=True):
        np.testing.assert_array_equal(row[:end + 1], other[:end + 1])
        last = step[:end + 1].max()  # what nobody drew has no log-prob, and the step of the last before the end
        rest = np.flatnonzero(logp == 0)[2:]
        assert (rest > end).all() and (other[rest] == EOS).all() and (step[rest] == last).all() and step.max() == last
    assert early["n_steps"] == early["step"].max() + 1 <= trace["n_steps"] and (early["logp"] == 0).sum() > 16
    middle = holes(*["01___________2"] * 8)  # nothing ends where given text follows
    for a, b in zip(generate(PARAMS, KEY, middle, TINY, plan)[1].values(),
                    generate(PARAMS, KEY, middle, TINY, dataclasses.replace(plan, early_end=True))[1].values(),
                    strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_scores_go_from_left_to_right_and_those_that_differ_in_their_last_bits_are_equal():
    flat = jax.tree.map(jnp.zeros_like, PARAMS)
    for order in ("confidence", "margin", "entropy"):
        assert committed("01________", Plan(order=order, steps=3), flat)[0].tolist() == [2, 3, 4]
    score = jnp.array([0.25, 0.5, 1.0])
    np.testing.assert_array_equal(kernels.without_noise(score * (1 + 2**-13)), score)
    assert (kernels.without_noise(score * (1 + 2**-11)) > score).all()


def test_sdars_quota_gives_what_is_left_over_to_the_first_steps():
    L, rank = 5, jnp.arange(5)[None]
    masked = jnp.ones((1, L), bool)
    for steps, shares in ((2, [3, 2]), (3, [2, 2, 1]), (8, [1] * 5 + [1] * 3)):
        for i, share in enumerate(shares):
            b = sample.Block(masked, rank, *[rank] * 2, jnp.full((1, 1), i), jnp.full((1, 1), steps))
            assert rules.static(b, Plan()).sum() == share


def test_no_two_draws_of_a_row_share_a_number_and_padding_on_its_left_changes_none():
    """Of 40 columns at some of 2**15 steps, for two purposes each."""
    cfg = model.ModelConfig(vocab_size=5, n_layer=1, n_head=1, d_model=8, mask_id=4)
    params, found = model.init(jax.random.key(0), cfg), []
    step = jnp.concatenate([first + jnp.arange(64) for first in (0, 2**14, 2**15 - 64)])
    for T in (40, 50):
        column = jnp.broadcast_to(jnp.arange(T - 40, T), (len(step), 40))
        w = sample.Window(column[:, 0], column, column >= 0, step, step)
        h, z = jnp.zeros((1, 40, 8)), jnp.full((len(step), T), 4)
        at, *_ = sample.logits_at_positions(params, h, z, w, None, cfg, Plan())
        found.append(np.asarray(at.number))
    numbers = np.concatenate([2 * found[0] + purpose for purpose in (sample.DRAW, sample.ORDER)])
    assert len(np.unique(numbers)) == 2 * 40 * len(step) and (found[0] == found[1]).all()


def test_keys_of_another_number_than_the_rows_are_refused():
    refused("2 keys for 1 rows", generate, PARAMS, jax.random.split(KEY, 2), holes("01__"), TINY, Plan())


def test_one_plan_and_shape_is_compiled_once():
    sizes = set()
    for seed, row in enumerate(("01________", "0_1_0_1_0_", "0123012301")):
        generate(PARAMS, jax.random.key(seed), holes(row), TINY, Plan(steps=4, block_len=4))
        sizes.add(generate._cache_size())
    assert len(sizes) == 1


def test_a_broken_model_does_not_hang_the_loop():
    broken = jax.tree.map(lambda w: w * jnp.nan, PARAMS)
    x, _ = generate(broken, KEY, holes("01________"), TINY,
                    shared.plan(rule="entropy", order="entropy", **{"entropy.budget": 2.0}))
    assert not (np.asarray(x) == MASK).any()


# ---- the probabilities, against enumeration ----
def filtered(l, plan):
    """The distribution that tokens are drawn from, in float64 and one token at a time."""
    p = softmax(l / (plan.temperature or 1))
    for row in p:
        ranked = np.argsort(-row)
        kept, mass = [], 0.0
        for v in ranked:
            if mass <= (plan.top_p or 1):
                kept.append(v)
            mass += row[v]
        kept = kept[:plan.top_k or V]
        row[[v for v in range(V) if v not in kept]] = 0
    return p / p.sum(-1, keepdims=True)


ROW = "32___2"
STATES = {s: n for n, s in enumerate(itertools.product((*range(MASK + 1),), repeat=3))}
TABLE = np.asarray(logits_of(PARAMS, jnp.array([[3, 2, *s, 2] for s in STATES]), TINY)[:, 2:5], np.float64)


def enumerate_outcomes(plan, state=(MASK,) * 3, i=0):
    """{filled state: probability} of 3 holes in `plan.steps` steps, by every branch there is."""
    holes = [j for j in range(3) if state[j] == MASK]
    if not holes:
        return {state: 1.0}
    l = TABLE[STATES[state]]
    p, k = filtered(l, plan), -(-len(holes) // (plan.steps - i))
    looked_at = p if plan.tempered else softmax(l)
    score = {"confidence": looked_at.max(-1), "entropy": -entropy(looked_at), "left": [0, -1, -2]}.get(plan.order)
    subsets = list(itertools.combinations(holes, k)) if score is None else [sorted(holes, key=lambda j: -score[j])[:k]]
    out = {}
    for subset in subsets:
        for tokens in itertools.product(range(V), repeat=k):
            prob = np.prod([p[j, v] for j, v in zip(subset, tokens, strict=True)]) / len(subsets)
            if prob > 0:
                new = list(state)
                for j, v in zip(subset, tokens, strict=True):
                    new[j] = v
                for x, q in enumerate_outcomes(plan, tuple(new), i + 1).items():
                    out[x] = out.get(x, 0.0) + prob * q
    return out


@pytest.mark.parametrize("plan", [
    slow(Plan(order="left", steps=3, temperature=1.0)),
    slow(Plan(order="confidence", steps=3, temperature=0.6)),
    Plan(order="entropy", steps=2, temperature=1.5, top_k=2),
    slow(Plan(order="confidence", steps=2, temperature=0.8, top_p=0.7, tempered=True)),
    Plan(order="random", steps=2, temperature=1.2, top_k=4, top_p=0.9),
], ids=lambda plan: plan.order)
def test_samples_follow_the_enumerated_distribution_and_the_trace_is_their_log_probability(plan):
    N, expected = 10000, enumerate_outcomes(plan)
    assert abs(sum(expected.values()) - 1) < 1e-9 and len(expected) > 4
    x, trace = generate(PARAMS, KEY, jnp.tile(holes(ROW), (N, 1)), TINY, plan)
    drawn = [tuple(row) for row in np.asarray(x)[:, 2:5].tolist()]
    counts = {s: 0 for s in expected}
    for s in drawn:
        counts[s] += 1  # a KeyError is a sample that cannot be
    for s, p in expected.items():
        assert abs(counts[s] / N - p) < 5 * np.sqrt(p * (1 - p) / N) + 2 / N, (s, counts[s] / N, p)
    if plan.order != "random":  # there each filled row has many trajectories
        log_p = np.log([expected[s] for s in drawn])
        np.testing.assert_allclose(np.asarray(trace["logp"]).sum(1), log_p, atol=2e-4)


def test_at_temperature_0_the_trace_holds_the_models_own_log_prob():
    x, trace = generate(PARAMS, KEY, holes(ROW), TINY, Plan(steps=1))
    p = softmax(TABLE[STATES[(MASK,) * 3]])
    assert np.asarray(x)[0, 2:5].tolist() == p.argmax(-1).tolist()
    np.testing.assert_allclose(trace["logp"][0, 2:5], np.log(p.max(-1)), atol=1e-5)


@pytest.mark.parametrize("V, n", [slow(1, 40_000), slow(3, 40_000), (10, 40_000), slow(259, 40_000), (8192, 20_000),
                                  (10_000, 3000), slow(150_000, 3000)])  # fmt: skip
def test_tokens_are_drawn_as_often_as_they_are_probable(V, n):
    """Rare tokens of a large vocabulary are counted together: those of each third of it. 8192 is read by stretches."""
    p = np.random.default_rng(V).dirichlet([0.3] * V)
    if V > 300:
        p = 0.2 / V + 0.8 * np.isin(np.arange(V), (5, 127, 128, V * 7 // 45 * 3 + 1, V - 1)) / 5
    p[:: 3] = 0 if V > 3 else p[:: 3]  # never these
    p /= p.sum()
    if V == 8192:
        l = jnp.array(np.where(p > 0, np.log(np.maximum(p, 1e-9)), model.NEVER), jnp.float32)
        rows = jax.jit(lambda keys: kernels.draw_rows(keys, jnp.broadcast_to(l + 7, (len(keys), V))))
        tokens = np.concatenate([rows(row_keys(jax.random.key(i), n // 20)) for i in range(20)])
    else:
        tokens = jax.jit(jax.vmap(lambda key: kernels.draw(key, jnp.asarray(p, jnp.float32))))(row_keys(KEY, n))
    count = np.bincount(np.asarray(tokens), minlength=V)
    assert (count[p == 0] == 0).all()
    often = n * p > 5
    third = np.where(often, 3, np.arange(V) * 3 // V)
    count, expected = (np.append(a[often], np.bincount(third, a, 4)[:3]) for a in (count, n * p))
    chi2 = ((count - expected)[expected > 5] ** 2 / expected[expected > 5]).sum()
    assert chi2 < often.sum() + 5 * np.sqrt(2 * often.sum() + 1)


# ---- autoregressive models ----
CAUSAL = dataclasses.replace(TINY, causal=True, shift=True, eos_id=None)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [Plan(order="left", steps=1), Plan(order="left", temperature=1.0, top_k=3)])
def test_the_cache_of_a_causal_model_changes_nothing_between_given_tokens_and_behind_padding(plan):
    params, z = sharp(CAUSAL, 3), holes("01_2__", "012___", "0_34_1", "______")
    x, trace = generate(params, KEY, z, CAUSAL, plan)
    check_filled(z, x, trace)
    assert trace["n_steps"] == 6  # one token at a time, whatever the plan says
    whole = logits_of(params, x, CAUSAL)  # of the whole text at once, without a cache
    if not plan.temperature:
        np.testing.assert_array_equal(x, np.where(z == MASK, whole.argmax(-1), z))
    own = jax.nn.log_softmax(sample.filtered(whole, plan))
    expected = np.where(np.asarray(z) == MASK, diffusion.gather_logp(own, x), 0)
    np.testing.assert_allclose(trace["logp"], expected, atol=1e-4)
    padded = jnp.pad(z, ((0, 0), (3, 0)), constant_values=4)
    y, _ = generate(params, KEY, padded, CAUSAL, plan, valid=jnp.broadcast_to(jnp.arange(9) >= 3, padded.shape))
    np.testing.assert_array_equal(y[:, 3:], x)


def test_a_causal_model_reads_a_prompt_once_for_all_its_completions_and_stops_at_an_end_of_text():
    cfg = dataclasses.replace(CAUSAL, eos_id=2)
    params, plan, z = sharp(cfg, 3), Plan(order="left", temperature=3.0), holes(*["01____________"] * 8)
    x, trace = generate(params, KEY, z, cfg, plan)
    ends = [(row[2:].tolist() + [2]).index(2) for row in np.asarray(x)]  # 12 where there is none
    assert trace["n_steps"] == min(max(ends) + 1, 12) and len(set(ends)) > 2
    for row, logp, end in zip(np.asarray(x), np.asarray(trace["logp"]), ends, strict=True):
        assert (row[2 + end:] == 2).all() and (logp[3 + end:] == 0).all() and (logp[2:3 + end] < 0).all()
    two = holes(*["01____________"] * 4, *["4_1__________0"] * 4)
    alone, trace = generate(params, KEY, two, cfg, plan)
    assert any((row == 2).any() and row[-2] != 2 for row in np.asarray(alone[4:]))  # no end where given text follows
    shared, shared_trace = generate(params, KEY, two, cfg, plan, group=4)
    np.testing.assert_array_equal(shared, alone)
    np.testing.assert_allclose(shared_trace["logp"], trace["logp"], atol=1e-5)
    assert caches.prefill(params, two, cfg, None, 4)[0][0].shape[0] == 8


def test_a_group_that_begins_alike_shares_its_first_step_and_fills_its_holes_as_if_alone():
    params, plan, read = sharp(TINY, 3), Plan(order="confidence", temperature=1.0, steps=3), []
    z, valid = holes(*["01_2__"] * 3, *["____12"] * 3), jnp.arange(6) >= jnp.array([[2]] * 3 + [[0]] * 3)
    alone, trace = generate(params, KEY, z, TINY, plan, valid)
    with pytest.MonkeyPatch.context() as patch:
        plain = model.hidden
        patch.setattr(model, "hidden", lambda p, z, *a: read.append(len(z)) or plain(p, z, *a))
        shared, shared_trace = generate(params, KEY, z, TINY, plan, valid, group=3)
    assert read == [2]  # besides the step of all six, which was compiled above
    assert trace["n_steps"] == shared_trace["n_steps"] == 3
    np.testing.assert_array_equal(shared, alone)
    np.testing.assert_array_equal(shared_trace["step"], trace["step"])
    np.testing.assert_allclose(shared_trace["logp"], trace["logp"], atol=1e-5)
    assert len({tuple(row) for row in np.asarray(alone[:3]).tolist()}) > 1


# ---- mistakes ----
@pytest.mark.parametrize("wrong, message", [
    (dict(order="best"), "order='best': one of random, confidence"),
    (dict(rule="all"), "rule='all': one of quota, .*factor.*; no file variants/all.py adds it"),
    (dict(steps=0), "steps=0: expected at least 1"), (dict(block_len=0), "block_len=0"), (dict(top_k=0), "top_k=0"),
    (dict(top_p=0.0), "top_p=0.0"), (dict(top_p=1.5), "top_p=1.5"), (dict(temperature=-1.0), "temperature=-1.0"),
    (dict(temperature=float("nan")), "temperature=nan"),
    ({"repetition_penalty.penalty": 0.0}, "repetition_penalty.penalty=0.0"),
    (dict(cache="all"), "cache='all': one of none, prefix, dual"), ({"factor.limit": -1.0}, "limit=-1.0"),
])
def test_an_impossible_plan_is_refused_in_one_sentence(wrong, message):
    refused(message, shared.plan, **wrong)


@pytest.mark.parametrize("cfg, plan, message", [
    (dataclasses.replace(TINY, mask_id=None), Plan(), "no mask token"),
    (CAUSAL, Plan(order="random"), "a causal model sees only what is left"),
    (CAUSAL, Plan(order="left", cache="dual"), "cache='dual': a causal model has a cache of its own")])
def test_what_a_model_cannot_do_is_said(cfg, plan, message):
    refused(message, generate, PARAMS, KEY, holes("0_"), cfg, plan)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_rule_that_commits_nothing_ends_all_the_same_and_one_of_another_shape_is_refused(cache, monkeypatch):
    z, plan = holes("01____", "0_2___"), Plan(rule="quota", steps=3, cache=cache)
    monkeypatch.setitem(sample.RULES, "idle", lambda b, plan: jnp.zeros_like(b.masked))
    x, trace = generate(PARAMS, KEY, z, TINY, dataclasses.replace(plan, rule="idle"))
    assert (x != TINY.mask_id).all() and trace["n_steps"] == 2 + 4  # one by one, from the last step of the schedule on
    monkeypatch.setitem(sample.RULES, "first", lambda b, plan: b.masked[0])
    refused(r"the function of first returns the shape \(6,\): expected \(2, 6\)", generate, PARAMS, KEY, z, TINY,
            dataclasses.replace(plan, rule="first"))  # fmt: skip


# ---- the program ----
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    _, cfg = shared.byte_model(path)
    huggingface.save(path, sharp(cfg, 0), cfg)
    (path / "run.json").write_text(json.dumps({"config": {
        "order": "left", "rule": "quota", "diffusion_steps": 3, "block_len": None, "max_new_tokens": 6, "seed": 1}}))
    return str(path)


def test_holes_in_a_prompt_are_read_as_the_help_says():
    tok = data.Tokenizer.bytes()
    ids = lambda text, holes: complete.encode(text, tok, tok.mask_id, holes, 2)[0]
    show = lambda text, holes: "".join("?" if i == tok.mask_id else chr(i) for i in ids(text, holes))
    assert show("1_3__", "auto") == "1?3??"
    assert show("the _ sat", "auto") == "the ? sat"
    for text in ("is_prime(x_1)", "__init__", "_private", "a__"):
        assert show(text, "auto") == text + "??"  # untouched, and 2 new tokens
    assert show(r"1\_3_", "auto") == "1_3?" and show(r"\_ \__", "auto") == "_ __??"
    assert show("1_3<|mask|>", "mask") == "1_3?" and show("f_1 <|mask|>_", "auto") == "f_1 ??"


def test_a_prompt_is_completed_as_the_run_was_trained_and_the_steps_can_be_seen(folder, capsys):
    for flags in (["--seed=1"], ["--seed=3", "--temperature=1"], ["--seed=3", "--n=3"]):
        code, out, _ = completed(capsys, folder, "--prompt=ab", *flags)
        assert code == 0 and out.endswith("\n")
        n = out.count("\n---\n") + 1
        shown = completed(capsys, folder, "--prompt=ab", "--show", *flags)[1].splitlines()
        assert len(shown) == 3 * n  # diffusion_steps of run.json
        assert shown[0].startswith("step   1  ab") and shown[0].endswith("____")
        texts = [line.removeprefix("step   3  ab") for line in shown[2 * n :]]
        assert "\n---\n".join(texts) + "\n" == out.replace("\n", "⏎").replace("⏎---⏎", "\n---\n")[:-1] + "\n"


def test_of_a_run_the_best_checkpoint_is_opened_and_named(folder, capsys, tmp_path, monkeypatch):
    for step in (5, 9):
        place = shutil.copytree(folder, tmp_path / f"step-{step:06d}")
        (place / "run.json").write_text(json.dumps({"best": {"step": 5, "measure": "val/sampled"}}))
    monkeypatch.setattr(complete, "complete_texts", lambda *given: ["text"])
    ask = lambda: completed(capsys, str(tmp_path), "--prompt=ab")[2]
    assert ask() == f"{tmp_path}/step-000005: the best by val/sampled\n"
    shutil.rmtree(tmp_path / "step-000005")
    assert ask() == f"{tmp_path}/step-000009: the newest; the best by val/sampled, step 5, is not here\n"


def test_what_a_model_writes_does_not_steer_the_terminal(folder, capsys, monkeypatch):
    monkeypatch.setattr(data.Tokenizer, "decode", lambda self, ids: "a\tb\x1b]0;title\x07\r\x9b2J\x7f\né")
    for flags in ([], ["--show"]):
        out = completed(capsys, folder, "--prompt=ab", *flags)[1]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
        assert r"b\x1b]0;title\x07\r\x9b2J\x7f" in out and "a\t" in out and "é" in out


def test_a_file_is_filled_and_written(folder, capsys, tmp_path):
    rows = [{"prompt": "a", "completion": "xyz", "difficulty": 1}, {"prompt": "longer one", "answer": "7"},
            {"prompt": "in<|mask|>place_x"}]
    source, target = shared.jsonl(tmp_path / "in.jsonl", rows), tmp_path / "new" / "folder" / "out.jsonl"
    code, out, err = completed(capsys, folder, f"--data={source}", f"--out={target}", "--n=2", "--batch_size=4")
    filled = [json.loads(line) for line in target.read_text().splitlines()]
    assert code == 0 and [row["prompt"] for row in filled] == [row["prompt"] for row in rows for _ in range(2)]
    assert filled[0]["reference"] == "xyz" and filled[0]["difficulty"] == 1 and filled[2]["answer"] == "7"
    assert filled[4]["completion"].startswith("in") and filled[4]["completion"].endswith("place_x")
    assert filled[0]["completion"] != filled[1]["completion"]
    assert not out and not err  # a bar is for a terminal
    again = tmp_path / "again.jsonl"
    completed(capsys, folder, f"--data={source}", f"--out={again}", "--n=2", "--batch_size=1")
    assert again.read_text() == target.read_text()  # whatever the batch
    printed = completed(capsys, folder, f"--data={source}", "--n=2")[1]
    assert printed == "\n---\n".join(complete.visible(row["completion"]) for row in filled) + "\n"


@pytest.fixture
def causal(tmp_path):
    """A folder of a causal model without a mask, in which its last id, the end of a turn in ChatML, may come next."""
    specials = {"<|eos|>": 256, "<|im_start|>": 257, "<|im_end|>": 258, "<|mask|>": 259}
    roles = dict(mask="<|mask|>", eos="<|eos|>", pad="<|eos|>")
    spec = data.Tokenizer(data.Tokenizer.bytes().vocab, specials, roles).content()
    next(token for token in spec["added_tokens"] if token["id"] == 258)["special"] = False
    tok = foreign.Foreign(foreign.package().Tokenizer.from_str(json.dumps(spec)), roles)
    cfg = model.ModelConfig(vocab_size=259, n_layer=1, n_head=2, d_model=16, causal=True, shift=True, eos_id=256)
    params = sharp(cfg, 1)
    huggingface.save(tmp_path, params, cfg)
    tok.save(tmp_path)
    return str(tmp_path), params, cfg, tok


def continued(params, cfg, tok, text, n):
    """Greedily and one at a time, with a forward pass over the whole prefix: what follows."""
    ids = tok.encode(text, specials=True)
    begin = len(ids)
    while len(ids) < begin + n and (begin == len(ids) or ids[-1] != tok.eos_id):
        padded = jnp.array([ids + [0] * (200 - len(ids))])
        ids.append(int(logits_of(params, padded, cfg)[0, len(ids)].argmax()))
    return tok.decode(ids[begin:])


@pytest.mark.slow
def test_a_causal_model_without_a_mask_continues_a_prompt_with_any_of_its_ids(causal, capsys):
    path, params, cfg, tok = causal
    first = logits_of(params, jnp.array([[97, 98, 0]]), cfg)[0, 2].argmax()
    likely = params | {"head": params["head"].at[:, 258].set(3 * params["head"][:, first])}
    for weights in params, likely:
        huggingface.save(path, weights, cfg)
        expected = complete.visible(continued(weights, cfg, tok, "ab", 6))
        assert completed(capsys, path, "--prompt=ab", "--max_new_tokens=6") == (0, expected + "\n", "")
    assert expected.startswith("<|im_end|>")  # the last id, which is no hole


@pytest.mark.slow
def test_a_prompt_is_put_into_the_chat_template_of_the_flags_or_of_the_run(causal, capsys):
    path, params, cfg, tok = causal
    said = lambda prompt: complete.visible(continued(params, cfg, tok, prompt, 6)) + "\n"
    answer = lambda system, prompt: said(data.chat("chatml", system, tok)(prompt))
    ask = lambda *flags, prompt="3_1": completed(capsys, path, f"--prompt={prompt}", "--max_new_tokens=6", *flags)
    assert ask("--texts.chat_template=chatml")[1] == answer(None, "3_1")  # and a _ is no hole there
    typed = ask("--texts.chat_template=chatml", prompt="a<|mask|>b")[1]  # nor is a <|mask|>
    assert not typed.startswith("system")  # but is completed; what has holes is shown from its beginning
    assert ask("--texts.chat_template=chatml", "--texts.system_prompt=")[1] == answer("", "3_1") != answer(None, "3_1")
    with open(f"{path}/run.json", "w") as f:
        json.dump({"config": {"chat_template": "chatml", "system_prompt": "Add.", "instruction": "Now: "}}, f)
    assert ask()[1] == answer("Add.", "Now: 3_1") != answer("Add.", "3_1")
    assert ask("--texts.instruction=")[1] == answer("Add.", "3_1")
    assert ask("--texts.chat_template=None", "--texts.instruction=None", prompt="3+1")[1] == said("3+1")
    assert "one of None, chatml, llada" in ask("--texts.chat_template=alpaca")[2]
    assert "'llada' writes <|end_header_id|>" in ask("--texts.chat_template=llada")[2]


def test_text_ends_at_the_end_of_text(monkeypatch):
    class Fixed:
        eos_id, pad_id = 0, 1
        decode = staticmethod(lambda ids: "".join(chr(i + 96) for i in ids))
    cfg = dataclasses.replace(TINY, vocab_size=8, mask_id=7, eos_id=0)
    monkeypatch.setattr(sample, "generate", lambda _, keys, z, *more: (np.where(z == 7, 0, z), {}))  # holes are ends
    rows = [([2, 0, 3, 7, 7], 3), ([2, 7, 4, 7], 0)]  # an end between given tokens ends nothing
    one = complete.Model("x", {}, cfg, Fixed, {})
    assert list(complete.complete_texts(one, Plan(), rows, 0, 2)) == ["", "b`d"]


@pytest.mark.parametrize("arguments, message", [
    (["--order=best"], "order='best': one of"), (["--steps=many"], "--steps=many: expected a whole number"),
    (["--data=nowhere.jsonl", "--out=x"], "nowhere.jsonl"), (["--block_len=0"], "block_len=0: expected at least 1"),
    (["--data=sudoku", "--prompt=1"], "--prompt and --data do not go together"),
    (["--show", "--out=x"], "--show and --out do not go together"),
    (["--data=sudoku", "--out=README.md"], "README.md is there already"),
    (["--data=sudoku", "--out=docs"], "docs is there already"),
    (["--export=README.md/x"], "README.md/x cannot be read or written: not a directory"),
    (["--promt=a"], "unknown flag 'promt', did you mean 'prompt'?"), (["--difusion_steps=4"], "did you mean"),
    (["--start="], "python sample.py OUT_DIR --prompt=TEXT"), (["--num_samples=5"], "python sample.py OUT_DIR --n=5"),
    (["--zzz=1"], "; see --help\n"), (["--n=1", "--n=2"], "--n is given twice"),
    (["--as_published"], "docs/checkpoints.md has the flags"), (["--entropy.budgt=1"], "there are entropy.budget"),
    (["--config", "x.py"], "the config file needs no key"), (["--version"], "there are no releases"),
    (["--data=~/nowhere.jsonl", "--out=x"], os.path.expanduser("~/nowhere.jsonl")),
    (["--texts.system_prompt=Add."], "system_prompt='Add.': how it is written is up to the model, so set texts.chat"),
])
def test_a_mistake_on_the_command_line_is_one_sentence_and_exit_code_2(folder, capsys, arguments, message):
    code, out, err = completed(capsys, folder, *arguments)
    assert code == 2 and out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments, message", [
    (["x", "--n=0"], "argument --n: invalid count value: '0'"), (["x", "--batch_size=-1"], "invalid count value"),
    (["x", "--seed=99999999999999999999"], "invalid seed value"), (["x", "--seed=-1"], "invalid seed value"),
    (["x", "--page="], "argument --page: invalid path value: ''"), (["x", "--data="], "invalid path value"),
    ([], "arguments are required: OUT_DIR"), (["x", "--dtype=int8"], "invalid choice"),
    (["x", "--help=all"], "ignored explicit argument 'all'"),
])  # fmt: skip
def test_a_flag_of_the_wrong_kind_is_answered_with_the_usage(capsys, arguments, message):
    with pytest.raises(SystemExit) as e:
        complete.main(arguments)
    assert e.value.code == 2 and message in capsys.readouterr().err


def test_a_model_that_fills_in_place_fills_what_is_masked_and_wants_a_mask(folder, capsys, tmp_path):
    grid = shutil.copytree(folder, tmp_path / "grid")
    (grid / "run.json").write_text(json.dumps({"config": {"fill_in": True, "max_prompt_len": 0}}))
    code, out, err = completed(capsys, str(grid), "--prompt=1.34")
    assert code == 2 and out == "" and "fills in texts in place: write a _ for each token" in err
    (tmp_path / "rows.jsonl").write_text('{"prompt": "", "masked": "12<|mask|>4"}\n')
    assert completed(capsys, str(grid), f"--data={tmp_path}/rows.jsonl", f"--out={tmp_path}/filled.jsonl")[0] == 0
    text = json.loads((tmp_path / "filled.jsonl").read_text())["completion"]
    assert text.startswith("12") and text.endswith("4")
    both = shared.jsonl(tmp_path / "both.jsonl", [{"prompt": "p", "masked": "a<|mask|>", "completion": "ab"}])
    assert "a row has a prompt before a text with masks" in completed(capsys, folder, f"--data={both}")[2]


@pytest.mark.parametrize("name", ["sudoku_base", "sudoku_grpo"])
def test_a_trained_model_is_in_the_repository(capsys, name):
    assert sum(os.path.getsize(f"assets/{name}/{file}") for file in os.listdir(f"assets/{name}")) < 1_100_000
    code, out, _ = completed(capsys, f"assets/{name}", "--prompt=3_2__1________43")
    assert code == 0 and re.fullmatch("3.2..1........43", out.strip())
    assert name == "sudoku_base" or out.strip() == "3421213443121243"


def test_each_line_of_a_text_file_is_a_prompt(folder, capsys, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    monkeypatch.setattr(complete, "complete_texts", lambda *given: "12")
    assert completed(capsys, folder, f"--data={tmp_path}/prompts.txt", f"--out={tmp_path}/out.jsonl")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows == [{"prompt": "one", "completion": "1"}, {"prompt": "two", "completion": "2"}]


def test_the_program_prepares_its_process_and_takes_the_name_of_a_config(folder, capsys, monkeypatch):
    from loop import runs
    prepared = []
    monkeypatch.setattr(runs, "prepare_process", lambda: prepared.append(1))
    shown = completed(capsys, folder, "--prompt=abc", "--diffusion_steps=2", "--show")[1]
    assert len(shown.splitlines()) == 2 and prepared


def test_a_model_that_is_still_to_come_is_answered_with_the_command_that_makes_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no out/ yet
    for name in ("out/sudoku", "config/sudoku.py"):
        code, _, err = completed(capsys, name)
        assert code == 2 and err.startswith(f"error: '{name}' is not a folder: give the out_dir of a run")
        assert err.endswith("; python train.py config/NAME.py makes out/NAME\n") and "huggingface" not in err


def test_help_names_every_field_of_a_plan_with_its_meaning(capsys):
    with pytest.raises(SystemExit) as e:
        complete.main(["--help"])
    out = capsys.readouterr().out
    assert e.value.code == 0
    for f in [f for f in dataclasses.fields(Plan) if f.name != "use"]:
        assert re.search(rf"--{f.name}[ ,]", out)  # Python 3.13 writes --steps, --diffusion_steps X
    assert "EB-Sampler" in out and f" {', '.join(data.CHAT[1:])}; " in " ".join(out.split())


@pytest.mark.parametrize(("plan", "padded"), [
    (Plan(rule="threshold", threshold=0.7, temperature=1.0), True),
    slow(shared.plan(rule="entropy", order="entropy", **{"entropy.budget": 0.5}, temperature=1.0, early_end=True),
         False)])
def test_rows_that_are_full_make_room_and_get_the_tokens_they_would_have_got(plan, padded):
    rng, n = np.random.default_rng(3), 24
    tokens = rng.integers(0, EOS, (n // 2, 10)).repeat(2, 0)  # groups of two
    hole = (np.arange(10) >= rng.integers(2, 9, n // 2)[:, None]).repeat(2, 0)
    valid = (np.arange(10) >= rng.integers(0, 2, n // 2)[:, None]).repeat(2, 0) if padded else None
    arrays, keys = data.Batch(tokens, hole, valid), row_keys(KEY, n)
    run = types.SimpleNamespace(model=TINY)
    x, at_once = sample.fill(PARAMS, keys, arrays, run, plan, 2)
    y, in_turn = sample.fill_rows(PARAMS, keys, arrays, run, plan, 4, 2)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(in_turn["step"], at_once["step"])
    np.testing.assert_allclose(in_turn["logp"], at_once["logp"], atol=1e-5)
    if padded:
        return
    passes = np.asarray(at_once["step"]).max(1) + 1  # of each row
    _, in_chunks = sharding.in_chunks(lambda k, a: sample.fill(PARAMS, k, a, run, plan, 2), 4, keys, arrays)
    assert passes.mean() <= in_turn["n_steps"] < in_chunks["n_steps"]
