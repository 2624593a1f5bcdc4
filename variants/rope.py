"""
Rotary positions, and how they are stretched for texts longer than those a model was first trained on: Llama 3.1's way,
and YaRN (arXiv 2309.00071) with the query scale of Ministral 3.

Both keep the frequencies of columns that turn often within the first trained length, divide those of slow columns by a
factor, and blend in between. `scaling` is ModelConfig.rope_scaling: (factor, low, high, length), where low and high are
numbers of turns within the length; for YaRN also (attention factor, and for Ministral 3 the growth of the query scale).
"""
import math

import jax.numpy as jnp


def rotary(positions, cfg):
    """Tabulate the rotary angles: positions (B or 1, S) -> cos, sin (B or 1, S, 1, K/2) float32, K being the columns of
    a head that are turned; and for Ministral 3 the scale of the queries (B or 1, S, 1, 1)."""
    turned = int(cfg.head_dim * cfg.rotary_share)
    column = positions[:, :, None, None]
    angle = column * frequencies(cfg.rope_theta, turned, cfg.rope_scaling)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if cfg.rope_scaling is None or len(cfg.rope_scaling) == 4:
        return cos, sin
    length, attention_factor, *growth = cfg.rope_scaling[3:]
    cos, sin = cos * attention_factor, sin * attention_factor
    if not growth:
        return cos, sin
    log_lengths = jnp.log1p(positions // length)[:, :, None, None]
    return cos, sin, 1 + growth[0] * log_lengths


def frequencies(theta, size, scaling):
    """Return the angle per position (K/2,) of each pair of columns in a head of K = size columns."""
    frequency = theta ** (-jnp.arange(0, size, 2) / size)
    if scaling is None:
        return frequency
    factor, low, high, length, *yarn = scaling

    def pair_with(turns):
        """Return the pair of columns, a real number, that turns `turns` times over `length` tokens."""
        return size * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

    if yarn:  # linear in the number of the pair
        first = math.floor(pair_with(high))
        last = math.ceil(pair_with(low))
        first, last = max(first, 0), min(last, size - 1)
        slow = (jnp.arange(size // 2) - first) / max(last - first, 0.001)
        keep = 1 - jnp.clip(slow, 0, 1)
    else:  # linear in the number of turns
        turns = length * frequency / (2 * jnp.pi)
        keep = jnp.clip((turns - low) / (high - low), 0, 1)
    return frequency * (keep + (1 - keep) / factor)
