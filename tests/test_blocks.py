"""Models that are causal over blocks: SDAR's and Fast-dLLM v2's own outputs, and exact values by enumeration."""
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import batches_of, close, far, likelihood, logits_of, loss, noise_of, slow, token_logp, view_logp
from shared import views as draw_views

import config
import data
import diffusion
import model
import rl
import sample
import train
from checkpoints import huggingface
from checkpoints.adapt import adapt
from loop.setup import prepare
from tools import complete
from variants import blocks, estimators, lora  # noqa: F401

SDAR, FAST = "sdar", "fastdllm2"
KEY = jax.random.key(0)
CFG = shared.shape(vocab_size=5, n_layer=2, n_head=2, d_model=16, d_ff=32, **{"blocks.block": 2}, qk_norm=True,
                   mask_id=4, eos_id=3)  # fmt: skip
FAR = far(model.init(KEY, CFG), 0.3)  # sure of something
X = jax.random.randint(jax.random.key(1), (3, 6), 0, 4)


def of(**switches):
    return shared.changed(CFG, **switches)


@pytest.mark.parametrize("folder, kind", [(SDAR, "odd"), (FAST, "full"), slow(SDAR, "full"), slow(FAST, "odd")])
def test_logits_equal_those_of_the_original_code(folder, kind):
    params, cfg, e = shared.fixture(folder)
    ours, theirs = logits_of(params, e[f"ids_{kind}"], cfg), e[f"logits_{kind}"]
    close(shared.but_mask(ours[:, 1:]), shared.but_mask(theirs[:, :-1] if cfg.shift else theirs[:, 1:]))


def test_shares_of_masks_are_spread_evenly_over_all_blocks_of_a_batch():
    mask = jax.jit(functools.partial(blocks.mask_blocks, cfg=of(**{"blocks.block": 8})))
    *_, t = mask(KEY, jnp.zeros((4, 16), int), jnp.ones((4, 16), bool), None)
    close(jnp.sort(t[:, ::8].reshape(-1)), np.arange(1, 9) / 8, 1e-6)


def test_the_loss_of_a_noisy_copy_beside_the_clean_one_equals_sdars():
    params, cfg, e = shared.fixture(SDAR)
    labels = e["train_labels"]
    weight = e["train_hole"] / np.where(e["train_p"], e["train_p"], 1) / (labels != -100).sum()
    z, weight = e["train_noisy"][:, None], weight.astype(np.float32)[:, None]
    batch = diffusion.NoisyBatch(e["train_ids"], z, weight, None)
    close(loss(params, batch, cfg)[0], e["train_loss_no_mask_id"])


@functools.partial(jax.jit, static_argnames="cfg")
def one_pass(params, z, x, cfg, valid):
    return diffusion.gather_logp(model.logits(params, z, cfg, valid), x)


def alone(params, x, M, cfg, valid=None):
    """log p of every token of x (N, T) under M (N, T), each block read from the text before it by a pass of its own."""
    valid = jnp.ones(x.shape, bool) if valid is None else valid
    block = model.positions_of(valid, x.shape[1]) // cfg.block
    masked = lambda n: jnp.where(M & (block >= n), cfg.mask_id, x)
    parts = [jnp.where(block == n, one_pass(params, masked(n), x, cfg, valid), 0) for n in range(int(block.max()) + 1)]
    return np.asarray(sum(parts))


@pytest.mark.parametrize("switches, quick", [(dict(shift=True), True), *(
    slow(more, False) for more in (dict(), dict(shift=True), {"gemma.window": 3}, dict(n_layer=9, shift=True)))])
def test_one_clean_copy_serves_all_views_as_a_pass_for_every_block_does(switches, quick):
    cfg, valid = of(**switches), jnp.arange(6) >= jnp.array([[0], [1], [2]])  # padding: columns are no positions
    M = valid[:, None] & (jax.random.uniform(KEY, (3, 4, 6)) < 0.6)
    four = lambda a: jnp.repeat(a, 4, 0)
    params = FAR if not {"n_layer", "gemma.window"} & {*switches} else model.init(KEY, cfg)
    want = alone(params, four(X), M.reshape(12, 6), cfg, four(valid)).reshape(M.shape)
    for start in (0, 3) if quick else (0, 4, 3):
        read = M & (jnp.arange(6) >= start)
        logp = view_logp(params, X, M, cfg, valid, start)[0]
        close(np.where(read, logp, 0), np.where(read, want, 0), 2e-5)


