"""tools/doctor.py: folders that state something wrongly are named, and the weights of right ones agree with them."""
import dataclasses
import functools
import hashlib
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import shared

import diffusion
import model
from checkpoints import huggingface
from data import bpe
from tools import complete, doctor

TOK = bpe.Tokenizer.bytes()
TINY = model.ModelConfig(vocab_size=TOK.vocab_size, n_layer=2, n_head=4, d_model=64, mask_id=TOK.mask_id)
KINDS = {  # switches, and after how many steps the weights know the text well enough
    "bidirectional": (dict(qk_norm=True), 1000),
    "shifted": (dict(shift=True, qkv_bias=True), 700),
    "blocks": (dict(**{"blocks.block": 4}, qk_norm=True), 400),
    "causal": (dict(causal=True, shift=True, qkv_bias=True), 300),
}


@functools.cache
def trained(kind):
    """A tiny model that has learnt the text of the test by heart -> params, ModelConfig."""
    switches, steps = KINDS[kind]
    cfg = shared.changed(TINY, **switches)
    text = np.array(TOK.encode(doctor.zen()))
    params = jax.jit(model.init, static_argnames="cfg")(jax.random.key(0), cfg)
    optimizer = optax.adam(optax.cosine_decay_schedule(4e-3, steps, 0.05))
    moments = optimizer.init(params)

    @jax.jit
    def step(params, moments, key, x):
        batch = diffusion.noise(key, (x, x >= 0, None), cfg)
        gradient, _ = jax.grad(diffusion.loss, has_aux=True)(params, batch, cfg)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(params, updates), moments

    rng = np.random.default_rng(0)
    for i in range(steps):
        starts = rng.integers(0, len(text) - 64, 16)
        x = jnp.array([text[start : start + 64] for start in starts])
        params, moments = step(params, moments, jax.random.key(i), x)
    return params, cfg


def write(folder, params, cfg, **changes):
    """Write a folder, and change keys of its config.json."""
    huggingface.save(folder, params, cfg)
    TOK.save(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(folder)


def explain(folder, capsys, *flags):
    """Run --explain -> exit code, what it printed."""
    code = complete.main([folder, "--explain", *flags])
    said = capsys.readouterr()
    assert not said.err
    print(said.out)
    return code, said.out


# Model, keys of config.json that are wrong, what the weights are for, flags and keys that make it right.
WRONG = [
    ("bidirectional", dict(model_type="sdar", block_size=4, architectures=None), "blocks.block=None, causal=False",
     ["--checkpoint.open_as=a2d-qwen3"], dict(block_size=None)),
    ("bidirectional", dict(mask_token_id=258), "mask_id=256", [], dict(mask_token_id=256)),
    ("shifted", dict(model_type="a2d-qwen2"), "shift=True", ["--checkpoint.open_as=Dream"], {}),
    ("shifted", dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], transformers_version="5"),
     "blocks.block=None, causal=False", ["--checkpoint.open_as=Dream"], {}),
    ("shifted", dict(model_type="Fast_dLLM_Qwen", bd_size=8), "blocks.block=None, causal=False",
     ["--checkpoint.open_as=Dream"], {}),
    ("blocks", dict(block_size=16), "blocks.block=4", [], dict(block_size=4)),
    ("blocks", dict(model_type="a2d-qwen3", block_size=None), "blocks.block=4", [], dict(block_size=4)),
    ("blocks", dict(block_size=32, mask_token_id=257), "mask_id=256, shift=False, blocks.block=4", [],
     dict(block_size=4, mask_token_id=256)),
    ("causal", dict(model_type="Dream"), "causal=True", ["--checkpoint.open_as=qwen2"], {}),
    ("causal", dict(model_type="a2d-qwen2"), "shift=True, blocks.block=None, causal=True",
     ["--checkpoint.open_as=qwen2"], {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind, keys, named, flags, right", WRONG)
def test_a_folder_that_states_something_wrong_is_named_with_what_to_change(
    kind, keys, named, flags, right, tmp_path, capsys
):
    folder = write(tmp_path, *trained(kind), **keys)
    code, said = explain(folder, capsys)
    assert code == doctor.CONTRADICTED and re.search(f"\nverdict: WRONG: the weights are for .*{named}", said)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | right))
    assert_right(kind, *explain(folder, capsys, *flags))


def assert_right(kind, code, said):
    """Nothing contradicts the folder. Weights that know a text by heart can leave open which of two neighbouring block
    lengths they were trained with, and then the verdict is undecided."""
    assert code == doctor.AGREES or kind == "blocks" and code == doctor.UNDECIDED
    verdict = "the weights agree with the folder" if code == doctor.AGREES else "undecided: nothing contradicts"
    assert f"\nverdict: {verdict}" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_a_right_folder_agree_with_it(kind, tmp_path, capsys):
    assert_right(kind, *explain(write(tmp_path, *trained(kind)), capsys))


