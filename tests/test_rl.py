"""rl.py: what a rollout is made of, that every pass has masks of its own, and that GRPO learns and resumes."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import os
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from faults import Killed
from shared import advantages, batches_of, flat, jsonl, kept_in_16_bits, left, lines, refused, slow, watch, write_splits

import config
import data
import diffusion
import grpo
import model
import rewards
import rl
import sample
import train
from checkpoints import checkpoint, huggingface
from data.texts import completion_ids, encode_split, split_rows
from judges import own
from loop import evaluation, in_memory, rollout_log, run_rewards, runs, setup
from loop.setup import prepare, with_ids
from rewards import Scored
from system import kernels, sections
from variants import estimators, judge, lora, losses, moving_reference, repetition_penalty  # noqa: F401

KEY = jax.random.key(0)
REWARD = """
def digits(prompts, completions, answer):
    return [sum(a == b for a, b in zip(text, right)) / 2 for text, right in zip(completions, answer)]

def short(prompts, completions):
    return [None if not text else 1.0 / len(text) for text in completions]
"""
pytestmark = pytest.mark.usefixtures("one_step_for_all_runs")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set "37" -> "73", a file of rewards, and a model that has seen a little of it."""
    folder = tmp_path_factory.mktemp("place")
    order = np.random.default_rng(0).permutation(100).tolist()
    shared.write_rows(folder, lambda prompt: {"answer": prompt[::-1]}, order)
    (folder / "my.py").write_text(REWARD)
    unmeasured = lambda *given: train.pretrain(*given)._replace(evaluate=lambda *_: ({"val/sampled": 0.0}, []))
    with pytest.MonkeyPatch.context() as m:
        m.setitem(rl.OBJECTIVES, "pretrain", unmeasured)
        train.train(shared.run(**SECONDS, dataset=str(folder), out_dir=f"{folder}/base", rewards=("exact",),
                                  max_iters=200, eval_interval=200, learning_rate=3e-3))  # fmt: skip
    return folder


SECONDS = dict(max_prompt_len=3, max_new_tokens=4, batch_size=8, eval_size=8,
               diffusion_steps=4, warmup_iters=2, lr_schedule="constant",
               model=model.ModelConfig(n_layer=1, n_head=2, d_model=32))  # fmt: skip


@pytest.fixture
def tiny(place, tmp_path):
    """tiny(key=value, ...) -> the Config of a GRPO run of seconds."""
    fixed = dict(logp_est="trace", ratio_level="token", adv_negative=1.0)
    fixed |= dict(objective="grpo", dataset=str(place), init_from=f"{place}/base", rewards=(f"{place}/my.py:digits",),
                 group_size=4, batch_size=4, max_iters=4, eval_interval=4, save_interval=2, log_interval=1)  # fmt: skip
    return lambda **changes: shared.run(**SECONDS | fixed | dict(out_dir=f"{tmp_path}/out") | changes)


def begin(cfg):
    """cfg -> cfg with its model, tokenizer, task, the state before the first iteration."""
    cfg, tok, start, _ = prepare(cfg, train.train)
    task = rl.OBJECTIVES[cfg.objective](cfg, tok, start)
    params = task.init(KEY)
    reference = jax.tree.map(jnp.copy, params) if cfg.kl_beta else None
    return cfg, tok, task, rl.State(0, params, (), None, reference)


def rollout_of(tokens, completion=None, valid=None):
    """A Rollout of tokens (B, T), of which completion (B, T), None: all, was asked for and is in the loss."""
    asked = jnp.ones(tokens.shape, bool) if completion is None else completion
    return rl.Rollout(tokens, valid, asked, asked, tokens, jnp.zeros(tokens.shape), jnp.ones(len(tokens)),
                      jnp.arange(len(tokens)))


ITERATIONS = {}


def one_iteration(cfg):
    """All minibatches of one iteration (the params are not updated in between), and what it notes; made once."""
    key = os.stat(f"{cfg.dataset}/train.jsonl").st_mtime_ns, *((k, v) for k, v in vars(cfg).items() if k != "out_dir")
    if key not in ITERATIONS:
        cfg, tok, task, state = begin(cfg)
        made = list(batches_of(task, state, KEY))
        notes = {k: v for _, notes in made for k, v in notes.items()}
        ITERATIONS[key] = cfg, tok, task._replace(loss=jax.jit(task.loss)), state, [b for b, _ in made], notes
    return ITERATIONS[key]


def test_completions_of_a_prompt_are_neighbours_and_every_reward_meets_its_own(tiny):
    cfg, tok, _, _, (b,), notes = one_iteration(tiny())
    prompts = [tok.decode(row) for row in np.asarray(b.rollout.tokens)[:, 1:3].tolist()]
    assert prompts == [p for p in prompts[::4] for _ in range(4)] and len(set(prompts)) == 4
    texts = list(map(tok.decode, completion_ids(b.rollout.tokens, tok, cfg)))
    earned = [sum(map(str.__eq__, text, prompt[::-1])) / 2 for text, prompt in zip(texts, prompts, strict=True)]
    groups = np.reshape(earned, (4, 4))
    adv = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + cfg.adv_eps)
    np.testing.assert_allclose(b.loss.adv, adv.reshape(-1), atol=1e-5)
    assert notes["reward"] == notes["rewards/digits/mean"] == pytest.approx(np.mean(earned))
    assert notes["frac_reward_zero_std"] == np.mean(groups.std(1) == 0)
    assert notes["unique_completions"] == np.mean([len(set(texts[i : i + 4])) / 4 for i in range(0, 16, 4)])


def test_what_counts_ends_with_the_first_end_of_text_and_a_reward_gets_the_tokens_that_were_written(tiny):
    cfg, tok, _, _, (b,), notes = one_iteration(tiny())
    rows = [row[3:] for row in np.asarray(b.rollout.tokens).tolist()]
    lengths = np.array([row.index(tok.eos_id) if tok.eos_id in row else 4 for row in rows])
    counts = (np.arange(-3, 4) <= lengths[:, None]) & (np.arange(7) >= 3)
    np.testing.assert_array_equal(b.rollout.counts, counts)
    assert not np.asarray(b.views.weight).swapaxes(1, 2)[~counts].any()
    ended = np.mean(lengths < 4)
    assert 0 < ended == notes["completions/terminated_frac"]
    no_text = b.rollout.tokens.at[:, 3:].set(jnp.array([200, 201, tok.eos_id, 50]))  # these bytes are no UTF-8
    fns = {"long": lambda completions, token_ids: [len(ids) for ids in token_ids]}
    found = rl.score_rollout(b.rollout._replace(tokens=no_text), [{"prompt": ""}] * 4, fns, cfg, tok)
    assert (found.parts["long"] == 2).all() and len(tok.encode(found.completions[0])) > 2


@pytest.mark.parametrize("method", ["coupled", *map(slow, sorted({*diffusion.ESTIMATORS} - {"coupled", "exact"}))])
def test_every_pass_has_masks_of_its_own_on_which_old_and_reference_were_scored(tiny, method):
    """Two passes of two minibatches: the known bug counts micro-steps, so that a chunk of completions never changes its
    masks. Here the rows of a pass are one permutation of the rollout's, all with the masks of that pass."""
    cfg = tiny(logp_est=method, updates_per_rollout=2, minibatch_size=8, kl_beta=0.1, logp_views=2)
    cfg, _, task, state, batches, _ = one_iteration(cfg)
    score = jax.jit(functools.partial(shared.estimated_logp, cfg=cfg.model, start=3))
    for b in batches:
        now = np.asarray(score(state.params, b.rollout.tokens, b.views, valid=b.rollout.valid))[:, 3:]
        assert np.isnan(b.loss.old_logp).all() if b is batches[0] else np.abs(b.loss.old_logp - now).max() < 2e-5
        np.testing.assert_allclose(b.loss.ref_logp, now, atol=2e-5)
    first, second = ([(tuple(x), m.tolist()) for b in half for x, m in zip(
        np.asarray(b.rollout.tokens).tolist(), np.asarray(b.views.masked), strict=True)]
        for half in (batches[:2], batches[2:]))  # fmt: skip
    assert len(batches) == 4 and sorted(x for x, _ in first) == sorted(x for x, _ in second)
    if method in ("coupled", "elbo", "coupled_elbo"):
        assert sorted(first) != sorted(second)  # not by row alone: equal completions have several masks


@pytest.mark.slow
@pytest.mark.parametrize("more", [
    {}, {"gradient_accumulation_steps": 2, "minibatch_size": 8}, {"lora.rank": 4}], ids=str)
