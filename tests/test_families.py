"""Folders of dllm, of denoisers under a causal name, and with YaRN, against transformers' classes."""
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import SECONDS, but_mask, byte_model, logits_of, random_torch, refused, torch_logits

import train
from checkpoints import checkpoint, families, huggingface
from loop import reference, setup
from tools import complete, plan

MASK = 39


def edit(folder, **changes):
    """Change keys of config.json; None deletes one."""
    file = folder / "config.json"
    theirs = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in theirs.items() if value is not None}))


A2D = {"a2d-qwen3": ("qwen3", dict(head_dim=16)), "a2d-qwen2": ("qwen2", {}), "a2d-llama": ("llama", {})}


def a2d_folder(folder, kind, **changes):
    """A folder as dllm writes it: neither mask id nor block size in config.json."""
    base, shape = A2D[kind]
    theirs = random_torch(base, **shape)
    theirs.save_pretrained(folder)
    edit(folder, model_type=kind, architectures=[families.FAMILIES[kind].architecture], **changes)
    added = [{"content": "<|endoftext|>", "id": 38}, {"content": "<|mask|>", "id": MASK}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("name, block", [("Qwen-mdlm-v0.1", None), ("Qwen-bd3lm-v0.1", 32), ("Qwen-a2d-b8", 8)])
@pytest.mark.parametrize("kind", A2D)
def test_a_folder_of_dllm_opens_with_its_logits(kind, name, block, tmp_path):
    folder = tmp_path / name
    theirs = a2d_folder(folder, kind)
    params, cfg = checkpoint.load(folder)
    assert (cfg.causal, cfg.shift, cfg.mask_id, cfg.block) == (False, False, MASK, block)
    tokens, T = jax.random.randint(jax.random.key(1), (3, 40), 0, 37), 40
    z = jnp.where(jax.random.uniform(jax.random.key(2), tokens.shape) < 0.4, MASK, tokens)
    number = np.arange(T) // (block or T)
    expected = torch_logits(theirs, z, (number <= number[:, None])[None])
    assert np.abs(but_mask(logits_of(params, z, cfg), MASK) - but_mask(expected, MASK)).max() < 2e-5
    huggingface.save(tmp_path / "bd3lm", params, cfg)  # the name of our own folder says nothing
    again, same = checkpoint.load(tmp_path / "bd3lm")
    assert dataclasses.replace(same, d_head=cfg.head_dim) == dataclasses.replace(cfg, d_head=cfg.head_dim)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), params, again))


def config_only(folder, **changes):
    """A folder with a config.json of a family, without tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = dict(model_type="a2d-qwen3", vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, mask_token_id=39)  # fmt: skip
    (folder / "config.json").write_text(json.dumps(keys | changes))
    return folder


def test_the_name_of_a_repository_counts_in_the_cache_of_huggingface(tmp_path):
    cache = "models--dllm-hub--Qwen3-0.6B-diffusion-{}-v0.1/snapshots/6f1c0b3"
    block, plain = (config_only(tmp_path / cache.format(kind)) for kind in ("bd3lm", "mdlm"))
    assert huggingface.read_config(block).block == 32
    config_only(block, block_size=None)  # config.json decides
    assert not any(huggingface.read_config(folder).block for folder in (plain, block))
    assert huggingface.read_config(config_only(plain, block_size=16)).block == 16


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    """A run's folder of a shifted denoiser with a tokenizer, under the name of Qwen2, and its params and shape."""
    folder = tmp_path_factory.mktemp("dcoder")
    params, cfg = byte_model(folder, shift=True, qkv_bias=True)
    edit(folder, model_type="qwen2", architectures=["Qwen2ForCausalLM"], transformers_version="4.53.0")
    return folder, params, cfg


def same_model(found, denoiser):
    params, cfg = found
    assert cfg == dataclasses.replace(denoiser[2], d_head=cfg.d_head, n_kv_head=2, d_ff=denoiser[2].ff)
    jax.tree.map(np.testing.assert_array_equal, params, denoiser[1])