@pytest.mark.slow
@pytest.mark.parametrize("switches", [dict(), dict(**{"blocks.block": 8}), dict(causal=True, shift=True)], ids=str)
def test_random_weights_prove_nothing(switches, tmp_path, capsys):
    cfg = shared.changed(TINY, **switches)
    code, said = explain(write(tmp_path, model.init(jax.random.key(0), cfg), cfg), capsys)
    assert code == doctor.UNDECIDED
    assert re.search("\nverdict: undecided: however .* They know none, or .*mask.*\n$", said)


def test_weights_that_are_no_numbers_agree_with_nothing(tmp_path, capsys):
    cfg = dataclasses.replace(TINY, n_layer=1, d_model=16)
    params = model.init(jax.random.key(0), cfg)
    params["norm"] = params["norm"].at[3].set(jnp.nan)
    code, said = explain(write(tmp_path, params, cfg), capsys)
    assert code == 1 and "verdict: WRONG: the model computes nan or inf" in said and "agree" not in said


@pytest.mark.parametrize("margins, code, said", [
    ([(1.0, 0.1), (0.5, 0.01)], doctor.AGREES, "verdict: the weights agree with the folder\n"),
    ([(1.0, 0.1), (0.1, 0.1)], doctor.UNDECIDED, "verdict: undecided: nothing .* 1 of these are too close to say\n"),
    ([(float("nan"), 0.1)], doctor.UNDECIDED, "verdict: undecided: .* 1 of these .*\n"),
])  # fmt: skip
def test_a_test_that_leaves_something_open_does_not_begin_with_agree(margins, code, said, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "choose", lambda reader, stated, best, causal: stated)
    monkeypatch.setattr(doctor, "best_denoiser", lambda reader, stated, options: stated)
    monkeypatch.setattr(doctor, "alternatives", lambda *_: margins)
    monkeypatch.setattr(doctor, "described", str)
    reader = doctor.Reader(None, TOK.encode(doctor.zen()), [TOK.mask_id])
    monkeypatch.setattr(reader, "margin", lambda found, other: other)
    reader.known[TINY] = np.zeros(reader.x.shape)
    assert doctor.verdict(reader, TINY, [TOK.mask_id]) == code
    assert re.search("\n" + said + "$", capsys.readouterr().out)


def test_where_a_mask_that_is_an_ordinary_word_stands_nothing_is_scored():
    """No model predicts its mask: where that stands in the text, the loss would be 1e30."""
    cfg = dataclasses.replace(TINY, n_layer=1, d_model=16, mask_id=ord("e"))
    reader = doctor.Reader(model.init(jax.random.key(0), cfg), TOK.encode(doctor.zen()), [cfg.mask_id])
    assert (reader.x == cfg.mask_id).any() and not (reader.scored & (reader.x == cfg.mask_id)).any()
    assert reader.loss(cfg) < 20


def test_the_masks_give_no_reading_more_to_see():
    assert hashlib.sha256(doctor.zen().encode()).hexdigest().startswith("e250f274f33b9b62")  # in every Python
    reader = doctor.Reader(None, TOK.encode(doctor.zen()), [])
    assert reader.scored.any(1).all() and (reader.masked >= reader.scored).all()
    for row, scored in enumerate(reader.scored):
        columns = np.flatnonzero(scored)
        assert columns[0] // 4 == columns[-1] // 4 == columns[0] / 4  # in one block of every length that is tried
        behind = reader.masked[row, columns[-1] + 1 :]
        assert behind.all() if row % 2 else not behind.any()
        assert reader.first[row].sum() == row % 2
    assert not (reader.first & reader.later).any()
    ends = reader.scored[2::4].argmax(1) + 4
    assert (reader.scored[::4].argmax(1) + 4 == 32).all() and {*ends.tolist()} == {*range(20, 80, 4)}


def test_what_does_not_go_together_is_refused(tmp_path, capsys):
    shape = dataclasses.replace(TINY, n_layer=1, n_head=1, d_model=16)
    folder = write(tmp_path, model.init(jax.random.key(0), shape), shape)
    (tmp_path / "run.json").write_text('{"step": 1, "config": {}}')
    own = f"--checkpoint.open_as=Dream: the run that wrote {folder} says which family"
    for flags, said in ((["--explain", "--checkpoint.open_as=Dream"], own),
                        (["--prompt=a", "--checkpoint.open_as=Dream"], own),
                        (["--explain", "--prompt=a"], "--explain and --prompt do not go together")):  # fmt: skip
        assert complete.main([folder, *flags]) == 2
        assert said in capsys.readouterr().err
