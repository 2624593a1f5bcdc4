"""
What a run takes, before anything of it is there:  python train.py config/llada_gsm8k_grpo.py --plan=8xH100

Counted, from the config alone, in milliseconds: what every run begins with; tests hold it against XLA's own account. Or
compiled, by the compiler of a device that need not be here: what a cluster would be asked for, in minutes.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
import numpy as np

import config
import diffusion
import model
import objectives
import sample
from machine import kernels, lora, mesh

# ---- counted ---------------------------------------------------------------------------------------------------------


def rows_of(cfg):
    """-> rows whose forward pass an iteration's updates take, rows of which a backward pass keeps activations, rows of
    which remat keeps what enters a block, are these recomputed?"""
    views, more = views_of(cfg), rows_per_copy(cfg)
    if cfg.objective != "grpo":
        rows = more * cfg.batch_size * (2 if cfg.objective == "judge" else 1)
        return rows, *[rows // cfg.gradient_accumulation_steps] * 2, cfg.model.remat
    micro = config.minibatch(cfg) // cfg.gradient_accumulation_steps * views
    chunk = min(cfg.logp_chunk or micro, micro)
    again = cfg.model.remat or chunk < micro
    return more * cfg.updates_per_rollout * config.kept(cfg) * views, more * chunk, more * micro, again


def views_of(cfg):
    """-> how many noisy copies of a text there are."""
    return config.n_views(cfg) if cfg.objective == "grpo" else 1 + cfg.paired


def copied(cfg):
    """-> how many columns of a noisy copy are computed beside the text, which all of its copies see; 0: no text is."""
    if not cfg.model.block_causal or cfg.objective == "judge":
        return 0
    return cfg.max_new_tokens + min(cfg.model.block_causal - 1 + cfg.model.shift, cfg.max_prompt_len)


def rows_per_copy(cfg):
    """-> rows that are computed for a noisy copy: of its own the last columns, and its share of the text beside it."""
    C = copied(cfg)
    return C / (cfg.max_prompt_len + cfg.max_new_tokens) + 1 / views_of(cfg) if C else 1


def axes(cfg, devices=None):
    """-> how many parts its mesh has for rows, for weights, and of each weight beside those that are gathered."""
    data, fsdp, tensor = cfg.mesh or (1, devices or math.prod(mesh.shape().values()), 1)
    return data * fsdp, fsdp * tensor, tensor


def counted(cfg, devices=None):
    """Config with the model of the run, how many devices, None: those in use -> bytes on a device by what they are for,
    FLOPs of an iteration by stage, on all of them."""
    return count_bytes(cfg, devices), count_flops(cfg)


def count_bytes(cfg, devices):
    """-> bytes on a device by what they are for."""
    (of_rows, of_weights, tensor), up = axes(cfg, devices), lambda rows, parts: math.ceil(rows / parts)
    m, T, new = cfg.model, cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens
    grpo, judge = cfg.objective == "grpo", cfg.objective == "judge"
    Q, KV, D, F, L, V = m.n_head * m.head_dim, m.kv_heads * m.head_dim, m.d_model, m.ff, m.n_layer, m.vocab_size
    shapes = jax.tree.leaves(model.shapes(m, 1 if judge else None), is_leaf=lambda s: isinstance(s, tuple))
    n, wide = sum(map(math.prod, shapes)), 2 if m.dtype == "bfloat16" else 4
    trained, held = n, 4 * n + 2 * n * (wide == 2)  # what has a gradient and two moments; float32, and cast
    if cfg.lora_rank:
        adapters = lora.adapter_shapes(m, cfg.lora_targets, cfg.lora_rank)
        trained = sum(map(math.prod, adapters.values())) + judge * D
        held = wide * n + 4 * trained
    rows, micro = (up(n, of_rows) for n in rows_of(cfg)[1:3])
    # A layer as the backward pass wants it: norms, q, k, v before and after they turn, the mlp inside; scores, float32.
    # XLA's CPU keeps bfloat16 in float32.
    keeps = 4 if devices is None and jax.default_backend() == "cpu" else wide
    scores = 0 if kernels.fused(m) else 4 * 2 * m.n_head * (T + copied(cfg))
    layer = T * (keeps * (6 * D + 4 * Q + 4 * KV + 4 * F) + scores) // tensor
    one = 2 * D * (Q + KV) + 3 * D * F  # of a block; it is gathered, while the one before it is still there
    gathered = 2 * wide * max(one, 0 if judge else D * V) // tensor if of_weights > tensor else 0
    kept = rows * L * layer if not m.remat else micro * L * T * keeps * D + rows * layer
    logits = lambda positions: 0 if judge else 4 * V * positions
    some = lambda positions: min(positions, max(diffusion.LOGITS // (4 * V * of_rows), 1)) / tensor
    filled = up(config.rollout_rows(cfg), of_rows) if grpo else 0
    block = 1 if m.causal else cfg.block_len or new
    parts = {
        "params": held, "optimizer": 8 * trained, "average": 4 * trained * (cfg.ema_decay is not None),
        "reference": (wide if cfg.ref_mode == "static" else 4) * n
        * bool(grpo and cfg.kl_beta and not cfg.ref_offload and not cfg.lora_rank),
        # Summed up part by part, there are two of them: the sum, and what is next in it.
        "gradients": 4 * trained * (2 if cfg.gradient_accumulation_steps > 1 or cfg.logp_chunk else 1),
        # The logits and their gradient; with an entropy, also probabilities, and products of all of them.
        "activations": kept, "logits": (7 if grpo else 2) * logits(some(rows * new)),
        # Of a rollout no more than a layer is kept at a time, or the keys and values of all; of its logits there are
        # copies, probabilities and noise; and of every completion what is in a Rollout, 15 bytes a token, in parts and
        # joined, and its prompt.
        "rollout": filled * L * T * 2 * KV * wide * (m.causal or 2 * (cfg.cache != "none"))
        + (not m.causal) * filled * (layer // 2) + logits(some(4 * filled * block))
        + 36 * grpo * cfg.batch_size * cfg.group_size * T,
    }  # fmt: skip
    if of_weights > 1:
        stays = ("params", "optimizer", "average", "reference", "gradients")
        parts |= {name: parts[name] // of_weights for name in stays}
        parts |= {"activations": parts["activations"] + gathered, "rollout": parts["rollout"] + gathered}
    update = sum(parts[name] for name in ("gradients", "activations", "logits"))
    resident = sum(parts[name] for name in ("params", "optimizer", "average", "reference"))
    return parts | {"peak": resident + max(update, parts["rollout"])}


def count_flops(cfg):
    """-> FLOPs of an iteration by stage."""
    m, T, new = cfg.model, cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens
    grpo, judge = cfg.objective == "grpo", cfg.objective == "judge"
    Q, KV, D, F, L, V = m.n_head * m.head_dim, m.kv_heads * m.head_dim, m.d_model, m.ff, m.n_layer, m.vocab_size
    (total, *_, again), block = rows_of(cfg), 1 if m.causal else cfg.block_len or new

    def forward(rows, positions, window, width=T, keys=T):
        """2 for each weight of a matmul and token of a width, 4Q of attention in a layer for each of its keys; the head
        and, but for keys and values, the last of a few layers are computed for a window only."""
        tokens = (L - 1) * width + (window if L <= model.UNROLLED else width)
        return rows * (tokens * (4 * D * Q + 6 * D * F + 4 * keys * Q) + L * width * 4 * D * KV
                       + (0 if judge else 2 * positions * D * V))  # fmt: skip

    completions = cfg.batch_size * cfg.group_size
    first = config.minibatch(cfg) / (config.kept(cfg) * cfg.updates_per_rollout)  # the first minibatch is not scored
    old = 3 if objectives.scored_by_gradient(cfg) else 1  # a whole gradient for the old log-probs
    scorings = bool(cfg.kl_beta) + cfg.kl_in_reward + (cfg.ratio_level != "none") * (1 - first) * old
    if m.causal:  # with a cache, every token is read once
        rollout = forward(completions, new, T)
    elif (b := m.block_causal) and cfg.cache != "none":  # a prompt once a group, and a pass more a block, to keep it
        passes = (min(cfg.rollout_steps or cfg.diffusion_steps, b) + 1) * -(-new // b)
        rollout = completions / cfg.group_size * forward(1, 0, T) + passes * forward(completions, b, b, b)
    else:  # the first step is the same for a group, if chunks do not cut it
        alike, steps = math.gcd(config.rollout_rows(cfg), cfg.group_size), cfg.rollout_steps or cfg.diffusion_steps
        whole = steps if cfg.cache == "none" else min(-(-new // block), steps)  # passes over everything: one a block
        width = block if cfg.cache == "dual" else (new + block) // 2  # of the others: on average
        rollout = (whole - 1 + 1 / alike) * forward(completions, block, block)
        rollout += (steps - whole) * forward(completions, block, block, width)
    scoring = forward(total, new, T if judge else new)
    if C := copied(cfg):
        n = total / rows_per_copy(cfg)  # copies; of their texts the last block is needed where one shifts
        scoring = forward(n, new, new, C, T + C) + forward(n / views_of(cfg), 0, new * m.shift)
    return {"rollout": grpo * rollout, "scoring": grpo * scorings * scoring, "update": (4 if again else 3) * scoring}


def device_memory():
    """-> bytes that the first device has for us: a GPU's, or the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cheaper(cfg, limit, devices=None):
    """-> {key: value}, changes with which the run fits into `limit` bytes a device, those that change its result least
    first; the bytes it then needs; and that run."""
    halves = lambda n: [n >> i for i in range(1, n.bit_length())]
    rows, changes = rows_of(cfg)[1], {}
    grpo = cfg.objective == "grpo"
    with_model = lambda **new: {"model": dataclasses.replace(cfg.model, **new)}
    tries = [("gradient_accumulation_steps", [cfg.gradient_accumulation_steps << i for i in range(1, 12)])]
    if grpo:
        tries += [("logp_chunk", halves(rows)), ("rollout_chunk", halves(config.rollout_rows(cfg)))]
    sizes = [(1, devices >> i, 1 << i) for i in range(4) if not (devices or 0) % (1 << i)] if devices else []
    tries += [("mesh", [size for size in sizes if not (cfg.model.n_head % size[2] or cfg.model.kv_heads % size[2])])]
    tries += [("remat", [True]), ("dtype", ["bfloat16"])] + [("ref_offload", [True])] * bool(grpo and cfg.kl_beta)
    tries += [("batch_size", halves(cfg.batch_size))] + [("group_size", halves(cfg.group_size))] * grpo
    for key, values in tries:
        for value in values:
            now = counted(cfg, devices)[0]["peak"]
            if now <= limit:
                return changes, now, cfg
            with contextlib.suppress(ValueError):  # what does not divide is not tried
                change = {key: value}
                new = dataclasses.replace(cfg, **(with_model(**change) if key in ("remat", "dtype") else change))
                whole = cfg.objective == "grpo" or new.batch_size % new.gradient_accumulation_steps == 0
                if whole and counted(new, devices)[0]["peak"] < now:
                    cfg, changes = new, changes | change
    return changes, counted(cfg, devices)[0]["peak"], cfg


