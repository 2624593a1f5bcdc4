"""model.py: one transformer, checked against LLaDA's own outputs, transformers' Llama and Qwen, and itself."""
import collections
import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import KEY, but_mask, close, logits_of, random_torch, refused, slow, torch_logits

import model
import sample
from checkpoints import checkpoint, huggingface
from checkpoints.adapt import adapt
from judges import model_judge
from system import cudnn, kernels, sharding, sixteen_bits
from tools import plan
from variants import blocks, caches, gemma

FIXTURE = "tests/fixtures/llada"
TINY = model.ModelConfig(vocab_size=40, n_layer=2, n_head=4, d_model=32, mask_id=39, eos_id=38, pad_id=37)
DENOISER = dataclasses.replace(TINY, n_kv_head=2)
CAUSAL = dataclasses.replace(TINY, n_kv_head=2, causal=True, shift=True, mask_id=None)
TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 37)


def extend(params, tokens, cfg, valid, cache, start):
    """Compute the columns from `start` on, which have these tokens (B, S) -> states, cache."""
    T, part = cache[0][0].shape[2], (start, tokens.shape[1])
    positions = model.columns(model.positions_of(valid, T), part)
    mask = model.attention_mask(cfg, valid, jnp.zeros((1, T), int), part)
    return caches.forward(params, tokens, cfg, positions, mask, cache, caches.Write(start))


# ---- parity ----
@pytest.mark.parametrize("folder, ids, logits", [
    ("", "ids_full", "logits_full"), ("", "ids_pad", "logits_pad"), ("/sharded_bf16", "ids_full", "logits_full_bf16w")])
def test_logits_equal_those_of_the_original_llada_code(folder, ids, logits):
    (params, cfg), expected = checkpoint.load(FIXTURE + folder), np.load(f"{FIXTURE}/expected.npz")
    valid = expected["mask_pad"].astype(bool) if "pad" in ids else np.ones(expected[ids].shape, bool)
    ours = but_mask(logits_of(params, expected[ids], cfg, jnp.asarray(valid)))
    if folder:  # of the first row
        ours, valid = ours[0], valid[0]
    close(ours[valid], but_mask(expected[logits])[valid])


AUTOREGRESSIVE = {
    "llama": CAUSAL,
    "llama 3.1": shared.changed(CAUSAL, d_head=16, rope_theta=100.0, **{"rope.scaling": (8.0, 1.0, 4.0, 64)}),
    "qwen2": dataclasses.replace(CAUSAL, qkv_bias=True, tie_embeddings=True),
    "qwen3": dataclasses.replace(CAUSAL, qk_norm=True, d_head=16),
    "gemma2": shared.changed(CAUSAL, gemma=True, tie_embeddings=True, n_layer=3, d_head=16, **{
        "gemma.window": 5, "gemma.query_scale": 24, "gemma.attn_cap": 2.0, "gemma.logit_cap": 3.0}),
}  # fmt: skip
GEMMA = dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=5, num_hidden_layers=3, attn_logit_softcapping=2.0,
             final_logit_softcapping=3.0, tie_word_embeddings=True)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", AUTOREGRESSIVE)
def test_a_folder_that_transformers_wrote_opens_here(kind, tmp_path):
    shape = dict(max_position_embeddings=64, rope_theta=5e5) | (GEMMA if kind == "gemma2" else {})
    if kind == "llama 3.1":  # wavelengths of 6 to 350 tokens: some stay, some are stretched by 8, some in between
        shape |= dict(head_dim=16, rope_theta=100.0, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64))  # fmt: skip
    theirs = random_torch(kind.split()[0], **shape)
    theirs.save_pretrained(tmp_path)
    params, cfg = checkpoint.load(tmp_path)
    close(model.logits(params, TOKENS, cfg)[:, 1:], torch_logits(theirs, TOKENS)[:, :-1])