def test_while_nothing_moves_every_ratio_is_exactly_one_in_16_bits(tiny, tmp_path, more):
    """A whole run at a rate of nothing, with ESPO's clip. A model of one layer shows no rounding, so this one has four.
    Compiled as it is for real: another program of the same function, as fused by XLA, has other roundings."""
    tok = data.Tokenizer.bytes()
    shape = with_ids(model.ModelConfig(n_layer=4, d_model=128), tok)
    huggingface.save(f"{tmp_path}/base", model.init(KEY, shape), shape)
    tok.save(f"{tmp_path}/base")
    cfg = tiny(init_from=f"{tmp_path}/base", model=model.ModelConfig(dtype="bfloat16"), max_iters=2, eval_interval=9,
               max_new_tokens=8, learning_rate=1e-30, logp_est="coupled_elbo", ratio_level="sequence", clip_low=4e-4,
               clip_high=4e-4, updates_per_rollout=2, **more)  # fmt: skip
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        train.train(cfg)
    finally:
        jax.config.update("jax_disable_most_optimizations", True)  # as conftest.py has it
    logged = [row for row in lines(cfg.out_dir) if "ratio_max" in row]
    assert [(r["ratio_max"], r["approx_kl"], r["clip_ratio/region_mean"]) for r in logged] == [(1, 0, 0)] * 2


def test_one_update_needs_no_old_forward(tiny):
    *_, (alone,), _ = one_iteration(tiny())
    assert alone.loss.old_logp is None and alone.loss.ref_logp is None


@pytest.mark.slow
def test_the_nll_of_right_completions_is_added_with_its_gradient(tiny):
    cfg = tiny(**{"nll.coef": 0.5}, pass_at=0.5, logp_est="elbo", logp_views=2, keep_completions=8)
    cfg, tok, _, state, (b,), _ = one_iteration(cfg)
    r = b.rollout
    texts = [tok.decode(row) for row in completion_ids(r.tokens, tok, cfg)]
    prompts = [tok.decode(row) for row in np.asarray(r.tokens)[:, 1:3].tolist()]
    right = np.array([text[:1] == p[1] or text[1:2] == p[0] for text, p in zip(texts, prompts, strict=True)])
    assert 0 < right.sum() < len(right)
    counts = np.asarray(r.counts) & right[:, None]

    def nll(params):
        logp = shared.estimated_logp(params, r.tokens, b.views, cfg.model, r.valid)
        return -jnp.sum(counts * b.views.share * logp) / counts.sum()

    def loss(coef):
        return lambda params: rl.policy_loss(params, b, shared.changed(cfg, **{"nll.coef": coef}))[0]

    by_hand, with_it, without = (jax.jit(jax.value_and_grad(of))(state.params) for of in (nll, loss(1.0), loss(0.5)))
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(by_hand[1])) > 0.01
    jax.tree.map(lambda n, a, c: np.testing.assert_allclose(a - c, 0.5 * n, atol=1e-5), by_hand, with_it, without)
    metrics = rl.policy_loss(state.params, b, cfg)[1]
    assert float(metrics["nll_loss"]) == pytest.approx(float(by_hand[0]), rel=1e-5)


def test_a_right_completion_passes_whatever_its_advantage_or_beats_its_group_if_nothing_says_what_passes():
    parts = {"first": np.array([1.0, 0.5, np.nan, 0.0]), "second": np.array([0.0, 9.0, 9.0, 9.0])}
    found, adv = types.SimpleNamespace(parts=parts), jnp.array([[-1.0, 2.0], [0.0, 0.5]])
    for pass_at, right in ((None, [False, True, False, True]), (1.0, [True, False, False, False])):
        assert losses.right(found, adv, types.SimpleNamespace(pass_at=pass_at)).tolist() == right


def test_filling_in_asks_for_holes_in_the_rows_own_text_and_learns_from_nothing_else(tiny):
    cfg, tok, _, _, (b,), notes = one_iteration(tiny(fill_in=True, mask_ratio_min=0.5, mask_ratio_max=0.5))
    assert notes["completions/terminated_frac"] == 1  # the end of the text is given
    x, mask = np.asarray(b.rollout.tokens), np.asarray(b.rollout.counts)
    assert (mask.sum(1) == 1).all() and not mask[:, :3].any()  # half of the two digits, the same for a group
    assert all(len({tuple(m) for m in mask[i : i + 4].tolist()}) == 1 for i in range(0, 16, 4))
    for row, m in zip(x.tolist(), mask.tolist(), strict=True):
        right = [*tok.encode(tok.decode(row[1:3])[::-1]), tok.eos_id, tok.eos_id]
        assert all(own == given for own, given, hole in zip(row[3:], right, m[3:], strict=True) if not hole)


def test_a_group_that_nobody_judged_does_not_narrow_the_spread_within_groups():
    each = np.array([[[0.0, 1.0, 0.0, 1.0], [np.nan] * 4]])
    cfg = config.Config(rewards=("exact",), group_size=4)
    scored = Scored([{"prompt": ""}] * 2, ["a"] * 8, each, {"exact": each}, rollout_of(jnp.zeros((8, 2), int)))
    notes = rollout_log.describe(scored, np.zeros((2, 4)), cfg)
    assert notes["reward_std"] == pytest.approx(each[0, 0].std(ddof=1))


@pytest.mark.parametrize("padded", [False, True])
def test_a_share_of_a_prompt_can_be_masked_but_not_its_padding_and_is_not_scored(padded):
    cfg = shared.run(logp_est="one_step", objective="grpo", init_from="x", **{"masked_prompt.share": 0.3},
                     model=model.ModelConfig(vocab_size=5, mask_id=4))
    completion = jnp.arange(5) >= jnp.full((2000, 1), 3)
    valid = jnp.arange(5) >= jnp.tile(jnp.array([[0], [2]]), (1000, 1)) if padded else None
    views = rl.draw_views(KEY, rollout_of(jnp.zeros((2000, 5), int), completion, valid), cfg)
    masked, there = np.asarray(views.masked[:, 0]), np.asarray(completion | True if valid is None else valid)
    np.testing.assert_array_equal(views.weight[:, 0], completion)
    assert masked[completion].all() and not masked[~there].any()
    assert abs(masked[~completion & there].mean() - 0.3) < 0.05


@pytest.mark.parametrize("bonus", [False, True])
def test_the_entropy_has_a_gradient_only_where_it_is_in_the_loss(bonus):
    tokens, shape = jnp.zeros((1, 2), int), model.ModelConfig(vocab_size=5, mask_id=4)
    keys = dict(objective="grpo", init_from="x", rewards=("exact",), use=(losses.EntropyBonus(),) * bonus, model=shape)
    say = rl.as_drawn(rollout_of(tokens), shared.run(**keys))
    place = diffusion.Place(jnp.zeros(1, int), jnp.zeros(1, int), tokens)
    slope = jax.grad(lambda logits: say(logits, jnp.array([1]), place)[1].sum())(jnp.array([[0.5, 1.0, 0.0]]))
    assert slope.any() == bonus


def test_a_negative_reward_is_not_divided_by_the_mean_of_its_group():
    cfg = config.Config(adv_norm="mean", rewards=("exact", "length"), reward_weights=(1.0, 0.5))
    table = np.array([[[0.0, 1.0]], [[0.0, -0.5]]])
    np.testing.assert_allclose(advantages(table, cfg), [[-1, 1]], atol=1e-3)
    refused("rewards must not be negative, but one is -0.5", advantages, table - [[[0.0]], [[1.0]]], cfg)


def test_updates_see_the_largest_advantages_of_the_signs_that_count(tiny):
    adv = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    found = Scored([], [], None, {}, rollout_of(jnp.arange(16)[:, None]))
    select = lambda **keys: rl.select_completions(found, jnp.array(adv), tiny(**keys))
    best = np.argsort(-adv.reshape(-1))[:5]
    some = select(keep_completions=5, adv_negative=0.0)
    for which in some.rollout.number, some.rollout.tokens[:, 0]:
        np.testing.assert_array_equal(which, best)
    np.testing.assert_array_equal(some.advantage, adv.reshape(-1)[best])
    assert abs(select(keep_completions=5).advantage).min() == np.sort(abs(adv), None)[-5]
    np.testing.assert_allclose(select(adv_negative=0.25).advantage, np.where(adv < 0, adv / 4, adv).reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize("chunk, parts", [(3, [3] * 6), (15, [8, 8])])
def test_a_rollout_in_chunks_is_the_rollout(tiny, monkeypatch, chunk, parts):
    cfg = dict(updates_per_rollout=2, gradient_accumulation_steps=2, keep_completions=8)
    *_, whole, expected = one_iteration(tiny(**cfg))
    fill, seen = sample.fill, []
    monkeypatch.setattr(sample, "fill", lambda params, keys, *a: seen.append(len(keys)) or fill(params, keys, *a))
    *_, again, notes = one_iteration(tiny(**cfg, rollout_chunk=chunk))  # 4 prompts with 4 completions each
    assert seen == parts
    for a, b in zip(whole, again, strict=True):
        assert (np.asarray(a.loss.adv) != 0).any()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), a, b)
        np.testing.assert_array_equal(a.rollout.tokens, b.rollout.tokens)
    same = lambda notes: {k: v for k, v in notes.items() if "time" not in k and k != "group"}
    assert notes["group"] == expected["group"] and same(notes) == pytest.approx(same(expected))