def amount(x, unit="B"):
    """1234567890, "FLOP" -> 1.2 GFLOP."""
    power = max((p for p in range(6) if x >= 1000**p), default=0)
    return f"{x / 1000**power:.{0 if power == 0 else 1}f} {' kMGTP'[power].strip()}{unit}"


def flags(changes):
    """{key: value} -> as one writes them on a command line."""
    text = lambda value: ",".join(map(str, value)) if isinstance(value, tuple) else value
    return " ".join(f"--{key}={text(value)}" for key, value in changes.items())


def describe(cfg, limit=None, devices=None):
    """-> the lines that a run begins with: what it takes, and, if that is more than there is, what to change."""
    (parts, flops), limit = counted(cfg, devices), limit or device_memory()
    listed = " + ".join(f"{name} {amount(x)}" for name, x in parts.items() if x and name not in ("peak", "rollout"))
    rollout = f" (rollout {amount(parts['rollout'])}, before them)" if parts["rollout"] else ""
    stages = ", ".join(f"{name} {amount(x, 'FLOP')}" for name, x in flops.items() if x)
    lines = [f"memory: {listed}{rollout}, at most {amount(parts['peak'])} of {amount(limit)}; "
             f"{amount(sum(flops.values()), 'FLOP')} a step" + (f" ({stages})" if flops["rollout"] else "")]
    if parts["peak"] > limit:
        changes, then, _ = cheaper(cfg, limit, devices)
        would = f"{flags(changes)} would make it {amount(then)}" if changes else "no key of this config helps"
        lines.append(f"warning: this run will probably not fit: {would}"
                     + ("" if then <= limit else "; still too much: it needs a smaller model or a larger device"))
    return lines


