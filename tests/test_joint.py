"""Models that are autoregressive and denoisers at once: both losses in one pass, and drafts that lose nothing."""
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import byte_model, compiled, logits_of, noise_of, slow

import config
import diffusion
import model
import rl
import sample
import train
from system import checkpoint, huggingface
from system.adapt import adapt
from system.start import open_sources, prepare
from variants import blocks, drafts, joint

KEY = jax.random.key(0)
CFG = model.ModelConfig(vocab_size=6, n_layer=2, n_head=2, d_model=16, d_ff=32, block_causal=4, causal_text=True,
                        mask_id=5, eos_id=4)  # fmt: skip
AR = joint.autoregressive(CFG)
FAR = jax.tree.map(lambda w: w + 0.3 * jax.random.normal(KEY, w.shape), model.init(KEY, CFG))  # sure of something
X = jax.random.randint(jax.random.key(1), (3, 9), 0, 4)
VALID = jnp.arange(9) >= jnp.array([[0], [2], [5]])  # two rows are padded on their left
hidden = jax.jit(blocks.hidden, static_argnames=("cfg", "start", "with_text"))
loss, both = compiled(diffusion.loss), compiled(joint.loss_of_both)
hidden_ar = jax.jit(model.hidden, static_argnames=("cfg", "start"))


def close(a, b, tol=2e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=0)


def plan(**keys):
    return sample.Plan(**dict(rule="drafts", order="left") | keys)


# ---- both losses in one pass -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("valid, start", [(VALID, 5), slow(None, 5), slow(VALID, 0), slow(None, 0)])
def test_the_text_of_a_packed_row_is_read_as_the_autoregressive_model_reads_it(valid, start):
    noisy = jnp.where(jax.random.bernoulli(KEY, 0.5, (3, 2, 9)), CFG.mask_id, X[:, None])
    both = hidden(FAR, X, noisy, CFG, valid, start, with_text=True)
    has_left = jnp.broadcast_to(model.positions_of(valid, 9) > 0, X.shape)[:, start:, None]
    close(both[:, 0] * has_left, hidden_ar(FAR, X, AR, valid, start) * has_left)
    there = True if valid is None else valid[:, None, start:, None]
    close(both[:, 1:] * there, hidden(FAR, X, noisy, CFG, valid, start) * there)


def test_a_copy_sees_its_own_block_both_ways_and_the_text_before_it():
    noisy = jnp.where(jnp.arange(9) % 3 > 0, CFG.mask_id, X)
    h = hidden(FAR, X, noisy[:, None], CFG)[:, 0]
    i, j = jnp.arange(8)[:, None], jnp.arange(8)
    sees = jnp.where(i < 4, j <= i, True)[None]  # block 1 behind the text of block 0, which is causal
    row = jnp.concatenate([X[:, :4], noisy[:, 4:8]], 1)
    alone = model.forward(FAR, row, CFG, j[None], model.equal_layers(sees, None, CFG))
    close(h[:, 4:8], alone[:, 4:])


@pytest.mark.parametrize("paired", [slow(False), True])
def test_the_loss_is_that_of_the_denoiser_and_that_of_the_autoregressive_model(paired):
    maskable = VALID & (jnp.arange(9) >= 6)
    batch = X, maskable, VALID
    total, metrics = both(FAR, noise_of(KEY, batch, CFG, paired=paired, causal_weight=0.7), CFG)
    denoising, _ = loss(FAR, noise_of(KEY, batch, CFG, paired=paired), CFG)
    causal, _ = loss(FAR, diffusion.noise(KEY, batch, AR), AR)
    close([total, metrics["nelbo"], metrics["causal_loss"]], [denoising + 0.7 * causal, denoising, 0.7 * causal])
    same = noise_of(KEY, batch, CFG, paired=paired)
    assert same.weight.shape == (3, 1 + paired, 9), "without a causal_weight there is one loss"


