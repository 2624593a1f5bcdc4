"""cost.py: what is counted is what a compiler finds, and a plan is made of devices that are not here."""
import dataclasses
import functools
import re

import jax
import pytest

import config
import cost
import diffusion
import model
import sample
import train

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
    {}, dict(gradient_accumulation_steps=2, model=dataclasses.replace(SMALL.model, vocab_size=4000))])  # fmt: skip
def test_memory_is_estimated_to_a_factor_of_two_of_what_xla_allocates(changes):
    cfg = dataclasses.replace(SMALL, **changes)
    params, (tx, _) = shapes_of(cfg), train.optimizer(cfg)
    batch = {"x": array(cfg, int), "z": array(cfg, int), "weight": array(cfg, float), "valid": None}
    loss = functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)
    update = train.make_update(loss, tx, cfg)
    used = update.lower(params, jax.eval_shape(tx.init, params), None, 0, batch).compile().memory_analysis()
    used = used.argument_size_in_bytes + used.temp_size_in_bytes
    estimate = cost.counted(cfg)[0]["peak"]
    print(f"estimate / real: {estimate / used:.2f}")
    assert 0.5 < estimate / used < 2


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