@pytest.mark.slow
def test_killed_between_rollout_and_update_and_resumed_it_equals_the_unbroken_run(tiny, tmp_path, monkeypatch):
    options = dict(kl_beta=0.1, **{"moving_reference.mode": "ema", "moving_reference.decay": 0.5},
                   updates_per_rollout=2, minibatch_size=8, logp_est="coupled", ema_decay=0.9)  # fmt: skip
    whole = tiny(**options)
    state, _ = train.train(whole)
    before = flat(begin(whole)[-1].params)
    assert any(not np.allclose(x, before[k]) for k, x in flat(state.reference).items())  # it followed

    seen = []

    def kill(start, state, batch):
        seen.append(state.step)
        if seen.count(3) == 3:
            raise Killed

    cfg = tiny(**options, out_dir=f"{tmp_path}/killed")
    with monkeypatch.context() as m, pytest.raises(Killed):
        watch(m, "grpo", kill)
        train.train(cfg)
    train.train(dataclasses.replace(cfg, resume=True))
    assert left(cfg.out_dir) == left(whole.out_dir)


@pytest.mark.slow
def test_a_static_reference_never_changes_and_without_kl_there_is_none(tiny, monkeypatch):
    cfg = tiny(kl_beta=0.1)
    start = flat(begin(cfg)[-1].params)
    state, _ = train.train(cfg)
    assert any(not np.array_equal(x, start[k]) for k, x in flat(state.params).items())
    assert train.train(tiny(max_iters=1, **{"memory.ref_offload": True}))[0].reference is None
    logp_of, read = rl.logp_of, []
    monkeypatch.setattr(rl, "logp_of", lambda params, *more: read.append(params) or logp_of(params, *more))
    offload = dict(kl_beta=0.1, ratio_level="none", updates_per_rollout=2, **{"memory.ref_offload": True})
    away = train.train(tiny(max_iters=1, **offload))[0].reference
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(away))
    assert len(read) == 2 and read[0] is read[1]  # it is moved to the device once for all minibatches
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(read))
    for reference in state.reference, away:
        jax.tree.map(np.testing.assert_array_equal, flat(reference), start)


@pytest.mark.slow
def test_a_static_reference_is_kept_in_the_16_bits_that_it_computes_with_and_one_that_moves_is_not(tiny):
    model_16 = dataclasses.replace(tiny().model, dtype="bfloat16")
    cfg = tiny(kl_beta=0.1, model=model_16, max_iters=2)
    state = train.train(cfg)[0]
    start = checkpoint.load(cfg.init_from)[0]
    assert kept_in_16_bits(state.reference)
    shape = dataclasses.replace(huggingface.read_config(checkpoint.find(cfg.init_from)), dtype="bfloat16")
    assert np.array_equal(*(model.logits(params, jnp.arange(8)[None], shape) for params in (state.reference, start)))
    resumed = train.train(dataclasses.replace(cfg, resume=True, max_iters=3))[0].reference
    same = lambda a, b: a.dtype == b.dtype and np.array_equal(a, b)
    assert jax.tree.all(jax.tree.map(same, resumed, state.reference))
    moving = train.train(tiny(kl_beta=0.1, model=model_16, max_iters=1,
                              **{"moving_reference.mode": "ema"}))[0].reference
    assert {x.dtype for x in jax.tree.leaves(moving)} == {jnp.dtype("float32")}


@pytest.mark.slow
@pytest.mark.parametrize("offload", [False, True])
def test_a_run_holds_params_two_moments_and_the_reference_and_nothing_of_its_start(tiny, monkeypatch, offload):
    """Of bytes, as `gate` and `up` have one shape: when it begins, after an iteration, and when it is resumed."""
    cfg, alive = tiny(max_iters=2, kl_beta=0.1, **{"memory.ref_offload": offload}, eval_interval=9), []
    make = rl.make_update
    size = lambda arrays: sum(x.nbytes for x in arrays)
    start = size(jax.tree.leaves(checkpoint.load(cfg.init_from)[0]))
    held = lambda: gc.collect() and 0 or size(jax.live_arrays())

    def counted(*args):
        update = make(*args)
        alive.append(held() - before)
        return lambda *given: (update(*given), alive.append(held() - before - size(jax.tree.leaves(given[4]))))[0]

    monkeypatch.setattr(rl, "make_update", counted)
    monkeypatch.setattr(evaluation, "evaluate_and_log", lambda run, state, best: ({"val/sampled": 0.0}, best))
    monkeypatch.setattr(runs, "ending", lambda *_: "")
    for changes in ({}, {"max_iters": 3, "resume": True}):
        gc.collect()
        before = held()
        train.train(shared.changed(cfg, **changes))
    assert len(alive) == 2 + 3 and all(abs(x / start - (3 if offload else 4)) < 0.1 for x in alive), alive


def test_what_the_base_could_do_before_does_not_end_a_resumed_run(tiny, monkeypatch, capsys):
    """stop_at was passed by the start, and by no evaluation since; the start is named as the best."""
    def scripted(cfg, tok, start):
        evaluate = lambda state, key: ({"val/greedy": 0.0, "val/sampled": 0.1 if state.step else 0.9}, [])
        return train.tune(cfg, tok, start)._replace(evaluate=evaluate)

    monkeypatch.setitem(rl.OBJECTIVES, "grpo", scripted)
    cfg = tiny(stop_at=0.5, max_iters=2, eval_interval=1, save_interval=9)
    assert train.train(cfg)[0].step == 2
    start = checkpoint.find(cfg.init_from)
    assert f"step-000002, none better than the start, {start}: val/sampled 0.9000, of 3" in capsys.readouterr().out
    assert train.train(dataclasses.replace(cfg, resume=True, max_iters=3))[0].step == 3


SOME = [{"prompt": "12", "completion": "21"}] * 30 + [{"prompt": "34"}] * 10
HOLES = [{"prompt": "12", "completion": "21", "masked": "2<|mask|>"}] * 30 + [{"prompt": "3", "completion": "43"}] * 10
BETTER = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 10
LEARN = dict(objective="pretrain", init_from=None, rewards=())


@pytest.mark.parametrize("rows, keys, words", [
    (SOME, dict(fill_in=True), r"fill_in=True needs a completion in all rows.* rows \d+ have no completion"),
    (SOME, LEARN, "rows have no completion to learn from"),
    (BETTER, LEARN, "9 of 9 rows have no completion to learn from .*--objective=judge"),
    (HOLES, dict(fill_in=True), r"train: fill_in=True needs .* of 3\d rows .* and \d+ have `masked`")])
def test_filling_in_and_learning_need_completions(tiny, tmp_path, rows, keys, words):
    refused(words, begin, tiny(dataset=jsonl(tmp_path / "rows.jsonl", rows), **keys))


@pytest.mark.slow
def test_it_learns_and_says_what_it_was_before_and_after(tiny, capsys):
    cfg = tiny(max_iters=60, batch_size=8, group_size=8, learning_rate=3e-3, eval_interval=60,
               **{"evaluation.samples": 4})
    train.train(cfg)
    out = capsys.readouterr().out
    for name in ("greedy", "sampled", "pass@4"):
        assert re.search(rf"{name} [\d.]+ → [\d.]+", out)
    reward = [row["reward"] for row in lines(cfg.out_dir) if "reward" in row]
    assert np.mean(reward[-20:]) > np.mean(reward[:5]) + 0.15, reward  # 0.2 and more with each of four seeds
    first = lines(cfg.out_dir, "samples.jsonl")[0]
    assert {*first} == {"prompt", "greedy", "sampled", "rewards", "step", "columns"}
    assert len(first["sampled"]) == len(first["rewards"]) == 4


