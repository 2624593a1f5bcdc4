"""
Rotary positions that are stretched for texts longer than those a model was first trained on, as in Llama 3.1: the
frequencies of columns that turn often within the first trained length stay, those of slow columns are divided by a
factor, and in between both are blended. The numbers are (factor, low, high, length), where low and high are numbers of
turns within the length.
"""
import dataclasses

import jax.numpy as jnp

import model
from system import sections
from system.sections import Section


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The field of a ModelConfig that stretches its positions."""

    scaling: tuple[float, ...] = (8.0, 1.0, 4.0, 8192.0)  # stretched positions: these are Llama 3.1's
    brings = {"rotary": "rope"}

    def between_keys(self, c):
        numbers = self.scaling
        yield len(numbers) != 4 or min(numbers) <= 0 or numbers[1] >= numbers[2], (
            f"rope.scaling={self.scaling}: expected four numbers above 0, as in 8,1,4,8192: factor, "
            "low_freq_factor < high_freq_factor, original_max_position_embeddings (YaRN is gone: docs/tried.md)")


def rotary(positions, cfg):
    """Tabulate the rotary angles as `model.rotary` does."""
    turned = int(cfg.head_dim * cfg.rotary_share)
    column = positions[:, :, None, None]
    angle = column * frequencies(cfg.rope_theta, turned, Shape.of(cfg).scaling)
    return jnp.cos(angle), jnp.sin(angle)


def frequencies(theta, size, scaling):
    """Return the angle per position (K/2,) of each pair of columns in a head of K = size columns."""
    frequency = theta ** (-jnp.arange(0, size, 2) / size)
    if scaling is None:
        return frequency
    factor, low, high, length = scaling
    turns = length * frequency / (2 * jnp.pi)
    keep = jnp.clip((turns - low) / (high - low), 0, 1)
    return frequency * (keep + (1 - keep) / factor)


sections.add(model.ROTARY, rope=rotary)
