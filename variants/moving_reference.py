"""
A reference of the KL that follows the policy:  --kl_beta=0.04 --ref_mode=ema, or --ref_mode=periodic
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
    ref_mode: str = config.key("static", "the reference is static, ema (follows the policy) or periodic (is renewed)",
                               choices=("static", "ema", "periodic"))  # fmt: skip
    ref_decay: float = config.key(0.99, "ref_mode=ema: weight of the old reference", config.FRACTION)
    ref_sync_interval: int = config.key(64, "ref_mode=periodic: iterations between renewals", config.POSITIVE_INT)
    ref_sync_mix: float = config.key(1.0, "ref_mode=periodic: weight of the policy in the new reference",
                                     config.FRACTION)  # fmt: skip

    @property
    def moves_reference(self):
        return self.ref_mode != "static"

    def reference(self, state, cfg):
        """Return the reference for the iteration after state.step."""
        if self.ref_mode == "static" or self.ref_mode == "periodic" and state.step % self.ref_sync_interval:
            return state.reference  # wherever it is stored
        old, how = sharding.to_device(state.reference), (self.ref_decay, self.ref_sync_interval, self.ref_sync_mix)
        new = update_reference(old, state.params, state.step, self.ref_mode, *how)
        return sharding.to_host(new) if memory.Keys.of(cfg).ref_offload else new

    def between_keys(self, c):
        yield (self.ref_mode != "static" and not c.kl_beta,
               f"ref_mode={self.ref_mode!r} changes nothing here, it is for kl_beta above 0: without it there is no "
               "reference; leave it out or set ref_mode='static'")  # fmt: skip


@functools.partial(jax.jit, static_argnames=("mode", "decay", "interval", "mix"))
def update_reference(
    ref: Any, params: Any, step: Any, mode: str, decay: float = 0.99, interval: int = 64, mix: float = 1.0
) -> Any:
    """Move the reference model of the KL after iteration `step`: ref, params -> the next ref.

    mode "static": it never changes. "ema": decay * ref + (1 - decay) * params, after every iteration. "periodic": after
    every `interval` iterations, mix * params + (1 - mix) * ref. (Two papers call the opposite fractions alpha.)
    """
    if mode == "static":
        return ref
    fraction = 1 - decay if mode == "ema" else jnp.where(step % interval == 0, mix, 0.0)
    return jax.tree.map(lambda r, p: (1 - fraction) * r + fraction * p, ref, params)  # exact at 0 and 1