def test_a_block_of_the_whole_text_is_the_bidirectional_model():
    block, plain = of(**{"blocks.block": 6}), of(blocks=False)
    close(logits_of(FAR, X, block), logits_of(FAR, X, plain), 2e-6)
    batch = noise_of(KEY, data.Batch(X, jnp.ones(X.shape, bool), None), block, paired=True)
    close(loss(FAR, batch, block)[0], loss(FAR, batch, plain)[0], 2e-6)


def test_blocks_of_one_are_an_autoregressive_model():
    cfg, texts = of(**{"blocks.block": 1}), jnp.array(list(itertools.product(range(4), repeat=3)))
    batch = data.Batch(texts, jnp.ones(texts.shape, bool), None)
    noisy = noise_of(KEY, batch, cfg)
    assert (noisy.z == cfg.mask_id).all()  # the bound needs no luck
    nll = -view_logp(FAR, texts, jnp.ones(texts[:, None].shape, bool), cfg)[0].sum((1, 2))
    close(loss(FAR, noisy, cfg)[0], nll.sum() / texts.size, 1e-5)
    close(jnp.exp(-nll).sum(), 1, 1e-5)  # it is a distribution over all texts
    close(nll, -alone(FAR, texts, True, cfg).sum(1), 1e-5)


def exact_bound(params, x, cfg):
    """The ELBO of x (T,): over the blocks, the mean over all orders in which a block's tokens can come."""
    T, b, cases = len(x), cfg.block, []  # what is masked, which token is read then, and its share
    for first in range(0, T, b):
        orders = list(itertools.permutations(range(first, min(first + b, T))))
        cases += [(np.isin(np.arange(T), o[n:]), i, 1 / len(orders)) for o in orders for n, i in enumerate(o)]
    M, at, share = map(np.array, zip(*cases, strict=True))
    logp = alone(params, jnp.tile(x, (len(M), 1)), M, cfg)
    return (share * logp[np.arange(len(M)), at]).sum()


@pytest.mark.parametrize("b, paired", [(2, True), slow(2, False), slow(3, False), slow(3, True)])
def test_the_loss_is_on_average_the_exact_bound(b, paired):
    cfg, x = of(**{"blocks.block": b}), X[0, :5]
    rows = jnp.tile(x, (2048, 1))
    batch = data.Batch(rows, jnp.ones(rows.shape, bool), None)
    got = loss(FAR, noise_of(KEY, batch, cfg, paired=paired), cfg)[0]
    close(got, -exact_bound(FAR, x, cfg) / 5, 0.012)


def test_the_likelihood_is_on_average_the_exact_bound_of_each_text():
    rows = jnp.tile(X[:, :5], (1024, 1))
    batch = data.Batch(rows, jnp.ones(rows.shape, bool), None)
    bound = likelihood(FAR, batch, jax.random.split(KEY, len(rows)), CFG).reshape(1024, 3)
    assert (abs(bound.mean(0) - np.array([exact_bound(FAR, x, CFG) for x in X[:, :5]])) < bound.std(0) / 8).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["elbo", "coupled_elbo"])
def test_estimators_with_a_number_of_masks_for_a_row_bound_each_block(method):
    x = jnp.tile(X[:1], (256, 1))
    views = draw_views(KEY, method, jnp.ones(x.shape, bool), n=2, cfg=CFG)
    logp = (views.share * token_logp(FAR, x, views, CFG)).sum(1)
    close(logp.mean(), exact_bound(FAR, X[0], CFG), 0.15)


