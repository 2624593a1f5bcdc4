"""Samplers of other people's models, to the token and the step, and the plans with which they published their numbers.

The texts were written by the authors' own samplers in torch. Their network was transformers' Qwen3 with the weights of
tests/fixtures/sdar, the masks that the samplers ask for, and logits that ban the mask token.
dllm.json: the three samplers and the quota of ZHZisZZ/dllm at ca17675. nemotron.json: `generate` of the folder
nvidia/Nemotron-Labs-Diffusion-8B, with and without a threshold.
"""
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import byte_model

import config
import sample
from system import checkpoint, huggingface, start
from tools import complete, published
from tools import options as options_of_sample
from variants import dllm

KEY = jax.random.key(0)
DLLM, NEMOTRON = (json.load(open(f"tests/fixtures/{name}.json")) for name in ("dllm", "nemotron"))
CASES = [(kind, n) for kind in ("sample", "infill", "blocks") for n in range(len(DLLM[kind]))]
QUICK = {("sample", 2), ("infill", 1), ("blocks", 5)}


@functools.cache
def network(**switches):
    params, cfg = checkpoint.load("tests/fixtures/sdar")
    return dataclasses.replace(cfg, eos_id=None, end_ids=(), **switches), params


def masked(case, mask_id):
    """Return the text of a case with its masks."""
    step = np.array(case["step"])
    return np.where(step >= 0, mask_id, case["x"])


def check(rule, cases, cfg, params, **plan):
    """Fill texts with one plan, padded on the left to one length, and compare tokens and the step of each."""
    T = max(len(case["x"]) for case in cases) + 1
    before = [T - len(case["x"]) for case in cases]
    z = np.array([np.pad(masked(case, cfg.mask_id), (n, 0)) for n, case in zip(before, cases, strict=True)])
    valid = np.arange(T) >= np.array(before)[:, None]
    plan = {name: cases[0].get(name) for name in ("steps", "block_len")} | plan
    plan = sample.Plan(rule=rule, **plan)
    x, trace = sample.generate(params, KEY, jnp.array(z), cfg, plan, jnp.array(valid))
    for row, n, case in zip(range(len(cases)), before, cases, strict=True):
        np.testing.assert_array_equal(x[row], np.pad(case["x"], (n, 0)))  # padding stays as it was
        _, order = np.unique(trace["step"][row, n:], return_inverse=True)  # passes that only store count as steps
        np.testing.assert_array_equal(order - 1, case["step"])
    return trace


def test_the_quota_is_dllms_to_the_last_half():
    n, steps, expected = zip(*DLLM["quota"], strict=True)
    hole, counts = np.arange(max(n)) < np.array(n)[:, None], []
    plan, steps = sample.Plan(rule="dllm", steps=max(steps)), np.array(steps)[:, None]
    while hole.any():
        rank, i = np.cumsum(hole, 1) - 1, np.full_like(steps, len(counts))
        fills = hole & np.asarray(dllm.dllm(sample.Block(jnp.array(hole), rank, None, None, i, steps), plan))
        hole &= ~fills
        counts.append(fills.sum(1))
    assert [[k for k in row if k] for row in np.array(counts).T.tolist()] == list(expected)


@pytest.mark.parametrize("kind, n", [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES])
def test_texts_and_steps_are_those_of_dllms_samplers(kind, n):
    check("dllm", [DLLM[kind][n]], *network(**({} if kind == "blocks" else {"block_causal": None})))


def test_rows_of_one_batch_have_blocks_of_their_own_and_an_exact_cache():
    check("dllm", [case for case in DLLM["blocks"] if case["steps"] == 4], *network(), cache="prefix")


@pytest.mark.parametrize("rule, plan, switches, said", [
    ("dllm", dict(cache="dual"), dict(block_causal=None), "cache='dual': dllm's sampler has none, except for block"),
    ("dllm", dict(block_len=3), {}, "block_len=3: expected a divisor of block_causal=4"),
    ("dllm", {}, dict(causal_text=True), "rule='dllm' is for models that fill in masks"),
    ("nemotron", {}, {}, "rule='nemotron' needs a model that is autoregressive and a denoiser"),
    ("nemotron", dict(cache="dual"), dict(causal_text=True), "cache='dual': rule='nemotron' has an exact cache of its"),
])  # fmt: skip
def test_what_a_sampler_does_not_do_is_refused(rule, plan, switches, said):
    with pytest.raises(ValueError, match=said):
        check(rule, (DLLM["blocks"] if rule == "dllm" else NEMOTRON)[:1], *network(**switches), **plan)


