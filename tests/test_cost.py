"""machine/cost.py: what is counted is what a compiler finds, and a plan is made of devices that are not here."""
import contextlib
import dataclasses
import functools
import importlib.util
import re
from typing import NamedTuple

import jax
import pytest

import config
import diffusion
import model
import sample
import train
from machine import cost, mesh
from machine.start import plan_ahead

SMALL = config.Config(batch_size=16, max_prompt_len=16, max_new_tokens=48,
                      model=model.ModelConfig(n_layer=4, d_model=64, mask_id=258))  # fmt: skip
TUNING = dict(objective="grpo", init_from="x", rewards=("exact",), batch_size=8, group_size=4)
BIG = model.ModelConfig(vocab_size=126464, n_layer=32, n_head=32, d_model=4096, d_ff=12288, mask_id=126336)


def shapes_of(cfg):
    return jax.eval_shape(lambda: model.init(jax.random.key(0), cfg.model))


def array(cfg, kind):
    return jax.ShapeDtypeStruct((cfg.batch_size * (cfg.group_size if cfg.objective == "grpo" else 1), 64), kind)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {}, dict(model=dataclasses.replace(SMALL.model, n_layer=12, dtype="bfloat16")),
    dict(gradient_accumulation_steps=2, model=dataclasses.replace(SMALL.model, vocab_size=4000))])  # fmt: skip
def test_memory_is_estimated_to_a_factor_of_one_and_a_half_of_what_xla_allocates(changes):
    cfg = dataclasses.replace(SMALL, **changes)
    params, (tx, _) = shapes_of(cfg), train.optimizer(cfg)
    batch = {"x": array(cfg, int), "z": array(cfg, int), "weight": array(cfg, float), "valid": None}
    loss = functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)
    update = train.make_update(loss, tx, cfg)
    used = update.lower(params, jax.eval_shape(tx.init, params), None, 0, batch).compile().memory_analysis()
    used = used.argument_size_in_bytes + used.temp_size_in_bytes
    estimate = cost.counted(cfg)[0]["peak"]
    print(f"estimate / real: {estimate / used:.2f}")
    assert 2 / 3 < estimate / used < 3 / 2


@pytest.mark.slow
def test_the_rollouts_memory_is_estimated_to_a_factor_of_two():
    cfg = dataclasses.replace(SMALL, **TUNING)
    plan = sample.Plan(temperature=1.0, block_len=cfg.max_new_tokens)
    rollout = functools.partial(sample.generate.lower, cfg=cfg.model, plan=plan, group=cfg.group_size)
    used = rollout(shapes_of(cfg), jax.random.key(0), array(cfg, int)).compile().memory_analysis().temp_size_in_bytes
    estimate = cost.counted(cfg)[0]["rollout"]
    print(f"estimate / real: {estimate / used:.2f}")
    assert 0.5 < estimate / used < 2


def test_a_training_step_is_three_forward_passes_of_two_flops_a_weight_and_token():
    _, flops = cost.counted(dataclasses.replace(SMALL, max_prompt_len=0, max_new_tokens=64))
    L, D, F, T, V = 4, 64, SMALL.model.ff, 64, 259
    assert flops["update"] == 3 * 16 * (2 * T * (L * (4 * D * D + 3 * D * F) + D * V) + 4 * L * T * T * D)


def test_a_rollout_with_a_cache_costs_one_pass_and_one_without_as_many_as_it_has_steps_the_first_once_a_group():
    deep = dataclasses.replace(SMALL.model, n_layer=model.UNROLLED + 1)
    cfg = dataclasses.replace(SMALL, **TUNING, diffusion_steps=8, model=deep)
    causal = dataclasses.replace(cfg, model=dataclasses.replace(deep, causal=True, shift=True))
    assert cost.counted(cfg)[1]["rollout"] == (7 + 1 / cfg.group_size) * cost.counted(causal)[1]["rollout"] > 0


