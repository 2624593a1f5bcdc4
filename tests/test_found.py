"""What an audit found wrong, each seen to fail before it was mended. The merger moves these tests to their files."""
import dataclasses
import datetime
import json
import sys
from decimal import Decimal

import jax
import numpy as np
import pytest

import data
import model
import rewards
import train
from config import Config
from data import texts
from system import checkpoint, huggingface, runs, start
from tools import compare, complete, score
from variants import dpo, judge

CHATTY = data.Tokenizer(
    data.Tokenizer.bytes().vocab,
    {text: 256 + i for i, text in enumerate(("<|mask|>", "<|pad|>", "<|eos|>", "<|im_start|>", "<|im_end|>"))},
    {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"},
)


class Column(float):
    """A number as torch's tensor([1.0]) has it: of one dimension, and yet finite."""

    ndim = 1


def file(tmp_path, rows, name="mine.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_prompts_of_grpo_and_dpo_keep_the_messages_before_them(tmp_path):
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    row = {"prompt": turns, "completion": "2", "chosen": "2", "rejected": "3"}
    cfg = Config(dataset=file(tmp_path, [row] * 3), max_prompt_len=120, chat_template="chatml")
    wanted = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    asked = texts.encode_split(cfg, CHATTY, "train", with_completions=False)
    for encoded in asked, *dpo.encode_pairs(cfg, CHATTY, "train"):
        assert CHATTY.decode(encoded.tokens[0, :120], specials=True).replace("<|pad|>", "") == wanted


@pytest.mark.parametrize("scores, says", [
    (np.array(1.0), "returned a ndarray, not one entry for each of 2"),
    ([np.array([1.0]), 2], r"returned array\(\[1.\]\) for row 0"),
    ([1, 10**400], "for row 1"),
    ([Decimal("sNaN"), 1], r"returned Decimal\('sNaN'\) for row 0"),
    ([Column(1.0), 1], "returned 1.0 for row 0"),
])  # fmt: skip
def test_a_reward_that_returns_something_odd_is_answered_in_a_sentence(scores, says):
    with pytest.raises(ValueError, match=says):
        rewards.call_reward("odd", lambda completions: scores, ["", ""], ["x", "y"], {})


def saved(folder, tok, n_out=None, **fields):
    """Save a tiny model with its tokenizer -> its ModelConfig."""
    ids = dict(mask_id=tok.mask_id, eos_id=tok.eos_id, pad_id=tok.pad_id)
    shape = model.ModelConfig(n_layer=1, d_model=8, n_head=1, **ids | fields)
    huggingface.save(folder, model.init(jax.random.key(0), shape, n_out), shape)
    tok.save(folder)
    return shape


def test_a_judge_is_no_language_model(tmp_path, capsys):
    folder = str(tmp_path / "judge")
    shape = saved(folder, data.Tokenizer.bytes(), n_out=1)
    assert complete.main([folder, "--prompt=a"]) == 2 and "is a judge" in capsys.readouterr().err
    tuned = Config(objective="grpo", init_from=folder, rewards=("exact",), kl_beta=0.1, ref_from=folder, model=shape)
    with pytest.raises(ValueError, match="is a judge: its head gives a text one number"):
        start.open_model(tuned, folder, False)
    with pytest.raises(ValueError, match="is a judge: its head gives a text one number"):
        start.load_reference(tuned)
    start.open_model(Config(objective="judge", init_from=folder), folder, False)


def test_a_judge_without_a_pair_says_so(tmp_path):
    cfg = Config(objective="judge", dataset=file(tmp_path, [{"prompt": "a:", "completion": ""}] * 3))
    with pytest.raises(ValueError, match="mine.jsonl/train: no pair is left"):
        judge.judge_task(cfg, data.Tokenizer.bytes(), None)


def test_a_weight_of_a_reward_is_finite(capsys):
    with pytest.raises(SystemExit):
        score.parser().parse_args(["x", "--rewards=exact", "--reward_weights=1,nan"])
    assert "invalid numbers value: '1,nan'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("max_iters", [2, 3])
def test_an_evaluation_that_failed_is_made_up_for_when_the_run_is_resumed(tmp_path, max_iters):
    def reward(completion):
        return 1.0 if mended else 1 / 0

    rows, mended = [{"prompt": f"{n}:", "completion": "b"} for n in range(9)], False
    shape = model.ModelConfig(n_layer=1, d_model=8, n_head=1)
    cfg = Config(out_dir=str(tmp_path / "out"), max_iters=max_iters, batch_size=2, max_prompt_len=2, max_new_tokens=2,
                 eval_size=2, eval_interval=2, diffusion_steps=2, log_samples=0, model=shape)  # fmt: skip
    with pytest.raises(ValueError, match="evaluation at step 2: .*Saved"):
        train.train(cfg, rows, reward)
    mended = True
    train.train(dataclasses.replace(cfg, resume=True), rows, reward)
    log = [json.loads(line) for line in open(tmp_path / "out/metrics.jsonl")]
    assert [row["step"] for row in log if "val/sampled" in row] == [2, 3][: max_iters - 1]
    assert checkpoint.read_run(checkpoint.find(cfg.out_dir))["finished"]


ODD = {"n": np.int64(3), "x": np.arange(2), "day": datetime.date(2026, 11, 27)}
PLAIN = {"n": 3, "x": [0, 1], "day": "2026-11-27"}


def test_columns_that_json_does_not_know_are_logged_and_written(tmp_path, monkeypatch):
    log = runs.Log(Config(out_dir=str(tmp_path)), -1)
    log.samples(1, [{"columns": ODD}])
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"step": 1, "columns": PLAIN}
    monkeypatch.setattr(data, "read_rows", lambda path: [{"prompt": "a", "completion": "b", "answer": "b"} | ODD])
    out = str(tmp_path / "out.jsonl")
    monkeypatch.setattr(sys, "argv", ["rewards.py", file(tmp_path, []), "--rewards=exact", f"--out={out}"])
    assert score.main() == 0 and json.loads(open(out).read()).items() >= PLAIN.items()
    monkeypatch.setattr(complete, "complete_texts", lambda *todo: iter("b"))
    options = complete.parser().parse_args(["x"])
    complete.complete_rows(options, [{"prompt": "a"} | ODD], (), out + "2")
    assert json.loads(open(out + "2").read()) == {"prompt": "a", "completion": "b"} | PLAIN


def test_a_system_prompt_without_a_template_is_refused():
    with pytest.raises(ValueError, match="system_prompt='Add.': how it is written is up to the model, so set chat_te"):
        Config(system_prompt="Add.")
    assert Config(system_prompt="Add.", chat_template="chatml").system_prompt == "Add."


def test_a_generator_of_worse_texts_is_prompted_as_it_was_taught(monkeypatch):
    cfg = Config(objective="judge", chat_template="chatml", max_prompt_len=120, max_new_tokens=3)
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, mask_id=256, eos_id=258, pad_id=257))
    monkeypatch.setattr(judge.sample, "fill", lambda *args: (read.append(args[2].tokens), None))
    monkeypatch.setattr(judge.texts, "completion_ids", lambda tokens, tok, cfg: [[0]])
    read = []
    judge.refill_rows([{"prompt": "1+1", "completion": "2"}], 0, None, cfg, CHATTY)
    assert "<|im_start|>user\n1+1<|im_end|>\n" in CHATTY.decode(np.asarray(read[0][0]), specials=True)