@pytest.mark.parametrize("rule, said", [("dllm", "counts the blocks of a block model from the prompt's end"),
                                        ("nemotron", "begins blocks at the prompt's end")])  # fmt: skip
def test_a_run_that_would_score_other_blocks_than_were_sampled_is_refused(rule, said):
    run = config.Config(objective="grpo", init_from="x", rule=rule, logp_est="trace")
    with pytest.raises(ValueError, match=said):
        start.check_shape(run, network(causal_text=rule == "nemotron")[0])


@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.slow) for n in range(len(NEMOTRON))])
def test_texts_and_steps_are_those_of_nemotrons_generate(n):
    case = NEMOTRON[n]
    trace = check("nemotron", [case], *network(causal_text=True), threshold=case["threshold"])
    assert trace["passes"][0] == case["nfe"]


def test_rows_of_one_batch_take_the_first_tokens_of_their_blocks_when_they_need_them():
    cases = [case for case in NEMOTRON if (case["block_len"], case["threshold"]) == (4, 0.5)]
    trace = check("nemotron", cases, *network(causal_text=True), threshold=0.5)
    assert len(cases) == 3 and trace["passes"].tolist() == [case["nfe"] for case in cases]


def folder_named(path, **switches):
    byte_model(path, **switches)
    return str(path)


@pytest.mark.parametrize("name, switches, plan", [
    ("LLaDA-8B-Instruct", {}, dict(max_new_tokens=256, block_len=8, temperature=0.0, rule="quota")),
    ("models--GSAI-ML--LLaDA-1.5/snapshots/6f1c0b3", {}, dict(max_new_tokens=256, block_len=16)),
    ("Dream-v0-Instruct-7B", dict(shift=True, qkv_bias=True),
     dict(rule="dream", order="entropy", temperature=0.1, top_p=0.9, tempered=True, steps=256)),
    ("Nemotron-Labs-Diffusion-8B", dict(block_causal=32, causal_text=True, d_head=16),
     dict(rule="nemotron", block_len=8, threshold=0.9)),
    ("SDAR-8B-Chat", dict(block_causal=4, qk_norm=True), dict(rule="static", temperature=0.0, cache="prefix")),
])  # fmt: skip
def test_a_plan_is_known_by_the_name_of_the_folder_and_typed_flags_go_before(name, switches, plan, tmp_path):
    loaded = complete.find_model(folder_named(tmp_path / name, **switches))
    for typed, expected in ((), plan), (("--block_len=4", "--max_new_tokens=12"), dict(block_len=4, max_new_tokens=12)):
        options = options_of_sample.parser().parse_args([loaded.folder, "--as_published", "--prompt=a", *typed])
        given = published.fill_in(options, complete.typed_plan(options), loaded.folder)
        found = complete.make_plan(given, loaded, options.max_new_tokens, 1)
        values = dataclasses.asdict(found) | {"max_new_tokens": options.max_new_tokens}
        assert {key: values[key] for key in expected} == expected


def test_every_published_plan_is_one_of_a_known_family_and_stands_in_the_page():
    huggingface.plug_families()
    with open("docs/checkpoints.md") as file:
        section = file.read().split("## How did the authors sample?")[1].split("\n## ")[0]
    for entry in published.PUBLISHED:
        sample.Plan(**entry.plan)
        assert {*entry.families.split()} <= {*huggingface.FAMILIES} and f"| {entry.max_new_tokens}" in section
        for name, value in (entry.plan.items() - published.GREEDY.items()):
            assert f"{name}={value}" in section or f"; {value}" in section


def test_a_typed_command_samples_as_published(tmp_path, capsys):
    assert complete.main([folder_named(tmp_path / "mine"), "--as_published", "--prompt=a"]) == 2
    said = capsys.readouterr().err
    assert "no plan is known for the folder 'mine'" in said and "LLaDA-8B-Instruct" in said
    folder = folder_named(tmp_path / "Nemotron-Labs-Diffusion-8B", block_causal=32, causal_text=True, d_head=8)
    assert complete.main([folder, "--as_published", "--prompt=a", "--max_new_tokens=11", "--threshold=0.8"]) == 0
    assert "--temperature=0.0 --rule=nemotron --block_len=8 --threshold=0.8 --max_new_tokens=11" in (
        capsys.readouterr().err)  # fmt: skip
