"""
Plan a run for devices that are not here:  python train.py config/llada_gsm8k_grpo.py --plan=8xH100

Their own compiler, where it is installed, compiles the run, and XLA says how much memory it takes.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python train.py config/NAME.py --plan=8xH100")


import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

import config
import data
import model
import rl
import sample
from checkpoints import checkpoint, huggingface
from config import Config
from loop import memory, setup
from system import placement, terminal
from tools import flags


class Device(NamedTuple):
    """A kind of GPU."""

    memory: float  # bytes
    bandwidth: float  # bytes per second between the device and its memory
    chip: tuple  # for the compiler: capability, cores, GHz, bytes of shared memory, of cache


HOST = 8  # devices per machine, at most
# NVIDIA's data sheets of the SXM boards (A100, H100, H200, B200); data sheets and architecture papers of the others
# (GeForce: at the boost clock).
AMPERE = 8, 0, 108, 1.41, 167936, 40 << 20
HOPPER = 9, 0, 132, 1.98, 233472, 50 << 20
DEVICES = {
    "A100-40": Device(42.3e9, 1.555e12, AMPERE),
    "A100-80": Device(85.0e9, 2.039e12, AMPERE),
    "H100": Device(84978434048, 3.352e12, HOPPER),
    "H200": Device(150.7e9, 4.8e12, HOPPER),
    "B200": Device(191.5e9, 7.7e12, (10, 0, 148, 1.965, 233472, 126 << 20)),
    "V100": Device(32e9, 900e9, (7, 0, 80, 1.53, 98304, 6 << 20)),
    "4060": Device(8e9, 272e9, (8, 9, 24, 2.46, 102400, 24 << 20)),
    "T4": Device(16e9, 320e9, (7, 5, 40, 1.59, 65536, 4 << 20)),
    "A10": Device(24e9, 600e9, (8, 6, 72, 1.695, 102400, 6 << 20)),
    "L4": Device(24e9, 300e9, (8, 9, 58, 2.04, 102400, 48 << 20)),
    "3090": Device(24e9, 936e9, (8, 6, 82, 1.695, 102400, 6 << 20)),
    "4090": Device(24e9, 1008e9, (8, 9, 128, 2.52, 102400, 72 << 20)),
    "5090": Device(32e9, 1792e9, (12, 0, 170, 2.407, 102400, 96 << 20)),
}


def parse_devices(text: str) -> tuple[str, int]:
    """Parse 8xH100 or 1xRTX4090 into the name of a device and how many there are."""
    number, _, name = text.partition("x")
    name = name.removeprefix("RTX")
    if name not in DEVICES or not re.fullmatch(r"\d+", number) or not 0 < int(number) <= HOST:
        raise ValueError(f"--plan={text}: expected 1 to {HOST} GPUs of one machine, as in 8xH100; known are "
                         f"{', '.join(DEVICES)} (TPUs are gone: docs/tried.md)")  # fmt: skip
    return name, int(number)


def traced_for_gpu() -> contextlib.AbstractContextManager:
    """Trace functions as for GPUs while the context lasts."""
    device = jax.sharding.AbstractDevice("gpu", None, "gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def topology(text):
    """Describe these devices to JAX, whose compiler then needs no real ones. None: their compiler is not installed."""
    from jax.experimental import topologies

    name, count = parse_devices(text)
    device = DEVICES[name]
    plugins = [importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)]
    if not (any(plugins) and importlib.util.find_spec("nvidia")):
        return None
    major, minor, cores, clock, shared, cache = device.chip
    known = {
        (7, 5): 1024,
        (8, 6): 1536,
        (8, 9): 1536,
        (12, 0): 1536,
    }
    threads = known.get((major, minor), 2048)
    target = f"""gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
        shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared - 1024}
        threads_per_core_limit: {threads} core_count: {cores}
        fpus_per_core: {64 if (major, minor) <= (8, 0) else 128} block_dim_limit_x: 2147483647
        block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {device.bandwidth:.0f}
        l2_cache_size: {cache} clock_rate_ghz: {clock} device_memory_size: {device.memory:.0f}
        cuda_compute_capability {{ major: {major} minor: {minor} }} registers_per_core_limit: 65536
        registers_per_block_limit: 65536 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
        device_description_str: "NVIDIA {name}" """
    return topologies.get_topology_desc(name.lower(), platform="cuda", target_config=target, topology=f"1x1x{count}")


def abstract_run(cfg):
    """Describe a run by shapes alone -> its update, its State, the base of LoRA, and the State as a Task sees it."""
    tx, width = setup.optimizer(cfg)[0], 1 if cfg.objective == "judge" else None
    loss = rl.denoising_loss(cfg)
    if cfg.objective == "grpo":
        loss = functools.partial(rl.policy_loss, cfg=cfg)
    if cfg.objective == "judge":
        from variants import judge  # other runs have none

        loss = functools.partial(judge.loss, cfg=cfg.model)

    def make(key):
        params = model.init(key, cfg.model, width)
        if config.has_frozen_base(cfg):
            params = model.cast(params, cfg.model.dtype)
        params, base = rl.split(params, key, cfg)
        if pack := config.pack_of(cfg):
            layers = [
                {name: pack(name, x.shape, None, cfg.model.dtype) or x for name, x in layer.items()}
                for layer in base["blocks"]
            ]
            base = base | {"blocks": layers}
        state = setup.new_state(params, cfg, tx)._replace(step=jnp.int32(0))
        return state, base, rl.merged(state, base, cfg)

    state, base, merged = jax.eval_shape(make, jax.random.key(0))
    return rl.make_update(loss, tx, cfg), state._replace(step=0), base, merged


def programs(cfg):
    """Return {stage: (lower, arguments)} of an iteration, and what stays on the devices {part: tree}, all as shapes.

    lower(*arguments) gives the program that XLA compiles.
    """
    update, state, base, merged = abstract_run(cfg)
    held = {"params": base, "adapters": state.params} if base else {"params": state.params}
    held |= {"moments": state.opt_state, "average": state.average}
    stages, batches = {}, [abstract_batch(cfg)]
    if cfg.objective == "grpo":
        held["reference"] = None if base or memory.Keys.of(cfg).ref_offload else state.reference
        batches = abstract_minibatches(cfg, merged)
        stages["rollout"] = abstract_rollout(cfg, merged.params)
        if cfg.kl_beta or config.has_ratios(cfg):
            scored = batches[-1].rollout, batches[-1].views
            stages["scoring"] = functools.partial(rl.logp_of.lower, cfg=cfg), (merged.params, *scored)
    step = jax.ShapeDtypeStruct((), "int32")
    stages["update"] = update.lower, (*state[1:4], step, batches[-1], base)
    return stages, held | {"batch": batches}


def abstract_text(cfg, rows, **dtypes):
    """Return {name: shape} of arrays (rows, T) with one entry per token. dtypes: name=dtype for each."""
    shape = rows, cfg.max_prompt_len + cfg.max_new_tokens + (cfg.objective == "judge")  # a judge adds an end of text
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}


def abstract_batch(cfg):
    """Return the batch of a step of pretraining or judge, as shapes."""
    if cfg.objective == "judge":
        pairs = {"better": "int32", "better_valid": bool, "worse": "int32", "worse_valid": bool}
        return abstract_text(cfg, cfg.batch_size, **pairs)
    rows = cfg.batch_size // (config.copies(cfg) if cfg.objective == "pretrain" else 1)
    text = data.Batch(**abstract_text(cfg, rows, tokens="int32", maskable=bool, valid=bool))
    return jax.eval_shape(rl.noise(cfg), jax.random.key(0), text)


def abstract_minibatches(cfg, state):
    """Return the minibatches of an iteration of grpo, as shapes."""
    dtypes = {
        "tokens": "int32",
        "valid": bool,
        "completion": bool,
        "counts": bool,
        "step": "int32",
        "logp": "float32",
    }
    M, key = config.n_update(cfg), jax.random.key(0)
    number, amount, truth = (jax.ShapeDtypeStruct((M,), dtype) for dtype in ("int32", "float32", bool))
    rollout = rl.Rollout(**abstract_text(cfg, M, **dtypes), passes=number, number=number)
    extra = {name: truth for name, term in rl.terms(cfg).items() if term.of_completions}
    chosen = rl.Chosen(rollout, amount, extra)
    return jax.eval_shape(functools.partial(rl.minibatches, cfg=cfg), state, (key, key), chosen)


def abstract_rollout(cfg, params):
    """Return the stage (lower, arguments) that fills a chunk of completions: see `programs`."""
    parts = math.prod(cfg.mesh[:2]) if cfg.mesh else 1
    rows = math.ceil(config.rollout_rows(cfg) / parts) * parts
    group = math.gcd(rows, cfg.group_size) if cfg.model.causal else 1
    how = sample.plan(cfg, cfg.temperature)
    keys = jax.eval_shape(lambda: sample.row_keys(jax.random.key(0), rows))

    def lower(params, keys, text):
        return sample.generate.lower(params, keys, text["z"], cfg.model, how, text["valid"], group)

    return lower, (params, keys, abstract_text(cfg, rows, z="int32", valid=bool))


def compiled_bytes(cfg, devices):
    """Compile an iteration for a jax.sharding.Mesh of described devices -> bytes per device: of what stays
    {part: bytes}, and of the temporaries of each program {stage: bytes}."""

    def place(tree):
        """Give every shape its sharding."""
        where = placement.shardings(tree, devices)
        return jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), tree, where)

    def size(tree):
        """Count the bytes per device."""
        total = 0
        for x in jax.tree.leaves(place(tree)):
            shape = x.sharding.shard_shape(x.shape)
            total += math.prod(shape) * x.dtype.itemsize
        return total

    stages, held = programs(cfg)
    temporaries = {}
    with jax.sharding.use_abstract_mesh(devices.abstract_mesh) if devices.size > 1 else contextlib.nullcontext():
        for stage, (lower, arguments) in stages.items():
            used = lower(*place(arguments)).compile().memory_analysis()
            temporaries[stage] = used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
        return {part: size(tree) for part, tree in held.items() if tree}, temporaries


# ---- the plan --------------------------------------------------------------------------------------------------------


def usable(device):
    """Return the bytes of a device that a run gets: JAX takes three quarters of a GPU's, unless told otherwise."""
    return device.memory * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))


