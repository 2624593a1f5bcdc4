"""
variants/dpo.py: DPO by hand for a causal model, the bound of a denoiser by enumeration of its masks, the same
masks for policy, reference and both answers, and runs that learn, resume, and refuse what is no pair.
"""
import dataclasses
import itertools
import json
import re
import shutil

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from shared import compiled_once, left, lines

import config
import data
import model
import rl
import train
from data.texts import EncodedRows, check_completions
from judges import formats
from system import checkpoint, huggingface
from system.start import prepare
from variants import dpo, dynamic_sampling

SHAPE = dict(vocab_size=9, n_layer=1, n_head=2, d_model=16, mask_id=8, eos_id=0, pad_id=0)
DENOISER = model.ModelConfig(**SHAPE)
CAUSAL = model.ModelConfig(**SHAPE, causal=True, shift=True)
KEY = jax.random.key(0)
MOVED = 0.3  # how far the policy is from the reference, per parameter
LOSS, E_OF = (jax.jit(f, static_argnames="cfg") for f in (dpo.loss, dpo.log_likelihood))
LOGITS = jax.jit(model.logits, static_argnames="cfg")


@pytest.fixture(scope="module", autouse=True)
def one_step_for_all_runs():
    with compiled_once():
        yield


def keys(shape, **changes):
    """The Config of a run with this model, on answers of 4 tokens behind prompts of 2."""
    given = dict(objective="dpo", init_from="x", kl_beta=0.3, logp_views=2)
    given |= dict(logp_est="exact" if shape.causal else "elbo")
    return config.Config(**given | dict(max_prompt_len=2, max_new_tokens=4, batch_size=4, model=shape) | changes)


def two_models(shape):
    """A reference, and a policy that is a little away from it."""
    reference = model.init(KEY, shape)
    flat, back = jax.flatten_util.ravel_pytree(reference)
    return reference, back(flat + MOVED * jax.random.normal(jax.random.key(1), flat.shape))


def answers(seed, ends):
    """Four texts of 6 tokens, the first prompt padded. Each answer has `ends` tokens, then ends of text."""
    tokens = np.random.default_rng(seed).integers(1, 8, (4, 6))
    tokens[:, :2] = [[0, 3], [1, 4], [5, 2], [6, 6]]
    column = np.arange(6)
    tokens[column >= 2 + np.array(ends)[:, None]] = 0
    valid = np.ones(tokens.shape, bool)
    valid[0, 0] = False
    return EncodedRows([{}] * 4, tokens.astype(np.int32), np.broadcast_to(column >= 2, tokens.shape), valid)


SIDES = answers(0, [2, 4, 3, 1]), answers(1, [3, 1, 4, 2])


def drawn(cfg, sides=SIDES, key=KEY):
    """A batch of the four pairs with their masks, as a run draws it."""
    if cfg.model.causal:
        ended = [np.cumsum((s.tokens == 0) & s.maskable, 1) - ((s.tokens == 0) & s.maskable) == 0 for s in sides]
        sides = [s._replace(maskable=s.maskable & e) for s, e in zip(sides, ended, strict=True)]
    return dpo.draw_views(key, *(side.take(slice(None)) for side in sides), cfg)


# ---- the loss ----
def dpo_by_hand(params, reference, cfg):
    """The margins of plain DPO of a causal model, in float64: sums of log-probs of the tokens up to the first end."""
    total = []
    for side in SIDES:
        of = []
        for weights in (params, reference):
            logits = np.asarray(LOGITS(weights, side.tokens, CAUSAL, jnp.asarray(side.valid)), np.float64)
            logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            sums = []
            for row, x in zip(logp, side.tokens, strict=True):
                end = 2 + list(x[2:]).index(0) if 0 in x[2:] else 5
                sums.append(sum(row[i, x[i]] for i in range(2, end + 1)))
            of.append(np.array(sums))
        total.append(of[0] - of[1])
    return cfg.kl_beta * (total[0] - total[1])


def scored(cfg, reference, batch=None):
    """A batch with the likelihoods of the reference."""
    batch = batch or drawn(cfg)
    return batch._replace(reference=dpo.reference_likelihood(reference, batch, cfg))