def test_a_run_has_the_loss_of_both_if_it_weighs_next_tokens():
    cfg = config.load(["config/countdown_joint_base.py"])
    assert rl.denoising_loss(cfg).func is joint.loss_of_both
    without = config.load(["config/countdown_joint_base.py", "--causal_weight=0"])
    assert rl.denoising_loss(without).func is diffusion.loss


def test_a_text_without_a_prompt_has_no_loss_on_its_first_token():
    noisy = noise_of(KEY, (X, VALID, VALID), CFG, causal_weight=1.0)
    first = np.argmax(np.asarray(VALID), 1)
    weight = np.asarray(noisy.weight)[:, 0]
    assert not weight[np.arange(3), first].any() and (weight[np.arange(3), first + 1] > 0).all()


@pytest.mark.parametrize("tied", [False, True])
def test_a_causal_model_that_becomes_joint_still_is_that_causal_model(tied, tmp_path):
    cfg = dataclasses.replace(AR, mask_id=None, tie_embeddings=tied, vocab_size=5)
    params = model.init(KEY, cfg)
    adapted, new = adapt(params, cfg, 5, CFG)  # an id that the model has no row for
    close(logits_of(adapted, X, joint.autoregressive(new))[..., :5], logits_of(params, X, cfg))
    assert (new.block_causal, new.causal_text, new.shift, new.tie_embeddings) == (4, True, False, False)
    huggingface.save(tmp_path, adapted, new)
    assert checkpoint.load(tmp_path)[1] == dataclasses.replace(new, n_kv_head=2, d_head=8)  # as a folder says it


# ---- drafts ----------------------------------------------------------------------------------------------------------
@functools.cache
def prompts():
    """Three rows of 14 columns with prompts of different lengths, one with a token given in its middle."""
    z = jax.random.randint(jax.random.key(2), (3, 14), 0, 4)
    z = jnp.where(jnp.arange(14) >= jnp.array([[3], [5], [4]]), CFG.mask_id, z)
    return z.at[2, 8].set(1), jnp.arange(14) >= jnp.array([[0], [2], [4]])


@pytest.mark.parametrize("block", [slow(2), 4, slow(32)])
def test_greedy_drafts_write_what_the_autoregressive_model_writes(block):
    z, valid = prompts()
    cfg = dataclasses.replace(CFG, block_causal=block)
    x, trace = sample.generate(FAR, KEY, z, cfg, plan(), valid)
    expected, theirs = sample.generate(FAR, KEY, z, AR, sample.Plan(order="left"), valid)
    np.testing.assert_array_equal(x, expected)
    written = (np.asarray(z) == CFG.mask_id) & (np.asarray(trace["logp"]) != 0)
    close(np.where(written, trace["logp"], 0), np.where(written, theirs["logp"], 0))
    np.testing.assert_array_equal(trace["step"] >= 0, z == CFG.mask_id)


def test_a_good_draft_saves_passes():
    """A model whose next token is always 1."""
    params = jax.tree.map(jnp.zeros_like, FAR)
    z = jnp.full((3, 14), CFG.mask_id).at[:, 0].set(0)
    sure = params | {"head": params["head"].at[0, 1].set(30.0), "embed": params["embed"].at[:, 0].set(1.0),
                     "norm": params["norm"].at[:].set(1.0)}  # fmt: skip
    x, trace = sample.generate(sure, sample.row_keys(KEY, 3), z, CFG, plan(temperature=1.0), jnp.ones(z.shape, bool))
    assert (x[:, 1:] == 1).all()
    steps = np.asarray(trace["step"])[0]
    np.testing.assert_array_equal(steps[:13], [-1, *np.repeat([1, 3, 5], 4)])  # each two passes write 4 tokens