@pytest.mark.slow
def test_dream_is_qwen2_that_looks_both_ways_and_ignores_padding(tmp_path):
    torch, theirs = pytest.importorskip("torch"), random_torch("qwen2")
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    dream = {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": 39}
    file.write_text(json.dumps(json.loads(file.read_text()) | dream))
    params, cfg = checkpoint.load(tmp_path)
    assert (cfg.causal, cfg.shift, cfg.qkv_bias, cfg.mask_id) == (False, True, True, 39)
    valid = np.arange(12) >= np.array([[0], [3], [5]])
    seen = valid[:, :, None] & valid[:, None]  # both as Dream's _sample makes them
    positions = np.where(valid, np.cumsum(valid, 1) - 1, 1)
    raw = torch_logits(theirs, TOKENS, seen, position_ids=torch.tensor(positions))
    raw = np.concatenate([raw[:, :1], raw[:, :-1]], 1)
    given = valid & np.roll(valid, 1, 1)  # the first token of a padded row is predicted from padding, and never asked
    ours = model.logits(params, TOKENS, cfg, jnp.asarray(valid))
    close(but_mask(ours, 39)[given], but_mask(raw, 39)[given])


# ---- what sees what ----
GEMMA2 = shared.changed(AUTOREGRESSIVE["gemma2"], n_layer=1, **{"gemma.window": 3})


@pytest.mark.parametrize("cfg, sees", [
    (DENOISER, range(12)), (CAUSAL, range(5, 12)),
    (GEMMA2, range(5, 8)),  # token 8 is predicted from position 7, which sees 5, 6 and 7
    (dataclasses.replace(GEMMA2, n_layer=2), range(5, 12))], ids=["denoiser", "causal", "gemma", "gemma of 2 blocks"])
def test_what_sees_a_token(cfg, sees):
    """Whose logits move when token 4 changes."""
    params = model.init(KEY, cfg)
    a, b = TOKENS[:1], TOKENS[:1].at[0, 4].set(5 if TOKENS[0, 4] != 5 else 6)
    ids = np.delete(np.arange(cfg.vocab_size), [] if cfg.mask_id is None else cfg.mask_id)
    difference = jnp.abs(logits_of(params, a, cfg) - logits_of(params, b, cfg))[0][:, ids].max(-1)
    assert np.flatnonzero(np.asarray(difference) > 1e-7).tolist() == [*sees]


@pytest.mark.slow
@pytest.mark.parametrize("pads", [0, 1, 3])
def test_a_causal_model_without_a_prompt_does_not_see_the_token_it_predicts(pads):
    params, rest = model.init(KEY, CAUSAL), jax.random.randint(KEY, (37, 5), 0, 37)
    z = jnp.concatenate([jnp.full((37, pads), 37), jnp.arange(37)[:, None], rest], 1)
    valid = jnp.broadcast_to(jnp.arange(6 + pads) >= pads, z.shape) if pads else None
    first = model.logits(params, z, CAUSAL, valid)[:, pads]
    close(first, jnp.broadcast_to(first[0], first.shape), 1e-6)  # whatever it is, and whatever follows
    close(first[0], model.logits(params, z[:, pads:], CAUSAL)[0, 0], 1e-6)
    raw = model.readout(params, model.trunk(params, jnp.array([[CAUSAL.eos_id]]), CAUSAL), CAUSAL)
    close(first[0], raw[0, 0], 1e-6)  # it is what follows an end of text


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"gemma.window": 2}], ids=str)
def test_the_first_hole_of_a_shifted_denoiser_is_the_same_behind_padding(changes):
    cfg = shared.changed(DENOISER, shift=True, qkv_bias=True, **changes)
    params, z = model.init(KEY, cfg), TOKENS.at[:, :2].set(cfg.mask_id)
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(KEY, w.shape), params)
    padded = jnp.pad(z, ((0, 0), (3, 0)), constant_values=cfg.pad_id)
    valid = jnp.broadcast_to(jnp.arange(15) >= 3, padded.shape)
    alone = model.logits(params, z, cfg)
    close(model.logits(params, padded, cfg, valid)[:, 3:], alone, 1e-4)
    close(model.logits(params, padded, cfg, valid, 3), alone, 1e-4)
    close(model.logits(params, padded, cfg, valid, 2, 4)[:, 1:], alone[:, :3], 1e-4)
    own = model.readout(params, model.trunk(params, z, cfg), cfg)
    close(alone[:, 0], own[:, 0], 1e-5)  # as in Dream's sampler


@pytest.mark.slow
def test_params_kept_in_16_bits_compute_what_float32_params_compute_in_16_bits():
    """Gemma adds 1 to its gains: rounded before that, a model differed from its own copy by up to 0.085 nats."""
    cfg = dataclasses.replace(AUTOREGRESSIVE["gemma2"], dtype="bfloat16")
    params = model.init(jax.random.key(0), cfg)
    shifted = lambda path, x: x + 0.3 * jnp.sin(jnp.arange(x.size)).reshape(x.shape) if "norm" in str(path) else x
    params = jax.tree_util.tree_map_with_path(shifted, params)
    np.testing.assert_array_equal(*(model.logits(p, TOKENS, cfg) for p in (params, model.cast(params, "bfloat16"))))


