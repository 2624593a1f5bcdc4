"""judges/model_judge.py, variants/judge.py: pairs, the loss, the judge and the likelihood as rewards."""
import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import byte_model, refused

import config
import data
import model
from checkpoints import huggingface
from data import Tokenizer, texts
from judges import model_judge
from loop import reference, setup
from tools import complete
from variants import judge

TOK = Tokenizer.bytes()
CHATTY = shared.chatty()
IDS = dict(vocab_size=259, mask_id=TOK.mask_id, eos_id=TOK.eos_id, pad_id=TOK.pad_id)
CFG = shared.shape(n_layer=1, n_head=2, d_model=16, **IDS)
init = jax.jit(model.init, static_argnames=("cfg", "n_out"))  # one program instead of twenty
SCORER = init(jax.random.key(0), CFG, n_out=1)
rows = functools.partial(model_judge.rows_of, messages_before=None)
ROWS = [{"prompt": "p", "completion": f"one {i} two three four five"} for i in range(40)]


# ---- as a reward ----


def test_a_text_has_the_same_score_in_every_batch_and_blank_text_none():
    texts = ["one", "two", "three", "", "a much longer text than all the others"]
    reward = model_judge.judge(SCORER, CFG, TOK, batch_size=2, max_len=24)
    scores = reward(["p"] * 5, texts)
    assert scores[3] == 0 and all(0 < s < 1 for i, s in enumerate(scores) if i != 3) and len(set(scores)) == 5
    assert scores == pytest.approx([reward(["p"], [text])[0] for text in texts], abs=1e-6)


def test_the_reward_is_the_sigmoid_of_the_models_score():
    tokens, valid = model_judge.encode(rows(["ab"]), ["c"], TOK, 6)
    assert tokens.tolist() == [[TOK.pad_id, TOK.pad_id, *TOK.encode("abc"), TOK.eos_id]]
    assert valid.tolist() == [[False, False, True, True, True, True]]
    score = float(model_judge.rate(SCORER, tokens, CFG, valid)[0])
    expected = pytest.approx(1 / (1 + math.exp(-score)), rel=1e-5)
    for max_len in (6, 16):  # padding does not count
        assert model_judge.judge(SCORER, CFG, TOK, batch_size=2, max_len=max_len)(["ab"], ["c"]) == [expected]


def test_judge_and_coherence_read_a_prompt_as_the_policy_does(tmp_path):
    """In the template of the run, with its first token and the messages before it; they read the bare prompt before."""
    tok, cfg = CHATTY, dataclasses.replace(CFG, vocab_size=261)
    params, scorer = (init(jax.random.key(0), cfg, n_out=n) for n in (None, 1))
    row = {"prompt": "2+3", "messages_before": [{"role": "user", "content": "add"}]}
    asked = [row["prompt"]], ["5"], [row["messages_before"]]
    template = data.chat("chatml", None, tok)
    policy = data.encode([row | {"completion": "5"}], tok, 200, 1, template)[0]
    tokens, valid = model_judge.encode([row], ["5"], tok, 256, template)
    assert tokens[valid].tolist() == [*policy.tokens[policy.valid], tok.eos_id]
    pair = judge.encode_pairs(judge.Pairs([row], ["5"], ["6"], ["x"]), tok, 256, template)
    assert pair["better"].tolist() == tokens.tolist()
    folder = tmp_path / "judge"
    huggingface.save(folder, scorer, cfg)
    tok.save(folder)
    (folder / "run.json").write_text(json.dumps({"config": {"model.mlp": "swiglu", "texts.chat_template": "chatml"}}))
    expected = model_judge.judge(scorer, cfg, tok, template=template)(*asked)
    assert model_judge.load(folder)(*asked) == expected != model_judge.judge(scorer, cfg, tok)(*asked[:2])
    huggingface.save(tmp_path / "policy", params, cfg)
    run = dataclasses.replace(config.Config(), init_from=str(tmp_path / "policy"), model=cfg,
                              use=(texts.Keys(chat_template="chatml"),))  # fmt: skip
    coherence = model_judge.rewards_of(run, tok, ("coherence",))["coherence"]
    assert coherence(*asked) == model_judge.coherence(params, cfg, tok, template=template)(*asked)
    assert coherence(*asked) != coherence(*asked[:2])


def test_texts_are_as_wide_as_the_longest_needs_lose_their_beginning_and_what_is_cut_is_said(capsys):
    tokens, valid = model_judge.encode(rows(["prompt"]), ["12345"], TOK, 4)
    assert tokens[0].tolist() == [*TOK.encode("345"), TOK.eos_id] and valid.all()
    sizes = (1, 32, *range(33, 4097, 97), 4096)
    widths = {n: model_judge.encode(rows([""]), ["x" * (n - 1)], TOK, 4096)[0].shape[1] for n in sizes}
    assert len(set(widths.values())) <= 17 and widths[32] == 32 and widths[4096] == 4096
    assert all(n <= width <= 1.5 * max(n, 16) for n, width in widths.items())
    shape = lambda prompts, texts: model_judge.encode(rows(prompts), texts, TOK, 64)[0].shape
    assert shape(["a"], ["b"]) == (1, 16) and shape([], []) == (0, 16)
    tokens, valid = model_judge.encode(rows(["ab", "a"]), ["c" * 20, "d"], TOK, 64)
    assert tokens.shape == (2, 24) and valid.sum(1).tolist() == [23, 3]
    pair = judge.Pairs([{"prompt": "p"}], ["c" * 20], ["d"], ["x"])
    judge.encode_pairs(pair, TOK, 64)
    assert not capsys.readouterr().out
    assert judge.encode_pairs(pair, TOK, 8)["better"].shape == (1, 8)
    assert "1 of 2 texts, the longest of 22 tokens" in capsys.readouterr().out


