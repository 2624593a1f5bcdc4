"""
A reference of the KL that follows the policy:  --kl_beta=0.04 --moving_reference.mode=ema (or periodic)
"""
import dataclasses
import functools
from typing import Any

import jax

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
        fraction = 1 - self.decay
        if self.mode == "periodic":
            fraction = self.mix
            if state.step % self.interval:
                return state.reference  # wherever it is stored
        new = moved(sharding.to_device(state.reference), state.params, fraction)
        return sharding.to_host(new) if memory.Keys.of(cfg).ref_offload else new

    def between_keys(self, c):
        yield not c.kl_beta, f"moving_reference.mode={self.mode!r} changes nothing here, it is for kl_beta above 0"


@functools.partial(jax.jit, static_argnames="fraction")
def moved(ref: Any, params: Any, fraction: float) -> Any:
    """Move the reference model of the KL by a fraction of its way to params, exactly so for 0 and 1. (Two papers call
    the opposite fractions alpha.)"""
    return jax.tree.map(lambda r, p: (1 - fraction) * r + fraction * p, ref, params)