@pytest.mark.parametrize("changes, words", [
    ({"group_size": 1}, "group_size=1"),
    ({"rewards": ()}, "needs rewards"),
    ({"init_from": None}, "needs init_from"),
    ({"minibatch_size": 5}, "minibatch_size=5 must divide the 16 completions that learn"),
    ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3 must divide"),
    ({"mask_ratio_min": 0.9}, "mask_ratio_min=0.9"),
    ({"temperature": 0.0}, "temperature=0"),
    ({"top_k": 1}, "top_k=1: all completions of a group would be equal"),
    ({"kl_est": "k1", "kl_beta": 0.1}, "gradient is 0 on average"),
    ({"loss_type": "wd1"}, "ratio_level='none'"),
    ({"group_size": 10**9}, "this run cannot fit: "),
    ({"group_size": 10**9, "init_from": "config/sudoku_base.py", "model": model.ModelConfig()}, "cannot fit: "),
    ({"rewards": ("judge",)}, "judge_from"),
    ({"rewards": ("keywords",)}, "needs the column 'keywords'; there are"),
    ({"rewards": ("judge",), "judge_from": "BASE"}, "is not a judge"),
    ({"max_prompt_len": 1}, "max_new_tokens=4: 80 left out: prompt longer than 1 tokens (the longest has 2)"),
    ({"logp_est": "coupled", "masked_prompt.share": 0.15}, "masked_prompt.share=0.15 changes nothing here"),
    ({"mask_ratio_min": 0.1}, "mask_ratio_min=0.1 changes nothing here, it is for fill_in or logp_est='coupled'"),
    ({"paired": True}, "paired changes nothing with objective='grpo': leave it out"),
    ({"loss_norm": "completion"}, "set loss_norm='token'"),
    ({"ratio_level": "none", "clip_high": 0.3}, "clip_high=0.3 changes nothing here, it is for a ratio"),
    ({"adv_norm": "mean", "reward_norm": "each"}, "adv_norm='mean' changes nothing here, it is for reward_norm='sum'"),
    ({"moving_reference.mode": "ema"}, "moving_reference.mode='ema' changes nothing here, it is for kl_beta above 0"),
    ({"adv_norm": "none", "adv_eps": 0.1}, "adv_eps=0.1 changes nothing here, it is for a divisor"),
    ({"rewards": ("length(target=x)",)}, "target=x should be a number"),
])  # fmt: skip
def test_what_cannot_work_is_said_before_anything_compiles(tiny, place, changes, words):
    changes = {k: f"{place}/base" if v == "BASE" else v for k, v in changes.items()}
    refused(re.escape(words), lambda: begin(tiny(**changes)))


@pytest.mark.parametrize("typed, words", [
    ("--kl_beta=0.1 --ref_from=nowhere", "'nowhere' is not a folder"),
    ("--rewards=exact,judge --judge_from=nowhere", "'nowhere' is not a folder"),
    ("--base.objective=judge", "init_from='config/sudoku_base.py' trains a judge, which writes no texts"),
    ("--rewards=exact,judge --judge_from=config/sudoku_base.py", "judge_from='config/sudoku_base.py' trains no judge")])
def test_what_a_run_names_is_looked_at_before_its_base_is_trained(typed, words, tmp_path):
    def prepared():
        setup.prepare(config.load(["config/sudoku_grpo.py", f"--base.out_dir={tmp_path}/base", *typed.split()]), None)

    refused(words, prepared)


def test_held_out_rows_that_do_not_fit_are_refused_before_the_base_is_trained(tmp_path):
    for split, prompt in (("train", "1"), ("val", "1" * 99)):
        jsonl(tmp_path / f"{split}.jsonl", [{"prompt": prompt, "completion": "2"}] * 9)
    typed = f"--dataset={tmp_path}", "--rewards=exact", f"--base.out_dir={tmp_path}/base", "--max_prompt_len=5"
    refused("val: no row fits", setup.prepare, config.load(["config/sudoku_grpo.py", *typed]), None)


def test_a_reference_may_be_the_base_that_is_still_to_be_trained(tmp_path):
    base = f"{tmp_path}/base"
    typed = f"--base.out_dir={base}", "--kl_beta=0.1", f"--ref_from={base}"
    with pytest.raises(TypeError):  # there is nothing that trains it
        setup.prepare(config.load(["config/sudoku_grpo.py", *typed]), None)


def test_a_machine_that_contains_nothing_is_refused_before_the_first_rollout(tiny, tmp_path, monkeypatch):
    from judges.sandbox import pool

    def nothing_holds(jobs, **_):
        raise RuntimeError("this machine does not contain: network")

    monkeypatch.setattr(pool, "run", nothing_holds)
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": "12", "completion": "21", "tests": ["assert True"]}] * 30)
    refused("does not contain: network", begin, tiny(rewards=("tests",), dataset=path))


ROW, ASKED = {"prompt": "a", "completion": "aa"}, {"prompt": "e", "answer": "ee"}


@pytest.mark.parametrize("rows, held_out, nelbo", [
    ([{"text": "漢é" * 28}] * 19, [{"text": "漢é" * 28}] * 2, True),  # 140 bytes, twenty windows of 7 cut characters
    ([ROW] * 4, [ROW, ASKED], True), ([ROW] * 4, [ASKED], False)])
def test_held_out_rows_have_bits_per_byte_and_without_a_completion_they_are_filled_only(
        tmp_path, monkeypatch, rows, held_out, nelbo):
    lengths = dict(max_prompt_len=0, max_new_tokens=7) if "text" in rows[0] else {}
    monkeypatch.setattr(evaluation, "pass_rates", lambda *given: ({"rows": len(given[-1].rows)}, []))
    *_, task, state = begin(shared.run(**SECONDS | lengths, dataset=write_splits(tmp_path, rows, held_out)))
    out, _ = task.evaluate(state, KEY)
    assert (4 < out["val/nelbo"] < 9) == nelbo and out["rows"] == (8 if lengths else len(held_out))
    if lengths:
        assert out["val/bits_per_byte"] == pytest.approx(out["val/nelbo"] / np.log(2))  # a token is a byte here


def test_a_judges_generator_fills_all_windows_of_a_text_and_what_has_no_room_is_a_pair_too(tmp_path, monkeypatch):
    rows = [{"prompt": "", "completion": "abcdefghij" * 2}] * 8 + [{"prompt": "p", "completion": "far too long"}] * 8
    cfg = shared.run(**SECONDS | dict(max_new_tokens=6), dataset=jsonl(tmp_path / "rows.jsonl", rows),
                     objective="judge", init_from="a model")  # fmt: skip
    made, make_pairs = [], judge.make_pairs
    zs = lambda params, keys, arrays, *_: (jnp.where(arrays.maskable, ord("z"), arrays.tokens), {})
    monkeypatch.setattr(sample, "fill", zs)
    monkeypatch.setattr(judge, "make_pairs", lambda *given: made.append(make_pairs(*given)) or made[-1])
    judge.judge_task(dataclasses.replace(cfg, model=SECONDS["model"]), data.Tokenizer.bytes(), {"a": "model"})
    filled = [len(text) for text, kind in zip(made[0].worse, made[0].kinds, strict=True) if "filled" in kind]
    assert filled == [20] * 4 and len(made[0].better) > 12  # a window alone would be known by its length


# ---- autoregressive models ----
CAUSAL = dict(order="left", model=model.ModelConfig(n_layer=1, n_head=2, d_model=32, causal=True, shift=True))


@pytest.fixture(scope="module")
def causal(place):
    """Flags of a GRPO run that starts from an autoregressive model which has seen a little of the data set."""
    train.train(shared.run(**SECONDS | CAUSAL, dataset=str(place), out_dir=f"{place}/causal", rewards=("exact",),
                              max_iters=200, eval_interval=200, learning_rate=3e-3))  # fmt: skip
    return CAUSAL | dict(init_from=f"{place}/causal", logp_est="exact")


@pytest.mark.slow
def test_a_causal_model_writes_the_pairs_of_a_judge_is_its_trunk_and_is_judged_by_it(tiny, causal, place, tmp_path):
    cfg = shared.run(**SECONDS | CAUSAL, dataset=str(place), objective="judge", init_from=f"{place}/causal",
                        **{"judge.n_rows": 16}, max_iters=1, eval_interval=1, out_dir=f"{tmp_path}/judge")  # fmt: skip
    train.train(cfg)
    assert any("filled at" in row["kind"] for row in runs.read_lines(f"{tmp_path}/judge/samples.jsonl"))
    notes = one_iteration(tiny(**causal, rewards=("judge",), judge_from=f"{tmp_path}/judge"))[-1]
    assert 0 < notes["reward"] < 1


@pytest.mark.slow
def test_a_causal_model_becomes_a_denoiser_that_is_resumed_as_one(causal, place, tmp_path):
    cfg = shared.run(**SECONDS, dataset=str(place), init_from=f"{place}/causal", adapt=True, max_iters=2,
                        eval_interval=2, save_interval=2, out_dir=f"{tmp_path}/out")  # fmt: skip
    train.train(cfg)
    train.train(dataclasses.replace(cfg, max_iters=4, resume=True))
    _, shape = checkpoint.load(cfg.out_dir)
    assert (huggingface.family_of(shape), shape.causal, shape.shift, shape.mask_id) == ("Dream", False, True, 256)
    with pytest.raises(ValueError, match="is a denoiser already"):
        train.train(dataclasses.replace(cfg, init_from=f"{place}/base", out_dir=f"{tmp_path}/other"))
    refused("adapt=True makes a denoiser", dataclasses.replace, cfg, objective="judge")


