"""
Estimate the bytes that a run needs at least, before anything is allocated, from its config alone. (--plan has them from
a compiler.)
"""

import dataclasses
import math

import jax

import config
import model
from config import Config
from system import sections, sharding


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    ref_offload: bool = sections.key(False, "keep the reference in host memory while it is not used")


def active_rows(cfg):
    """Count the rows whose activations a backward pass keeps at a time, on all devices together."""
    if cfg.objective != "grpo":
        return cfg.batch_size * (2 if cfg.objective == "judge" else 1) // cfg.gradient_accumulation_steps
    return config.minibatch(cfg) // cfg.gradient_accumulation_steps * config.n_views(cfg)


def mlp_width(m):
    """Count the columns inside the mlps of a layer that a token goes through: with experts, those of a few of them, on
    average over the layers."""
    own = sections.find(m, "moe")
    if own is None:
        return m.ff
    dense = own.first_dense / m.n_layer
    return dense * m.ff + (1 - dense) * (own.experts_per_token + own.n_shared) * own.d_expert


# ---- bytes -----------------------------------------------------------------------------------------------------------


def n_params(cfg):
    """Count the parameters of the whole model."""
    table = model.shapes(cfg.model, 1 if cfg.objective == "judge" else None)
    return sum(map(math.prod, jax.tree.leaves(table, is_leaf=lambda shape: isinstance(shape, tuple))))


def bytes_per_number(m):
    """Return the bytes of a number in the dtype in which the model, a ModelConfig, computes."""
    return 2 if m.dtype == "bfloat16" else 4


def weight_bytes(cfg):
    """Count the bytes of the parameters and of every array of their shape, over all devices -> {part: bytes}."""
    m, n = cfg.model, n_params(cfg)
    trained, params = n, 4 * n
    if config.has_frozen_base(cfg):
        from checkpoints import adapters  # other runs do not load them

        trained = adapters.count(cfg)
        params = adapters.base_bytes(m, config.pack_of(cfg), n, bytes_per_number(m)) + 4 * trained
    has_reference = config.has_reference(cfg) and not Keys.of(cfg).ref_offload
    return {
        "params": params,
        "gradients": 4 * trained,
        "moments": 8 * trained,
        "average": 0 if cfg.ema_decay is None else 4 * trained,
        "reference": (bytes_per_number(m) if config.reference_stays(cfg) else 4) * n if has_reference else 0,
    }


def activation_bytes(cfg, on_cpu):
    """Estimate the bytes that the backward pass of a micro-batch keeps, over all devices: of each layer its norms, q, k
    and v before and after the rotation, and the inside of the mlp. on_cpu: see kernels.between."""
    m = cfg.model
    heads = (m.n_head + m.kv_heads) * m.head_dim
    columns = cfg.max_prompt_len + cfg.max_new_tokens
    layers = 1 if m.remat else m.n_layer
    per_column = 6 * m.d_model + 4 * heads + 4 * mlp_width(m)
    return active_rows(cfg) * columns * layers * per_column * (4 if on_cpu else bytes_per_number(m))


def estimate_bytes(cfg: Config, n_devices: int | None = None) -> dict[str, float]:
    """Estimate the bytes per device that a run needs -> {part: bytes}; logits, caches and copies are left out.
    n_devices None: the devices in use; otherwise it is a plan, which is for no CPU."""
    n_rows, fsdp, tensor = cfg.mesh or (1, n_devices or math.prod(sharding.shape().values()), 1)
    held = {part: size / (fsdp * tensor) for part, size in weight_bytes(cfg).items() if size}
    activations = activation_bytes(cfg, n_devices is None and sharding.on_cpu())
    return held | {"activations": activations / (n_rows * fsdp * tensor)}


# ---- in words --------------------------------------------------------------------------------------------------------


def amount(x: float, unit: str = "B") -> str:
    """Format a number with a prefix: 1234567890, "FLOP" -> 1.2 GFLOP."""
    power = max((p for p in range(6) if x >= 1000**p), default=0)
    return f"{x / 1000**power:.{0 if power == 0 else 1}f} {' kMGTP'[power].strip()}{unit}"


def listed(parts: dict[str, float]) -> str:
    """Format {part: bytes} and their sum."""
    return " + ".join(f"{part} {amount(x)}" for part, x in parts.items()) + f" = {amount(sum(parts.values()))}"


def what_helps(cfg: Config, stage: str) -> str:
    """Name the keys that lower the memory of a stage, as a sentence."""
    m, parts = cfg.model, cfg.gradient_accumulation_steps
    keys = {
        f"more gradient_accumulation_steps (now {parts})": stage != "rollout",
        f"a smaller rollout_chunk (now {cfg.rollout_chunk})": stage == "rollout",
        "remat=True": stage == "update" and not m.remat,
        "dtype=bfloat16": m.dtype == "float32",
        "memory.ref_offload=True": config.has_reference(cfg) and not Keys.of(cfg).ref_offload,
    }
    helping = [key for key, applies in keys.items() if applies]
    return f"what helps: {', '.join(helping)}; else a smaller model or more devices"


def refusal(cfg: Config, limit: float, n_devices: int | None = None) -> str:
    """Say why a run cannot fit into `limit` bytes per device; "" if it may, as activations may be half as large."""
    parts = estimate_bytes(cfg, n_devices)
    if sum(parts.values()) - parts["activations"] / 2 <= limit:
        return ""
    return f"this run cannot fit: {listed(parts)}, and there are {amount(limit)}; {what_helps(cfg, 'update')}"