def test_two_recipes_whose_folders_have_one_name_are_two_curves(tmp_path):
    folders = [str(tmp_path / f"try_{n}") for n in range(4)]
    for n, folder in enumerate(folders):
        log = runs.Log(Config(out_dir=folder, seed=n % 2, learning_rate=1e-3 * (1 + n // 2)), -1)
        log.metrics(1, {"loss": 1.0})
    page = compare.compare(folders)
    assert "try, 2 seeds" in page and f"try, 2 seeds from {folders[2]} on" in page


def test_drafts_need_no_more_in_a_config_than_the_folder_of_their_model(tmp_path):
    folder = str(tmp_path / "joint")
    saved(folder, data.Tokenizer.bytes(), block_causal=4, causal_text=True)
    cfg = Config(objective="grpo", init_from=folder, rewards=("exact",), rule="drafts", order="left", logp_est="exact")
    assert start.open_sources(None, cfg).cfg.model.block_causal == 4


def test_a_prompt_before_a_text_with_masks_is_not_dropped_without_a_word(tmp_path, capsys):
    folder = str(tmp_path / "model")
    saved(folder, data.Tokenizer.bytes())
    rows = file(tmp_path, [{"prompt": "p", "masked": "a<|mask|>", "completion": "ab"}])
    assert complete.main([folder, f"--data={rows}", "--rewards=exact"]) == 2
    assert "a row has the prompt 'p' before a text with masks" in capsys.readouterr().err
