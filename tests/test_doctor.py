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

import diffusion
import model
from data import bpe
from system import huggingface
from tools import complete, doctor

TOK = bpe.Tokenizer.bytes()
TINY = model.ModelConfig(vocab_size=TOK.vocab_size, n_layer=2, n_head=4, d_model=64, mask_id=TOK.mask_id)
KINDS = {  # switches, and after how many steps the weights know the text well enough
    "bidirectional": (dict(qk_norm=True), 1000),
    "shifted": (dict(shift=True, qkv_bias=True), 700),
    "blocks": (dict(block_causal=4, qk_norm=True), 400),
    "causal text": (dict(block_causal=8, causal_text=True), 500),
    "causal": (dict(causal=True, shift=True, qkv_bias=True), 300),
}


@functools.cache
def trained(kind):
    """A tiny model that has learnt the text of the test by heart -> params, ModelConfig."""
    switches, steps = KINDS[kind]
    cfg = dataclasses.replace(TINY, **switches)
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


# Model, keys of config.json that are wrong, what has to be said, flags and keys that make it right.
WRONG = [
    ("bidirectional", dict(model_type="sdar", block_size=4, architectures=None),
     "attention is bidirectional instead of blocks of 4", ["--open_as=a2d-qwen3"], dict(block_size=None)),
    ("bidirectional", dict(mask_token_id=258), r"mask is <\|mask\|>, id 256 instead of .*, id 258", [],
     dict(mask_token_id=256)),
    ("shifted", dict(model_type="a2d-qwen2"), "shift is yes instead of no", ["--open_as=Dream"], {}),
    ("shifted", dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], transformers_version="5"),
     "attention is bidirectional instead of causal", ["--open_as=Dream"], {}),
    ("shifted", dict(model_type="Fast_dLLM_Qwen", bd_size=8), "attention is bidirectional instead of blocks of 8",
     ["--open_as=Dream"], {}),
    ("blocks", dict(block_size=16), "attention is blocks of 4 instead of blocks of 16", [], dict(block_size=4)),
    ("blocks", dict(model_type="a2d-qwen3", block_size=None), "attention is blocks of 4 instead of bidirectional", [],
     dict(block_size=4)),
    ("blocks", dict(block_size=32, mask_token_id=257), r"mask is <\|mask\|>, id 256 .*, attention is blocks of 4", [],
     dict(block_size=4, mask_token_id=256)),
    ("causal text", dict(block_size=32), "attention is blocks of 8, finished text causal instead of blocks of 32", [],
     dict(block_size=8)),
    ("causal", dict(model_type="Dream"), "attention is causal instead of bidirectional", ["--open_as=qwen2"], {}),
    ("causal", dict(model_type="a2d-qwen2"), "shift is yes .*, attention is causal", ["--open_as=qwen2"], {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind, keys, named, flags, right", WRONG)
def test_a_folder_that_states_something_wrong_is_named_with_what_to_change(
    kind, keys, named, flags, right, tmp_path, capsys
):
    folder = write(tmp_path, *trained(kind), **keys)
    code, said = explain(folder, capsys)
    assert code == 1 and re.search(f"verdict: WRONG: .*{named}", said)
    change = said.partition("Change: ")[2]
    for words in [*flags, *(f'"{key}": {json.dumps(value)}' for key, value in right.items())]:
        assert words in change
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | right))
    code, said = explain(folder, capsys, *flags)
    assert_right(code, said)


def assert_right(code, said):
    """Nothing contradicts the folder. Weights that know a text by heart can leave open which of two neighbouring block
    lengths they were trained with, and then the verdict is undecided."""
    open_questions = re.findall(r"^  (.{10}) .*: too close to say$", said, re.M)
    assert {name.strip() for name in open_questions} <= {"attention", "old blocks"}
    verdict = "undecided: nothing contradicts the folder" if open_questions else "the weights agree with the folder"
    assert code == (doctor.UNDECIDED if open_questions else doctor.AGREES) and f"\nverdict: {verdict}" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_a_right_folder_agree_with_it(kind, tmp_path, capsys):
    code, said = explain(write(tmp_path, *trained(kind)), capsys)
    assert_right(code, said)
    assert kind in ("blocks", "causal text") or code == doctor.AGREES
    if kind != "causal":
        for name in ("mask", "shift"):
            assert re.search(rf"\n  {name} .*: proved\n", said)


