"""
Estimate the bytes that a run needs, before anything is allocated, from its config alone, in milliseconds. (cost.py
estimates its FLOPs.)

Terms: a *row* is one text in a forward pass; a *noisy copy* is a text with masks; a *stage* is rollout, scoring (old
and reference log-probs) or update; a *micro-batch* is the part of a minibatch that takes one backward pass.
"""

import dataclasses
import math
import os
from typing import NamedTuple

import jax

import config
import model
from config import Config
from system import kernels, sections, sharding


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    ref_offload: bool = sections.key(False, "keep the reference in host memory while it is not used")


class Rows(NamedTuple):  # on all devices together
    scored: float  # rows in the forward passes of all updates of an iteration
    active: float  # rows whose activations the backward pass keeps at a time
    saved: float  # rows whose block inputs remat keeps
    recomputed: bool  # True if the backward pass computes the blocks again


def count_rows(cfg: Config) -> Rows:
    """Count the rows of an iteration's updates, on all devices together."""
    copies = copies_per_text(cfg)
    width = rows_per_copy(cfg)
    if cfg.objective in ("pretrain", "judge"):
        rows = width * cfg.batch_size * (2 if cfg.objective == "judge" else 1)
        micro = rows // cfg.gradient_accumulation_steps
        return Rows(rows, micro, micro, cfg.model.remat)
    per_update = config.minibatch(cfg)
    per_iter = cfg.updates_per_rollout * config.n_update(cfg)
    micro = per_update // cfg.gradient_accumulation_steps * copies
    chunk = min(cfg.logp_chunk or micro, micro)
    scored = per_iter * copies
    return Rows(width * scored, width * chunk, width * micro, cfg.model.remat or chunk < micro)


def copies_per_text(cfg):
    """Count the noisy copies of each text."""
    return config.n_views(cfg) if cfg.objective == "grpo" else config.copies(cfg)


def copy_columns(cfg):
    """Count the columns computed per noisy copy of a block model, next to the clean text. 0: not a block model."""
    block = cfg.model.block
    if not block or cfg.objective == "judge":
        return 0
    return cfg.max_new_tokens + min(block - 1 + cfg.model.shift, cfg.max_prompt_len)


def rows_per_copy(cfg):
    """Count the rows computed per noisy copy: for a block model its last columns and its share of the clean text."""
    columns = copy_columns(cfg)
    if not columns:
        return 1
    return columns / (cfg.max_prompt_len + cfg.max_new_tokens) + 1 / copies_per_text(cfg)


def mesh_parts(cfg, n_devices):
    """Return the numbers of parts into which the mesh splits rows, weights, and weights after gathering over fsdp."""
    data, fsdp, tensor = cfg.mesh or (1, n_devices or math.prod(sharding.shape().values()), 1)
    return data * fsdp, fsdp * tensor, tensor


# ---- bytes -----------------------------------------------------------------------------------------------------------


def n_params(cfg):
    """Count the parameters of the whole model."""
    table = model.shapes(cfg.model, 1 if cfg.objective == "judge" else None)
    return sum(map(math.prod, jax.tree.leaves(table, is_leaf=lambda shape: isinstance(shape, tuple))))


def bytes_per_number(m):
    """Return the bytes of a number in the dtype in which the model, a ModelConfig, computes."""
    return 2 if m.dtype == "bfloat16" else 4


def estimate_bytes(cfg: Config, n_devices: int | None = None) -> dict[str, float]:
    """Estimate bytes per device -> {purpose: bytes}, with the most that is needed at a time as `peak`. n_devices None:
    the devices in use."""
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
    """Estimate the bytes of the parameters and of every array of their shape -> {purpose: bytes}, over all devices."""
    m, n = cfg.model, n_params(cfg)
    wide, trained = bytes_per_number(m), n
    params = 4 * n + (2 * n if wide == 2 else 0)  # float32, and a copy cast to 16 bits
    if config.has_frozen_base(cfg):
        from checkpoints import adapters  # other runs do not load them

        trained = adapters.count(cfg)
        params = adapters.base_bytes(m, config.pack_of(cfg), n, wide) + 4 * trained
    has_reference = config.has_reference(cfg) and not Keys.of(cfg).ref_offload
    has_sum = cfg.gradient_accumulation_steps > 1 or cfg.logp_chunk  # the sum of the parts so far, and the next part
    return {
        "params": params,
        "optimizer": 8 * trained,
        "average": 0 if cfg.ema_decay is None else 4 * trained,
        "reference": (wide if config.reference_stays(cfg) else 4) * n if has_reference else 0,
        "gradients": 4 * trained * (2 if has_sum else 1),
    }


