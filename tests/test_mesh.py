"""system/placement.py: 8 devices compute what one computes."""
import dataclasses
import functools
import json
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared

if __name__ == "__main__":  # this file is also the program that they run, with more devices: see `elsewhere`
    import conftest  # noqa: F401

from shared import byte_model, elsewhere, refused, write_rows

import config
import data
import diffusion
import model
import rl
import sample
import train
from checkpoints import checkpoint, resume
from loop import runs, setup
from system import placement, sharding

SHAPE = model.ModelConfig(n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=64)
RUN = dict(max_prompt_len=3, max_new_tokens=4, max_iters=8, batch_size=8, eval_interval=4, eval_size=6,
           save_interval=4, log_interval=1, diffusion_steps=4, warmup_iters=2, lr_schedule="constant",
           **{"checkpoint.keep": 9})  # fmt: skip
GRPO = dict(objective="grpo", init_from="base", rewards=("r.py:letters",), group_size=4, batch_size=6, logp_views=2,
            logp_est="trace", ratio_level="token", adv_negative=1.0)  # fmt: skip
KINDS = {
    "pretrain": dict(rewards=("exact",), ema_decay=0.9, gradient_accumulation_steps=2, model=SHAPE),
    "remat": dict(rewards=("exact",), model=dataclasses.replace(SHAPE, n_layer=3, remat=True)),
    "judge": dict(objective="judge", init_from="base"),
    "grpo": GRPO | dict(kl_beta=0.1, **{"moving_reference.mode": "ema"}, updates_per_rollout=2, minibatch_size=12,
                        rollout_chunk=12),
    "offload": GRPO | dict(kl_beta=0.1, **{"memory.ref_offload": True}, logp_est="coupled", loss_type="grpo",
                           max_iters=4),
    "lora": GRPO | dict(kl_beta=0.1, **{"lora.rank": 2}),
    "causal": GRPO | dict(init_from="causal", order="left", logp_est="exact"),
    "judged": GRPO | dict(rewards=("judge", "r.py:letters"), judge_from="judge", max_iters=4),
}  # fmt: skip
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2)]
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with rows, a reward, and models to start from."""
    folder = tmp_path_factory.mktemp("place")
    write_rows(folder, order=np.random.default_rng(0).permutation(100).tolist())
    reward = "def letters(completions):\n    return [sum(map(ord, x)) % 7 / 7 for x in completions]"
    (folder / "r.py").write_text(reward)
    shape = dict(n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=64)
    byte_model(folder / "base", **shape)
    byte_model(folder / "causal", **shape, causal=True, shift=True, mask_id=data.Tokenizer.bytes().vocab_size)
    byte_model(folder / "judge", n_out=1, **shape)
    return folder


def run_of(place, kind, out, **changes):
    keys = RUN | KINDS[kind] | changes
    at = lambda name: f"{place}/{name}"
    keys |= {key: at(keys[key]) for key in ("init_from", "judge_from") if key in keys}
    keys["rewards"] = tuple(at(name) if "." in name else name for name in keys.get("rewards", ()))
    return shared.run(**keys, dataset=str(place), out_dir=at(out))


def left(out_dir):
    """Return the numbers in the log of a run, its samples, and the leaves of its last state."""
    rows = [json.loads(line) for line in open(f"{out_dir}/metrics.jsonl")]
    timed = lambda k: k == "time" or k.startswith("time/") or k == "step_time"
    numbers = {(r["step"], k): v for r in rows for k, v in r.items() if not timed(k) and isinstance(v, (int, float))}
    found = resume.open_state(checkpoint.find(out_dir))
    state = {k: np.asarray(leaf.read((slice(None),) * len(leaf.shape))) for k, leaf in found.items()}
    return numbers, [json.loads(line) for line in open(f"{out_dir}/samples.jsonl")], state


def assert_alike(one, many):
    numbers, texts, state = left(one)
    numbers2, texts2, state2 = left(many)
    assert numbers.keys() == numbers2.keys() and state.keys() == state2.keys()
    for k, v in numbers.items():
        assert abs(v - numbers2[k]) < 1e-4 * max(1, abs(v)), (k, v, numbers2[k])
    losses = [(v, numbers2[k]) for k, v in numbers.items() if k[1] in ("loss", "val/nelbo", "reward")]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-5, atol=1e-5)
    shown = "step", "prompt", "greedy", "sampled", "better", "worse"
    said = lambda rows: [[row.get(k) for k in shown] for row in rows]
    assert said(texts) == said(texts2)
    for k, x in state.items():
        np.testing.assert_allclose(x.astype(np.float64), state2[k].astype(np.float64), atol=1e-5, err_msg=k)


def test_every_matrix_is_split_and_an_axis_that_does_not_divide_its_side_moves_to_the_other():
    sizes = dict(data=1, fsdp=4, tensor=2)
    P = jax.sharding.PartitionSpec
    for name, sides, want in (
        ("q", (8, 6), P("fsdp", "tensor")), ("down", (6, 8), P("tensor", "fsdp")),
        ("embed", (10, 8), P("tensor", "fsdp")), ("embed", (11, 8), P(None, ("tensor", "fsdp"))),
        ("head", (8, 1), P(("fsdp", "tensor"), None)), ("q", (6, 8), P(None, ("fsdp", "tensor"))),
        ("q", (5, 7), P(None, None)), ("norm", (8,), P(None)), ("q_bias", (6,), P("tensor")),
        ("q_bias", (7,), P(None)), ("o_a", (6, 5), P("tensor", None)), ("o_b", (5, 8), P(None, "fsdp")),
        (None, (), P()),
    ):  # fmt: skip
        assert placement.spec(name, sides, sizes) == want, name
    table = model.shapes(SHAPE)
    split = {name for name in table["blocks"][0] if "norm" not in name} | {"embed", "head"}
    assert split <= placement.SIDES.keys()


def test_a_mesh_of_too_many_devices_is_refused():
    refused(r"mesh=\(2, 2, 2\) is of 8 devices, and there are 1: .* --mesh=1,1,1", sharding.use, (2, 2, 2))
    assert sharding.use(None).__class__.__name__ == "nullcontext" and sharding.round_up(5) == 5


def quick(place):
    return run_of(place, "pretrain", "quick", max_iters=2, eval_interval=2, model=dataclasses.replace(SHAPE, n_layer=1))


@SLOW
def test_a_mesh_of_2_x_2_x_2_gives_the_run_of_one_device_and_is_resumed_by_one(place):
    one = quick(place)
    train.train(one)
    elsewhere(8, __file__, "train", place, "quick2", "2,2,2", "quick")
    many = f"{place}/quick2"
    assert_alike(one.out_dir, many)
    more = dataclasses.replace(one, max_iters=3, resume=True)
    for out in (one.out_dir, many):
        train.train(dataclasses.replace(more, out_dir=out))
    assert_alike(one.out_dir, many)


@pytest.fixture(scope="module")
def alone(place):
    """Return a function alone(kind) -> the out_dir of its run on one device."""
    return functools.cache(lambda kind: train.train(cfg := run_of(place, kind, f"one_{kind}")) and cfg.out_dir)


@SLOW
@pytest.mark.parametrize("sizes", MESHES)
def test_every_objective_on_a_mesh_gives_the_run_of_one_device(place, alone, sizes):
    name = ",".join(map(str, sizes))
    kinds = KINDS if sizes == MESHES[-1] else ["grpo"]
    elsewhere(8, __file__, "train", place, name, name, *kinds)
    for kind in kinds:
        assert_alike(alone(kind), f"{place}/{name}_{kind}")


@SLOW
def test_a_resumed_run_is_equal_bit_for_bit_on_the_same_mesh_and_nearly_equal_on_another(place, alone):
    elsewhere(8, __file__, "train", place, "a", "1,8,1", "pretrain")
    elsewhere(8, __file__, "train", place, "b", "1,8,1", "pretrain", "max_iters=4")
    elsewhere(8, __file__, "train", place, "b", "1,8,1", "pretrain", "resume=True")
    whole, again = left(f"{place}/a_pretrain")[2], left(f"{place}/b_pretrain")[2]
    assert all(whole[k].tobytes() == again[k].tobytes() for k in whole)
    elsewhere(8, __file__, "train", place, "c", "8,1,1", "pretrain", "max_iters=4")
    elsewhere(8, __file__, "train", place, "c", "2,2,2", "pretrain", "resume=True")
    assert_alike(alone("pretrain"), f"{place}/c_pretrain")


BIG = model.ModelConfig(n_layer=2, n_head=8, n_kv_head=4, d_model=128, d_ff=256, vocab_size=512, mask_id=3)


def compiled(sizes):
    """Compile an update and a rollout for a mesh -> [(FLOPs per device, bytes of temporaries, HLO)]."""
    B, T, cfg = 16, 64, config.Config(batch_size=16, max_prompt_len=16, max_new_tokens=48, model=BIG)
    tx, _ = setup.optimizer(cfg)
    array = lambda dtype: jax.ShapeDtypeStruct((B, T), dtype)
    with sharding.use(sizes):
        params = sharding.shard(model.init(jax.random.key(0), BIG))
        opt = jax.jit(lambda params: sharding.shard(tx.init(params)))(params)
        copies = [jax.ShapeDtypeStruct((B, 1, T), dtype) for dtype in (jnp.int32, jnp.float32)]
        batch = diffusion.NoisyBatch(array(jnp.int32), *copies, array(bool))
        loss = lambda params, batch: diffusion.loss(params, batch, BIG, 16)
        update = rl.make_update(loss, tx, cfg).lower(params, opt, None, 0, batch).compile()
        keys, plan = sample.row_keys(jax.random.key(0), B), sample.Plan(steps=4, block_len=16, temperature=1.0)
        fill = sample.generate.lower(params, keys, array(jnp.int32), BIG, plan, array(bool), 2).compile()
    return [(x.cost_analysis()["flops"], x.memory_analysis().temp_size_in_bytes, x.as_text()) for x in (update, fill)]


@SLOW
def test_nothing_is_computed_twice_weights_are_gathered_by_layer_and_logits_never(place):
    one = compiled(None)
    for sizes in MESHES:
        many = json.loads(elsewhere(8, __file__, "compile", ",".join(map(str, sizes))))
        assert many[0][1] < one[0][1] / 2 and many[1][1] < one[1][1], sizes  # bytes of a device
        for (flops, *_), (flops8, _, text) in zip(one, many, strict=True):
            assert 0.95 * flops < 8 * flops8 < 1.05 * flops, sizes
            gathered = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather", text)
            gathered = [list(map(int, dims.split(","))) for dims in gathered]
            weights = 2 * BIG.n_layer * 7
            assert sum(np.prod(dims) >= 32 * 128 and dims[0] == 1 for dims in gathered) <= 2 * weights
            assert not any(dims[0] == BIG.n_layer and len(dims) == 3 for dims in gathered)  # of one layer at a time
        update = re.findall(r"= f32\[([\d,]+)\]\S* all-gather", many[0][2])
        assert not [dims for dims in update if dims.endswith((",512", ",256")) and dims not in ("128,512", "128,256")
                    and not dims.startswith("1,")]  # fmt: skip


def main(what, *arguments):
    if what == "compile":
        return print(json.dumps(compiled(tuple(map(int, arguments[0].split(","))))))
    place, out, sizes, *kinds = arguments
    changes = dict(pair.split("=") for pair in kinds if "=" in pair)
    for kind in kinds:
        if "=" not in kind:
            cfg = quick(place) if kind == "quick" else run_of(place, kind, f"{out}_{kind}")
            cfg = config.override(cfg, {"mesh": sizes} | changes)
            train.train(dataclasses.replace(cfg, out_dir=f"{place}/{out}" if kind == "quick" else cfg.out_dir))


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", os.path.join(runs.cache_folder(), "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    main(*sys.argv[1:])