def check_fits(cfg, shape):
    """Refuses a run on a model of that shape that cannot fit: the estimate is right to a factor of 2."""
    cfg = config.of_shape(cfg, shape)
    if not cfg.eval_only and counted(cfg)[0]["peak"] > 2 * device_memory():
        said = "; ".join(describe(cfg))
        raise ValueError(said.replace("warning: this run will probably not", "this run cannot"))


# ---- devices ---------------------------------------------------------------------------------------------------------


class Device(NamedTuple):
    memory: float  # bytes
    bandwidth: float  # bytes a second between it and the memory
    flops: float  # a second, of dense products in bfloat16
    link: float  # bytes a second that it can send to its neighbours
    network: float | None = None  # and to other hosts, of which each has HOST; None: a TPU, whose links span hosts
    chip: tuple | None = None  # what a GPU's compiler asks: capability, cores, GHz, bytes of shared memory, of cache


# NVIDIA's data sheets of the SXM boards (A100, H100, H200, B200; the network is that of DGX: 200, then 400 Gbit/s a
# GPU); Cloud TPU's "system architecture" pages. Links are one way: half of what the sheets add up.
HOST, GIB = 8, 2**30
AMPERE, HOPPER = ((8, 0, 108, 1.41, 167936, 40 << 20), (9, 0, 132, 1.98, 233472, 50 << 20))
DEVICES = {
    "A100-40": Device(42.3e9, 1.555e12, 312e12, 300e9, 25e9, AMPERE),
    "A100-80": Device(85.0e9, 2.039e12, 312e12, 300e9, 25e9, AMPERE),
    "H100": Device(84978434048, 3.352e12, 989e12, 450e9, 50e9, HOPPER),
    "H200": Device(150.7e9, 4.8e12, 989e12, 450e9, 50e9, HOPPER),
    "B200": Device(191.5e9, 7.7e12, 2250e12, 900e9, 50e9, (10, 0, 148, 1.965, 233472, 126 << 20)),
    "v5e": Device(15.75 * GIB, 819e9, 197e12, 200e9),
    "v5p": Device(95.74 * GIB, 2765e9, 459e12, 600e9),
    "v6e": Device(31.25 * GIB, 1638e9, 918e12, 400e9),
}


