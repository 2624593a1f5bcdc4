"""
diffusion.py: the clock, the bound and the likelihood estimators. The oracle for the estimators is a vocabulary of three
tokens and three holes, where every set of masks and every order can be enumerated.
"""
import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import KEY, estimated_logp, init, likelihood, logits_of, loss, noise_of, slow, views

import data
import diffusion
import model
from system import kernels
from variants import estimators  # noqa: F401

NO_MASKS = ("exact",)  # estimators that mask nothing
CFG = model.ModelConfig(vocab_size=12, n_layer=1, n_head=2, d_model=16, mask_id=11)
PARAMS = init(KEY, CFG)
UNIFORM = PARAMS | {"head": jnp.zeros_like(PARAMS["head"])}
X = jax.random.randint(jax.random.key(1), (8, 10), 0, 11)
HOLE = jnp.arange(10) >= jnp.array([2, 2, 3, 4, 5, 6, 8, 9])[:, None]  # completions of 8 down to 1 tokens
BATCH = data.Batch(X, HOLE, None)

sample_t = jax.jit(diffusion.sample_t)


def log_probs(params, x, M, w, cfg, valid=None, start=0):
    """Weigh and sum the log-probs of views M, w (B, K, T)."""
    return estimated_logp(params, x, diffusion.Views(M, w, w.sum(1)), cfg, valid, start)


token_logp = jax.jit(log_probs, static_argnames=("cfg", "start"))


def close(a, b, tol=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=tol)


# ---- the clock ----
@given(st.integers(0, 2**31), st.sampled_from([1, 7, 40]))  # each is compiled
@settings(max_examples=10, deadline=None)
def test_times_are_one_per_stratum_and_in_the_half_open_unit_interval(seed, B):
    t = np.sort(np.asarray(sample_t(jax.random.key(seed), jnp.full(B, 10_000))))
    assert (t > 0).all() and (t <= 1).all()
    np.testing.assert_array_equal(np.minimum(np.ceil(t * B - 1e-3) - 1, B - 1).clip(0), np.arange(B))


def test_exactly_a_share_t_of_the_maskable_tokens_is_masked_and_no_other():
    t = diffusion.sample_t(KEY, HOLE.sum(1))
    z, hole = diffusion.corrupt(KEY, X, t, HOLE, CFG.mask_id)
    np.testing.assert_array_equal(hole.sum(1), np.round(t * HOLE.sum(1)))
    assert (hole.sum(1) >= 1).all() and not (hole & ~HOLE).any()
    np.testing.assert_array_equal(z, np.where(hole, CFG.mask_id, X))


def test_every_subset_of_a_size_is_equally_likely():
    among = jnp.array([[True, False, True, True, True]])
    pick = jax.vmap(lambda k: diffusion.random_subset(k, among, jnp.array([2]))[0])
    drawn = np.asarray(pick(jax.random.split(KEY, 6000)))
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and abs(counts - 1000).max() < 5 * np.sqrt(1000)


