"""loop/memory.py, tests/cost.py, tools/plan.py: estimates against XLA's own account, and plans for other devices."""
import dataclasses
import re
import types

import cost
import jax
import jax.numpy as jnp
import pytest
import shared
from shared import byte_model, refused

import config
import model
from loop import memory, setup
from system import placement
from tools import plan

SMALL = config.Config(batch_size=16, max_prompt_len=16, max_new_tokens=48,
                      model=model.ModelConfig(n_layer=4, d_model=64, mask_id=258))  # fmt: skip
TUNING = dict(objective="grpo", init_from="x", rewards=("exact",), batch_size=8, group_size=4,
              logp_est="trace", ratio_level="token", adv_negative=1.0)  # fmt: skip
BIG = model.ModelConfig(vocab_size=126464, n_layer=32, n_head=32, d_model=4096, d_ff=12288, mask_id=126336)


# XLA counts the body of a loop once, so the model has few blocks; norms, softmax and rotary count as nothing
@pytest.mark.parametrize("n_layer", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_estimated_flops_of_a_forward_pass_are_those_that_xla_counts(n_layer):
    cfg = shared.changed(SMALL, **TUNING, kl_beta=0.1, model=dataclasses.replace(SMALL.model, n_layer=n_layer))
    passes = lambda params, z: model.logits(params, z, cfg.model, start=cfg.max_prompt_len)
    given = jax.eval_shape(lambda: (model.init(jax.random.key(0), cfg.model), jnp.zeros((8 * 4, 64), int)))  # as TUNING
    counted = jax.jit(passes).lower(*given).compile().cost_analysis()["flops"]
    assert 0.9 < cost.estimate_flops(cfg)["scoring"] / config.n_views(cfg) / counted < 1.01


@pytest.mark.parametrize("changes, part, more", [
    (dict(kl_beta=0.1), "reference", True), (dict(ema_decay=0.9), "average", True),
    (dict(gradient_accumulation_steps=2), "activations", False),
    (dict(remat=True), "activations", False), (dict(dtype="bfloat16"), "activations", False),
    ({"lora.rank": 4}, "moments", False), ({"lora.rank": 4}, "gradients", False),
    ({"lora.rank": 4}, "params", True),
])  # fmt: skip
def test_the_estimate_knows_what_a_key_costs_or_saves(changes, part, more):
    base = memory.estimate_bytes(shared.changed(SMALL, **TUNING), 1).get(part, 0)
    now = memory.estimate_bytes(config.changed(shared.changed(SMALL, **TUNING), changes), 1)[part]
    assert now > base if more else now < base
    with_reference = shared.changed(SMALL, **TUNING, kl_beta=0.1, **{"memory.ref_offload": True})
    assert "reference" not in memory.estimate_bytes(with_reference)


@pytest.mark.parametrize("name", ["sudoku_base", "sudoku_grpo", "diffucoder_grpo", "grammar_judge", "text"])
def test_no_run_is_estimated_above_the_bound_beyond_which_the_estimate_is_loaded(name):
    cfg = config.read_file(f"config/{name}.py")
    shape = config.run_file(f"config/{name}.py").get("shape", {})
    cfg = dataclasses.replace(cfg, mesh=None, model=shared.changed(cfg.model, **{"vocab_size": 300} | shape))
    assert sum(memory.estimate_bytes(cfg, 1).values()) <= setup.most_bytes(cfg)


def test_a_run_far_below_the_memory_neither_prints_nor_loads_the_estimate(monkeypatch, capsys):
    cfg = shared.changed(SMALL, **TUNING)
    state = types.SimpleNamespace(step=0, params={})
    for limit, printed in ((1e15, False), (1e6, True)):
        monkeypatch.setattr(setup, "device_memory", lambda limit=limit: limit)
        setup.announce(cfg, state, None, False)
        assert ("memory, at least: params" in capsys.readouterr().out) == printed


def test_adapters_of_any_size_are_estimated():
    cfg = shared.changed(SMALL, **TUNING, **{"lora.rank": 10**9})
    refused("this run cannot fit: params 20.5 TB", setup.check_shape, cfg, cfg.model)


def test_a_run_that_cannot_fit_is_refused_with_the_parts_and_the_keys_that_help():
    cfg = shared.changed(SMALL, **TUNING)
    parts = memory.estimate_bytes(cfg)
    least = sum(parts.values()) - parts["activations"] / 2
    assert not memory.refusal(cfg, least)
    said = memory.refusal(cfg, 1)
    assert re.match(r"this run cannot fit: params .* and there are 1 B; what helps: more gradient", said)
    said = memory.refusal(shared.changed(SMALL, **TUNING, kl_beta=0.04, model=BIG), 80 * 10**9)
    assert "params 32.1 GB + gradients 32.1 GB + moments 64.1 GB + reference 32.1 GB + activations" in said
    assert "(now 1), remat=True, dtype=bfloat16, memory.ref_offload=True; else" in said


def test_devices_are_named_with_their_number():
    for text, expected in {"1xA100-40": ("A100-40", 1), "8xH100": ("H100", 8), "1xRTX4090": ("4090", 1)}.items():
        assert plan.parse_devices(text) == expected
    for text in ("H100", "8xH99", "0xH100", "9xH100", "v5p:2x2x1", "x", ""):
        refused(f"--plan={text}: expected .* as in 8xH100; known are A100-40, .*5090", plan.parse_devices, text)


def planned(capsys, *argv, devices="8xH100"):
    plan.plan_ahead(argv, devices)
    return capsys.readouterr().out


def test_a_recipe_can_be_planned_without_its_model_and_without_a_compiler_which_is_named(monkeypatch, capsys):
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    text = planned(capsys, "config/diffucoder_grpo.py")
    version = jax.__version__
    assert "estimated. To have it compiled" in text and f"jax-cuda12-plugin=={version} jax-cuda12-pjrt" in text
    assert "it may fit: params 3.8 GB + gradients 3.8 GB + moments 7.6 GB" in text  # an eighth each
    assert "of 63.7 GB" in text  # three quarters


def test_a_run_that_starts_from_the_folder_of_another_can_be_planned(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    byte_model(tmp_path / "run/step-000003")
    assert "it compiled as for" in planned(capsys, "config/sudoku_grpo.py", f"--init_from={tmp_path}/run")


def pretended(monkeypatch, peak):
    """A compiler that finds so many bytes per device."""
    monkeypatch.setattr(plan, "topology", lambda text: types.SimpleNamespace(
        devices=jax.devices() * plan.parse_devices(text)[1]))  # fmt: skip
    monkeypatch.setattr(placement, "make", lambda sizes, devices: None)
    monkeypatch.setattr(plan, "compiled_bytes", lambda *_: ({"params": 10**9}, {"update": peak - 1e9}))


def test_a_plan_gives_bytes_and_whether_the_run_fits(monkeypatch, capsys):
    pretended(monkeypatch, 40e9)
    text = planned(capsys, "config/diffucoder_grpo.py")
    assert "compiled ahead of time" in text and "bytes per device: params 1.0 GB = 1.0 GB, of 63.7 GB" in text
    assert re.search(r"update +\+ temporaries +39\.0 GB = +40\.0 GB +fits", text)
    assert "it fits: 40.0 GB of 63.7 GB" in text
    pretended(monkeypatch, 70e9)  # for which it is enough to have the rest of the GPU
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in planned(capsys, "config/diffucoder_grpo.py").splitlines()[-1]


def test_a_plan_names_the_keys_that_lower_the_stage_that_does_not_fit(monkeypatch, capsys):
    pretended(monkeypatch, 70e9)
    text = planned(capsys, "config/llada_gsm8k_grpo.py", devices="8x4090").splitlines()
    assert re.search(r"update .* 69.0 GB = +70.0 GB  does not fit; what helps: more gradient_acc", text[-2])
    assert text[-1] == "it does not fit: 70.0 GB of 18.0 GB"


ROWS = dict(TUNING, max_prompt_len=16, max_new_tokens=48, kl_beta=0.1, gradient_accumulation_steps=4)
DEEP = dict(vocab_size=1000, n_layer=9, n_head=8, d_model=256, mask_id=999, eos_id=0, remat=True)


@pytest.mark.slow
@pytest.mark.parametrize("keys, changes", [
    (ROWS, dict(dtype="bfloat16")), (ROWS | dict(**{"lora.rank": 8}), {}),
    (dict(batch_size=16, max_prompt_len=16, max_new_tokens=48, ema_decay=0.99, gradient_accumulation_steps=8), {})
])  # fmt: skip
def test_the_estimate_is_at_most_what_xla_finds_and_at_least_a_fifth_of_it(keys, changes):
    cfg = shared.run(**keys, model=shared.shape(**DEEP | changes))
    held, temporaries = plan.compiled_bytes(cfg, placement.make(None, jax.devices()[:1]))
    estimate, found = sum(memory.estimate_bytes(cfg, 1).values()), sum(held.values()) + max(temporaries.values())
    print(f"estimate / compiled: {estimate / found:.3f}")
    assert 1 / 5 < estimate / found < 1


@pytest.mark.slow
def test_on_a_cpu_activations_take_32_bits_also_of_a_model_in_16():
    rows, shape = ROWS | dict(gradient_accumulation_steps=1), DEEP | dict(remat=False, n_layer=4)
    in_32, in_16 = (shared.run(**rows, model=shared.shape(**shape, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    devices = placement.make(None, jax.devices()[:1])
    found_32, found_16 = (plan.compiled_bytes(cfg, devices)[1]["update"] for cfg in (in_32, in_16))
    assert found_16 > 0.9 * found_32
    activations = memory.estimate_bytes(in_16)["activations"]
    print(f"estimate / compiled: {activations / found_16:.3f}")
    assert 0.5 < activations / found_16 < 1
    assert memory.estimate_bytes(in_16, 1)["activations"] == activations / 2  # of another device, which a plan is for


@pytest.mark.slow
@pytest.mark.parametrize("stage, key, value", [
    ("update", "gradient_accumulation_steps", 8), ("update", "remat", True),
    ("scoring", "gradient_accumulation_steps", 8), ("rollout", "rollout_chunk", 8)])  # fmt: skip
def test_a_key_that_is_named_as_helping_lowers_its_stage(stage, key, value):
    cfg = shared.run(**ROWS, model=shared.shape(**DEEP | dict(remat=False)))
    assert key in memory.what_helps(cfg, stage)
    devices = placement.make(None, jax.devices()[:1])
    before, after = (plan.compiled_bytes(one, devices)[1][stage] for one in (cfg, config.changed(cfg, {key: value})))
    assert after < before


@pytest.mark.slow
@pytest.mark.skipif(plan.topology("1xH100") is None, reason="needs the compiler of a GPU, and cuDNN")
def test_a_plan_for_a_gpu_has_its_attention_without_scores():
    cfg = shared.run(**ROWS, model=shared.shape(**DEEP | dict(dtype="bfloat16")))
    devices = placement.make(None, plan.topology("1xH100").devices)
    with plan.traced_for_gpu():
        held, temporaries = plan.compiled_bytes(cfg, devices)
        lower, arguments = plan.programs(cfg)[0]["update"]
        where = placement.shardings(arguments, devices)
        given = jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), arguments, where)
        assert "fmhaScaleBiasSoftmaxBackward" in lower(*given).as_text()
    assert held and [*temporaries] == ["rollout", "scoring", "update"]