def test_two_variants_that_train_parameters_of_their_own_are_refused():
    freezes = type("Other", (sections.Section,), {"freezes": True, "__module__": "variants.other"})
    both = types.SimpleNamespace(use=(freezes(), lora.Keys()))
    refused("other and lora each train parameters of their own: leave one out", config.freezing, both)


def test_a_run_says_how_each_iteration_went_and_logs_what_its_first_group_wrote(tiny, place, capsys):
    shown = ("exact", f"{place}/my.py:short")
    cfg = tiny(rewards=shown, reward_weights=(1.0, 0.5), max_iters=3, log_interval=2, eval_interval=9, kl_beta=0.1,
               adv_negative=0.0, pass_at=0.5, **{"evaluation.samples": 1})  # fmt: skip
    train.train(cfg)
    out = capsys.readouterr().out
    line = r"^step +(\d)  reward (\S+)  ± \S+  pass (\S+)%  entropy \S+  kl \S+  rollout \S+ \+ .* s$"
    told = re.findall(line, out, re.M)
    assert [t[0] for t in told] == ["1", "2", "3"], told
    words = f"a model of .* parameters learns in 3 steps from 4 completions of each of {cfg.batch_size} prompts, of "
    assert re.search(f"grpo on {cfg.dataset}: {words}{cfg.max_prompt_len + cfg.max_new_tokens} tokens", out)
    (row,), rows = (runs.read_lines(f"{cfg.out_dir}/{name}.jsonl") for name in ("rollouts", "metrics"))
    (logged,) = (r for r in rows if "reward" in r)
    assert row["step"] == logged["step"] == 2 and float(told[1][1]) == pytest.approx(logged["reward"], abs=1e-3)
    assert logged["pass_rate"] == logged["rewards/exact/mean"] == float(told[1][2]) / 100 and "group" not in logged
    assert logged["tokens"] == 2 * cfg.batch_size * cfg.group_size * (cfg.max_prompt_len + cfg.max_new_tokens)
    assert len(row["completions"]) == len(row["advantages"]) == 4 and set(row["rewards"]) == {"exact", "short"}
    assert row["rewards"]["exact"] == [float(text == row["prompt"][::-1]) for text in row["completions"]]
    assert row["rewards"]["short"] == [1 / len(text) if text else None for text in row["completions"]]
    assert None in row["advantages"] and all(a is None or a > 0 for a in row["advantages"])  # the others do not learn


def test_the_rate_of_passing_is_printed_where_it_is_known_and_not_the_reward_itself(tiny, place, capsys):
    (place / "much.py").write_text("def much(completions):\n    return [16.0 - i % 3 for i in range(len(completions))]")
    much, exact = {"rewards": (f"{place}/much.py:much",)}, {"rewards": ("exact",)}  # much is beyond 1, and no share
    for keys, printed, logged in (much, False, False), (much | {"pass_at": 15.0}, True, True), (exact, False, True):
        cfg = tiny(**keys, max_iters=1, log_interval=1, **{"evaluation.samples": 1})
        train.train(cfg)
        line = re.search(r"^step +1  reward (\S+)  ± \S+  (pass \d\d\S+  )?entropy", capsys.readouterr().out, re.M)
        assert bool(line[2]) == printed and line[1].startswith("0." if keys is exact else "15.")
        assert ["pass_rate" in r for r in runs.read_lines(f"{cfg.out_dir}/metrics.jsonl") if "reward" in r] == [logged]


def test_the_config_is_on_disk_before_the_first_step_and_a_group_that_fills_in_shows_its_holes(tiny, monkeypatch):
    cfg, seen = tiny(fill_in=True, mask_ratio_min=0.5, mask_ratio_max=0.5, max_iters=1, eval_interval=9), []
    monkeypatch.setattr(train, "advance", lambda run, state, old=train.advance: (
        seen.append(json.load(open(f"{cfg.out_dir}/run.json"))["config"]), old(run, state))[1])  # fmt: skip
    train.train(cfg)
    assert seen[0]["mask_ratio_min"] == 0.5 and seen[0]["model.mask_id"] == 256
    (row,) = runs.read_lines(f"{cfg.out_dir}/rollouts.jsonl")
    before, hole, after = row["masked"].partition("<|mask|>")
    assert hole and re.fullmatch(r"\d?", before) and re.fullmatch(r"\d?", after) and "<" not in after
    assert all(text.startswith(before) and text.endswith(after) for text in row["completions"])


MOODY = """
import os
calls = []
def moody(prompts, completions):
    calls.append(0)
    return [{words}] * len(prompts)
"""


@pytest.mark.filterwarnings("error:.*empty slice:RuntimeWarning", "error:Degrees of freedom:RuntimeWarning")
def test_a_step_that_nobody_judged_is_skipped_and_counted_and_the_run_goes_on(tiny, tmp_path, capsys):
    # The calls: a trial, 2 of the first evaluation (greedy, sampled), then a step each, but for the second.
    (tmp_path / "my.py").write_text(MOODY.format(words="None if len(calls) in (2, 3, 5) else len(calls) % 2 / 2"))
    cfg = tiny(rewards=(f"{tmp_path}/my.py:moody",), max_iters=3, log_interval=3, eval_interval=9, warmup_iters=4,
               **{"evaluation.samples": 1})  # fmt: skip
    assert train.train(cfg)[0].step == 3
    rows = runs.read_lines(f"{cfg.out_dir}/metrics.jsonl")
    assert [(r["step"], r["skipped"]) for r in rows if "skipped" in r] == [(2, 1.0), (3, 0.0)]
    assert "loss" not in rows[1] and rows[1]["reward"] is None and rows[0]["val/greedy"] is None
    assert rows[2]["learning_rate"] == pytest.approx(cfg.learning_rate * 2 / 4)  # that of the second update, in step 3
    out = capsys.readouterr().out
    assert "step      2  no update: no reward has an opinion on any completion" in out
    assert "moody has no opinion on any of the 8 greedy completions" in out
    assert "sampled none → " in out


@pytest.mark.parametrize("words", ["1 / 0", slow("exit(0)")])
def test_a_reward_that_fails_loses_no_step_and_is_named_with_its_row_and_step(tiny, tmp_path, words):
    (tmp_path / "my.py").write_text(MOODY.format(words=f"0.0 if len(calls) < 6 else {words}"))
    cfg = tiny(rewards=(f"{tmp_path}/my.py:moody",), max_iters=4, save_interval=99, **{"evaluation.samples": 1})
    with pytest.raises(ValueError, match=r"step 3: reward 'moody' failed on row 0 \(prompt '\d+', .* \(.*my.py:6\)"
                                         r"\. Saved .*out/step-000002; mend it and continue with --resume=True"):
        train.train(cfg)
    (tmp_path / "my.py").write_text(MOODY.format(words="0.5"))
    assert train.train(dataclasses.replace(cfg, resume=True))[0].step == 4


def rates(tiny, tmp_path, body, **changes):
    """What an evaluation finds with a reward of this body, which sees texts and the number of each."""
    (tmp_path / "my.py").write_text("def mine(prompts, completions):\n    return [" + body
                                    + " for i, text in enumerate(completions)]\n")  # fmt: skip
    *_, task, state = begin(tiny(**{"rewards": (f"{tmp_path}/my.py:mine",)} | changes))
    assert task.best_metric == "val/sampled"
    return task.evaluate(state, KEY)[0]


@pytest.mark.parametrize("body, keys, found", [
    # Of the four completions of a prompt: 0, 1/4, 2/4 and 3/4.
    ("i % 4 / 4", {}, {"sampled": 0.375, "pass@4": 0.75, "greedy": 0.375}),
    ("i % 4 / 4", {"pass_at": 0.5}, {"sampled": 0.5, "pass@4": 1.0}), ("i % 4 / 4", {"pass_at": 1.0}, {"sampled": 0.0}),
    ("None if i % 4 else 1.0", {}, {"sampled": 1.0}),  # what has no opinion has not failed
    # The reward that decides need not be one that is trained.
    ("-1.0 - i % 4", {"rewards": ("exact",), "eval_rewards": ("MINE",)}, {"sampled": -2.5, "sampled/mine": -2.5}),
    # Two of eight prompts are solved by all of their completions: the error is that of a mean over prompts.
    ("float(i // 4 < 2)", {}, {"sampled": 0.25, "sampled_se": np.std([1, 1, 0, 0, 0, 0, 0, 0], ddof=1) / 8**0.5})])
