"""loop/memory.py and cost.py, tools/plan.py: estimates against XLA's own account, and plans for other devices."""
import dataclasses
import math
import re
from typing import NamedTuple

import jax
import pytest
import shared
from shared import byte_model

import config
import model
from loop import cost, fit, memory, start
from system import placement
from tools import plan
from variants import blocks

SMALL = config.Config(batch_size=16, max_prompt_len=16, max_new_tokens=48,
                      model=model.ModelConfig(n_layer=4, d_model=64, mask_id=258))  # fmt: skip
TUNING = dict(objective="grpo", init_from="x", rewards=("exact",), batch_size=8, group_size=4,
              logp_est="trace", ratio_level="token", adv_negative=1.0)  # fmt: skip
BIG = model.ModelConfig(vocab_size=126464, n_layer=32, n_head=32, d_model=4096, d_ff=12288, mask_id=126336)


def shapes_of(cfg):
    return jax.eval_shape(lambda: model.init(jax.random.key(0), cfg.model))


def array(cfg, kind):
    return jax.ShapeDtypeStruct((cfg.batch_size * (cfg.group_size if cfg.objective == "grpo" else 1), 64), kind)


def test_a_training_step_takes_three_forward_passes_of_two_flops_per_weight_and_token():
    flops = cost.estimate_flops(dataclasses.replace(SMALL, max_prompt_len=0, max_new_tokens=64))
    L, D, F, T, V = 4, 64, SMALL.model.ff, 64, 259
    assert flops["update"] == 3 * 16 * (2 * T * (L * (4 * D * D + 3 * D * F) + D * V) + 4 * L * T * T * D)


def test_a_causal_rollout_costs_one_pass_and_a_denoisers_one_per_step_of_which_a_group_shares_the_first():
    deep = dataclasses.replace(SMALL.model, n_layer=model.UNROLLED + 1)
    cfg = shared.changed(SMALL, **TUNING, diffusion_steps=8, model=deep)
    causal = dataclasses.replace(cfg, model=dataclasses.replace(deep, causal=True, shift=True))
    flops, causal_flops = cost.estimate_flops(cfg)["rollout"], cost.estimate_flops(causal)["rollout"]
    assert flops == (7 + 1 / cfg.group_size) * causal_flops > 0


