"""data/tiny: a random model of each family in its own files, rows as the real ones, and every recipe runs on them."""
import functools
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import config
import data
import model
import rewards
import train
from checkpoints import checkpoint, huggingface, older
from data.tiny import prepare as tiny
from judges import formats
from loop import run_rewards, runs
from system import disk

RECIPES = {"diffucoder_grpo": "Dream", "llada_gsm8k_grpo": "llada", "dream_countdown_grpo": "Dream",
           "llama_gsm8k_grpo": "llama", "gemma2_gsm8k_grpo": "gemma2", "a2d_gsm8k_grpo": "a2d-qwen3"}  # fmt: skip
KINDS = {"dream": "Dream", "diffucoder": "Dream", "a2d": "a2d-qwen3"}
FILES = {"Dream": {"vocab.json", "merges.txt", "added_tokens.json"}}  # the others have tokenizer.json
TEXT = "Ann has 12 apples;\n\n    they're: naïve\tß 日本 <|im_start|>"


@pytest.fixture(scope="module", autouse=True)
def tokenizers_learnt_once():
    with pytest.MonkeyPatch.context() as m:
        m.setattr(tiny, "tokenizer", functools.cache(tiny.tokenizer))
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    for name in tiny.MODELS:
        tiny.checkpoint(root / name, name)
    return root


@pytest.mark.parametrize("name, mask, eos, pad", [
    ("llada", "<|mdm_mask|>", "<|endoftext|>", "<|endoftext|>"),
    ("dream", "<|mask|>", "<|endoftext|>", "<|endoftext|>"),
    ("diffucoder", "<|mask|>", "<|endoftext|>", "<|dlm_pad|>"), ("llama", "<|mask|>", "<|eot_id|>", "<|eot_id|>"),
    ("gemma2", "<mask>", "<end_of_turn>", "<pad>"), ("a2d", "<|mask|>", "<|im_end|>", "<|endoftext|>"),
    ("sdar_moe", "<|MASK|>", "<|im_end|>", "<|endoftext|>"),
    ("llada2_moe", "<|mask|>", "<|endoftext|>", "<|endoftext|>")])