def test_what_an_evaluation_finds(tiny, tmp_path, body, keys, found):
    keys = keys | ({"eval_rewards": (f"{tmp_path}/my.py:mine",)} if "eval_rewards" in keys else {})
    rated = rates(tiny, tmp_path, body, **keys)
    assert {name: rated[f"val/{name}"] for name in found} == pytest.approx(found)


def test_a_greedy_completion_differs_from_no_other(tiny, tmp_path):
    alone = rates(tiny, tmp_path, "0.0", rewards=("diversity",))
    assert np.isnan(alone["val/greedy"]) and 0 < alone["val/sampled"] < 1


FAST = dict(rule="threshold", threshold=0.4, reward_norm="each")


def test_the_passes_of_every_row_reach_the_reward_in_rollouts(tiny, place):
    """Also where rows take turns in the slots of a chunk."""
    named = f"{place}/my.py:digits", "passes(right=0.5)"
    cfg, tok, _, _, (b,), notes = one_iteration(tiny(rewards=named, rollout_chunk=8, **FAST))
    step, ids = np.asarray(b.rollout.step), completion_ids(b.rollout.tokens, tok, cfg)
    took = np.array([len({*row} - {-1}) for row in step.tolist()])
    np.testing.assert_array_equal(b.rollout.passes, took)
    fast = np.array([min(len(row) + 1, cfg.max_new_tokens) for row in ids]) / took
    assert len({*fast.tolist()}) > 1 and notes["tokens_per_pass"] == pytest.approx(fast.mean())
    prompts = [tok.decode([i for i in row if i != tok.pad_id]) for row in np.asarray(b.rollout.tokens)[:, :3].tolist()]
    right = np.array([sum(a == c for a, c in zip(tok.decode(row), p[::-1], strict=False)) / 2 >= 0.5
                      for row, p in zip(ids, prompts, strict=True)])  # fmt: skip
    assert 0 < right.sum() < 16 and notes["rewards/passes/none_frac"] == pytest.approx(1 - right.mean())
    assert notes["rewards/passes/mean"] == pytest.approx(fast[right].mean())


def test_the_speed_of_an_evaluated_text_is_its_own(tiny, tmp_path, monkeypatch):
    """Of four samples of a prompt only the first is right, and only the first took a single pass."""
    fill, calls = sample.fill_rows, itertools.count(-1)  # the first call is greedy

    def marked(*args):
        x, trace = fill(*args)
        return x, trace | {"passes": np.full(len(x), 10**next(calls) if args[4].temperature else next(calls) + 2)}

    monkeypatch.setattr(sample, "fill_rows", marked)
    found = rates(tiny, tmp_path, "float(i % 4 == 0)", rewards=(f"{tmp_path}/my.py:mine", "passes(right=1)"), **FAST)
    assert found["val/sampled"] == 0.25 and found["val/sampled/passes"] > 1 > found["val/sampled/tokens_per_pass"] > 0


@pytest.mark.parametrize("named", [dict(rewards=("passes", "exact")), dict(eval_rewards=("passes",))])
def test_speed_does_not_decide_what_is_right(named, tiny):
    refused("'passes' comes first.*name the task's reward before it", begin, tiny(**named, **FAST))