# ---- the bound ----
@given(st.integers(0, 2**31), st.sampled_from(["token", "completion"]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_bound_of_a_uniform_model_is_log_v_for_every_draw(seed, norm, paired):
    nelbo, _ = loss(UNIFORM, noise_of(jax.random.key(seed), BATCH, CFG, norm, paired), CFG)
    close(nelbo, np.log(11))  # 12 ids, but the mask can never be predicted


def test_prompt_tokens_are_never_masked_and_weigh_nothing_and_a_pair_masks_every_other_once():
    for seed, paired in itertools.product(range(20), (False, True)):
        b = noise_of(jax.random.key(seed), BATCH, CFG, paired=paired)
        masked = b.z == CFG.mask_id
        assert b.z.shape == (8, 1 + paired, 10) and not (masked & ~HOLE[:, None]).any()
        np.testing.assert_array_equal(b.weight > 0, masked)
        if paired:
            np.testing.assert_array_equal(masked[:, 0] ^ masked[:, 1], HOLE)


def test_a_row_without_maskable_tokens_adds_nothing():
    batch = BATCH._replace(maskable=HOLE.at[0].set(False))
    rest = data.Batch(X[1:], HOLE[1:], None)
    for paired in (False, True):
        b = noise_of(KEY, batch, CFG, paired=paired)
        assert np.isfinite(loss(PARAMS, b, CFG)[0]) and not b.weight[0].any()
    close(loss(UNIFORM, noise_of(KEY, batch, CFG), CFG)[0], loss(UNIFORM, noise_of(KEY, rest, CFG), CFG)[0])


# ---- the original's numbers ----
def test_training_losses_equal_lladas(llada):
    params, cfg, e = llada
    t = e["train_pmask"][:, None]
    for z, per_token, expected in (
        (e["train_noisy"], np.full((4, 1), 4 * 24), e["train_loss_pretrain"]),
        (e["sft_noisy"], (24 - e["sft_prompt_lens"])[:, None] * 4, e["train_loss_sft"]),
    ):
        w = (z == cfg.mask_id) * diffusion.weight(t) / per_token
        batch = diffusion.NoisyBatch(e["train_ids"], z[:, None], w[:, None], None)
        close(loss(params, batch, cfg)[0], expected, 2e-5)


def test_the_monte_carlo_likelihood_equals_lladas(llada):
    params, cfg, e = llada
    z = e["ll_plain_perturbed"].reshape(32, 21)
    x = np.tile(np.concatenate([e["ll_prompt"], e["ll_answer"]]), (32, 1))
    w = (z == cfg.mask_id) / e["ll_plain_pmask"].reshape(32, 1) / 32
    batch = diffusion.NoisyBatch(x, z[:, None], w[:, None], None)
    close(-loss(params, batch, cfg)[0], e["ll_plain_value"], 2e-5)


def test_likelihood_masks_by_lladas_rule_and_is_exact_on_a_uniform_model():
    bound = likelihood(UNIFORM, BATCH, KEY, CFG, n=4, start=2)
    close(bound, -np.log(11) * HOLE.sum(1), 1e-4)


# ---- estimators, against enumeration ----
SMALL = model.ModelConfig(vocab_size=4, n_layer=1, n_head=2, d_model=16, mask_id=3)
WILD = jax.tree.map(lambda w: 2 * w, init(jax.random.key(5), SMALL)) | {
    "head": jax.random.normal(KEY, (16, 4))}  # fmt: skip
TEXT = jnp.array([[1, 2, 0, 1]])  # a prompt of one token, and three holes
HOLES = jnp.array([[False, True, True, True]])


@functools.cache
def table():
    """log p(x_i | x with M masked) for each of the 8 sets M of holes: (8, 4), the set as a binary number."""
    sets = jnp.array([[False, *(bool(m >> i & 1) for i in range(3))] for m in range(8)])
    logits = logits_of(WILD, jnp.where(sets, SMALL.mask_id, TEXT), SMALL)
    return np.asarray(diffusion.gather_logp(logits, jnp.tile(TEXT, (8, 1))))


def code(M):
    return (np.asarray(M)[..., 1:] * [1, 2, 4]).sum(-1)


def along(order):
    """log p of every token when holes are filled in this order, a tuple of positions 1..3."""
    out, left = np.zeros(4), {1, 2, 3}
    for i in order:
        out[i] = table()[sum(1 << (j - 1) for j in left)][i]
        left -= {i}
    return out


ELBO = lambda: np.mean([along(o) for o in itertools.permutations((1, 2, 3))], 0)
ALL_AT_ONCE = lambda: table()[7] * np.asarray(HOLES[0])


def estimates(method, rows=40_000, seed=0, **options):
    """What a method says of the text, (rows, 4), looked up in the table instead of computed."""
    hole = jnp.tile(HOLES, (rows, 1))
    if "step" in options:
        options["step"] = jnp.tile(options["step"], (rows, 1))
    M, w, s = (np.asarray(a) for a in views(jax.random.key(seed), method, hole, **options))
    assert not (w * ~M).any() or method == "exact"
    assert not (M & ~np.asarray(hole)[:, None]).any()
    return s * (w * table()[code(M)]).sum(1)


def agrees(samples, exact):
    error = samples.std(0) / len(samples) ** 0.5
    np.testing.assert_array_less(np.abs(samples.mean(0) - exact), 5 * error + 1e-5)


@pytest.mark.parametrize("n", [slow(2), 8])
def test_likelihood_is_the_bound_on_average(n):
    rows = 6000
    batch = data.Batch(jnp.tile(TEXT, (rows, 1)), jnp.tile(HOLES, (rows, 1)), None)
    agrees(likelihood(WILD, batch, jax.random.split(KEY, rows), SMALL, n=n)[:, None], ELBO().sum())


def test_a_key_has_the_same_masks_for_a_text_in_every_row_and_behind_padding():
    score = lambda tokens, hole, valid: likelihood(
        PARAMS, data.Batch(tokens, hole, valid), KEY, CFG)  # fmt: skip
    alone = score(X[:1], HOLE[:1], None)
    pad = lambda a: jnp.pad(jnp.tile(a, (3, 1)), ((0, 0), (4, 0)))
    close(score(pad(X[:1]), pad(HOLE[:1]), pad(jnp.ones((1, 10), bool))), jnp.tile(alone, 3))


@pytest.mark.parametrize("method, n", [("elbo", 3), ("coupled_elbo", 2), slow("elbo", 1), slow("coupled_elbo", 1)])
def test_elbo_estimators_average_over_all_orders(method, n):
    agrees(estimates(method, n=n), ELBO())


@pytest.mark.parametrize("method", [m for m in diffusion.ESTIMATORS if m not in ("coupled", *NO_MASKS)])
def test_log_p_is_a_mean_over_views_and_what_was_drawn_is_in_the_share_of_the_loss(method):
    """Whatever the number of views, so that a ratio, a KL and a clip mean the same with one view and with many."""
    hole, order = jnp.tile(HOLES, (3000, 1)), jnp.tile(jnp.array([[-1, 1, 0, 1]]), (3000, 1))
    for n in (1, 3):
        _, w, s = (np.asarray(a) for a in views(jax.random.key(n), method, hole, step=order, n=n))
        close(w.sum(1), s > 0)
        agrees(s, np.asarray(HOLES[0], float))  # 1 on average: nothing has a bias


@pytest.mark.parametrize("n", [1, 2, 3])
def test_strata_score_every_token_once_given_all_other_strata(n):
    """One stratum is everything at once; as many as tokens are a pseudo-likelihood, each token given all others. With
    two, one of three tokens has a stratum of its own: each is alone, or with either of the others, equally often."""
    alone = np.array([0, *(table()[1 << (i - 1)][i] for i in (1, 2, 3))])
    with_one = lambda i: sum(table()[(1 << (i - 1)) + (1 << (j - 1))][i] for j in {1, 2, 3} - {i})
    pairs = np.array([0, *map(with_one, (1, 2, 3))])
    target = {1: ALL_AT_ONCE(), 2: (alone + pairs) / 3, 3: alone}[n]
    found = estimates("strata", n=n, rows=40_000 if n == 2 else 3)
    agrees(found, target)
    M, w, s = views(KEY, "strata", HOLE, n=n)
    np.testing.assert_array_equal(M.sum(1), HOLE)  # each token once, and no token of the prompt
    np.testing.assert_array_equal(w, M)
    np.testing.assert_array_equal(s, HOLE)
    sizes = np.asarray(M.sum(2))
    assert (sizes.max(1) - sizes.min(1) <= 1).all()


@functools.cache
def quadrature_views(L, n, rows):
    """The views of completions of L tokens, drawn once."""
    return [np.asarray(a, float) for a in views(KEY, "quadrature", jnp.ones((rows, L), bool), n=n)]


def quadrature_of(f, L, n, rows):
    """What `quadrature` makes of completions of L tokens with log p = f(l) / L each in a view with l masks: (rows,)."""
    M, w, s = quadrature_views(L, n, rows)
    return (s * (w * f(M.sum(-1, keepdims=True)) / L).sum(1)).sum(1)


def test_quadrature_is_exact_for_a_constant_in_every_draw_and_for_a_line_on_average():
    for n in (1, 2):  # of three points, one is nearer to the end than half a token
        close(quadrature_of(lambda l: 7 + 0 * l, 6, n, rows=40_000), 7)
        line = quadrature_of(lambda l: 2 - 3 * l, 6, n, rows=40_000)
        agrees(line[:, None], np.mean([2 - 3 * l for l in range(1, 7)]))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_n_points_integrate_a_polynomial_of_degree_2n_minus_1_and_no_higher_one(n):
    """A completion of 400 tokens, where rounding a count costs little; one view of each point has no noise but that."""
    def error(degree):
        f = lambda l: (l / 400) ** degree
        return abs(quadrature_of(f, 400, n, rows=400).mean() - np.mean(f(np.arange(1, 401))))

    assert max(error(degree) for degree in range(2 * n)) < 1e-4 < error(2 * n) / 2


def test_coupled_is_half_of_everything_and_half_of_two_complementary_views():
    low, high = 0.2, 0.8
    t = np.linspace(low, high, 20_001)
    target = ALL_AT_ONCE() / 2
    for i in (1, 2, 3):  # the token is in the masked half with probability t, and then weighs 1 / (2t); and vice versa
        for others in itertools.product((0, 1), repeat=2):
            rest = [j for j in (1, 2, 3) if j != i]
            M = (1 << (i - 1)) + sum(bit << (j - 1) for bit, j in zip(others, rest, strict=True))
            chance = lambda t, n=others: t ** sum(n) * (1 - t) ** (2 - sum(n))
            target[i] += table()[M][i] * (chance(t) + chance(1 - t)).mean() / 2
    agrees(estimates("coupled"), target)
    weights = np.asarray(views(KEY, "coupled", jnp.tile(HOLES, (20_000, 1)))[1].sum(1))
    close(weights[:, 1:].mean(), 1.5, 0.02)  # not 1: why its ratios and its KL are stretched


def test_one_step_takes_every_token_alone():
    close(estimates("one_step", rows=2), np.tile(ALL_AT_ONCE(), (2, 1)))


def test_trace_is_the_probability_of_the_path():
    for order in itertools.permutations(range(3)):
        path = along(tuple(np.argsort(order) + 1))
        close(estimates("trace", rows=1, step=jnp.array([[-1, *order]]), n=3)[0], path)
    close(estimates("trace", rows=1, step=jnp.array([[-1, *order]]), n=7)[0], path)
    at_once = np.array([0, table()[7][1], table()[7][2], table()[4][3]])
    close(estimates("trace", rows=1, step=jnp.array([[-1, 0, 0, 1]]), n=3)[0], at_once)


@pytest.mark.parametrize("n", [1, 2])
def test_a_sample_of_the_steps_is_unbiased(n):
    agrees(estimates("trace", step=jnp.array([[-1, 2, 0, 1]]), n=n), along((2, 3, 1)))


def test_every_view_scores_a_token_of_the_loss():
    """Of twelve tokens, filled from the left or the right, three count: a view of another step would be for nothing."""
    hole, counts = jnp.ones((64, 12), bool), jnp.broadcast_to(jnp.arange(12) < 3, (64, 12))
    order = jnp.where(jnp.arange(64)[:, None] % 2, jnp.arange(12), 11 - jnp.arange(12))
    for n in (1, 2, 3, 5):
        M, w, s = views(KEY, "trace", hole, step=order, n=n, counts=counts)
        scored = ((w > 0) & counts[:, None]).sum(2)  # (B, n)
        assert (scored[:, : min(n, 3)] == 1).all() and not scored[:, 3:].any()
        close((s * counts).sum(1), 3 * np.ones(64))
        assert not (w * ~M).any()


def test_what_was_filled_before_a_step_is_not_masked_in_its_view_though_it_does_not_count():
    order, counts = jnp.array([[0, 1, 2, 3, 4]]), jnp.array([[False, True, False, True, False]])
    M, w, _ = views(KEY, "trace", jnp.ones((1, 5), bool), step=order, n=2, counts=counts)
    np.testing.assert_array_equal(M[0], [[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    np.testing.assert_array_equal((w * counts[:, None])[0] > 0, [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]])


def test_exact_is_one_pass_of_a_causal_model():
    cfg = dataclasses.replace(SMALL, causal=True, shift=True, mask_id=None)
    params = WILD
    M, w, _ = views(KEY, "exact", HOLES)
    prefix = lambda i: jnp.where(jnp.arange(4) <= i, TEXT, 0)
    chain = [float(diffusion.gather_logp(logits_of(params, prefix(i), cfg), TEXT)[0, i]) for i in (1, 2, 3)]
    close(token_logp(params, TEXT, M, w, cfg)[0], [0, *chain])


@pytest.mark.parametrize("pads, start", [(0, 0), (3, 3), slow(1, 0), slow(1, 1)])
def test_the_probabilities_of_all_texts_of_two_tokens_of_a_causal_model_sum_to_one(pads, start):
    cfg = dataclasses.replace(SMALL, causal=True, shift=True)  # three tokens and a mask
    texts = jnp.array(list(itertools.product(range(3), repeat=2)))
    there = jnp.arange(2 + pads) >= jnp.full((9, 1), pads)
    batch = data.Batch(jnp.pad(texts, ((0, 0), (pads, 0))), there, there if pads else None)
    logp = likelihood(WILD, batch, KEY, cfg, start=start)
    close(jnp.exp(logp).sum(), 1)
    M, w, _ = views(KEY, "exact", batch.maskable)
    close(token_logp(WILD, batch.tokens, M, w, cfg, batch.valid, start).sum(1), logp)
    close(loss(WILD, noise_of(KEY, batch, cfg), cfg, start)[0], -logp.mean() / 2)


def looked_up(method, rows=4):
    """-> x, M, w of some rows, and token_logp of them from the table."""
    x, hole = jnp.tile(TEXT, (rows, 1)), jnp.tile(HOLES, (rows, 1))
    M, w, _ = views(KEY, method, hole, step=jnp.tile(jnp.array([[-1, 2, 0, 1]]), (rows, 1)), n=3)
    return x, M, w, (np.asarray(w) * table()[code(M)]).sum(1)


@pytest.mark.parametrize("method", ["trace", *map(slow, sorted({*diffusion.ESTIMATORS} - {"trace", *NO_MASKS}))])
def test_token_logp_is_the_table_looked_up_and_a_start_changes_no_gradient(method):
    (x, M, w, expected), gradients = looked_up(method), []
    for how in {}, {"start": 1}:
        score = lambda p, how=how: log_probs(p, x, M, w, SMALL, **how)
        value, back = jax.jit(lambda p, score=score: jax.vjp(score, p))(WILD)  # one program for both
        close(value, expected)
        gradients.append(back(jnp.ones_like(value)))
    jax.tree.map(lambda a, b: close(a, b, 1e-3), *gradients)


def test_coupled_equals_diffucoders_own_numbers():
    """Their three views' log-probs, weighted by our weights at their t and masks."""
    g = json.load(open("tests/fixtures/coupled_logp.json"))
    half, t = np.array(g["v1mask"], bool)[:, -g["L"] :], g["t"]
    w = np.stack([np.full(half.shape, 0.5), half / (2 * t), ~half / (2 * (1 - t))])
    close((w * np.stack([g["l0"], g["l1"], g["l2"]])).sum(0), g["token_logp"], 1e-5)
    ours = np.asarray(diffusion.views(KEY, "coupled", jnp.ones((1, 6), bool), t_range=(t, t))[1])
    np.testing.assert_allclose(np.unique(ours[:, 1:].round(5)), np.unique([0, 1 / (2 * t), 1 / (2 - 2 * t)]), atol=2e-5)


# ---- logits in chunks ----
def everything(cfg, T=8, B=3):
    """-> f(params, data), data: the loss, and the views of a `trace` with their entropies, as one number each."""
    x, hole = jax.random.randint(KEY, (B, T), 0, 10), jnp.tile(jnp.arange(T) >= 2, (B, 1))
    b = noise_of(KEY, data.Batch(x, hole, None), cfg)
    M, w, _ = views(KEY, "trace", hole, step=jnp.where(hole, jnp.arange(T) % 3, -1), n=3)

    def f(params, data):
        b, M, w = data
        nelbo, metrics = diffusion.loss(params, b, cfg, 2)
        logp, entropy = diffusion.view_logp(params, b.x, M, cfg, None, 2, w != 0)
        return jnp.stack([nelbo, metrics["hole_acc"], (w * logp).sum(), (w * entropy).sum()])

    return f, (b, M, w)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, dict(shift=True, qkv_bias=True, tie_embeddings=True)], ids=["llada", "Dream"])
def test_logits_in_chunks_have_the_values_and_gradients_of_all_logits_at_once(changes, monkeypatch):
    cfg = shared.changed(CFG, **changes)
    params = init(KEY, cfg)
    f, data = everything(cfg)
    both = lambda: jax.jit(jax.grad(lambda p, d: (lambda out: (out.sum(), out))(f(p, d)), has_aux=True))(params, data)
    expected = both()
    # Four positions: the last chunks hold none that is scored.
    monkeypatch.setattr(kernels, "LOGITS_BYTES", 4 * cfg.vocab_size * 4)
    jax.tree.map(close, both(), expected)


def test_chunks_in_which_nothing_is_scored_are_never_read(monkeypatch):
    monkeypatch.setattr(kernels, "LOGITS_BYTES", 4 * CFG.vocab_size * 4)
    h, scored = jnp.ones((2, 8, CFG.d_model)), jnp.arange(16).reshape(2, 8) % 4 == 0
    seen = []
    say = lambda logits, x: (jax.debug.callback(lambda l: seen.append(l.shape), logits), x + 1)[1]
    out = diffusion.read_logits(PARAMS, h, CFG, say, scored, (X[:2, :8] * 0,))
    jax.effects_barrier()
    np.testing.assert_array_equal(out, scored * 1)
    assert seen == [(4, CFG.vocab_size)]


@pytest.mark.slow
def test_a_large_vocabulary_never_has_the_logits_of_all_positions():
    cfg = model.ModelConfig(vocab_size=50_000, n_layer=1, n_head=2, d_model=16, mask_id=39)
    shapes = jax.eval_shape(lambda: model.init(KEY, cfg))
    B, T = 32, 256
    score, data = everything(cfg, T, B)
    for f in (score, jax.grad(lambda *args: score(*args).sum())):
        used = jax.jit(f).lower(shapes, data).compile().memory_analysis().temp_size_in_bytes
        print(f"{used / 2**20:.0f} of {B * T * cfg.vocab_size * 4 / 2**20:.0f} MiB")
        assert used < B * T * cfg.vocab_size * 4


@pytest.mark.slow
def test_remat_computes_every_block_twice_and_not_three_times():
    """Forward, again, and two for the gradient: 4 passes."""
    cfg = model.ModelConfig(n_layer=3, d_model=32, vocab_size=40, mask_id=39, remat=True)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), cfg))
    x, M = jax.ShapeDtypeStruct((4, 12), int), jax.ShapeDtypeStruct((4, 1, 12), bool)
    logp = lambda p, x, M: diffusion.view_logp(p, x, M, cfg)[0]
    flops = lambda f: jax.jit(f).lower(params, x, M).compile().cost_analysis()["flops"]
    assert 3.5 < flops(jax.grad(lambda p, x, M: jnp.exp(logp(p, x, M).sum(1)).sum())) / flops(logp) < 4.2