def machine(text):
    """8xH100 or v5p:4x4x4 -> the name of a device, how many there are."""
    name, shape = ([*text.split(":"), ""][:2] if ":" in text else text.partition("x")[::-2])
    count = re.fullmatch(r"\d+(x\d+)*" if ":" in text else r"\d+", shape) and math.prod(map(int, shape.split("x")))
    gpu = name in DEVICES and DEVICES[name].chip
    if name not in DEVICES or not count or bool(gpu) == (":" in text) or (gpu and count > HOST and count % HOST):
        raise ValueError(f"--plan={text}: expected GPUs, up to {HOST} or whole hosts of so many, as in 8xH100, or a "
                         f"slice of TPUs, as in v5p:2x2x1; known are {', '.join(DEVICES)}")  # fmt: skip
    return name, count


def planned(text):
    """8xH100 -> while this lasts, functions are traced as for such a device."""
    platform = "gpu" if DEVICES[machine(text)[0]].chip else "tpu"
    device = jax.sharding.AbstractDevice(platform, None, platform)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def topology(text):
    """8xH100 -> JAX's description of these devices, which its compiler takes in place of the real ones; None: the
    package with that compiler is missing."""
    from jax.experimental import topologies
    name, count = machine(text)
    device = DEVICES[name]
    if device.chip is None:
        if not importlib.util.find_spec("libtpu"):
            return None
        for key, value in dict(SKIP_MDS_QUERY="1", WORKER_HOSTNAMES="localhost", WORKER_ID="0").items():
            os.environ.setdefault(f"TPU_{key}", value)  # it looks for a TPU's own host, for minutes
        return topologies.get_topology_desc(text, platform="tpu")
    if not importlib.util.find_spec("jax_cuda12_plugin"):
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
    with contextlib.suppress(ImportError):  # JAX asks for cuDNN's version while it traces; its library need not be here
        from jax._src.cudnn import fused_attention_stablehlo
        fused_attention_stablehlo.check_cudnn_version = lambda: 90800  # of the device, as above
    shape = f"1x{max(count // HOST, 1)}x{min(count, HOST)}"
    return topologies.get_topology_desc(name.lower(), platform="cuda", target_config=target, topology=shape)