@pytest.mark.slow
def test_a_reference_longer_than_a_completion_may_be_leaves_no_row_out(tiny, tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": f"{i}", "completion": "1" * i, "answer": "1"} for i in range(1, 41)])
    cfg = tiny(dataset=path, rewards=("exact",), batch_size=32, eval_size=2)
    *_, task, state = begin(cfg)
    assert {row["prompt"] for row in task.evaluate(state, KEY)[1]} == {"39", "40"}  # of 4 tokens at most are 1 to 4
    (batch, _), *_ = batches_of(task, state, KEY)
    assert len({tuple(x) for x in np.asarray(batch.rollout.tokens)[:, :3].tolist()}) == 32
    assert len(encode_split(cfg, data.Tokenizer.bytes(), "train").rows) == 4  # to be learnt


def test_rows_in_a_language_that_nothing_runs_are_named_at_the_start(tiny, tmp_path, capsys):
    row = {"prompt": "12", "completion": "21", "tests": ["assert True"]}
    rows = [row | {"language": name} for name in ["Python 3", "rust", "py"] * 10]
    begin(tiny(rewards=("tests",), dataset=jsonl(tmp_path / "rows.jsonl", rows)))
    assert "no opinion on 10 rows in 'rust', which tests are not run in" in capsys.readouterr().out


# ---- what else a row and a run can ask for ----
def test_rows_may_say_themselves_which_tokens_to_fill(tiny, tmp_path):
    rows = [{"prompt": f"{i}", "masked": f"{i}<|mask|>a", "answer": "-"} for i in range(10, 40)]
    given = tiny(dataset=write_splits(tmp_path, rows, rows[:1] * 3), fill_in=True)
    cfg, tok, _, _, batches, _ = one_iteration(given)
    x, mask = np.asarray(batches[0].rollout.tokens), np.asarray(batches[0].rollout.counts)
    assert (mask.sum(1) == 1).all() and mask[:, cfg.max_prompt_len + 2].all()
    for row in x.tolist():
        assert row[:2] == row[3:5] or row[1:3] == row[3:5]
        assert row[6] == tok.encode("a")[0]
    jsonl(tmp_path / "train.jsonl", [row | {"masked": f"{row['prompt']}ba"} for row in rows])
    refused("0 <.mask.> among 4 tokens", one_iteration, given)


def test_a_denoiser_may_learn_to_fill_in_the_masks_of_its_rows_and_is_judged_on_them(tiny, tmp_path):
    rows = [{"prompt": "", "masked": "1<|mask|>3<|mask|>", "completion": f"1{i}34"} for i in range(10)]
    cfg = tiny(objective="pretrain", init_from=None, rewards=(), group_size=8, fill_in=True, max_prompt_len=0,
               max_new_tokens=4, batch_size=10, dataset=write_splits(tmp_path, rows, rows))  # fmt: skip
    _, tok, task, state = begin(cfg)
    (batch, _), *_ = batches_of(task, state, KEY)
    hidden = np.asarray(batch.z[:, 0] == tok.mask_id)
    assert hidden[:, 1].any() and hidden[:, 3].any() and not hidden[:, ::2].any()
    assert {tok.decode(row.tolist()) for row in np.asarray(batch.x)} == {f"1{i}34" for i in range(10)}
    metrics, samples = task.evaluate(state, KEY)
    assert np.isfinite(metrics["val/nelbo"]) and "val/bits_per_byte" not in metrics
    assert all(re.match("1.*3", row["greedy"], re.S) and row["prompt"] == "1_3_" for row in samples)
    jsonl(tmp_path / "train.jsonl", [row | {"masked": "2<|mask|>3<|mask|>"} for row in rows])
    refused("masked='2<.mask.>3<.mask.>' should be the completion '1.34' with some tok", begin, cfg)


TOP_P, TOP_K = {"top_p": 0.7}, {"top_k": 3, "repetition_penalty.penalty": 1.5}
SCORED = [  # what else the run has, its filters
    ("trace", {"logp_views": 4}, {}), ("trace", {"logp_views": 2}, {}), ("trace", {"logp_views": 1}, {}),
    ("trace", {}, TOP_P), ("trace", {}, TOP_K), ("exact", {}, TOP_K),
    ("chunks", {"gradient_accumulation_steps": 4}, TOP_P),
    ("coupled", {"logp_est": "coupled"}, TOP_K), ("coupled", {"logp_est": "one_step"}, {})]


@pytest.mark.slow
@pytest.mark.parametrize("kind, keys, filters", SCORED)
def test_what_was_drawn_is_scored_under_the_distribution_it_was_drawn_from(
        tiny, request, monkeypatch, kind, keys, filters):
    """Old, new and reference: before the first update their ratios are 1, and nothing lies between the log-probs that
    are trained and those that were drawn. Of coupled and one_step, whose views the sampler never saw, they are finite.
    """
    keys = request.getfixturevalue("causal") if kind == "exact" else keys
    if kind == "chunks":  # of 16 positions, too
        monkeypatch.setattr(kernels, "LOGITS_BYTES", 64 * 259)
    cfg = tiny(**{"updates_per_rollout": 2, "kl_beta": 0.1, "batch_size": 8} | keys | filters)
    cfg, _, task, state, batches, _ = one_iteration(cfg)
    score = jax.jit(task.loss)
    for b in batches:
        m = {k: float(v) for k, v in score(state.params, b)[1].items()}
        assert m["ratio_max"] == pytest.approx(1, abs=1e-4) and abs(m["kl"]) < 1e-6
        assert (m["behaviour_gap"] < 1e-4) == (kind != "coupled") and np.isfinite(list(m.values())).all()
        assert m["entropy"] > 0.5  # of those that a view scores: not 0 for the others
    if kind != "coupled" and filters:  # scored under the whole distribution they are others
        cfg = shared.changed(cfg, top_p=None, top_k=None, **{"repetition_penalty.penalty": 1.0})
        whole = jax.jit(functools.partial(rl.policy_loss, cfg=cfg))
        assert float(whole(state.params, batches[0])[1]["behaviour_gap"]) > 0.05


def test_a_reference_of_another_shape_is_refused(tiny, place, tmp_path):
    _, shape = checkpoint.load(checkpoint.find(f"{place}/base"))
    shape = dataclasses.replace(shape, n_layer=2)
    huggingface.save(f"{tmp_path}/other", model.init(KEY, shape), shape)
    with pytest.raises(ValueError, match="the model there has n_layer=2, the policy 1: the two must be of one shape"):
        setup.setup(tiny(kl_beta=0.1, ref_from=f"{tmp_path}/other"), contextlib.ExitStack(), train.train)


def test_keys_of_a_run_reach_its_plan_and_only_rollouts_may_go_on_behind_an_end(tiny):
    keys = dict(rule="factor", cache="dual", threshold=0.5, **{"factor.limit": 0.3}, tempered=True, block_len=2)
    cfg = tiny(**keys)
    assert sections.flat(sample.plan(cfg, 1.0)).items() >= keys.items()
    assert sample.plan(cfg, 1.0).early_end and sample.plan(tiny(), 1.0).block_len == 4
    refused("early_end=True samples nothing after an end", tiny, early_end=True, score_after_end=True)


@functools.partial(jax.jit, static_argnames=("level", "loss"))
def drift(logp, old, w, s, level, loss):
    """The loss, its metrics and its gradient, of log-probs (B, T) in views with weights w and shares s."""
    of = lambda x: (w * x[:, None]).sum(1)  # every view says the same of a token
    o = grpo.LossConfig(loss, level, kl_beta=0.5, kl_est="k2", clip_low=0.25, clip_high=0.25)
    hole, adv = jnp.ones(logp.shape, bool), jnp.linspace(-1, 1, len(logp))
    weight = grpo.token_weights(loss, hole, 16)
    batch = grpo.LossBatch(adv, hole, weight, s / s.sum(), of(old), of(old - 0.1), s)
    return jax.value_and_grad(lambda logp: grpo.loss(of(logp), batch, o), has_aux=True)(logp)


def drifted(logp, old, n, level, loss="dapo"):
    """log-probs (B, T) of 8 steps of two tokens, of which `trace` draws n -> loss, its gradient, metrics."""
    hole, step = jnp.ones(logp.shape, bool), jnp.tile(jnp.arange(16) // 2, (len(logp), 1))
    _, w, s = diffusion.views(KEY, "trace", hole, step=step, n=n)
    (total, metrics), grad = drift(logp, old, w, s, level, loss)
    return float(total), grad, {k: float(v) for k, v in metrics.items()}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_drift_has_the_same_ratio_clip_and_kl_however_many_steps_are_drawn(level):
    old = -jnp.abs(jax.random.normal(KEY, (6, 16)))
    total, _, expected = drifted(old + 0.2, old, 8, level)
    assert expected["ratio_max"] == pytest.approx(np.exp(0.2), rel=1e-4) and expected["clip_ratio/region_mean"] == 0
    for n in (1, 3):
        some, _, metrics = drifted(old + 0.2, old, n, level)
        assert some == pytest.approx(total, rel=1e-4, abs=1e-6)
        for name in set(expected) - {"logp"}:
            assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("level, loss", [
    ("token", "dapo"), ("none", "dapo"), slow("token", "cispo")])
def test_the_gradient_of_a_sample_of_steps_is_that_of_all_of_them_on_average(level, loss, monkeypatch):
    """Also away from the old policy, clipped and with a KL. One step of eight is drawn: all eight of them."""
    assert sections.plugged(grpo.LOSSES, loss)
    old = -jnp.abs(jax.random.normal(KEY, (6, 16)))
    logp = old + 0.3 * jax.random.normal(jax.random.key(1), old.shape)
    _, whole, _ = drifted(logp, old, 8, level, loss)
    grads = []
    for step in range(8):
        monkeypatch.setattr(jax.random, "uniform", lambda key, shape, step=step: jnp.full(shape, (step + 0.5) / 8))
        grads.append(drifted(logp, old, 1, level, loss)[1])
    np.testing.assert_allclose(np.mean(grads, 0), whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("objective, size, changes", [
    ("pretrain", 4, dict(rollout_chunk=4)), ("pretrain", 3, dict(batch_size=6, gradient_accumulation_steps=2)),
    ("judge", 4, dict(batch_size=4, **{"judge.n_rows": 16}))])
def test_held_out_texts_are_scored_no_more_at_a_time_than_a_step_has(
        place, tmp_path, monkeypatch, objective, size, changes):
    sizes, whole, score = set(), evaluation.likelihood, judge.rate
    monkeypatch.setattr(evaluation, "likelihood", lambda params, batch, *rest, **more: (
        sizes.add(len(batch.tokens)) or whole(params, batch, *rest, **more)))  # fmt: skip
    monkeypatch.setattr(judge, "rate", functools.wraps(score)(lambda params, tokens, *rest, **more: (
        sizes.add(len(tokens)) or score(params, tokens, *rest, **more))))  # fmt: skip
    cfg = SECONDS | dict(eval_size=7, objective=objective, dataset=str(place), out_dir=f"{tmp_path}/out") | changes
    *_, task, state = begin(shared.run(**cfg))
    values, _ = task.evaluate(state, KEY)
    assert sizes == {size} and 5 < values.get("val/nelbo", 6) < 7  # log 259 = 5.56


def test_a_run_asks_each_of_its_sections_in_the_order_of_their_names():
    """Also one of a file that nobody knows, whatever its name."""

    def section(name, change):
        kind = type("Keys", (config.Section,), {"__module__": f"variants.{name}"} | change)
        return dataclasses.dataclass(frozen=True)(kind)()

    later = section("z_doubled", {"credit": lambda self, found, adv, cfg: 2 * adv})
    first = section("my_credit", {"credit": lambda self, found, adv, cfg: adv + 1})
    cfg = config.Config(use=(later, first), objective="grpo", init_from="x", batch_size=2, group_size=2)
    found = types.SimpleNamespace(rollout={"tokens": jnp.zeros((4, 3))})
    adv = rl.select_completions(found, jnp.array([[1.0, -1.0], [0.0, 0.0]]), cfg).advantage
    np.testing.assert_array_equal(adv, [4, 0, 2, 2])  # not 2 * adv + 1
    for wrong in (lambda self, found, adv, cfg: adv[0], lambda self, found, adv, cfg: adv.sum()):
        cfg = shared.changed(cfg, use=(section("my_credit", {"credit": wrong}),))
        said = r"my_credit returns the shape \(2?,?\): expected \(2, 2\)"
        refused(said, rl.select_completions, found, adv.reshape(2, 2), cfg)


def test_a_reference_off_the_device_is_the_same_reference(tiny):
    tree = lambda seed: {"w": jax.random.normal(jax.random.key(seed), (3, 2))}
    for mode in ("ema", "periodic"):
        cfg = tiny(kl_beta=0.1, **{"moving_reference.mode": mode, "moving_reference.interval": 2})
        state = rl.State(2, tree(0), (), None, tree(1))
        both = (shared.changed(cfg, **{"memory.ref_offload": off}) for off in (False, True))
        here, away = (moving_reference.Keys.of(cfg).reference(state, cfg) for cfg in both)
        assert isinstance(away["w"], np.ndarray) and (away["w"] == np.asarray(here["w"])).all()


# ---- from Python ----
SHORT = {"short": lambda completion: 1 - len(completion) / 4}


def test_rows_and_rewards_of_a_python_program_need_no_file(tiny):
    rows = [{"prompt": f"{i:02d}", "completion": f"{i:02d}"[::-1]} for i in range(40)]
    seen = []

    def trl(completions, reference, **kwargs):
        seen.extend(reference)
        return [float(len(text)) for text in completions]

    cfg = tiny(rewards=(), max_iters=1)
    before = dict(rewards.REWARDS), dict(data.MEMORY)
    state, folder = train.train(cfg, rows=rows, rewards=SHORT | {"trl": trl})
    assert (state.step, folder) == (1, cfg.out_dir) and set(seen) <= {row["completion"] for row in rows} and seen
    line = json.loads(open(f"{folder}/metrics.jsonl").readlines()[1])
    length = line["rewards/trl/mean"]  # both see the same texts
    assert line["rewards/short/mean"] == pytest.approx(1 - length / 4)
    assert line["reward"] == pytest.approx(1 + 0.75 * length)
    assert (dict(rewards.REWARDS), dict(data.MEMORY)) == before  # nothing is left of them for the next run


@pytest.mark.slow
def test_a_run_on_rows_in_memory_says_so_when_it_is_resumed(tiny, monkeypatch):
    rows = [{"prompt": f"{i:02d}", "completion": "7"} for i in range(40)]
    cfg = tiny(rewards=("short",), max_iters=1)
    train.train(cfg, rows={"train": rows, "val": rows[:3]}, rewards=SHORT)
    again = dataclasses.replace(cfg, resume=True, max_iters=2)
    with pytest.raises(ValueError, match="was trained from Python, on 43 rows in memory, .*rows=THE SAME ROWS"):
        train.train(dataclasses.replace(again, rewards=("exact",)))
    with pytest.raises(ValueError, match="would be another: dataset='2 rows in memory, .*it was '43 rows in memory"):
        train.train(again, rows=rows[:2], rewards=SHORT)
    assert train.train(again, rows={"train": rows, "val": rows[:3]}, rewards=SHORT)[0].step == 2


@pytest.mark.parametrize("rows, fns, message", [
    ([{"prompt": "12"}], SHORT, "expected a list of two rows or more"),
    ([{"prompt": 1}] * 9, SHORT, "in memory, .*row 1: prompt should"),
    ([{"prompt": "12"}] * 9, {"mine": lambda answers: 0}, r"'mine': it is mine\(answers\).*or mine\(completion\)"),
    ([{"prompt": "12"}] * 9, {"mine": 5}, "'mine': it is mine = 5"), ([{"prompt": "12"}] * 9, None, "needs rewards"),
    ([], SHORT, r"rows=list \[\]: expected a list of two rows or more, or {'train'"),
    (5, SHORT, "rows=int 5: expected"), ({"val": []}, SHORT, r"rows=dict {'val': \[\]}: expected a list"),
    ({"prompt": "12"}, SHORT, "rows=dict {'prompt'"),
    ({"train": None}, SHORT, "rows=dict"), ({}, SHORT, "rows=dict {}"),
    ("ab", SHORT, "rows='ab': a file or a data set is named in the config"),
    ([{"prompt": "12"}] * 9, [5], "rewards: 5 is no function"), ([{"prompt": "12"}] * 9, 5, "rewards: 5 is no"),
    ([{"prompt": "12"}] * 9, ["exact"], "'exact' is no function; what has a name already is named in the config"),
    ([{"prompt": "12"}] * 9, [len, len], "two functions have one name")])
def test_rows_and_rewards_that_cannot_be_are_answered_in_a_sentence(rows, fns, message, tiny):
    refused(message, train.train, tiny(rewards=()), rows=rows, rewards=fns)


def test_a_function_of_a_user_with_the_name_of_a_reward_of_code_is_the_one_that_is_asked_and_leaves_ours_in_place(tiny):
    def tests(completion):
        return 0.25

    rows = [{"prompt": f"{i:02d}", "completion": "7"} for i in range(40)]
    with in_memory.in_memory(tiny(rewards=("tests", "syntax")), rows, {"tests": tests}) as cfg:
        fns = rewards.resolve(cfg.rewards)
        assert fns["tests"](completions=["1"], prompts=[""]) == [0.25] and fns["syntax"].__module__ == "judges.programs"
    assert rewards.resolve("tests")["tests"].__module__ == "judges.programs"


def test_two_threads_may_train_on_the_same_rows_and_rewards(tiny):
    first, second = (in_memory.in_memory(tiny(rewards=()), [{"prompt": "1"}] * 9, SHORT) for _ in range(2))
    for run in (first, second):
        run.__enter__()
    for run in (first, second):
        run.__exit__(None, None, None)


def test_a_reward_of_a_user_that_needs_a_batch_is_not_refused_for_the_first_row(tiny):
    def standardized(prompts, completions):
        lengths = np.array([len(text) for text in completions], float)
        return (lengths - lengths.mean()) / lengths.std()

    fn = own.as_reward("reward 'standardized':", "standardized", standardized)
    with np.errstate(invalid="ignore"):
        run_rewards.try_rewards(tiny(), {"standardized": fn}, [{"prompt": "12", "completion": "21"}])
        with in_memory.in_memory(tiny(rewards=()), [{"prompt": "12", "completion": "21"}] * 9, standardized) as cfg:
            run_rewards.check_early(cfg)


def test_outside_of_the_main_thread_a_run_leaves_signals_alone(tiny):
    import threading
    states = []
    thread = threading.Thread(target=lambda: states.append(train.train(tiny(max_iters=1))[0]))
    thread.start()
    thread.join()
    assert states[0].step == 1


# ---- how long, and on what ----
def test_epochs_are_counted_in_rows(tiny):
    cfg = tiny(num_epochs=0.1, max_iters=99)
    assert train.train(cfg)[0].step == 2  # a tenth of 80 rows, 4 a step
    assert checkpoint.read_run(checkpoint.find(cfg.out_dir))["config"]["max_iters"] == 2
    assert train.train(dataclasses.replace(cfg, resume=True, num_epochs=0.15))[0].step == 3


def test_columns_of_anybodys_file_have_the_names_that_keys_say(tiny, tmp_path):
    rows = [{"q": f"{i:02d}", "a": i, "note": "x"} for i in range(20)]
    names = {"texts.prompt_key": "q", "texts.answer_key": "a"}
    cfg = tiny(dataset=jsonl(tmp_path / "mine.jsonl", rows), **names)
    assert split_rows(cfg, "train")[3] == {"q": "03", "a": 3, "note": "x", "prompt": "03", "answer": "3"}
    rows = [{"prompt": "p", "cases": ["assert f()"], "lang": None if i % 2 else "c", "hard": i} for i in range(20)]
    keys = {"texts.tests_key": "cases", "texts.language_key": "lang", "texts.difficulty_key": "hard"}
    keys |= {"dataset": jsonl(tmp_path / "code.jsonl", rows), "curriculum.difficulty": (0, 9)}
    first, second, *rest = split_rows(tiny(**keys), "train")
    assert (first["tests"], first["language"], first["difficulty"]) == (["assert f()"], "c", 0) and len(rest) == 8
    assert "language" not in second  # of a row that says nothing there
    with pytest.raises(ValueError, match="line 1: completion_key='b': no such column; found q, a, note"):
        split_rows(shared.changed(cfg, **{"texts.completion_key": "b"}), "train")


@pytest.mark.parametrize("filters", [{}, {"top_k": 6}])
def test_log_probs_and_entropies_are_those_at_the_temperature_of_the_run(filters):
    cfg = shared.run(objective="grpo", init_from="x", temperature=1.3, **filters)
    logits, x = 3 * jax.random.normal(KEY, (5, 6)), jnp.array([0, 1, 2, 3, 4])
    logp, entropy = rl.as_drawn(None, cfg)(logits, x, None)
    p = jax.nn.softmax(logits / 1.3)
    np.testing.assert_allclose(logp, jnp.log(p)[x, x], rtol=1e-5)
    np.testing.assert_allclose(entropy, -(p * jnp.log(p)).sum(1), rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_gradient_by_micro_batches_returns_the_log_prob_of_every_token_in_its_place(parts):
    cfg = config.Config(gradient_accumulation_steps=parts)
    b = jnp.arange(12.0).reshape(4, 3)

    def loss(params, some):
        return (params["w"] * some).sum(), {"token_logp": -some, "n_max": some.max(), "n": some.sum()}

    grads, metrics, logp = rl.make_gradient(loss, cfg)({"w": jnp.float32(2)}, None, b)
    np.testing.assert_array_equal(logp, -b)
    assert (grads["w"], metrics["loss"], metrics["n"], metrics["n_max"]) == (66, 132, 66, 11)


def test_means_over_tokens_have_weights_that_add_up_to_one():
    r = rollout_of(jnp.ones((3, 4), bool))
    share = jnp.array([[0, 2.0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    views = diffusion.Views(jnp.ones((3, 1, 4), bool), jnp.ones((3, 1, 4)), share)
    chosen = rl.Chosen(r, jnp.ones(3), {})
    cfg = config.Config(objective="grpo", init_from="x", max_prompt_len=0, max_new_tokens=4)
    b = rl.new_minibatch(chosen, views, cfg)
    np.testing.assert_allclose(b.loss.metric_weight, share / 6)
    b = rl.new_minibatch(chosen, views._replace(share=0 * share), cfg)
    assert (np.asarray(b.loss.metric_weight) == 0).all()