@pytest.mark.parametrize("keys", [slow({}), slow(dict(top_p=0.8)), dict(temperature=0.6, top_k=3)])
def test_sampled_drafts_have_the_distribution_of_the_autoregressive_model(keys):
    """All completions of three tokens, counted, beside their probabilities by enumeration."""
    n, asked = 4096, plan(**dict(temperature=1.0) | keys)
    cfg, own = (dataclasses.replace(c, eos_id=None) for c in (CFG, AR))
    z = jnp.full((1, 6), CFG.mask_id).at[:, :3].set(jnp.array([1, 2, 0]))
    texts = jnp.array([[1, 2, 0, *tail] for tail in itertools.product(range(5), repeat=3)])
    logits = sample.filtered(model.logits(FAR, texts, own)[:, 3:], asked)
    p = np.exp(np.asarray(diffusion.gather_logp(logits, texts[:, 3:]), np.float64).sum(1))
    x, trace = sample.generate(FAR, jax.random.key(7), jnp.repeat(z, n, 0), cfg, asked)
    number = np.asarray(x)[:, 3:] @ [25, 5, 1]
    seen = np.bincount(number, minlength=125)
    assert not seen[p < 1e-12].any()
    expected = n * p / p.sum()
    pooled = expected >= 4
    chi2 = ((seen - expected)[pooled] ** 2 / expected[pooled]).sum()
    degrees = pooled.sum() - 1
    assert chi2 < degrees + 4 * (2 * degrees) ** 0.5
    close(np.asarray(trace["logp"]).sum(1), np.log(p[number]), 1e-4)


@pytest.mark.slow
def test_so_do_texts_of_several_rounds_with_an_end_and_a_given_token():
    """Tokens 1, 2, 4 and 5, of which an end stops only the last, because token 3 is given."""
    n, cfg = 8192, dataclasses.replace(CFG, block_causal=2)
    texts = jnp.array([[1, a, b, 2, *rest] for a, b, *rest in itertools.product(range(5), repeat=4)])
    logits = model.logits(FAR, texts, AR)
    each = np.exp(np.asarray(diffusion.gather_logp(logits, texts), np.float64))
    ended = np.asarray(texts[:, 4] == CFG.eos_id)
    last = np.where(ended, texts[:, 5] == CFG.eos_id, each[:, 5])
    p = each[:, [1, 2, 4]].prod(1) * last
    assert abs(p.sum() - 1) < 1e-4
    z = jnp.array([[1, 5, 5, 2, 5, 5]])
    x, _ = sample.generate(FAR, jax.random.key(3), jnp.repeat(z, n, 0), cfg, plan(temperature=1.0))
    seen = np.bincount(np.asarray(x)[:, [1, 2, 4, 5]] @ [125, 25, 5, 1], minlength=625)
    assert not seen[p < 1e-12].any()
    pooled = n * p >= 4
    chi2 = ((seen - n * p)[pooled] ** 2 / (n * p)[pooled]).sum()
    assert chi2 < pooled.sum() + 4 * (2 * pooled.sum()) ** 0.5


accept = jax.jit(jax.vmap(drafts.accept_or_replace, (None, None, 0, 0, 0)))


def test_where_rounding_leaves_nothing_of_p_a_token_is_drawn_from_p():
    p, q = jnp.array([0.0, 0.3, 0.7, 0.0]), jnp.array([0.0, 0.3, 0.7000005, 0.0])
    keys = jax.random.split(KEY, 20_000)
    _, other = accept(p, q, jnp.full(20_000, 2), keys, keys)
    assert set(np.asarray(other).tolist()) == {1, 2}


def test_the_loss_of_next_tokens_ends_at_the_first_end():
    x = X.at[0, 5:].set(CFG.eos_id)
    weight = noise_of(KEY, (x, jnp.arange(9) + 0 * x >= 3, None), CFG, causal_weight=1.0).weight[:, 0]
    np.testing.assert_array_equal(weight[0] > 0, (np.arange(9) >= 3) & (np.arange(9) < 6))
    assert (weight[1:, 3:] > 0).all()


def test_any_draft_gives_the_same_distribution():
    n = 20_000
    p = jnp.array([0.5, 0.3, 0.2, 0.0])
    for q in ([0.1, 0.1, 0.1, 0.7], [0.0, 0.0, 1.0, 0.0], [0.5, 0.3, 0.2, 0.0], [0.0] * 4):
        q = jnp.array(q)
        token = jax.random.choice(KEY, 4, (n,), p=q) if q.sum() else jnp.zeros(n, int)
        accepted, other = accept(p, q, token, *(jax.random.split(jax.random.key(i), n) for i in (1, 2)))
        share = np.bincount(np.where(accepted, token, other), minlength=4) / n
        close(share, p, 0.015)
        close(accepted.mean(), jnp.minimum(p, q).sum(), 0.015)