@pytest.mark.slow
@pytest.mark.parametrize("switches", [dict(), dict(block_causal=8), dict(causal=True, shift=True)], ids=str)
def test_random_weights_prove_nothing(switches, tmp_path, capsys):
    cfg = dataclasses.replace(TINY, **switches)
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
    ([(1.0, 0.1), (0.1, 0.1)], doctor.UNDECIDED, "verdict: undecided: nothing .*; too close to say: shift\n"),
    ([(float("nan"), 0.1)], doctor.UNDECIDED, "verdict: undecided: .*too close to say: mask\n"),
])  # fmt: skip
def test_a_test_that_leaves_something_open_does_not_begin_with_agree(margins, code, said, monkeypatch, capsys):
    found = [doctor.Compared(name, "a", "b", margin) for name, margin in zip(("mask", "shift"), margins, strict=False)]
    monkeypatch.setattr(doctor, "search", lambda reader, stated, masks: stated)
    monkeypatch.setattr(doctor, "compare", lambda *_: found)
    reader = doctor.Reader(None, doctor.make_trial(TOK.encode(doctor.zen()), 10**6))
    reader.known[TINY] = np.zeros(reader.trial.x.shape)
    assert doctor.verdict(reader, TINY, [TOK.mask_id], TOK, "llada") == code
    assert re.search("\n" + said + "$", capsys.readouterr().out)


def test_a_mask_that_is_an_ordinary_word_is_named_and_its_places_are_not_scored():
    """No model predicts its mask: where that stands in the text, the loss would be 1e30."""
    cfg = dataclasses.replace(TINY, n_layer=1, d_model=16, mask_id=ord("e"))
    trial = doctor.make_trial(TOK.encode(doctor.zen()), 10**6, [cfg.mask_id])
    assert (trial.x == cfg.mask_id).any() and not (trial.scored & (trial.x == cfg.mask_id)).any()
    assert doctor.Reader(model.init(jax.random.key(0), cfg), trial).loss(cfg) < 20
    assert doctor.value(cfg, "mask_id", TOK) == "the ordinary token 'e', id 101"


def test_the_masks_are_the_same_each_time_and_give_no_reading_more_to_see():
    assert hashlib.sha256(doctor.zen().encode()).hexdigest().startswith("e250f274f33b9b62")  # in every Python
    with pytest.raises(ValueError, match="tests a model on 112 tokens of English or more, .* makes 20 of the Zen"):
        doctor.make_trial([0] * 20, 1)
    ids = TOK.encode(doctor.zen())
    trial, again = (doctor.make_trial(ids, 10**6) for _ in range(2))
    for a, b in zip(trial, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(trial.x) == len(ids) // 4 and len(doctor.make_trial(ids, 10**10).x) == doctor.FEWEST_ROWS
    assert trial.scored.any(1).all() and (trial.masked >= trial.scored).all()
    for row, scored in enumerate(trial.scored):
        columns = np.flatnonzero(scored)
        assert columns[0] // 4 == columns[-1] // 4  # in one block of every length that is tried
        behind = trial.masked[row, columns[-1] // 4 * 4 + 4 :]
        assert behind.all() if row % 2 else not behind.any()
        assert trial.first[row].sum() == row % 2
    assert not (trial.first & trial.later).any()


def test_where_each_fact_is_from(tmp_path):
    cfg = dataclasses.replace(TINY, n_layer=1, d_model=16, block_causal=32, qk_norm=True)
    folder = tmp_path / "x-bd3lm"
    write(folder, model.init(jax.random.key(0), cfg), cfg, model_type="a2d-qwen3")
    said = doctor.sources(str(folder), cfg, "a2d-qwen3", None)
    assert said["attention"] == "config.json: block_size" and said["mask_id"] == "config.json: mask_token_id"
    theirs = json.loads((folder / "config.json").read_text())
    del theirs["block_size"], theirs["mask_token_id"]
    (folder / "config.json").write_text(json.dumps(theirs))
    said = doctor.sources(str(folder), cfg, "a2d-qwen3", None)
    assert said["attention"] == "the folder's name, x-bd3lm" and said["mask_id"] == "the tokenizer"
    said = doctor.sources(str(folder), dataclasses.replace(cfg, block_causal=None), "Dream", "Dream")
    assert said["attention"] == said["shift"] == "family Dream" and said["family"] == "--open_as"


def test_what_does_not_go_together_is_refused(tmp_path, capsys):
    shape = dataclasses.replace(TINY, n_layer=1, n_head=1, d_model=16)
    folder = write(tmp_path, model.init(jax.random.key(0), shape), shape)
    (tmp_path / "run.json").write_text('{"step": 1, "config": {}}')
    own = f"--open_as=Dream: the run that wrote {folder} says of which family"
    for flags, said in ((["--explain", "--open_as=Dream"], own), (["--prompt=a", "--open_as=Dream"], own),
                        (["--explain", "--prompt=a"], "--explain and --prompt do not go together")):  # fmt: skip
        assert complete.main([folder, *flags]) == 2
        assert said in capsys.readouterr().err