def test_for_a_causal_model_it_is_plain_dpo():
    (reference, policy), cfg = two_models(CAUSAL), keys(CAUSAL)
    value, metrics = LOSS(policy, scored(cfg, reference), cfg)
    margins = dpo_by_hand(policy, reference, cfg)
    expected = np.log1p(np.exp(-margins)).mean()
    assert abs(expected - np.log(2)) > 0.01 and len(set(margins > 0)) == 2
    assert float(value) == pytest.approx(expected, rel=1e-5) == float(metrics["dpo_loss"])
    assert float(metrics["margin_acc"]) == np.mean(margins > 0)


@pytest.mark.parametrize("shape, nll", [(DENOISER, 0.5), (CAUSAL, 0.0)], ids=["denoiser", "causal"])
def test_at_the_start_the_loss_is_log_2_and_the_nll_of_the_better_answers_per_token_can_be_added(shape, nll):
    cfg, params = keys(shape, nll_coef=nll), model.init(KEY, shape)
    batch = scored(cfg, params)
    value, metrics = LOSS(params, batch, cfg)
    E = E_OF(params, batch, cfg)[:, 0].mean()
    assert float(value) == pytest.approx(np.log(2) - nll * float(E) / 4, rel=1e-5)
    assert float(metrics["dpo_loss"]) == pytest.approx(np.log(2), abs=1e-6) and abs(float(metrics["margin"])) < 1e-6


@pytest.mark.parametrize("shape", [DENOISER, CAUSAL], ids=["denoiser", "causal"])
def test_the_gradient_is_that_of_finite_differences(shape):
    (reference, policy), cfg = two_models(shape), keys(shape, nll_coef=0.1)
    batch = scored(cfg, reference)
    flat, back = jax.flatten_util.ravel_pytree(policy)
    loss = jax.jit(lambda flat: dpo.loss(back(flat), batch, cfg)[0])
    grad = jax.grad(loss)(flat)
    for way in (grad / jnp.linalg.norm(grad), jax.random.normal(KEY, flat.shape) / len(flat) ** 0.5):
        found = (loss(flat + 1e-2 * way) - loss(flat - 1e-2 * way)) / 2e-2
        assert float(found) == pytest.approx(float(grad @ way), rel=1e-2, abs=1e-4)


# ---- the likelihood of a denoiser ----
def bound_by_enumeration(params, tokens, valid):
    """The ELBO of an answer of 4 tokens: over all sizes l of a mask and all masks of that size, the mean of 4 / l times
    the log-probs of what is masked."""
    sets = [s for n in range(1, 5) for s in itertools.combinations(range(2, 6), n)]
    masked = np.zeros((len(sets), 6), bool)
    for row, places in zip(masked, sets, strict=True):
        row[list(places)] = True
    z = np.where(masked, DENOISER.mask_id, tokens)
    logits = LOGITS(params, z, DENOISER, jnp.broadcast_to(valid, z.shape))
    logp = jax.nn.log_softmax(logits)[:, np.arange(6), tokens]
    size = masked.sum(1)
    chance = 1 / 4 / np.array([sum(size == n) for n in size])  # of a size, then of a mask
    return float((chance * 4 / size * (masked * logp).sum(1)).sum())


@pytest.mark.parametrize("estimator", ["elbo", "coupled_elbo"])
def test_the_mean_of_e_over_masks_is_the_bound(estimator):
    cfg, (_, policy) = keys(DENOISER, logp_est=estimator, logp_views=4), two_models(DENOISER)
    one = [side.part([0] * 1024) for side in SIDES]
    E = E_OF(policy, drawn(cfg, one), cfg)
    for column, side in enumerate(SIDES):
        expected = bound_by_enumeration(policy, side.tokens[0], side.valid[0])
        error = E[:, column].std() / 1024**0.5  # more than the true one: the sizes are stratified
        assert abs(float(E[:, column].mean()) - expected) < 3 * error
    assert error < 0.1


