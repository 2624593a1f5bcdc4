"""
Estimate what a run needs, before anything is allocated:  python train.py config/llada_gsm8k_grpo.py --plan=8xH100

Every run first prints a quick estimate, which is computed from its config alone in milliseconds. A plan is for devices
that are not here: their own compiler, where it is installed, compiles the run, and XLA says how much memory it takes.
FLOPs are always estimated: XLA's cost_analysis() counts the body of a loop once, however often the loop runs.

Terms: a *row* is one text in a forward pass; a *noisy copy* is a text with masks; a *stage* is rollout, scoring (old
and reference log-probs) or update; a *micro-batch* is the part of a minibatch that takes one backward pass.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

import config
import diffusion
import model
import rl
import sample
from config import Config
from machine import kernels, lora, mesh
from model import ModelConfig

# ---- rows ------------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    scored: float  # rows in the forward passes of all updates of an iteration
    active: float  # rows whose activations the backward pass keeps at a time
    saved: float  # rows whose block inputs remat keeps
    recomputed: bool  # True if the backward pass computes the blocks again


def count_rows(cfg: Config) -> Rows:
    """Count the rows of an iteration's updates, on all devices."""
    copies, width = copies_per_text(cfg), rows_per_copy(cfg)
    if cfg.objective != "grpo":
        rows = width * cfg.batch_size * (2 if cfg.objective == "judge" else 1)
        micro = rows // cfg.gradient_accumulation_steps
        return Rows(rows, micro, micro, cfg.model.remat)
    micro = config.minibatch(cfg) // cfg.gradient_accumulation_steps * copies
    chunk = min(cfg.logp_chunk or micro, micro)
    scored = cfg.updates_per_rollout * config.n_update(cfg) * copies
    return Rows(width * scored, width * chunk, width * micro, cfg.model.remat or chunk < micro)


def copies_per_text(cfg):
    """Count the noisy copies of each text."""
    return config.n_views(cfg) if cfg.objective == "grpo" else 1 + cfg.paired


def copy_columns(cfg):
    """Count the columns computed per noisy copy of a block model, next to the clean text. 0: not a block model."""
    block = cfg.model.block_causal
    if not block or cfg.objective == "judge":
        return 0
    return cfg.max_new_tokens + min(block - 1 + cfg.model.shift, cfg.max_prompt_len)


def rows_per_copy(cfg):
    """Count the rows computed per noisy copy: for a block model its last columns and its share of the clean text."""
    columns = copy_columns(cfg)
    return columns / (cfg.max_prompt_len + cfg.max_new_tokens) + 1 / copies_per_text(cfg) if columns else 1


def mesh_parts(cfg, n_devices):
    """Return the numbers of parts into which the mesh splits rows, weights, and weights after gathering over fsdp."""
    data, fsdp, tensor = cfg.mesh or (1, n_devices or math.prod(mesh.shape().values()), 1)
    return data * fsdp, fsdp * tensor, tensor


# ---- bytes -----------------------------------------------------------------------------------------------------------


def n_params(cfg):
    """Count the parameters of the whole model."""
    table = model.shapes(cfg.model, 1 if cfg.objective == "judge" else None)
    return sum(map(math.prod, jax.tree.leaves(table, is_leaf=lambda shape: isinstance(shape, tuple))))


def bytes_per_number(m):
    """Return the bytes of one number in the model's dtype."""
    return 2 if m.dtype == "bfloat16" else 4