def test_a_block_cache_costs_memory_and_saves_flops_a_dual_one_most():
    cfg = shared.changed(SMALL, **TUNING, diffusion_steps=8, block_len=SMALL.max_new_tokens // 4)
    runs = [dataclasses.replace(cfg, cache=cache) for cache in ("none", "prefix", "dual")]
    none, prefix, dual = (cost.estimate_flops(run)["rollout"] for run in runs)
    assert none > prefix > dual > none / 3
    none, prefix, dual = (memory.estimate_bytes(run)["rollout"] for run in runs)
    assert dual == prefix > none


# XLA counts the body of a loop once, so the model has few blocks
def counted(f, *arguments):
    return jax.jit(f).lower(*arguments).compile().cost_analysis()["flops"]


# XLA counts the body of a loop once, so the model has few blocks; norms, softmax and rotary count as nothing
@pytest.mark.parametrize("n_layer", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_estimated_flops_of_a_forward_pass_are_those_that_xla_counts(n_layer):
    cfg = shared.changed(SMALL, **TUNING, kl_beta=0.1, model=dataclasses.replace(SMALL.model, n_layer=n_layer))
    passes = lambda params, z: model.logits(params, z, cfg.model, start=cfg.max_prompt_len)
    estimate = cost.estimate_flops(cfg)["scoring"] / config.n_views(cfg)
    assert 0.9 < estimate / counted(passes, shapes_of(cfg), array(cfg, "int32")) < 1.01


@pytest.mark.parametrize("shift", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_estimated_flops_of_noisy_copies_and_their_text_are_those_that_xla_counts(shift):
    shape = shared.changed(SMALL.model, n_layer=2, **{"blocks.block": 4}, shift=shift)
    cfg = shared.changed(SMALL, **TUNING, kl_beta=0.1, logp_views=4, model=shape)
    x = array(cfg, "int32")
    z = jax.ShapeDtypeStruct((len(x), 4, 64), "int32")
    read = lambda params, x, z: blocks.hidden(params, x, z, cfg.model, start=cfg.max_prompt_len)
    passes = lambda params, x, z: model.readout(params, read(params, x, z), cfg.model)
    assert 0.9 < cost.estimate_flops(cfg)["scoring"] / counted(passes, shapes_of(cfg), x, z) < 1.01


@pytest.mark.parametrize("changes, part, more", [
    (dict(kl_beta=0.1), "reference", True), (dict(kl_beta=0.1, **{"memory.ref_offload": True}), "reference", False),
    (dict(ema_decay=0.9), "average", True), (dict(logp_chunk=8), "activations", False),
    (dict(gradient_accumulation_steps=2), "activations", False), (dict(rollout_chunk=8), "rollout", False),
    (dict(**{"lora.rank": 4}), "optimizer", False), (dict(**{"lora.rank": 4}), "gradients", False),
    (dict(**{"lora.rank": 4}), "params", True),
])  # fmt: skip
def test_the_estimate_knows_what_a_key_costs_or_saves(changes, part, more):
    base = memory.estimate_bytes(shared.changed(SMALL, **TUNING))[part]
    now = memory.estimate_bytes(shared.changed(SMALL, **TUNING, **changes))[part]
    assert now > base if more else now < base or now == base == 0


@pytest.mark.parametrize("changes", [{}, TUNING, TUNING | dict(gradient_accumulation_steps=2, ema_decay=0.9),
                                     TUNING | dict(diffusion_steps=8, cache="dual", block_len=12, kl_beta=0.1)])
def test_no_estimate_is_made_where_the_bound_is_small_and_then_it_would_be_small_too(changes):
    """The estimate is right to a factor of 2, so what it says has to be below half of the bound."""
    cfg, seen = dataclasses.replace(SMALL, **changes), set()
    for size in (1, 4, 16, 64):
        for shape in (dict(n_layer=size), dict(d_model=64 * size, n_layer=1), dict(vocab_size=259 * size)):
            bigger = dataclasses.replace(cfg, batch_size=8 * size, model=dataclasses.replace(cfg.model, **shape))
            seen.add(start.surely_fits(bigger))
            assert memory.estimate_bytes(bigger, 1)["peak"] < 5e8 or not start.surely_fits(bigger), (size, shape)
    assert seen == {True, False}


def test_a_run_that_does_not_fit_names_the_keys_to_change():
    cfg = shared.changed(SMALL, **TUNING)
    peak = memory.estimate_bytes(cfg)["peak"]
    assert len(fit.describe(cfg, 2 * peak)) == 1
    line, warning = fit.describe(cfg, peak // 2)
    assert line.startswith("memory: params ") and "per step (rollout " in line
    changes = dict(re.findall(r"--(\w+)=(\w+)", warning))
    fitting = config.override(cfg, changes)
    assert changes and memory.estimate_bytes(fitting)["peak"] <= peak // 2


def test_a_model_that_cannot_fit_is_reported_without_being_allocated():
    lines = fit.describe(shared.changed(SMALL, **TUNING, kl_beta=0.04, model=BIG), 80 * 10**9)
    assert "still too much: it needs a smaller model or a larger device" in lines[1]
    assert "params 32.1 GB" in lines[0] and "--memory.ref_offload=True" in lines[1]


def test_devices_are_named_by_their_number_or_by_the_shape_of_a_slice():
    for text, expected in {
        "1xA100-40": ("A100-40", 1), "8xH100": ("H100", 8), "64xH200": ("H200", 64), "8xB200": ("B200", 8),
        "v5p:4x4x4": ("v5p", 64), "v5e:2x4": ("v5e", 8), "1xRTX4090": ("4090", 1),
    }.items():
        assert plan.parse_devices(text) == expected
    for text in ("H100", "8xH99", "0xH100", "12xH100", "8xv5e", "H100:2x4", "v5e:", "v5e:2xx4", ""):
        with pytest.raises(ValueError, match=f"--plan={text}: expected .* as in 8xH100, .*; known are A100-40, .*v6e"):
            plan.parse_devices(text)


def planned(capsys, *argv, devices="8xH100"):
    plan.plan_ahead(argv, devices)
    return capsys.readouterr().out


def test_a_recipe_can_be_planned_without_its_model_and_without_a_compiler_which_is_named(monkeypatch, capsys):
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    text = planned(capsys, "config/diffucoder_grpo.py")
    version = jax.__version__
    assert "estimated. To have it compiled" in text and f"jax-cuda12-plugin=={version} jax-cuda12-pjrt" in text
    assert "params 5.7 GB + optimizer 7.6 GB" in text and "of 63.7 GB" in text  # an eighth each; three quarters
    assert "an iteration takes at least 18.8 s, at 989 TFLOP/s per device" in text
    assert "pip install libtpu" in planned(capsys, "config/llada_gsm8k_grpo.py", devices="v5p:2x2x1")


def test_a_run_that_starts_from_the_folder_of_another_can_be_planned(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    byte_model(tmp_path / "run/step-000003")
    assert "it compiled as for" in planned(capsys, "config/sudoku_grpo.py", f"--init_from={tmp_path}/run")


class Described(NamedTuple):
    devices: list


def pretended(monkeypatch, peak):
    """A compiler that finds peak(cfg) bytes per device -> the runs that it was asked for."""
    asked = []
    monkeypatch.setattr(plan, "topology", lambda text: Described(jax.devices() * plan.parse_devices(text)[1]))
    monkeypatch.setattr(placement, "make", lambda sizes, devices: None)

    def compiled_bytes(cfg, devices):
        asked.append(cfg)
        return {"params": 10**9}, {"update": peak(cfg) - 1e9}

    monkeypatch.setattr(plan, "compiled_bytes", compiled_bytes)
    return asked


def test_a_plan_gives_bytes_flops_and_whether_the_run_fits(monkeypatch, capsys):
    pretended(monkeypatch, lambda cfg: 40e9)
    text = planned(capsys, "config/diffucoder_grpo.py")
    assert "compiled ahead of time" in text and "bytes per device: params 1.0 GB = 1.0 GB, of 63.7 GB" in text
    assert re.search(r"update +\+ temporaries +39\.0 GB = +40\.0 GB +fits", text)
    assert "update 12.1 PFLOP" in text and "it fits: 40.0 GB of 63.7 GB" in text
    pretended(monkeypatch, lambda cfg: 70e9)  # for which it is enough to have the rest of the GPU
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in planned(capsys, "config/diffucoder_grpo.py").splitlines()[-1]


def test_a_run_that_does_not_fit_gets_keys_with_which_the_compiler_finds_that_it_does(monkeypatch, capsys):
    asked = pretended(monkeypatch, lambda cfg: 1.1 * memory.estimate_bytes(cfg, 1)["peak"])
    text = planned(capsys, "config/llada_gsm8k_grpo.py", devices="1xA100-40")
    assert "it fits: " in text and len(asked) == 1  # 29 GB of 31.7
    text = planned(capsys, "config/llada_gsm8k_grpo.py", "--logp_chunk=96", "--gradient_accumulation_steps=1",
                   devices="1xA100-40")  # fmt: skip
    flags = dict(re.findall(r"--(\w+)=(\S+)", text.splitlines()[-1].partition("it fits, with")[2].partition(":")[0]))
    assert flags and 2 <= len(asked) - 1 <= 4 and all(str(getattr(asked[-1], k)) == v for k, v in flags.items())
    assert memory.estimate_bytes(asked[-1], 1)["peak"] * 1.1 < 0.75 * 42.3e9
    text = planned(capsys, "config/diffucoder_grpo.py", devices="1xA100-40")
    assert "nothing that was tried fits: it needs more devices, larger ones, or a smaller model" in text


def test_a_program_that_a_compiler_refuses_for_lack_of_memory_does_not_fit(monkeypatch, capsys):
    asked = pretended(monkeypatch, lambda cfg: math.inf if len(asked) == 1 else 1e9)
    text = planned(capsys, "config/llada_gsm8k_grpo.py", devices="v5e:2x4")
    assert "too much" in text and "does not fit; next --" in text and "it fits, with --" in text.splitlines()[-1]


ROWS = dict(TUNING, max_prompt_len=16, max_new_tokens=48, kl_beta=0.1, gradient_accumulation_steps=4)
DEEP = dict(vocab_size=1000, n_layer=9, n_head=8, d_model=256, mask_id=999, eos_id=0, remat=True)


@pytest.mark.slow
@pytest.mark.parametrize("keys, changes", [
    (ROWS, dict(dtype="bfloat16")), (ROWS | dict(**{"lora.rank": 8}, logp_chunk=8), {}),
    (dict(batch_size=16, max_prompt_len=16, max_new_tokens=48, ema_decay=0.99, gradient_accumulation_steps=8), {})
])  # fmt: skip
def test_the_estimate_is_within_15_percent_of_what_xla_finds(keys, changes):
    cfg = shared.run(**keys, model=shared.shape(**DEEP | changes))
    held, temporaries = plan.compiled_bytes(cfg, placement.make(None, jax.devices()[:1]))
    estimate, found = memory.estimate_bytes(cfg, 1)["peak"], sum(held.values()) + max(temporaries.values())
    print(f"estimate / compiled: {estimate / found:.3f}")
    assert 0.85 < estimate / found < 1.15


@pytest.mark.slow
@pytest.mark.skipif(plan.topology("1xH100") is None, reason="needs the compiler of a GPU, and cuDNN")
def test_a_plan_for_a_gpu_has_its_attention_without_scores():
    cfg = shared.run(**ROWS, model=shared.shape(**DEEP | dict(dtype="bfloat16")))
    devices = placement.make(None, plan.topology("1xH100").devices)
    with plan.traced_for("1xH100"):
        held, temporaries = plan.compiled_bytes(cfg, devices)
        lower, arguments = plan.programs(cfg)[0]["update"]
        assert "fmhaScaleBiasSoftmaxBackward" in lower(*arguments).as_text()
        estimate = memory.estimate_bytes(cfg, 1)["peak"]
    assert [*temporaries] == ["rollout", "scoring", "update"]
    assert 0.7 < estimate / (sum(held.values()) + max(temporaries.values())) < 1.3