def plan(cfg: Config, text: str) -> Iterator[str]:
    """Yield the lines of --plan=text for a Config with its model."""
    (name, count), described = parse_devices(text), topology(text)
    device, version = DEVICES[name], jax.__version__
    head = f"{text}, data x fsdp x tensor = {' x '.join(map(str, cfg.mesh or (1, count, 1)))}"
    if described:
        yield f"{head}: compiled ahead of time, by the compiler for it in jax {version}"
        yield from compiled_plan(cfg, count, device, described.devices)
        return
    yield (f"{head}: estimated. To have it compiled as for the device itself: pip install --no-deps "
           f"jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} nvidia-cudnn-cu12")
    estimate = memory.listed(memory.estimate_bytes(cfg, count))
    yield memory.refusal(cfg, usable(device), count) or f"it may fit: {estimate}, of {memory.amount(usable(device))}"


def compiled_plan(cfg, count, device, devices):
    """Compile a run; yield what each stage takes, whether it fits and, if not, what helps."""
    limit, sizes = usable(device), cfg.mesh or (1, count, 1)
    held, temporaries = compiled_bytes(dataclasses.replace(cfg, mesh=sizes), placement.make(sizes, devices))
    yield f"bytes per device: {memory.listed(held)}, of {memory.amount(limit)}"
    stay = sum(held.values())
    for stage, size in temporaries.items():
        fits = "fits" if stay + size <= limit else f"does not fit; {memory.what_helps(cfg, stage)}"
        yield f"    {stage:9} + temporaries {memory.amount(size):>9} = {memory.amount(stay + size):>9}  {fits}"
    peak = stay + max(temporaries.values())
    if limit < peak <= 0.95 * device.memory:
        yield f"it fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in the environment: {memory.amount(peak)}"
    else:
        yield f"it {'fits' if peak <= limit else 'does not fit'}: {memory.amount(peak)} of {memory.amount(limit)}"