def test_trace_takes_the_same_step_of_every_block_as_one_view():
    step = jnp.array([[-1, 3, 7, 5, 9, 8]])
    hole = step >= 0
    M, w, s = draw_views(KEY, "trace", hole, step=step, n=2, cfg=CFG)
    np.testing.assert_array_equal(M[0], [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(w[0], [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(s, hole)


@pytest.mark.slow
def test_a_shifted_block_whose_other_tokens_are_drawn_at_once_needs_one_view():
    """Its first token is drawn alone, from the text before, and scored there at no cost: exactly, with weight 1."""
    x, trace, z, valid = samples(dict(cache="prefix", steps=1), 2, shift=True, **{"blocks.block": 4})
    cfg, hole = of(shift=True, **{"blocks.block": 4}), z == 4
    more = dict(cfg=cfg, valid=valid)
    M, w, s = draw_views(KEY, "trace", hole, step=trace["step"], n=1, **more)
    assert (blocks.first_of_block(valid, 7, cfg) & hole).any() and (w[:, 0] == hole).all() and (s == hole).all()
    close(token_logp(FAR, x, diffusion.Views(M, w, s), cfg, valid), trace["logp"], 1e-5)


@pytest.mark.slow
def test_trace_gives_the_log_probs_of_sdars_sampler_on_its_canvas():
    params, cfg, e = shared.fixture(SDAR)
    for r in range(5):
        x, step = jnp.array(e[f"canvas_{r}"])[None], jnp.array(e[f"canvas_step_{r}"])[None]
        M, w, _ = draw_views(KEY, "trace", step >= 0, step=step, n=4, cfg=cfg)
        free = dataclasses.replace(cfg, mask_id=None)  # theirs keeps the mask in the softmax
        l = model.readout(params, blocks.hidden(params, x, jnp.where(M, 308, x), cfg)[0], free)
        logp = (w[0] * diffusion.gather_logp(l, jnp.broadcast_to(x, M[0].shape))).sum(0)
        close(logp, np.where(step[0] >= 0, e[f"canvas_logp_{r}"], 0), 1e-5)


def canvas(e, setting, cfg, pad):
    """The four prompts of a fixture with holes for what was generated, whole blocks of it, padded on the left."""
    texts = [e[f"gen_{i}_{setting}"] for i in range(4)]
    prompts, whole = [e[f"prompt_{i}"] for i in range(4)], [-(-len(x) // cfg.block) for x in texts]
    rows = [np.pad(p, (0, n * cfg.block - len(p)), constant_values=cfg.mask_id)
            for p, n in zip(prompts, whole, strict=True)]  # fmt: skip
    T = max(map(len, rows))
    valid = np.array([[i >= T - len(row) for i in range(T)] for row in rows])
    return np.array([[pad] * (T - len(row)) + row.tolist() for row in rows]), valid, texts


SETTINGS = ["s4_static", "s2_static", "s1_static", "s4_dynamic", "s2_dynamic"]


@pytest.mark.parametrize("setting", [*map(slow, SETTINGS[:-1]), SETTINGS[-1]])
def test_tokens_and_passes_equal_those_of_sdars_sampler(setting):
    params, cfg, e = shared.fixture(SDAR)
    z, valid, texts = canvas(e, setting, cfg, 304)
    plan = sample.Plan(rule="quota" if "static" in setting else "dynamic", steps=int(setting[1]), cache="prefix",
                       threshold=float(e["threshold"]))  # fmt: skip
    x, trace = sample.generate(params, KEY, jnp.array(z), cfg, plan, jnp.array(valid))
    passes = [e[f"forwards_{r}_{setting}"] for r in range(4)]
    for r, text in enumerate(texts):
        np.testing.assert_array_equal(np.asarray(x)[r, valid[r]], text)
        step = np.asarray(trace["step"])[r, valid[r]]
        assert trace["passes"][r] == passes[r][1]
        theirs = np.where(step >= 0, e[f"logp_{r}_{setting}"], 0)  # the mask is in their softmax
        close(np.asarray(trace["logp"])[r, valid[r]], theirs, 3e-4)
    # The longest takes all of its passes but the last: nobody reads what that would keep.
    assert trace["n_steps"] == max(p[1] + p[2] for p in passes) - 1


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["s2_static", "s4_dynamic"])
def test_a_text_stops_where_sdars_does_after_the_block_with_the_end(setting):
    params, cfg, e = shared.fixture(SDAR)
    text, plan = e[f"stop_1_{setting}"], sample.Plan(rule="quota" if "static" in setting else "dynamic", cache="prefix",
                                                     steps=int(setting[1]), early_end=True, threshold=0.4)  # fmt: skip
    z = np.pad(e["prompt_1"], (0, len(text) - len(e["prompt_1"])), constant_values=cfg.mask_id)
    x, trace = sample.generate(params, KEY, jnp.array(z)[None], cfg, plan)
    np.testing.assert_array_equal(x[0], np.where(text == cfg.mask_id, cfg.eos_id, text))  # they leave masks behind it
    assert trace["n_steps"] == e[f"stop_forwards_1_{setting}"][1:].sum() - 1


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["t1_sb8", "t1_sb4", "tau_sb8", "tau_sb4", "tau_sb4_cache", "tau_sb2_cache"])
def test_tokens_and_passes_equal_those_of_fast_dllm_v2(setting):
    params, cfg, e = shared.fixture(FAST)
    z, valid, texts = canvas(e, setting, cfg, 304)
    kind, part, *cached = setting.split("_")
    plan = sample.Plan(rule="dynamic", threshold=1.0 if kind == "t1" else float(e["threshold"]),
                       block_len=int(part[2:]), cache="dual" if cached else "prefix")  # fmt: skip
    x, trace = sample.generate(params, KEY, jnp.array(z), cfg, plan, jnp.array(valid))
    for r, text in enumerate(texts):
        np.testing.assert_array_equal(np.asarray(x)[r, valid[r]][: len(text)], text)
        step = np.asarray(trace["step"])[r, valid[r]][: len(text)]
        # Its last pass gives the first token of one more block; where a prompt ends with a block, its prefill does.
        assert len({*step.tolist()} - {-1}) == sum(e[f"forwards_{r}_{setting}"][1:]) + (len(e[f"prompt_{r}"]) % 8 == 0)


def samples(plan, group=1, **switches):
    """Tokens of three rows of 7: a prompt, one with padding before it, a text with holes in two of its blocks."""
    z = jnp.array([[0, 1, 2, 4, 4, 4, 4], [3, 3, 0, 4, 4, 4, 4], [0, 4, 2, 3, 1, 4, 2]]).repeat(group, 0)
    valid = (jnp.arange(7) >= jnp.array([[0], [1], [0]])).repeat(group, 0)  # no multiple of a block
    plan = shared.plan(**dict(temperature=1.0, steps=2) | plan)
    return *sample.generate(FAR, KEY, z, of(**switches), plan, valid, group), z, valid


@pytest.mark.parametrize("switches, caches", [(dict(), ["prefix"]), *(
    slow(more, ["prefix", "none"]) for more in (dict(), {"shift": True, "blocks.block": 4}))])
def test_trace_scores_what_was_sampled_and_the_cache_of_finished_blocks_changes_nothing(switches, caches):
    cfg, texts = of(**switches), []
    for cache in caches:
        x, trace, z, valid = samples(dict(cache=cache, rule="dynamic", threshold=0.5), 2, **switches)
        views = draw_views(KEY, "trace", z == 4, step=trace["step"], n=4, cfg=cfg, valid=valid)
        close(token_logp(FAR, x, views, cfg, valid), trace["logp"], 1e-5)
        texts.append(x)
    np.testing.assert_array_equal(texts[0], texts[-1])


def test_what_blocks_do_not_go_with_is_refused():
    with pytest.raises(ValueError, match="batch_size=8 must be a multiple of 2 x gradient_accumulation_steps=8"):
        shared.run(batch_size=8, paired=True, gradient_accumulation_steps=8)  # a pair is not cut apart
    shared.run(batch_size=8, paired=True, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="block_len=3: expected a divisor of blocks.block=4"):
        sample.generate(FAR, KEY, X, of(**{"blocks.block": 4}), sample.Plan(block_len=3))
    run = config.Config(max_new_tokens=8, block_len=3, model=of(**{"blocks.block": 4}))
    with pytest.raises(ValueError, match="block_len=3: expected a divisor of blocks.block=4"):
        config.check_model(run, run.model, "here")  # and not only at the first evaluation


@pytest.mark.parametrize("new", [5, slow(3), slow(13)])
def test_completions_of_any_length_are_filled_by_whole_blocks(new, tmp_path, capsys):
    _, cfg = shared.byte_model(tmp_path, **{"blocks.block": 4}, qk_norm=True)
    run = config.Config(max_prompt_len=3, max_new_tokens=new, cache="prefix", model=cfg)
    config.check_model(run, cfg, "here")
    assert sample.plan(run, 0.0).block_len is None
    assert sample.plan(dataclasses.replace(run, block_len=2), 0.0).block_len == 2
    assert complete.main([str(tmp_path), "--prompt=123456789", f"--max_new_tokens={new}"]) == 0, capsys.readouterr().err


FROM_CAUSAL = [(dict(qk_norm=True), "sdar"), (dict(qkv_bias=True), "Fast_dLLM_Qwen"), ({}, "Fast_dLLM_Qwen")]


@pytest.mark.parametrize("switches, name", FROM_CAUSAL)
def test_a_causal_model_becomes_a_block_model_as_those_of_the_field_did(switches, name, tmp_path):
    cfg = shared.changed(CFG, **dict(blocks=False, causal=True, shift=True, qk_norm=False) | switches)
    params, new = adapt(model.init(KEY, cfg), cfg, 4, shared.shape(**{"blocks.block": 4}))
    assert huggingface.family_of(new) == name and new.block == 4 and new.shift == (name != "sdar")
    close(params["embed"][4], model.init(KEY, cfg)["embed"].mean(0), 1e-6)
    assert np.isfinite(logits_of(params, X, new)).all()
    jax.jit(lambda params: params, donate_argnums=0)(params)  # as an update does; one array in two places is an error


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A data set "37" -> "73", and the out_dir of a block model that has seen a little of it."""
    folder = tmp_path_factory.mktemp("base")
    shared.write_rows(folder)
    shape = shared.shape(n_layer=1, n_head=2, d_model=32, **{"blocks.block": 4}, qk_norm=True)
    keys = shared.SECONDS | dict(max_iters=60, eval_interval=60, cache="prefix")
    run = shared.run(**keys, dataset=str(folder), paired=True, out_dir=f"{folder}/out", learning_rate=3e-3, model=shape)
    train.train(run)
    return folder


TUNINGS = [dict(logp_est=name) for name in diffusion.ESTIMATORS if name != "exact"]
TUNINGS += [{"lora.rank": 2, "kl_beta": 0.1}, dict(fill_in=True), dict(gradient_accumulation_steps=4)]


@pytest.mark.slow
@pytest.mark.parametrize("changes", TUNINGS)
def test_every_estimator_tunes_a_block_model(base, changes, tmp_path):
    keys = shared.SECONDS | dict(cache="prefix", logp_est="trace", ratio_level="token", adv_negative=1.0) | changes
    cfg = shared.run(**keys, objective="grpo", dataset=str(base), out_dir=f"{tmp_path}/out",
                        init_from=f"{base}/out", rewards=("exact",), group_size=2)  # fmt: skip
    cfg, tok, start, _ = prepare(cfg, train.train)
    params, frozen = rl.split(start, KEY, cfg)
    state = rl.merged(rl.State(0, params, (), None, None), frozen, cfg)
    task = train.tune(cfg, tok, start)
    state = state if frozen else state._replace(reference=start)
    b, notes = next(iter(batches_of(task, state, KEY)))
    total, metrics = task.loss(state.params, b._replace(loss=b.loss._replace(adv=jnp.linspace(-1, 1, len(b.loss.adv)))))
    assert np.isfinite(total) and notes["tokens_per_pass"] > 0
    if cfg.logp_est == "trace":  # 4 views are all steps of a block
        assert metrics["behaviour_gap"] < 1e-5