def test_neither_other_rows_nor_padding_change_what_a_row_gets():
    z, valid = prompts()
    keys, asked = sample.row_keys(KEY, 3), plan(temperature=1.0)
    x, _ = sample.generate(FAR, keys, z, CFG, asked, valid)
    for row in range(3):  # thrice, in the same program
        alone = jnp.full(3, row)
        one, _ = sample.generate(FAR, keys[alone], z[alone], CFG, asked, valid[alone])
        np.testing.assert_array_equal(one[0], x[row])
    cut, _ = sample.generate(FAR, keys[2:], z[2:, 4:], CFG, asked)
    np.testing.assert_array_equal(cut[0], x[2, 4:])


def test_nothing_is_written_behind_an_end():
    z = jnp.full((3, 14), CFG.mask_id).at[:, :2].set(1)
    draw = lambda i: sample.generate(FAR, sample.row_keys(jax.random.key(i), 3), z, CFG, plan(temperature=1.0),
                                     jnp.ones(z.shape, bool))[0]  # fmt: skip
    ends = np.concatenate([draw(i) for i in range(20)])[:, 2:] == CFG.eos_id
    assert ends.any(1).mean() > 0.3, "otherwise this says nothing"
    assert (ends[:, 1:] >= ends[:, :-1]).all()


@pytest.mark.slow
def test_logits_in_chunks_are_the_same(monkeypatch):
    z, valid = prompts()
    whole, _ = sample.generate(FAR, KEY, z, CFG, plan(temperature=1.0), valid)
    monkeypatch.setattr(diffusion, "LOGITS_BYTES", 16 * CFG.vocab_size * 3)
    jax.clear_caches()
    np.testing.assert_array_equal(sample.generate(FAR, KEY, z, CFG, plan(temperature=1.0), valid)[0], whole)
    jax.clear_caches()


@pytest.mark.parametrize("changes, keys, named", [
    (dict(causal_text=False), {}, "rule='drafts' needs a model that is autoregressive and a denoiser at once"),
    (dict(block_causal=1), {}, "blocks of 2 or more"),
    (dict(block_causal=None), {}, "causal_text=True says how the blocks"),
    (dict(shift=True), {}, "causal_text=True says how the blocks"),
    ({}, dict(order="confidence"), "order='confidence': rule='drafts' writes from left to right"),
    ({}, dict(cache="prefix"), "cache='prefix'"),
    ({}, dict(repetition_penalty=1.2), "repetition_penalty=1.2"), ({}, dict(block_len=2), "block_len=2"),
])  # fmt: skip
def test_what_drafts_cannot_do_is_named(changes, keys, named):
    z, valid = prompts()
    with pytest.raises(ValueError, match=named):
        sample.generate(FAR, KEY, z, dataclasses.replace(CFG, **changes), plan(**keys), valid)


def test_a_model_that_drafts_cannot_write_with_is_refused_before_it_is_trained(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "12", "completion": "21"}\n' * 30)
    cfg = config.Config(out_dir=f"{tmp_path}/out", dataset=f"{tmp_path}/rows.jsonl", rule="drafts", order="left",
                        model=model.ModelConfig(block_causal=1, causal_text=True, d_model=16, n_layer=1))  # fmt: skip
    with pytest.raises(ValueError, match="blocks of 2 or more"):
        prepare(cfg, train.train)


def test_drafts_need_no_more_in_a_config_than_the_folder_of_their_model(tmp_path):
    folder = str(tmp_path / "joint")
    byte_model(folder, block_causal=4, causal_text=True)
    cfg = config.Config(objective="grpo", init_from=folder, rewards=("exact",), rule="drafts", order="left",
                        logp_est="exact")  # fmt: skip
    assert open_sources(None, cfg).cfg.model.block_causal == 4