def test_a_denoiser_under_a_causal_name_is_refused_and_opens_as_what_it_is(denoiser, capsys):
    said = r"'qwen2', but architectures=\['Qwen2ForCausalLM'\], mask_token_id=\d+: this is another network than Qwen2"
    said += r".* --checkpoint.open_as=NAME opens it as one of llada, .*\(Dream if it sees "
    refused(said, checkpoint.load, denoiser[0])
    same_model(checkpoint.load(denoiser[0], open_as="Dream"), denoiser)
    assert checkpoint.load(denoiser[0], open_as="qwen2")[1].causal
    words = [str(denoiser[0]), "--prompt=ab", "--max_new_tokens=3", "--steps=1"]
    for more, message in (([], "--checkpoint.open_as=NAME"),
                          (["--checkpoint.open_as=qwen9"], "'qwen9': this code does not comp")):
        assert complete.main([*words, *more]) == 2 and message in capsys.readouterr().err
    assert complete.main([*words, "--checkpoint.open_as=Dream"]) == 0


def test_a_mask_in_the_files_of_the_tokenizer_is_no_sign(denoiser, tmp_path):
    """Gemma 2 has a <mask>, and anybody may add one to the tokenizer of a causal model."""
    for file in denoiser[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit(tmp_path, mask_token_id=None)
    assert complete.main([str(tmp_path), "--prompt=ab", "--max_new_tokens=2"]) == 0
    same_model(checkpoint.load(tmp_path, open_as="Dream"), denoiser)  # and it is where the id is found


@pytest.fixture
def rows(tmp_path):
    return shared.jsonl(tmp_path / "rows.jsonl", [{"prompt": "12", "completion": "21"}] * 20)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"lora.rank": 2}])
def test_a_run_starts_from_it_and_goes_on_without_the_key(denoiser, rows, more, tmp_path):
    cfg = shared.run(**SECONDS, dataset=rows, out_dir=f"{tmp_path}/out", init_from=str(denoiser[0]),
                        **{"checkpoint.open_as": "Dream"} | more)  # fmt: skip
    train.train(cfg)
    train.train(shared.changed(cfg, **{"checkpoint.open_as": None}, max_iters=2, resume=True))
    found = checkpoint.load(cfg.out_dir)[1]
    assert huggingface.family_of(found) == "Dream"
    assert complete.main([cfg.out_dir, "--prompt=12", "--max_new_tokens=3"]) == 0


def test_the_reference_opens_as_the_start_does(denoiser, rows, tmp_path):
    cfg = shared.run(**SECONDS, dataset=rows, out_dir=f"{tmp_path}/out", init_from=str(denoiser[0]),
                        ref_from=str(denoiser[0]), **{"checkpoint.open_as": "Dream"}, objective="grpo", kl_beta=0.1,
                        rewards=("exact",))  # fmt: skip
    cfg = setup.prepare(cfg, None).cfg
    ends_otherwise = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, eos_id=1, end_ids=(2,)))
    for run in (cfg, ends_otherwise):  # a tokenizer may name another end than config.json
        jax.tree.map(np.testing.assert_array_equal, reference.load(run), denoiser[1])


def test_a_plan_reads_the_shape_of_it(denoiser, rows, capsys, tmp_path):
    file = tmp_path / "recipe.py"
    keys = SECONDS | dict(dataset=rows, init_from=str(denoiser[0]))
    file.write_text(f"from config import Config, changed\nconfig = changed(Config(), {keys!r})\n")
    refused("--checkpoint.open_as=NAME", plan.plan_ahead, [str(file)], "1xH100")
    plan.plan_ahead([str(file), "--checkpoint.open_as=Dream"], "1xH100")
    assert "1xH100" in capsys.readouterr().out


@pytest.mark.parametrize("kind, named", [("nemotron_labs_diffusion", "whose finished text is causal and whose open"),
                                         ("unmask_uniform", "random tokens in place of masks")])  # fmt: skip
def test_a_family_that_was_here_once_says_what_became_of_it(kind, named, tmp_path):
    for folder, open_as in ((config_only(tmp_path / "own", model_type=kind), None), (config_only(tmp_path), kind)):
        said = f"{kind}.*{named}.* are gone from here; commit 6adddab opens them"
        refused(said, huggingface.read_config, folder, open_as)
