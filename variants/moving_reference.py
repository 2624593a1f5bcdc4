"""
A reference of the KL that follows the policy:  --kl_beta=0.04 --moving_reference.mode=ema (or periodic)
"""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import config
from loop import memory
from system import sharding


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    mode: str = config.key("ema", "the reference follows the policy (ema), or is renewed (periodic)",
                           choices=("ema", "periodic"))  # fmt: skip
    decay: float = config.key(0.99, "mode=ema: weight of the old reference", config.FRACTION)
    interval: int = config.key(64, "mode=periodic: iterations between renewals", config.POSITIVE_INT)
    mix: float = config.key(1.0, "mode=periodic: weight of the policy in the new reference", config.FRACTION)

    moves_reference = True

    def reference(self, state, cfg):
        """Return the reference for the iteration after state.step."""
        if self.mode == "periodic" and state.step % self.interval:
            return state.reference  # wherever it is stored
        old, how = sharding.to_device(state.reference), (self.decay, self.interval, self.mix)
        new = update_reference(old, state.params, state.step, self.mode, *how)
        return sharding.to_host(new) if memory.Keys.of(cfg).ref_offload else new

    def between_keys(self, c):
        yield not c.kl_beta, f"moving_reference.mode={self.mode!r} changes nothing here, it is for kl_beta above 0"


@functools.partial(jax.jit, static_argnames=("mode", "decay", "interval", "mix"))
def update_reference(
    ref: Any, params: Any, step: Any, mode: str, decay: float = 0.99, interval: int = 64, mix: float = 1.0
) -> Any:
    """Move the reference model of the KL after iteration `step`: ref, params -> the next ref.

    mode "ema": decay * ref + (1 - decay) * params, after every iteration. "periodic": after
    every `interval` iterations, mix * params + (1 - mix) * ref. (Two papers call the opposite fractions alpha.)
    """
    fraction = 1 - decay if mode == "ema" else jnp.where(step % interval == 0, mix, 0.0)
    return jax.tree.map(lambda r, p: (1 - fraction) * r + fraction * p, ref, params)  # exact at 0 and 1