def test_a_cache_of_blocks_costs_memory_and_saves_operations_dual_most():
    cfg = dataclasses.replace(SMALL, **TUNING, diffusion_steps=8, block_len=SMALL.max_new_tokens // 4)
    none, prefix, dual = (cost.counted(dataclasses.replace(cfg, cache=cache)) for cache in ("none", "prefix", "dual"))
    assert none[1]["rollout"] > prefix[1]["rollout"] > dual[1]["rollout"] > none[1]["rollout"] / 3
    assert dual[0]["rollout"] == prefix[0]["rollout"] > none[0]["rollout"]


# of a deep model's loop XLA counts the body once
@pytest.mark.parametrize("n_layer", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_operations_of_a_forward_pass_are_those_that_xla_counts(n_layer):
    cfg = dataclasses.replace(SMALL, **TUNING, kl_beta=0.1, model=dataclasses.replace(SMALL.model, n_layer=n_layer))
    first, z = cfg.max_prompt_len, array(cfg, int)
    passes = jax.jit(lambda params, z: model.logits(params, z, cfg.model, start=first))
    counted = passes.lower(shapes_of(cfg), z).compile().cost_analysis()["flops"]
    estimate = cost.counted(cfg)[1]["scoring"] / config.n_views(cfg)
    print(f"estimate / XLA: {estimate / counted:.3f}")
    assert 0.9 < estimate / counted < 1.01  # norms, softmax and rotary count as nothing


@pytest.mark.parametrize("shift", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_operations_of_noisy_copies_beside_their_text_are_those_that_xla_counts(shift):
    shape = dataclasses.replace(SMALL.model, n_layer=2, block_causal=4, shift=shift)
    cfg = dataclasses.replace(SMALL, **TUNING, kl_beta=0.1, logp_est="trace", logp_views=4, model=shape)
    x = array(cfg, int)
    z = jax.ShapeDtypeStruct((4 * len(x), 64), int)
    read = lambda params, x, z: model.features(params, z, cfg.model, start=cfg.max_prompt_len, clean=x)
    passes = jax.jit(lambda params, x, z: model.readout(params, read(params, x, z), cfg.model))
    counted = passes.lower(shapes_of(cfg), x, z).compile().cost_analysis()["flops"]
    estimate = cost.counted(cfg)[1]["scoring"]
    print(f"estimate / XLA: {estimate / counted:.3f}")
    assert 0.9 < estimate / counted < 1.01


@pytest.mark.parametrize("changes, part, more", [
    (dict(kl_beta=0.1), "reference", True), (dict(kl_beta=0.1, ref_offload=True), "reference", False),
    (dict(ema_decay=0.9), "average", True), (dict(logp_chunk=8), "activations", False),
    (dict(gradient_accumulation_steps=2), "activations", False), (dict(rollout_chunk=8), "rollout", False),
    (dict(lora_rank=4), "optimizer", False), (dict(lora_rank=4), "gradients", False),
    (dict(lora_rank=4), "params", True),
])  # fmt: skip
def test_what_a_key_costs_or_saves_is_counted(changes, part, more):
    base = cost.counted(dataclasses.replace(SMALL, **TUNING))[0][part]
    now = cost.counted(dataclasses.replace(SMALL, **TUNING, **changes))[0][part]
    assert now > base if more else now < base or now == base == 0


def test_a_run_that_does_not_fit_is_told_which_keys_to_change():
    cfg = dataclasses.replace(SMALL, **TUNING)
    peak = cost.counted(cfg)[0]["peak"]
    assert len(cost.describe(cfg, 2 * peak)) == 1
    line, warning = cost.describe(cfg, peak // 2)
    assert line.startswith("memory: params ") and "a step (rollout " in line
    changes = dict(re.findall(r"--(\w+)=(\w+)", warning))
    fitting = config.override(cfg, changes)
    assert changes and cost.counted(fitting)[0]["peak"] <= peak // 2


def test_a_model_that_cannot_fit_is_said_so_and_never_allocated():
    lines = cost.describe(dataclasses.replace(SMALL, **TUNING, kl_beta=0.04, model=BIG), 80 * 10**9)
    assert "still too much: it needs a smaller model or a larger device" in lines[1]
    assert "params 32.1 GB" in lines[0] and "--ref_offload=True" in lines[1]


# ---- on devices that are not here ----


@pytest.mark.parametrize("text, expected", [
    ("1xA100-40", ("A100-40", 1)), ("8xH100", ("H100", 8)), ("64xH200", ("H200", 64)), ("8xB200", ("B200", 8)),
    ("v5p:4x4x4", ("v5p", 64)), ("v5e:2x4", ("v5e", 8))])  # fmt: skip
def test_devices_are_asked_for_by_their_number_or_by_the_shape_of_a_slice(text, expected):
    assert cost.machine(text) == expected


@pytest.mark.parametrize("text", ["H100", "8xH99", "0xH100", "12xH100", "8xv5e", "H100:2x4", "v5e:", "v5e:2xx4", ""])
def test_devices_that_do_not_exist_are_refused_with_those_that_do(text):
    with pytest.raises(ValueError, match=f"--plan={text}: expected .* as in 8xH100, .*; known are A100-40, .*v6e"):
        cost.machine(text)


# As XLA writes them: a loop of 12, in it one of unknown length; a start on a GPU names what goes in and what comes out.
HLO = """
%inner (p: f32[4]) -> f32[4] {
  %a = f32[2,4]{1,0} reduce-scatter(%p), channel_id=1, replica_groups=mesh['a'=2,'b'=8] {'b'}, to_apply=%add
}
%body.1_spmd (p: f32[4]) -> f32[4] {
  %g = (bf16[1,4]{1,0}, bf16[8,4]{1,0}) all-gather-start(%p), channel_id=2, replica_groups=[2,8]<=[16]
  %w = f32[4]{0} while(%g), condition=%c, body=%inner
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %r = f32[16]{0} all-reduce(%p), channel_id=3, replica_groups=[8,2]<=[2,8]T(1,0), to_apply=%add
  %w = f32[4]{0} while(%r), condition=%c, body=%body.1_spmd, backend_config={"known_trip_count":{"n":"12"}}
  %e = f32[16]{0} all-reduce(%p), channel_id=4, replica_groups={{0},{1}}, to_apply=%add
}
"""


def test_a_collective_counts_as_often_as_its_loops_run_at_the_rate_of_the_links_that_it_takes():
    found = cost.collectives(HLO, cost.DEVICES["H100"], cost.Program(None, (), {}, calls=3, loop=5))
    a_host, one_of_each_host = 7 / 8 / 450e9, 2 * 1 / 2 / 50e9
    assert found == {  # and a group of one device moves nothing
        ("reduce-scatter", "f32[2,4]"): (180, 256, pytest.approx(256 * a_host)),
        ("all-gather", "bf16[8,4]"): (36, 64, pytest.approx(64 * a_host)),
        ("all-reduce", "f32[16]"): (3, 64, pytest.approx(64 * one_of_each_host))}  # fmt: skip


def planned(capsys, *argv, devices="8xH100"):
    plan_ahead(argv, devices, train.outline)
    return capsys.readouterr().out


def test_a_recipe_can_be_planned_without_its_model_and_without_a_compiler_which_is_named(monkeypatch, capsys):
    monkeypatch.setattr(cost.importlib.util, "find_spec", lambda name: None)
    said = planned(capsys, "config/diffucoder_grpo.py")
    assert "counted. To have it compiled" in said and f"pip install jax-cuda12-plugin=={jax.__version__} " in said
    assert "params 5.7 GB + optimizer 7.6 GB" in said and "of 63.7 GB" in said  # an eighth each; three quarters
    assert re.search(r"least time of an iteration.*: [\d.]+ s\n    rollout .*\n    scoring .*\n    update ", said)
    assert "pip install libtpu" in planned(capsys, "config/llada_gsm8k_grpo.py", devices="v5p:2x2x1")


class Described(NamedTuple):
    devices: list


def pretended(monkeypatch, peak):
    """A compiler that finds peak(cfg) bytes a device -> the runs that it was asked for."""
    asked = []
    monkeypatch.setattr(cost, "topology", lambda text: Described(jax.devices() * cost.machine(text)[1]))
    monkeypatch.setattr(mesh, "make", lambda sizes, devices: None)

    def compiled(cfg, here, device, outline):
        asked.append(cfg)
        moved = {("all-gather", "bf16[8,4]"): (100, 10**9, 0.5)}
        return {"params": 10**9}, {"update": cost.Compiled(int(peak(cfg) - 1e9), moved)}

    monkeypatch.setattr(cost, "compiled", compiled)
    return asked


def test_a_plan_says_bytes_collectives_operations_and_the_least_time(monkeypatch, capsys):
    pretended(monkeypatch, lambda cfg: 40e9)
    said = planned(capsys, "config/diffucoder_grpo.py")
    assert "compiled ahead of time" in said and "bytes a device: params 1.0 GB = 1.0 GB, of 63.7 GB" in said
    assert re.search(r"update +\+ temporaries +39\.0 GB = +40\.0 GB +fits", said)
    assert "all-gather 100.0 GB; most of it all-gather bf16[8,4], 100 times 1.0 GB" in said
    assert re.search(r"update +50 s .*collectives 50\)", said) and "update 12.1 PFLOP" in said
    assert "it fits: 40.0 GB of 63.7 GB" in said


def test_a_run_that_does_not_fit_gets_the_flags_with_which_the_compiler_says_that_it_does(monkeypatch, capsys):
    asked = pretended(monkeypatch, lambda cfg: 1.1 * cost.counted(cfg, 1)[0]["peak"])
    said = planned(capsys, "config/llada_gsm8k_grpo.py", devices="1xA100-40")
    assert "it fits: " in said and len(asked) == 1  # 29 GB of 31.7
    said = planned(capsys, "config/llada_gsm8k_grpo.py", "--logp_chunk=96", "--gradient_accumulation_steps=1",
                   devices="1xA100-40")
    flags = dict(re.findall(r"--(\w+)=(\S+)", said.splitlines()[-1].partition("it fits, with")[2].partition(":")[0]))
    assert flags and 2 <= len(asked) - 1 <= 4 and all(str(getattr(asked[-1], k)) == v for k, v in flags.items())
    assert cost.counted(asked[-1], 1)[0]["peak"] * 1.1 < 0.75 * 42.3e9
    said = planned(capsys, "config/diffucoder_grpo.py", devices="1xA100-40")
    assert "nothing that was tried fits: it needs more devices, larger ones, or a smaller model" in said


def test_the_rest_of_a_gpu_is_asked_for_where_that_is_enough(monkeypatch, capsys):
    pretended(monkeypatch, lambda cfg: 70e9)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in planned(capsys, "config/diffucoder_grpo.py").splitlines()[-1]


ROWS = dict(TUNING, max_prompt_len=16, max_new_tokens=48, kl_beta=0.1, gradient_accumulation_steps=4)
DEEP = dict(vocab_size=1000, n_layer=9, n_head=8, d_model=256, mask_id=999, eos_id=0, remat=True)


@pytest.mark.slow
@pytest.mark.parametrize("keys, changes", [
    (ROWS, dict(dtype="bfloat16")), (ROWS, {}), (ROWS | dict(lora_rank=8, logp_chunk=8), {}),
    (dict(batch_size=16, max_prompt_len=16, max_new_tokens=48, ema_decay=0.99, gradient_accumulation_steps=8), {})])
def test_what_is_counted_is_what_a_compiler_finds_within_15_percent(keys, changes):
    cfg = config.Config(**keys, model=model.ModelConfig(**DEEP | changes))
    installed = cost.topology("1xH100")
    described = installed or Described(jax.devices()[:1])
    with cost.planned("1xH100") if installed else contextlib.nullcontext():
        held, out = cost.compiled(cfg, mesh.make(None, described.devices[:1]), cost.DEVICES["H100"], train.outline)
        counted = cost.counted(cfg, 1)[0]["peak"]
    found = sum(held.values()) + max(stage.temporaries for stage in out.values())
    print(f"counted / compiled: {counted / found:.3f}")
    assert 0.85 < counted / found < 1.15


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax_cuda12_plugin"), reason="needs the compiler of a GPU")
def test_a_plan_for_a_gpu_has_its_attention_without_scores(monkeypatch):
    kernels, collectives = [], cost.collectives
    monkeypatch.setattr(cost, "collectives", lambda text, *rest: (
        kernels.append({*re.findall('custom_call_target="(__cudnn[^"]+)"', text)}), collectives(text, *rest))[1])
    cfg = config.Config(**ROWS, model=model.ModelConfig(**DEEP | dict(dtype="bfloat16")))
    devices = cost.topology("1xH100").devices
    with cost.planned("1xH100"):
        _, out = cost.compiled(cfg, mesh.make(None, devices), cost.DEVICES["H100"], train.outline)
    once = "__cudnn$fmhaScaleBiasSoftmax"
    assert kernels == [{once}, {once}, {once, once + "Backward"}] and [*out] == ["rollout", "scoring", "update"]


def test_a_tpu_that_has_no_room_says_for_how_much():
    said = ("RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (64.00G) exceeds available HBM (15.75G). HLO module: jit__lambda.")
    assert cost.refused(said) == 64 * 2**30 and cost.refused("INTERNAL: another error") is None