@pytest.mark.parametrize("shift", [False, True])
def test_remat_behind_a_prompt_changes_no_gradient(shift):
    def gradient(remat):
        cfg = shared.changed(CFG, shift=shift, remat=remat)
        f = lambda p: diffusion.view_logp(p, X[:2], jnp.ones((2, 2, X.shape[1]), bool), cfg, start=2)[0].sum()
        return jax.jit(jax.grad(f))(PARAMS)

    jax.tree.map(close, gradient(True), gradient(False))


def test_accuracy_counts_masked_tokens_that_are_the_likeliest():
    params = jax.tree.map(jnp.zeros_like, WILD)  # it always says 1
    params |= {"embed": params["embed"] + 1, "norm": params["norm"] + 1, "head": params["head"].at[:, 1].set(1.0)}
    x = jnp.array([[1, 1, 2, 1], [0, 1, 1, 2]])
    weight = jnp.array([[[0.1, 0.2, 0.4, 0.0]], [[0.05, 0.1, 0.0, 0.15]]])
    _, metrics = loss(params, diffusion.NoisyBatch(x, jnp.full((2, 1, 4), 3), weight, None), SMALL)
    np.testing.assert_allclose(metrics["hole_acc"], 0.1 + 0.2 + 0.1, rtol=1e-6)