def estimate_bytes(cfg: Config, n_devices: int | None = None) -> dict[str, float]:
    """Estimate bytes per device by purpose, and their `peak`. n_devices None: the devices in use."""
    row_parts, weight_parts, tensor = mesh_parts(cfg, n_devices)
    weights = weight_bytes(cfg)
    here = n_devices is None and jax.default_backend() == "cpu"  # XLA's CPU keeps bfloat16 in float32
    wide = 4 if here else bytes_per_number(cfg.model)
    work = work_bytes(cfg, row_parts, tensor, wide)
    if weight_parts > 1:
        weights = {name: size // weight_parts for name, size in weights.items()}
        gathered = gathered_bytes(cfg) // tensor if weight_parts > tensor else 0
        work |= {name: work[name] + gathered for name in ("activations", "rollout")}
    update = weights["gradients"] + work["activations"] + work["logits"]
    resident = sum(weights.values()) - weights["gradients"]
    return weights | work | {"peak": resident + max(update, work["rollout"])}


def weight_bytes(cfg):
    """Estimate the bytes of the parameters and of every array of their shape, on all devices."""
    m, n, wide = cfg.model, n_params(cfg), bytes_per_number(cfg.model)
    trained, params = n, 4 * n + (2 * n if wide == 2 else 0)  # float32, and a copy cast to 16 bits
    if cfg.lora_rank:
        adapters = lora.adapter_shapes(m, cfg.lora_targets, cfg.lora_rank)
        trained = sum(map(math.prod, adapters.values())) + (m.d_model if cfg.objective == "judge" else 0)
        params = wide * n + 4 * trained
    has_reference = cfg.objective == "grpo" and cfg.kl_beta and not cfg.ref_offload and not cfg.lora_rank
    has_sum = cfg.gradient_accumulation_steps > 1 or cfg.logp_chunk  # the sum of the parts so far, and the next part
    return {
        "params": params,
        "optimizer": 8 * trained,
        "average": 0 if cfg.ema_decay is None else 4 * trained,
        "reference": (wide if cfg.ref_mode == "static" else 4) * n if has_reference else 0,
        "gradients": 4 * trained * (2 if has_sum else 1),
    }


def gathered_bytes(cfg):
    """Estimate the bytes of the gathered weights: the largest block or the head, and the one before it."""
    m = cfg.model
    Q, KV = m.n_head * m.head_dim, m.kv_heads * m.head_dim
    block = 2 * m.d_model * (Q + KV) + 3 * m.d_model * m.ff
    head = 0 if cfg.objective == "judge" else m.d_model * m.vocab_size
    return 2 * bytes_per_number(m) * max(block, head)


def work_bytes(cfg, row_parts, tensor, wide):
    """Estimate the bytes per device of what is computed: activations and logits of an update, and a rollout."""
    m, T, new, grpo = cfg.model, cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens, cfg.objective == "grpo"
    Q, KV = m.n_head * m.head_dim, m.kv_heads * m.head_dim
    rows = count_rows(cfg)
    active, saved = (math.ceil(n / row_parts) for n in (rows.active, rows.saved))
    # A layer keeps its norms, q, k, v before and after the rotation, the inside of the mlp, and scores in float32.
    scores = 0 if kernels.fused(m.dtype, m.head_dim, m.attn_cap) else 4 * 2 * m.n_head * (T + copy_columns(cfg))
    layer = T * (wide * (6 * m.d_model + 4 * Q + 4 * KV + 4 * m.ff) + scores) // tensor
    activations = active * m.n_layer * layer
    if m.remat:
        activations = saved * m.n_layer * T * wide * m.d_model + active * layer

    def logits(positions):
        """Return the bytes of one array of logits, of which diffusion.py makes a chunk at a time."""
        chunk = max(diffusion.LOGITS_BYTES // (4 * m.vocab_size * row_parts), 1)
        return 0 if cfg.objective == "judge" else 4 * m.vocab_size * min(positions, chunk) / tensor

    filled = math.ceil(config.rollout_rows(cfg) / row_parts) if grpo else 0
    # A causal rollout keeps one cache of all layers; another holds one layer at a time, and copies a cache.
    caches = 1 if m.causal else 2 if cfg.cache != "none" else 0
    cache = filled * m.n_layer * T * 2 * KV * bytes_per_number(m) * caches
    one_layer = 0 if m.causal else filled * (layer // 2)
    # A Rollout has 15 bytes per token, in parts and joined, and the prompts.
    arrays = 36 * cfg.batch_size * cfg.group_size * T if grpo else 0
    block = 1 if m.causal else cfg.block_len or new
    return {
        "activations": activations,
        # Logits and their gradient; with an entropy also probabilities, and products of all of them.
        "logits": (7 if grpo else 2) * logits(active * new),
        "rollout": cache + one_layer + logits(4 * filled * block) + arrays,
    }


# ---- FLOPs -----------------------------------------------------------------------------------------------------------


def pass_flops(cfg, rows, scored, width, keys, last=None):
    """Estimate the FLOPs of a forward pass over `width` columns of each row, whose queries see `keys` columns.

    2 per weight of a matrix and column, 4 per key, query and head column. The head reads `scored` columns. A model of a
    few blocks computes its last block for `last` columns only (None: for all), except for their keys and values.
    """
    m = cfg.model
    Q, KV, D = m.n_head * m.head_dim, m.kv_heads * m.head_dim, m.d_model
    queries = (m.n_layer - 1) * width + (width if last is None or m.n_layer > model.UNROLLED else last)
    head = 0 if cfg.objective == "judge" else 2 * scored * D * m.vocab_size
    return rows * (queries * (4 * D * Q + 6 * D * m.ff + 4 * keys * Q) + m.n_layer * width * 4 * D * KV + head)


def estimate_flops(cfg: Config) -> dict[str, float]:
    """Estimate the FLOPs of an iteration by stage, on all devices."""
    rows, forward = count_rows(cfg), scoring_flops(cfg)
    update = (4 if rows.recomputed else 3) * forward  # a backward pass takes two forward passes
    if cfg.objective != "grpo":
        return {"rollout": 0, "scoring": 0, "update": update}
    first = 1 / config.updates_per_iter(cfg)  # the first minibatch needs no old log-probs
    old = 3 if rl.scored_by_gradient(cfg) else 1  # a whole gradient, for its log-probs
    scorings = bool(cfg.kl_beta) + cfg.kl_in_reward + (cfg.ratio_level != "none") * (1 - first) * old
    return {"rollout": rollout_flops(cfg), "scoring": scorings * forward, "update": update}


def scoring_flops(cfg):
    """Estimate the FLOPs of the forward pass of all updates of an iteration."""
    T, new, rows = cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens, count_rows(cfg).scored
    columns = copy_columns(cfg)
    if not columns:
        return pass_flops(cfg, rows, new, T, T, T if cfg.objective == "judge" else new)
    copies = rows / rows_per_copy(cfg)
    text = new * cfg.model.shift  # a shifted model reads the first token of each block from the clean text
    return pass_flops(cfg, copies, new, columns, T + columns, new) + pass_flops(
        cfg, copies / copies_per_text(cfg), 0, T, T, text
    )


def rollout_flops(cfg):
    """Estimate the FLOPs of a rollout."""
    m, T, new = cfg.model, cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens
    rows, steps = cfg.batch_size * cfg.group_size, cfg.rollout_steps or cfg.diffusion_steps
    if m.causal:  # the cache holds the rest: every token is read once
        return pass_flops(cfg, rows, new, T, T)
    if m.block_causal and cfg.cache != "none":  # each prompt once, and one more pass per block, to cache it
        b = m.block_causal
        passes = (min(steps, b) + 1) * -(-new // b)
        return pass_flops(cfg, cfg.batch_size, 0, T, T) + passes * pass_flops(cfg, rows, b, b, T, b)
    block = cfg.block_len or new
    shared = 1 / math.gcd(config.rollout_rows(cfg), cfg.group_size)  # rows of a group share their first step
    whole = steps if cfg.cache == "none" else min(-(-new // block), steps)  # passes over all columns: one per block
    width = block if cfg.cache == "dual" else (new + block) // 2  # of the other passes, on average
    return (whole - 1 + shared) * pass_flops(cfg, rows, block, T, T, block) + (steps - whole) * pass_flops(
        cfg, rows, block, width, T, block
    )


# ---- the line that every run begins with -----------------------------------------------------------------------------


def device_memory():
    """Return the bytes that JAX may use: the first GPU's, or the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Fit(NamedTuple):
    cfg: Config  # the run, changed
    changes: dict  # {key: value}
    peak: float  # bytes per device, estimated


def make_fit(cfg, limit, n_devices=None):
    """Change keys until the estimate is at most `limit` bytes per device, those that affect the result least first."""
    fit = Fit(cfg, {}, estimate_bytes(cfg, n_devices)["peak"])
    for key, value in smaller_values(cfg, n_devices):
        if fit.peak <= limit:
            break
        with contextlib.suppress(ValueError):  # a value that does not divide
            change = {key: value}
            if hasattr(cfg.model, key):
                change = {"model": dataclasses.replace(fit.cfg.model, **change)}
            changed = dataclasses.replace(fit.cfg, **change)
            peak = estimate_bytes(changed, n_devices)["peak"]
            if peak < fit.peak:
                fit = Fit(changed, fit.changes | {key: value}, peak)
    return fit


def smaller_values(cfg, n_devices):
    """Yield (key, value) pairs that save memory, in the order in which they are tried."""
    m, grpo = cfg.model, cfg.objective == "grpo"

    def halves(key, n):
        """Yield the key with n / 2, n / 4, ..., 1."""
        return ((key, int(n) >> i) for i in range(1, int(n).bit_length()))

    yield from (("gradient_accumulation_steps", cfg.gradient_accumulation_steps << i) for i in range(1, 12))
    if grpo:
        yield from halves("logp_chunk", count_rows(cfg).active)
        yield from halves("rollout_chunk", config.rollout_rows(cfg))
    for tensor in (1, 2, 4, 8):
        if n_devices and not (n_devices % tensor or m.n_head % tensor or m.kv_heads % tensor):
            yield "mesh", (1, n_devices // tensor, tensor)
    yield from (("remat", True), ("dtype", "bfloat16"))
    if grpo and cfg.kl_beta:
        yield "ref_offload", True
    yield from halves("batch_size", cfg.batch_size)
    if grpo:
        yield from halves("group_size", cfg.group_size)


def amount(x: float, unit: str = "B") -> str:
    """Format a number with a prefix: 1234567890, "FLOP" -> 1.2 GFLOP."""
    if math.isinf(x):
        return "too much"
    power = max((p for p in range(6) if x >= 1000**p), default=0)
    return f"{x / 1000**power:.{0 if power == 0 else 1}f} {' kMGTP'[power].strip()}{unit}"


def flags(changes):
    """Format {key: value} as on the command line."""
    return " ".join(f"--{key}={config.as_typed(value)}" for key, value in changes.items())


def stage_flops(cfg):
    """Format the FLOPs of every stage."""
    return ", ".join(f"{stage} {amount(x, 'FLOP')}" for stage, x in estimate_flops(cfg).items() if x)


def describe(cfg: Config, limit: float | None = None, n_devices: int | None = None) -> list[str]:
    """Return the lines that a run begins with: what it needs and, if that is too much, which keys to change."""
    parts, flops, limit = estimate_bytes(cfg, n_devices), estimate_flops(cfg), limit or device_memory()
    peak, rollout = parts.pop("peak"), parts.pop("rollout")
    listed = " + ".join(f"{name} {amount(x)}" for name, x in parts.items() if x)
    before = f" (rollout {amount(rollout)}, before them)" if rollout else ""
    stages = f" ({stage_flops(cfg)})" if flops["rollout"] else ""
    lines = [
        f"memory: {listed}{before}, at most {amount(peak)} of {amount(limit)}; "
        f"{amount(sum(flops.values()), 'FLOP')} per step{stages}"
    ]
    if peak > limit:
        fit = make_fit(cfg, limit, n_devices)
        would = "no key of this config helps"
        if fit.changes:
            would = f"{flags(fit.changes)} would make it {amount(fit.peak)}"
        more = "" if fit.peak <= limit else "; still too much: it needs a smaller model or a larger device"
        lines.append(f"warning: this run will probably not fit: {would}{more}")
    return lines


def check_fits(cfg: Config, shape: ModelConfig) -> None:
    """Refuse a run that cannot fit with a model of this shape. The estimate is right to a factor of 2."""
    cfg = config.with_model(cfg, shape)
    if not cfg.eval_only and estimate_bytes(cfg)["peak"] > 2 * device_memory():
        text = "; ".join(describe(cfg))
        raise ValueError(text.replace("warning: this run will probably not", "this run cannot"))


# ---- devices that are not here ---------------------------------------------------------------------------------------


class Device(NamedTuple):
    memory: float  # bytes
    bandwidth: float  # bytes per second between the device and its memory
    flops: float  # per second, dense products in bfloat16
    chip: tuple | None = None  # for a GPU's compiler: capability, cores, GHz, bytes of shared memory, of cache


# NVIDIA's data sheets of the SXM boards (A100, H100, H200, B200); Cloud TPU's "system architecture" pages.
HOST, GIB = 8, 2**30  # GPUs per host
AMPERE, HOPPER = ((8, 0, 108, 1.41, 167936, 40 << 20), (9, 0, 132, 1.98, 233472, 50 << 20))
DEVICES = {
    "A100-40": Device(42.3e9, 1.555e12, 312e12, AMPERE),
    "A100-80": Device(85.0e9, 2.039e12, 312e12, AMPERE),
    "H100": Device(84978434048, 3.352e12, 989e12, HOPPER),
    "H200": Device(150.7e9, 4.8e12, 989e12, HOPPER),
    "B200": Device(191.5e9, 7.7e12, 2250e12, (10, 0, 148, 1.965, 233472, 126 << 20)),
    "v5e": Device(15.75 * GIB, 819e9, 197e12),
    "v5p": Device(95.74 * GIB, 2765e9, 459e12),
    "v6e": Device(31.25 * GIB, 1638e9, 918e12),
}


def parse_devices(text: str) -> tuple[str, int]:
    """Parse 8xH100 or v5p:4x4x4 into the name of a device and how many there are."""
    is_slice = ":" in text
    name, shape = text.split(":", 1) if is_slice else text.partition("x")[::-2]
    well_formed = re.fullmatch(r"\d+(x\d+)*" if is_slice else r"\d+", shape)
    count = math.prod(map(int, shape.split("x"))) if well_formed else 0
    is_gpu = name in DEVICES and DEVICES[name].chip is not None
    partial_host = is_gpu and count > HOST and count % HOST
    if name not in DEVICES or not count or is_gpu == is_slice or partial_host:
        raise ValueError(
            f"--plan={text}: expected GPUs, up to {HOST} or whole hosts of {HOST}, as in 8xH100, or a "
            f"slice of TPUs, as in v5p:2x2x1; known are {', '.join(DEVICES)}"
        )
    return name, count


def traced_for(text: str) -> contextlib.AbstractContextManager:
    """Trace functions as for these devices while the context lasts."""
    platform = "gpu" if DEVICES[parse_devices(text)[0]].chip else "tpu"
    device = jax.sharding.AbstractDevice(platform, None, platform)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def topology(text):
    """Describe these devices to JAX, whose compiler then needs no real ones. None: their compiler is not installed."""
    from jax.experimental import topologies

    name, count = parse_devices(text)
    device = DEVICES[name]
    if device.chip is None:
        if not importlib.util.find_spec("libtpu"):
            return None
        for key, value in dict(SKIP_MDS_QUERY="1", WORKER_HOSTNAMES="localhost", WORKER_ID="0").items():
            os.environ.setdefault(f"TPU_{key}", value)  # else libtpu searches for a TPU's own host for minutes
        return topologies.get_topology_desc(text, platform="tpu")
    if not (importlib.util.find_spec("jax_cuda12_plugin") and importlib.util.find_spec("nvidia")):
        return None
    major, minor, cores, clock, shared, cache = device.chip
    target = f"""gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
        shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared - 1024} threads_per_core_limit: 2048
        core_count: {cores} fpus_per_core: {64 if major == 8 else 128} block_dim_limit_x: 2147483647
        block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {device.bandwidth:.0f}
        l2_cache_size: {cache} clock_rate_ghz: {clock} device_memory_size: {device.memory:.0f}
        cuda_compute_capability {{ major: {major} minor: {minor} }} registers_per_core_limit: 65536
        registers_per_block_limit: 65536 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
        device_description_str: "NVIDIA {name}" """
    shape = f"1x{max(count // HOST, 1)}x{min(count, HOST)}"
    return topologies.get_topology_desc(name.lower(), platform="cuda", target_config=target, topology=shape)


def programs(cfg, outline):
    """Return {stage: (lower, arguments)} of an iteration, and what stays on the devices {part: tree}, all as shapes.

    outline(cfg) -> the update, its State, the base of LoRA, and the State with LoRA merged (train.abstract_run).
    """
    update, state, base, merged = outline(cfg)
    held = {"params": base, "adapters": state.params} if base else {"params": state.params}
    held |= {"moments": state.opt_state, "average": state.average}
    stages, batches = {}, [abstract_batch(cfg)]
    if cfg.objective == "grpo":
        held["reference"] = None if base or cfg.ref_offload else state.reference
        batches = abstract_minibatches(cfg, merged)
        stages["rollout"] = abstract_rollout(cfg, merged.params)
        if cfg.kl_beta or any(b.old_logp is not None for b in batches[1:]):
            minibatch = rl.without_logp(batches[-1])
            stages["scoring"] = functools.partial(rl.logp_of.lower, cfg=cfg), (merged.params, minibatch)
    step = jax.ShapeDtypeStruct((), "int32")
    stages["update"] = update.lower, (*state[1:4], step, batches[-1], base)
    return stages, held | {"batch": batches}


def abstract_text(cfg, rows, **dtypes):
    """Return {name: shape} of arrays with one entry per token."""
    shape = rows, cfg.max_prompt_len + cfg.max_new_tokens + (cfg.objective == "judge")  # a judge adds an end of text
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}


def abstract_batch(cfg):
    """Return the batch of a pretraining or judge step, as shapes."""
    if cfg.objective == "judge":
        pairs = {"better": "int32", "better_valid": bool, "worse": "int32", "worse_valid": bool}
        return abstract_text(cfg, cfg.batch_size, **pairs) | {"score": None}
    rows = cfg.batch_size // (2 if cfg.paired else 1)
    text = abstract_text(cfg, rows, tokens="int32", hole=bool, valid=bool)
    noise = functools.partial(diffusion.noise, cfg=cfg.model, norm=cfg.loss_norm, paired=cfg.paired)
    return jax.eval_shape(noise, jax.random.key(0), text)


def abstract_minibatches(cfg, state):
    """Return the minibatches of an iteration of grpo, as shapes."""
    dtypes = {"tokens": "int32", "valid": bool, "completion": bool, "counts": bool, "step": "int32", "logp": "float32"}
    arrays, key = abstract_text(cfg, config.n_update(cfg), **dtypes), jax.random.key(0)
    rollout = rl.Rollout(**arrays, passes=jax.ShapeDtypeStruct((config.n_update(cfg),), "float32"))
    pairs = jax.eval_shape(lambda *args: rl.minibatches(args[0], key, key, args[1], cfg), state, rollout)
    return [minibatch for _, minibatch in pairs]


def abstract_rollout(cfg, params):
    """Return the program that fills a chunk of completions, and its arguments as shapes."""
    parts = mesh_parts(cfg, None)[0]
    rows = math.ceil(config.rollout_rows(cfg) / parts) * parts
    group = math.gcd(rows, cfg.group_size) if cfg.model.causal else 1
    how = sample.plan(cfg, cfg.temperature, cfg.rollout_steps)
    keys = jax.eval_shape(lambda: sample.row_keys(jax.random.key(0), rows))

    def lower(params, keys, text):
        return sample.generate.lower(params, keys, text["z"], cfg.model, how, text["valid"], group)

    return lower, (params, keys, abstract_text(cfg, rows, z="int32", valid=bool))


def compiled_bytes(cfg, devices, outline):
    """Compile an iteration for a jax.sharding.Mesh of described devices.

    Return bytes per device: of what stays {part: bytes}, and of the temporaries of each program {stage: bytes}.
    math.inf: the compiler refused the program for lack of memory, as a TPU's does.
    """

    def place(tree):
        """Give every shape its sharding."""
        where = mesh.shardings(tree, devices)
        return jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), tree, where)

    def size(tree):
        """Count the bytes per device."""
        return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(place(tree)))

    stages, held = programs(cfg, outline)
    temporaries = {}
    with jax.sharding.use_abstract_mesh(devices.abstract_mesh) if devices.size > 1 else contextlib.nullcontext():
        for stage, (lower, arguments) in stages.items():
            lowered = lower(*place(arguments))
            try:
                used = lowered.compile().memory_analysis()
                temporaries[stage] = used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
            except jax.errors.JaxRuntimeError as e:
                if "RESOURCE_EXHAUSTED" not in str(e):
                    raise
                temporaries[stage] = math.inf
        return {part: size(tree) for part, tree in held.items() if tree}, temporaries


# ---- the plan --------------------------------------------------------------------------------------------------------


def usable(device):
    """Return the bytes of a device that a run gets: JAX takes three quarters of a GPU's, unless told otherwise."""
    return device.memory * (float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")) if device.chip else 1)


def memory_lines(held, temporaries, limit):
    """Format what `compiled_bytes` found."""
    stay = sum(held.values())
    listed = " + ".join(f"{name} {amount(x)}" for name, x in held.items())
    yield f"bytes per device: {listed} = {amount(stay)}, of {amount(limit)}"
    for stage, size in temporaries.items():
        fits = "fits" if stay + size <= limit else "does not fit"
        yield f"    {stage:9} + temporaries {amount(size):>9} = {amount(stay + size):>9}  {fits}"


def plan(cfg: Config, text: str, outline: Callable) -> Iterator[str]:
    """Yield the lines of --plan=text for a Config with its model; outline: train.abstract_run."""
    (name, count), described = parse_devices(text), topology(text)
    device, version = DEVICES[name], jax.__version__
    head = f"{text}, data x fsdp x tensor = {' x '.join(map(str, cfg.mesh or (1, count, 1)))}"
    rate, flops = count * device.flops, sum(estimate_flops(cfg).values())
    time = (
        f"an iteration takes at least {flops / rate:.3g} s, at {device.flops / 1e12:.0f} TFLOP/s per device; real "
        f"runs reach half of that at best ({stage_flops(cfg)})"
    )
    if described:
        yield f"{head}: compiled ahead of time, by the compiler for it in jax {version}"
        yield time
        yield from compiled_plan(cfg, count, device, described.devices, outline)
        return
    package = (
        f"--no-deps jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} nvidia-cudnn-cu12"
        if device.chip
        else "libtpu, in an environment of its own: with it JAX looks for a TPU"
    )
    yield f"{head}: estimated. To have it compiled as for the device itself: pip install {package}"
    yield time
    yield from describe(cfg, usable(device), count)


def compiled_plan(cfg, count, device, devices, outline):
    """Compile a run, and change keys until it fits; yield the lines that say so."""
    limit, changes = usable(device), {}
    for attempt in range(4):
        sizes = cfg.mesh or (1, count, 1)
        held, temporaries = compiled_bytes(dataclasses.replace(cfg, mesh=sizes), mesh.make(sizes, devices), outline)
        peak, estimate = sum(held.values()) + max(temporaries.values()), estimate_bytes(cfg, count)["peak"]
        if peak <= limit or attempt == 0:
            yield from memory_lines(held, temporaries, limit)
        if peak <= limit:
            yield f"it fits{', with ' + flags(changes) if changes else ''}: {amount(peak)} of {amount(limit)}"
            return
        if device.chip and attempt == 0 and peak <= 0.95 * device.memory:
            yield f"it fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in the environment: {amount(peak)}"
            return
        # How far the estimate is off is known now, unless a program was refused, so that few runs have to be compiled.
        fit = make_fit(cfg, estimate / 2 if math.isinf(peak) else 0.97 * limit * estimate / peak, count)
        if not fit.changes:
            break
        cfg, changes = fit.cfg, changes | fit.changes
        yield f"{amount(peak)} of {amount(limit)}: does not fit; next {flags(changes)}"
    yield "nothing that was tried fits: it needs more devices, larger ones, or a smaller model"