def main() -> None:
    """Read the command line of train.py, and print the plan."""
    with terminal.errors_explained():
        devices, others = flags.value_and_others("--plan")
        plan_ahead(others, devices)


def plan_ahead(argv: list[str], devices: str) -> None:
    """Print what a run needs on devices that are not here, before anything is downloaded, made or trained. devices: one
    or several, as in 1x4090,8xH100."""
    for text in devices.split(","):
        parse_devices(text)
    jax.config.update("jax_platforms", "cpu")
    cfg = config.load(argv, for_plan=True)
    first = config.base_runs(cfg)[-1]
    folder = data.prepare(first.init_from or "")
    folder = checkpoint.find(folder) if checkpoint.steps(folder) else folder
    if os.path.exists(os.path.join(folder, "config.json")):
        shape = huggingface.read_config(folder, checkpoint.family_to_open(folder, checkpoint.Keys.of(first).open_as))
    elif not first.init_from:
        shape = setup.with_ids(first.model, data.tokenizer(first.dataset))
    elif first.model.mask_id is not None:  # the recipe states the shape
        shape = first.model
    else:
        raise ValueError(f"--plan needs the shape of the model in {first.init_from}, which is not there")
    with traced_for_gpu():
        for text in devices.split(","):
            for line in plan(config.with_model(cfg, shape), text):
                print(line, flush=True)