@pytest.mark.slow
def test_a_causal_model_may_have_a_mask_beyond_its_vocabulary_that_bans_nothing():
    cfg, params = dataclasses.replace(CAUSAL, mask_id=40), model.init(KEY, CAUSAL)
    holes = TOKENS.at[:, 6:].set(40)
    close(model.logits(params, holes, cfg)[:, :7], model.logits(params, TOKENS, CAUSAL)[:, :7], 1e-6)
    refused("mask_id=40", dataclasses.replace, DENOISER, mask_id=40)


@pytest.mark.parametrize("cfg, read", [(DENOISER, lambda h: h[:, 2:].mean(1)), (CAUSAL, lambda h: h[:, -1])])
def test_a_judge_reads_the_mean_of_the_states_or_a_causal_one_the_last(cfg, read):
    params = model.init(KEY, cfg, n_out=1)
    valid = jnp.arange(TOKENS.shape[1])[None] >= jnp.array([[2]] * len(TOKENS))
    states = model.trunk(params, TOKENS, cfg, valid)
    close(model_judge.rate(params, TOKENS, cfg, valid), read(states) @ params["head"][:, 0], 1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_a_new_model_has_weights_of_the_size_that_its_layers_need(tied):
    cfg = model.ModelConfig(vocab_size=300, n_layer=8, n_head=2, d_model=64, d_ff=256, qkv_bias=True,
                            tie_embeddings=tied)  # fmt: skip
    params = model.init(jax.random.key(0), cfg)
    wanted = {"q": 64**-0.5, "v": 64**-0.5, "up": 64**-0.5, "o": 64**-0.5 / 4, "down": 256**-0.5 / 4}
    for name, std in wanted.items():
        assert float(jnp.stack([w[name] for w in params["blocks"]]).std()) == pytest.approx(std, rel=0.03), name
    assert float(params["embed"].std()) == pytest.approx(0.02 if tied else 0.5, rel=0.03)
    assert tied or float(params["head"].std()) == pytest.approx(0.02, rel=0.03)
    assert (params["norm"] == 1).all() and not params["blocks"][0]["q_bias"].any()


def test_a_seed_is_the_same_model_in_every_version():
    params = model.init(KEY, model.ModelConfig(vocab_size=8, n_layer=1, n_head=1, d_model=4, d_ff=8))
    close(params["embed"][0, :3], [0.16029397, 0.01181293, -0.7383013], 1e-6)
    close(params["blocks"][0]["q"][0, :3], [-0.02714659, 0.6162043, 0.34075046], 1e-6)
    close(params["blocks"][0]["down"][0, :3], [0.26219064, -0.06388114, -0.5439223], 1e-6)


@pytest.mark.parametrize("changes", [dict(shift=True, **{"gemma.window": 3}, qk_norm=True), *map(slow, (
    {}, dict(causal=True, shift=True, qkv_bias=True), dict(gemma=True, n_layer=3, **{"gemma.window": 3}),
    dict(remat=True)))], ids=str)  # fmt: skip
def test_a_window_of_logits_is_that_window_of_all_logits(changes):
    cfg = shared.changed(DENOISER, **changes)
    params, valid = model.init(KEY, cfg), jnp.arange(12) >= jnp.array([[0], [2], [0]])
    read = jax.jit(model.logits, static_argnames=("cfg", "length"))
    whole = read(params, TOKENS, cfg, valid)
    for start in (0, 3, 8):
        close(read(params, TOKENS, cfg, valid, start, 4), whole[:, start : start + 4], 1e-6)
    to_the_end = lambda params: model.logits(params, TOKENS, cfg, valid, 7)
    cut_out = lambda params: model.logits(params, TOKENS, cfg, valid)[:, 7:]
    both = lambda logits: (jnp.sum(jnp.sin(logits[..., :37])), logits)
    gradient = lambda read: jax.jit(jax.grad(lambda params: both(read(params)), has_aux=True))(params)
    (ours, end), (theirs, _) = gradient(to_the_end), gradient(cut_out)
    close(end, whole[:, 7:], 1e-6)
    jax.tree.map(lambda a, b: close(a, b, 1e-4), ours, theirs)


SEEN = {  # masks (B or 1, S or 1, T) for texts of 7 and of 8 tokens
    "everything": lambda T: None,
    "no padding": lambda T: jnp.broadcast_to((jnp.arange(T) >= jnp.array([[0], [3]]))[:, None], (2, T, T)),
    "what is left": lambda T: jnp.tril(jnp.ones((1, T, T), bool)),
    "blocks behind padding": lambda T: (
        (pads := jnp.array([0, 3])[:, None, None]) <= jnp.arange(T))
    & ((jnp.arange(T)[:, None] - pads).clip(0) // 3 >= (jnp.arange(T) - pads).clip(0) // 3),
}  # fmt: skip


@pytest.mark.parametrize("name, T", [("blocks behind padding", 7), *(slow(name, 8) for name in SEEN)])
def test_attention_and_its_gradient_are_those_of_the_kernel_of_a_gpu(name, T):
    q, k, v = heads = [jax.random.normal(jax.random.key(i), (2, T, n, 8)) for i, n in enumerate((4, 2, 2))]
    both = lambda f: jax.jit(lambda *heads: (out := f(*heads, SEEN[name](T), 5**-0.5), jax.vjp(
        lambda *heads: f(*heads, SEEN[name](T), 5**-0.5), *heads)[1](jnp.sin(out))))(*heads)  # fmt: skip
    flash = functools.partial(cudnn.attention, implementation="xla")
    jax.tree.map(lambda a, b: close(a, b, 1e-5), both(flash), both(kernels.plain_attention))


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [CAUSAL, *(shared.changed(DENOISER, **changes) for changes in (
    {}, {"gemma.window": 3}, {"blocks.block": 4}, dict(shift=True, qk_norm=True)))])  # fmt: skip
def test_a_model_on_a_gpu_is_the_model_on_a_cpu(cfg, monkeypatch):
    params, valid = model.init(KEY, cfg), jnp.arange(12) >= jnp.array([[0], [2], [0]])
    z = TOKENS.at[:, 5:7].set(39)
    both = jnp.stack([z, TOKENS.at[:, 7:9].set(39)], 1)
    packed = lambda z: blocks.hidden(params, TOKENS, both, cfg, valid, 2)
    single = lambda z: model.hidden(params, z, cfg, valid, 2, 7)
    read = lambda: jax.jit(lambda z: (packed if cfg.block else single)(z))(z)
    here, used = read(), []
    flash = functools.partial(cudnn.attention, implementation="xla")
    monkeypatch.setattr(cudnn, "attention", lambda *args: used.append(args) or flash(*args))
    monkeypatch.setattr(cudnn, "fits", lambda *settings: True)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    close(read(), here, 1e-5)
    # A packed row takes two calls, its text and its copies; in the last block only the copies are computed.
    assert len(used) == (2 * cfg.n_layer - 1 if cfg.block else cfg.n_layer)


def test_the_kernel_of_a_gpu_is_taken_where_it_can_do_what_the_model_needs(monkeypatch):
    Device = collections.namedtuple("Device", "compute_capability")
    low, one = dataclasses.replace(DENOISER, dtype="bfloat16"), jnp.zeros((1, 1), int)
    fused = lambda cfg: cudnn.fits(cfg.dtype, cfg.head_dim, gemma.Shape.of(cfg).attn_cap)
    with plan.traced_for_gpu():
        assert fused(low) and not fused(DENOISER)
        assert not fused(shared.changed(low, **{"gemma.attn_cap": 50.0}))
        assert not fused(dataclasses.replace(low, d_head=12)) and sharding.platform() == "gpu"
        assert not sharding.shape()  # and nothing is split
        params, cache = jax.eval_shape(lambda: (model.init(KEY, low), caches.new_cache(low, 1, 4)))
        read = lambda params, cache: extend(params, one, low, None, cache, 3)
        jax.eval_shape(read, params, cache)  # one query: the plain one, which runs here
        for version, known in (("7.5", False), ("9.0", True), ("12.0", True), ("gfx942", False)):  # T4, H100, AMD
            monkeypatch.setattr(jax, "devices", lambda version=version: [Device(version)])
            assert fused(low) == known


@pytest.mark.slow
@pytest.mark.parametrize("depth", [9, 13, 28])
def test_a_deep_model_does_not_copy_its_weights(depth):
    """Blocks that are compiled one by one do: 1.28 times the params for 28 of them in eights, and 2.4 in a gradient."""
    cfg = dataclasses.replace(DENOISER, n_layer=depth, d_model=128)
    params = jax.eval_shape(lambda: model.init(KEY, cfg))
    size = sum(x.size * 4 for x in jax.tree.leaves(params))
    f = lambda p, z: model.logits(p, z, cfg, start=1).mean()
    used = lambda f: jax.jit(f).lower(params, jax.ShapeDtypeStruct((1, 4), int)).compile().memory_analysis()
    assert used(f).temp_size_in_bytes < 0.3 * size and used(jax.grad(f)).temp_size_in_bytes < 0.5 * size


def test_sixteen_bits_are_multiplied_by_sixteen_bits_and_summed_in_32_in_the_gradient_too():
    x, w = jnp.ones((3, 8), "bfloat16"), jnp.ones((8, 4), "bfloat16")
    jaxpr = jax.make_jaxpr(jax.vjp(kernels.matmul, x, w)[1])(jnp.ones((3, 4)))
    dots = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(dots) > 1
    for dot in dots:
        assert [v.aval.dtype.name for v in (*dot.invars, *dot.outvars)] == ["bfloat16", "bfloat16", "float32"]


@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize(("I", "O"), [(24, 40), (40, 24), (32, 32)])
def test_the_gradient_of_16_bit_weights_is_that_of_the_plain_product(I, O, amx, monkeypatch):
    monkeypatch.setattr(sixteen_bits, "has_amx", lambda: amx)
    shapes = zip(jax.random.split(KEY, 3), [(64, I), (I, O), (64, O)], strict=True)
    x, w, g = (jax.random.normal(key, shape).astype("bfloat16") for key, shape in shapes)
    for jit in (jax.jit, lambda f: f):
        ours = jit(lambda x, w, g: jax.vjp(sixteen_bits.product, x, w)[1](g))(x, w, g.astype("float32"))
        exact = np.float32(g) @ np.float32(w).T, np.float32(x).T @ np.float32(g)
        for a, b in zip(ours, exact, strict=True):
            assert a.dtype == "bfloat16"
            np.testing.assert_allclose(np.float32(a), b, rtol=2**-8, atol=1e-5)  # half a unit of the last place


def test_a_gpu_reads_the_head_once_for_blocks_of_32_tokens_of_eight_texts():
    assert kernels.positions_at_once(126_464) == 66
    with plan.traced_for_gpu():
        assert kernels.positions_at_once(126_464) >= 8 * 32


def test_between_products_a_cpu_computes_in_32_bits_and_a_gpu_in_16():
    low = shared.changed(DENOISER, dtype="bfloat16", **{"gemma.attn_cap": 50.0})  # no kernel of a GPU has a cap
    params = jax.eval_shape(lambda: model.init(KEY, low))

    def dtype():
        return jax.eval_shape(lambda params: model.trunk(params, TOKENS, low), params).dtype.name

    assert dtype() == "float32"
    with plan.traced_for_gpu():
        assert dtype() == "bfloat16"


def test_amx_is_found_in_what_linux_says_of_a_cpu(tmp_path):
    for flags in ("avx2", "avx2 amx_bf16", ""):
        if flags:
            (tmp_path / flags).write_text(f"flags\t: fpu {flags}\n")
        assert sixteen_bits.has_amx(str(tmp_path / (flags or "none"))) == ("amx" in flags)  # no such file on a Mac


def test_a_step_from_a_cache_makes_no_32_bits_of_matrices_of_16_and_turns_no_keys_around():
    cfg = dataclasses.replace(TINY, dtype="bfloat16", causal=True, shift=True)
    params = jax.tree.map(lambda x: x.astype("bfloat16"), model.init(jax.random.key(0), cfg))
    step = jax.jit(lambda params, cache: extend(params, jnp.zeros((2, 1), int), cfg, None, cache, 3))
    text = step.lower(params, caches.new_cache(cfg, 2, 8)).compile().as_text()
    assert "bf16[32,96]" in text and not re.search(r"f32\[(32|96),(32|96)\]", text)
    low, params = dataclasses.replace(cfg, dtype="float32"), jax.tree.map(lambda x: x.astype("float32"), params)
    step = jax.jit(lambda params, cache: extend(params, jnp.zeros((2, 1), int), low, None, cache, 3))
    text = step.lower(params, caches.new_cache(low, 2, 50)).compile().as_text()
    assert not re.search(r"\[[\d,]*\b50,[^\]]*\]\S* transpose\(", text)


def test_bfloat16_is_close_and_its_logits_are_float32():
    params = model.init(KEY, DENOISER)
    low = model.logits(params, TOKENS, dataclasses.replace(DENOISER, dtype="bfloat16"))
    assert low.dtype == jnp.float32
    close(but_mask(low, 39), but_mask(model.logits(params, TOKENS, DENOISER), 39), 0.02)


# ---- a cache of keys and values ----
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2"])
def test_greedy_completions_are_those_of_transformers_generate(name, tmp_path):
    torch, ids = pytest.importorskip("torch"), dict(vocab_size=37, eos_token_id=3, pad_token_id=0, bos_token_id=1)
    extra = GEMMA if name == "gemma2" else dict(head_dim=16) if name == "qwen3" else {}
    theirs = random_torch(name, **ids | extra)
    theirs.save_pretrained(tmp_path)
    params, cfg = checkpoint.load(tmp_path)
    prompts, asked = np.array(TOKENS[:, :6]), np.arange(6) >= np.array([[0], [3], [1]])
    out = theirs.generate(torch.tensor(prompts), attention_mask=torch.tensor(asked.astype(int)), do_sample=False,
                          max_new_tokens=20, min_new_tokens=1)  # fmt: skip
    z = np.pad(prompts, ((0, 0), (0, 20)), constant_values=cfg.mask_id)
    valid = np.pad(asked, ((0, 0), (0, 20)), constant_values=True)
    plan = sample.Plan(order="left")
    ours, trace = sample.generate(params, KEY, jnp.array(z), cfg, plan, jnp.array(valid))
    for mine, other in zip(np.asarray(ours)[:, 6:].tolist(), out[:, 6:].tolist(), strict=True):
        cut = lambda row: row[: row.index(3)] if 3 in row else row
        assert cut(mine)[: len(cut(other))] == cut(other) and len(cut(other)) > 1


@pytest.mark.parametrize("name", [slow("llama"), "qwen2"])
def test_a_denoiser_made_of_a_causal_model_is_that_model_without_its_mask(name, tmp_path):
    cfg = AUTOREGRESSIVE[name]
    params = model.init(KEY, cfg)
    adapted, new = adapt(params, cfg, 40, cfg)  # an id that the model has no row for
    assert (new.vocab_size, new.causal, new.shift) == (41, False, True)
    blinded = shared.changed(new, causal=True)
    close(model.logits(adapted, TOKENS, blinded)[..., :40], model.logits(params, TOKENS, cfg))
    assert float(jnp.abs(model.logits(adapted, TOKENS, new) - model.logits(adapted, TOKENS, blinded)).max()) > 0.01
    huggingface.save(tmp_path, adapted, new)
    assert huggingface.family_of(checkpoint.load(tmp_path)[1]) == "Dream"
    left = adapt(params, cfg, 39, cfg)[0]["embed"]  # a row that was left over, and means nothing yet
    assert left.shape == params["embed"].shape and (left[:39] == params["embed"][:39]).all()
    close(left[39], params["embed"].mean(0))


# ---- folders ----
SAVED = {
    "llada": DENOISER,
    "llada tied": dataclasses.replace(DENOISER, tie_embeddings=True),
    "llada bias": dataclasses.replace(DENOISER, qkv_bias=True),
    "Dream": dataclasses.replace(DENOISER, shift=True, qkv_bias=True),
    "a2d-qwen3": dataclasses.replace(DENOISER, qk_norm=True),
    "a2d-qwen2": shared.changed(DENOISER, qkv_bias=True, **{"blocks.block": 4}),
    "a2d-llama blocks": shared.changed(DENOISER, **{"blocks.block": 4}),
    "a2d-llama": dataclasses.replace(DENOISER, d_head=16),
    "sdar": shared.changed(DENOISER, qk_norm=True, **{"blocks.block": 4}),
} | AUTOREGRESSIVE


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("n_out", [None, 1], ids=["model", "judge"])
def test_save_and_load_are_inverse(name, n_out, tmp_path):
    cfg = SAVED[name]
    params = model.init(KEY, cfg, n_out)
    huggingface.save(tmp_path, params, cfg)
    loaded, loaded_cfg = checkpoint.load(tmp_path)
    assert json.load(open(tmp_path / "config.json"))["model_type"] == name.split()[0]
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    mask_id = cfg.vocab_size if cfg.causal and cfg.mask_id is None else cfg.mask_id  # no hole is read: any id will do
    assert loaded_cfg == dataclasses.replace(cfg, d_head=loaded_cfg.d_head, n_kv_head=2, d_ff=cfg.ff, mask_id=mask_id)


@pytest.mark.parametrize("cfg, changes, named", [
    (DENOISER, dict(shift=True), "these switches together: shift=True"),
    (DENOISER, {"gemma.window": 4}, "no Hugging Face family has .*gemma.window="),
    (DENOISER, {"gemma.window": 4, "blocks.block": 4}, "a field of your own needs a name in .*LLADA_KEYS in check"),
    (CAUSAL, dict(qkv_bias=True, gemma=True), "no Hugging Face family has .*gemma.window=")])
def test_switches_that_no_family_has_are_named_when_saving(cfg, changes, named, tmp_path):
    cfg = shared.changed(cfg, **changes)
    refused(named, huggingface.save, tmp_path, model.init(KEY, cfg), cfg)


def copy_fixture(tmp_path, **changes):
    folder = tmp_path / "copy"
    shutil.copytree(FIXTURE, folder, ignore=shutil.ignore_patterns("sharded*", "*.npz"))
    config = json.load(open(folder / "config.json")) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("change, named", [
    (dict(alibi=True), "alibi=True"), (dict(block_type="sequential"), "block_type"), (dict(model_type="gpt2"), "gpt2"),
    (dict(model_type="gpt2"), "known families: llada, Dream, llama, qwen2, qwen3, gemma2"),
    (dict(n_layers=2), "blocks.2"), (dict(n_layers=4), "blocks.3"), (dict(n_heads=3), "d_model=64.*n_head=3"),
    (dict(mlp_hidden_size=100), r"ff_proj.weight has the shape \(\d+, 64\), but config.json makes it \(100, 64\)"),
    (dict(mask_token_id=None), "no mask_token_id: a model of the family llada fills masks"),
    (dict(mask_token_id=10**6), "config.json: mask_id=1000000 is outside the vocabulary"),
    (dict(mask_token_id=305), "config.json: mask_id=305 is also eos_id, .* a mask must look like none"),
    (dict(model_type=["llada"]), r"model_type is \['llada'\]: this code does not compute such a network; known"),
    (dict(model_type={}), "model_type is {}"),
    (dict(model_type=None), "model_type is None"), (dict(n_layers=10**9), "n_layer=1000000000: no model has more"),
    (dict(eos_token_id=["a"]), "eos_id='a': expected"), (dict(eos_token_id={}), "eos_id={}: expected"),
    (dict(rope_scaling=[8.0]), r"rope_scaling=\[8.0\] is not supported"),
    (dict(rope_parameters="no"), "rope_scaling=no is not supported"),
    (dict(n_heads=0), "n_head=0 must be at least 1"), (dict(d_model=10**12), "has the shape"),
    (dict(embedding_size=10**12), "has the shape"), (dict(n_layers="3"), "n_layer='3': expected a whole number"),
    (dict(mask_token_id=[1]), r"mask_id=\[1\]: expected"), (dict(layer_types={"a": 1}), "layer_types=")])
def test_a_wrong_or_hostile_config_is_one_sentence_and_soon(change, named, tmp_path):
    start = time.perf_counter()
    refused(named, checkpoint.load, copy_fixture(tmp_path, **change))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("change, named", [
    (dict(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "rope_scaling=.*low_freq_factor"),
    (dict(rope_scaling={"type": "linear", "factor": 8.0}), "rope_scaling=.*linear"),
    (dict(rope_parameters={"rope_type": "yarn"}), "rope_scaling={'rope_type': 'yarn'} is not supported"),
    (dict(layer_types=["sliding_attention"] * 2), "layer_types="), (dict(attention_bias=True), "attention_bias=True"),
    (dict(architectures=["EfficientDLM"]), r"architectures=\['EfficientDLM'\], .* another network than LlamaFor"),
    (dict(architectures="A2DLlamaLMHeadModel"),
     "perhaps a denoiser .*--checkpoint.open_as=NAME opens it as one of llada, "),
    (dict(dlm_paradigm="bidirectional"), "dlm_paradigm='bidirectional' is not supported"),
    (dict(architectures=None, mask_token_id=30), "mask_token_id=30"),  # of a class without a name
    (dict(auto_map={"AutoModel": "modeling.Model"}, mask_token_id=30), "mask_token_id=30"),  # which brings its own code
    (dict(architectures=["LlamaForSequenceClassification"]), None),
    (dict(mask_token_id=30), None),  # as a causal model of ours has it
    (dict(architectures=None, mask_token_id=None), None),
    (dict(auto_map={"AutoModel": "m.Model"}, mask_token_id=None), None)])
def test_a_llama_opens_under_any_of_its_names_but_not_if_it_computes_something_else(change, named, tmp_path):
    huggingface.save(tmp_path, model.init(KEY, CAUSAL), CAUSAL)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=named) if named else contextlib.nullcontext():
        assert checkpoint.load(tmp_path)[1].causal


def test_a_config_that_names_no_end_of_text_has_none(tmp_path):
    folder = copy_fixture(tmp_path, eos_token_id=[])
    assert checkpoint.load(folder)[1].eos_id == 305  # as in generation_config.json
    (folder / "generation_config.json").unlink()
    assert checkpoint.load(folder)[1].eos_id is None


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_place_of_a_file_of_a_model_is_not_waited_for(name, tmp_path):
    folder = copy_fixture(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(f"{name} is not an ordinary file", checkpoint.load, folder)


def test_a_judge_needs_no_mask(tmp_path):
    cfg = dataclasses.replace(DENOISER, mask_id=None)
    huggingface.save(tmp_path, model.init(KEY, cfg, n_out=1), cfg)
    assert checkpoint.load(tmp_path)[1].mask_id is None


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("name, content, said", [
    (INDEX, "{", "cannot be read"), (INDEX, "[]", "holds a list"), (INDEX, "{}", "has no weight_map"),
    (INDEX, '{"weight_map": 3}', "has no weight_map"), (INDEX, "[" * 100_000, "cannot be read"),
    ("config.json", "[1]", "holds a list, expected an object"),
    ("config.json", '{"a":' * 100_000, "cannot be read as JSON: .*recursion")], ids=range(7))
def test_damaged_json_is_one_sentence(name, content, said, tmp_path):
    folder = copy_fixture(tmp_path)
    (folder / name).write_text(content)
    refused(f"{name} {said}", checkpoint.load, folder)


def test_a_truncated_or_missing_file_is_one_sentence(tmp_path):
    folder = copy_fixture(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused("truncated", checkpoint.load, folder)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    refused("model.safetensors is only a pointer of Git LFS to the file: git lfs pull", checkpoint.load, folder)
    os.remove(folder / "model.safetensors")
    refused("missing", checkpoint.load, folder)
    refused("not a folder", checkpoint.load, tmp_path / "nowhere")


@pytest.mark.parametrize("wrong, named", [
    (dict(n_head=5), "n_head=5"), (dict(d_head=7), "7 columns"), (dict(n_layer=0), "n_layer=0"),
    (dict(rope_theta=0), "rope_theta=0 must be at least 1"), (dict(max_positions=-1), "max_positions=-1"),
    *((dict(mask_id=n), f"mask_id={n} is outside the vocabulary of 40 ids") for n in (-1, 40)),
    *(({"rope.scaling": numbers}, "rope.scaling=.*expected four numbers above 0") for numbers in (
        (8.0, 4.0, 1.0, 64), (0.0, 1.0, 4.0, 64), (8.0, 0.0, 4.0, 64), (8.0, 1.0, 0.0, 64), (8.0, 1.0, 4.0, 0)))])
def test_impossible_configurations_are_refused(wrong, named):
    refused(named, shared.changed, TINY, **wrong)


@pytest.mark.slow
def test_a_score_head_of_transformers_is_a_judge_here(tmp_path):
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, pad_token_id=0, num_labels=1)  # fmt: skip
    theirs = hf.LlamaForSequenceClassification(hf.LlamaConfig(**shape)).eval()
    theirs.save_pretrained(tmp_path)
    params, cfg = checkpoint.load(tmp_path)
    tokens = np.random.default_rng(0).integers(1, 50, (3, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits[:, 0].numpy()
    np.testing.assert_allclose(model_judge.rate(params, jnp.asarray(tokens), cfg, tokens > 0), expected, atol=1e-4)