def saved(folder, params, cfg):
    huggingface.save(folder, params, cfg)
    TOK.save(folder)
    return folder


def test_a_judge_is_loaded_from_its_folder_and_says_how_good_it_is(tmp_path, capsys, monkeypatch):
    best = {"best": {"step": 5, "score": 0.934, "measure": "val/pair_acc"}}
    other = jax.tree.map(lambda x: x * 1.1, SCORER)
    for step, params in ((5, SCORER), (9, other)):  # of a run, the best step is the judge, not the last
        (tmp_path / f"step-{step:06d}").mkdir()
        folder = saved(tmp_path / f"step-{step:06d}", params, CFG)
        (folder / "run.json").write_text(json.dumps(best))
    made = model_judge.load(tmp_path)
    assert made(["p"], ["one"]) == model_judge.judge(SCORER, CFG, TOK)(["p"], ["one"])
    assert "step-000005: val/pair_acc 0.934 on held-out texts" in capsys.readouterr().out
    monkeypatch.setattr(model_judge, "judge", lambda params, cfg, tok, **_: (params["embed"].dtype, cfg.dtype))
    assert model_judge.load(tmp_path, "bfloat16") == ("bfloat16", "bfloat16")  # kept in it, and computes in it


def test_a_denoiser_is_no_judge_but_measures_coherence_for_runs_that_start_from_it(tmp_path):
    params = init(jax.random.key(0), CFG)
    folder = str(saved(tmp_path, params, CFG))
    refused(f"judge_from='{folder}' is not a judge, as its head has not width 1", model_judge.load, folder)
    cfg = dataclasses.replace(config.Config(), init_from=folder, model=CFG)
    made = model_judge.rewards_of(cfg, TOK, ("coherence",))
    assert made["coherence"](["p"], ["text"]) == model_judge.coherence(params, CFG, TOK)(["p"], ["text"])


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path):
    small = SCORER | {"embed": SCORER["embed"][:200]}
    cfg = dataclasses.replace(CFG, vocab_size=200, mask_id=5, eos_id=None, pad_id=None)
    refused("ids up to 258, its model only 200", model_judge.load, saved(tmp_path, small, cfg))


def test_coherence_of_a_uniform_model_is_minus_log_v_and_of_blank_text_the_floor():
    params = init(jax.random.key(0), CFG)
    uniform = params | {"head": jnp.zeros_like(params["head"])}
    values = model_judge.coherence(uniform, CFG, TOK, max_len=32)(["p"] * 3, ["short", "a longer completion", " "])
    assert values == pytest.approx([-math.log(258), -math.log(258), -20.0], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [False, True])
def test_coherence_of_a_text_is_the_same_in_every_row_and_behind_any_padding(shift):
    cfg = shared.shape(n_layer=1, n_head=2, d_model=16, shift=shift, qkv_bias=shift, **IDS)
    params = model.init(jax.random.key(3), cfg) | {"head": jax.random.normal(jax.random.key(4), (16, 259))}
    coherence = model_judge.coherence(params, cfg, TOK, batch_size=4, max_len=48)
    alike = coherence([""] * 8, ["a word or two"] * 8)
    assert alike == pytest.approx([alike[0]] * 8, abs=1e-5)
    longer = coherence(["", "a longer prompt"], ["a word or two", "and a longer text"])
    assert longer[0] == pytest.approx(alike[0], abs=1e-5) and longer[1] != pytest.approx(alike[0], abs=0.01)


@pytest.mark.slow
def test_coherence_of_a_causal_model_is_its_exact_log_prob():
    cfg = shared.shape(n_layer=1, n_head=2, d_model=16, causal=True, shift=True, **IDS)
    params = model.init(jax.random.key(3), cfg) | {"head": jax.random.normal(jax.random.key(4), (16, 259))}
    ids = jnp.array([[*TOK.encode("ab"), TOK.eos_id]])
    logp = jax.nn.log_softmax(model.logits(params, ids, cfg))[0, [1, 2], ids[0, 1:]]
    score = model_judge.coherence(params, cfg, TOK, max_len=8)(["a"], ["b"])
    assert score == [pytest.approx(float(logp.mean()), abs=1e-4)]


# ---- pairs ----