# ---- compiled --------------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    fn: object  # a jitted function
    args: tuple  # its arguments as shapes with shardings
    static: dict
    calls: int  # in an iteration
    loop: int = 1  # how often a loop of unknown length runs


class Compiled(NamedTuple):
    temporaries: int  # bytes a device
    moved: dict  # (collective, shape): (times in an iteration, bytes each, seconds each)


WIDTH = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8}
MOVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def group(line):
    """An HLO line of a collective -> the devices (k,) of one of its groups."""
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\] ?\{(.*?)\}", line):
        axes = {n: int(size) for n, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        ids = np.arange(math.prod(axes.values())).reshape(*axes.values())
        return ids[tuple(slice(None) if n in re.findall(r"'(\w+)'", mesh[2]) else 0 for n in axes)].reshape(-1)
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        dims, turn = ([int(n) for n in (iota[i] or "").split(",") if n] for i in (3, 4))
        return np.arange(math.prod(dims)).reshape(dims).transpose(turn or None).reshape(int(iota[1]), -1)[0]
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", line)
    return np.array([int(n) for n in (listed[1] if listed else "0").split(",")])


def collectives(text, device, program):
    """The text of a compiled program -> {(collective, shape): (times in an iteration, bytes each, seconds each)}."""
    found, inside = {}, {}  # inside: {computation: {those it calls: how often}}, callers behind those they call
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = head[1] or head[2]
            inside[name] = collections.Counter()
        trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
        times = 1 if " while(" not in line else int(trips[1]) if trips else program.loop
        for called in re.findall(r"(?:body|calls|to_apply|_computations?)=(%?[\w.\-]+|\{[^}]*\})", line):
            inside[name] += dict.fromkeys(re.findall(r"[\w.\-]+", called), times)
        if move := re.search(rf" = (.+?) ({MOVES})(-start)?\(", line):
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", move[1])
            started = move[3] and move[2] in ("all-gather", "collective-permute")  # (what goes in, what comes out)
            shapes, ids = shapes[len(shapes) // 2 if started else 0 :], group(line)
            size = sum(math.prod(int(n) for n in s.split(",") if n) * WIDTH.get(kind, 4) for kind, s in shapes)
            size *= len(ids) if move[2] == "reduce-scatter" else 1
            channel = re.search(r"channel_id=(\d+)", line)  # a TPU's program has one collective in several places
            found[channel[1] if channel else line] = name, move[2], " ".join(f"{k}[{s}]" for k, s in shapes), size, ids
    often, out = collections.Counter({"ENTRY ": program.calls}), {}
    for name in reversed(inside):
        for other, times in inside[name].items():
            often[other] += often[name] * times
    for name, kind, shape, size, ids in found.values():
        if len(ids) > 1 and often[name]:
            here = HOST if device.network is None else max(np.unique(ids // HOST, return_counts=True)[1])
            across = device.network and ids.max() // HOST != ids.min() // HOST
            rate = min(device.link, device.network * here) if across else device.link
            seconds = size * (2 if kind == "all-reduce" else 1) * (len(ids) - 1) / len(ids) / rate
            before = out[kind, shape][0] if (kind, shape) in out else 0
            out[kind, shape] = before + often[name], size, seconds
    return out


def programs(cfg, outline):
    """-> {stage: Program} of an iteration, what stays on the devices {part: tree}: all as shapes. outline(cfg) -> the
    update, its State, the base of LoRA, and the State as an objective sees it."""
    update, state, base, whole = outline(cfg)
    T = cfg.max_prompt_len + cfg.max_new_tokens
    a = lambda kind, rows=0: jax.ShapeDtypeStruct((rows or config.kept(cfg), T), kind)
    held = {"params": base, "adapters": state.params} if base else {"params": state.params}
    step = jax.ShapeDtypeStruct((), "int32")
    held |= {"moments": state.opt_state, "average": state.average}
    if cfg.objective == "judge":
        text = jax.ShapeDtypeStruct((cfg.batch_size, T + 1), "int32")
        seen = jax.ShapeDtypeStruct(text.shape, bool)
        batch = {"better": text, "better_valid": seen, "worse": text, "worse_valid": seen, "score": None}
        return {"update": Program(update, (*state[1:4], step, batch, base), {}, 1)}, held
    if cfg.objective != "grpo":
        noise = functools.partial(diffusion.noise, cfg=cfg.model, norm=cfg.loss_norm, paired=cfg.paired)
        rows = cfg.batch_size // (2 if cfg.paired else 1)
        text = {"tokens": a("int32", rows), "hole": a(bool, rows), "valid": a(bool, rows)}
        batch = jax.eval_shape(noise, jax.random.key(0), text)
        return {"update": Program(update, (*state[1:4], step, batch, base), {}, 1)}, held
    kinds = {"x": "int32", "valid": bool, "hole": bool, "mask": bool, "step": "int32", "logp": "float32"}
    rollout = objectives.Rollout(*(a(kinds[name]) for name in kinds), jax.ShapeDtypeStruct((), "int32"))
    key = jax.random.key(0)
    batches = jax.eval_shape(lambda state, r: objectives.passes(state, key, key, r, cfg), whole, rollout)
    batch = {name: x for name, x in batches[-1].items() if name != "row"}
    scored = sum(bool(cfg.kl_beta) + (b["old"] is not None and n > 0) for n, b in enumerate(batches))
    filled, steps, of_rows = cfg.batch_size * cfg.group_size, cfg.rollout_steps or cfg.diffusion_steps, axes(cfg)[0]
    rows = -(-config.rollout_rows(cfg) // of_rows) * of_rows
    keys = jax.eval_shape(lambda key: sample.row_keys(key, rows), key)
    static = {"cfg": cfg.model, "plan": sample.plan(cfg, cfg.temperature, steps),
              "group": math.gcd(rows, cfg.group_size) if cfg.model.causal else 1}  # fmt: skip
    held["reference"] = None if base or cfg.ref_offload else state.reference
    return {
        "rollout": Program(sample.generate, (whole.params, keys, a("int32", rows), a(bool, rows)), static,
                           -(-filled // rows), cfg.max_new_tokens if cfg.model.causal else steps),
        **({"scoring": Program(objectives.logps, (whole.params, batch), {"cfg": cfg}, scored)} if scored else {}),
        "update": Program(update, (*state[1:4], step, batch, base), {}, len(batches)),
    }, held  # fmt: skip


def refused(error):
    """The error of a TPU's compiler -> bytes of the temporaries for which it has no room; None: another error."""
    over = re.search(r"temporaries \(([\d.]+)([KMGT])\) exceeds available HBM", error)
    return over and int(float(over[1]) * 1024 ** (1 + "KMGT".index(over[2])))


def compiled(cfg, here, device, outline):
    """A Config, a Mesh of described devices -> {part: bytes a device} of what stays, {stage: Compiled}."""
    def place(tree):
        return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree,
                            mesh.split(tree, here))  # fmt: skip

    size = lambda tree: sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
                            for x in jax.tree.leaves(place(tree)))  # fmt: skip
    out = {}
    work, held = programs(cfg, outline)
    with jax.sharding.use_abstract_mesh(here.abstract_mesh) if here.size > 1 else contextlib.nullcontext():
        for stage, p in work.items():
            z = {"valid": p.args[-1]} if stage == "rollout" else {}
            args = p.args[:-1] if z else p.args
            lowered = p.fn.lower(*map(place, args), **{k: place(v) for k, v in z.items()}, **p.static)
            try:
                program = lowered.compile()
            except jax.errors.JaxRuntimeError as e:  # a TPU's compiler refuses what does not fit, and says by how much
                if not refused(str(e)):
                    raise
                out[stage] = Compiled(refused(str(e)), {})
                continue
            used = program.memory_analysis()
            out[stage] = Compiled(used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes,
                                  collectives(program.as_text(), device, p))
        batch = size(work["update"].args[4]) * work["update"].calls
    return {part: size(tree) for part, tree in held.items() if tree} | {"batch": batch}, out


def usable(device):
    """-> bytes of a device that a run gets: of a GPU's JAX takes three quarters, unless it is told otherwise."""
    return device.memory * (float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")) if device.chip else 1)


def least(cfg, count, device, moved):
    """{stage: {(collective, shape): ...}} of `compiled` -> {stage: seconds of its products, of reading weights, of
    collectives}, at the published rates: the longest of the three is the least that the stage can take. Of what was not
    compiled the weights are gathered whenever they are read, and the gradient moves as much as one more reading."""
    (of_rows, of_weights, tensor), flops = axes(cfg, count), count_flops(cfg)
    total, rows, _, again = rows_of(cfg)
    busy = lambda rows: rows / (-(-rows // of_rows) * of_rows)  # of 6 rows on 8 devices 6 / 8
    n = sum(math.prod(s) for s in jax.tree.leaves(model.shapes(cfg.model), is_leaf=lambda s: isinstance(s, tuple)))
    weights = (2 if cfg.model.dtype == "bfloat16" else 4) * n / tensor
    link = min(device.link, device.network * HOST) if device.network and count > HOST else device.link
    rate = count * device.flops * (0.5 if cfg.model.dtype == "float32" and device.chip else 1)  # tf32
    passes = 4 if again else 3
    reads = {stage: passes * flops[stage] / flops["update"] * total / rows for stage in ("update", "scoring")}
    filled, most = cfg.batch_size * cfg.group_size, config.rollout_rows(cfg) if flops["rollout"] else 1
    steps = cfg.max_new_tokens if cfg.model.causal else cfg.rollout_steps or cfg.diffusion_steps
    reads["rollout"] = -(-filled // most) * steps
    work = {stage: busy(most if stage == "rollout" else rows) for stage in flops}
    moves = {stage: reads[stage] * weights / link * (of_weights > tensor) for stage in flops}
    moves |= {stage: sum(times * seconds for times, _, seconds in found.values()) for stage, found in moved.items()}
    return {stage: (flops[stage] / rate / work[stage], reads[stage] * weights / device.bandwidth, moves[stage],
                    work[stage]) for stage in flops if flops[stage]}  # fmt: skip


def of_time(cfg, count, device, moved):
    """-> the lines about time."""
    times = least(cfg, count, device, moved)
    names = "products", "reading weights", "collectives"
    lines = [f"least time of an iteration, at the published rates ({device.flops / 1e12:.0f} TFLOP/s, "
             f"{device.bandwidth / 1e12:.2f} TB/s, {device.link / 1e9:.0f} GB/s to a neighbour): "
             f"{sum(max(each[:3]) for each in times.values()):.3g} s"]  # fmt: skip
    for stage, (*each, work) in times.items():
        listed = ", ".join(f"{name} {seconds:.3g}" for name, seconds in zip(names, each, strict=True) if seconds)
        idle = f"; {1 - work:.0%} of the devices without rows: make it more at a time" if work < 0.9 else ""
        lines.append(f"    {stage:9} {max(each):8.3g} s  ({listed}{idle})")
    return lines


def of_memory(held, out, device):
    """What `compiled` found -> the lines about memory, the bytes a device at the worst time."""
    stay, limit = sum(held.values()), usable(device)
    share = f" ({limit / device.memory:.0%}, XLA_PYTHON_CLIENT_MEM_FRACTION, of {amount(device.memory)})"
    lines = [f"bytes a device: {' + '.join(f'{name} {amount(x)}' for name, x in held.items())} = {amount(stay)}, of "
             f"{amount(limit)}{share if device.chip else ''}"]
    for stage, (temporaries, moved) in out.items():
        fits = "fits" if stay + temporaries <= limit else "does not fit"
        lines.append(f"    {stage:9} + temporaries {amount(temporaries):>9} = {amount(stay + temporaries):>9}  {fits}")
        if not moved:
            continue
        sums = collections.Counter()
        for (kind, _), (times, size, _) in moved.items():
            sums[kind] += times * size
        (kind, shape), (times, size, _) = max(moved.items(), key=lambda item: item[1][0] * item[1][1])
        lines.append(" " * 14 + ", ".join(f"{kind} {amount(x)}" for kind, x in sums.most_common())
                     + f"; most of it {kind} {shape[:60]}, {times} times {amount(size)}")  # fmt: skip
    return lines, stay + max(each.temporaries for each in out.values())


def plan(cfg, text, outline):
    """A Config with its model, 8xH100, train.outline -> yields the lines of --plan."""
    (name, count), described = machine(text), topology(text)
    device = DEVICES[name]
    flops, limit = counted(cfg, count)[1], usable(device)
    here = "data x fsdp x tensor = " + " x ".join(map(str, cfg.mesh or (1, count, 1)))
    shared = ", ".join(f"{stage} {amount(x, 'FLOP')}" for stage, x in flops.items() if x)
    if described is None:
        package = (f"jax-cuda12-plugin=={jax.__version__} jax-cuda12-pjrt=={jax.__version__}" if device.chip else
                   "libtpu, in an environment of its own: with it JAX looks for a TPU")  # fmt: skip
        yield f"{text}, {here}: counted. To have it compiled as for the device itself: pip install {package}"
        yield from describe(cfg, limit, count)
        yield from of_time(cfg, count, device, {})
        return
    yield f"{text}, {here}: compiled ahead of time, by the compiler for it in jax {jax.__version__}"
    changes, before = {}, None
    for _ in range(4):
        now = dataclasses.replace(cfg, mesh=cfg.mesh or (1, count, 1))
        held, out = compiled(now, mesh.make(now.mesh, described.devices), device, outline)
        lines, peak = of_memory(held, out, device)
        guess = counted(cfg, count)[0]["peak"]
        if not changes or peak <= limit:
            yield from lines
            yield f"a step: {shared}; counted, this would be at most {amount(guess)} a device"
            yield from of_time(cfg, count, device, {stage: each.moved for stage, each in out.items()})
        if peak <= limit:
            yield f"it fits{', with ' + flags(changes) if changes else ''}: {amount(peak)} of {amount(limit)}"
            return
        if device.chip and peak <= 0.95 * device.memory and not changes:
            yield f"it fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in the environment: {amount(peak)}"
            return
        # How far the count is off is known now, so that few runs have to be compiled.
        more, then, cfg = cheaper(cfg, 0.97 * limit * guess / peak, count)
        if not more or before == (changes := changes | more):
            break
        before = changes
        yield f"{amount(peak)} of {amount(limit)}: does not fit; next {flags(changes)}"
    yield "nothing that was tried fits: it needs more devices, larger ones, or a smaller model"
