"""
Say how a run that needs too much memory can be made to fit.
"""

import contextlib
from typing import NamedTuple

import config
from config import Config
from loop import cost, memory


class Fit(NamedTuple):
    cfg: Config  # the run, changed
    changes: dict  # {key: value}
    peak: float  # bytes per device, estimated


def make_fit(cfg, limit, n_devices=None):
    """Change keys until the estimate is at most `limit` bytes per device, or no key is left -> Fit. Those that affect
    the result least are changed first."""
    fit = Fit(cfg, {}, memory.estimate_bytes(cfg, n_devices)["peak"])
    for key, value in smaller_values(cfg, n_devices):
        if fit.peak <= limit:
            break
        with contextlib.suppress(ValueError):  # a value that does not divide
            changed = config.changed(fit.cfg, {key: value})
            peak = memory.estimate_bytes(changed, n_devices)["peak"]
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
        yield from halves("logp_chunk", memory.count_rows(cfg).active)
        yield from halves("rollout_chunk", config.rollout_rows(cfg))
    for tensor in (1, 2, 4, 8):
        if n_devices and not (n_devices % tensor or m.n_head % tensor or m.kv_heads % tensor):
            yield "mesh", (1, n_devices // tensor, tensor)
    yield from (("remat", True), ("dtype", "bfloat16"))
    if grpo and cfg.kl_beta:
        yield "memory.ref_offload", True
    yield from halves("batch_size", cfg.batch_size)
    if grpo:
        yield from halves("group_size", cfg.group_size)


def flags(changes):
    """Format {key: value} as on the command line."""
    return " ".join(f"--{key}={config.as_typed(value)}" for key, value in changes.items())


def describe(cfg: Config, limit: float | None = None, n_devices: int | None = None) -> list[str]:
    """Return what a run needs in memory and computes and, if that is too much, which keys to change, each a line."""
    lines = [f"{memory.summary(cfg, limit, n_devices)}; {cost.summary(cfg)}"]
    limit = limit or memory.device_memory()
    if memory.estimate_bytes(cfg, n_devices)["peak"] > limit:
        fit = make_fit(cfg, limit, n_devices)
        would = "no key of this config helps"
        if fit.changes:
            would = f"{flags(fit.changes)} would make it {memory.amount(fit.peak)}"
        more = "" if fit.peak <= limit else "; still too much: it needs a smaller model or a larger device"
        lines.append(f"warning: this run will probably not fit: {would}{more}")
    return lines
