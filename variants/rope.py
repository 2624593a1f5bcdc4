"""
Rotary positions, and how they are stretched for texts longer than those a model was first trained on: Llama 3.1's way,
and YaRN (arXiv 2309.00071).

Both keep the frequencies of columns that turn often within the first trained length, divide those of slow columns by a
factor, and blend in between. The numbers are (factor, low, high, length), where low and high are numbers of turns
within the length; for YaRN also the attention factor.
"""
import dataclasses
import math

import jax.numpy as jnp

import model
from system.sections import Section


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The field of a ModelConfig that stretches its positions."""

    rope_scaling: tuple[float, ...] | None = (8.0, 1.0, 4.0, 8192.0)  # stretched positions: these are Llama 3.1's

    def between_keys(self, c):
        numbers = self.rope_scaling or ()
        yield len(numbers) not in (4, 5) or min(numbers) <= 0 or numbers[1] >= numbers[2], (
            f"rope_scaling={self.rope_scaling}: expected four numbers above 0, as in 8,1,4,8192: factor, "
            "low_freq_factor < high_freq_factor, original_max_position_embeddings; or five for YaRN: also "
            "attention_factor")


def rotary(positions, cfg):
    """Tabulate the rotary angles as `model.rotary` does."""
    turned = int(cfg.head_dim * cfg.rotary_share)
    column = positions[:, :, None, None]
    angle = column * frequencies(cfg.rope_theta, turned, cfg.rope_scaling)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if len(cfg.rope_scaling) == 4:
        return cos, sin
    attention_factor = cfg.rope_scaling[4]
    return cos * attention_factor, sin * attention_factor


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


model.ROTARY["rope"] = rotary