def test_both_answers_have_the_same_masks_and_a_key_draws_them_again():
    cfg = keys(DENOISER)
    batch, again, other = drawn(cfg), drawn(cfg), drawn(cfg, key=jax.random.key(1))
    np.testing.assert_array_equal(batch.masked[:, 0], batch.masked[:, 1])
    np.testing.assert_array_equal(batch.weight[:, 0], batch.weight[:, 1])
    np.testing.assert_array_equal(batch.masked, again.masked)
    assert (batch.masked != other.masked).any() and batch.masked[:, :, :, 2:].any() and not batch.masked[..., :2].any()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 2])
def test_micro_batches_and_chunks_add_up_to_the_whole(chunk):
    reference, policy = two_models(DENOISER)
    whole, parts = keys(DENOISER), keys(DENOISER, gradient_accumulation_steps=2, logp_chunk=chunk)
    batch, outs = drawn(whole), []
    for cfg in (whole, parts):
        loss = lambda params, batch, cfg=cfg: LOSS(params, batch, cfg)
        outs.append(rl.make_gradient(loss, cfg)(policy, None, scored(cfg, reference, batch)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *outs)


# ---- runs ----
SECONDS = dict(max_prompt_len=3, max_new_tokens=4, batch_size=8, eval_size=8, log_samples=0, diffusion_steps=4,
               warmup_iters=2, lr_schedule="constant", save_interval=3, eval_interval=6, log_interval=1)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pairs in which "32" is better than "87", and models that have not learned anything."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = []
    for i in np.random.default_rng(0).permutation(100).tolist():
        row = {"prompt": f"{i:02d}", "chosen": f"{i // 20}{i % 5}", "rejected": f"{9 - i // 20}{9 - i % 5}"}
        rows.append(json.dumps(row) + "\n")
    (folder / "train.jsonl").write_text("".join(rows[:70]))
    (folder / "val.jsonl").write_text("".join(rows[70:]))
    rows = [json.dumps({"prompt": f"{i:02d}", "completion": "1"}) + "\n" for i in range(20)]
    (folder / "plain.jsonl").write_text("".join(rows))
    for name, causal in (("base", False), ("causal", True)):
        tok = data.Tokenizer.bytes()
        shape = model.ModelConfig(**SHAPE | dict(vocab_size=tok.vocab_size, mask_id=tok.mask_id, eos_id=tok.eos_id,
                                                 pad_id=tok.pad_id), causal=causal, shift=causal)  # fmt: skip
        huggingface.save(folder / name, model.init(KEY, shape), shape)
        tok.save(folder / name)
    return folder


@pytest.fixture
def tiny(place, tmp_path):
    """tiny(key=value, ...) -> the Config of a run of seconds."""
    fixed = dict(objective="dpo", dataset=str(place), init_from=f"{place}/base", kl_beta=0.1, logp_est="elbo",
                 max_iters=6, out_dir=f"{tmp_path}/out")  # fmt: skip
    return lambda **changes: config.Config(**SECONDS | fixed | changes)


@pytest.mark.slow
def test_a_run_learns_from_pairs_and_a_resumed_one_equals_it_to_the_bit(tiny):
    cfg = tiny(max_iters=12, learning_rate=1e-2)
    train.train(cfg)
    whole = left(cfg.out_dir)
    before, *_, after = [row for row in whole[2][0] if "val/margin" in row]
    assert before["step"] == 0 and before["val/margin"] == 0 and before["val/dpo_loss"] == pytest.approx(np.log(2))
    assert after["val/margin_acc"] > 0.9 and after["val/pair_acc"] >= before["val/pair_acc"]
    assert after["val/dpo_loss"] < np.log(2) - 0.01
    assert whole[2][0][1]["dpo_loss"] == pytest.approx(np.log(2), abs=1e-4)
    shutil.rmtree(f"{cfg.out_dir}/step-000012")
    assert checkpoint.steps(cfg.out_dir)[-1] == 9
    train.train(dataclasses.replace(cfg, resume=True))
    assert left(cfg.out_dir) == whole


@pytest.mark.slow
def test_a_causal_model_and_adapters_learn_from_pairs_too(tiny, place):
    for more in (dict(init_from=f"{place}/causal", logp_est="exact", order="left"), dict(lora_rank=4)):
        cfg = tiny(learning_rate=1e-2, max_iters=12, **more)
        train.train(cfg)
        margins = [row["val/margin"] for row in lines(cfg.out_dir) if "val/margin" in row]
        assert margins[0] == pytest.approx(0, abs=1e-6) and margins[-1] > 0.01
        shutil.rmtree(cfg.out_dir)


@pytest.mark.slow
def test_an_evaluation_alone_needs_no_reference_and_rewards_are_evaluated_as_in_other_tasks(tiny, capsys):
    train.train(tiny(eval_only=True, rewards=("length(target=2)",)))
    text = capsys.readouterr().out
    assert "val/pair_acc" in text and "val/greedy" in text and "val/margin" not in text


def test_pairs_that_are_equal_or_do_not_fit_are_left_out_and_counted(tmp_path, capsys):
    rows = [("1", "12", "21"), ("1", "1", "1"), ("1", "12345", "2"), ("1", "2", "12345"), ("12345", "1", "2")]
    rows = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    cfg = config.Config(**SECONDS, objective="dpo", init_from="x", kl_beta=1, logp_est="elbo",
                        dataset=f"{tmp_path}/rows.jsonl")  # fmt: skip
    tok = data.Tokenizer.bytes()
    for side, answer in zip(dpo.encode_pairs(cfg, tok, "train"), ("12", "21"), strict=True):
        assert {tok.decode([t for t in row if t != tok.eos_id]) for row in side.tokens[:, 3:].tolist()} == {answer}
    assert "pairs have two equal answers" in "".join(capsys.readouterr())
    with pytest.raises(ValueError, match=r"no pair is left: \d of \d pairs have two equal answers"):
        dpo.encode_pairs(dataclasses.replace(cfg, max_new_tokens=1), tok, "train")


@pytest.mark.parametrize("changes, words", [
    (dict(kl_beta=0.0), "needs kl_beta above 0"), (dict(logp_est="trace"), "take elbo"),
    (dict(init_from=None), "needs init_from"), (dict(logp_views=2, logp_chunk=3), "32 masked copies"),
    (dict(use=(dynamic_sampling.Keys(),)), "use=dynamic_sampling is for objective='grpo', now 'dpo'"),
    (dict(curriculum=((0, 1.0),)), "in any order"), (dict(logp_est="exact"), "is not causal"),
    (dict(dataset="plain.jsonl"), "rows are no such pairs; the first of them has prompt, completion"),
    (dict(init_from="causal", order="left"), "known: take exact")])  # fmt: skip
def test_what_cannot_work_is_said_before_anything_compiles(tiny, place, changes, words):
    files = {key: f"{place}/{changes[key]}" for key in ("dataset", "init_from") if changes.get(key)}
    with pytest.raises(ValueError, match=words):
        prepare(tiny(**changes | files), train.train)


def test_the_pairs_of_countdown_are_a_right_and_a_wrong_answer():
    import random

    from data.countdown import prepare as countdown

    rows = {"train": [countdown.row((3, 5, 7), 26, 1), countdown.row((2, 2, 4), 8, 1), countdown.row((3, 3, 3), 6, 2)]}
    made = countdown.pairs_of_answers(rows)["train"]
    assert [row["prompt"] for row in made] == ["3,5,7=26:", "2,2,4=8:"]
    rng = random.Random(1)
    for right in rows["train"] * 50:
        wrong = countdown.spoiled(rng, right)
        assert wrong != right["completion"] and re.fullmatch(r"\d+[-+*/]\d+=\d+", wrong.split(",")[0])
        assert formats.countdown(wrong, right["numbers"], right["target"]) < 1
    for pair in made:
        assert formats.countdown(pair["chosen"], pair["numbers"], pair["target"]) == 1
        assert formats.countdown(pair["rejected"], pair["numbers"], pair["target"]) < 1



def test_preferences_without_the_objective_are_told_of_it():
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2
    with pytest.raises(ValueError, match="2 of 2 rows have no completion to learn from: .*--objective=dpo"):
        check_completions(config.Config(dataset="pairs"), rows)