def test_the_worse_text_of_a_pair_is_another_text():
    p = judge.make_pairs(ROWS, seed=0)
    assert len(p.rows) == len(p.better) == len(p.worse) == len(p.kinds) > 30
    assert all(a != b for a, b in zip(p.better, p.worse, strict=True))
    assert set(p.kinds) == {"swapped", "lost", "replaced", "another row"}
    assert judge.make_pairs(ROWS, seed=0) == p != judge.make_pairs(ROWS, seed=1)
    p = judge.make_pairs([row | {"prompt": ""} for row in ROWS], seed=0)  # another row's text is as good
    assert set(p.kinds) == {"swapped", "lost", "replaced"}
    assert judge.make_worse(np.random.default_rng(0), "x", "other", False) == ("", "lost")


def test_swapping_keeps_the_words_and_losing_loses_some():
    rng = np.random.default_rng(0)
    text = "a b c d e f"
    for _ in range(50):
        worse, kind = judge.make_worse(rng, text, "x y")
        words = sorted(worse.split())
        assert {"swapped": words == text.split(), "lost": set(words) < set(text.split()), "another row": worse == "x y",
                "replaced": len(words) == 6 and len(set(words) - set(text.split())) == 1}[kind]  # fmt: skip


def test_every_second_text_is_refilled_by_a_generator_if_there_is_one():
    refill = lambda rows, seed: ([row["completion"] for row in rows[:-1]] + ["made up"], ["filled"] * len(rows))
    p = judge.make_pairs(ROWS, 0, refill)
    assert p.worse[p.kinds.index("filled")] == "made up" and p.kinds.count("filled") == 1  # rightly filled: no pair


def test_preferences_of_the_user_are_taken_as_they_are():
    p = judge.make_pairs([{"prompt": "p", "chosen": "a", "rejected": "b"}], 0)
    assert (p.better, p.worse) == (["a"], ["b"])
    refused("prompt, answer", judge.make_pairs, [{"prompt": "p", "answer": "a"}], 0)
    with pytest.raises(ValueError, match="write rows with a score as such pairs"):  # its completion may be a bad one
        judge.make_pairs([{"prompt": "p", "completion": "a", "score": 0.25}], 0)


# ---- learning ----


def test_the_loss_is_bradley_terry_and_the_cross_entropy_of_being_better():
    batch = judge.encode_pairs(judge.Pairs([{"prompt": "p"}], ["good"], ["bad"], ["x"]), TOK, 6)
    b, w = (float(model_judge.rate(SCORER, batch[s], CFG, batch[s + "_valid"])[0]) for s in ("better", "worse"))
    log_sigmoid = lambda s: -math.log1p(math.exp(-s))
    expected = -log_sigmoid(b - w) - (log_sigmoid(b) + log_sigmoid(-w)) / 2
    value, metrics = judge.loss(SCORER, batch, CFG)
    assert float(value) == pytest.approx(expected, rel=1e-5) and float(metrics["pair_acc"]) == (b > w)


def test_the_report_names_the_kinds_of_pairs():
    p = judge.Pairs([{"prompt": "p"}] * 4, list("abcd"), list("efgh"), ["x", "x", "y", "y"])
    out = judge.pair_metrics(np.array([1, 2, 3, 4.0]), np.array([0, 3, 0, 0.0]), p)
    assert (out["val/pair_acc"], out["val/pair_acc/x"], out["val/pair_acc/y"]) == (0.75, 0.5, 1.0)


def test_a_judge_is_no_language_model(tmp_path, capsys):
    folder = str(tmp_path / "judge")
    shape = byte_model(folder, n_out=1)[1]
    assert complete.main([folder, "--prompt=a"]) == 2 and "is a judge" in capsys.readouterr().err
    tuned = config.Config(objective="grpo", init_from=folder, rewards=("exact",), kl_beta=0.1, ref_from=folder,
                          model=shape)  # fmt: skip
    refused("is a judge: its head gives a text one number", setup.open_model, tuned, folder, False)
    refused("is a judge: its head gives a text one number", reference.load, tuned)
    setup.open_model(config.Config(objective="judge", init_from=folder), folder, False)


def test_a_judge_without_a_pair_says_so(tmp_path):
    path = shared.jsonl(tmp_path / "mine.jsonl", [{"prompt": "a:", "completion": ""}] * 3)
    cfg = config.Config(objective="judge", dataset=path)
    refused("mine.jsonl/train: no pair is left", judge.judge_task, cfg, Tokenizer.bytes(), None)


def test_a_generator_of_worse_texts_is_prompted_as_it_was_taught(monkeypatch):
    cfg = shared.run(objective="judge", **{"texts.chat_template": "chatml"}, max_prompt_len=120, max_new_tokens=3)
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, mask_id=256, eos_id=258, pad_id=257))
    monkeypatch.setattr(judge.sample, "fill", lambda *args: (read.append(args[2].tokens), None))
    monkeypatch.setattr(judge.texts, "completion_ids", lambda tokens, tok, cfg: [[0]])
    read = []
    judge.refill_rows([{"prompt": "1+1", "completion": "2"}], 0, None, cfg, CHATTY)
    assert "<|im_start|>user\n1+1<|im_end|>\n" in CHATTY.decode(np.asarray(read[0][0]), specials=True)