def test_a_tiny_model_and_its_tokenizer_open_as_those_of_their_family(name, mask, eos, pad, folders):
    params, cfg = checkpoint.load(folders / name)
    kind, said = KINDS.get(name, name), disk.read_json(folders / name / "config.json")
    assert said["model_type"] == kind == huggingface.family_of(cfg)
    files = FILES.get(kind, {"tokenizer.json"}) | {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert {*os.listdir(folders / name)} == files
    causal = kind in ("llama", "gemma2")
    assert (cfg.shift, cfg.qkv_bias, cfg.causal) == (causal or kind == "Dream", kind == "Dream", causal)
    assert cfg.block == {"sdar_moe": 4, "llada2_moe": 32}.get(name)
    tok = data.open_tokenizer(folders / name, cfg.vocab_size)
    out = jax.jit(functools.partial(model.logits, cfg=cfg))(params, jnp.array([tok.encode("2+3")]))
    assert out.shape[-1] == cfg.vocab_size and np.isfinite(out).all()
    tok = data.open_tokenizer(folders / name)
    assert tok.roles == {"mask": mask, "eos": eos, "pad": pad} and cfg.eos_id == tok.eos_id
    assert tok.encode(TEXT) == tiny.tokenizer(name).encode(TEXT) and tok.decode(tok.encode(TEXT)) == TEXT
    if name == "gemma2":  # which has a mask, and never reads it
        assert (cfg.mask_id, cfg.pad_id, tok.mask_id, tok.bos) == (cfg.vocab_size, tok.pad_id, 4, ("<bos>",))
        return
    if name == "llama":  # which has none: its place is beyond the vocabulary
        assert tok.mask_id == cfg.vocab_size and said["mask_token_id"] is None
        assert "<|mask|>" not in (folders / name / "tokenizer.json").read_text()
    else:  # ids that no token has, as in the real ones
        assert cfg.mask_id == tok.mask_id and cfg.pad_id == tok.pad_id and cfg.vocab_size > tok.vocab_size
    start = "<|startoftext|>"
    firsts = {"llada": start, "llada2_moe": start, "llama": "<|begin_of_text|>"}
    first = firsts.get(name, "<|endoftext|>")
    assert tok.specials[first] == len(tok.vocab) and [tok.vocab[bytes([b])] for b in b"!\n"] == [0, 198]  # as GPT-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "llama", "gemma2"])
def test_a_tiny_tokenizer_is_that_of_transformers(name, folders):
    transformers = pytest.importorskip("transformers")
    kind = transformers.Qwen2TokenizerFast if name == "dream" else transformers.PreTrainedTokenizerFast
    theirs = kind.from_pretrained(folders / name)
    ours = data.open_tokenizer(folders / name)
    assert theirs.encode(TEXT, add_special_tokens=False) == ours.encode(TEXT, specials=True)


def ran(capsys, monkeypatch, name, folder, *words):
    """Run a recipe -> the lines of its log."""
    monkeypatch.setattr(sys, "argv", ["train.py", f"config/{name}.py", f"--out_dir={folder}/out", *words])
    monkeypatch.setattr(runs, "prepare_process", lambda: None)
    train.main()
    assert "done: " in capsys.readouterr().out
    return runs.read_lines(f"{folder}/out/metrics.jsonl")


def test_tiny_rows_can_be_solved():
    for row in map(data.normalize_row, tiny.rows("acecode")["train"]):
        good = f"```python\ndef {row['entry']}(x): return x + {row['entry'][4:]}\n```"
        assert rewards.resolve("tests_fenced")["tests_fenced"]([row["prompt"]], [good], [row["tests"]]) == [1.0]
    for row in map(data.normalize_row, tiny.rows("countdown")["train"]):
        a, b, c = row["numbers"]
        assert formats.countdown(f"<answer>{a}+{b}-{c}</answer>", row["numbers"], row["target"]) == 1.0
    for row in map(data.normalize_row, tiny.rows("gsm8k")["train"]):
        assert formats.math_answer(row["completion"], row["answer"]) == 1.0


def test_a_part_is_made_on_first_use_and_an_unknown_one_is_answered_with_those_there_are(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(tiny, "HERE", tmp_path)
    tiny.main(["llada", "gsm8k"])
    said = capfd.readouterr().out
    assert "a random llada of 147,776 parameters. This shows that a recipe runs; nothing can be learnt" in said
    assert len(data.load(tmp_path / "gsm8k", "train")) == 16 and len(data.load(tmp_path / "gsm8k", "val")) == 8
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(tiny, "tokenizer", tiny.tokenizer.__wrapped__)
    with pytest.raises(SystemExit, match="which is not installed: pip install tokenizers"):
        tiny.main(["llada"])
    with pytest.raises(SystemExit, match="makes llada, .*, gemma2, a2d, gsm8k, .*acecode; asked for was mamba"):
        tiny.main(["mamba"])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_from_end_to_end_on_a_tiny_model(name, tmp_path, monkeypatch, capsys):
    lines = ran(capsys, monkeypatch, name, tmp_path, "--model=tiny")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2 and np.isfinite(losses).all() and any(line.get("grad_norm", 0) > 0 for line in lines)
    assert [line["step"] for line in lines if "val/greedy" in line] == [0, 2]
    assert huggingface.family_of(checkpoint.load(tmp_path / "out/step-000002")[1]) == RECIPES[name]


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_warns_that_its_reward_cannot_be_earned(name, capsys):
    run_rewards.check_early(config.load([f"config/{name}.py", "--model=tiny"]))
    assert "perhaps no answer can earn it" not in "".join(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dream_countdown_grpo", "llama_gsm8k_grpo"])  # a denoiser and a causal model
def test_a_recipe_runs_from_end_to_end_on_a_small_model_that_is_trained_first(name, tmp_path, monkeypatch, capsys):
    base = ["--base.max_iters=2", "--base.eval_size=4", f"--base.out_dir={tmp_path}/base"]
    lines = ran(capsys, monkeypatch, name, tmp_path, "--model=small", "--max_iters=2", "--eval_size=4",
                "--batch_size=2", *base)  # fmt: skip
    assert [line["step"] for line in lines if "val/greedy" in line] == [0, 2]
    shape = checkpoint.load(tmp_path / "out/step-000002")[1]
    assert (shape.n_layer, shape.d_model, shape.causal) == (4, 128, name == "llama_gsm8k_grpo")


@pytest.mark.parametrize("name", [name for name in RECIPES if "gemma2" not in name])
def test_small_changes_the_task_and_the_sizes_and_nothing_of_how_a_recipe_learns(name):
    path = f"config/{name}.py"
    recipe, small = config.read_file(path), config.load([path, "--model=small"])
    kept = """objective temperature order rule logp_est logp_views mask_ratio_min mask_ratio_max p_mask_prompt
        group_size updates_per_rollout adv_baseline adv_norm adv_negative ratio_level loss_type clip_low clip_high
        kl_beta kl_est ref_mode ref_sync_interval ref_sync_mix lr_schedule weight_decay beta1 beta2 grad_clip
        seed""".split()
    of = lambda cfg: {key: getattr(cfg, key, older.OFF.get(key)) for key in kept}
    assert of(small) == of(recipe)
    assert config.base_run(small).dataset == "countdown" and small.model == config.base_run(small).model