class Widths(NamedTuple):
    stored: int  # columns inside the mlps of a layer
    used: float  # columns that a token goes through, per layer on average


def mlp_widths(m):
    """Count the columns inside the mlps of a layer. With experts, a token goes through a few of them."""
    own = sections.find(m, "moe")
    if own is None:
        return Widths(m.ff, m.ff)
    used = (own.experts_per_token + own.n_shared) * own.d_expert
    dense = own.first_dense / m.n_layer
    return Widths((own.n_experts + own.n_shared) * own.d_expert, dense * m.ff + (1 - dense) * used)


def expert_bytes(m, T, wide):
    """Estimate the bytes that one layer's experts take beyond those of an mlp of their width (variants/moe.py) -> those
    of the tokens of one row of T columns, copied for each of their experts; those of matrices, copied for tiles."""
    own = sections.find(m, "moe")
    if own is None:
        return 0, 0
    return 6 * T * own.experts_per_token * m.d_model * wide, 4 * own.n_experts * own.d_expert * m.d_model * wide


def gathered_bytes(cfg):
    """Estimate the bytes of the gathered weights: the largest block or the head, and as many for the one before it."""
    m = cfg.model
    heads = (m.n_head + m.kv_heads) * m.head_dim
    block = m.d_model * (2 * heads + 3 * mlp_widths(m).stored)
    head = 0 if cfg.objective == "judge" else m.d_model * m.vocab_size
    return 2 * bytes_per_number(m) * max(block, head)


def work_bytes(cfg, row_parts, tensor, wide):
    """Estimate the bytes per device of activations and logits of an update, and of a rollout -> {purpose: bytes}."""
    m, new = cfg.model, cfg.max_new_tokens
    T = cfg.max_prompt_len + new
    grpo = cfg.objective == "grpo"
    Q, KV = m.n_head * m.head_dim, m.kv_heads * m.head_dim
    rows = count_rows(cfg)
    active, saved = (math.ceil(n / row_parts) for n in (rows.active, rows.saved))
    # A layer keeps its norms, q, k, v before and after the rotation, the inside of the mlp, and scores in float32.
    gemma = sections.find(m, "gemma")
    fused = kernels.fused(m.dtype, m.head_dim, gemma and gemma.attn_cap)
    scores = 0 if fused else 4 * 2 * m.n_head * (T + copy_columns(cfg))
    layer = T * (wide * (6 * m.d_model + 4 * Q + 4 * KV + 4 * mlp_widths(m).used) + scores) // tensor
    copies, tiles = expert_bytes(m, T, wide)
    layer += copies
    activations = active * m.n_layer * layer + tiles // tensor
    if m.remat:
        activations = saved * m.n_layer * T * wide * m.d_model + active * layer + tiles // tensor

    def logits(positions):
        """Return the bytes of one array of logits, of which diffusion.py makes a chunk at a time."""
        chunk = max(kernels.LOGITS_BYTES // (4 * m.vocab_size * row_parts), 1)
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


# ---- the line that every run begins with -----------------------------------------------------------------------------


def device_memory():
    """Return the bytes that JAX may use: the first GPU's, or the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def amount(x: float, unit: str = "B") -> str:
    """Format a number with a prefix: 1234567890, "FLOP" -> 1.2 GFLOP."""
    if math.isinf(x):
        return "too much"
    power = max((p for p in range(6) if x >= 1000**p), default=0)
    return f"{x / 1000**power:.{0 if power == 0 else 1}f} {' kMGTP'[power].strip()}{unit}"


def summary(cfg: Config, limit: float | None = None, n_devices: int | None = None) -> str:
    """Return the line that a run begins with: the bytes that it needs, of `limit` bytes per device."""
    parts, limit = estimate_bytes(cfg, n_devices), limit or device_memory()
    peak = parts.pop("peak")
    rollout = parts.pop("rollout")
    listed = " + ".join(f"{name} {amount(x)}" for name, x in parts.items() if x)
    before = f" (rollout {amount(rollout)}, before them)" if rollout else ""
    return f"memory: {listed}{before}, at most {amount(peak)} of {amount(limit)}"
